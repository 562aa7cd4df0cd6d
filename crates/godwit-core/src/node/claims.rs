//! Which of a peer's claims are news. Heartbeats and messages overtake each other.

use std::collections::BTreeMap;

use godwit_wire::{Epoch, Role};

use crate::share::COLD_START;
use crate::{MonoTime, PeerId};

/// What a peer said last of the share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) incarnation: u64,
    pub(super) epoch: Epoch,
    pub(super) role: Role,
}

impl Known {
    /// Whether `next` may follow: within one life of an agent epochs only grow,
    /// and an owner leaves its epoch only for a greater one.
    pub(super) fn allows(self, next: Self) -> bool {
        if next.incarnation != self.incarnation {
            return next.incarnation > self.incarnation;
        }
        let steps_back = self.role == Role::Owner && next.role != Role::Owner;
        next.epoch > self.epoch || (next.epoch == self.epoch && !steps_back)
    }

    /// Whether `next` says that the owner is none any more, under no other epoch. It was said
    /// before, or as the last words of an agent; or the owner has lost its lease to nobody.
    pub(super) fn is_denied_by(self, next: Self) -> bool {
        let same = (next.incarnation, next.epoch) == (self.incarnation, self.epoch);
        same && self.role == Role::Owner && next.role != Role::Owner
    }
}

/// What peers have said of a share.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims {
    said: BTreeMap<PeerId, Known>,
    /// Since when peers that owned say that they do not, under no other epoch.
    denied: BTreeMap<PeerId, MonoTime>,
}

impl Claims {
    /// What a peer said last.
    pub(super) fn of(&self, peer: PeerId) -> Option<Known> {
        self.said.get(&peer).copied()
    }

    /// Takes a claim down, if it is news.
    pub(super) fn take(
        &mut self,
        peer: PeerId,
        known: Known,
        is_leased: bool,
        now: MonoTime,
    ) -> bool {
        let is_news = self.is_news(peer, known, is_leased, now);
        if is_news {
            self.said.insert(peer, known);
        }
        is_news
    }

    /// Whether a peer's claim may follow what it has said before. An owner that has lost its
    /// lease to nobody may wait for us, as for a node that its address is at: in the end it
    /// is believed.
    fn is_news(&mut self, peer: PeerId, known: Known, is_leased: bool, now: MonoTime) -> bool {
        let before = self.said.get(&peer);
        let Some(before) = before.filter(|before| !before.allows(known)) else {
            self.denied.remove(&peer);
            return true;
        };
        if !is_leased || !before.is_denied_by(known) {
            return false;
        }
        let since = *self.denied.entry(peer).or_insert(now);
        now.since(since) >= COLD_START
    }

    /// A peer's agent was started anew.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.said.remove(&peer);
        self.denied.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn known(incarnation: u64, epoch: u64, role: Role) -> Known {
        Known {
            incarnation,
            epoch: Epoch(epoch),
            role,
        }
    }

    #[test]
    fn claims_move_forward_only() {
        let owner = known(2, 5, Role::Owner);
        let idle = known(2, 5, Role::None);
        assert!(owner.allows(owner) && idle.allows(idle), "repetition");
        assert!(idle.allows(owner), "it claimed");
        assert!(!owner.allows(idle), "said before it claimed");
        assert!(owner.is_denied_by(idle) && !idle.is_denied_by(idle));
        assert!(!owner.is_denied_by(known(2, 6, Role::None)));
        assert!(owner.allows(known(2, 6, Role::None)), "it stepped down");
        assert!(!idle.allows(known(2, 4, Role::Owner)), "an older epoch");
        assert!(owner.allows(known(3, 0, Role::None)), "a new life");
        assert!(!owner.allows(known(1, 9, Role::Owner)), "the life before");
    }
}
