//! Who votes, and whose votes are enough.

use std::collections::BTreeMap;

use godwit_wire::{Epoch, NodeName};

/// The voters of a cluster. Two majorities always have one in common.
#[derive(Debug, Clone)]
pub(super) struct Quorum {
    voters: Vec<NodeName>,
    /// Powered off, and not heard of since: can't object, holds nothing. And
    /// the greatest epoch that it can have held a lease of.
    fenced: BTreeMap<NodeName, Epoch>,
    /// The greatest epoch that each node is known to have held a lease of.
    held: BTreeMap<NodeName, Epoch>,
}

impl Quorum {
    pub(super) fn new(mut voters: Vec<NodeName>) -> Self {
        voters.sort_unstable();
        voters.dedup();
        Self {
            voters,
            fenced: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    pub(super) fn fence(&mut self, node: NodeName) {
        let held = self.held.get(&node).copied().unwrap_or(Epoch::NONE);
        self.fenced.insert(node, held);
    }

    /// Somebody knows of a lease of `node`. One that was not known when the node
    /// was powered off may be of a later life.
    pub(super) fn note_lease(&mut self, node: NodeName, epoch: Epoch) {
        let held = self.held.entry(node).or_insert(epoch);
        *held = epoch.max(*held);
        if self.fenced.get(&node).is_some_and(|known| *known < epoch) {
            self.fenced.remove(&node);
        }
    }

    pub(super) fn unfence(&mut self, node: NodeName) {
        self.fenced.remove(&node);
    }

    pub(super) fn is_fenced(&self, node: NodeName) -> bool {
        self.fenced.contains_key(&node)
    }

    /// Whether consent of the nodes for which `yes` holds is enough.
    pub(super) fn consents(&self, yes: impl Fn(NodeName) -> bool) -> bool {
        self.count(|node| yes(node) || self.is_waived(node)) >= self.majority()
    }

    /// Whether the nodes for which `no` holds can keep any majority from forming.
    pub(super) fn blocks(&self, no: impl Fn(NodeName) -> bool) -> bool {
        self.count(|node| self.is_waived(node) || !no(node)) < self.majority()
    }

    /// Of two voters one without power does not need to be asked: it can't own
    /// again before the other has heard of it. Of more, it could.
    pub(super) fn is_waived(&self, node: NodeName) -> bool {
        self.voters.len() <= 2 && self.is_fenced(node)
    }

    /// Whether powering a silent voter off replaces its vote.
    pub(super) fn can_waive(&self) -> bool {
        self.voters.len() <= 2
    }

    /// Whether nodes for which `knows` holds, really asked, would have met with
    /// everything that a majority ever accepted.
    ///
    /// Of two voters the one that is left knows: whatever the other and it
    /// agreed on it has accepted itself.
    pub(super) fn remembers(&self, knows: impl Fn(NodeName) -> bool) -> bool {
        let rest = self.voters.len().saturating_sub(1).max(1);
        let enough = if self.fenced.is_empty() {
            self.majority()
        } else {
            self.majority().min(rest)
        };
        self.count(knows) >= enough
    }

    /// The least `when` of all voters by which a majority is reached.
    pub(super) fn reached<T: Ord + Copy>(&self, when: impl Fn(NodeName) -> T) -> Option<T> {
        let mut times: Vec<T> = self.voters.iter().map(|node| when(*node)).collect();
        times.sort_unstable();
        times.get(self.majority() - 1).copied()
    }

    /// Whether `wanted` holds for any voter.
    pub(super) fn any(&self, wanted: impl Fn(NodeName) -> bool) -> bool {
        self.voters.iter().any(|node| wanted(*node))
    }

    /// Whether those who say yes could elect somebody if `node` had no power.
    pub(super) fn elects_without(&self, node: NodeName, yes: impl Fn(NodeName) -> bool) -> bool {
        let votes = self.count(|voter| voter != node && yes(voter));
        let needed = if self.voters.len() <= 2 {
            1 // the silent one is powered off
        } else {
            self.majority()
        };
        votes >= needed
    }

    fn count(&self, wanted: impl Fn(NodeName) -> bool) -> usize {
        self.voters.iter().filter(|node| wanted(**node)).count()
    }

    const fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }
}

/// What lease datagrams say of the voters: FNV-1a over their sorted names.
pub fn voters_digest(voters: &[NodeName]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let mut sorted = voters.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let bytes = sorted
        .iter()
        .flat_map(|name| name.as_str().bytes().chain([0]));
    bytes.fold(BASIS, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<NodeName> {
        let name = |name: &&str| NodeName::new(name).expect("a literal");
        names.iter().map(name).collect()
    }

    fn one_of<'a>(nodes: &'a [&'a str]) -> impl Fn(NodeName) -> bool + 'a {
        move |node| nodes.contains(&node.as_str())
    }

    #[test]
    fn a_majority_is_more_than_half() {
        let three = Quorum::new(names(&["a", "b", "w"]));
        assert!(three.consents(one_of(&["a", "w"])) && !three.consents(one_of(&["a", "x"])));
        assert!(three.blocks(one_of(&["a", "w"])) && !three.blocks(one_of(&["a"])));
        let four = Quorum::new(names(&["a", "b", "c", "d"]));
        assert!(!four.consents(one_of(&["a", "b"])) && four.blocks(one_of(&["a", "b"])));
        let once = Quorum::new(names(&["a", "b", "b", "b"]));
        assert!(!once.consents(one_of(&["b"])), "named twice, counted once");
    }

    #[test]
    fn a_node_without_power_does_not_object() {
        let mut two = Quorum::new(names(&["a", "b"]));
        assert!(!two.consents(one_of(&["b"])) && !two.remembers(one_of(&["b"])));
        two.fence(names(&["a"])[0]);
        assert!(two.consents(one_of(&["b"])) && two.remembers(one_of(&["b"])));
        assert!(!two.remembers(one_of(&[])));
        two.unfence(names(&["a"])[0]);
        assert!(!two.consents(one_of(&["b"])));
    }

    #[test]
    fn a_lease_that_was_not_known_then_may_be_of_a_later_life() {
        let mut two = Quorum::new(names(&["a", "b"]));
        let a = names(&["a"])[0];
        two.note_lease(a, Epoch(7));
        two.fence(a);
        two.note_lease(a, Epoch(7));
        assert!(two.is_fenced(a));
        two.note_lease(a, Epoch(8));
        assert!(!two.is_fenced(a));
    }

    #[test]
    fn of_three_voters_two_must_agree_whoever_is_off() {
        let mut three = Quorum::new(names(&["a", "b", "w"]));
        three.fence(names(&["a"])[0]);
        assert!(!three.consents(one_of(&["b"])) && three.consents(one_of(&["b", "w"])));
        assert!(!three.remembers(one_of(&["b"])) && three.remembers(one_of(&["b", "w"])));
    }

    #[test]
    fn a_majority_is_reached_with_its_last_member() {
        let three = Quorum::new(names(&["a", "b", "w"]));
        let when = |node: NodeName| match node.as_str() {
            "a" => 9,
            "b" => 2,
            _ => 5,
        };
        assert_eq!(three.reached(when), Some(5));
    }

    #[test]
    fn the_digest_tells_other_voters_not_another_order() {
        let digest = |list: &[&str]| voters_digest(&names(list));
        assert_eq!(digest(&["a", "b", "w"]), digest(&["w", "a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["a", "b", "w"]));
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_eq!(digest(&[]), 0xcbf2_9ce4_8422_2325);
    }
}
