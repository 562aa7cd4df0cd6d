//! `godwit doctor`: what Godwit needs of this machine, and what to do about it.

use std::path::PathBuf;
use std::process::ExitCode;

use godwit_agent::config::Config;
use godwit_agent::doctor::{Level, LiveHost, Report, Running, Scope, examine};

use crate::{exit, out};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One line of JSON, schema godwit.doctor/1.
    #[arg(long)]
    json: bool,
    /// Check for this configuration: its interface, services and addresses; and ask the agent
    /// that runs with it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.config.as_deref().map(Config::load).transpose()?;
    let scope = config.as_ref().map_or_else(Scope::default, |config| Scope {
        running: Some(Running::ask(config)),
        ..Scope::of(config)
    });
    let report = examine(&LiveHost, &scope);
    if args.json {
        out::json(&report)?;
    } else {
        out::lines(&render(&report))?;
    }
    Ok(if report.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(exit::FAILED)
    })
}

fn render(report: &Report) -> String {
    let width = report
        .checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for check in &report.checks {
        let level = check.level.as_str();
        text.push_str(&format!(
            "{level:4}  {:width$}  {}\n",
            check.name, check.found
        ));
        if let Some(advice) = &check.advice {
            text.push_str(&format!("{:4}  {:width$}  -> {advice}\n", "", ""));
        }
    }
    let count = |level| {
        report
            .checks
            .iter()
            .filter(|check| check.level == level)
            .count()
    };
    let (warn, fail) = (count(Level::Warn), count(Level::Fail));
    text.push_str(&format!(
        "\n{} checks, {warn} to look at, {fail} failed\n",
        report.checks.len()
    ));
    text
}
