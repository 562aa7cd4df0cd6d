//! A share that goes back to its primary by itself, by a planned move.
//!
//! It does so when the primary has been in sync for a while without a break: what
//! comes and goes, or is held off, is not moved to. A primary that an operator has
//! moved the share away from has not come back, so the share stays where it is
//! until that node leaves the in-sync set and joins it again.
//!
//! A share that is new to the cluster may begin here because this node had it in its file
//! before the primary had. Nobody has failed then, so it goes there as soon as the primary
//! has it too and is in sync, also where shares do not go back by themselves:
//!
//! ```text
//!  Open ── begins here, and the primary is heard and does not have it ──► Here
//!    └──── begins otherwise, or after another owner ──► Had ◄── the same ───┘
//! ```

use std::time::Duration;

use godwit_wire::ShareId;

use super::Node;
use super::action::{Action, MoveAction};
use super::config::{NodeConfig, ShareConfig};
use super::context::Context;
use super::moving::Moving;
use super::peer::PeerSide;
use super::share::ShareSide;
use super::status::FailbackStatus;
use super::wish::{MoveCause, MoveError, MoveWish};
use crate::share::{Change, State};
use crate::{MonoTime, PeerId};

/// The first pause between two attempts to bring a new share to its primary; doubled up to
/// [`LONGEST_PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Whether the share has had a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    /// Nobody has owned it, as far as this node knows.
    Open,
    /// It has begun here, as its primary did not have it yet.
    Here,
    /// It has, or had a chance to.
    Had,
}

/// When a share of this node is to go home.
#[derive(Debug, Clone)]
pub(super) struct Failback {
    /// How long the primary must have been in sync; `None`: it does not go back.
    after: Option<Duration>,
    primary: PeerId,
    first: First,
    /// The primary has said that it has the share in its file, believed or not.
    named: bool,
    /// Of a share that goes there for the first time: until the next attempt.
    pause: Duration,
    /// The same: others of its address are to go with it, and can't yet.
    waits: bool,
    /// As the owner: when it will have been, or the move is tried again.
    due: Option<MonoTime>,
    /// The move home was asked for, and has no answer yet.
    asked: bool,
    /// Why the last one was refused.
    refused: Option<MoveError>,
}

impl Failback {
    /// `None` if this is its home.
    pub(super) fn new(share: &ShareConfig, config: &NodeConfig) -> Option<Self> {
        let mut peers = (0..).map(PeerId).zip(&config.peers);
        let (primary, _) = peers.find(|(_, peer)| peer.name == share.primary)?;
        Some(Self {
            after: share.failback,
            primary,
            first: match share.resume {
                None => First::Open,
                Some(_) => First::Had,
            },
            named: false,
            pause: SHORTEST_PAUSE,
            waits: false,
            due: None,
            asked: false,
            refused: None,
        })
    }
}

impl ShareSide {
    /// `peer` is in sync from now on, other than by a move.
    pub(super) fn await_failback(&mut self, peer: PeerId, now: MonoTime) {
        if let Some(failback) = &mut self.moves.failback
            && failback.primary == peer
        {
            let after = match failback.first {
                First::Here => Some(Duration::ZERO),
                First::Open | First::Had => failback.after,
            };
            failback.due = after.map(|after| now.saturating_add(after));
            failback.pause = SHORTEST_PAUSE;
            failback.refused = None;
        }
    }

    /// `peer` has the share in its file: it says so over each new link, and in its heartbeats
    /// at least while a server listens.
    pub(super) fn note_named(&mut self, peer: PeerId) {
        if let Some(failback) = &mut self.moves.failback {
            failback.named |= failback.primary == peer;
        }
    }

    /// As the owner from now on: whether the share has begun here for want of its primary.
    pub(super) fn note_begin(&mut self, change: Change, context: &Context<'_>) {
        let Some(failback) = &mut self.moves.failback else {
            return;
        };
        let begins = matches!(change.prev, State::Starting { .. }) && failback.first != First::Had;
        let lacks = context.is_alive(failback.primary) && !failback.named;
        failback.first = if begins && lacks {
            First::Here
        } else {
            First::Had
        };
    }

    /// The primary, if the share has begun here for want of it.
    fn first_home(&self) -> Option<PeerId> {
        let failback = self.moves.failback.as_ref()?;
        let is_here = failback.first == First::Here && self.machine.state() == State::Owner;
        is_here.then_some(failback.primary)
    }

