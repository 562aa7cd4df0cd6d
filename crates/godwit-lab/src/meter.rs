//! Measures a transfer from the client's side: bytes, and the longest silences.
//!
//! A *stall* is the time between two moments at which the client made
//! progress. It is taken from the clock at each read or write, not from
//! sampling, so it has no grain.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shorter silences are not kept: a busy transfer has thousands of them.
const KEPT: Duration = Duration::from_millis(1);

/// Progress of one transfer; one thread records, any may look.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    bytes: AtomicU64,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    first: Option<Instant>,
    last: Option<Instant>,
    gaps: Vec<Gap>,
}

/// A silence between two moments of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When progress stopped.
    pub from: Instant,
    /// How long nothing came.
    pub length: Duration,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            bytes: AtomicU64::new(0),
            progress: Mutex::default(),
        }
    }
}

impl Meter {
    /// Records that `bytes` more have just passed.
    pub fn record(&self, bytes: usize) {
        self.record_at(bytes, Instant::now());
    }

    fn record_at(&self, bytes: usize, now: Instant) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut progress = self.lock();
        if let Some(last) = progress.last.replace(now) {
            let gap = Gap {
                from: last,
                length: now.saturating_duration_since(last),
            };
            if gap.length >= KEPT {
                progress.gaps.push(gap);
            }
        }
        progress.first.get_or_insert(now);
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// When the meter was made.
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// When the first byte passed, if one has.
    pub fn first(&self) -> Option<Instant> {
        self.lock().first
    }

    /// When the last byte so far passed, if one has.
    pub fn last(&self) -> Option<Instant> {
        self.lock().last
    }

    /// The longest silence between first and last byte, of at least 1 ms.
    pub fn longest_gap(&self) -> Option<Gap> {
        self.lock()
            .gaps
            .iter()
            .copied()
            .max_by_key(|gap| gap.length)
    }

    /// The longest silence that ended after `since`, of at least 1 ms.
    ///
    /// With `since` = the moment of a crash this is the stall the client saw.
    pub fn longest_gap_since(&self, since: Instant) -> Option<Gap> {
        let progress = self.lock();
        let after = progress
            .gaps
            .iter()
            .filter(|gap| gap.from + gap.length > since);
        after.copied().max_by_key(|gap| gap.length)
    }

    /// The longest silence that ended after `since`, of at least 1 ms: of those
    /// that began before `until`, and of the later ones.
    pub fn longest_gaps_around(&self, since: Instant, until: Instant) -> [Option<Gap>; 2] {
        let progress = self.lock();
        let after = |gap: &&Gap| gap.from + gap.length > since;
        let longest = |early: bool| {
            let side = progress.gaps.iter().filter(after);
            let side = side.filter(|gap| (gap.from < until) == early);
            side.copied().max_by_key(|gap| gap.length)
        };
        [longest(true), longest(false)]
    }

    /// The longest silence that ended between two moments, of at least 1 ms.
    pub fn longest_gap_between(&self, from: Instant, until: Instant) -> Option<Gap> {
        let progress = self.lock();
        let inside = progress.gaps.iter().filter(|gap| {
            let end = gap.from + gap.length;
            end > from && end <= until
        });
        inside.copied().max_by_key(|gap| gap.length)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_found_before_and_after_a_moment() {
        let meter = Meter::default();
        let start = Instant::now();
        for ms in [0, 50, 52, 90, 91] {
            meter.record_at(10, start + Duration::from_millis(ms));
        }
        assert_eq!(meter.bytes(), 50);
        let longest = meter.longest_gap().map(|g| g.length);
        assert_eq!(longest, Some(Duration::from_millis(50)));
        let at = |ms| start + Duration::from_millis(ms);
        let around = |since, until| {
            let gaps = meter.longest_gaps_around(at(since), at(until));
            gaps.map(|gap| gap.map(|gap| gap.length.as_millis()))
        };
        assert_eq!(around(20, 52), [Some(50), Some(38)]);
        assert_eq!(around(51, 53), [Some(38), Some(1)]);
        assert_eq!(around(51, 51), [Some(2), Some(38)]);
        assert_eq!(around(91, 95), [None, None]);
        let late = meter.longest_gap_since(start + Duration::from_millis(60));
        assert_eq!(late.map(|g| g.length), Some(Duration::from_millis(38)));
    }

    #[test]
    fn waiting_for_the_first_byte_is_no_gap() {
        let meter = Meter::default();
        meter.record_at(1, Instant::now() + Duration::from_secs(5));
        assert_eq!(meter.longest_gap(), None);
    }
}
