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
//!
//! [`Commits`] decides. Its driver tells it what becomes of flows, looks at one when it is asked
//! ([`Look`]), and carries out what [`Commits::poll_action`] says, in that order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use godwit_wire::app::CommitRefusal;
use godwit_wire::{FlowId, FlowKey, Generation, ShareId};

use super::exports::Exports;
use super::parcel::{Exported, Parcel};
use super::room::Urgency;
use crate::{FlowEvent, MonoTime};

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

/// How an owner's flow stands to its standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is no twin, and none is being made.
    Alone,
    /// Its first twin is being made.
    Confirming,
    /// A new twin is being made, which does not answer yet.
    Rejoining,
    /// A new twin answers, and does not count yet.
    Answering,
    /// The standby would serve it now.
    Served,
}

impl Standing {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::Alone,
        Self::Confirming,
        Self::Rejoining,
        Self::Answering,
        Self::Served,
    ];

    /// Whether there is a twin that could come to a commit.
    #[must_use]
    pub const fn has_twin(self) -> bool {
        match self {
            Self::Answering | Self::Served => true,
            Self::Alone | Self::Confirming | Self::Rejoining => false,
        }
    }

    /// Whether the twin is another one than the connection began with.
    const fn is_new(self) -> bool {
        match self {
            Self::Rejoining | Self::Answering => true,
            Self::Alone | Self::Confirming | Self::Served => false,
        }
    }
}

/// A flow, as its owner's data path has it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Whose it is.
    pub share: ShareId,
    /// Which of those that had its addresses.
    pub flow: FlowId,
    /// For the standby of which generation.
    pub generation: Generation,
    /// How it stands to that.
    pub standing: Standing,
    /// Whether this node owns the share, and that generation is the present one.
    pub current: bool,
}

impl Look {
    /// Whether a standby would serve it, or is about to be able to.
    #[must_use]
    pub fn concerns(&self) -> bool {
        self.current && self.standing != Standing::Alone
    }
}

/// A snapshot, and what was written before it and is not acknowledged. `W` is what it costs its
/// process to have it under way.
#[derive(Debug, Clone)]
pub struct Committed<W> {
    /// The snapshot.
    pub exported: Exported,
    /// The last bytes before where it was made.
    pub output: Vec<u8>,
    /// Nothing if nobody has asked.
    pub weight: Option<W>,
}

impl<W> Committed<W> {
    /// Its size in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.exported.carried.bytes.len() + self.output.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is to be done.
#[derive(Debug)]
pub enum CommitAction<A> {
    /// To the standby.
    Send(Look, Parcel),
    /// The standby must not serve this flow. If none would anyway,
    /// [`Commits::handle_given_up`] says so.
    GiveUp(ShareId, FlowId, CommitRefusal),
    /// A server goes on.
    Answer(A, Option<CommitRefusal>),
    /// The data path's word counts now.
    Pass(FlowEvent),
}

/// What is to be safe, and what is. `A` is a server that waits.
#[derive(Debug)]
pub struct Commits<A, W> {
    pending: BTreeMap<FlowKey, Pending<A, W>>,
    /// Connections whose twin has come to their last commit, or beyond.
    held: BTreeMap<FlowKey, (FlowId, Generation)>,
    /// New twins that lack nothing, or nothing but a commit.
    whole: BTreeMap<FlowKey, FlowEvent>,
    /// When was last looked.
    looked: MonoTime,
    /// Some that a server waits for found no room then: newer ones wait behind them.
    crowded: bool,
    actions: VecDeque<CommitAction<A>>,
}

/// One that is not settled.
#[derive(Debug)]
struct Pending<A, W> {
    share: ShareId,
    flow: FlowId,
    /// `None` if the client has not acknowledged all output before it, and nobody waits.
    committed: Option<Committed<W>>,
    askers: Vec<A>,
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

impl<A, W> Pending<A, W> {
    /// Where no server waits a new twin does, as do those that begin at a snapshot.
    const fn urgency(&self) -> Urgency {
        if self.askers.is_empty() {
            Urgency::Ordinary
        } else {
            Urgency::Awaited
        }
    }
}

impl<A, W> Default for Commits<A, W> {
    fn default() -> Self {
        Self {
            pending: BTreeMap::new(),
            held: BTreeMap::new(),
            whole: BTreeMap::new(),
            looked: MonoTime::ZERO,
            crowded: false,
            actions: VecDeque::new(),
        }
    }
}

impl<A, W: Clone> Commits<A, W> {
    /// When to call [`Commits::handle_timeout`], if anybody waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        let due = self.looked.saturating_add(LOOK);
        (!self.pending.is_empty()).then_some(due)
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<CommitAction<A>> {
        self.actions.pop_front()
    }

