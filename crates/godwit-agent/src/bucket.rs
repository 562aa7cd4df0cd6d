//! Token buckets: so many at once, and then one each so often; the others are counted.

use std::time::{Duration, Instant};

/// How many of a kind may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// At once, if there was none for a while.
    pub(crate) burst: u32,
    /// How often one more.
    pub(crate) refill: Duration,
}

/// What one kind has left.
#[derive(Debug)]
pub(crate) struct Bucket {
    tokens: u32,
    /// When the last token came in.
    filled: Instant,
    left_out: u64,
    /// When the first of these was.
    since: Instant,
    /// When somebody asked last.
    asked: Instant,
}

impl Bucket {
    pub(crate) const fn full(rate: Rate, now: Instant) -> Self {
        Self {
            tokens: rate.burst,
            filled: now,
            left_out: 0,
            since: now,
            asked: now,
        }
    }

    /// Whether this one is told; else it is counted.
    pub(crate) fn admits(&mut self, rate: Rate, now: Instant) -> bool {
        self.refill(rate, now);
        self.asked = now;
        if self.tokens > 0 {
            self.tokens -= 1;
            return true;
        }
        if self.left_out == 0 {
            self.since = now;
        }
        self.left_out += 1;
        false
    }

    /// How many were left out since this was asked before.
    pub(crate) const fn take_left_out(&mut self) -> u64 {
        let left_out = self.left_out;
        self.left_out = 0;
        left_out
    }

    /// For how long some have been left out, `None`: for none.
    pub(crate) fn leaves_out_for(&self, now: Instant) -> Option<Duration> {
        (self.left_out > 0).then(|| now.saturating_duration_since(self.since))
    }

    /// For how long nobody has asked.
    pub(crate) fn rests_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.asked)
    }

    /// Whether it is as good as a new one.
    pub(crate) fn is_as_new(&mut self, rate: Rate, now: Instant) -> bool {
        self.refill(rate, now);
        self.tokens >= rate.burst && self.left_out == 0
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        let come = passed.as_nanos() / rate.refill.as_nanos().max(1);
        let come = u32::try_from(come).unwrap_or(u32::MAX);
        if come >= rate.burst - self.tokens {
            self.tokens = rate.burst;
            self.filled = now;
        } else {
            self.tokens += come;
            self.filled += rate.refill * come;
        }
    }
}
