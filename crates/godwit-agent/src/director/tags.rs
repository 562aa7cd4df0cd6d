//! What back-ends say of keys ([`crate::tagging`]), and what they hear of it.

use godwit_core::PeerId;
use godwit_wire::{Hello, MacAddr, Message, NetworkMessage, TagWord};

use super::front::Front;

impl Front {
    /// A back-end has introduced itself over a new link: it is told a key.
    pub(super) fn offer_tags(&mut self, peer: PeerId, hello: &Hello) {
        let table = &self.tables.programs.trusts;
        let word = self.tagging.greet(peer, hello.max_version, table);
        self.tell_tags(peer, word);
    }

    /// A back-end tells a key, or uses ours.
    pub(super) fn hear_of_tags(&mut self, peer: PeerId, word: TagWord) {
        let table = &self.tables.programs.trusts;
        let word = self.tagging.hear(peer, word, table);
        self.tell_tags(peer, word);
    }

    /// A back-end is there on the link.
    pub(super) fn find_tagged(&mut self, peer: PeerId, mac: MacAddr) {
        let table = &self.tables.programs.trusts;
        let word = self.tagging.find(peer, mac, table);
        self.tell_tags(peer, word);
    }

    fn tell_tags(&self, peer: PeerId, word: Option<TagWord>) {
        if let Some(word) = word
            && let Err(error) = self
                .out
                .peers
                .send(peer, Message::Network(NetworkMessage::Tags(word)))
        {
            tracing::debug!(%error, "a back-end hears nothing of its key; the next link tells it");
        }
    }
}
