//! What arrives over control links, and the first words on a new one.

use godwit_wire::{ConfigLine, GoodbyeReason, Hello, Message, NodeName, PeerMessage};

use super::differences::compare;
use super::peer::{LinkState, PeerSide};
use super::{Link, Node, PeerNews, peers};
use crate::handoff::Speaker;
use crate::{MonoTime, PeerId};

impl Node {
    /// A message arrived on the control link.
    pub fn handle_message(&mut self, peer: PeerId, message: &Message, now: MonoTime) {
        self.note_power(peer);
        let Some(side) = self.peer_mut(peer) else {
            return;
        };
        match (side.link, message) {
            (LinkState::Silent, Message::Peer(PeerMessage::Hello(hello))) => {
                self.handle_hello(peer, hello, now);
                let side = self.peer_mut(peer);
                if side.is_some_and(|side| side.link == LinkState::Ready) {
                    self.tell_claims(peer);
                }
            }
            (LinkState::Silent, _) => self.blame(peer, "spoke before its hello", now),
            (LinkState::Ready, Message::Peer(message)) => {
                self.handle_peer_message(peer, message, now);
            }
            (LinkState::Ready, _) => {
                let incarnation = side.incarnation;
                self.handle_share_message(peer, incarnation, message, now);
            }
            (LinkState::Down | LinkState::Incompatible, _) => {}
        }
        self.settle(now);
    }

    /// The control link to a peer came up or went down. A new link that
    /// replaces an old one is `Up` once more.
    pub fn handle_link(&mut self, peer: PeerId, link: Link, now: MonoTime) {
        let Some(side) = self.peer_mut(peer) else {
            return;
        };
        let was = side.link;
        match link {
            Link::Up => {
                side.link = LinkState::Silent;
                self.note_power(peer);
            }
            Link::Down if was == LinkState::Down => return,
            Link::Down => {
                side.link = LinkState::Down;
                if was == LinkState::Ready {
                    self.tell_peer(peer, PeerNews::LinkDown, now);
                }
            }
        }
        for share in &mut self.shares {
            share.handle_link_change(peer);
        }
        self.lose_handoffs(peer, now);
        if link == Link::Up {
            self.introduce(peer);
        }
        self.settle(now);
    }

    /// From a peer that has introduced itself.
    fn handle_peer_message(&mut self, peer: PeerId, message: &PeerMessage, now: MonoTime) {
        match message {
            PeerMessage::Hello(hello) => self.handle_hello(peer, hello, now),
            PeerMessage::Goodbye { reason } => self.handle_goodbye(peer, *reason, now),
            // Who does not know what its own file says can't compare.
            PeerMessage::ConfigLines(_) if self.lines.is_empty() => {}
            PeerMessage::ConfigLines(theirs) => {
                let differences = compare(&self.lines, theirs);
                if let Some(side) = self.peer_mut(peer) {
                    side.config_differs = !differences.is_empty();
                    side.differences = differences;
                }
            }
        }
    }

    fn handle_hello(&mut self, peer: PeerId, hello: &Hello, now: MonoTime) {
        let digest = self.hello.config_digest;
        let Some(side) = self.peer_mut(peer) else {
            return;
        };
        if side.name != hello.name {
            self.blame(peer, "introduced itself under another name", now);
            return;
        }
        let (was, reborn) = (side.link, side.incarnation != hello.incarnation);
        if !side.greet(hello) {
            let news = PeerNews::Incompatible {
                min_version: hello.min_version,
                max_version: hello.max_version,
            };
            self.tell_peer(peer, news, now);
            return;
        }
        side.detector.handle_hello(hello.incarnation, now);
        if was != LinkState::Ready {
            // Not before: who dials learns last that its certificate is refused.
            self.tell_peer(peer, PeerNews::LinkUp, now);
        }
        self.compare_births(now);
        let Some(side) = self.peer_mut(peer) else {
            return;
        };
        let takes_lines = side.takes_lines;
        side.config_differs = hello.config_digest != digest;
        side.differences.clear();
        if side.config_differs {
            self.tell_peer(peer, PeerNews::ConfigDiffers, now);
            if takes_lines && !self.lines.is_empty() {
                let lines = Message::Peer(PeerMessage::ConfigLines(self.lines.clone()));
                self.out.send(peer, lines);
            }
        }
        if reborn {
            for share in &mut self.shares {
                share.forget_claim(peer);
                share.announce_again(now);
            }
        }
    }

    fn handle_goodbye(&mut self, peer: PeerId, reason: GoodbyeReason, now: MonoTime) {
        if let Some(side) = self.peer_mut(peer) {
            match reason {
                GoodbyeReason::Restart => side.detector.handle_excuse(now),
                GoodbyeReason::Detach | GoodbyeReason::Shutdown => side.detector.handle_farewell(),
            }
        }
        self.tell_peer(peer, PeerNews::Goodbye { reason }, now);
        self.with_shares(now, |share, context| {
            share.handle_goodbye(peer, reason, context);
        });
    }

    fn handle_share_message(
        &mut self,
        peer: PeerId,
        incarnation: u64,
        message: &Message,
        now: MonoTime,
    ) {
        if let Message::Handoff(handoff) = message {
            let life = handoff.epoch;
            let by = Speaker { peer, life };
            let which = (handoff.share, handoff.id);
            return self.handle_handoff(by, which, &handoff.step, now);
        }
        if let Message::Claim(claim) = message {
            self.note_named(peer, claim.share);
        }
        if !self.considers_message(peer, message, now) {
            return;
        }
        let Some(id) = message.share() else {
            return;
        };
        let mine = self.with_share(id, now, |share, context| {
            share.handle_message(peer, incarnation, message, context);
        });
        // Only one of the two files may have the service.
        let differs = self.peer_mut(peer).is_some_and(|side| side.config_differs);
        if !mine && !differs {
            self.blame(peer, "spoke of a share that is not common", now);
        }
    }

    /// The next life of this node goes by another file. Who is not in that has no link to it
    /// and hears of the difference now. Call it before the goodbye.
    pub fn take_leave(&mut self, next: &[ConfigLine], stays: impl Fn(NodeName) -> bool) {
        let leaves = |side: &PeerSide| {
            side.link == LinkState::Ready && side.takes_lines && !stays(side.name)
        };
        let leaving: Vec<_> = peers(&self.peers)
            .filter_map(|(peer, side)| leaves(side).then_some(peer))
            .collect();
        for peer in leaving {
            self.out
                .send(peer, Message::Peer(PeerMessage::ConfigLines(next.to_vec())));
        }
    }

    /// Says who we are, as the first message of a link.
    fn introduce(&mut self, peer: PeerId) {
        self.out
            .send(peer, Message::Peer(PeerMessage::Hello(self.hello.clone())));
    }

    /// Says what we do, to a peer whose version is known.
    fn tell_claims(&mut self, peer: PeerId) {
        for share in &self.shares {
            if share.has_member(peer) {
                self.out.send(peer, Message::Claim(share.claim()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
