//! Directors that this node does not prove itself to, as they say in their heartbeats
//! ([`godwit_core::director::unproved`]).

use std::collections::BTreeSet;

use godwit_core::director::unproved;
use godwit_core::{Beat, Node, PeerId};
use godwit_wire::{Heartbeat, NodeName, ShareClaim};

/// What they have said last.
#[derive(Debug)]
pub(super) struct Doubters {
    word: ShareClaim,
    said: BTreeSet<PeerId>,
}

impl Doubters {
    /// Of the node of that name.
    pub(super) fn new(own: NodeName) -> Self {
        Self {
            word: unproved(own),
            said: BTreeSet::new(),
        }
    }

    /// A heartbeat of a director has come.
    pub(super) fn note_beat(&mut self, peer: PeerId, beat: &Beat) {
        if beat.shares.contains(&self.word) {
            self.said.insert(peer);
        } else if beat.shares.len() < Heartbeat::MAX_SHARES {
            self.said.remove(&peer);
        }
    }

    fn has(&self, peer: PeerId) -> bool {
        self.said.contains(&peer)
    }

    /// Directors that are heard, and do not get this node's answers, for people.
    pub(super) fn say(&self, node: &Node) -> Vec<String> {
        let peers = (0..).map(PeerId).zip(node.peer_status());
        let heard = peers.filter(|(_, peer)| peer.liveness.is_alive());
        let directors = heard.filter(|(id, _)| self.has(*id));
        let say = |(_, peer): (PeerId, godwit_core::PeerStatus)| {
            format!(
                "director {director} has no answers of this node to its frames of EtherType 0x88b5: \
                 this node gets new connections only where no other one serves; look whether frames \
                 of {director} arrive here, and let the switch pass that EtherType both ways (an \
                 ACL, port security)",
                director = peer.name
            )
        };
        directors.map(say).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_director_says_of_this_node_holds_until_its_next_heartbeat() {
        let name = |name| NodeName::new(name).expect("a name");
        let beat = |shares| Beat {
            incarnation: 1,
            sequence: 1,
            sent: None,
            shares,
        };
        let (own, other) = (unproved(name("a")), unproved(name("b")));
        let mut it = Doubters::new(name("a"));
        it.note_beat(PeerId(1), &beat(vec![other]));
        assert!(!it.has(PeerId(1)), "it is said of another one");
        it.note_beat(PeerId(1), &beat(vec![other, own]));
        assert!(it.has(PeerId(1)) && !it.has(PeerId(2)));
        it.note_beat(PeerId(1), &beat(vec![other; Heartbeat::MAX_SHARES]));
        assert!(it.has(PeerId(1)), "the rest is in another one");
        it.note_beat(PeerId(1), &beat(vec![other]));
        assert!(!it.has(PeerId(1)));
    }
}