    /// What has become of a move: of the one home, if that was asked for.
    pub(super) fn note_failback(&mut self, error: Option<MoveError>) {
        if let Some(failback) = &mut self.moves.failback
            && std::mem::take(&mut failback.asked)
        {
            failback.refused = error;
        }
    }

    /// Why the share is not home although it could be, and when that is tried again.
    pub(super) fn failback_status(&self, peers: &[PeerSide]) -> Option<FailbackStatus> {
        let again = self.failback_at()?;
        let failback = self.moves.failback.as_ref()?;
        let primary = peers.get(usize::from(failback.primary.0))?;
        Some(FailbackStatus {
            to: primary.name,
            refused: failback.refused?,
            again,
        })
    }

    /// The share leaves this node, or has come to it by a move.
    pub(super) const fn forget_failback(&mut self) {
        if let Some(failback) = &mut self.moves.failback {
            failback.due = None;
            failback.asked = false;
            failback.refused = None;
        }
    }

    /// When the share goes home, as far as is known.
    pub(super) fn failback_at(&self) -> Option<MonoTime> {
        let failback = self.moves.failback.as_ref()?;
        let owns = self.machine.state() == State::Owner;
        let settled = owns && matches!(self.moves.moving, Moving::No);
        failback
            .due
            .filter(|_| settled && !failback.waits && self.in_sync.contains(failback.primary))
    }

    /// Asks that the share moves home if it is time. A move that is refused, because flows
    /// would be lost or for another reason, is tried again as much later.
    pub(super) fn settle_failback(&mut self, context: &mut Context<'_>) {
        if self.failback_at().is_none_or(|due| context.now < due) {
            return;
        }
        let Some(failback) = &mut self.moves.failback else {
            return;
        };
        let cause = match failback.first {
            First::Here => MoveCause::FirstHome,
            First::Open | First::Had => MoveCause::Failback,
        };
        let pause = match (cause, failback.after) {
            (MoveCause::FirstHome, _) | (_, None) => failback.pause,
            (_, Some(after)) => after,
        };
        failback.due = Some(context.now.saturating_add(pause));
        failback.pause = (failback.pause * 2).min(LONGEST_PAUSE);
        if !context.is_ready(failback.primary) {
            return;
        }
        failback.asked = true;
        let wish = MoveWish {
            to: context.peer_name(failback.primary),
            force: false,
            cause,
        };
        let share = self.id;
        context
            .out
            .act(Action::Move(share, MoveAction::Ask { wish }));
    }
}

impl Node {
    pub(super) fn note_named(&mut self, peer: PeerId, share: ShareId) {
        let mut shares = self.shares.iter_mut();
        if let Some(share) = shares.find(|it| it.id == share) {
            share.note_named(peer);
        }
    }

    /// The shares that this node owns because they have begun here for want of their
    /// primaries; for [`beginning`](Self::beginning) of its next life.
    pub fn begun(&self) -> Vec<ShareId> {
        let begun = self.shares.iter().filter(|it| it.first_home().is_some());
        begun.map(|share| share.id).collect()
    }

    /// The same, if an earlier life in this process has had these begin here.
    #[must_use]
    pub fn beginning(mut self, begun: &[ShareId]) -> Self {
        let shares = self.shares.iter_mut();
        for share in shares.filter(|share| begun.contains(&share.id)) {
            let owns = share.machine.state() == State::Owner;
            if let Some(failback) = share.moves.failback.as_mut().filter(|_| owns) {
                failback.first = First::Here;
                failback.due = Some(MonoTime::ZERO);
            }
        }
        self
    }

    /// Shares of one address go to their first home together. They stay if one of them has had
    /// a home, or is to be elsewhere.
    pub(super) fn settle_first_homes(&mut self) {
        for (id, mates) in &self.mates {
            let Some(share) = self.shares.iter().find(|share| share.id == *id) else {
                continue;
            };
            let Some(primary) = share.first_home() else {
                continue;
            };
            let here = self
                .shares
                .iter()
                .filter(|share| mates.contains(&share.id) && share.machine.state() == State::Owner);
            let here: Vec<_> = here.collect();
            let stays = here.iter().any(|mate| mate.first_home() != Some(primary));
            let waits = here.iter().any(|mate| !mate.in_sync.contains(primary));
            let share = self.shares.iter_mut().find(|share| share.id == *id);
            if let Some(failback) = share.and_then(|share| share.moves.failback.as_mut()) {
                failback.waits = waits && !stays;
                if stays {
                    failback.first = First::Had;
                    failback.due = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
