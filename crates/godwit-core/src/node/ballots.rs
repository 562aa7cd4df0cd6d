//! The node's vote, and the lease datagrams to and from its peers.
//!
//! Messages are collected while an input is handled and sent when it has been
//! dealt with: many shares share a datagram, and whatever a message promises
//! has been asked of the data path before.

use std::collections::BTreeMap;

use godwit_wire::{LeaseDatagram, LeaseMessage, NodeName, ShareId};

use super::action::{Action, LeaseAction};
use super::config::NodeConfig;
use super::outbox::Outbox;
use super::peer::PeerSide;
use crate::lease::{Acceptor, Speaker, View, voters_digest};
use crate::{MonoTime, PeerId};

/// What one peer has been told and has said.
#[derive(Debug, Clone, Default)]
struct Line {
    outgoing: Vec<LeaseMessage>,
    sent: u64,
    /// Incarnation and sequence of the last datagram that counted.
    heard: (u64, u64),
    ignored: u64,
}

/// The acceptor of this node, and who it talks to.
#[derive(Debug, Clone)]
pub(super) struct Ballots {
    me: Speaker,
    voters: u64,
    acceptor: Acceptor,
    lines: Vec<Line>,
}

impl Ballots {
    /// `None` if no share needs a lease.
    pub(super) fn new(config: &NodeConfig) -> Option<Self> {
        let shares = config
            .shares
            .iter()
            .filter_map(|share| Some((share.id, share.fencing.endless()?)));
        let shares: Vec<_> = shares.collect();
        if shares.is_empty() {
            return None;
        }
        let lease = &config.lease;
        Some(Self {
            me: Speaker {
                node: config.name,
                incarnation: config.incarnation,
            },
            voters: voters_digest(&lease.voters),
            acceptor: Acceptor::new(lease.terms, shares, lease.quiet_until),
            lines: vec![Line::default(); config.peers.len()],
        })
    }

    pub(super) fn into_acceptor(self) -> Acceptor {
        self.acceptor
    }

    pub(super) const fn acceptor(&mut self) -> &mut Acceptor {
        &mut self.acceptor
    }

    /// See [`Acceptor::bound_until`].
    pub(super) fn bound_until(&self, now: MonoTime) -> MonoTime {
        self.acceptor.bound_until(self.me.node, now)
    }

    /// See [`Acceptor::take_news`].
    pub(super) fn take_news(&mut self) -> Option<String> {
        self.acceptor.take_news()
    }

    pub(super) const fn me(&self) -> Speaker {
        self.me
    }

    pub(super) fn view(&self, share: ShareId) -> Option<View<'_>> {
        self.acceptor.view(share)
    }

    /// Lease datagrams of a peer that did not count.
    pub(super) fn ignored(&self, peer: PeerId) -> u64 {
        self.line(peer).map_or(0, |line| line.ignored)
    }

    /// Whether an authentic datagram is news, and meant for this life of ours.
    pub(super) fn admits(&mut self, peer: PeerId, side: &PeerSide, got: &LeaseDatagram) -> bool {
        let (me, voters) = (self.me, self.voters);
        let Some(line) = self.lines.get_mut(usize::from(peer.0)) else {
            return false;
        };
        let fresh = line.heard.0 != got.incarnation || line.heard.1 < got.sequence;
        let ours = got.receiver == me.incarnation && got.voters == voters;
        let theirs = got.sender == side.name && got.incarnation == side.incarnation;
        if fresh && ours && theirs {
            line.heard = (got.incarnation, got.sequence);
            return true;
        }
        line.ignored = line.ignored.saturating_add(1);
        false
    }

    /// Says something to a peer, when this input has been dealt with.
    pub(super) fn say(&mut self, peer: PeerId, message: LeaseMessage) {
        if let Some(line) = self.lines.get_mut(usize::from(peer.0)) {
            line.outgoing.push(message);
        }
    }

    /// The next answer of our acceptor, and who it is for.
    pub(super) fn poll_answer(&mut self) -> Option<(NodeName, LeaseMessage)> {
        self.acceptor.poll_answer()
    }

    /// Sends what has been said. A peer that has not introduced itself could
    /// not check it.
    pub(super) fn flush(&mut self, peers: &[PeerSide], out: &mut Outbox) {
        for ((peer, line), side) in (0..).map(PeerId).zip(&mut self.lines).zip(peers) {
            let mut left = std::mem::take(&mut line.outgoing);
            if side.incarnation == 0 {
                continue;
            }
            while !left.is_empty() {
                let rest = left.split_off(LeaseDatagram::fitting(&left));
                line.sent = line.sent.saturating_add(1);
                let datagram = LeaseDatagram {
                    sender: self.me.node,
                    incarnation: self.me.incarnation,
                    receiver: side.incarnation,
                    sequence: line.sent,
                    voters: self.voters,
                    messages: left,
                };
                out.act(Action::Lease(LeaseAction::Send { peer, datagram }));
                left = rest;
            }
        }
    }

    fn line(&self, peer: PeerId) -> Option<&Line> {
        self.lines.get(usize::from(peer.0))
    }
}

/// Where a node's messages about leases go: other voters, and servers that
/// need to know when a lease ends.
#[derive(Debug, Clone, Default)]
pub(super) struct Audience(BTreeMap<NodeName, PeerId>);

impl Audience {
    pub(super) fn new(config: &NodeConfig, servers: &[NodeName]) -> Self {
        let wanted = |name: &NodeName| config.lease.voters.contains(name) || servers.contains(name);
        let peers = (0..).map(PeerId).zip(&config.peers);
        let chosen = peers.filter(|(_, peer)| wanted(&peer.name));
        Self(chosen.map(|(id, peer)| (peer.name, id)).collect())
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.0.values().copied()
    }
}
