//! The standby fails while the owner serves an upload and an echo session.
//!
//! The gate waits for a standby that says nothing, until it is given up: the
//! client must see no more than that. Which machine stands by stays the same.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stream::{self, Stream, Work};
use crate::cluster::ClusterOptions;
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::links::Shape;

/// Rate of the client's link, megabits per second.
const MBIT: u64 = 200;

const WORKS: [Work; 2] = [Work::Upload(6_000_000), Work::Echo(150)];

/// What one run takes; measured, rounded up.
const RUN: Duration = Duration::from_millis(2000);

/// How a standby fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Its machine goes dark.
    Dark,
    /// Its agent and its server are stopped (SIGSTOP); its kernel lives.
    Stopped,
    /// Its server is killed.
    ServerKilled,
}

/// `stall.standby.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions::default())?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let mut pair = Pair::start(&lab, ClusterOptions::unfenced())?;
    let (mut broken, mut failures, mut unprotected) = (0, 0, 0);
    for failure in [Failure::ServerKilled, Failure::Dark, Failure::Stopped] {
        let prefix = format!("stall.standby.{}", failure.name());
        if !report.wants_figure(&prefix) {
            continue;
        }
        let mut seen = [Samples::default(), Samples::default()];
        for run in budget.runs(200, 1, RUN) {
            let stalls = one_run(&mut pair, failure, u64::from(run))
                .with_context(|| format!("{prefix}, run {run}"))?;
            if stalls.is_empty() {
                unprotected += 1;
                report.progress(&format!("{prefix}, run {run}: flows not protected"));
                continue;
            }
            failures += 1;
            for (samples, stall) in seen.iter_mut().zip(stalls) {
                match stall {
                    Ok(stall) => samples.push_ms(stall),
                    Err(error) => {
                        samples.push_ms(stream::PATIENCE);
                        broken += 1;
                        report.progress(&format!("{prefix}, run {run}: {error:#}"));
                    }
                }
            }
        }
        for (work, samples) in WORKS.iter().zip(&seen) {
            report.put_percentiles(&format!("{prefix}.{}", work.name()), samples)?;
        }
    }
    let count = |value: u32| Measured {
        value: (failures > 0).then_some(f64::from(value)),
        control: None,
        runs: failures,
    };
    report.put("stall.standby.broken", count(broken))?;
    report.put("stall.standby.unprotected", count(unprotected))
}

/// What each stream saw of one failure; nothing if they were not protected in
/// time, and then there is no failure.
fn one_run(pair: &mut Pair<'_>, failure: Failure, seed: u64) -> Result<Vec<Result<Duration>>> {
    let mut streams = Vec::new();
    for work in WORKS {
        streams.push(Stream::start(pair.lab, work, seed)?);
    }
    streams.iter().try_for_each(Stream::wait_begun)?;
    if pair.must_protect(streams.len() as u64).is_err() {
        pair.reboot_standby()?;
        return Ok(Vec::new());
    }
    // Not in step with the heartbeats.
    thread::sleep(Duration::from_millis(20 + seed % 11));
    let since = fail(pair, failure)?;
    let stalls = streams.into_iter().map(|stream| stream.finish(since));
    let stalls = stalls.collect();
    match failure {
        Failure::Dark | Failure::Stopped => pair.reboot_standby()?,
        Failure::ServerKilled => pair.restart_server()?,
    }
    Ok(stalls)
}

/// Lets the standby fail; returns a moment just before.
fn fail(pair: &mut Pair<'_>, failure: Failure) -> Result<Instant> {
    let standby = pair.standby();
    let since = Instant::now();
    match failure {
        Failure::Dark => return pair.lab.crash(standby).map(|crash| crash.from),
        Failure::Stopped => {
            let agent = pair.cluster.agent(standby);
            agent.context("the standby has no agent")?.stop()?;
            pair.server(standby)?.stop()?;
        }
        Failure::ServerKilled => pair.server(standby)?.kill()?,
    }
    Ok(since)
}

impl Failure {
    const fn name(self) -> &'static str {
        match self {
            Self::Dark => "dark",
            Self::Stopped => "stopped",
            Self::ServerKilled => "server_killed",
        }
    }
}
