//! What a standby of a share does, and where messages about it go.

use godwit_wire::{
    DigestEntry, FlowId, Generation, LeaveReason, Message, MoveStep, UnprotectedReason,
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
        if let Message::ShareState(claim) = message {
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
            return context.send(peer, Message::ShareState(self.claim()));
        }
        match message {
            Message::StandbyReady { generation, .. } => self.hear_ask(peer, *generation, context),
            Message::FlowDemoted {
                generation, flow, ..
            } => {
                if self.is_holder(peer, *generation) {
                    self.flows.supervision.handle_demoted(*flow);
                }
            }
            Message::TwinClosed {
                generation,
                flow,
                reason,
                ..
            } => {
                if self.is_holder(peer, *generation) {
                    self.flows.supervision.handle_twin_closed(*flow, *reason);
                }
            }
            Message::ServerLost { generation, .. } if self.is_holder(peer, *generation) => {
                self.handle_standby_server_lost(peer, context);
            }
            Message::Move {
                generation, step, ..
            } => self.handle_move_answer(peer, *generation, *step, context),
            Message::FlowAdmitted {
                generation, flow, ..
            } => {
                if self.is_holder(peer, *generation) {
                    self.flows.rejoin.handle_admitted(*flow);
                }
            }
            Message::FlowSnapshotKept {
                generation,
                flow,
                commit,
                ..
            } => {
                if self.is_holder(peer, *generation) {
                    self.note_snapshot_kept(*flow, *commit, context);
                }
            }
            Message::StandbyLeft {
                generation, reason, ..
            } => {
                if self.is_holder(peer, *generation) {
                    self.handle_standby_leaves(peer, *reason, context);
                }
            }
            // Of who is no standby any more; what only an owner says; or not about a share.
            Message::ServerLost { .. }
            | Message::FlowSnapshot { .. }
            | Message::FlowRestore { .. }
            | Message::FlowInput { .. }
            | Message::FlowAdmit { .. }
            | Message::FlowDemote { .. }
            | Message::Digest { .. }
            | Message::Output { .. }
            | Message::Hello(_)
            | Message::Director(_)
            | Message::ConfigLines(_)
            | Message::Question { .. }
            | Message::Tags(_)
            | Message::Place(_)
            | Message::ShareState(_)
            | Message::Handoff { .. }
            | Message::Goodbye { .. } => {}
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
            Message::StandbyReady { generation, .. } => self.handle_offer(*generation),
            Message::StandbyLeft {
                generation, reason, ..
            } => self.handle_left(*generation, *reason),
            Message::FlowDemote {
                generation,
                flow,
                reason,
                ..
            } => {
                if self.holds(*generation) {
                    self.give_up(owner, *flow, *reason, context);
                }
            }
            Message::Digest {
                generation,
                entries,
                ..
            } => {
                if self.holds(*generation) {
                    self.follow_digest(entries, context);
                }
            }
            Message::Output {
                generation,
                entries,
                ..
            } => {
                if self.holds(*generation) {
                    self.follow_output(entries, context);
                }
            }
            Message::ServerLost { generation, .. } => {
                if self.holds(*generation) {
                    self.handle_owner_server_lost(owner, *generation, context);
                }
            }
            Message::Move {
                generation, step, ..
            } => match step {
                MoveStep::Prepare => self.handle_move_wish(owner, *generation, context),
                MoveStep::Refused { .. } => self.handle_late_refusal(owner),
                MoveStep::Ready { .. } => {
                    if self.holds(*generation) {
                        self.handle_stay_goes_on(owner, context);
                    }
                }
            },
            Message::FlowRestore { .. }
            | Message::FlowInput { .. }
            | Message::FlowAdmit { .. }
            | Message::FlowSnapshot { .. } => self.follow_rejoin(owner, message, context),
            // What only a standby says; or not about a share.
            Message::FlowDemoted { .. }
            | Message::FlowSnapshotKept { .. }
            | Message::FlowAdmitted { .. }
            | Message::TwinClosed { .. }
            | Message::Hello(_)
            | Message::Director(_)
            | Message::ConfigLines(_)
            | Message::Question { .. }
            | Message::Tags(_)
            | Message::Place(_)
            | Message::ShareState(_)
            | Message::Handoff { .. }
            | Message::Goodbye { .. } => {}
        }
    }

    fn handle_offer(&mut self, generation: Generation) {
        self.condition.note_shunned(false);
        // Where no twins can be, we ask again when that is over.
        let able = self.server.is_listening() && self.condition.is_fit();
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
                let closed = Message::TwinClosed {
                    share,
                    epoch: owner.epoch,
                    generation: event.generation,
                    flow,
                    reason,
                };
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
        let answer = Message::FlowDemoted {
            share,
            epoch: owner.epoch,
            generation: self.held(),
            flow,
        };
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
        Message::StandbyReady {
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
