//! Backing off from a share that goes to and fro.
//!
//! Each loss of a standby leaves connections unprotected for good, each takeover
//! costs its clients a stall. Where that repeats itself, more of it helps nobody:
//! the node that owns goes on alone for a while, and says so. What a server
//! process does is not counted: it moves without a loss, and its supervisor
//! has limits of its own.

use std::collections::VecDeque;
use std::time::Duration;

use godwit_wire::LeaveReason;

use super::context::Context;
use super::event::ShareNews;
use super::share::ShareSide;
use crate::share::{Change, Reason, State};
use crate::{MonoTime, PeerId};

/// Failures count for so long.
const WINDOW: Duration = Duration::from_secs(60);

/// The first time that the other node is held off; doubled up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_secs(5);

/// The longest time that it is.
const LONGEST: Duration = Duration::from_secs(60);

/// Failures of the last minute, on either side of a share.
#[derive(Debug, Clone)]
pub(super) struct Damping {
    /// How many are too many; 0: none are.
    limit: u32,
    failures: VecDeque<MonoTime>,
    /// How long the other node is held off next.
    hold: Duration,
    /// As the owner: until when the other node is.
    held_until: Option<MonoTime>,
}

impl Damping {
    pub(super) const fn new(limit: u32) -> Self {
        Self {
            limit,
            failures: VecDeque::new(),
            hold: SHORTEST,
            held_until: None,
        }
    }

    /// One more failure; how long the other node is to be held off for it.
    fn note(&mut self, now: MonoTime) -> Option<Duration> {
        self.forget(now);
        self.failures.push_back(now);
        if self.limit == 0 || self.count() < self.limit {
            return None;
        }
        let hold = self.hold;
        self.hold = (hold * 2).min(LONGEST);
        Some(hold)
    }

    /// What is too long ago. A minute without any begins anew.
    fn forget(&mut self, now: MonoTime) {
        let old = |at: &MonoTime| at.saturating_add(WINDOW) <= now;
        while self.failures.front().is_some_and(old) {
            self.failures.pop_front();
        }
        if self.failures.is_empty() {
            self.hold = SHORTEST;
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.failures.len()).unwrap_or(u32::MAX)
    }

    /// Until when the other node is held off, if it was.
    pub(super) const fn held_until(&self) -> Option<MonoTime> {
        self.held_until
    }
}

impl ShareSide {
    /// The share has changed hands, or is about to be this node's again.
    pub(super) fn note_move(&mut self, change: Change, context: &mut Context<'_>) {
        let involuntary = matches!(
            change.reason,
            Reason::OwnerFailed | Reason::LeaseLapsed | Reason::LeaseLost | Reason::Superseded
        );
        if !involuntary {
            return;
        }
        if let (State::Owner, Some(before)) = (change.state, change.prev.owner()) {
            self.hold_off(before.peer, Duration::ZERO, context);
        } else {
            self.damping.note(context.now);
        }
    }

    /// As the owner: the lease had ended, and nobody else asked for it.
    pub(super) fn note_lapse(&mut self, context: &mut Context<'_>) {
        let peer = self.members().next();
        if let Some(peer) = peer {
            self.hold_off(peer, Duration::ZERO, context);
        }
    }

    /// As the owner: the other node failed its duty, and stays out for `pause`, or
    /// longer if that has happened often.
    pub(super) fn hold_off(&mut self, peer: PeerId, pause: Duration, context: &mut Context<'_>) {
        let hold = self.damping.note(context.now);
        let until = context.now.saturating_add(hold.unwrap_or(pause));
        self.standbys.rejoin_after = self.standbys.rejoin_after.max(until);
        if let Some(hold) = hold {
            self.damping.held_until = Some(until);
            let news = ShareNews::StandbyHeldOff {
                peer: context.peer_name(peer),
                hold,
                failures: self.damping.count(),
            };
            context.tell(self.id, news);
        }
    }
}

/// How long a standby stays out that failed its duty, other than by saying
/// goodbye: lest it come and go with every burst of load. `None` if that was no
/// failure. Each stay that ends leaves flows unprotected for good.
pub(super) const fn pause_after(reason: LeaveReason) -> Option<Duration> {
    match reason {
        LeaveReason::StandbySilent
        | LeaveReason::DemoteUnconfirmed
        | LeaveReason::SupervisionOverflow
        | LeaveReason::NotTaken
        | LeaveReason::NotHeard
        | LeaveReason::NotBorn => Some(Duration::from_secs(1)),
        LeaveReason::StandbyRestarted
        | LeaveReason::StandbyQuit
        | LeaveReason::ServerLost
        | LeaveReason::WrongEpoch
        | LeaveReason::OwnerLeft
        // Somebody changes its surroundings, see `fitness`.
        | LeaveReason::Unfit => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> MonoTime {
        MonoTime(seconds * 1_000_000_000)
    }

    fn note(damping: &mut Damping, seconds: u64) -> Option<u64> {
        damping.note(at(seconds)).map(|hold| hold.as_secs())
    }

    #[test]
    fn from_the_limit_on_each_failure_holds_off_for_twice_as_long() {
        let mut damping = Damping::new(3);
        let held: Vec<_> = (0..8).map(|second| note(&mut damping, second)).collect();
        let minute = Some(60);
        assert_eq!(held[..5], [None, None, Some(5), Some(10), Some(20)]);
        assert_eq!(held[5..], [Some(40), minute, minute]);
    }

    #[test]
    fn a_failure_now_and_then_is_forgotten() {
        let mut damping = Damping::new(2);
        for round in 0..10 {
            assert_eq!(note(&mut damping, 60 * round), None);
        }
        assert_eq!(note(&mut damping, 541), Some(5));
        assert_eq!(note(&mut damping, 542), Some(10));
        assert_eq!(note(&mut damping, 602), None, "a quiet minute");
        assert_eq!(note(&mut damping, 603), Some(5));
    }

    #[test]
    fn without_a_limit_nothing_is_held_off() {
        let mut damping = Damping::new(0);
        assert!((0..100).all(|second| note(&mut damping, second).is_none()));
    }
}
