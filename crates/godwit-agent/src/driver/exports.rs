//! Snapshots that servers have exported, from the owner to its standby: of each
//! connection the latest of which its client has all that was written before. There is
//! one under way at a time, so a standby that is slow gets fewer, not more; a server
//! that must not go back behind one waits for it (`commits.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_bpf::FlowState;
use godwit_core::MonoTime;
use godwit_wire::app::region::are_large;
use godwit_wire::app::{SnapshotKind, SnapshotPlace};
use godwit_wire::{Endpoint, FlowId, FlowKey, Generation, Role, SeqNumber, ShareId, SnapshotPart};

use super::Driver;
use super::commits::{has_twin, is_committed};
use super::keeper;
use super::parcels::{Parcel, is_same, parcel, part_count, parts};
use super::room::{Room, UnderWay, Urgency, Waiting};
use crate::apps::{self, Committed};
use crate::clock;
use crate::config::Config;

/// Shortest time between two looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// A look may take at most this part of the driver's time.
const SHARE_OF_TIME: u32 = 20;

/// A standby's answer to a commit is waited for so long before a newer snapshot goes.
const ANSWER: Duration = Duration::from_secs(1);

/// What was sent, and what is coming.
#[derive(Debug)]
pub(super) struct Exports {
    due: MonoTime,
    /// Whose connections are kept, by the services' addresses.
    services: BTreeMap<Endpoint, ShareId>,
    sent: BTreeMap<FlowKey, Sent>,
    /// As a standby: what has come of snapshots that are not whole.
    coming: BTreeMap<FlowId, SnapshotPart>,
    /// Of the latest commit.
    number: u64,
    /// Parts that were sent and are without an answer; counted anew at each look.
    under_way: UnderWay,
    /// Who has to be the next, as it found no room.
    waiting: Option<Waiting>,
}

/// What becomes of a connection's snapshots at one look.
enum Choice {
    /// This one is sent.
    Send(FlowState, SnapshotPlace),
    /// This one is sent, and has to arrive.
    Commit(FlowState, SnapshotPlace),
    /// The standby lacks what its server must not go back behind.
    Lacking(ShareId, FlowState),
    /// A new twin has what it needs.
    Whole,
    Nothing,
}

/// The last snapshot of a connection that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    irs: SeqNumber,
    generation: Generation,
    read: u64,
    written: u64,
    /// Messages that it takes.
    parts: usize,
    /// Which commit, if it is one.
    commit: Option<u64>,
    /// The standby has it.
    kept: bool,
    urgency: Urgency,
    /// An answer that says so for a commit may be lost (its standby drops what it has no
    /// room for): nobody waits for it longer than this.
    until: MonoTime,
}

impl Sent {
    /// Whether an answer may still come.
    fn is_awaited(&self, now: MonoTime) -> bool {
        !self.kept && (self.commit.is_none() || now < self.until)
    }

    /// Whether that place is behind this one in the streams.
    fn is_before(&self, place: &SnapshotPlace) -> bool {
        let same = (self.read, self.written) == (place.read, place.written);
        !same && self.read <= place.read && self.written <= place.written
    }
}

impl Exports {
    pub(super) fn new(config: &Config, now: MonoTime) -> Self {
        Self {
            due: now,
            services: keeper::shares(config),
            sent: BTreeMap::new(),
            coming: BTreeMap::new(),
            // Two lives of an agent do not use the same.
            number: now.as_nanos(),
            under_way: UnderWay::default(),
            waiting: None,
        }
    }

    /// The share of a connection whose twin is kept.
    pub(super) fn share_of(&self, flow: FlowKey) -> Option<ShareId> {
        self.services.get(&flow.service).copied()
    }

    /// A number for the next commit.
    pub(super) const fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// When to look next; `None` if this node has no such service.
    pub(super) fn due(&self) -> Option<MonoTime> {
        (!self.services.is_empty()).then_some(self.due)
    }