    /// A server must not go back behind this snapshot, or behind one that can't be had.
    /// Without `asker` nobody waits: a new standby lacks what was safe before. `look` is
    /// `None` if there is no such flow.
    pub fn handle_commit(
        &mut self,
        look: Option<Look>,
        asker: Option<A>,
        state: Result<Committed<W>, CommitRefusal>,
        exports: &mut Exports,
        now: MonoTime,
    ) {
        let Some(look) = look.filter(Look::concerns) else {
            let refusal = Some(CommitRefusal::Unprotected);
            let answer = asker.map(|asker| CommitAction::Answer(asker, refusal));
            return self.actions.extend(answer);
        };
        let held = self.is_held(look.flow, look.generation);
        let key = look.flow.key;
        match (self.pending.get_mut(&key), &asker) {
            // Its flow is being given up.
            (Some(before), _) if matches!(before.stage, Stage::Refused(_)) => {
                return before.askers.extend(asker);
            }
            // What the standby lacked is on its way.
            (Some(before), None) if before.committed.is_some() => return,
            (None, None) if held => return,
            (Some(_) | None, _) => {}
        }
        let before = self.pending.remove(&key);
        // Nobody goes back behind this one, so neither behind the one before.
        let mut askers = before.map(|before| before.askers).unwrap_or_default();
        askers.extend(asker);
        self.held.remove(&key);
        let refusal = state.as_ref().err().copied();
        self.await_commit(look, state.ok(), askers, now);
        match refusal {
            Some(reason) => self.refuse(key, reason, now),
            // One that finds no room goes later.
            None if self.crowded => {}
            None => {
                self.send(look, exports, now);
            }
        }
    }

    /// The standby lacks what a server must not go back behind, and the client has not
    /// acknowledged all output before that: one or the other is waited for.
    pub fn handle_lack(&mut self, look: Look, now: MonoTime) {
        if !self.pending.contains_key(&look.flow.key) {
            self.await_commit(look, None, Vec::new(), now);
        }
    }

    /// Those whose time is over, and those that can be sent by now.
    pub fn handle_timeout(
        &mut self,
        look: impl Fn(ShareId, FlowKey) -> Option<Look>,
        exports: &mut Exports,
        now: MonoTime,
    ) {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        self.looked = now;
        // Who has waited longest comes first.
        let pending = self.pending.iter();
        let mut keys: Vec<_> = pending.map(|(key, it)| (it.until, *key)).collect();
        keys.sort_unstable();
        // Of those that servers wait for, and of others.
        let (mut urgent_room, mut other_room) = (true, true);
        for (_, key) in keys {
            let Some(pending) = self.pending.get(&key) else {
                continue;
            };
            let (stage, share, flow) = (pending.stage, pending.share, pending.flow);
            let late = pending.until <= now;
            let lacks = pending.committed.is_none();
            let room = match pending.urgency() {
                Urgency::Awaited => &mut urgent_room,
                Urgency::Ordinary => &mut other_room,
            };
            let found = || look(share, key).filter(|look| look.flow == flow);
            match stage {
                // A server is not kept waiting for ever.
                Stage::Refused(reason) if late => self.settle(key, Some(reason)),
                Stage::Refused(_) => {}
                Stage::Held if is_served(found()) => self.settle(key, None),
                Stage::Waiting | Stage::Sent(_) | Stage::Held if late => {
                    self.refuse(key, CommitRefusal::Late, now);
                }
                Stage::Sent(_) => {}
                // The word that its twin is whole may come after this.
                Stage::Held => self.pass(key),
                // It is looked at with all exports.
                Stage::Waiting if lacks || !*room => {}
                Stage::Waiting => match found().filter(Look::concerns) {
                    Some(look) => *room = self.send(look, exports, now),
                    None => self.refuse(key, CommitRefusal::Unprotected, now),
                },
            }
        }
        self.crowded = !urgent_room;
    }

