//! Handoffs themselves: what one costs, how many there can be, and that no byte, no
//! connection and no request is lost by them. Two servers, all files in memory.

use std::time::Duration;

use anyhow::Result;

use super::measure;
use super::site::{Front, Running, Setup, Site, Web};
use crate::apps::webstone::{KINDS, Load};
use crate::bench::budget::Budget;
use crate::bench::report::{Measured, Report};
use crate::bench::stats::Samples;
use crate::capture::ResetCounter;

/// Clients by which as many requests as possible are handed over.
pub(super) const CLIENTS: u32 = 64;

/// Each of two servers has half of the files: so is the chance that the next request on
/// a connection is handed over.
const SETUP: Setup = Setup {
    front: Front::Placed,
    web: Web::Apache,
    servers: 2,
    cache: None,
};

/// Requests of which none may be served wrongly.
const EXACT: u64 = 1_000_000;
const EXACT_QUICK: u64 = 30_000;

/// All of it, in a quick benchmark.
const COST: Duration = Duration::from_secs(9);

/// At most.
const PATIENCE: Duration = Duration::from_secs(1800);

/// `handoff.cost.*`, `handoff.rate`, `handoff.exact.*`.
pub(super) fn run(site: &Site, budget: Budget, report: &Report) -> Result<()> {
    let names = ["handoff.cost", "handoff.rate", "handoff.exact"];
    if !names.iter().any(|name| report.wants_figure(name)) || !budget.has(COST) {
        return Ok(());
    }
    if report.wants_figure("handoff.cost") {
        asked(site, budget, report)?;
    }
    if report.wants_figure("handoff.rate") {
        let setup = Setup {
            web: Web::Nginx,
            ..SETUP
        };
        let running = site.start(setup, CLIENTS)?;
        rate("handoff.rate.nginx", (&running, setup), budget, report)?;
    }
    let running = site.start(SETUP, CLIENTS)?;
    cost(&running, budget, report)?;
    rate("handoff.rate", (&running, SETUP), budget, report)?;
    exact(site, &running, budget, report)
}

/// Only the smallest files, of which all that there is to a request is the request.
pub(super) fn small(running: &Running<'_>, clients: u32) -> Load {
    Load {
        mix: KINDS.map(|kind| if kind.bytes == 500 { 1000 } else { 0 }),
        per_connection: 0,
        warm: Duration::from_secs(1),
        ..running.load(clients)
    }
}

/// One client: how much longer a request takes that is handed over.
fn cost(running: &Running<'_>, budget: Budget, report: &Report) -> Result<()> {
    let (mut stayed, mut moved, mut added) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in budget.runs(10, 1, Duration::from_secs(3)) {
        let load = Load {
            span: budget.either(Duration::from_secs(5), Duration::from_secs(2)),
            seed: u64::from(round),
            ..small(running, 1)
        };
        let tally = measure(running, SETUP, &load, report)?;
        if tally.stayed.requests > 0 && tally.moved.requests > 0 {
            stayed.push(tally.stayed.p50_ms * 1e3);
            moved.push(tally.moved.p50_ms * 1e3);
            added.push((tally.moved.p50_ms - tally.stayed.p50_ms) * 1e3);
        }
    }
    report.put_p50("handoff.cost.stayed.p50", &stayed)?;
    report.put_p50("handoff.cost.moved.p50", &moved)?;
    report.put_p50("handoff.cost.added.p50", &added)
}

/// The same where a program of the user's own is asked about each request, and leaves it to the
/// rules.
fn asked(site: &Site, budget: Budget, report: &Report) -> Result<()> {
    let setup = Setup {
        front: Front::Asked,
        ..SETUP
    };
    let running = site.start(setup, CLIENTS)?;
    let mut stayed = Samples::default();
    for round in budget.runs(10, 1, Duration::from_secs(3)) {
        let load = Load {
            span: budget.either(Duration::from_secs(5), Duration::from_secs(2)),
            seed: u64::from(round),
            ..small(&running, 1)
        };
        let tally = measure(&running, setup, &load, report)?;
        if tally.stayed.requests > 0 {
            stayed.push(tally.stayed.p50_ms * 1e3);
        }
    }
    report.put_p50("handoff.cost.asked.p50", &stayed)
}

fn rate(
    name: &str,
    (running, setup): (&Running<'_>, Setup),
    budget: Budget,
    report: &Report,
) -> Result<()> {
    let mut rates = Samples::default();
    for round in budget.runs(5, 1, Duration::from_secs(3)) {
        let load = Load {
            span: budget.either(Duration::from_secs(10), Duration::from_secs(2)),
            seed: u64::from(round),
            ..small(running, CLIENTS)
        };
        let tally = measure(running, setup, &load, report)?;
        rates.push(f64::from(tally.moved.requests) / tally.seconds);
    }
    report.put_p50(name, &rates)
}

/// WebStone's mix, every byte of every reply.
fn exact(site: &Site, running: &Running<'_>, budget: Budget, report: &Report) -> Result<()> {
    if !report.wants_figure("handoff.exact") {
        return Ok(());
    }
    let requests = budget.either(EXACT, EXACT_QUICK);
    let load = Load {
        per_connection: 0,
        requests,
        span: budget.either(PATIENCE, Duration::from_secs(10)),
        patience: Duration::from_secs(10),
        ..running.load(CLIENTS)
    };
    let resets = ResetCounter::start(site.lab().client())?;
    let tally = measure(running, SETUP, &load, report)?;
    let resets = resets.read()?;
    for (name, value) in [
        ("requests", tally.replies),
        ("moves", tally.moves),
        ("wrong", tally.wrong),
        ("broken", tally.resets + tally.closed + tally.refused),
        ("ended", tally.ended),
        ("rst", resets.received + resets.sent),
        ("stuck", tally.stuck),
    ] {
        let measured = Measured {
            value: Some(value as f64),
            control: None,
            runs: u32::try_from(requests).unwrap_or(u32::MAX),
        };
        report.put(&format!("handoff.exact.{name}"), measured)?;
    }
    Ok(())
}
