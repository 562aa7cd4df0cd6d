//! A planned move, seen by one busy connection and by a thousand.
//!
//! One is a download at 160 Mbit/s: its stall is the longest silence from the
//! command on. A thousand exchange 150 bytes every 100 ms, each in its own time,
//! over an unshaped link: the stall of each is its longest exchange. Controls are
//! the same connections as long before the command, when nothing moved.
//!
//! With a lease: without, two moments within a second in which the machine stands
//! still for longer than three heartbeats are two takeovers, and the second one has
//! no twins yet. A thousand connections were reset so, once.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stillness::Stillness;
use super::stream::{self, Stream, Work};
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::links::Shape;

/// Rate of the client's link, megabits per second.
const MBIT: u64 = 200;

/// What the download's server sends at most, bytes per second: 160 Mbit/s, so that the
/// link's short queue loses nothing. Its losses make silences, too.
const PACE: u32 = 20_000_000;

/// Lasts for twice [`SPAN`], and a while.
const DOWNLOAD: Work = Work::Download(40_000_000);

const MANY: u64 = 1000;

/// Looked at before and after the command.
const SPAN: Duration = Duration::from_millis(400);

/// What one run takes; measured, rounded up.
const RUN: Duration = Duration::from_millis(2000);

/// A move is refused while the one before is not over everywhere.
const BETWEEN: Duration = Duration::from_millis(300);

/// What the runs gave.
#[derive(Clone, Debug, Default)]
struct Seen {
    stalls: Samples,
    calm: Samples,
    broken: u32,
    streams: u32,
    moves: u32,
    refused: u32,
}

/// `stall.move.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let wants = |figure| report.wants_figure(figure) || report.wants_figure("stall.move.broken");
    let (mut one, mut many) = (Seen::default(), Seen::default());
    if wants("stall.move.one") {
        one = self::one(budget, report)?;
        put(report, "stall.move.one", &one)?;
    }
    if wants("stall.move.thousand") {
        many = self::many(budget, report)?;
        put(report, "stall.move.thousand", &many)?;
    }
    let streams = one.streams + many.streams;
    let measured = Measured {
        value: (streams > 0).then_some(f64::from(one.broken + many.broken)),
        control: None,
        runs: streams,
    };
    report.put("stall.move.broken", measured)?;
    let moves = one.moves + many.moves;
    let refused = Measured {
        value: (moves > 0).then_some(f64::from(one.refused + many.refused)),
        control: None,
        runs: moves,
    };
    report.put("stall.move.refused", refused)
}

fn put(report: &Report, prefix: &str, seen: &Seen) -> Result<()> {
    let middle = Measured {
        value: seen.stalls.p50(),
        control: seen.calm.p50(),
        runs: seen.stalls.runs(),
    };
    report.put(&format!("{prefix}.p50"), middle)?;
    report.put_percentiles(prefix, &seen.stalls)
}

/// A new connection for each move.
fn one(budget: Budget, report: &Report) -> Result<Seen> {
    let lab = lab()?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let mut pair = Pair::start_paced(&lab, options(), PACE)?;
    let mut stillness = Stillness::watch(&lab, budget)?;
    let mut seen = Seen::default();
    let wanted = budget.either(200, 3);
    for run in budget.runs(400, 3, RUN) {
        if seen.moves == wanted {
            break;
        }
        pair.settle()?;
        let (before, begun, since) = (seen.clone(), SystemTime::now(), Instant::now());
        let stream = Stream::start(&lab, DOWNLOAD, u64::from(run))?;
        stream.wait_begun()?;
        if let Err(error) = pair.must_protect(1) {
            seen.refused += 1;
            report.progress(&format!("run {run}: {error:#}"));
        } else {
            move_once(&mut pair, std::slice::from_ref(&stream), &mut seen, report);
        }
        seen.end(stream, since, report);
        if stillness.disturbed_since(begun)? {
            seen = before;
        }
    }
    stillness.put("stall.move.one", seen.moves, report)?;
    seen.explain(&pair, report)?;
    Ok(seen)
}

/// The same connections for all moves.
fn many(budget: Budget, report: &Report) -> Result<Seen> {
    let runs: Vec<_> = budget.runs(40, 1, 3 * RUN).collect();
    let mut seen = Seen::default();
    let Some(count) = u32::try_from(runs.len()).ok().filter(|count| *count > 0) else {
        return Ok(seen);
    };
    let lab = lab()?;
    let mut pair = Pair::start(&lab, options())?;
    let pauses = (RUN * count).as_millis() / stream::CHAT_PAUSE.as_millis();
    let work = Work::Chat(u32::try_from(pauses).context("it takes too long")?);
    let begun = Instant::now();
    let mut streams = Vec::new();
    for number in 0..MANY {
        streams.push(Stream::start(&lab, work, number)?);
    }
    streams.iter().try_for_each(Stream::wait_begun)?;
    let mut stillness = Stillness::watch(&lab, budget)?;
    for _ in runs {
        pair.settle()?;
        pair.must_protect(MANY)?;
        let (before, since) = (seen.clone(), SystemTime::now());
        move_once(&mut pair, &streams, &mut seen, report);
        if stillness.disturbed_since(since)? {
            seen = before;
        }
    }
    stillness.put("stall.move.thousand", seen.moves, report)?;
    for stream in streams {
        seen.end(stream, begun, report);
    }
    seen.explain(&pair, report)?;
    Ok(seen)
}

fn lab() -> Result<Lab> {
    Lab::new(LabOptions {
        witness: true,
        ..LabOptions::default()
    })
}

fn options() -> ClusterOptions {
    ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    }
}

/// One move, and what `streams` saw before and after the command. One that is refused
/// is counted, and the owner stays.
fn move_once(pair: &mut Pair<'_>, streams: &[Stream], seen: &mut Seen, report: &Report) {
    thread::sleep(SPAN);
    let before = Instant::now();
    let calm: Vec<_> = streams.iter().map(|s| s.waited(before, SPAN)).collect();
    let since = Instant::now();
    if let Err(error) = pair.hand_over() {
        seen.refused += 1;
        report.progress(&format!("{error:#}"));
        return;
    }
    seen.moves += 1;
    thread::sleep(SPAN.saturating_sub(since.elapsed()));
    let end = Instant::now();
    for (stream, calm) in streams.iter().zip(calm) {
        seen.calm.push_ms(calm);
        seen.stalls.push_ms(stream.waited(end, end - since));
    }
    thread::sleep(BETWEEN);
}

impl Seen {
    fn end(&mut self, stream: Stream, begun: Instant, report: &Report) {
        self.streams += 1;
        if let Err(error) = stream.finish(begun) {
            self.broken += 1;
            report.progress(&format!("{error:#}"));
        }
    }

    /// What the agents remember, if a connection broke.
    fn explain(&self, pair: &Pair<'_>, report: &Report) -> Result<()> {
        if self.broken == 0 {
            return Ok(());
        }
        for host in Host::SERVERS {
            report.progress(&format!("{host}: {}", pair.cluster.event_text(host)?));
        }
        Ok(())
    }
}