    /// The standby's twin stands where a server must not go back from.
    pub fn handle_held(
        &mut self,
        flow: FlowId,
        number: u64,
        look: Option<Look>,
        exports: &mut Exports,
    ) {
        let Some(generation) = exports.note_commit(flow, number) else {
            return;
        };
        let served = is_served(look.filter(|look| look.flow == flow));
        let pending = self.pending.get_mut(&flow.key);
        match pending.as_ref().map(|pending| pending.stage) {
            Some(Stage::Sent(sent)) if sent == number && served => self.settle(flow.key, None),
            Some(Stage::Sent(sent)) if sent == number => {
                pending.into_iter().for_each(|p| p.stage = Stage::Held);
            }
            // A later one is on its way, or it is too late.
            Some(Stage::Sent(_) | Stage::Held | Stage::Waiting | Stage::Refused(_)) => return,
            None => {}
        }
        self.held.insert(flow.key, (flow, generation));
        self.pass(flow.key);
    }

    /// No standby serves these flows any more: what they wait for will not come.
    pub fn handle_end(&mut self, of: impl Fn(ShareId, FlowId) -> bool) {
        let pending = self.pending.iter();
        let over = pending.filter(|(_, pending)| of(pending.share, pending.flow));
        let over: Vec<_> = over.map(|(key, _)| *key).collect();
        for key in over {
            self.handle_given_up(key);
        }
    }

    /// No standby serves this connection from an older snapshot any more.
    pub fn handle_given_up(&mut self, key: FlowKey) {
        let reason = match self.pending.get(&key).map(|pending| pending.stage) {
            Some(Stage::Refused(reason)) => reason,
            Some(Stage::Waiting | Stage::Sent(_) | Stage::Held) => CommitRefusal::Unprotected,
            None => return,
        };
        self.settle(key, Some(reason));
    }

    /// The link was lost, and what was under way on it.
    pub fn handle_link_change(&mut self) {
        for pending in self.pending.values_mut() {
            if let Stage::Sent(_) | Stage::Held = pending.stage {
                pending.stage = Stage::Waiting;
            }
        }
    }

    /// The data path's word that a twin has all that its client was told. It counts once the
    /// twin is known to stand where its server may be.
    pub fn handle_whole(&mut self, event: FlowEvent) {
        self.whole.insert(event.flow.key, event);
    }

    /// What these connections have exported is known, and which of them have `committed`. A
    /// new twin of one that never committed may begin anywhere.
    pub fn handle_exports(&mut self, keys: &[FlowKey], committed: impl Fn(FlowKey) -> bool) {
        for key in keys {
            if !committed(*key) || self.has_all(*key) {
                self.pass(*key);
            }
        }
    }

    /// A new twin is about to be made, or the connection is over.
    pub fn forget(&mut self, key: FlowKey) {
        self.held.remove(&key);
        self.whole.remove(&key);
    }

    /// Nothing is known any more of the twins of these connections.
    pub fn forget_all(&mut self, of: impl Fn(FlowKey) -> bool) {
        self.held.retain(|key, _| !of(*key));
        self.whole.retain(|key, _| !of(*key));
    }