    /// What is on its way to the standby.
    pub(super) const fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    /// A server waits for the one that was sent last of that connection.
    pub(super) fn note_urgent(&mut self, flow: FlowKey) {
        if let Some(sent) = self.sent.get_mut(&flow) {
            self.under_way.remove(sent.urgency, sent.parts);
            sent.urgency = Urgency::Awaited;
            self.under_way.add(sent.urgency, sent.parts);
        }
    }

    /// Nobody answers what was sent in an earlier stay of the standby.
    fn count(&mut self, is_current: impl Fn(ShareId, Generation) -> bool, now: MonoTime) {
        let services = &self.services;
        let awaited = self.sent.iter().filter(|(key, sent)| {
            let share = services.get(&key.service);
            sent.is_awaited(now) && share.is_some_and(|share| is_current(*share, sent.generation))
        });
        self.under_way = UnderWay::default();
        for (_, sent) in awaited {
            self.under_way.add(sent.urgency, sent.parts);
        }
    }

    /// A link has changed: what was under way on it is lost.
    pub(super) fn forget(&mut self) {
        self.under_way = UnderWay::default();
        self.sent.clear();
        self.coming.clear();
    }

    /// A new twin of a connection is about to be made.
    pub(super) fn note_rejoin(&mut self, flow: FlowKey) {
        self.sent.remove(&flow);
    }

    /// The data path reports a connection's end.
    pub(super) fn note_end(&mut self, flow: FlowId) {
        self.coming.remove(&flow);
        let sent = self.sent.get(&flow.key);
        if sent.is_some_and(|sent| sent.irs == flow.irs) {
            self.sent.remove(&flow.key);
        }
    }

    /// The standby has the last one of that connection.
    pub(super) fn note_kept(&mut self, flow: FlowId) {
        let sent = self.sent.get_mut(&flow.key);
        if let Some(sent) = sent.filter(|sent| sent.irs == flow.irs && sent.commit.is_none()) {
            sent.kept = true;
            self.under_way.remove(sent.urgency, sent.parts);
        }
    }

    /// The twin of that connection stands at this commit, or behind it: in which stay,
    /// if it was the last one that was sent.
    pub(super) fn note_commit(&mut self, flow: FlowId, number: u64) -> Option<Generation> {
        let sent = self.sent.get_mut(&flow.key)?;
        let is_this = sent.irs == flow.irs && sent.commit == Some(number);
        let generation = sent.generation;
        if is_this && !sent.kept {
            sent.kept = true;
            self.under_way.remove(sent.urgency, sent.parts);
        }
        is_this.then_some(generation)
    }

    /// Adds a part; the snapshot once it is whole.
    fn add(&mut self, flow: FlowId, part: SnapshotPart) -> Option<Parcel> {
        let first = part.part.len() as u64;
        let whole = match self.coming.remove(&flow) {
            Some(mut begun) if is_same(&begun, &part) => {
                begun.part.extend_from_slice(&part.part);
                begun
            }
            Some(_) | None => part,
        };
        let length = whole.part.len() as u64;
        if length < whole.total() && first > 0 {
            self.coming.insert(flow, whole);
            return None;
        }
        (length == whole.total()).then(|| parcel(whole))
    }
}

/// The latest snapshot of which the client has all that was written before, from
/// `birth_ack` on, if it is `wanted`. Of large ones it is the oldest that is: the latest
/// may be gone before it is copied, the oldest stays for a time.
pub(super) fn latest(
    (birth_ack, snd_una): (SeqNumber, SeqNumber),
    kept: &[SnapshotPlace],
    wanted: impl Fn(&SnapshotPlace) -> bool,
) -> Option<SnapshotPlace> {
    let is_reached = |place: &SnapshotPlace| behind(birth_ack, place.written).le(snd_una);
    let latest = kept.iter().rposition(is_reached)?;
    let first = if are_large(kept) { 0 } else { latest };
    let mut reached = kept.get(first..=latest)?.iter();
    reached.find(|place| wanted(place)).copied()
}

