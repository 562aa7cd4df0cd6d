//! What a node does that is unfit for a share (see [`crate::fitness`]).
//!
//! | part | no twins | no service |
//! |---|---|---|
//! | standby in sync, its owner is heard | leaves the in-sync set | leaves the in-sync set |
//! | standby in sync, its owner is not heard | stays: it may be all that is left | stays |
//! | standby that is not in sync | does not join | does not join |
//! | target of a planned move | is in no set | is in no set |
//! | owner | goes on | hands over to a standby in sync, as a planned move; for three seconds as one that resets nothing |
//! | anybody at start | begins as usual: a poor owner is better than none | the same |
//!
//! One that can stand by but does not serve all at present (no moves, hand over) refuses
//! planned moves, and does all else as a fit one. With the latter, an owner hands over as
//! without service. Where nobody is served (no server), a share whose owner's server has died
//! is not taken over either, unless its machine or agent fails too: its clients had better see
//! the end of their connections than wait for ever. The standby leaves the set for that.
//!
//! ```text
//!  standby                                owner
//!  a fact is wrong: ends its twins
//!     ── StandbyLeft (unfit) ─────────────► takes it out of the set
//!  the fact is right again
//!     ── StandbyReady (0) ────────────────► offers a new generation
//! ```

use std::time::Duration;

use godwit_wire::{Generation, LeaveReason, Message, ShareId, StandbyMessage};

use super::Node;
use super::action::{Action, MoveAction};
use super::config::Mates;
use super::context::Context;
use super::moving::Moving;
use super::share::ShareSide;
use super::wish::{MoveCause, MoveWish};
use crate::fitness::{Consequence, FactId, Facts, Fitness, Takes};
use crate::share::{Ownership, Reason};
use crate::{MonoTime, PeerId};

/// The first pause between two attempts of an owner to hand over; doubled up to
/// [`LONGEST_PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// How long an owner that serves nobody tries a move that resets nothing. What can't go along
/// is not served here either, and keeps all others from being served.
const FORCE_AFTER: Duration = Duration::from_secs(3);

/// An unfit standby stays out for so long at least: what comes and goes costs connections
/// their protection each time.
const REST: Duration = Duration::from_secs(1);

/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How fit this node is for one share, and what it does about that.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    fitness: Fitness,
    /// As an unfit owner with a standby in sync: when it hands over, next time.
    flight: Option<MonoTime>,
    /// Since when it would.
    stuck: Option<MonoTime>,
    pause: Duration,
    /// As a standby: its owner does not take this node in, as no voter would consider what it
    /// says (`era.rs`).
    shunned: bool,
}

impl Condition {
    pub(super) const fn new() -> Self {
        Self {
            fitness: Fitness::FIT,
            flight: None,
            stuck: None,
            pause: SHORTEST_PAUSE,
            shunned: false,
        }
    }

    pub(super) const fn is_shunned(&self) -> bool {
        self.shunned
    }

    pub(super) const fn note_shunned(&mut self, shunned: bool) {
        self.shunned = shunned;
    }

    /// Whether the node can stand by.
    pub(super) const fn is_fit(&self) -> bool {
        self.fitness.stands_by
    }

    /// Whether a planned move may come here.
    pub(super) fn takes_moves(&self) -> bool {
        self.fitness.takes >= Takes::All
    }

    /// Whether a share is taken over whose owner's server has died.
    pub(super) fn takes_lost(&self) -> bool {
        self.fitness.takes >= Takes::Lost
    }

    /// Only an owner hands over.
    pub(super) fn settle_down(&mut self) {
        *self = Self {
            fitness: self.fitness,
            shunned: self.shunned,
            ..Self::new()
        };
    }

    /// When an unfit owner hands over.
    pub(super) const fn poll_timeout(&self) -> Option<MonoTime> {
        self.flight
    }
}

impl Node {
    /// Something that this node relies on is wrong, with that consequence, or right
    /// (`None`). May be repeated.
    pub fn handle_fact(&mut self, fact: FactId, wrong: Option<Consequence>, now: MonoTime) {
        self.facts.handle_fact(fact, wrong);
        self.settle(now);
    }

    /// What this node can do for a share.
    pub fn fitness(&self, share: ShareId) -> Fitness {
        fitness(&self.facts, &self.mates, share)
    }

