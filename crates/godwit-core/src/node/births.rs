//! A standby at which no connection gets a twin is not in sync, whatever canaries show: what
//! stops its server's segments (a program on that server's control group) lets them pass.
//!
//! A birth that fails is an ordinary thing: a copy was lost, a backlog was full. So it counts
//! only when none succeeds. The owner's driver counts the flows that are protected, several
//! times a second. As long as there is one, nothing is wrong. Without one nothing is lost when
//! the standby leaves the set. It comes back as any other that has left it, and is held off
//! if that repeats itself ([`damping`](super::damping)).

use std::time::Duration;

use crate::MonoTime;

/// As few failures prove nothing.
const FEW: u32 = 3;

/// Nor do many within so short a time.
const PATIENCE: Duration = Duration::from_millis(750);

/// Births that have failed since one was seen to succeed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Births {
    failed: u32,
    since: Option<MonoTime>,
}

impl Births {
    pub(super) const fn new() -> Self {
        Self {
            failed: 0,
            since: None,
        }
    }

    /// A flow has no twin that answers.
    pub(super) fn note_failed(&mut self, now: MonoTime) {
        self.failed = self.failed.saturating_add(1);
        self.since.get_or_insert(now);
    }

    /// Whether none succeeds, as far as can be told.
    pub(super) fn all_fail(&self, now: MonoTime) -> bool {
        let long = |since| now.since(since) >= PATIENCE;
        self.failed >= FEW && self.since.is_some_and(long)
    }
}
