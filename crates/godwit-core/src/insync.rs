//! The in-sync set: which standbys hold every byte that clients were told is safe.
//!
//! The owner keeps it. Only members may take over, so a standby is removed
//! *before* the first acknowledgement is let out that it does not cover. A
//! generation names one uninterrupted membership: flows carry the generation they
//! began in, and a standby that comes back gets a new one, so that its old,
//! incomplete twins can never be mistaken for whole ones.

use std::collections::BTreeMap;

use godwit_wire::Generation;

use crate::PeerId;

/// What the end of a generation means for its flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The generation that ended.
    pub generation: Generation,
    /// Whether nobody is left who holds the flows: their gates must open.
    pub last: bool,
}

/// The standbys of one share that are in sync. Today at most one.
#[derive(Debug, Clone, Default)]
pub struct InSyncSet {
    members: BTreeMap<PeerId, Generation>,
    /// Offered and not yet confirmed.
    offers: BTreeMap<PeerId, Generation>,
    /// Of the latest join; meaningless while there are no members.
    generation: Generation,
    /// The greatest generation ever seen: the next one is above it.
    latest: Generation,
}

impl InSyncSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The share's generation: what new flows are born with. None without members.
    pub fn generation(&self) -> Generation {
        if self.members.is_empty() {
            Generation::NONE
        } else {
            self.generation
        }
    }

    /// Whether a flow of that generation is held by a standby.
    pub fn is_protected(&self, generation: Generation) -> bool {
        !generation.is_none() && generation == self.generation()
    }

    /// Whether `peer` is in sync.
    pub fn contains(&self, peer: PeerId) -> bool {
        self.members.contains_key(&peer)
    }

    /// The members, in order.
    pub fn members(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.members.keys().copied()
    }

    /// The members and the generation of each, in order.
    pub fn stays(&self) -> impl Iterator<Item = (PeerId, Generation)> + '_ {
        self.members.iter().map(|(peer, stay)| (*peer, *stay))
    }

    /// What has been offered to `peer` and not yet been confirmed.
    pub fn offered(&self, peer: PeerId) -> Option<Generation> {
        self.offers.get(&peer).copied()
    }

    /// Learns of a generation that someone remembers: later ones are above it.
    pub fn raise(&mut self, seen: Generation) {
        self.latest = self.latest.max(seen);
    }

    /// The generation with which `peer` joins when it confirms it.
    ///
    /// An open offer is repeated: a peer that asks again before it has heard
    /// the offer would otherwise confirm one that no longer stands, for ever.
    pub fn offer(&mut self, peer: PeerId) -> Generation {
        *self.offers.entry(peer).or_insert_with(|| {
            self.latest = self.latest.next();
            self.latest
        })
    }

    /// Takes `peer` in; `generation` is the one offered, or resumed after a restart.
    pub fn join(&mut self, peer: PeerId, generation: Generation) {
        debug_assert!(!generation.is_none(), "a stay has a number");
        self.raise(generation);
        self.offers.remove(&peer);
        self.generation = if self.members.is_empty() {
            // A node that remembers more may be handed a generation of one that does not.
            generation
        } else {
            self.generation.max(generation)
        };
        self.members.insert(peer, generation);
    }

    /// Takes `peer` out; `None` if it was not in. An open offer lapses.
    pub fn leave(&mut self, peer: PeerId) -> Option<Left> {
        self.offers.remove(&peer);
        self.members.remove(&peer).map(|_| Left {
            generation: self.generation,
            last: self.members.is_empty(),
        })
    }

    /// Takes back what was offered to `peer`: its confirmation would come too late.
    pub fn withdraw(&mut self, peer: PeerId) {
        self.offers.remove(&peer);
    }

    /// Forgets members and offers, not the generations.
    pub fn clear(&mut self) {
        self.members.clear();
        self.offers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: PeerId = PeerId(0);
    const C: PeerId = PeerId(1);

    #[test]
    fn a_standby_that_returns_gets_a_greater_generation() {
        let mut set = InSyncSet::new();
        let first = set.offer(B);
        assert!(!set.is_protected(first), "an offer protects nothing");
        set.join(B, first);
        assert!(set.is_protected(first) && set.contains(B));
        assert_eq!(
            set.leave(B),
            Some(Left {
                generation: first,
                last: true
            })
        );
        assert!(!set.is_protected(first) && set.generation().is_none());
        let second = set.offer(B);
        assert!(second > first);
        set.join(B, second);
        assert!(set.is_protected(second) && !set.is_protected(first));
    }

    #[test]
    fn generation_zero_is_never_protected() {
        let mut set = InSyncSet::new();
        assert!(!set.is_protected(Generation::NONE));
        set.join(B, Generation(4));
        assert!(!set.is_protected(Generation::NONE));
    }

    #[test]
    fn a_remembered_generation_is_not_given_out_again() {
        let mut set = InSyncSet::new();
        set.raise(Generation(41));
        assert_eq!(set.offer(B), Generation(42));
        set.clear();
        assert_eq!(set.offer(B), Generation(43), "after a clear too");
    }

    #[test]
    fn a_stay_that_is_handed_over_keeps_its_generation() {
        let mut set = InSyncSet::new();
        set.join(B, Generation(3));
        set.clear();
        // The node that owned in between had forgotten the three.
        set.join(B, Generation(1));
        assert!(set.is_protected(Generation(1)) && !set.is_protected(Generation(3)));
        assert_eq!(set.offer(C), Generation(4), "and the next one is new");
    }

    #[test]
    fn gates_open_only_when_the_last_member_leaves() {
        let mut set = InSyncSet::new();
        let (b, c) = (set.offer(B), set.offer(C));
        set.join(B, b);
        set.join(C, c);
        assert_eq!(set.leave(B).map(|left| left.last), Some(false));
        assert!(set.is_protected(c));
        assert_eq!(set.leave(C).map(|left| left.last), Some(true));
        assert_eq!(set.leave(C), None);
    }

    #[test]
    fn an_open_offer_is_repeated() {
        let mut set = InSyncSet::new();
        let first = set.offer(B);
        assert_eq!(set.offer(B), first);
        set.withdraw(B);
        assert!(set.offer(B) > first);
    }

    #[test]
    fn leaving_withdraws_an_open_offer() {
        let mut set = InSyncSet::new();
        set.offer(B);
        assert_eq!(set.leave(B), None);
        assert_eq!(set.offered(B), None);
    }
}
