//! Planned moves: the owner and its standby change places.
//!
//! ```text
//!  owner                                          standby
//!  asked to: Asked
//!     ── Move: prepare ─────────────────────────► has the twins, a server listens
//!     ◄──────────────── Move: ready (epoch e') ── Incoming
//!  CheckFlows: all of them protected?
//!  ResetUnprotected, if forced
//!  Set (shadow), HandOver: Released
//!     ── claim: shadow, under e' ───────────────► is granted the lease, or just claims:
//!                                                 Set (owner), Announce, Resume
//!     ◄──────────────────── claim: owner, e' ────
//!  Followed
//!     ◄──────────────── Move: ready (epoch e') ── the generation goes on: the share has moved
//! ```
//!
//! The claim under e' is the commit. Before it only the owner may go on; after it
//! only the standby, unless it fails or says that it will not, and then the old
//! owner takes the share over as from any owner that fails. The claim is in each
//! heartbeat, so it can't be lost. The generation goes on:
//! both sides hold the same flows as before.
//!
//! An owner that stands still between its last words and its claim may have been
//! taken for one that failed. Whom it let the share go to owns it then, but as
//! after any takeover: nobody is in sync with it. So the old owner calls the share
//! moved when the new one has said that the generation goes on.

use std::time::Duration;

use godwit_wire::{
    Epoch, Generation, Message, MoveRefusal, MoveStep, NodeName, Role, Scope, ShareClaim, Stay,
};

use super::action::{Action, MoveAction};
use super::context::Context;
use super::event::ShareNews;
use super::leased::ShareLease;
use super::share::ShareSide;
use super::wish::{FlowCheck, MoveError};
use crate::share::{Change, Ownership, Reason, State};
use crate::{MonoTime, PeerId};

