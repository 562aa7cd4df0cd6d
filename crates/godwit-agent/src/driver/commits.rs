//! Snapshots that a server must never go back from: the server waits until its standby
//! has the twin stand there, or will not serve the connection at all.
//!
//! ```text
//!  server waits ──► Waiting ──a twin──► Sent ──it is there──► Held ──protected──► safe
//!                      │                  │                     │
//!                      └─── a second, or no twin ───────────────┴──► Refused ──demoted──► not safe
//! ```
//!
//! So while this node owns the service, a connection never goes on from an older snapshot
//! than its server was told. (`Held` is skipped by a flow that is protected all along.)
//! A twin that is born later gets the latest one before it counts: the data path's
//! word that it has all else is held back until then ([`Commits::whole`]). The output
//! before a commit is had only from a server that waits. So a new twin waits until the
//! client has acknowledged that, or until its server commits again.
//!
//! A snapshot is sent once, and again only after the link was lost.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_bpf::{FlowState, Phase};
use godwit_core::snapshot::parcel::Parcel;
use godwit_core::snapshot::room::Urgency;
use godwit_core::{FlowEvent, FlowEventKind, MonoTime};
use godwit_sock::destroy_tcp;
use godwit_wire::app::{CommitRefusal, SnapshotKind, SnapshotPlace};
use godwit_wire::{FlowId, FlowKey, Generation, Role, ShareId, UnprotectedReason};

use super::Driver;
use super::twins::note;
use crate::apps::{Asker, Commit, Committed};
use crate::clock;

/// How long a standby may take. As long as a twin may need that is being made.
const LIMIT: Duration = Duration::from_secs(1);

/// The same, of a new twin that nobody waits for.
const TWIN_LIMIT: Duration = Duration::from_secs(10);

/// How long a demotion may take to be known to all who have to know it: half a second
/// if the standby is silent, and what it takes to agree that it has left. With [`LIMIT`]
/// that is as long as a server waits.
const DEMOTION: Duration = Duration::from_secs(4);

/// How often those who wait are looked after.
const LOOK: Duration = Duration::from_millis(1);

/// What is to be safe, and what is.
#[derive(Debug, Default)]
pub(super) struct Commits {
    pending: BTreeMap<FlowKey, Pending>,
    /// Connections whose twin has come to their last commit, or beyond.
    held: BTreeMap<FlowKey, (FlowId, Generation)>,
    /// New twins that lack nothing, or nothing but a commit.
    whole: BTreeMap<FlowKey, FlowEvent>,
    /// When was last looked.
    looked: MonoTime,
    /// Some that a server waits for found no room then: newer ones wait behind them.
    crowded: bool,
}

/// One that is not settled.
#[derive(Debug)]
struct Pending {
    share: ShareId,
    flow: FlowId,
    /// `None` if the client has not acknowledged all output before it, and nobody waits.
    committed: Option<Committed>,
    askers: Vec<Asker>,
    stage: Stage,
    until: MonoTime,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is no twin that could go there.
    Waiting,
    /// Under this number.
    Sent(u64),
    /// The twin stands there, and its flow is not protected yet: it would be reset.
    Held,
    /// The standby is not to serve the flow.
    Refused(CommitRefusal),
}

impl Pending {
    /// Where no server waits a new twin does, as do those that begin at a snapshot.
    const fn urgency(&self) -> Urgency {
        if self.askers.is_empty() {
            Urgency::Ordinary
        } else {
            Urgency::Awaited
        }
    }
}

impl Commits {
    /// When to look next, if anybody waits.
    pub(super) fn due(&self) -> Option<MonoTime> {
        let due = self.looked.saturating_add(LOOK);
        (!self.pending.is_empty()).then_some(due)
    }

    /// Whether snapshots of a connection have to wait.
    pub(super) fn is_under_way(&self, key: FlowKey) -> bool {
        let pending = self.pending.get(&key);
        pending.is_some_and(|pending| {
            pending.committed.is_some() || matches!(pending.stage, Stage::Refused(_))
        })
    }

    /// Whether the standby of that stay has what its server must not go back behind.
    pub(super) fn is_held(&self, flow: FlowId, generation: Generation) -> bool {
        self.held.get(&flow.key) == Some(&(flow, generation))
    }

    /// A new twin is about to be made, or the connection is over.
    pub(super) fn forget(&mut self, key: FlowKey) {
        self.held.remove(&key);
        self.whole.remove(&key);
    }