    /// The shares whose new clients wait here, as all servers stand still: heartbeats say so.
    pub fn pauses(&self) -> impl Iterator<Item = ShareId> + '_ {
        let shares = self.shares.iter().map(|share| share.id);
        shares.filter(|share| !self.facts.fitness(*share).accepts)
    }

    /// Tells each share how fit this node is for it.
    pub(super) fn settle_fitness(&mut self) {
        for share in &mut self.shares {
            let fitness = fitness(&self.facts, &self.mates, share.id);
            let was_fit = share.condition.is_fit();
            share.condition.fitness = fitness;
            if fitness.stands_by && !was_fit {
                // The owner knows only that we hold nothing.
                share.asked = false;
            }
        }
    }
}

/// Shares of one address are taken over together, or none of them.
fn fitness(facts: &Facts, mates: &Mates, share: ShareId) -> Fitness {
    let own = facts.fitness(share);
    let mates = mates.get(&share).map_or(&[][..], Vec::as_slice);
    let takes = mates.iter().map(|mate| facts.fitness(*mate).takes);
    Fitness {
        takes: takes.fold(own.takes, Takes::min),
        ..own
    }
}

impl ShareSide {
    /// As a standby: leaves the in-sync set if this node is unfit.
    pub(super) fn settle_unfit_standby(
        &mut self,
        owner: Ownership,
        generation: Generation,
        context: &mut Context<'_>,
    ) {
        // What a move decides is decided first.
        let settled = self.moves.moving.is_settled();
        if self.condition.is_fit() || !settled || !context.is_ready(owner.peer) {
            return;
        }
        self.machine.handle_retired(Reason::Unfit);
        let left = Message::Standby(
            self.scope_under(owner, generation),
            StandbyMessage::Left {
                reason: LeaveReason::Unfit,
            },
        );
        context.send(owner.peer, left);
    }

    /// As an owner that clients do not reach: asks for a move to a standby that is in sync.
    /// Flows that would be lost, of the share or of another of its address, are in the way;
    /// it is tried again then. They are reset after [`FORCE_AFTER`] if nobody is served here.
    pub(super) fn settle_unfit_owner(&mut self, context: &mut Context<'_>) {
        let settled = matches!(self.moves.moving, Moving::No);
        if self.condition.fitness.stays {
            return self.condition.settle_down();
        }
        let ready = self.in_sync.members().find(|peer| context.is_ready(*peer));
        let Some(peer) = ready else {
            (self.condition.flight, self.condition.stuck) = (None, None);
            return;
        };
        let due = *self.condition.flight.get_or_insert(context.now);
        let stuck = *self.condition.stuck.get_or_insert(context.now);
        if context.now < due {
            return;
        }
        let pause = self.condition.pause;
        self.condition.flight = Some(context.now.saturating_add(pause));
        if !settled {
            return;
        }
        self.condition.pause = (pause * 2).min(LONGEST_PAUSE);
        let to = context.peer_name(peer);
        let wish = MoveWish {
            to,
            force: !self.condition.fitness.serves && context.now.since(stuck) >= FORCE_AFTER,
            cause: MoveCause::Unfit,
        };
        let share = self.id;
        context
            .out
            .act(Action::Move(share, MoveAction::Ask { wish }));
    }

    /// As the owner: a standby says that it leaves the set, and why.
    pub(super) fn handle_standby_leaves(
        &mut self,
        peer: PeerId,
        reason: LeaveReason,
        context: &mut Context<'_>,
    ) {
        if reason == LeaveReason::Unfit {
            let again = context.now.saturating_add(REST);
            self.standbys.rejoin_after = self.standbys.rejoin_after.max(again);
        }
        self.lose_standby(peer, reason, context);
        if self.server.released_until.is_some() {
            self.reopen(context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{config, ms};
    use super::*;

    #[test]
    fn a_share_whose_servers_stand_still_pauses() {
        let mut node = Node::new(&config(), ms(0));
        let paused = |node: &Node| node.pauses().collect::<Vec<_>>();
        for (wrong, wanted) in [
            (Some(Consequence::NoMoves), vec![]),
            (Some(Consequence::NoServer), vec![ShareId(1)]),
            (None, vec![]),
        ] {
            let fact = FactId {
                name: "server_stopped".into(),
                share: Some(ShareId(1)),
            };
            node.handle_fact(fact, wrong, ms(1));
            assert_eq!(paused(&node), wanted);
        }
    }
}
