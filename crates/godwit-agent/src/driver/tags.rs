//! What peers say of keys ([`crate::tagging`]), and what they hear of it.

use godwit_core::PeerId;
use godwit_wire::{Hello, MacAddr, Message, TagWord};

use super::Driver;

impl Driver {
    /// A peer has introduced itself over a new link: it is told a key.
    pub(super) fn offer_tags(&mut self, peer: PeerId, hello: &Hello) {
        let table = &self.ground.datapath.trusts;
        let word = self.tagging.greet(peer, hello.max_version, table);
        self.tell_tags(peer, word);
    }

    /// A peer tells a key, or uses ours.
    pub(super) fn hear_of_tags(&mut self, peer: PeerId, word: TagWord) {
        let word = self.tagging.hear(peer, word, &self.ground.datapath.trusts);
        self.tell_tags(peer, word);
    }

    /// A peer is there on the link. Before the data path hears anything else of it.
    pub(super) fn find_tagged(&mut self, peer: PeerId, mac: MacAddr) {
        let word = self.tagging.find(peer, mac, &self.ground.datapath.trusts);
        self.tell_tags(peer, word);
    }

    fn tell_tags(&self, peer: PeerId, word: Option<TagWord>) {
        if let Some(word) = word
            && let Err(error) = self.ground.peers.send(peer, Message::Tags(word))
        {
            tracing::debug!(%error, "a peer hears nothing of its key; the next link tells it");
        }
    }
}