    /// The link was lost, and what was under way on it.
    pub(super) fn send_again(&mut self) {
        for pending in self.pending.values_mut() {
            if let Stage::Sent(_) | Stage::Held = pending.stage {
                pending.stage = Stage::Waiting;
            }
        }
    }

    /// How many are under way of a share: it had better not move now.
    pub(super) fn count(&self, share: ShareId) -> u32 {
        let of_share = |pending: &&Pending| pending.share == share;
        u32::try_from(self.pending.values().filter(of_share).count()).unwrap_or(u32::MAX)
    }

    /// Whether a new twin stands where its server must not go back from, and lacks nothing
    /// else.
    pub(super) fn has_all(&self, key: FlowKey) -> bool {
        let event = self.whole.get(&key);
        event.is_some_and(|event| self.is_held(event.flow, event.generation))
    }

    /// Nothing is known any more of the twins of these connections.
    pub(super) fn forget_all(&mut self, of: impl Fn(FlowKey) -> bool) {
        self.held.retain(|key, _| !of(*key));
        self.whole.retain(|key, _| !of(*key));
    }

    /// Twins that lack nothing, or nothing but a commit.
    pub(super) fn is_whole(&self, key: FlowKey) -> bool {
        self.whole.contains_key(&key)
    }
}

/// Whether a flow has a twin that could come to a commit.
pub(super) fn has_twin(flow: &FlowState) -> bool {
    match flow.phase {
        Phase::Protected => true,
        Phase::Rejoining => flow.gated,
        Phase::Unprotected => flow.why == Some(UnprotectedReason::GateOff),
        Phase::Confirming | Phase::Twin | Phase::Closed | Phase::Ended | Phase::Unknown(_) => false,
    }
}

/// Whether its standby would serve it now.
fn is_served(flow: &FlowState) -> bool {
    match flow.phase {
        Phase::Protected => true,
        Phase::Unprotected => flow.why == Some(UnprotectedReason::GateOff),
        Phase::Rejoining
        | Phase::Confirming
        | Phase::Twin
        | Phase::Closed
        | Phase::Ended
        | Phase::Unknown(_) => false,
    }
}

/// Whether a standby would serve it, or is about to be able to.
fn may_be_served(flow: &FlowState, generation: Generation) -> bool {
    let begins = matches!(flow.phase, Phase::Confirming | Phase::Rejoining);
    !generation.is_none() && flow.generation == generation && (has_twin(flow) || begins)
}

impl Driver {
    /// A server must not go back behind this snapshot.
    pub(super) fn begin_commit(&mut self, commit: Commit, now: MonoTime) {
        let Commit { flow, asker, state } = commit;
        let Some((share, flow)) = self.commit_concerns(flow) else {
            if let Some(asker) = asker {
                let reason = CommitRefusal::Unprotected;
                self.apps.answer_commit(asker, Some(reason));
            }
            return;
        };
        let held = self.commits.is_held(flow.id, flow.generation);
        let (key, before) = (flow.id.key, self.commits.pending.get_mut(&flow.id.key));
        match (before, asker) {
            // Its flow is being given up.
            (Some(before), _) if matches!(before.stage, Stage::Refused(_)) => {
                return before.askers.extend(asker);
            }
            // What the standby lacked is on its way.
            (Some(before), None) if before.committed.is_some() => return,
            (None, None) if held => return,
            (Some(_) | None, _) => {}
        }
        let before = self.commits.pending.remove(&key);
        // Nobody goes back behind this one, so neither behind the one before.
        let mut askers = before.map(|before| before.askers).unwrap_or_default();
        askers.extend(asker);
        self.commits.held.remove(&key);
        let refusal = state.as_ref().err().copied();
        self.await_commit((share, &flow), state.ok(), askers, now);
        match refusal {
            Some(reason) => self.refuse_commit(key, reason, now),
            // One that finds no room goes later.
            None if self.commits.crowded => {}
            None => {
                self.send_commit(&flow, now);
            }
        }
    }

    /// The share and the flow of a connection, if a standby might serve it.
    fn commit_concerns(&self, key: FlowKey) -> Option<(ShareId, FlowState)> {
        let share = self.exports.share_of(key)?;
        let entry = &self.shares.get(share)?.entry;
        let flow = self.datapath.flows.get(key).ok().flatten()?;
        let served = entry.role == Role::Owner && may_be_served(&flow, entry.generation);
        served.then_some((share, flow))
    }

