//! What peers say of keys ([`crate::tagging`]), and what they hear of it.

use godwit_core::PeerId;
use godwit_wire::{Hello, MacAddr, Message, NetworkMessage, TagWord};

use super::super::ground::Ground;
use crate::tagging::Tagging;

/// A peer has introduced itself over a new link: it is told a key.
pub(super) fn offer_tags(ground: &Ground, tagging: &mut Tagging, peer: PeerId, hello: &Hello) {
    let table = &ground.datapath.trusts;
    let word = tagging.greet(peer, hello.max_version, table);
    tell_tags(ground, peer, word);
}

/// A peer tells a key, or uses ours.
pub(super) fn hear_of_tags(ground: &Ground, tagging: &mut Tagging, peer: PeerId, word: TagWord) {
    let word = tagging.hear(peer, word, &ground.datapath.trusts);
    tell_tags(ground, peer, word);
}

/// A peer is there on the link. Before the data path hears anything else of it.
pub(super) fn find_tagged(ground: &Ground, tagging: &mut Tagging, peer: PeerId, mac: MacAddr) {
    let word = tagging.find(peer, mac, &ground.datapath.trusts);
    tell_tags(ground, peer, word);
}

fn tell_tags(ground: &Ground, peer: PeerId, word: Option<TagWord>) {
    if let Some(word) = word
        && let Err(error) = ground
            .peers
            .send(peer, Message::Network(NetworkMessage::Tags(word)))
    {
        tracing::debug!(%error, "a peer hears nothing of its key; the next link tells it");
    }
}
