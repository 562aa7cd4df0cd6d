//! haproxy in HTTP mode in the director's place, on the same machine: it passes on all
//! that is said, both ways.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::site::{Front, Setup, Site, Web};
use super::{Manner, measure};
use crate::apps::webstone::{KINDS, Load};
use crate::bench::budget::Budget;
use crate::bench::report::{Measured, Report};
use crate::bench::stats::Samples;
use crate::lab::which;

/// As for the director.
const CLIENTS: u32 = 300;
const CACHE: u32 = 120;
const SERVERS: usize = 3;

/// Clients that want files of 50 KB which are in memory.
const LARGE: u32 = 64;

/// One run, and both of the last figure's, in a quick benchmark.
const COST: Duration = Duration::from_secs(9);
const COST_LARGE: Duration = Duration::from_secs(8);

/// `handoff.haproxy.*`, `handoff.large.*`.
pub(super) fn run(site: &Site, budget: Budget, report: &Report) -> Result<()> {
    ensure!(
        which("haproxy").is_some(),
        "haproxy is not installed (Debian package of this name)"
    );
    large(site, budget, report)?;
    for manner in Manner::BOTH {
        for front in [Front::HaproxyByPath, Front::HaproxyInTurn] {
            let prefix = format!("handoff.{front}.{}", manner.as_str());
            if report.wants_figure(&prefix) && budget.has(COST) {
                mixed(&prefix, (front, manner), site, budget, report)?;
            }
        }
    }
    Ok(())
}

/// The mix, with page caches and disks that are limited.
fn mixed(
    prefix: &str,
    (front, manner): (Front, Manner),
    site: &Site,
    budget: Budget,
    report: &Report,
) -> Result<()> {
    let setup = Setup {
        front,
        web: Web::Apache,
        servers: SERVERS,
        cache: Some(CACHE),
    };
    let running = site.start(setup, CLIENTS)?;
    let load = Load {
        per_connection: manner.per_connection(),
        warm: budget.either(Duration::from_secs(3), Duration::from_secs(1)),
        span: budget.either(Duration::from_secs(15), Duration::from_secs(3)),
        ..running.load(CLIENTS)
    };
    let tally = measure(&running, setup, &load, report)?;
    for (name, value) in [
        ("mean", tally.all.mean_ms),
        ("requests", tally.rate),
        ("p99", tally.all.p99_ms),
    ] {
        report.put_value(&format!("{prefix}.{name}"), value)?;
    }
    Ok(())
}

/// Files of 50 KB that are in memory, on connections that are kept: each is passed on
/// by haproxy, or its request is handed over and it goes straight to its client.
fn large(site: &Site, budget: Budget, report: &Report) -> Result<()> {
    if !report.wants_figure("handoff.large") || !budget.has(COST_LARGE) {
        return Ok(());
    }
    let mut ratios = Samples::default();
    for _ in budget.runs(5, 1, COST_LARGE) {
        let mut rates = Vec::new();
        for front in [Front::HaproxyByPath, Front::Placed] {
            let setup = Setup {
                front,
                web: Web::Apache,
                servers: SERVERS,
                cache: None,
            };
            let running = site.start(setup, LARGE)?;
            let load = Load {
                mix: KINDS.map(|kind| if kind.bytes == 50 << 10 { 1000 } else { 0 }),
                per_connection: 0,
                warm: Duration::from_secs(1),
                span: budget.either(Duration::from_secs(10), Duration::from_secs(2)),
                ..running.load(LARGE)
            };
            rates.push(measure(&running, setup, &load, report)?.rate);
        }
        ratios.push(rates[1] / rates[0]);
    }
    report.put(
        "handoff.large.ratio",
        Measured {
            value: ratios.p50(),
            control: None,
            runs: ratios.runs(),
        },
    )
}
