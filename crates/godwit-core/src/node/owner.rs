//! What the owner of a share does: the in-sync set and its flows.

use std::time::Duration;

use godwit_wire::{
    DigestEntry, FlowId, FlowMessage, Generation, LeaveReason, MAX_DIGEST_ENTRIES, Message, Scope,
    StandbyMessage, TwinMessage, UnprotectedReason,
};

use super::action::{Action, FlowAction, ShareAction};
use super::births::Births;
use super::context::Context;
use super::damping::pause_after;
use super::event::{EventKind, FlowNews, ShareNews};
use super::input::{FlowEvent, FlowEventKind};
use super::peer::PeerSide;
use super::share::ShareSide;
use crate::flow::{MAX_FLOWS, Order, Report};
use crate::insync::Left;
use crate::share::{Change, Reason, State};
use crate::{MonoTime, PeerId};

/// How long a segment may be on its way to the standby, once it has left this host.
const TRANSIT: Duration = Duration::from_millis(50);

impl ShareSide {
    pub(super) fn become_owner(&mut self, change: Change, context: &mut Context<'_>) {
        match change.prev {
            State::Owner => {
                // A new epoch of the same owner: the set starts anew under it.
                if self.in_sync.generation().is_none() {
                    self.write_share(context.out);
                }
                self.leave_all(LeaveReason::WrongEpoch, context);
            }
            State::Starting { .. }
            | State::Standby { .. }
            | State::Shadow { .. }
            | State::Quitting => {
                self.in_sync.clear();
                self.flows.clear();
                self.standbys.requests.clear();
                self.note_begin(change, context);
                match change.prev {
                    State::Shadow { owner, generation } if change.reason == Reason::Moved => {
                        self.take_over_stay(owner, generation);
                    }
                    State::Shadow { generation, .. } => self.in_sync.raise(generation),
                    State::Starting { .. }
                    | State::Standby { .. }
                    | State::Owner
                    | State::Quitting => {}
                }
                self.write_share(context.out);
                self.start_schedules(change.reason.is_takeover(), context.now);
                self.tell_takeover(change, context);
            }
        }
        self.broadcast(context);
        if change.reason == Reason::Moved {
            for (peer, generation) in self.in_sync.stays() {
                self.say_stay_goes_on(peer, generation, context);
            }
        }
    }

    fn tell_takeover(&self, change: Change, context: &mut Context<'_>) {
        let Some(from) = change.prev.owner().filter(|_| change.reason.is_takeover()) else {
            return;
        };
        let heard = context
            .peer(from.peer)
            .and_then(|side| side.detector.heard());
        let news = ShareNews::TakeoverStarted {
            from: context.peer_name(from.peer),
            epoch: self.machine.epoch(),
            reason: change.reason,
            detection: heard
                .map(|heard| context.now.since(heard))
                .unwrap_or_default(),
            generation: match change.prev {
                State::Shadow { generation, .. } => generation,
                State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => {
                    Generation::NONE
                }
            },
        };
        context.tell(self.id, news);
    }

    /// Takes a standby out of the set, if it is in, and lets its flows go as
    /// soon as a majority of voters knows.
    pub(super) fn lose_standby(
        &mut self,
        peer: PeerId,
        reason: LeaveReason,
        context: &mut Context<'_>,
    ) {
        if !self.ask_leave(peer, reason, context) {
            self.part_with(peer, reason, context);
        }
    }

    /// The standby is out of the set, as far as anybody is concerned who could
    /// let it take over.
    pub(super) fn part_with(
        &mut self,
        peer: PeerId,
        reason: LeaveReason,
        context: &mut Context<'_>,
    ) {
        let Some(Left { generation, last }) = self.in_sync.leave(peer) else {
            return;
        };
        // First nobody may take over with these twins, then clients are told more.
        self.write_share(context.out);
        self.let_mirrored_pass(context.now);
        if last {
            context.out.act(Action::Share(
                self.id,
                ShareAction::ReleaseGate { generation },
            ));
            self.flows.clear();
        }
        self.tell_left(peer, generation, reason, context);
        let news = ShareNews::StandbyLeft {
            peer: context.peer_name(peer),
            generation,
            reason,
        };
        context.tell(self.id, news);
    }

    /// The tap has been shut: what it mirrored may be under way for a while, and a
    /// handshake among it must not be taken for one of the next generation, whose twin
    /// would lack what the client says meanwhile. So that begins later.
    pub(super) fn let_mirrored_pass(&mut self, now: MonoTime) {
        let gone = now.saturating_add(self.egress_residence + TRANSIT);
        self.standbys.rejoin_after = self.standbys.rejoin_after.max(gone);
    }

    /// Tells a standby that its generation is over, and when it may come back.
    pub(super) fn tell_left(
        &mut self,
        peer: PeerId,
        generation: Generation,
        reason: LeaveReason,
        context: &mut Context<'_>,
    ) {
        let left = Message::Standby(self.scope(generation), StandbyMessage::Left { reason });
        context.send(peer, left);
        if let Some(pause) = pause_after(reason) {
            self.hold_off(peer, pause, context);
        }
    }

