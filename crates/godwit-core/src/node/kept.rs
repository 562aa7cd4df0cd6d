//! Snapshots of what servers know of their connections, from the owner to its standby.
//!
//! Which one to send, and where to keep it, is the agent's business: it follows from
//! positions in streams alone. Here is only that the right node says it to the right
//! one, of the generation that they are both in.

use godwit_wire::{FlowId, Message, ShareId, SnapshotMessage, SnapshotPart};

use super::Node;
use super::action::{Action, SnapshotAction};
use super::context::Context;
use super::share::ShareSide;
use crate::MonoTime;
use crate::flow::{Report, State as Supervised};
use crate::share::State;

impl Node {
    /// As the owner: the standby is to keep this part of a snapshot. Whoever gave it
    /// waits for [`SnapshotAction::Kept`] before the next snapshot of that flow.
    pub fn handle_snapshot(
        &mut self,
        share: ShareId,
        flow: FlowId,
        part: &SnapshotPart,
        now: MonoTime,
    ) {
        self.with_share(share, now, |share, context| {
            share.send_snapshot(flow, part, context);
        });
        self.settle(now);
    }

    /// [`SnapshotAction::Keep`] was carried out, and the snapshot is whole; of a
    /// commit: its twin has come there.
    pub fn handle_snapshot_kept(
        &mut self,
        share: ShareId,
        flow: FlowId,
        commit: Option<u64>,
        now: MonoTime,
    ) {
        self.with_share(share, now, |share, context| {
            if let State::Shadow { owner, generation } = share.machine.state() {
                let kept = Message::Snapshot(
                    share.scope_under(owner, generation),
                    SnapshotMessage::Kept { flow, commit },
                );
                context.send(owner.peer, kept);
            }
        });
        self.settle(now);
    }

    /// As the owner: the flow's server must not go back from where it stands, and the
    /// standby is not known to have come there: it must not serve the flow.
    ///
    /// True if it might until [`crate::FlowAction::Ungate`] or [`crate::ShareAction::ReleaseGate`];
    /// false if no standby would.
    pub fn handle_commit_failed(&mut self, share: ShareId, flow: FlowId, now: MonoTime) -> bool {
        let mut might = false;
        self.with_share(share, now, |share, context| {
            might = share.fail_commit(flow, context);
        });
        self.settle(now);
        might
    }
}

impl ShareSide {
    fn send_snapshot(&self, flow: FlowId, part: &SnapshotPart, context: &mut Context<'_>) {
        if self.machine.state() != State::Owner {
            return;
        }
        for peer in self.in_sync.members() {
            let message = Message::Snapshot(
                self.scope(self.in_sync.generation()),
                SnapshotMessage::Keep {
                    flow,
                    part: part.clone(),
                },
            );
            context.send(peer, message);
        }
    }

    /// From our owner, in the generation that we are in.
    pub(super) fn handle_snapshot_order(&self, order: &SnapshotMessage, context: &mut Context<'_>) {
        match order {
            SnapshotMessage::Keep { flow, part } => self.keep_snapshot(*flow, part, context),
            // Only a standby says it.
            SnapshotMessage::Kept { .. } => {}
        }
    }

    /// From the standby that has the twin.
    pub(super) fn handle_snapshot_answer(
        &self,
        answer: &SnapshotMessage,
        context: &mut Context<'_>,
    ) {
        match answer {
            SnapshotMessage::Kept { flow, commit } => {
                self.note_snapshot_kept(*flow, *commit, context);
            }
            // Only an owner says it.
            SnapshotMessage::Keep { .. } => {}
        }
    }

    fn keep_snapshot(&self, flow: FlowId, part: &SnapshotPart, context: &mut Context<'_>) {
        context.out.act(Action::Snapshot(
            self.id,
            SnapshotAction::Keep {
                flow,
                part: part.clone(),
            },
        ));
    }

    fn note_snapshot_kept(&self, flow: FlowId, commit: Option<u64>, context: &mut Context<'_>) {
        let share = self.id;
        context.out.act(Action::Snapshot(
            share,
            SnapshotAction::Kept { flow, commit },
        ));
    }

    fn fail_commit(&mut self, flow: FlowId, context: &mut Context<'_>) -> bool {
        if self.machine.state() != State::Owner || self.in_sync.generation().is_none() {
            return false;
        }
        if matches!(
            self.flows.supervision.state(&flow),
            Some(Supervised::Demoted(_))
        ) {
            return false;
        }
        // Before it is asked: it must not be admitted behind the question.
        self.flows.rejoin.handle_lost(flow, context.now);
        self.flows
            .supervision
            .handle_report(flow, Report::CommitFailed, context.now);
        true
    }
}
