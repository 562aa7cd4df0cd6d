//! The owner's server process is killed and its machine goes on: what clients
//! see, and whether they keep every byte.
//!
//! As in [`stall`](super::stall), a download, an upload and an echo session
//! share the client's link of 200 Mbit/s. Nothing has to be detected: the
//! kernel tells of the death before it closes a connection. The server starts
//! again, its machine stands by, and the next one is killed on the other side.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stream::{self, Stream, Work};
use crate::capture::ResetCounter;
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::links::Shape;

/// Rate of the client's link, megabits per second.
const MBIT: u64 = 200;

const WORKS: [Work; 3] = [
    Work::Download(8_000_000),
    Work::Upload(8_000_000),
    Work::Echo(150),
];

/// Runs beyond those that are wanted, for those that go without a death.
const SPARE: u32 = 20;

/// What one run takes; measured, rounded up.
const RUN: Duration = Duration::from_millis(2000);

/// The control: the longest silence of so long before the kill.
const CALM: Duration = Duration::from_millis(60);

/// A second, and what the kill itself may take.
const SAME_CAUSE: Duration = Duration::from_millis(1100);

/// A longer stall is told as it happens.
const WORTH_A_LINE: Duration = Duration::from_millis(20);

/// What the runs gave.
#[derive(Debug, Default)]
struct Seen {
    stalls: [Samples; 3],
    /// The longest silence while nothing failed.
    calm: [Samples; 3],
    broken: u32,
    unprotected: u32,
    kills: u32,
}

/// `stall.process.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions {
        witness: true,
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut pair = Pair::start(&lab, options)?;
    let resets = ResetCounter::start(lab.client())?;
    let mut seen = Seen::default();
    let wanted = budget.either(200, 2);
    for run in budget.runs(200 + SPARE, 2, RUN) {
        if seen.kills == wanted {
            break;
        }
        one_run(&mut pair, run, &mut seen, report).with_context(|| format!("run {run}"))?;
    }
    for ((work, stalls), calm) in WORKS.iter().zip(&seen.stalls).zip(&seen.calm) {
        let prefix = format!("stall.process.{}", work.name());
        let control = Measured {
            value: stalls.p50(),
            control: calm.p50(),
            runs: stalls.runs(),
        };
        report.put(&format!("{prefix}.p50"), control)?;
        report.put_percentiles(&prefix, stalls)?;
    }
    let resets = resets.read()?;
    let resets = u32::try_from(resets.received + resets.sent).unwrap_or(u32::MAX);
    for (name, value) in [
        ("broken", seen.broken),
        ("unprotected", seen.unprotected),
        ("rst", resets),
    ] {
        let measured = Measured {
            value: (seen.kills > 0).then_some(f64::from(value)),
            control: None,
            runs: seen.kills,
        };
        report.put(&format!("stall.process.{name}"), measured)?;
    }
    Ok(())
}

/// One death; a run whose flows are not protected in time goes without.
fn one_run(pair: &mut Pair<'_>, run: u32, seen: &mut Seen, report: &Report) -> Result<()> {
    let mut streams = Vec::new();
    for (number, work) in (0..).zip(WORKS) {
        streams.push(Stream::start(pair.lab, work, u64::from(run) * 3 + number)?);
    }
    streams.iter().try_for_each(Stream::wait_begun)?;
    if let Err(error) = pair.must_protect(streams.len() as u64) {
        seen.unprotected += 1;
        report.progress(&format!("run {run}: {error:#}"));
        return Ok(());
    }
    // Not in step with the heartbeats, and somewhere in the transfers.
    thread::sleep(Duration::from_millis(60 + u64::from(run) * 7 % 83));
    let since = pair.kill_owner_server()?;
    seen.kills += 1;
    for (calm, stream) in seen.calm.iter_mut().zip(&streams) {
        calm.push_ms(stream.calm(since, CALM));
    }
    for ((work, samples), stream) in WORKS.iter().zip(&mut seen.stalls).zip(streams) {
        match stream.finish(since) {
            Ok(stall) => {
                if stall > WORTH_A_LINE {
                    let name = work.name();
                    report.progress(&format!("run {run}: {name} waited {stall:?}"));
                }
                samples.push_ms(stall);
            }
            Err(error) => {
                samples.push_ms(stream::PATIENCE);
                seen.broken += 1;
                report.progress(&format!("run {run}: {error:#}"));
            }
        }
    }
    pair.restart_server()?;
    // Servers that die within a second of each other are not taken over.
    thread::sleep(SAME_CAUSE.saturating_sub(since.elapsed()));
    Ok(())
}
