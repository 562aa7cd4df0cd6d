//! How often to measure, and for how long.

use std::time::{Duration, Instant};

/// A quick benchmark begins nothing that is expected to take longer than this.
const QUICK: Duration = Duration::from_secs(40);

/// It promises to end within 45 s, whatever happens; this leaves time to clean up.
const QUICK_LIMIT: Duration = Duration::from_millis(43_500);

/// How long and how often this benchmark may measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    end: Option<Instant>,
    /// How long what takes long is to take, if somebody has said so.
    span: Option<Duration>,
}

impl Budget {
    pub(super) fn new(quick: bool, span: Option<Duration>) -> Self {
        Self {
            end: quick.then(|| Instant::now() + QUICK),
            span,
        }
    }

    /// How long the benchmark may take at the very most.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.end.is_some().then_some(QUICK_LIMIT)
    }

    /// `full`, or `quick` if this benchmark is to be quick.
    pub(super) const fn either<T: Copy>(&self, full: T, quick: T) -> T {
        if self.end.is_some() { quick } else { full }
    }

    /// How long to measure what takes long: as was asked for, `full` or `quick`.
    pub(super) fn span(&self, full: Duration, quick: Duration) -> Duration {
        self.span.unwrap_or_else(|| self.either(full, quick))
    }

    /// True if nothing more can be measured.
    pub(super) fn is_over(&self) -> bool {
        !self.has(Duration::ZERO)
    }

    /// Whether there is time for something that takes `cost`.
    pub(super) fn has(&self, cost: Duration) -> bool {
        self.end.is_none_or(|end| Instant::now() + cost < end)
    }

    /// The numbers of the runs: `full` or `quick` of them, fewer if the time
    /// is over before a run that is expected to take `cost`.
    pub(super) fn runs(self, full: u32, quick: u32, cost: Duration) -> impl Iterator<Item = u32> {
        (0..self.either(full, quick)).take_while(move |_| self.has(cost))
    }
}
