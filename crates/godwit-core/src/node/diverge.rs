//! Twins that do not keep step: what they say is compared with what the owner
//! has said, and one that lags is given up or waited for.
//!
//! The owner tells what it has said, the standby compares (in its data path's
//! books, by its driver) and judges: it holds the twin, so its word alone makes
//! the flow unprotected, at once and on both sides.

use godwit_wire::{
    FlowId, FlowMessage, MAX_DIGEST_ENTRIES, Message, OutputEntry, TwinMessage, UnprotectedReason,
};

use super::action::{Action, TwinAction};
use super::context::Context;
use super::event::{EventKind, FlowNews};
use super::share::ShareSide;
use crate::flow::MAX_FLOWS;
use crate::share::State;

/// What waits for a link, at most: what is lost is compared later or never,
/// which is no harm.
const MAX_UNSENT: usize = 8 * MAX_DIGEST_ENTRIES;

impl ShareSide {
    /// As the owner: what the application has said. Forgotten without a standby.
    pub(super) fn note_output(&mut self, entries: &[OutputEntry]) {
        if self.machine.state() != State::Owner || self.in_sync.generation().is_none() {
            return;
        }
        let room = MAX_UNSENT.saturating_sub(self.flows.unsent_output.len());
        self.flows.unsent_output.extend(entries.iter().take(room));
    }

    pub(super) fn send_output(&mut self, context: &mut Context<'_>) {
        let members: Vec<_> = self.in_sync.members().collect();
        if self.flows.unsent_output.is_empty()
            || !members.iter().all(|peer| context.is_linked(*peer))
        {
            return;
        }
        let unsent = std::mem::take(&mut self.flows.unsent_output);
        for peer in members {
            for entries in unsent.chunks(MAX_DIGEST_ENTRIES) {
                let output = Message::Twin(
                    self.scope(self.in_sync.generation()),
                    TwinMessage::Output(entries.to_vec()),
                );
                context.send(peer, output);
            }
        }
    }

    /// As a standby: has its twins compared with what the owner says.
    pub(super) fn follow_output(&self, entries: &[OutputEntry], context: &mut Context<'_>) {
        let share = self.id;
        for entry in entries {
            let entry = *entry;
            context
                .out
                .act(Action::Twin(share, TwinAction::Compare { entry }));
        }
    }

    /// As a standby: a twin's application says something else. First the mark,
    /// then the word: the owner lets the flow go on it.
    pub(super) fn handle_divergence(
        &self,
        flow: FlowId,
        reason: UnprotectedReason,
        context: &mut Context<'_>,
    ) {
        let (share, generation) = (self.id, self.held());
        let State::Shadow { owner, .. } = self.machine.state() else {
            return;
        };
        let demoted = !self.flows.policy.report_divergence;
        let news = FlowNews::Diverged { reason, demoted };
        let kind = EventKind::Flow { share, flow, news };
        context.out.tell(context.now, kind);
        if !demoted {
            return;
        }
        context.out.act(Action::Twin(
            share,
            TwinAction::MarkDemoted { flow, reason },
        ));
        let closed = Message::Flow(
            self.scope_under(owner, generation),
            FlowMessage::TwinClosed { flow, reason },
        );
        context.send(owner.peer, closed);
    }

    /// As the owner: a twin lags by more than `lag_limit`, and its client is to
    /// wait for it. People hear of it once per connection.
    pub(super) fn wait_for(&mut self, flow: FlowId, context: &mut Context<'_>) {
        if self.flows.waited_for.len() < MAX_FLOWS && self.flows.waited_for.insert(flow) {
            let share = self.id;
            let news = FlowNews::Waiting;
            let kind = EventKind::Flow { share, flow, news };
            context.out.tell(context.now, kind);
        }
    }
}