    /// Before the programs go away: nobody is to wait for a standby any more.
    pub(super) fn dismiss_all(&mut self, context: &mut Context<'_>) {
        for peer in self.in_sync.members().collect::<Vec<_>>() {
            self.part_with(peer, LeaveReason::OwnerLeft, context);
        }
    }

    pub(super) fn leave_all(&mut self, reason: LeaveReason, context: &mut Context<'_>) {
        for peer in self.in_sync.members().collect::<Vec<_>>() {
            self.lose_standby(peer, reason, context);
        }
    }

    /// Takes all standbys out of the set, see [`crate::Node::is_prepared`].
    pub(super) fn prepare_detach(&mut self, context: &mut Context<'_>) {
        self.leave_all(LeaveReason::OwnerLeft, context);
    }

    /// A standby says what it holds: see `settle_in_sync`.
    pub(super) fn hear_ask(&mut self, peer: PeerId, held: Generation, context: &mut Context<'_>) {
        if !self.has_member(peer) {
            // By the list that it has; ours is another one.
            if !held.is_none() && !self.in_sync.contains(peer) {
                self.tell_left(peer, held, LeaveReason::StandbyQuit, context);
            }
            return;
        }
        self.answer_shunned(peer, context);
        let confirms = self.in_sync.offered(peer) == Some(held);
        let waits = self.standbys.requests.insert(peer, held).is_some();
        if !waits && !confirms && !self.in_sync.contains(peer) {
            self.standbys.proofs.doubt(peer);
        }
    }

    /// Where supervised flows and waiting standbys are dealt with.
    pub(super) fn settle_in_sync(&mut self, context: &mut Context<'_>) {
        self.dismiss_former(context);
        self.part_with_shunned(context);
        self.settle_rejoin(context);
        while let Some(order) = self.flows.supervision.poll_order() {
            self.carry_out(order, context);
        }
        self.send_digest(context);
        self.send_output(context);
        for (peer, held) in self.standbys.requests.clone() {
            let leaving = self
                .lease
                .as_ref()
                .is_some_and(|lease| lease.is_leaving(peer));
            let proved = self.has_proved(peer, context.peers);
            let due = self.standbys.rejoin_after <= context.now
                && self.former().next().is_none()
                && !self.shuns(peer, context.peers);
            if context.is_ready(peer) && due && !leaving && proved {
                self.standbys.requests.remove(&peer);
                self.admit(peer, held, context);
            }
        }
    }

    /// Who stood by when the list of backups was another one leaves first: two sets of twins
    /// at a time are none of this version's.
    fn dismiss_former(&mut self, context: &mut Context<'_>) {
        let former: Vec<_> = self.former().collect();
        for peer in former {
            // Without a lease nothing but this word keeps it from taking over.
            if self.lease.is_some() || context.is_linked(peer) {
                self.lose_standby(peer, LeaveReason::StandbyQuit, context);
            }
        }
    }

