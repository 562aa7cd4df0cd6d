//! A standby at which no connection gets a twin is not in sync, whatever canaries show: what
//! stops its server's segments (a program on that server's control group) lets them pass.
//!
//! A birth that fails is an ordinary thing: a copy was lost, a backlog was full. So it counts
//! only when none succeeds, and each flow once. One of which no kernel makes a twin does not
//! count. The owner's driver counts the flows that are protected, several
//! times a second. As long as there is one, nothing is wrong. Without one nothing is lost when
//! the standby leaves the set. It comes back as any other that has left it, and is held off
//! if that repeats itself ([`damping`](super::damping)).

use std::collections::BTreeSet;
use std::time::Duration;

use godwit_wire::FlowId;

use crate::MonoTime;

/// As few failures prove nothing.
const FEW: usize = 3;

/// Nor do many within so short a time.
const PATIENCE: Duration = Duration::from_millis(750);

/// Flows whose births have failed since one was seen to succeed.
#[derive(Debug, Clone, Default)]
pub(super) struct Births {
    /// As many as prove something.
    failed: BTreeSet<FlowId>,
    since: Option<MonoTime>,
}

impl Births {
    pub(super) const fn new() -> Self {
        Self {
            failed: BTreeSet::new(),
            since: None,
        }
    }

    /// A flow has no twin that answers. One flow proves no more the second time.
    pub(super) fn note_failed(&mut self, flow: FlowId, now: MonoTime) {
        if self.failed.len() < FEW {
            self.failed.insert(flow);
        }
        self.since.get_or_insert(now);
    }

    /// That flow can have no twin anywhere, so it says nothing of the standby.
    pub(super) fn excuse(&mut self, flow: FlowId) {
        self.failed.remove(&flow);
        if self.failed.is_empty() {
            self.since = None;
        }
    }

    /// Whether none succeeds, as far as can be told.
    pub(super) fn all_fail(&self, now: MonoTime) -> bool {
        let long = |since| now.since(since) >= PATIENCE;
        self.failed.len() >= FEW && self.since.is_some_and(long)
    }
}
