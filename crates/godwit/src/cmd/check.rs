//! `godwit check`: what another file would change, before it does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use godwit_agent::config::{Change, Config};
use serde::Serialize;

use crate::out;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to be checked. Nothing is changed anywhere.
    file: PathBuf,
    /// The file that it is to replace. Without it the new file is only checked.
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
    let running = args.config.as_deref().map(Config::load).transpose()?;
    let sections = running.as_ref().map(|running| running.changes(&next));
    let is_changed = |all: &Vec<Change>| all.iter().any(|it| it.what != "unchanged");
    let report = Report {
        schema: "godwit.check/1",
        file: shown(&args.file),
        running: args.config.as_deref().map(shown),
        changes: sections.as_ref().map(is_changed),
        sections: sections.unwrap_or_default(),
        warnings: next.warnings.clone(),
    };
    if args.json {
        out::json(&report)?;
    } else {
        out::lines(&said(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn said(report: &Report) -> String {
    let mut lines: Vec<_> = report.sections.iter().map(Change::sentence).collect();
    lines.push(match (report.changes, &report.running) {
        (Some(true), _) => format!("{}: valid", report.file),
        (Some(false), Some(running)) => format!("{}: valid, says what {running} says", report.file),
        _ => format!("{}: valid", report.file),
    });
    let warnings = report.warnings.iter();
    lines.extend(warnings.map(|warning| format!("warning: {warning}")));
    lines.join("\n")
}
