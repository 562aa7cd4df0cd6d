//! What peers say that is not considered: counted by reason, and told once.
//!
//! The rules are in [`scrutiny`](super::scrutiny).

mod reasons;

use std::borrow::Cow;

use godwit_wire::{LeaseMessage, Message, MoveStep, NodeName, Role, ShareClaim, ShareId};

use super::scrutiny::Author;
use super::{Node, PeerNews};
use crate::detector::State;
use crate::lease::View;
use crate::{MonoTime, PeerId};

pub use reasons::Doubt;
pub(super) use reasons::Doubts;

impl Node {
    /// Whether a peer that says in a heartbeat that it owns a share may: for those who have
    /// no part in it. What may not is counted when the heartbeat is handled.
    pub fn may_own(&self, peer: PeerId, claim: &ShareClaim, now: MonoTime) -> bool {
        let view = self.view(claim.share);
        self.peer_name(peer).is_some_and(|node| {
            let verdict = self.scrutiny.judge_claim(node, claim, view, now);
            claim.role == Role::Owner && verdict.is_ok()
        })
    }

    /// Whether a claim in a heartbeat is to be followed.
    pub(super) fn considers(
        &mut self,
        peer: PeerId,
        incarnation: u64,
        claim: &ShareClaim,
        now: MonoTime,
    ) -> bool {
        let Some(node) = self.peer_name(peer) else {
            return false;
        };
        let view = self.view(claim.share);
        if let Err(doubt) = self.scrutiny.judge_claim(node, claim, view, now) {
            self.doubt(peer, doubt, now);
            return false;
        }
        self.scrutiny.note(node, incarnation, claim);
        true
    }

    /// Whether a message about a share is to be followed. Of those that are about another
    /// epoch than our own only these are.
    pub(super) fn considers_message(
        &mut self,
        peer: PeerId,
        message: &Message,
        now: MonoTime,
    ) -> bool {
        let epoch = if let Message::Claim(claim) = message {
            claim.epoch
        } else if let Message::Move(_, MoveStep::Ready { successor }) = message {
            *successor
        } else {
            return true;
        };
        let Some(share) = message.share() else {
            return true;
        };
        let verdict = self
            .scrutiny
            .judge_epoch(share, epoch, self.view(share), now);
        if let Err(doubt) = verdict {
            self.doubt(peer, doubt, now);
        }
        verdict.is_ok()
    }

    /// A message about a lease, as far as it is to be followed.
    pub(super) fn examine<'a>(
        &mut self,
        peer: PeerId,
        message: &'a LeaseMessage,
        now: MonoTime,
    ) -> Option<Cow<'a, LeaseMessage>> {
        let side = self.peers.get(usize::from(peer.0))?;
        let from = Author {
            node: side.name,
            differs: side.config_differs,
        };
        let view = self.view(message.share());
        let timely = if side.sent_late(message, now) {
            Err(Doubt::Late)
        } else {
            Ok(())
        };
        let verdict = timely.and_then(|()| self.scrutiny.judge(from, message, view, now));
        if let Err(doubt) = verdict {
            self.doubt(peer, doubt, now);
            return None;
        }
        let is_silent = |node| self.is_silent(node);
        let (believed, verdict) = self.scrutiny.without_void(message, view, is_silent, now);
        if let Err(doubt) = verdict {
            self.doubt(peer, doubt, now);
        }
        Some(believed)
    }

    /// Whether a peer is not heard, and has not said that it will be again.
    fn is_silent(&self, node: NodeName) -> bool {
        let side = self.peers.iter().find(|side| side.name == node);
        side.is_some_and(|side| match side.detector.state() {
            State::Alive | State::Excused => false,
            State::Unknown | State::Departed | State::Failed => true,
        })
    }

    fn view(&self, share: ShareId) -> Option<View<'_>> {
        self.ballots.as_ref()?.view(share)
    }

    /// Counts it. People hear of each reason once in a life of the peer; not while it has
    /// another file, which may be right.
    fn doubt(&mut self, peer: PeerId, doubt: Doubt, now: MonoTime) {
        let Some(side) = self.peer_mut(peer) else {
            return;
        };
        let differs = side.config_differs;
        if side.doubts.count(doubt) && !differs {
            self.tell_peer(
                peer,
                PeerNews::Misbehaved {
                    what: doubt.sentence(),
                },
                now,
            );
        }
    }
}

#[cfg(test)]
mod tests;