/// The sequence number so many bytes behind `first`.
pub(super) fn behind(first: SeqNumber, bytes: u64) -> SeqNumber {
    let [.., a, b, c, d] = bytes.to_be_bytes();
    first + u32::from_be_bytes([a, b, c, d])
}

/// Where a socket was made: bytes of both streams that were before it, modulo 2^32. A
/// server counts from there, others from the connection's first byte.
pub(super) fn origin(flow: &FlowState) -> (u32, u32) {
    since((flow.id.irs, flow.iss), (flow.birth, flow.birth_ack))
}

/// Bytes of both streams between the connection's first and those, modulo 2^32.
pub(super) fn since((irs, iss): (SeqNumber, SeqNumber), at: (SeqNumber, SeqNumber)) -> (u32, u32) {
    let before = |at: SeqNumber, initial: SeqNumber| at.0.wrapping_sub(initial.0).wrapping_sub(1);
    (before(at.0, irs), before(at.1, iss))
}

impl Driver {
    /// Sends what is new.
    pub(super) fn send_snapshots(&mut self, now: MonoTime) {
        if self.owns_kept_share() {
            self.send_new_snapshots(now);
        }
        let took = clock::now().since(now);
        self.exports.due = now.saturating_add(INTERVAL.max(took * SHARE_OF_TIME));
    }

    fn send_new_snapshots(&mut self, now: MonoTime) {
        let (mut chosen, mut whole) = (BTreeMap::new(), Vec::new());
        let mut lacking = BTreeMap::new();
        let shares = &self.shares;
        let is_current = |share: ShareId, generation: Generation| {
            let share = shares.get(share);
            share.is_some_and(|share| share.entry.generation == generation)
        };
        self.exports.count(is_current, now);
        let mut room = Room::new(self.exports.under_way.ordinary(), self.exports.waiting);
        let exported = self.apps.exported(|key, kept| {
            let (flow, place, commits) = match self.choose(key, kept, now) {
                Choice::Send(flow, place) => (flow, place, false),
                Choice::Commit(flow, place) => (flow, place, true),
                Choice::Lacking(share, flow) => {
                    lacking.insert(key, (share, flow));
                    return None;
                }
                Choice::Whole => {
                    whole.push(key);
                    return None;
                }
                Choice::Nothing => return None,
            };
            let length = usize::try_from(place.length).unwrap_or(usize::MAX);
            let last = self.exports.sent.get(&key).map(|sent| sent.until);
            if chosen.contains_key(&key) || !room.take(key, length, last) {
                return None;
            }
            chosen.insert(key, (flow, commits));
            Some(place)
        });
        self.exports.waiting = room.next();
        for (key, exported) in exported {
            match chosen.get(&key) {
                Some((flow, false)) => {
                    let commit = exported.place.kind == SnapshotKind::Commit;
                    let parcel = Parcel {
                        commit: commit.then(|| self.exports.next_number()),
                        exported,
                        output: Vec::new(),
                    };
                    self.send_snapshot(flow, parcel, now);
                }
                Some((_, true)) => {
                    let output = Vec::new();
                    let commit = apps::Commit {
                        flow: key,
                        asker: None,
                        state: Ok(Committed {
                            exported,
                            output,
                            weight: None,
                        }),
                    };
                    self.begin_commit(commit, now);
                }
                None => {}
            }
        }
        for (share, flow) in lacking.into_values() {
            self.want_commit(share, &flow, now);
        }
        self.let_whole_pass(&whole, now);
    }

    fn owns_kept_share(&self) -> bool {
        let mut shares = self.shares.iter();
        shares.any(|(_, share)| {
            let entry = &share.entry;
            share.kept && entry.role == Role::Owner && !entry.generation.is_none()
        })
    }

    /// What of a connection the standby should get now.
    fn choose(&self, key: FlowKey, kept: &[SnapshotPlace], now: MonoTime) -> Choice {
        self.find_choice(key, kept, now).unwrap_or(Choice::Nothing)
    }

