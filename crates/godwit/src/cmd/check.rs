//! `godwit check`: what another file would change, before it does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use godwit_agent::config::{Change, Config};
use godwit_agent::control::{Client, FindError, RunningFile, find};
use godwit_agent::reload::{Obstacles, obstacles};
use godwit_agent::status::Status;
use serde::Serialize;

use crate::{exit, out};

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
    /// Why it is not known what would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
    /// Whether anything would change; `null` if there is nothing to compare with.
    changes: Option<bool>,
    sections: Vec<Change>,
    /// Whether an agent starts with it here, and peers take a link to that; `null` if this user
    /// may not read what it names.
    starts: Option<bool>,
    warnings: Vec<String>,
}

/// What a file is compared with.
enum Running {
    /// What it is called and says, and what is known of it beyond that.
    Is(String, Box<(Config, Option<Status>)>),
    /// No agent of the file's node runs here.
    Nobody,
    /// One may run, and does not say what with.
    Unknown(String),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let next = Config::load(&args.file)?;
    let running = match args.config.as_deref().filter(|it| !is_same(it, &args.file)) {
        Some(path) => Running::Is(shown(path), Box::new((Config::load(path)?, None))),
        None => ask(&next),
    };
    let (running, unknown) = match running {
        Running::Is(name, running) => (Some((name, running)), None),
        Running::Nobody => (None, None),
        Running::Unknown(why) => (None, Some(why)),
    };
    let (name, running) = running.unzip();
    let in_force = running.as_ref();
    let in_force = in_force.map(|running| (&running.0, running.1.as_ref()));
    let obstacles = obstacles(in_force, &next);
    let others: Vec<_> = obstacles
        .unknown
        .iter()
        .chain(&obstacles.others)
        .cloned()
        .collect();
    let mut sections = in_force.map(|(running, _)| running.changes(&next));
    if !obstacles.bars.is_empty() {
        let own = sections.iter_mut().flatten();
        for node in own.filter(|it| it.section == "node") {
            // Not "which disturbs no connection".
            node.means = "it needs a restart, once nothing is in its way".to_owned();
        }
    }
    let is_changed = |all: &Vec<Change>| all.iter().any(|it| it.what != "unchanged");
    let report = Report {
        schema: "godwit.check/1",
        file: shown(&args.file),
        running: name,
        unknown,
        changes: sections.as_ref().map(is_changed),
        sections: sections.unwrap_or_default(),
        starts: starts(&obstacles),
        warnings: [&next.warnings, &obstacles.bars, &others]
            .into_iter()
            .flatten()
            .cloned()
            .collect(),
    };
    if args.json {
        out::json(&report)?;
    } else {
        out::lines(&said(&report, &obstacles))?;
    }
    Ok(if report.starts == Some(false) {
        ExitCode::from(exit::FAILED)
    } else {
        ExitCode::SUCCESS
    })
}

/// Whether an agent starts with the file, and peers take it; `None` if that is not known.
fn starts(obstacles: &Obstacles) -> Option<bool> {
    if !obstacles.bars.is_empty() {
        return Some(false);
    }
    obstacles.unknown.is_none().then_some(true)
}

fn is_same(a: &Path, b: &Path) -> bool {
    let real = |path| fs::canonicalize(path).ok();
    a == b || real(a).is_some_and(|it| Some(it) == real(b))
}

/// Asks the agent of the file's node what it runs with. The one agent that is on the file's
/// interface is that node's under another name.
fn ask(next: &Config) -> Running {
    let run_dir = &next.node.run_dir;
    let asked = godwit_agent::netns_cookie()
        .context("can't ask the kernel which network namespace this is")
        .and_then(|cookie| {
            let named = answer(find(run_dir, cookie, Some(next.node.name)))?;
            let only = || answer(find(run_dir, cookie, None));
            named.map_or_else(only, |it| Ok(Some(it)))
        });
    let (mut client, file) = match asked {
        Ok(Some(it)) => it,
        Ok(None) => return Running::Nobody,
        Err(error) => return Running::Unknown(format!("{error:#}")),
    };
    let running = match Config::parse(&file.path, &file.text) {
        Ok(running) => running,
        Err(error) => {
            let node = file.node;
            return Running::Unknown(format!("the file that node {node} runs with: {error}"));
        }
    };
    let (a, b) = (&running.node, &next.node);
    if a.name != b.name && a.interface != b.interface {
        return Running::Nobody;
    }
    let name = format!("the agent of node {}", file.node);
    Running::Is(name, Box::new((running, client.status().ok())))
}

/// The file of an agent that was looked for; none if nobody is there.
fn answer(found: Result<PathBuf, FindError>) -> anyhow::Result<Option<(Client, RunningFile)>> {
    let socket = match found {
        Ok(socket) => socket,
        Err(FindError::NoAgent { .. } | FindError::Several { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut client = match Client::connect(&socket) {
        Err(error) if error.is_absence() => return Ok(None),
        connected => connected?,
    };
    let file = client.file()?;
    Ok(Some((client, file)))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn said(report: &Report, obstacles: &Obstacles) -> String {
    let mut lines: Vec<_> = report.sections.iter().map(Change::sentence).collect();
    let beside = match (report.changes, &report.running, &report.unknown) {
        (Some(true), ..) => String::new(),
        (Some(false), Some(running), _) => format!(", says what {running} says"),
        (.., Some(why)) => format!("; what it would change is not known: {why}"),
        _ => "; no agent of its node runs here to compare with".to_owned(),
    };
    lines.push(format!("{}: valid{beside}", report.file));
    lines.extend(report.warnings.iter().map(|it| {
        let is_bar = obstacles.bars.contains(it);
        format!("{}: {it}", if is_bar { "error" } else { "warning" })
    }));
    lines.join("\n")
}
