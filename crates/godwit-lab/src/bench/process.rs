//! The owner's server process is killed and its machine goes on: what clients
//! see, and whether they keep every byte.
//!
//! As in [`stall`](super::stall), a download, an upload and an echo session
//! share the client's link of 200 Mbit/s. Nothing has to be detected: the
//! kernel tells of the death before it closes a connection. The server starts
//! again, its machine stands by, and the next one is killed on the other side.
//!
//! The control does all of this, at the same moment of the transfers, but for the
//! kill: what three streams on one link see of each other.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stillness::Stillness;
use super::stream::{self, Stream, Work};
use crate::capture::{ResetCounter, Resets};
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::links::Shape;

/// Rate of the client's link, megabits per second.
const MBIT: u64 = 200;

/// What each connection sends at most, bytes per second: 140 Mbit/s, so that the link's
/// short queue loses nothing and keeps nobody waiting.
const PACE: u32 = 17_500_000;

const WORKS: [Work; 3] = [
    Work::Download(8_000_000),
    Work::Upload(8_000_000),
    Work::Echo(150),
];

/// What one run takes; measured, rounded up.
const RUN: Duration = Duration::from_millis(3000);

/// A second, and what the kill itself may take.
const SAME_CAUSE: Duration = Duration::from_millis(1100);

/// A longer stall is told as it happens.
const WORTH_A_LINE: Duration = Duration::from_millis(20);

/// What the runs gave.
#[derive(Clone, Debug, Default)]
struct Seen {
    stalls: [Samples; 3],
    /// The same where nothing was killed.
    calm: [Samples; 3],
    broken: u32,
    unprotected: u32,
    kills: u32,
    /// Segments with RST, at the client, either way.
    resets: u64,
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
    let mut pair = Pair::start_paced(&lab, options, PACE)?;
    let resets = ResetCounter::start(lab.client())?;
    let mut stillness = Stillness::watch(&lab, budget)?;
    let mut seen = Seen::default();
    let wanted = budget.either(200, 2);
    let (mut ended, mut left_out) = (Ok(()), 0);
    for run in budget.runs(400, 2, RUN) {
        if seen.kills == wanted || ended.is_err() {
            break;
        }
        let (before, begun) = (seen.clone(), SystemTime::now());
        let resets_before = resets.read()?;
        let run_ended = pair.settle();
        let run_ended = run_ended.and_then(|()| one_run(&mut pair, run, &mut seen, report));
        ended = run_ended.with_context(|| format!("run {run}"));
        seen.resets += resets_since(resets_before, resets.read()?, run, report);
        if stillness.disturbed_since(begun)? {
            left_out += seen.broken - before.broken;
            report.progress(&format!("run {run} is left out: the machine stood still"));
            seen = before;
        }
    }
    stillness.put("stall.process", seen.kills, report)?;
    count("disturbed.broken", left_out, &seen, report)?;
    put(&seen, report)?;
    // What was seen until then counts.
    ended
}

/// How many segments with RST there were in a run; which way is said.
fn resets_since(before: Resets, after: Resets, run: u32, report: &Report) -> u64 {
    let received = after.received - before.received;
    let sent = after.sent - before.sent;
    if received + sent > 0 {
        let resets = format!("the client got {received} RST and sent {sent}");
        report.progress(&format!("run {run}: {resets}"));
    }
    received + sent
}

fn put(seen: &Seen, report: &Report) -> Result<()> {
    for ((work, stalls), calm) in WORKS.iter().zip(&seen.stalls).zip(&seen.calm) {
        let runs = stalls.runs();
        for (percentile, value, control) in [
            ("p50", stalls.p50(), calm.p50()),
            ("p99", stalls.p99(), calm.p99()),
        ] {
            let name = format!("stall.process.{}.{percentile}", work.name());
            let measured = Measured {
                value,
                control,
                runs,
            };
            report.put(&name, measured)?;
        }
    }
    count("broken", seen.broken, seen, report)?;
    count("unprotected", seen.unprotected, seen, report)?;
    let resets = u32::try_from(seen.resets).unwrap_or(u32::MAX);
    count("rst", resets, seen, report)
}

fn count(name: &str, value: u32, seen: &Seen, report: &Report) -> Result<()> {
    let measured = Measured {
        value: (seen.kills > 0).then_some(f64::from(value)),
        control: None,
        runs: seen.kills,
    };
    report.put(&format!("stall.process.{name}"), measured)
}

/// A run without a death and one with; where flows are not protected in time, none.
fn one_run(pair: &mut Pair<'_>, run: u32, seen: &mut Seen, report: &Report) -> Result<()> {
    for kills in [false, true] {
        let what = if kills { "kill" } else { "control" };
        let tell = |seen: &str| report.progress(&format!("run {run}, {what}: {seen}"));
        let streams = start_streams(pair, run * 2 + u32::from(kills))?;
        if let Err(error) = pair.must_protect(streams.len() as u64) {
            seen.unprotected += 1;
            tell(&format!("{error:#}"));
            return Ok(());
        }
        // Not in step with the heartbeats, and somewhere in the transfers.
        thread::sleep(Duration::from_millis(60 + u64::from(run) * 7 % 83));
        if kills {
            // Who has no standby by now is not saved, and the agent says so.
            if !pair.are_protected(streams.len() as u64)? {
                seen.unprotected += 1;
                tell("the standby was lost before the kill");
                return Ok(());
            }
            let since = pair.kill_owner_server()?;
            seen.kills += 1;
            end(&mut seen.stalls, &mut seen.broken, streams, since, &tell);
            pair.restart_server()?;
            // Servers that die within a second of each other are not taken over.
            thread::sleep(SAME_CAUSE.saturating_sub(since.elapsed()));
        } else {
            let since = Instant::now();
            end(&mut seen.calm, &mut seen.broken, streams, since, &tell);
        }
    }
    Ok(())
}

fn start_streams(pair: &Pair<'_>, seed: u32) -> Result<Vec<Stream>> {
    let mut streams = Vec::new();
    for (number, work) in (0..).zip(WORKS) {
        let seed = u64::from(seed) * 3 + number;
        streams.push(Stream::start_paced(pair.lab, work, seed, PACE)?);
    }
    streams.iter().try_for_each(Stream::wait_begun)?;
    Ok(streams)
}

/// What each client saw after `since`; one that broke waited as long as there was
/// patience, and is counted.
fn end(
    stalls: &mut [Samples; 3],
    broken: &mut u32,
    streams: Vec<Stream>,
    since: Instant,
    tell: &dyn Fn(&str),
) {
    for ((work, samples), stream) in WORKS.iter().zip(stalls).zip(streams) {
        match stream.finish(since) {
            Ok(stall) => {
                if stall > WORTH_A_LINE {
                    tell(&format!("{} waited {stall:?}", work.name()));
                }
                samples.push_ms(stall);
            }
            Err(error) => {
                samples.push_ms(stream::PATIENCE);
                *broken += 1;
                tell(&format!("{error:#}"));
            }
        }
    }
}
