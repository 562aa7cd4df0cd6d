//! Where peers have said that they are on the data network ([`godwit_core::whereabouts`]), for the
//! threads that look for them there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use godwit_core::PeerId;
use godwit_core::whereabouts::Whereabouts;
use godwit_wire::{Hello, MacAddr, Message, NetworkMessage};

use crate::peers::PeerSender;

/// What is known of each peer. Copies share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places(Arc<Mutex<BTreeMap<PeerId, Whereabouts>>>);

impl Places {
    /// A peer has introduced itself over a new link: it is told that we are there.
    pub(crate) fn greet(&self, peer: PeerId, hello: &Hello, own: MacAddr, peers: &PeerSender) {
        if self.known().entry(peer).or_default().greet(hello) {
            tell(peer, own, peers);
        }
    }

    /// A peer says that it is there.
    pub(crate) fn hear(&self, peer: PeerId, mac: MacAddr) {
        self.known().entry(peer).or_default().hear(mac);
    }

    /// We are there now.
    pub(crate) fn tell_all(&self, own: MacAddr, peers: &PeerSender) {
        let known = self.known().clone();
        let listen = known.iter().filter(|(_, it)| it.listens());
        listen.for_each(|(peer, _)| tell(*peer, own, peers));
    }

    /// What is known of a peer.
    pub(crate) fn of(&self, peer: PeerId) -> Whereabouts {
        self.known().get(&peer).copied().unwrap_or_default()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<PeerId, Whereabouts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(peer: PeerId, own: MacAddr, peers: &PeerSender) {
    if let Err(error) = peers.send(peer, Message::Network(NetworkMessage::Place(own))) {
        tracing::debug!(%error, "a peer hears not where we are; the next link tells it");
    }
}
