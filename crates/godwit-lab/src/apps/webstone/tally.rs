//! What a load has seen, and its report.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::reply::Server;
use super::{CLASSES, KINDS};

/// Response times of some requests, in milliseconds; 0 without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub requests: u32,
    /// Their mean.
    pub mean_ms: f64,
    /// Half of them took no longer.
    pub p50_ms: f64,
    /// Of a hundred, 99 took no longer.
    pub p99_ms: f64,
}

/// The report of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// How long it was counted.
    pub seconds: f64,
    /// Requests that were answered in that time, per second.
    pub rate: f64,
    /// Bytes of their replies, without headers, per second.
    pub bytes_per_second: f64,
    /// Requests that began in that time.
    pub all: Times,
    /// By class.
    pub classes: [Times; CLASSES],
    /// Of a connection that goes on: those served by whom the one before was.
    pub stayed: Times,
    /// By another one.
    pub moved: Times,
    /// Replies of each server, from the first request to the last one.
    pub served: BTreeMap<String, u64>,
    /// Replies, from the first request to the last one.
    pub replies: u64,
    /// Of these, those by another server than the one before on the same connection.
    pub moves: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Replies that were not as they should be, in any byte.
    pub wrong: u64,
    /// Connections that were reset.
    pub resets: u64,
    /// Connections that ended in a reply, or before the first one.
    pub closed: u64,
    /// Connections that the server ended behind a reply, when the next request was under
    /// way: HTTP lets it do so (RFC 9112, section 9.5), and this is no failure.
    pub ended: u64,
    /// Connections that did not come about.
    pub refused: u64,
    /// Connections on which something was waited for too long.
    pub stuck: u64,
}

impl Tally {
    /// Connections that did not do what they should.
    pub const fn failed(&self) -> u64 {
        self.wrong + self.resets + self.closed + self.refused + self.stuck
    }
}

/// Response times as they come, in microseconds.
#[derive(Debug, Default)]
struct Sample(Vec<u32>);

impl Sample {
    fn push(&mut self, time: Duration) {
        self.0
            .push(u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
    }

    fn times(&mut self) -> Times {
        self.0.sort_unstable();
        let count = self.0.len();
        let at = |hundredths: usize| {
            let rank = (count * hundredths).div_ceil(100).max(1);
            self.0.get(rank - 1).map_or(0.0, |us| f64::from(*us) / 1e3)
        };
        let requests = u32::try_from(count).unwrap_or(u32::MAX);
        let sum: u64 = self.0.iter().copied().map(u64::from).sum();
        Times {
            requests,
            mean_ms: sum as f64 / 1e3 / f64::from(requests.max(1)),
            p50_ms: at(50),
            p99_ms: at(99),
        }
    }
}

/// What is counted while a load runs.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) tally: Tally,
    kinds: [Sample; KINDS.len()],
    stayed: Sample,
    moved: Sample,
    served: Vec<(Server, u64)>,
    answered: u32,
    bytes: u64,
}

impl Counts {
    /// A reply has come, whole and right.
    pub(super) fn reply(&mut self, by: Server, before: Server) {
        self.tally.replies += 1;
        if before.is_known() && before != by {
            self.tally.moves += 1;
        }
        // There are a few, the same ones all the time.
        match self.served.iter_mut().find(|(known, _)| *known == by) {
            Some((_, count)) => *count += 1,
            None => self.served.push((by, 1)),
        }
    }

    /// It has come in the time that counts.
    pub(super) const fn answered(&mut self, kind: usize) {
        self.answered += 1;
        self.bytes += KINDS[kind].bytes;
    }

    /// It was asked for in the time that counts.
    pub(super) fn took(&mut self, kind: usize, time: Duration, by: Server, before: Server) {
        self.kinds[kind].push(time);
        if before.is_known() {
            let moved = before != by;
            let sample = if moved {
                &mut self.moved
            } else {
                &mut self.stayed
            };
            sample.push(time);
        }
    }

    pub(super) fn report(mut self, counted: Duration) -> Tally {
        let mut all = Sample::default();
        let mut classes: [Sample; CLASSES] = Default::default();
        for (kind, sample) in KINDS.iter().zip(self.kinds) {
            all.0.extend(&sample.0);
            classes[kind.class].0.extend(&sample.0);
        }
        let seconds = counted.as_secs_f64();
        let served = self.served.iter().map(|(by, count)| (by.name(), *count));
        Tally {
            seconds,
            rate: f64::from(self.answered) / seconds,
            bytes_per_second: self.bytes as f64 / seconds,
            all: all.times(),
            classes: classes.map(|mut sample| sample.times()),
            stayed: self.stayed.times(),
            moved: self.moved.times(),
            served: served.collect(),
            ..self.tally
        }
    }
}