    fn await_commit(
        &mut self,
        (share, flow): (ShareId, &FlowState),
        committed: Option<Committed>,
        askers: Vec<Asker>,
        now: MonoTime,
    ) {
        // A new twin hears first what its client has said.
        let is_new = flow.phase == Phase::Rejoining && askers.is_empty();
        let limit = if is_new { TWIN_LIMIT } else { LIMIT };
        let pending = Pending {
            share,
            flow: flow.id,
            committed,
            askers,
            stage: Stage::Waiting,
            until: now.saturating_add(limit),
        };
        self.commits.pending.insert(flow.id.key, pending);
    }

    /// To the standby, once there is a twin; false if too much is on its way already.
    fn send_commit(&mut self, flow: &FlowState, now: MonoTime) -> bool {
        let Some(pending) = self.commits.pending.get_mut(&flow.id.key) else {
            return true;
        };
        let (Stage::Waiting, Some(committed), true) =
            (pending.stage, &pending.committed, has_twin(flow))
        else {
            return true;
        };
        let urgency = pending.urgency();
        if !self.exports.under_way().has_room(urgency, committed.len()) {
            return false;
        }
        let number = self.exports.next_number();
        let committed = committed.clone();
        let parcel = Parcel {
            commit: Some(number),
            exported: committed.exported,
            output: committed.output,
        };
        pending.stage = Stage::Sent(number);
        self.send_snapshot(flow, parcel, now);
        if urgency == Urgency::Awaited {
            self.exports.note_urgent(flow.id.key);
        }
        true
    }

    /// Those whose time is over, and those that can be sent by now.
    pub(super) fn look_after_commits(&mut self, now: MonoTime) {
        if self.commits.due().is_none_or(|due| due > now) {
            return;
        }
        self.commits.looked = now;
        // Who has waited longest comes first.
        let pending = self.commits.pending.iter();
        let mut keys: Vec<_> = pending.map(|(key, it)| (it.until, *key)).collect();
        keys.sort_unstable();
        // Of those that servers wait for, and of others.
        let (mut urgent_room, mut other_room) = (true, true);
        for (_, key) in keys {
            let Some(pending) = self.commits.pending.get(&key) else {
                continue;
            };
            let (stage, flow, late) = (pending.stage, pending.flow, pending.until <= now);
            let lacks = pending.committed.is_none();
            let room = match pending.urgency() {
                Urgency::Awaited => &mut urgent_room,
                Urgency::Ordinary => &mut other_room,
            };
            match stage {
                // A server is not kept waiting for ever.
                Stage::Refused(reason) if late => self.settle_commit(key, Some(reason)),
                Stage::Refused(_) => {}
                Stage::Held if self.is_served(flow) => self.settle_commit(key, None),
                Stage::Waiting | Stage::Sent(_) | Stage::Held if late => {
                    self.refuse_commit(key, CommitRefusal::Late, now);
                }
                Stage::Sent(_) => {}
                // The word that its twin is whole may come after this.
                Stage::Held => self.pass_whole(key, now),
                // It is looked at with all exports.
                Stage::Waiting if lacks || !*room => {}
                Stage::Waiting => match self.commit_concerns(key) {
                    Some((_, state)) if state.id == flow => *room = self.send_commit(&state, now),
                    Some(_) | None => {
                        self.refuse_commit(key, CommitRefusal::Unprotected, now);
                    }
                },
            }
        }
        self.commits.crowded = !urgent_room;
    }

    /// The standby is not to serve the flow; the server hears of it when that is sure.
    fn refuse_commit(&mut self, key: FlowKey, reason: CommitRefusal, now: MonoTime) {
        let Some(pending) = self.commits.pending.get_mut(&key) else {
            return;
        };
        pending.stage = Stage::Refused(reason);
        pending.until = now.saturating_add(DEMOTION);
        let (share, flow) = (pending.share, pending.flow);
        tracing::info!(flow = %key, %reason, "a server's snapshot is not safe");
        if !self.node.handle_commit_failed(share, flow, now) {
            self.settle_commit(key, Some(reason));
        }
    }

    fn is_served(&self, flow: FlowId) -> bool {
        let state = self.datapath.flows.get(flow.key).ok().flatten();
        state.is_some_and(|state| state.id == flow && is_served(&state))
    }

