//! What a standby of a share does, and where messages about it go.

use godwit_wire::{
    DigestEntry, FlowId, FlowMessage, Generation, LeaveReason, Message, MoveStep, Scope,
    StandbyMessage, TwinMessage, UnprotectedReason,
};

use super::action::{Action, EndReason, TwinAction};
use super::context::Context;
use super::event::{EventKind, FlowNews};
use super::input::{FlowEvent, FlowEventKind};
use super::share::ShareSide;
use crate::PeerId;
use crate::share::{Change, Ownership, Reason, State};

impl ShareSide {
    pub(super) fn become_standby(&mut self, change: Change, context: &mut Context<'_>) {
        self.asked = false;
        self.condition.note_shunned(false);
        self.write_share(context.out);
        if let (State::Owner, Some(lease)) = (change.prev, &mut self.lease) {
            lease.end();
        }
        match change.prev {
            State::Owner => {
                let reason = self.why_flows_end(change, EndReason::Superseded);
                self.end_flows(reason, context.out);
                self.in_sync.clear();
                self.flows.clear();
                self.standbys.requests.clear();
                self.stop_schedules();
                self.let_mirrored_pass(context.now);
                self.broadcast(context);
            }
            State::Shadow { generation, .. } => {
                self.in_sync.raise(generation);
                let reason = if change.reason == Reason::OwnerDetached {
                    EndReason::OwnerDetached
                } else {
                    self.why_flows_end(change, EndReason::NotInSync)
                };
                self.end_flows(reason, context.out);
            }
            State::Starting { .. } | State::Standby { .. } | State::Quitting => {}
        }
    }

    /// Whether the connections that end here are over for their clients, too: nobody owns the
    /// share, or this node is about to without having been in sync. Else `otherwise`.
    const fn why_flows_end(&self, change: Change, otherwise: EndReason) -> EndReason {
        let about_to_own = self.machine.wish().is_some();
        match change.state {
            State::Starting { .. } => EndReason::NobodyOwns,
            State::Standby { .. } if about_to_own => EndReason::NobodyOwns,
            State::Standby { .. } | State::Shadow { .. } | State::Owner | State::Quitting => {
                otherwise
            }
        }
    }

    pub(super) fn become_shadow(
        &mut self,
        change: Change,
        owner: Ownership,
        generation: Generation,
        context: &mut Context<'_>,
    ) {
        if change.prev == State::Owner {
            return self.hand_over(context);
        }
        if let State::Shadow { .. } = change.prev {
            // Twins of the earlier generation may lack bytes: none may outlive it.
            self.fall_silent(context.out);
            self.end_flows(EndReason::NotInSync, context.out);
        }
        self.write_share(context.out);
        let confirmation = self.ready(owner, generation);
        context.send(owner.peer, confirmation);
    }

    /// Says once per link what we hold, as soon as the owner can be heard.
    pub(super) fn ask(&mut self, owner: Ownership, context: &mut Context<'_>) {
        if !self.asked && context.is_ready(owner.peer) {
            self.asked = true;
            let message = self.ready(owner, self.held());
            context.send(owner.peer, message);
        }
    }

    pub(super) fn handle_message(
        &mut self,
        peer: PeerId,
        incarnation: u64,
        message: &Message,
        context: &mut Context<'_>,
    ) {
        if let Message::Claim(claim) = message {
            self.handle_claim(peer, incarnation, *claim, context);
            return;
        }
        match self.machine.state() {
            State::Owner => self.handle_standby_message(peer, message, context),
            State::Standby { owner: Some(owner) } | State::Shadow { owner, .. } => {
                if owner.peer == peer && owner.epoch == message.epoch() {
                    self.handle_owner_message(owner, message, context);
                }
            }
            State::Starting { .. } | State::Standby { owner: None } | State::Quitting => {}
        }
    }

