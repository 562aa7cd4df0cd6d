//! Re-protection between the nodes of a share: running flows get twins on a
//! standby that came later. Both sides carry out a [`RejoinAction`] at each step.
//!
//! ```text
//!  owner                                        standby
//!  Begin: the tap is opened
//!     ── FlowRestore (record, log) ────────────► Restore: replays, silent
//!     ◄────────────── the twin's first ACK (data path): the gate closes
//!     ── FlowInput (what came meanwhile) ──────► Feed
//!     ◄────────────── the twin has all (data path)
//!     ── FlowAdmit ────────────────────────────► Admit: may be served
//!     ◄──────────────────────── FlowAdmitted ──
//!  Protect
//! ```

use std::time::Duration;

use godwit_wire::{
    FlowId, Generation, Message, RejoinMessage, Restore, SeqNumber, ShareId, UnprotectedReason,
};

use super::Node;
use super::action::{Action, FlowAction, RejoinAction};
use super::context::Context;
use super::event::{EventKind, FlowNews};
use super::share::ShareSide;
use crate::MonoTime;
use crate::flow::Report;
use crate::rejoin::{Candidate, Order};
use crate::share::State;

impl Node {
    /// The flows of a share that this node owns, and could have twins: to be
    /// called every 50 ms or so while there are any.
    pub fn handle_candidates(&mut self, share: ShareId, candidates: &[Candidate], now: MonoTime) {
        self.with_share(share, now, |share, context| {
            if share.machine.state() == State::Owner && !share.in_sync.generation().is_none() {
                share
                    .flows
                    .rejoin
                    .handle_candidates(candidates, context.now);
            }
        });
        self.settle(now);
    }

    /// The outcome of [`RejoinAction::Begin`]: what the standby needs, or
    /// `None` if the flow can't be handed over.
    pub fn handle_restore(
        &mut self,
        share: ShareId,
        flow: FlowId,
        restore: Option<Box<Restore>>,
        now: MonoTime,
    ) {
        self.with_share(share, now, |share, context| match restore {
            Some(restore) => share.send_restore(restore, context),
            None => share.flows.rejoin.handle_lost(flow, context.now),
        });
        self.settle(now);
    }

    /// What a twin begins at comes behind [`Self::handle_restore`], and takes so long.
    pub fn handle_restore_delay(&mut self, share: ShareId, flow: FlowId, delay: Duration) {
        let mut shares = self.shares.iter_mut();
        if let Some(side) = shares.find(|side| side.id == share) {
            side.flows.rejoin.handle_delay(flow, delay);
        }
    }

    /// An outcome of [`RejoinAction::Begin`]: there is no room for what a twin begins at,
    /// and it is offered again when there is.
    pub fn handle_restore_postponed(&mut self, share: ShareId, flow: FlowId, now: MonoTime) {
        self.with_share(share, now, |share, _| {
            share.flows.rejoin.handle_postponed(flow)
        });
        self.settle(now);
    }

    /// An outcome of [`RejoinAction::FeedLog`]: the log has slid past what the twin lacks, which
    /// `has` all before that.
    pub fn handle_log_gone(&mut self, share: ShareId, flow: FlowId, has: SeqNumber, now: MonoTime) {
        self.with_share(share, now, |share, context| {
            share.flows.rejoin.handle_starved(flow, has, context.now);
        });
        self.settle(now);
    }

    /// The outcome of [`RejoinAction::FeedLog`], if the twin lacks something.
    pub fn handle_log(
        &mut self,
        share: ShareId,
        flow: FlowId,
        (seq, fin): (SeqNumber, bool),
        input: Vec<u8>,
        now: MonoTime,
    ) {
        self.with_share(share, now, |share, context| {
            share.flows.rejoin.handle_fed(flow, context.now);
            for peer in share.in_sync.members() {
                let message = Message::Rejoin(
                    share.scope(share.in_sync.generation()),
                    RejoinMessage::Input {
                        flow,
                        seq,
                        fin,
                        input: input.clone(),
                    },
                );
                context.send(peer, message);
            }
        });
        self.settle(now);
    }

    /// [`RejoinAction::Admit`] was carried out: the twin will be served.
    pub fn handle_twin_admitted(&mut self, share: ShareId, flow: FlowId, now: MonoTime) {
        self.with_share(share, now, |share, context| {
            if let State::Shadow { owner, generation } = share.machine.state() {
                let admitted = Message::Rejoin(
                    share.scope_under(owner, generation),
                    RejoinMessage::Admitted { flow },
                );
                context.send(owner.peer, admitted);
            }
        });
        self.settle(now);
    }

