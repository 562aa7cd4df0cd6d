//! `godwit check`: what another file would change, before it does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use godwit_agent::config::{Change, Config};
use godwit_agent::control::{Client, find};
use godwit_agent::reload::obstacles;
use godwit_agent::status::Status;
use serde::Serialize;

use crate::out;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to be checked. Nothing is changed anywhere.
    file: PathBuf,
    /// The file that it is to replace. Without it, and if it is FILE itself, the new file is
    /// compared with what the running agent of its node has taken.
    #[arg(long, value_name = "RUNNING")]
    config: Option<PathBuf>,
    /// One line of JSON, schema godwit.check/1.
    #[arg(long)]
    json: bool,
}

/// `godwit.check/1`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    file: String,
    /// The file that it is compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<String>,
    /// Whether anything would change; `null` if there is nothing to compare with.
    changes: Option<bool>,
    sections: Vec<Change>,
    warnings: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let next = Config::load(&args.file)?;
    let running = match args.config.as_deref().filter(|it| !is_same(it, &args.file)) {
        Some(path) => Some((shown(path), (Config::load(path)?, None))),
        None => in_force(&next),
    };
    let (name, running) = running.unzip();
    let (running, status) = running.unzip();
    let status: Option<Status> = status.flatten();
    let in_force = running.as_ref().map(|it| (it, status.as_ref()));
    let obstacles = obstacles(in_force, &next);
    let sections = running.as_ref().map(|running| running.changes(&next));
    let is_changed = |all: &Vec<Change>| all.iter().any(|it| it.what != "unchanged");
    let report = Report {
        schema: "godwit.check/1",
        file: shown(&args.file),
        running: name,
        changes: sections.as_ref().map(is_changed),
        sections: sections.unwrap_or_default(),
        warnings: [next.warnings.clone(), obstacles].concat(),
    };
    if args.json {
        out::json(&report)?;
    } else {
        out::lines(&said(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn is_same(a: &Path, b: &Path) -> bool {
    let real = |path| fs::canonicalize(path).ok();
    a == b || real(a).is_some_and(|it| Some(it) == real(b))
}

/// What the agent of the file's node runs with, if one runs and answers here, and its state.
/// The one agent that is on the file's interface is that node's under another name.
fn in_force(next: &Config) -> Option<(String, (Config, Option<Status>))> {
    let cookie = godwit_agent::netns_cookie().ok()?;
    let of = |node| find(&next.node.run_dir, cookie, node).ok();
    let socket = of(Some(next.node.name)).or_else(|| of(None))?;
    let mut client = Client::connect(&socket).ok()?;
    let file = client.file().ok()?;
    let running = Config::parse(&file.path, &file.text).ok()?;
    let (a, b) = (&running.node, &next.node);
    if a.name != b.name && a.interface != b.interface {
        return None;
    }
    let status = client.status().ok();
    Some((
        format!("the agent of node {}", file.node),
        (running, status),
    ))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn said(report: &Report) -> String {
    let mut lines: Vec<_> = report.sections.iter().map(Change::sentence).collect();
    lines.push(match (report.changes, &report.running) {
        (Some(true), _) => format!("{}: valid", report.file),
        (Some(false), Some(running)) => format!("{}: valid, says what {running} says", report.file),
        _ => format!(
            "{}: valid; no agent of its node runs here to compare with",
            report.file
        ),
    });
    let warnings = report.warnings.iter();
    lines.extend(warnings.map(|warning| format!("warning: {warning}")));
    lines.join("\n")
}
