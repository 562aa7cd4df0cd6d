//! Keys by which other servers' frames on the data network are proved
//! ([`godwit_core::tags`], `gw_tag.h`).
//!
//! What the data path goes by is written before a peer hears of it, so that nothing is refused
//! that it has sent in good faith. Of a peer whose place on the link is not known nothing is
//! believed anyway.

use std::collections::BTreeMap;

use godwit_bpf::{MapError, TagKey, Trust, TrustTable};
use godwit_core::PeerId;
use godwit_core::tags::Tags;
use godwit_wire::{Hello, MacAddr, Message, TagWord, node_id};
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroize as _;

use super::Driver;
use crate::config::Config;

/// Those with whom keys are agreed on: they share a service with this node.
#[derive(Debug, Default)]
pub(super) struct Tagging {
    sides: BTreeMap<PeerId, Side>,
}

/// One of them.
#[derive(Debug, Default)]
struct Side {
    /// The number of its name.
    node: u32,
    tags: Tags,
    mac: Option<MacAddr>,
}

/// Nobody agrees on these any more. Those before them were overwritten.
impl Drop for Side {
    fn drop(&mut self) {
        self.tags.out.zeroize();
        self.tags.believed.zeroize();
        self.tags.before.zeroize();
    }
}

impl Tagging {
    /// Takes up what an earlier agent has agreed on. What it has left of others goes.
    pub(super) fn take_up(config: &Config, table: &TrustTable) -> Self {
        let mut tagging = Self::new(config);
        let left = table.all().unwrap_or_else(|error| {
            tracing::error!(%error, "keys of an earlier agent can't be read");
            Vec::new()
        });
        for (mac, trust) in left {
            if !tagging.resume(mac, &trust)
                && let Err(error) = table.forget(mac)
            {
                tracing::warn!(%error, %mac, "a key of an earlier agent can't be removed");
            }
        }
        tagging
    }

    fn new(config: &Config) -> Self {
        let peers = (0..).map(PeerId).zip(config.others());
        let mates = peers.filter(|(_, peer)| {
            let mut own = config.own_shares();
            own.any(|(_, service)| service.has_member(peer.name))
        });
        let sides = mates.map(|(id, peer)| {
            let node = node_id(peer.name).get();
            (
                id,
                Side {
                    node,
                    ..Side::default()
                },
            )
        });
        Self {
            sides: sides.collect(),
        }
    }

    /// Whether somebody goes on with it.
    fn resume(&mut self, mac: MacAddr, trust: &Trust) -> bool {
        let mut sides = self.sides.values_mut();
        let side = sides.find(|side| side.node == trust.node && side.mac.is_none());
        let Some(side) = side else {
            return false;
        };
        side.mac = Some(mac);
        side.tags = Tags::resume(trust.out, (trust.believed, trust.before), trust.demanded);
        true
    }

    /// For people; `None`: no keys are agreed on with it.
    pub(super) fn of(&self, peer: PeerId) -> Option<&'static str> {
        self.sides.get(&peer).map(|side| side.tags.as_str())
    }

    /// It is elsewhere on the link, as far as that is new.
    fn find(&mut self, peer: PeerId, mac: MacAddr, table: &TrustTable) -> Result<(), MapError> {
        let Some(side) = self.sides.get_mut(&peer) else {
            return Ok(());
        };
        let old = side.mac.replace(mac);
        if old == Some(mac) {
            return Ok(());
        }
        if let Some(old) = old {
            table.forget(old)?;
        }
        side.write(table)
    }
}

impl Side {
    fn write(&self, table: &TrustTable) -> Result<(), MapError> {
        let Some(mac) = self.mac else {
            return Ok(());
        };
        if self.tags == Tags::default() {
            return table.forget(mac);
        }
        let trust = Trust {
            node: self.node,
            out: self.tags.out,
            believed: self.tags.believed,
            before: self.tags.before,
            demanded: self.tags.demanded,
        };
        table.set(mac, &trust)
    }
}

impl Driver {
    /// A peer has introduced itself over a new link: it is told a key.
    pub(super) fn offer_tags(&mut self, peer: PeerId, hello: &Hello) {
        let mut fresh: TagKey = [0; 16];
        if SystemRandom::new().fill(&mut fresh).is_err() {
            tracing::error!("the kernel gives no random numbers: a peer is told no key");
            return;
        }
        let version = hello.max_version;
        self.agree_on_tags(peer, |tags| tags.greet(version, fresh));
    }

    /// A peer tells a key, or uses ours.
    pub(super) fn hear_of_tags(&mut self, peer: PeerId, word: TagWord) {
        self.agree_on_tags(peer, |tags| tags.hear(word));
    }

    fn agree_on_tags(&mut self, peer: PeerId, step: impl FnOnce(&mut Tags) -> Option<TagWord>) {
        let Some(side) = self.tagging.sides.get_mut(&peer) else {
            return;
        };
        // Where it was for an earlier agent, until it is found.
        side.mac = side.mac.or_else(|| self.shares.mac(peer));
        let before = side.tags;
        let word = step(&mut side.tags);
        if let Err(error) = side.write(&self.datapath.trusts) {
            // It goes on as it was, and the next link is another try.
            side.tags = before;
            tracing::error!(%error, "a key of a peer can't be written");
            return;
        }
        if let Some(word) = word
            && let Err(error) = self.peers.send(peer, Message::Tags(word))
        {
            tracing::debug!(%error, "a peer hears nothing of its key; the next link tells it");
        }
    }

    /// A peer is there on the link. Before the data path hears anything else of it.
    pub(super) fn find_tagged(&mut self, peer: PeerId, mac: MacAddr) {
        let written = self.tagging.find(peer, mac, &self.datapath.trusts);
        if let Err(error) = written {
            tracing::error!(%error, %mac, "a key of a peer can't be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pair;

    /// Only of peers that there are, by the numbers of their names.
    #[test]
    fn an_earlier_agent_s_keys_are_taken_up() {
        let config = Pair::new().a;
        let mut tagging = Tagging::new(&config);
        let mut peers = config.others();
        let b = peers.next().expect("it has a peer").name;
        let mut left = Trust {
            node: node_id(b).get(),
            believed: Some([1; 16]),
            demanded: true,
            ..Trust::default()
        };
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        assert!(tagging.resume(mac, &left));
        assert_eq!(tagging.of(PeerId(0)), Some("demanded"));
        assert!(!tagging.resume(mac, &left), "twice");
        left.node += 1;
        assert!(!tagging.resume(mac, &left), "of a stranger");
    }
}