    /// The outcome of [`RejoinAction::Protect`].
    pub fn handle_flow_protected(
        &mut self,
        share: ShareId,
        flow: FlowId,
        protected: bool,
        now: MonoTime,
    ) {
        self.with_share(share, now, |share, context| {
            share.note_protected(flow, protected, context);
        });
        self.settle(now);
    }
}

impl ShareSide {
    fn send_restore(&self, restore: Box<Restore>, context: &mut Context<'_>) {
        for peer in self.in_sync.members() {
            let message = Message::Rejoin(
                self.scope(self.in_sync.generation()),
                RejoinMessage::Restore(restore.clone()),
            );
            context.send(peer, message);
        }
    }

    fn note_protected(&mut self, flow: FlowId, protected: bool, context: &mut Context<'_>) {
        let share = self.id;
        if !protected {
            // The standby would serve it, and must not.
            self.flows.rejoin.handle_lost(flow, context.now);
            let report = Report::NotConfirmed;
            self.flows
                .supervision
                .handle_report(flow, report, context.now);
            return;
        }
        let Some(since) = self.flows.rejoin.handle_protected(flow, context.now) else {
            return;
        };
        let news = FlowNews::ProtectedAgain {
            took: context.now.since(since),
        };
        let kind = EventKind::Flow { share, flow, news };
        context.out.tell(context.now, kind);
    }

    /// As the owner: what the machine wants done.
    pub(super) fn settle_rejoin(&mut self, context: &mut Context<'_>) {
        while let Some(order) = self.flows.rejoin.poll_order() {
            self.carry_out_rejoin(order, context);
        }
    }

    fn carry_out_rejoin(&mut self, order: Order, context: &mut Context<'_>) {
        let (share, generation) = (self.id, self.in_sync.generation());
        match order {
            Order::Begin(flow) => {
                self.flows.supervision.forget(flow);
                context.out.act(Action::Rejoin(
                    share,
                    RejoinAction::Begin { flow, generation },
                ));
            }
            Order::Feed(flow) => context
                .out
                .act(Action::Rejoin(share, RejoinAction::FeedLog { flow })),
            Order::Admit(flow) => {
                for peer in self.in_sync.members() {
                    let question =
                        Message::Rejoin(self.scope(generation), RejoinMessage::Admit { flow });
                    context.send(peer, question);
                }
            }
            Order::Protect(flow) => context
                .out
                .act(Action::Rejoin(share, RejoinAction::Protect { flow })),
            Order::GiveUp(flow) => {
                self.standbys.proofs.births().note_failed(flow, context.now);
                let reason = UnprotectedReason::NotConfirmed;
                context
                    .out
                    .act(Action::Flow(share, FlowAction::Ungate { flow, reason }));
                // It may have a twin, which is to be mute when the next one is wanted.
                self.ask_demotion(flow, reason, context);
            }
            Order::Demote(flow) => {
                self.flows
                    .supervision
                    .handle_report(flow, Report::NotConfirmed, context.now);
            }
        }
    }

    /// As a standby: what the owner of that generation, which we hold, says of flows that
    /// are handed over.
    pub(super) fn follow_rejoin(
        &self,
        generation: Generation,
        order: &RejoinMessage,
        context: &mut Context<'_>,
    ) {
        let action = match order {
            RejoinMessage::Restore(restore) => RejoinAction::Restore {
                generation,
                restore: restore.clone(),
            },
            RejoinMessage::Input {
                flow,
                seq,
                fin,
                input,
            } => RejoinAction::Feed {
                flow: *flow,
                seq: *seq,
                fin: *fin,
                input: input.clone(),
            },
            RejoinMessage::Admit { flow } => RejoinAction::Admit { flow: *flow },
            // Only a standby says it.
            RejoinMessage::Admitted { .. } => return,
        };
        context.out.act(Action::Rejoin(self.id, action));
    }

    /// As the owner: what the standby that has the twin answers.
    pub(super) fn handle_rejoin_answer(&mut self, answer: &RejoinMessage) {
        match answer {
            RejoinMessage::Admitted { flow } => self.flows.rejoin.handle_admitted(*flow),
            // Only an owner says it.
            RejoinMessage::Restore(_)
            | RejoinMessage::Input { .. }
            | RejoinMessage::Admit { .. } => {}
        }
    }
}
