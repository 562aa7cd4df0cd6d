//! Snapshots that a server must never go back from: what the core decides of them
//! ([`godwit_core::snapshot::commit`]) is carried out here.

use std::sync::Arc;

use godwit_bpf::{FlowState, Phase};
use godwit_core::snapshot::commit::{self, CommitAction, Look, Standing};
use godwit_core::{FlowEvent, FlowEventKind, MonoTime};
use godwit_sock::destroy_tcp;
use godwit_wire::app::{SnapshotKind, SnapshotPlace};
use godwit_wire::{FlowId, FlowKey, Role, ShareId, UnprotectedReason};

use super::Driver;
use super::shares::Shares;
use super::twins::note;
use crate::apps::{Asker, Commit, Weight};
use crate::clock;

pub(super) type Commits = commit::Commits<Asker, Arc<Weight>>;

/// How a flow stands to its standby.
pub(super) fn standing(flow: &FlowState) -> Standing {
    match flow.phase {
        Phase::Protected => Standing::Served,
        Phase::Unprotected if flow.why == Some(UnprotectedReason::GateOff) => Standing::Served,
        Phase::Rejoining if flow.gated => Standing::Answering,
        Phase::Rejoining => Standing::Rejoining,
        Phase::Confirming => Standing::Confirming,
        Phase::Unprotected | Phase::Twin | Phase::Closed | Phase::Ended | Phase::Unknown(_) => {
            Standing::Alone
        }
    }
}

/// A flow of a share whose twins stand at snapshots.
fn look_at(share: ShareId, flow: &FlowState, shares: &Shares) -> Option<Look> {
    let entry = &shares.get(share)?.entry;
    let owns = entry.role == Role::Owner && !entry.generation.is_none();
    Some(Look {
        share,
        flow: flow.id,
        generation: flow.generation,
        standing: standing(flow),
        current: owns && flow.generation == entry.generation,
    })
}

impl Driver {
    /// A server must not go back behind this snapshot.
    pub(super) fn begin_commit(&mut self, commit: Commit, now: MonoTime) {
        let Commit { flow, asker, state } = commit;
        let look = self.look_at_commit(flow);
        self.snapshots
            .commits
            .handle_commit(look, asker, state, &mut self.snapshots.exports, now);
        self.carry_out_commits(now);
    }

    /// Those whose time is over, and those that can be sent by now.
    pub(super) fn look_after_commits(&mut self, now: MonoTime) {
        let (shares, datapath) = (&self.ground.shares, &self.ground.datapath);
        let look = |share: ShareId, key: FlowKey| {
            let flow = datapath.flows.get(key).ok().flatten()?;
            look_at(share, &flow, shares)
        };
        self.snapshots
            .commits
            .handle_timeout(look, &mut self.snapshots.exports, now);
        self.carry_out_commits(now);
    }

    fn look_at_commit(&self, key: FlowKey) -> Option<Look> {
        let share = self.snapshots.exports.share_of(key)?;
        let flow = self.ground.datapath.flows.get(key).ok().flatten()?;
        look_at(share, &flow, &self.ground.shares)
    }

    fn carry_out_commits(&mut self, now: MonoTime) {
        while let Some(action) = self.snapshots.commits.poll_action() {
            match action {
                CommitAction::Send(look, parcel) => {
                    let flow = self.ground.flow(look.flow);
                    if let Some(flow) = flow {
                        self.send_parcel(&flow, parcel, now);
                    }
                }
                CommitAction::GiveUp(share, flow, reason) => {
                    tracing::info!(flow = %flow.key, %reason, "a server's snapshot is not safe");
                    if !self.ground.node.handle_commit_failed(share, flow, now) {
                        self.snapshots.commits.handle_given_up(flow.key);
                    }
                }
                CommitAction::Answer(asker, refusal) => {
                    self.ground.apps.answer_commit(asker, refusal)
                }
                CommitAction::Pass(event) => self.ground.node.handle_flow_event(event, now),
            }
        }
    }

    /// No standby will serve these any more: what they wait for will not come.
    pub(super) fn end_commits(&mut self, of: impl Fn(ShareId, FlowId) -> bool) {
        self.snapshots.commits.handle_end(of);
        self.carry_out_commits(clock::now());
    }

    /// The standby's twin stands where a server must not go back from.
    pub(super) fn note_commit_held(&mut self, flow: FlowId, number: u64, now: MonoTime) {
        let look = self.look_at_commit(flow.key);
        self.snapshots
            .commits
            .handle_held(flow, number, look, &mut self.snapshots.exports);
        self.carry_out_commits(now);
    }

    /// Whether the core has to wait for this word of the data path: the twin has all
    /// that its client was told, and is not known to stand where its server may be.
    pub(super) fn holds_back(&mut self, event: FlowEvent) -> bool {
        let kept = self
            .ground
            .shares
            .get(event.share)
            .is_some_and(|share| share.kept);
        if event.kind != FlowEventKind::Whole || !kept {
            return false;
        }
        self.snapshots.commits.handle_whole(event);
        true
    }

    /// What these connections have exported is known. Several processes may show one, for a
    /// while, and any of them may have committed.
    pub(super) fn let_whole_pass(&mut self, keys: &[FlowKey], now: MonoTime) {
        if keys.is_empty() {
            return;
        }
        let committed = self
            .ground
            .apps
            .committed(|key| keys.contains(&key), is_committed);
        let commits = |key| committed.contains(&key);
        self.snapshots.commits.handle_exports(keys, commits);
        self.carry_out_commits(now);
    }

    /// The standby lacks what a server must not go back behind, and the client has not
    /// acknowledged all output before that: one or the other is waited for.
    pub(super) fn want_commit(&mut self, share: ShareId, flow: &FlowState, now: MonoTime) {
        if let Some(look) = look_at(share, flow, &self.ground.shares) {
            self.snapshots.commits.handle_lack(look, now);
        }
    }

    /// The share has moved away, and our server's sockets are its twins. One that has
    /// committed would not say the same from here on, so it is no twin; the new owner
    /// has another one made. (One that the new owner's server commits first: see the
    /// keeper.)
    pub(super) fn end_committed_twins(&self, share: ShareId) {
        let of_share = |flow| self.snapshots.exports.share_of(flow) == Some(share);
        for flow in self.ground.apps.committed(of_share, is_committed) {
            note(flow, destroy_tcp(self.ground.voice.ifindex, flow));
        }
    }

    /// As the standby: a twin has come to a commit.
    pub(super) fn answer_held(&mut self, share: ShareId, flow: FlowId, number: u64) {
        let now = clock::now();
        self.ground
            .node
            .handle_snapshot_kept(share, flow, Some(number), now);
    }
}

/// Whether a connection must not go back behind the oldest of its snapshots.
pub(super) fn is_committed(kept: &[SnapshotPlace]) -> bool {
    let kind = kept.last().map(|place| place.kind);
    kind == Some(SnapshotKind::Commit)
}
