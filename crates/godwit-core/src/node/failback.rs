//! A share that goes back to its primary by itself, by a planned move.
//!
//! It does so when the primary has been in sync for a while without a break: what
//! comes and goes, or is held off, is not moved to. A primary that an operator has
//! moved the share away from has not come back, so the share stays where it is
//! until that node leaves the in-sync set and joins it again.

use std::time::Duration;

use super::action::{Action, MoveAction};
use super::config::{NodeConfig, ShareConfig};
use super::context::Context;
use super::moving::Moving;
use super::peer::PeerSide;
use super::share::ShareSide;
use super::status::FailbackStatus;
use super::wish::{MoveCause, MoveError, MoveWish};
use crate::share::State;
use crate::{MonoTime, PeerId};

/// When a share of this node is to go home.
#[derive(Debug, Clone)]
pub(super) struct Failback {
    /// How long the primary must have been in sync.
    after: Duration,
    primary: PeerId,
    /// As the owner: when it will have been, or the move is tried again.
    due: Option<MonoTime>,
    /// The move home was asked for, and has no answer yet.
    asked: bool,
    /// Why the last one was refused.
    refused: Option<MoveError>,
}

impl Failback {
    /// `None` if the share does not go home, or is there.
    pub(super) fn new(share: &ShareConfig, config: &NodeConfig) -> Option<Self> {
        let after = share.failback?;
        let mut peers = (0..).map(PeerId).zip(&config.peers);
        let (primary, _) = peers.find(|(_, peer)| peer.name == share.primary)?;
        Some(Self {
            after,
            primary,
            due: None,
            asked: false,
            refused: None,
        })
    }
}

impl ShareSide {
    /// `peer` is in sync from now on, other than by a move.
    pub(super) fn await_failback(&mut self, peer: PeerId, now: MonoTime) {
        if let Some(failback) = &mut self.failback
            && failback.primary == peer
        {
            failback.due = Some(now.saturating_add(failback.after));
            failback.refused = None;
        }
    }

    /// What has become of a move: of the one home, if that was asked for.
    pub(super) fn note_failback(&mut self, error: Option<MoveError>) {
        if let Some(failback) = &mut self.failback
            && std::mem::take(&mut failback.asked)
        {
            failback.refused = error;
        }
    }

    /// Why the share is not home although it could be, and when that is tried again.
    pub(super) fn failback_status(&self, peers: &[PeerSide]) -> Option<FailbackStatus> {
        let again = self.failback_at()?;
        let failback = self.failback.as_ref()?;
        let primary = peers.get(usize::from(failback.primary.0))?;
        Some(FailbackStatus {
            to: primary.name,
            refused: failback.refused?,
            again,
        })
    }

    /// The share leaves this node, or has come to it by a move.
    pub(super) const fn forget_failback(&mut self) {
        if let Some(failback) = &mut self.failback {
            failback.due = None;
            failback.asked = false;
            failback.refused = None;
        }
    }

    /// When the share goes home, as far as is known.
    pub(super) fn failback_at(&self) -> Option<MonoTime> {
        let failback = self.failback.as_ref()?;
        let owns = self.machine.state() == State::Owner;
        let settled = owns && matches!(self.moving, Moving::No);
        failback
            .due
            .filter(|_| settled && self.in_sync.contains(failback.primary))
    }

    /// Asks that the share moves home if it is time. A move that is refused, because flows
    /// would be lost or for another reason, is tried again as much later.
    pub(super) fn settle_failback(&mut self, context: &mut Context<'_>) {
        if self.failback_at().is_none_or(|due| context.now < due) {
            return;
        }
        let Some(failback) = &mut self.failback else {
            return;
        };
        failback.due = Some(context.now.saturating_add(failback.after));
        failback.asked = true;
        let primary = context.peer_name(failback.primary);
        let wish = MoveWish {
            to: primary,
            force: false,
            cause: MoveCause::Failback,
        };
        let share = self.id;
        context
            .out
            .act(Action::Move(share, MoveAction::Ask { wish }));
    }
}