    fn find_choice(&self, key: FlowKey, kept: &[SnapshotPlace], now: MonoTime) -> Option<Choice> {
        let share = self.exports.share_of(key)?;
        let entry = &self.shares.get(share)?.entry;
        if self.commits.is_under_way(key) {
            return None;
        }
        let whole = self.commits.is_whole(key);
        let Some(latest_of_all) = kept.last() else {
            return whole.then_some(Choice::Whole);
        };
        let sent = self.exports.sent.get(&key);
        let is_old = |sent: &Sent, place: &SnapshotPlace| {
            sent.generation == entry.generation
                && (sent.read, sent.written) == (place.read, place.written)
        };
        let committed = is_committed(kept);
        // The flow itself is looked up only if there may be something.
        let nothing_new = sent.is_some_and(|sent| is_old(sent, latest_of_all));
        let is_safe = sent.is_some_and(|sent| {
            let irs = sent.irs;
            let held = self.commits.is_held(FlowId { key, irs }, entry.generation);
            !committed || held
        });
        if nothing_new && is_safe && !whole {
            return None;
        }
        let flow = self.datapath.flows.get(key).ok().flatten()?;
        if flow.generation != entry.generation || entry.role != Role::Owner || !has_twin(&flow) {
            return None;
        }
        let held = self.commits.is_held(flow.id, entry.generation);
        if whole && (held || !committed) {
            return Some(Choice::Whole);
        }
        let acknowledged = (flow.birth_ack, flow.snd_una);
        if committed && !held {
            return Some(match latest(acknowledged, kept, |_| true) {
                Some(place) => Choice::Commit(flow, place),
                None => Choice::Lacking(share, flow),
            });
        }
        let sent =
            sent.filter(|sent| sent.irs == flow.id.irs && sent.generation == entry.generation);
        if sent.is_some_and(|sent| sent.is_awaited(now)) {
            return None;
        }
        let is_new = |place: &SnapshotPlace| sent.is_none_or(|sent| sent.is_before(place));
        let place = latest(acknowledged, kept, is_new)?;
        Some(Choice::Send(flow, place))
    }

    /// To the standby, in parts.
    pub(super) fn send_snapshot(&mut self, flow: &FlowState, mut parcel: Parcel, now: MonoTime) {
        let count = part_count(parcel.len());
        let place = &mut parcel.exported.place;
        let sent = Sent {
            parts: count,
            irs: flow.id.irs,
            generation: flow.generation,
            read: place.read,
            written: place.written,
            commit: parcel.commit,
            kept: false,
            urgency: Urgency::Ordinary,
            until: now.saturating_add(ANSWER),
        };
        self.exports.under_way.add(sent.urgency, sent.parts);
        self.exports.sent.insert(flow.id.key, sent);
        let (read, written) = origin(flow);
        place.read += u64::from(read);
        place.written += u64::from(written);
        for part in parts(parcel) {
            self.node.handle_snapshot(flow.share, flow.id, &part, now);
        }
    }

    /// The standby has the last snapshot of a flow, or that commit.
    pub(super) fn note_kept(&mut self, flow: FlowId, commit: Option<u64>) {
        match commit {
            None => self.exports.note_kept(flow),
            Some(number) => self.note_commit_held(flow, number, clock::now()),
        }
    }

    /// As a standby: a part of a snapshot has come. A commit is answered when the twin
    /// stands there.
    pub(super) fn keep_snapshot(&mut self, share: ShareId, flow: FlowId, part: SnapshotPart) {
        let Some(parcel) = self.exports.add(flow, part) else {
            return;
        };
        let commits = parcel.commit.is_some();
        if let Some(parcel) = self.bear(flow, parcel)
            && let Some(state) = self.flow(flow).filter(|state| state.twin)
        {
            // What is written in the server's place must go nowhere.
            self.poke_twin(share, flow, behind(state.iss + 1, parcel.acknowledged()));
            if let Some(keeper) = &self.keeper {
                keeper.keep(flow, parcel);
            }
        }
        if !commits {
            self.node
                .handle_snapshot_kept(share, flow, None, clock::now());
        }
    }
}

#[cfg(test)]
mod tests;
