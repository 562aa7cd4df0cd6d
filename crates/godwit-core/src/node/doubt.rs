//! What peers say that is not considered: counted by reason, and told once.
//!
//! The rules are in [`scrutiny`](super::scrutiny).

use std::borrow::Cow;

use godwit_wire::{LeaseMessage, Message, MoveStep, NodeName, Role, ShareClaim, ShareId};

use super::scrutiny::Author;
use super::{Node, PeerNews};
use crate::detector::State;
use crate::lease::View;
use crate::{MonoTime, PeerId};

/// Why what a peer says of a share is not considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// It is no server of that share, as far as our file knows.
    NoServer,
    /// The epoch is of more than a day from now.
    FarAhead,
    /// The epoch is not one of those that are its own.
    OutOfTurn,
    /// The lease that it calls void is in force, as far as is known here.
    NotVoid,
    /// The proposal was under way for so long that it counts as silence.
    Late,
    /// It answers, and is neither a voter nor a server of that share.
    NoVoter,
}

impl Doubt {
    /// Every doubt.
    pub const ALL: [Self; 6] = [
        Self::NoServer,
        Self::FarAhead,
        Self::OutOfTurn,
        Self::NotVoid,
        Self::Late,
        Self::NoVoter,
    ];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoServer => "no_server",
            Self::FarAhead => "far_ahead",
            Self::OutOfTurn => "out_of_turn",
            Self::NotVoid => "not_void",
            Self::Late => "late",
            Self::NoVoter => "no_voter",
        }
    }

    /// What the peer has done, for people.
    pub(super) const fn sentence(self) -> &'static str {
        match self {
            Self::NoServer => "owns or wants a share that it is no server of",
            Self::FarAhead => "claims an epoch of more than a day from now: a clock is wrong",
            Self::OutOfTurn => "wants a share under an epoch of another node",
            Self::NotVoid => "calls a lease void that is in force",
            Self::Late => "renews a lease long after it has asked for that: a queue on the way",
            Self::NoVoter => "answers a question that it was not asked",
        }
    }
}

/// How often each doubt arose about one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Doubts {
    counts: [u64; Doubt::ALL.len()],
    told: [bool; Doubt::ALL.len()],
}

impl Doubts {
    pub(super) const NONE: Self = Self {
        counts: [0; Doubt::ALL.len()],
        told: [false; Doubt::ALL.len()],
    };

    /// Counts one. Whether people are to hear of it: once for each life of the peer.
    pub(super) fn count(&mut self, doubt: Doubt) -> bool {
        let mut places = self.counts.iter_mut().zip(&mut self.told).zip(Doubt::ALL);
        let place = places.find(|(_, other)| *other == doubt);
        place.is_some_and(|((count, told), _)| {
            *count = count.saturating_add(1);
            !std::mem::replace(told, true)
        })
    }

    /// The peer's agent was started anew.
    pub(super) const fn tell_again(&mut self) {
        self.told = [false; Doubt::ALL.len()];
    }

    /// Those that arose.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Doubt, u64)> {
        let all = Doubt::ALL.into_iter().zip(self.counts);
        all.filter(|(_, count)| *count > 0)
    }
}

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
        let epoch = if let Message::ShareState(claim) = message {
            claim.epoch
        } else if let Message::Move {
            step: MoveStep::Ready { successor },
            ..
        } = message
        {
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