    /// To an owner. A standby that does not know our epoch is told of it.
    fn handle_standby_message(
        &mut self,
        peer: PeerId,
        message: &Message,
        context: &mut Context<'_>,
    ) {
        if message.epoch() != self.machine.epoch() {
            return context.send(peer, Message::Claim(self.claim()));
        }
        match message {
            Message::Standby(scope, news) => {
                self.handle_ask(peer, scope.generation, *news, context);
            }
            Message::Move(scope, step) => {
                self.handle_move_answer(peer, scope.generation, *step, context);
            }
            Message::Flow(scope, answer) if self.is_holder(peer, scope.generation) => {
                self.handle_flow_answer(answer);
            }
            Message::Rejoin(scope, answer) if self.is_holder(peer, scope.generation) => {
                self.handle_rejoin_answer(answer);
            }
            Message::Snapshot(scope, answer) if self.is_holder(peer, scope.generation) => {
                self.handle_snapshot_answer(answer, context);
            }
            // Of who is no standby any more; what only an owner says; or not about a standby.
            Message::Flow(..)
            | Message::Rejoin(..)
            | Message::Snapshot(..)
            | Message::Twin(..)
            | Message::Peer(_)
            | Message::Network(_)
            | Message::Claim(_)
            | Message::Handoff(_)
            | Message::Question(_)
            | Message::Director(_) => {}
        }
    }

    /// From a standby, or one that wants to be.
    fn handle_ask(
        &mut self,
        peer: PeerId,
        generation: Generation,
        news: StandbyMessage,
        context: &mut Context<'_>,
    ) {
        match news {
            StandbyMessage::Ready => self.hear_ask(peer, generation, context),
            StandbyMessage::ServerLost => {
                if self.is_holder(peer, generation) {
                    self.handle_standby_server_lost(peer, context);
                }
            }
            StandbyMessage::Left { reason } => {
                if self.is_holder(peer, generation) {
                    self.handle_standby_leaves(peer, reason, context);
                }
            }
        }
    }

    /// From the standby that has the twin.
    fn handle_flow_answer(&mut self, answer: &FlowMessage) {
        match *answer {
            FlowMessage::Demoted { flow } => self.flows.supervision.handle_demoted(flow),
            FlowMessage::TwinClosed { flow, reason } => {
                self.flows.supervision.handle_twin_closed(flow, reason);
            }
            // Only an owner says it.
            FlowMessage::Demote { .. } => {}
        }
    }

    /// To a standby, from its owner, under the epoch that it knows.
    fn handle_owner_message(
        &mut self,
        owner: Ownership,
        message: &Message,
        context: &mut Context<'_>,
    ) {
        match message {
            Message::Standby(scope, news) => {
                self.handle_owner_news(owner, scope.generation, *news, context);
            }
            Message::Move(scope, step) => match step {
                MoveStep::Prepare => self.handle_move_wish(owner, scope.generation, context),
                MoveStep::Refused { .. } => self.handle_late_refusal(owner),
                MoveStep::Ready { .. } => {
                    if self.holds(scope.generation) {
                        self.handle_stay_goes_on(owner, context);
                    }
                }
            },
            Message::Flow(scope, order) if self.holds(scope.generation) => {
                self.handle_flow_order(owner, order, context);
            }
            Message::Twin(scope, entries) if self.holds(scope.generation) => match entries {
                TwinMessage::Digest(entries) => self.follow_digest(entries, context),
                TwinMessage::Output(entries) => self.follow_output(entries, context),
            },
            Message::Rejoin(scope, order) if self.holds(scope.generation) => {
                self.follow_rejoin(scope.generation, order, context);
            }
            Message::Snapshot(scope, order) if self.holds(scope.generation) => {
                self.handle_snapshot_order(order, context);
            }
            // Of a generation that is over; or not about a standby.
            Message::Flow(..)
            | Message::Twin(..)
            | Message::Rejoin(..)
            | Message::Snapshot(..)
            | Message::Peer(_)
            | Message::Network(_)
            | Message::Claim(_)
            | Message::Handoff(_)
            | Message::Question(_)
            | Message::Director(_) => {}
        }
    }

    fn handle_owner_news(
        &mut self,
        owner: Ownership,
        generation: Generation,
        news: StandbyMessage,
        context: &mut Context<'_>,
    ) {
        match news {
            StandbyMessage::Ready => {
                self.note_offer(owner, generation, context);
                self.handle_offer(generation);
            }
            StandbyMessage::Left { reason } => self.handle_left(generation, reason),
            StandbyMessage::ServerLost => {
                if self.holds(generation) {
                    self.handle_owner_server_lost(owner, generation, context);
                }
            }
        }
    }

    /// From our owner, about a twin that we have.
    fn handle_flow_order(&self, owner: Ownership, order: &FlowMessage, context: &mut Context<'_>) {
        match *order {
            FlowMessage::Demote { flow, reason } => self.give_up(owner, flow, reason, context),
            // Only a standby says it.
            FlowMessage::Demoted { .. } | FlowMessage::TwinClosed { .. } => {}
        }
    }

