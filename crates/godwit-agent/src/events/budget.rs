//! Events that clients cause: which these are, and how many of them are told.
//!
//! A client can have any number of connections that lose their protection one by one. Each kind
//! of such an event has a budget: so many at once, and so many in a second from then on. The
//! others are counted, and their number is told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::bucket::{Bucket, Rate};

/// Events of one kind that are told at once, if there was none for a while.
pub(super) const BURST: u32 = 256;

/// How often one more may be told.
const REFILL: Duration = Duration::from_millis(50);

const RATE: Rate = Rate {
    burst: BURST,
    refill: REFILL,
};

/// For so long what is left out adds up before its number is told.
pub(super) const SUM_UP: Duration = Duration::from_secs(5);

/// Kinds that have a budget. What else is told of a flow follows from an order of ours.
const LIMITED: [&str; 7] = [
    "flow_demoted",
    "flow_given_up",
    "flow_protected_again",
    "twin_closed",
    "materialise_failed",
    "flow_diverged",
    "flow_waiting",
];

/// Whether it is about one connection, of which there may be many, and not about a node.
pub(super) fn is_of_flow(event: &str) -> bool {
    event.starts_with("flow_") || LIMITED.contains(&event) || event == "held_dropped"
}

/// All kinds that have a budget.
#[derive(Debug, Default)]
pub(super) struct Budget(BTreeMap<String, Bucket>);

impl Budget {
    /// Whether this one is told; else it is counted.
    pub(super) fn admits(&mut self, event: &str, now: Instant) -> bool {
        if !LIMITED.contains(&event) {
            return true;
        }
        let buckets = self.0.entry(event.to_owned());
        let bucket = buckets.or_insert_with(|| Bucket::full(RATE, now));
        bucket.admits(RATE, now)
    }

    /// Kinds of which some were left out, and how many, each said once.
    pub(super) fn left_out(&mut self, now: Instant) -> Vec<(String, u64)> {
        let is_due = |it: &Bucket| it.leaves_out_for(now).is_some_and(|span| span >= SUM_UP);
        let due = self.0.iter_mut().filter(|(_, it)| is_due(it));
        due.map(|(event, bucket)| (event.clone(), bucket.take_left_out()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_a_burst_and_then_a_rate() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        let told = |budget: &mut Budget, event, now| {
            let told = (0..1000).filter(|_| budget.admits(event, now));
            u32::try_from(told.count()).expect("at most a thousand")
        };
        assert_eq!(told(&mut budget, "flow_demoted", start), BURST);
        assert_eq!(told(&mut budget, "twin_closed", start), BURST, "its own");
        assert_eq!(told(&mut budget, "role_changed", start), 1000, "no limit");
        let later = start + Duration::from_secs(1);
        assert_eq!(told(&mut budget, "flow_demoted", later), 20);
        assert_eq!(told(&mut budget, "flow_demoted", later + REFILL / 2), 0);
        assert_eq!(told(&mut budget, "flow_demoted", later + REFILL), 1);
        let long = start + Duration::from_secs(1000);
        assert_eq!(told(&mut budget, "flow_demoted", long), BURST, "no more");
    }

    #[test]
    fn what_is_left_out_is_said_once() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        for _ in 0..BURST + 7 {
            budget.admits("flow_demoted", start);
        }
        let soon = start + SUM_UP - Duration::from_millis(1);
        assert_eq!(budget.left_out(soon), []);
        let due = start + SUM_UP;
        assert_eq!(budget.left_out(due), [("flow_demoted".to_owned(), 7)]);
        assert_eq!(budget.left_out(due), []);
    }
}
