//! haproxy in HTTP mode in the director's place, on the same machine: it passes on all
//! that is said, both ways.

use std::time::Duration;

use anyhow::Result;

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

/// Clients that want files of one size which are in memory.
const LARGE: u32 = 64;

/// The sizes, and what figures call them.
const SIZES: [(&str, u64); 3] = [("5k", 5 << 10), ("50k", 50 << 10), ("500k", 500 << 10)];

/// One run, and both of the last figure's, in a quick benchmark.
const COST: Duration = Duration::from_secs(9);
const COST_LARGE: Duration = Duration::from_secs(8);

/// `handoff.haproxy.*`, `handoff.large.*`.
pub(super) fn run(site: &Site, budget: Budget, report: &Report) -> Result<()> {
    if which("haproxy").is_none() {
        report.progress("haproxy is not installed (Debian package of this name): not known");
        return Ok(());
    }
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

/// Files of one size that are in memory, on connections that are kept: each is passed on
/// by haproxy, or its request is handed over and it goes straight to its client.
fn large(site: &Site, budget: Budget, report: &Report) -> Result<()> {
    for (web, name) in [
        (Web::Apache, "handoff.large"),
        (Web::Nginx, "handoff.large.nginx"),
    ] {
        for (size, bytes) in SIZES {
            let prefix = format!("{name}.{size}");
            if report.wants_figure(&prefix) && budget.has(COST_LARGE) {
                of_size(&prefix, (web, bytes), site, budget, report)?;
            }
        }
    }
    Ok(())
}

fn of_size(
    prefix: &str,
    (web, bytes): (Web, u64),
    site: &Site,
    budget: Budget,
    report: &Report,
) -> Result<()> {
    let (mut ratios, mut slowest) = (Samples::default(), [Samples::default(), Samples::default()]);
    for _ in budget.runs(3, 1, COST_LARGE) {
        let mut rates = Vec::new();
        for (front, slowest) in [Front::HaproxyByPath, Front::Placed]
            .into_iter()
            .zip(&mut slowest)
        {
            let setup = Setup {
                front,
                web,
                servers: SERVERS,
                cache: None,
            };
            let running = site.start(setup, LARGE)?;
            let load = Load {
                mix: KINDS.map(|kind| if kind.bytes == bytes { 1000 } else { 0 }),
                per_connection: 0,
                warm: Duration::from_secs(1),
                span: budget.either(Duration::from_secs(6), Duration::from_secs(2)),
                ..running.load(LARGE)
            };
            let tally = measure(&running, setup, &load, report)?;
            rates.push(tally.rate);
            slowest.push(tally.all.p99_ms);
        }
        ratios.push(rates[1] / rates[0]);
    }
    report.put_p50(&format!("{prefix}.ratio"), &ratios)?;
    let [haproxy, placed] = slowest;
    report.put(
        &format!("{prefix}.p99"),
        Measured {
            value: placed.p50(),
            control: haproxy.p50(),
            runs: placed.runs(),
        },
    )
}
