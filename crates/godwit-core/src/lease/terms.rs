//! How long leases last, and what clocks may do.

use std::time::Duration;

use crate::MonoTime;

/// The spans that leases are made of. The same on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease lasts unless it is renewed; at least 6 ms.
    pub term: Duration,
    /// The longest lease: what is asked for before an agent restarts as planned.
    pub long_term: Duration,
    /// How much faster or slower than true time a clock may run, in parts per
    /// million; below 100 000.
    pub drift_ppm: u32,
    /// How long a segment may sit in queues below the data path.
    pub egress_residence: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            term: Duration::from_millis(60),
            long_term: Duration::from_secs(10),
            drift_ppm: 1000,
            egress_residence: Duration::ZERO,
        }
    }
}

impl Terms {
    /// The longest lease that an acceptor accepts.
    pub fn longest(&self) -> Duration {
        self.term.max(self.long_term)
    }

    /// How long an acceptor that restarted keeps quiet.
    ///
    /// The longest lease, lest one of before is still in force; and a round on
    /// top, lest a promise of before still has a candidate count on it.
    pub fn quarantine(&self) -> Duration {
        self.longest().saturating_add(self.round())
    }

    /// How much of `span` a node may count on when others measure `span` too:
    /// its clock may be slow by the drift, and theirs fast.
    pub fn own(&self, span: Duration) -> Duration {
        let kept = 1_000_000_u32.saturating_sub(self.drift_ppm.saturating_mul(2));
        let nanos = span.as_nanos().saturating_mul(u128::from(kept)) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// When a node falls silent on a lease of `term` that it asked for at `sent`:
    /// its segments are gone when voters can think that it has ended.
    pub fn end(&self, sent: MonoTime, term: Duration) -> MonoTime {
        let spoken = self.own(term).saturating_sub(self.egress_residence);
        sent.saturating_add(spoken)
    }

    /// Time between two renewals. Five may be lost in a row.
    pub(super) fn renewal(&self) -> Duration {
        self.term / 6
    }

    /// How long a candidate tries with one epoch.
    pub(super) fn round(&self) -> Duration {
        self.term / 2
    }

    /// How long a promise binds: the round that it was given in, and the lease
    /// that may come of it.
    pub(super) fn promise(&self) -> Duration {
        self.term.saturating_add(self.round())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_own_span_ends_before_that_of_any_other() {
        let terms = Terms::default();
        let own = terms.own(Duration::from_millis(60));
        assert_eq!(own, Duration::from_micros(59_880));
        // True time on the slowest clock, against that on the fastest.
        assert!(own.as_secs_f64() / 0.999 <= 0.06 / 1.001);
        assert_eq!(
            Terms {
                drift_ppm: u32::MAX,
                ..terms
            }
            .own(terms.term),
            Duration::ZERO
        );
    }

    #[test]
    fn the_data_path_falls_silent_before_its_queues_could_outlive_the_lease() {
        let terms = Terms {
            egress_residence: Duration::from_millis(5),
            ..Terms::default()
        };
        let end = terms.end(MonoTime(7), Duration::from_millis(60));
        assert_eq!(end, MonoTime(7 + 59_880_000 - 5_000_000));
        assert_eq!(
            terms.end(MonoTime(7), Duration::from_millis(5)),
            MonoTime(7)
        );
    }

    #[test]
    fn five_renewals_may_be_lost() {
        let terms = Terms::default();
        assert_eq!(terms.renewal(), Duration::from_millis(10));
        assert!(terms.own(terms.term) > 5 * terms.renewal());
        assert_eq!(terms.quarantine(), Duration::from_millis(10_030));
    }
}