/// How long the standby may take to answer, and flows to become protected.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often flows are looked at that are about to be protected.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Which side of a move this node is on, if any.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Moving {
    #[default]
    No,
    /// As the owner: still speaks.
    Asked(Asked),
    /// As the owner that was: silent, and the other has not been seen to own.
    Released(Released),
    /// As the owner that was: the other owns, and has not said yet whether the
    /// generation goes on.
    Followed(Followed),
    /// As the standby: has said that it is ready.
    Incoming(Incoming),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    to: PeerId,
    generation: Generation,
    /// Whether flows that can't move are to be reset.
    force: bool,
    until: MonoTime,
    /// The epoch to be, once the standby has answered.
    successor: Option<Epoch>,
    /// When flows are looked at again.
    look_at: Option<MonoTime>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Released {
    to: PeerId,
    /// Our own epoch, which nobody has followed yet as far as we know.
    from_epoch: Epoch,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Followed {
    to: PeerId,
    /// When it should have said so.
    until: MonoTime,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Incoming {
    from: PeerId,
    generation: Generation,
    successor: Epoch,
    /// The owner has let go; the voters are being asked.
    taking: bool,
    /// The owner has let go or called it off by then; `None` after that. A claim
    /// that comes later is followed all the same.
    until: Option<MonoTime>,
}

impl Moving {
    /// The epoch under which this node owned last, if it has kept every flow
    /// and nobody else may have owned since.
    pub(super) const fn kept_epoch(&self) -> Option<Epoch> {
        match self {
            Self::Released(released) => Some(released.from_epoch),
            Self::No | Self::Asked(_) | Self::Followed(_) | Self::Incoming(_) => None,
        }
    }

    /// Whether the owner is about to let go: it releases its lease with that, and
    /// the word of it may come before its claim.
    pub(super) fn is_expected(&self) -> bool {
        match self {
            Self::Incoming(incoming) => !incoming.taking && incoming.until.is_some(),
            Self::No | Self::Asked(_) | Self::Released(_) | Self::Followed(_) => false,
        }
    }

    /// Whether a standby may leave the in-sync set: the owner does not count on it. Nobody
    /// says that a move was called off for which it was ready.
    pub(super) const fn is_settled(&self) -> bool {
        match self {
            Self::No => true,
            Self::Incoming(incoming) => !incoming.taking && incoming.until.is_none(),
            Self::Asked(_) | Self::Released(_) | Self::Followed(_) => false,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<MonoTime> {
        match self {
            Self::Asked(asked) => Some(asked.look_at.unwrap_or(asked.until)),
            Self::Followed(followed) => Some(followed.until),
            Self::Incoming(incoming) => incoming.until,
            Self::No | Self::Released(_) => None,
        }
    }
}

impl ShareSide {
    /// Somebody asks the share to move. The answer is [`MoveAction::Ended`].
    pub(super) fn handle_move(&mut self, to: NodeName, force: bool, context: &mut Context<'_>) {
        match self.may_move(to, context) {
            Ok(peer) => {
                let generation = self.in_sync.generation();
                self.moves.moving = Moving::Asked(Asked {
                    to: peer,
                    generation,
                    force,
                    until: context.now.saturating_add(PATIENCE),
                    successor: None,
                    look_at: None,
                });
                self.say_move(
                    peer,
                    self.machine.epoch(),
                    generation,
                    MoveStep::Prepare,
                    context,
                );
            }
            Err(error) => self.answer(Err(error), context),
        }
    }

    fn may_move(&self, to: NodeName, context: &Context<'_>) -> Result<PeerId, MoveError> {
        match (self.machine.state(), self.moves.moving) {
            (_, Moving::Asked(_) | Moving::Released(_) | Moving::Followed(_)) => {
                return Err(MoveError::AlreadyMoving);
            }
            (State::Owner, _) => {}
            (
                State::Starting { .. }
                | State::Standby { .. }
                | State::Shadow { .. }
                | State::Quitting,
                _,
            ) => {
                let owner = self.owner().map(|owner| context.peer_name(owner.peer));
                return Err(MoveError::NotOwner { owner });
            }
        }
        if to == context.name {
            return Err(MoveError::AlreadyThere);
        }
        let peer = self.members().find(|peer| context.peer_name(*peer) == to);
        let peer = peer.ok_or(MoveError::NotAMember)?;
        if !context.is_ready(peer) {
            return Err(MoveError::TargetDown);
        }
        let leaving = self
            .lease
            .as_ref()
            .is_some_and(|lease| lease.is_leaving(peer));
        if !self.in_sync.contains(peer) || leaving {
            return Err(MoveError::NotInSync);
        }
        if self.is_silent(context.now) || self.server.released_until.is_some() {
            return Err(MoveError::NotInForce);
        }
        Ok(peer)
    }

    /// As the owner: what the standby says of it.
    pub(super) fn handle_move_answer(
        &mut self,
        peer: PeerId,
        generation: Generation,
        step: MoveStep,
        context: &mut Context<'_>,
    ) {
        let Moving::Asked(asked) = &mut self.moves.moving else {
            return;
        };
        if asked.to != peer || asked.generation != generation {
            return;
        }
        match step {
            MoveStep::Ready { successor } => {
                asked.successor = Some(successor);
                self.look(context);
            }
            MoveStep::Refused { reason } => self.call_off(MoveError::Target(reason), context),
            MoveStep::Prepare => {}
        }
    }

    fn look(&mut self, context: &mut Context<'_>) {
        if let Moving::Asked(asked) = &mut self.moves.moving {
            asked.look_at = None;
            let (share, peer) = (self.id, asked.to);
            context
                .out
                .act(Action::Move(share, MoveAction::CheckFlows { peer }));
        }
    }

    /// What [`MoveAction::CheckFlows`] has found.
    pub(super) fn handle_flow_check(&mut self, check: FlowCheck, context: &mut Context<'_>) {
        let Moving::Asked(asked) = &mut self.moves.moving else {
            return;
        };
        let Some(successor) = asked.successor else {
            return;
        };
        let lost = if asked.force { 0 } else { check.unprotected };
        if check.mate_stays {
            self.call_off(MoveError::Mate, context);
        } else if lost > 0 {
            self.call_off(MoveError::Unprotected { flows: lost }, context);
        } else if check.confirming > 0 && context.now < asked.until {
            asked.look_at = Some(context.now.saturating_add(LOOK_AGAIN));
        } else if check.confirming > 0 && !asked.force {
            let flows = check.confirming;
            self.call_off(MoveError::Unprotected { flows }, context);
        } else {
            self.let_share_go(successor, context);
        }
    }

    /// The point of no return.
    fn let_share_go(&mut self, successor: Epoch, context: &mut Context<'_>) {
        let Moving::Asked(asked) = self.moves.moving else {
            return;
        };
        let Some(asked) = self.still_possible(asked, context) else {
            return;
        };
        let owner = Ownership {
            peer: asked.to,
            epoch: successor,
        };
        let from_epoch = self.machine.epoch();
        self.moves.moving = Moving::Released(Released {
            to: asked.to,
            from_epoch,
        });
        self.moves.forced = asked.force;
        self.machine.handle_released(owner, asked.generation);
    }

    /// The last words to clients that lose their connection, if any, as long as
    /// this node may speak. Then silence, the last words to the new owner, the
    /// lease, and the claim.
    pub(super) fn hand_over(&mut self, context: &mut Context<'_>) {
        self.in_sync.clear();
        self.forget_failback();
        self.flows.clear();
        self.standbys.requests.clear();
        self.stop_schedules();
        self.asked = true;
        if std::mem::take(&mut self.moves.forced) {
            context
                .out
                .act(Action::Move(self.id, MoveAction::ResetUnprotected));
        }
        self.write_share(context.out);
        context.out.act(Action::Move(self.id, MoveAction::HandOver));
        if let Some(lease) = &mut self.lease {
            lease.hand_over(context.now);
        }
        self.broadcast(context);
    }

    /// Whether nothing has come between since the target was asked.
    fn still_possible(&mut self, asked: Asked, context: &mut Context<'_>) -> Option<Asked> {
        let error = if self.machine.state() != State::Owner {
            MoveError::Interrupted
        } else if !self.in_sync.contains(asked.to)
            || !self.in_sync.is_protected(asked.generation)
            || self.lease.as_ref().is_some_and(|l| l.is_leaving(asked.to))
        {
            MoveError::NotInSync
        } else if !context.is_ready(asked.to) {
            MoveError::TargetDown
        } else if self.is_silent(context.now) || self.server.released_until.is_some() {
            MoveError::NotInForce
        } else {
            return Some(asked);
        };
        self.call_off(error, context);
        None
    }

    fn call_off(&mut self, error: MoveError, context: &mut Context<'_>) {
        self.moves.moving = Moving::No;
        self.answer(Err(error), context);
    }

    fn answer(&mut self, outcome: Result<NodeName, MoveError>, context: &mut Context<'_>) {
        self.note_failback(outcome.err());
        context
            .out
            .act(Action::Move(self.id, MoveAction::Ended { outcome }));
        let news = match outcome {
            Ok(to) => ShareNews::Moved { to },
            Err(error) => ShareNews::MoveRefused { error },
        };
        context.tell(self.id, news);
    }

    pub(super) fn settle_move(&mut self, context: &mut Context<'_>) {
        if let Moving::Asked(asked) = self.moves.moving {
            self.still_possible(asked, context);
        }
    }

    pub(super) fn handle_move_timeout(&mut self, context: &mut Context<'_>) {
        if let Moving::Incoming(incoming) = &mut self.moves.moving
            && incoming.until.is_some_and(|until| until <= context.now)
        {
            incoming.until = None;
        }
        if let Moving::Followed(followed) = self.moves.moving
            && followed.until <= context.now
        {
            self.call_off(MoveError::TargetSilent, context);
            self.retire_without_server(context);
        }
        let Moving::Asked(asked) = self.moves.moving else {
            return;
        };
        if asked.look_at.is_some_and(|at| at <= context.now) {
            self.look(context);
        } else if asked.until <= context.now {
            self.call_off(MoveError::TargetSilent, context);
        }
    }

    /// As the standby: the owner wants us to own.
    pub(super) fn handle_move_wish(
        &mut self,
        owner: Ownership,
        generation: Generation,
        context: &mut Context<'_>,
    ) {
        let refusal = match self.machine.state() {
            State::Shadow {
                generation: held, ..
            } if held == generation => self.refusal(context.now),
            State::Starting { .. }
            | State::Standby { .. }
            | State::Shadow { .. }
            | State::Owner
            | State::Quitting => Some(MoveRefusal::NotInSync),
        };
        let step = if let Some(reason) = refusal {
            MoveStep::Refused { reason }
        } else {
            let successor = self.machine.next_epoch();
            self.moves.moving = Moving::Incoming(Incoming {
                from: owner.peer,
                generation,
                successor,
                taking: false,
                until: Some(context.now.saturating_add(PATIENCE)),
            });
            MoveStep::Ready { successor }
        };
        self.say_move(owner.peer, owner.epoch, generation, step, context);
    }

    /// Why this node does not become the owner when it is asked to, if it does not.
    fn refusal(&self, now: MonoTime) -> Option<MoveRefusal> {
        let stands = !self.condition.takes_moves();
        let refusal = self.server.refusal(now);
        refusal.or_else(|| stands.then_some(MoveRefusal::NoServer))
    }

    /// As the owner that was: the new one refuses after all.
    pub(super) fn handle_late_refusal(&mut self, owner: Ownership) {
        if let Moving::Released(released) = self.moves.moving
            && released.to == owner.peer
        {
            self.machine.handle_move_refused();
        }
    }

    /// Whether a claim of a peer belongs to a move, and is dealt with here.
    pub(super) fn follow_move(
        &mut self,
        peer: PeerId,
        claim: ShareClaim,
        context: &mut Context<'_>,
    ) -> bool {
        match self.moves.moving {
            Moving::Released(released) if released.to == peer => {
                self.see_successor(peer, claim, context);
                true
            }
            Moving::Incoming(incoming) if incoming.from == peer => {
                let let_go = claim.role == Role::Shadow && claim.epoch == incoming.successor;
                // It is repeated with each heartbeat.
                if let_go && self.machine.wish() != Some(Reason::Moved) {
                    self.take(incoming, context);
                }
                let_go
            }
            Moving::No
            | Moving::Asked(_)
            | Moving::Released(_)
            | Moving::Followed(_)
            | Moving::Incoming(_) => false,
        }
    }

    fn see_successor(&mut self, peer: PeerId, claim: ShareClaim, context: &mut Context<'_>) {
        let Moving::Released(released) = self.moves.moving else {
            return;
        };
        match claim.role {
            Role::Owner if claim.epoch > released.from_epoch => {
                self.moves.moving = Moving::Followed(Followed {
                    to: peer,
                    until: context.now.saturating_add(PATIENCE),
                });
                self.machine.handle_successor(Ownership {
                    peer,
                    epoch: claim.epoch,
                });
                // Whether it holds us to be in sync or not, it says so.
                self.asked = false;
                self.write_share(context.out);
            }
            // It has no twins any more, so it will not own with them.
            Role::None => self.machine.handle_move_refused(),
            // Of before.
            Role::Owner | Role::Shadow => {}
        }
    }

    /// As the new owner: the one that was is in sync still. It may be so no more
    /// itself, so this must not be taken for an offer.
    pub(super) fn say_stay_goes_on(
        &self,
        peer: PeerId,
        generation: Generation,
        context: &mut Context<'_>,
    ) {
        let successor = self.machine.epoch();
        let step = MoveStep::Ready { successor };
        self.say_move(peer, successor, generation, step, context);
    }

    /// As the owner that was: with the new one the generation goes on that we hold.
    pub(super) fn handle_stay_goes_on(&mut self, owner: Ownership, context: &mut Context<'_>) {
        if let Moving::Followed(followed) = self.moves.moving
            && followed.to == owner.peer
        {
            self.moves.moving = Moving::No;
            self.answer(Ok(context.peer_name(owner.peer)), context);
            self.retire_without_server(context);
        }
    }

    fn take(&mut self, incoming: Incoming, context: &mut Context<'_>) {
        let held = match self.machine.state() {
            State::Shadow { owner, generation } => {
                owner.peer == incoming.from && generation == incoming.generation
            }
            State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => {
                false
            }
        };
        let refusal = if held {
            self.refusal(context.now)
        } else {
            Some(MoveRefusal::NotInSync)
        };
        // A takeover that voters are asked for has nobody in sync: that remains so.
        let proposes = |lease: &ShareLease| lease.proposer.is_proposing();
        match refusal {
            None => {
                self.moves.moving = Moving::Incoming(Incoming {
                    taking: true,
                    ..incoming
                });
                if !self.lease.as_ref().is_some_and(proposes) {
                    self.machine.handle_handed_over();
                }
            }
            Some(reason) => {
                self.moves.moving = Moving::No;
                let step = MoveStep::Refused { reason };
                let Incoming {
                    from,
                    generation,
                    successor,
                    ..
                } = incoming;
                self.say_move(from, successor, generation, step, context);
            }
        }
    }

    /// As the new owner: the old one is in sync from the first moment.
    pub(super) fn take_over_stay(&mut self, owner: Ownership, generation: Generation) {
        self.in_sync.raise(generation);
        self.in_sync.join(owner.peer, generation);
        self.moves.resuming = true;
    }

    /// Who is in sync with this node from the moment that it owns.
    pub(super) fn stay_to_be(&self, context: &Context<'_>) -> Option<Stay> {
        match (self.machine.wish(), self.machine.state()) {
            (Some(Reason::Moved), State::Shadow { owner, generation }) => Some(Stay {
                node: context.peer_name(owner.peer),
                generation,
            }),
            (
                _,
                State::Starting { .. }
                | State::Standby { .. }
                | State::Shadow { .. }
                | State::Owner
                | State::Quitting,
            ) => None,
        }
    }

    /// A role has changed: which move that puts an end to.
    pub(super) fn end_move(&mut self, change: Change, context: &mut Context<'_>) {
        match (self.moves.moving, change.state) {
            (Moving::Released(_), State::Shadow { .. }) | (Moving::No, _) => {}
            (Moving::Followed(_), _)
                if matches!(change.reason, Reason::Admitted | Reason::Dismissed) =>
            {
                self.call_off(MoveError::TakenOver, context);
            }
            (Moving::Released(_) | Moving::Followed(_) | Moving::Asked(_), _) => {
                self.call_off(MoveError::Interrupted, context);
            }
            (Moving::Incoming(_), _) => self.moves.moving = Moving::No,
        }
    }

    fn say_move(
        &self,
        peer: PeerId,
        epoch: Epoch,
        generation: Generation,
        step: MoveStep,
        context: &mut Context<'_>,
    ) {
        let message = Message::Move(
            Scope {
                share: self.id,
                epoch,
                generation,
            },
            step,
        );
        context.send(peer, message);
    }
}