    /// Whether snapshots of a connection have to wait.
    #[must_use]
    pub fn is_under_way(&self, key: FlowKey) -> bool {
        let pending = self.pending.get(&key);
        pending.is_some_and(|pending| {
            pending.committed.is_some() || matches!(pending.stage, Stage::Refused(_))
        })
    }

    /// Whether the standby of that generation has what its server must not go back behind.
    #[must_use]
    pub fn is_held(&self, flow: FlowId, generation: Generation) -> bool {
        self.held.get(&flow.key) == Some(&(flow, generation))
    }

    /// How many are under way of a share: it had better not move now.
    #[must_use]
    pub fn count(&self, share: ShareId) -> u32 {
        let of_share = |pending: &&Pending<A, W>| pending.share == share;
        u32::try_from(self.pending.values().filter(of_share).count()).unwrap_or(u32::MAX)
    }

    /// Whether a new twin stands where its server must not go back from, and lacks nothing
    /// else.
    #[must_use]
    pub fn has_all(&self, key: FlowKey) -> bool {
        let event = self.whole.get(&key);
        event.is_some_and(|event| self.is_held(event.flow, event.generation))
    }

    /// Whether its new twin lacks nothing, or nothing but a commit.
    #[must_use]
    pub fn is_whole(&self, key: FlowKey) -> bool {
        self.whole.contains_key(&key)
    }

    fn await_commit(
        &mut self,
        look: Look,
        committed: Option<Committed<W>>,
        askers: Vec<A>,
        now: MonoTime,
    ) {
        // A new twin hears first what its client has said.
        let is_new = look.standing.is_new() && askers.is_empty();
        let limit = if is_new { TWIN_LIMIT } else { LIMIT };
        let pending = Pending {
            share: look.share,
            flow: look.flow,
            committed,
            askers,
            stage: Stage::Waiting,
            until: now.saturating_add(limit),
        };
        self.pending.insert(look.flow.key, pending);
    }

    /// To the standby, once there is a twin; false if too much is on its way already.
    fn send(&mut self, look: Look, exports: &mut Exports, now: MonoTime) -> bool {
        let Some(pending) = self.pending.get_mut(&look.flow.key) else {
            return true;
        };
        let (Stage::Waiting, Some(committed), true) =
            (pending.stage, &pending.committed, look.standing.has_twin())
        else {
            return true;
        };
        let urgency = pending.urgency();
        if !exports.under_way().has_room(urgency, committed.len()) {
            return false;
        }
        let number = exports.next_number();
        let parcel = Parcel {
            commit: Some(number),
            exported: committed.exported.clone(),
            output: committed.output.clone(),
        };
        pending.stage = Stage::Sent(number);
        exports.note_sent(look.flow, look.generation, &parcel, now);
        if urgency == Urgency::Awaited {
            exports.note_urgent(look.flow.key);
        }
        self.actions.push_back(CommitAction::Send(look, parcel));
        true
    }

    /// The standby is not to serve the flow; the server hears of it when that is sure.
    fn refuse(&mut self, key: FlowKey, reason: CommitRefusal, now: MonoTime) {
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        pending.stage = Stage::Refused(reason);
        pending.until = now.saturating_add(DEMOTION);
        let give_up = CommitAction::GiveUp(pending.share, pending.flow, reason);
        self.actions.push_back(give_up);
    }

    fn settle(&mut self, key: FlowKey, refusal: Option<CommitRefusal>) {
        let askers = self.pending.remove(&key).map(|pending| pending.askers);
        let askers = askers.into_iter().flatten();
        let answers = askers.map(|asker| CommitAction::Answer(asker, refusal));
        self.actions.extend(answers);
    }

    fn pass(&mut self, key: FlowKey) {
        let event = self.whole.remove(&key);
        self.actions.extend(event.map(CommitAction::Pass));
    }
}

fn is_served(look: Option<Look>) -> bool {
    look.is_some_and(|look| look.standing == Standing::Served)
}

#[cfg(test)]
mod tests;