    fn settle_commit(&mut self, key: FlowKey, refusal: Option<CommitRefusal>) {
        let pending = self.commits.pending.remove(&key);
        for asker in pending.into_iter().flat_map(|pending| pending.askers) {
            self.apps.answer_commit(asker, refusal);
        }
    }

    /// No standby will serve these any more: what they wait for will not come.
    pub(super) fn end_commits(&mut self, of: impl Fn(ShareId, FlowId) -> bool) {
        let pending = self.commits.pending.iter();
        let over = pending.filter(|(_, pending)| of(pending.share, pending.flow));
        let over: Vec<_> = over.map(|(key, pending)| (*key, pending.stage)).collect();
        for (key, stage) in over {
            let reason = match stage {
                Stage::Refused(reason) => reason,
                Stage::Waiting | Stage::Sent(_) | Stage::Held => CommitRefusal::Unprotected,
            };
            self.settle_commit(key, Some(reason));
        }
    }

    /// The standby's twin stands where a server must not go back from.
    pub(super) fn note_commit_held(&mut self, flow: FlowId, number: u64, now: MonoTime) {
        let Some(generation) = self.exports.note_commit(flow, number) else {
            return;
        };
        let served = self.is_served(flow);
        let pending = self.commits.pending.get_mut(&flow.key);
        match pending.as_ref().map(|pending| pending.stage) {
            Some(Stage::Sent(sent)) if sent == number && served => {
                self.settle_commit(flow.key, None);
            }
            Some(Stage::Sent(sent)) if sent == number => {
                pending.into_iter().for_each(|p| p.stage = Stage::Held);
            }
            // A later one is on its way, or it is too late.
            Some(Stage::Sent(_) | Stage::Held | Stage::Waiting | Stage::Refused(_)) => return,
            None => {}
        }
        self.commits.held.insert(flow.key, (flow, generation));
        self.pass_whole(flow.key, now);
    }

    /// Whether the core has to wait for this word of the data path: the twin has all
    /// that its client was told, and is not known to stand where its server may be.
    pub(super) fn holds_back(&mut self, event: FlowEvent) -> bool {
        let kept = self.shares.get(event.share).is_some_and(|share| share.kept);
        if event.kind != FlowEventKind::Whole || !kept {
            return false;
        }
        self.commits.whole.insert(event.flow.key, event);
        true
    }

    /// What these connections have exported is known. A new twin of one that never
    /// committed may begin anywhere. Several processes may show one, for a while, and any
    /// of them may have committed.
    pub(super) fn let_whole_pass(&mut self, keys: &[FlowKey], now: MonoTime) {
        if keys.is_empty() {
            return;
        }
        let committed = self.apps.committed(|key| keys.contains(&key), is_committed);
        for key in keys {
            if committed.contains(key) && !self.commits.has_all(*key) {
                continue;
            }
            self.pass_whole(*key, now);
        }
    }

    fn pass_whole(&mut self, key: FlowKey, now: MonoTime) {
        if let Some(event) = self.commits.whole.remove(&key) {
            self.node.handle_flow_event(event, now);
        }
    }

    /// The standby lacks what a server must not go back behind, and the client has not
    /// acknowledged all output before that: one or the other is waited for.
    pub(super) fn want_commit(&mut self, share: ShareId, flow: &FlowState, now: MonoTime) {
        if !self.commits.pending.contains_key(&flow.id.key) {
            self.await_commit((share, flow), None, Vec::new(), now);
        }
    }

    /// The share has moved away, and our server's sockets are its twins. One that has
    /// committed would not say the same from here on, so it is no twin; the new owner
    /// has another one made. (One that the new owner's server commits first: see the
    /// keeper.)
    pub(super) fn end_committed_twins(&self, share: ShareId) {
        let of_share = |flow| self.exports.share_of(flow) == Some(share);
        for flow in self.apps.committed(of_share, is_committed) {
            note(flow, destroy_tcp(self.ifindex, flow));
        }
    }

    /// As the standby: a twin has come to a commit.
    pub(super) fn answer_held(&mut self, share: ShareId, flow: FlowId, number: u64) {
        let now = clock::now();
        self.node
            .handle_snapshot_kept(share, flow, Some(number), now);
    }
}

/// Whether a connection must not go back behind the oldest of its snapshots.
pub(super) fn is_committed(kept: &[SnapshotPlace]) -> bool {
    let kind = kept.last().map(|place| place.kind);
    kind == Some(SnapshotKind::Commit)
}
