//! The owner's agent and server are stopped for ten seconds under load, and then
//! go on: nothing that its old sockets have to say may leave the machine, not
//! when its lease ends, not when it resumes, and not when the new owner dies.
//!
//! Its kernel lives all the time and sends again what was not acknowledged, as
//! that of a machine that is paused would when it resumes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stream::{Stream, Work};
use crate::capture::Wire;
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::links::{Death, Shape};

/// Rate of the client's link, megabits per second.
const MBIT: u64 = 200;

/// The transfers go on for the first part of the stop.
const WORKS: [Work; 3] = [
    Work::Download(20_000_000),
    Work::Upload(20_000_000),
    Work::Echo(600),
];

/// How long the owner is stopped.
const STOP: Duration = Duration::from_secs(10);
const QUICK_STOP: Duration = Duration::from_secs(2);

/// Time for what a resumed node, or a new owner, might say.
const AFTER: Duration = Duration::from_secs(1);

/// What one run takes; measured, rounded up.
const RUN: Duration = Duration::from_secs(16);
const QUICK_RUN: Duration = Duration::from_secs(7);

/// `frozen.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions {
        witness: true,
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let wire = Wire::start(&lab)?;
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut pair = Pair::start(&lab, options)?;
    let stop = budget.either(STOP, QUICK_STOP);
    let (mut late, mut broken) = (Samples::default(), 0);
    for run in budget.runs(5, 1, budget.either(RUN, QUICK_RUN)) {
        if run > 0 {
            pair.reboot_standby()?;
        }
        wire.take()?;
        broken += one_run(&mut pair, stop, u64::from(run), report)?;
        let books = wire.take()?;
        let segments = books.voices().map(|(_, voice)| voice.late).sum::<u64>();
        late.push(f64::from(u32::try_from(segments).unwrap_or(u32::MAX)));
    }
    let runs = late.runs();
    let measured = |value: f64| Measured {
        value: (runs > 0).then_some(value),
        control: None,
        runs,
    };
    report.put("frozen.seconds", measured(stop.as_secs_f64()))?;
    report.put("frozen.late_segments", measured(late.max().unwrap_or(0.0)))?;
    report.put("frozen.broken", measured(f64::from(broken)))
}

/// One stop; returns how many streams broke.
fn one_run(pair: &mut Pair<'_>, stop: Duration, seed: u64, report: &Report) -> Result<u32> {
    let mut streams = Vec::new();
    for work in WORKS {
        streams.push(Stream::start(pair.lab, work, seed)?);
    }
    streams.iter().try_for_each(Stream::wait_begun)?;
    pair.must_protect(streams.len() as u64)?;
    let since = Instant::now();
    let frozen = pair.stop_owner()?;
    let mut broken = 0;
    for stream in streams {
        if let Err(error) = stream.finish(since) {
            broken += 1;
            report.progress(&format!("{error:#}"));
        }
    }
    thread::sleep(stop.saturating_sub(since.elapsed()));
    pair.resume(frozen).context("resuming")?;
    thread::sleep(AFTER);
    // It stands by again, without its old sockets, and takes over.
    pair.crash_owner(Death::Power)?;
    pair.last_takeover()?;
    thread::sleep(AFTER);
    Ok(broken)
}
