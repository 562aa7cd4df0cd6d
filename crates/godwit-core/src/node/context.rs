//! What a share sees of its node while it handles an input.

use godwit_wire::{Message, NodeName, ShareId};

use super::event::{EventKind, ShareNews};
use super::outbox::Outbox;
use super::peer::PeerSide;
use crate::{MonoTime, PeerId};

/// What a share needs to see of its node.
pub(super) struct Context<'a> {
    pub(super) name: NodeName,
    pub(super) peers: &'a [PeerSide],
    pub(super) out: &'a mut Outbox,
    pub(super) now: MonoTime,
}

impl<'a> Context<'a> {
    pub(super) const fn new(
        name: NodeName,
        peers: &'a [PeerSide],
        out: &'a mut Outbox,
        now: MonoTime,
    ) -> Self {
        Self {
            name,
            peers,
            out,
            now,
        }
    }

    pub(super) fn peer(&self, peer: PeerId) -> Option<&PeerSide> {
        self.peers.get(usize::from(peer.0))
    }

    pub(super) fn is_ready(&self, peer: PeerId) -> bool {
        self.peer(peer).is_some_and(PeerSide::is_ready)
    }

    pub(super) fn is_linked(&self, peer: PeerId) -> bool {
        self.peer(peer).is_some_and(PeerSide::is_linked)
    }

    pub(super) fn is_alive(&self, peer: PeerId) -> bool {
        self.peer(peer)
            .is_some_and(|side| side.detector.state().is_alive())
    }

    /// Sends if there is a link; what is lost without one is said anew on the next.
    pub(super) fn send(&mut self, peer: PeerId, message: Message) {
        if self.is_linked(peer) {
            self.out.send(peer, message);
        }
    }

    pub(super) fn peer_name(&self, peer: PeerId) -> NodeName {
        self.peer(peer).map_or(self.name, |side| side.name)
    }

    pub(super) fn tell(&mut self, share: ShareId, news: ShareNews) {
        self.out.tell(self.now, EventKind::Share { share, news });
    }
}