    /// Standbys in sync that are no nodes of the share any more.
    fn former(&self) -> impl Iterator<Item = PeerId> + '_ {
        let members = self.in_sync.members();
        members.filter(|peer| !self.has_member(*peer))
    }

    /// When a standby that waits may be admitted.
    pub(super) fn next_admission(&self, peers: &[PeerSide]) -> Option<MonoTime> {
        let ready = |peer: &PeerId| {
            let leaving = self
                .lease
                .as_ref()
                .is_some_and(|lease| lease.is_leaving(*peer));
            let side = peers.get(usize::from(peer.0));
            !leaving
                && !self.shuns(*peer, peers)
                && side.is_some_and(PeerSide::is_ready)
                && self.has_proved(*peer, peers)
        };
        let is_free = self.machine.state() == State::Owner && self.former().next().is_none();
        let waits = is_free && self.standbys.requests.keys().any(ready);
        waits.then_some(self.standbys.rejoin_after)
    }

    fn admit(&mut self, peer: PeerId, held: Generation, context: &mut Context<'_>) {
        if self.in_sync.contains(peer) {
            if self.in_sync.is_protected(held) {
                self.say_stay_goes_on(peer, held, context);
                return;
            }
            self.lose_standby(peer, LeaveReason::StandbyRestarted, context);
            // A majority has to know first, and the tap to run dry.
            self.standbys.requests.insert(peer, held);
            return;
        }
        if self.in_sync.offered(peer) == Some(held) {
            if !self.ask_join(peer, held, context) {
                self.complete_join(peer, held, context);
            }
        } else {
            self.in_sync.raise(held);
            let offered = self.in_sync.offer(peer);
            let offer = Message::Standby(self.scope(offered), StandbyMessage::Ready);
            context.send(peer, offer);
        }
    }

    /// The standby is in sync, and may take over: new flows are gated.
    pub(super) fn complete_join(
        &mut self,
        peer: PeerId,
        generation: Generation,
        context: &mut Context<'_>,
    ) {
        self.in_sync.join(peer, generation);
        *self.standbys.proofs.births() = Births::default();
        self.await_failback(peer, context.now);
        self.flows.clear();
        self.write_share(context.out);
        let news = ShareNews::StandbyJoined {
            peer: context.peer_name(peer),
            generation,
        };
        context.tell(self.id, news);
    }

    pub(super) fn handle_owner_event(&mut self, event: FlowEvent, context: &mut Context<'_>) {
        if !self.in_sync.is_protected(event.generation) {
            return;
        }
        let report = match event.kind {
            FlowEventKind::Unconfirmed => Report::Unconfirmed,
            FlowEventKind::NotConfirmed => {
                self.standbys
                    .proofs
                    .births()
                    .note_failed(event.flow, context.now);
                Report::NotConfirmed
            }
            FlowEventKind::Stalled if self.flows.policy.wait_for_lagging => {
                return self.wait_for(event.flow, context);
            }
            FlowEventKind::Stalled => Report::Stalled,
            FlowEventKind::Ended | FlowEventKind::Left => {
                self.flows.waited_for.remove(&event.flow);
                self.flows.rejoin.handle_ended(event.flow);
                Report::Ended
            }
            FlowEventKind::Confirmed => Report::Confirmed,
            FlowEventKind::Rejoined => {
                return self.flows.rejoin.handle_twin(event.flow, context.now);
            }
            FlowEventKind::Whole => return self.flows.rejoin.handle_whole(event.flow, context.now),
            // Only a shadow's data path has twins.
            FlowEventKind::TwinClosed | FlowEventKind::MaterialiseFailed => return,
        };
        self.flows
            .supervision
            .handle_report(event.flow, report, context.now);
    }

    /// The end of each flow under supervision, as the data path would report it.
    pub(super) fn supervised_flows(&self) -> impl Iterator<Item = FlowEvent> + '_ {
        self.flows.supervision.flows().map(|flow| FlowEvent {
            share: self.id,
            flow,
            generation: self.in_sync.generation(),
            kind: FlowEventKind::Ended,
        })
    }

    /// Whether a message about `generation` comes from a standby that holds it.
    pub(super) fn is_holder(&self, peer: PeerId, generation: Generation) -> bool {
        self.in_sync.contains(peer) && self.in_sync.is_protected(generation)
    }

    /// Keeps where flows stand until the standby can be told.
    pub(super) fn note_changes(&mut self, changes: &[DigestEntry], context: &mut Context<'_>) {
        if self.machine.state() != State::Owner || self.in_sync.generation().is_none() {
            return;
        }
        self.flows
            .untold
            .extend(changes.iter().map(|entry| (entry.flow, *entry)));
        if self.flows.untold.len() > MAX_FLOWS {
            self.leave_all(LeaveReason::SupervisionOverflow, context);
        }
    }

    fn send_digest(&mut self, context: &mut Context<'_>) {
        let members: Vec<_> = self.in_sync.members().collect();
        let linked = members.iter().all(|peer| context.is_linked(*peer));
        if self.flows.untold.is_empty() || !linked {
            return;
        }
        let changes: Vec<_> = std::mem::take(&mut self.flows.untold)
            .into_values()
            .collect();
        for peer in members {
            for entries in changes.chunks(MAX_DIGEST_ENTRIES) {
                let digest = Message::Twin(
                    self.scope(self.in_sync.generation()),
                    TwinMessage::Digest(entries.to_vec()),
                );
                context.send(peer, digest);
            }
        }
    }

    fn carry_out(&mut self, order: Order, context: &mut Context<'_>) {
        let share = self.id;
        match order {
            Order::ResendHandshake(flow) => {
                context
                    .out
                    .act(Action::Flow(share, FlowAction::ResendHandshake { flow }));
            }
            Order::AskDemotion(flow, reason) => {
                // A word that admits its new twin would come behind this one, and undo it.
                self.flows.rejoin.handle_lost(flow, context.now);
                self.ask_demotion(flow, reason, context);
            }
            Order::Ungate(flow, reason) => {
                self.flows.rejoin.handle_lost(flow, context.now);
                context
                    .out
                    .act(Action::Flow(share, FlowAction::Ungate { flow, reason }));
                let news = FlowNews::Demoted { reason };
                let kind = EventKind::Flow { share, flow, news };
                context.out.tell(context.now, kind);
            }
            Order::GiveUp(reason) => self.leave_all(reason, context),
        }
    }

    /// What a message to a standby of ours is about.
    pub(super) const fn scope(&self, generation: Generation) -> Scope {
        Scope {
            share: self.id,
            epoch: self.machine.epoch(),
            generation,
        }
    }

    /// The standby is to promise that it does not serve the flow.
    pub(super) fn ask_demotion(
        &self,
        flow: FlowId,
        reason: UnprotectedReason,
        context: &mut Context<'_>,
    ) {
        for peer in self.in_sync.members() {
            let question = Message::Flow(
                self.scope(self.in_sync.generation()),
                FlowMessage::Demote { flow, reason },
            );
            context.send(peer, question);
        }
    }
}
