//! Snapshots that a server must never go back from: what the core decides of them
//! ([`godwit_core::snapshot::commit`]) is carried out here.

use std::sync::Arc;

use godwit_bpf::{FlowState, Phase};
use godwit_core::snapshot::commit::{self, CommitAction, Look, Standing};
use godwit_core::{FlowEvent, FlowEventKind, MonoTime};
use godwit_sock::destroy_tcp;
use godwit_wire::app::{SnapshotKind, SnapshotPlace};
use godwit_wire::{FlowId, FlowKey, Role, ShareId, UnprotectedReason};

use super::Snapshots;
use super::exports::send_parcel;
use crate::apps::{Asker, Commit, Weight};
use crate::clock;
use crate::driver::ground::Ground;
use crate::driver::shares::Shares;
use crate::driver::twins::note;

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

impl Snapshots {
    /// A server must not go back behind this snapshot.
    pub(in crate::driver) fn begin_commit(
        &mut self,
        ground: &mut Ground,
        commit: Commit,
        now: MonoTime,
    ) {
        let Commit { flow, asker, state } = commit;
        let look = self.look_at_commit(ground, flow);
        self.commits
            .handle_commit(look, asker, state, &mut self.exports, now);
        self.carry_out_commits(ground, now);
    }

    /// Those whose time is over, and those that can be sent by now.
    pub(super) fn look_after_commits(&mut self, ground: &mut Ground, now: MonoTime) {
        let (shares, datapath) = (&ground.shares, &ground.datapath);
        let look = |share: ShareId, key: FlowKey| {
            let flow = datapath.flows.get(key).ok().flatten()?;
            look_at(share, &flow, shares)
        };
        self.commits.handle_timeout(look, &mut self.exports, now);
        self.carry_out_commits(ground, now);
    }

    fn look_at_commit(&self, ground: &Ground, key: FlowKey) -> Option<Look> {
        let share = self.exports.share_of(key)?;
        let flow = ground.datapath.flows.get(key).ok().flatten()?;
        look_at(share, &flow, &ground.shares)
    }

    fn carry_out_commits(&mut self, ground: &mut Ground, now: MonoTime) {
        while let Some(action) = self.commits.poll_action() {
            match action {
                CommitAction::Send(look, parcel) => {
                    let flow = ground.flow(look.flow);
                    if let Some(flow) = flow {
                        send_parcel(ground, &flow, parcel, now);
                    }
                }
                CommitAction::GiveUp(share, flow, reason) => {
                    tracing::info!(flow = %flow.key, %reason, "a server's snapshot is not safe");
                    if !ground.node.handle_commit_failed(share, flow, now) {
                        self.commits.handle_given_up(flow.key);
                    }
                }
                CommitAction::Answer(asker, refusal) => ground.apps.answer_commit(asker, refusal),
                CommitAction::Pass(event) => ground.node.handle_flow_event(event, now),
            }
        }
    }

    /// No standby will serve these any more: what they wait for will not come.
    pub(in crate::driver) fn end_commits(
        &mut self,
        ground: &mut Ground,
        of: impl Fn(ShareId, FlowId) -> bool,
    ) {
        self.commits.handle_end(of);
        self.carry_out_commits(ground, clock::now());
    }

    /// The standby's twin stands where a server must not go back from.
    pub(super) fn note_commit_held(
        &mut self,
        ground: &mut Ground,
        (flow, number): (FlowId, u64),
        now: MonoTime,
    ) {
        let look = self.look_at_commit(ground, flow.key);
        self.commits
            .handle_held(flow, number, look, &mut self.exports);
        self.carry_out_commits(ground, now);
    }

    /// Whether the core has to wait for this word of the data path: the twin has all
    /// that its client was told, and is not known to stand where its server may be.
    pub(super) fn holds_back(&mut self, ground: &Ground, event: FlowEvent) -> bool {
        let kept = ground
            .shares
            .get(event.share)
            .is_some_and(|share| share.kept);
        if event.kind != FlowEventKind::Whole || !kept {
            return false;
        }
        self.commits.handle_whole(event);
        true
    }

    /// What these connections have exported is known. Several processes may show one, for a
    /// while, and any of them may have committed.
    pub(super) fn let_whole_pass(&mut self, ground: &mut Ground, keys: &[FlowKey], now: MonoTime) {
        if keys.is_empty() {
            return;
        }
        let committed = ground
            .apps
            .committed(|key| keys.contains(&key), is_committed);
        let commits = |key| committed.contains(&key);
        self.commits.handle_exports(keys, commits);
        self.carry_out_commits(ground, now);
    }

    /// The standby lacks what a server must not go back behind, and the client has not
    /// acknowledged all output before that: one or the other is waited for.
    pub(super) fn want_commit(
        &mut self,
        ground: &Ground,
        (share, flow): (ShareId, &FlowState),
        now: MonoTime,
    ) {
        if let Some(look) = look_at(share, flow, &ground.shares) {
            self.commits.handle_lack(look, now);
        }
    }

    /// The share has moved away, and our server's sockets are its twins. One that has
    /// committed would not say the same from here on, so it is no twin; the new owner
    /// has another one made. (One that the new owner's server commits first: see the
    /// keeper.)
    pub(in crate::driver) fn end_committed_twins(&self, ground: &Ground, share: ShareId) {
        let of_share = |flow| self.exports.share_of(flow) == Some(share);
        for flow in ground.apps.committed(of_share, is_committed) {
            note(flow, destroy_tcp(ground.voice.ifindex, flow));
        }
    }
}

/// As the standby: a twin has come to a commit.
pub(in crate::driver) fn answer_held(
    ground: &mut Ground,
    share: ShareId,
    flow: FlowId,
    number: u64,
) {
    let now = clock::now();
    ground
        .node
        .handle_snapshot_kept(share, flow, Some(number), now);
}

/// Whether a connection must not go back behind the oldest of its snapshots.
pub(super) fn is_committed(kept: &[SnapshotPlace]) -> bool {
    let kind = kept.last().map(|place| place.kind);
    kind == Some(SnapshotKind::Commit)
}