    fn handle_offer(&mut self, generation: Generation) {
        self.condition.note_shunned(false);
        // Where no twins can be, we ask again when that is over.
        let serves = self.server.is_listening() && self.server.is_registered();
        let able = serves && self.condition.is_fit();
        if generation != self.held() && able {
            self.machine.handle_admitted(generation);
        }
    }

    fn handle_left(&mut self, generation: Generation, reason: LeaveReason) {
        if (generation, reason) == (Generation::NONE, LeaveReason::Unfit) {
            return self.condition.note_shunned(true);
        }
        self.machine.handle_dismissed(generation);
    }

    pub(super) fn handle_flow_event(&mut self, event: FlowEvent, context: &mut Context<'_>) {
        match self.machine.state() {
            State::Owner => self.handle_owner_event(event, context),
            State::Shadow { owner, generation } => {
                if event.generation == generation {
                    self.handle_twin_event(owner, event, context);
                }
            }
            State::Starting { .. } | State::Standby { .. } | State::Quitting => {}
        }
    }

    fn handle_twin_event(&mut self, owner: Ownership, event: FlowEvent, context: &mut Context<'_>) {
        let (share, flow) = (self.id, event.flow);
        let news = match event.kind {
            FlowEventKind::TwinClosed => {
                let reason = UnprotectedReason::TwinClosed;
                context.out.act(Action::Twin(
                    share,
                    TwinAction::MarkDemoted { flow, reason },
                ));
                let closed = Message::Flow(
                    self.scope_under(owner, event.generation),
                    FlowMessage::TwinClosed { flow, reason },
                );
                context.send(owner.peer, closed);
                FlowNews::TwinClosed
            }
            // The owner sends the handshake again, and demotes the flow if that fails.
            FlowEventKind::MaterialiseFailed => FlowNews::MaterialiseFailed,
            FlowEventKind::Unconfirmed
            | FlowEventKind::NotConfirmed
            | FlowEventKind::Stalled
            | FlowEventKind::Ended
            | FlowEventKind::Left
            | FlowEventKind::Confirmed
            | FlowEventKind::Rejoined
            | FlowEventKind::Whole => return,
        };
        let kind = EventKind::Flow { share, flow, news };
        context.out.tell(context.now, kind);
    }

    /// First the mark, then the word: the owner lets the flow go on it.
    fn give_up(
        &self,
        owner: Ownership,
        flow: FlowId,
        reason: UnprotectedReason,
        context: &mut Context<'_>,
    ) {
        let share = self.id;
        context.out.act(Action::Twin(
            share,
            TwinAction::MarkDemoted { flow, reason },
        ));
        let answer = Message::Flow(
            self.scope_under(owner, self.held()),
            FlowMessage::Demoted { flow },
        );
        context.send(owner.peer, answer);
        // An owner that dies now takes its own word of it with it.
        let news = FlowNews::GivenUp { reason };
        let kind = EventKind::Flow { share, flow, news };
        context.out.tell(context.now, kind);
    }

    fn follow_digest(&self, entries: &[DigestEntry], context: &mut Context<'_>) {
        let share = self.id;
        for entry in entries {
            let flow = entry.flow;
            context.out.act(if entry.ended {
                Action::Twin(
                    share,
                    TwinAction::End {
                        flow,
                        reason: EndReason::EndedAtOwner,
                    },
                )
            } else {
                Action::Twin(
                    share,
                    TwinAction::Poke {
                        flow,
                        snd_una: entry.snd_una,
                    },
                )
            });
        }
    }

    fn ready(&self, owner: Ownership, generation: Generation) -> Message {
        Message::Standby(self.scope_under(owner, generation), StandbyMessage::Ready)
    }

    /// What a message to that owner is about.
    pub(super) const fn scope_under(&self, owner: Ownership, generation: Generation) -> Scope {
        Scope {
            share: self.id,
            epoch: owner.epoch,
            generation,
        }
    }

    /// The generation whose twins we hold; none without.
    pub(super) const fn held(&self) -> Generation {
        match self.machine.state() {
            State::Shadow { generation, .. } => generation,
            State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => {
                Generation::NONE
            }
        }
    }

    pub(super) fn holds(&self, generation: Generation) -> bool {
        !generation.is_none() && self.held() == generation
    }
}
