//! Requests that are placed: three Apaches, whose page caches hold their files only
//! together, behind a director that gives each connection to one of them by its hash; and
//! the same when each request is handed to the server that has its file.
//!
//! | module | figures |
//! |---|---|
//! | [`placed`] | `handoff.{2,3}.*`, `handoff.cache*`: response times with a page cache and a disk that are limited |
//! | [`peers`] | `handoff.haproxy.*`, `handoff.large.*`: haproxy in their place |
//! | [`twins`] | `handoff.twins.*`: the same of connections with twins |
//! | [`handed`] | `handoff.cost.*`, `handoff.rate`, `handoff.exact.*`: what one handoff costs, how many there can be, and that nothing is lost |
//!
//! [`site`] is what serves.

mod handed;
mod peers;
mod placed;
mod site;
mod twins;

use anyhow::Result;
use serde::Serialize;

use super::budget::Budget;
use super::report::Report;
use crate::apps::webstone::{FileSet, Load, Tally};
use site::{Running, Setup, Site};

/// The schema of every line with a run.
const SCHEMA: &str = "godwit.bench.load/1";

/// Requests on each connection that is kept.
const KEPT: u32 = 100;

/// Whether connections are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// One request on each.
    New,
    /// [`KEPT`] requests on each.
    Kept,
}

/// One run as `--json` prints it.
#[derive(Debug, Serialize)]
struct Run<'a> {
    schema: &'static str,
    front: String,
    servers: usize,
    /// Hundredths of its share of the files that a server's page cache holds.
    cache: Option<u32>,
    connections: u32,
    per_connection: u32,
    #[serde(flatten)]
    tally: &'a Tally,
}

/// `handoff.*`. What can't be measured does not keep other figures from being.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let site = Site::new(FileSet {
        factor: budget.either(8, 3),
    })?;
    let outcomes = [
        placed::run(&site, budget, report),
        handed::run(&site, budget, report),
        peers::run(&site, budget, report),
        twins::run(&site, budget, report),
    ];
    let mut errors = outcomes.into_iter().filter_map(Result::err);
    let Some(first) = errors.next() else {
        return Ok(());
    };
    errors.for_each(|error| report.progress(&format!("not measured: {error:#}")));
    Err(first)
}

impl Manner {
    const BOTH: [Self; 2] = [Self::New, Self::Kept];

    const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Kept => "kept",
        }
    }

    const fn per_connection(self) -> u32 {
        match self {
            Self::New => 1,
            Self::Kept => KEPT,
        }
    }
}

/// Runs `load`, and says what came of it.
fn measure(running: &Running<'_>, setup: Setup, load: &Load, report: &Report) -> Result<Tally> {
    let tally = running.run(load)?;
    report.detail(&Run {
        schema: SCHEMA,
        front: setup.front.to_string(),
        servers: setup.servers,
        cache: setup.cache,
        connections: load.connections,
        per_connection: load.per_connection,
        tally: &tally,
    })?;
    let classes = tally.classes.map(|class| format!("{:.1}", class.mean_ms));
    report.progress(&format!(
        "{} x {}, cache {:?} %, {} connections for {}: {:.0} requests/s, {:.1} ms ({}), p99 {:.1}, {} moves, {} ended, {} faults",
        setup.servers,
        setup.front,
        setup.cache.unwrap_or_default(),
        load.connections,
        load.per_connection,
        tally.rate,
        tally.all.mean_ms,
        classes.join(" "),
        tally.all.p99_ms,
        tally.moves,
        tally.ended,
        tally.failed(),
    ));
    Ok(tally)
}
