//! What an owner has sent of its connections' snapshots, and what has come of those of others
//! that are not whole.
//!
//! Of each connection the latest goes of which its client has all that was written before.
//! There is one under way at a time, so a standby that is slow gets fewer, not more.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_wire::app::SnapshotPlace;
use godwit_wire::app::region::are_large;
use godwit_wire::{Endpoint, FlowId, FlowKey, Generation, SeqNumber, ShareId, SnapshotPart};

use super::parcel::{Parcel, is_same, parcel};
use super::part_count;
use super::room::{Room, UnderWay, Urgency, Waiting};
use crate::MonoTime;

/// A standby's answer to a commit is waited for so long before a newer snapshot goes.
const ANSWER: Duration = Duration::from_secs(1);

/// What was sent, and what is coming.
#[derive(Debug)]
pub struct Exports {
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

/// The last snapshot of a connection that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Of the connection.
    pub irs: SeqNumber,
    /// To the standby of this generation.
    pub generation: Generation,
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
    /// Until when an answer is waited for: the later, the later it went.
    #[must_use]
    pub const fn until(&self) -> MonoTime {
        self.until
    }

    /// Whether it was made there.
    #[must_use]
    pub const fn is_at(&self, place: &SnapshotPlace) -> bool {
        self.read == place.read && self.written == place.written
    }

    /// Whether an answer may still come.
    #[must_use]
    pub fn is_awaited(&self, now: MonoTime) -> bool {
        !self.kept && (self.commit.is_none() || now < self.until)
    }

    /// Whether that place is behind this one in the streams.
    #[must_use]
    pub fn is_before(&self, place: &SnapshotPlace) -> bool {
        !self.is_at(place) && self.read <= place.read && self.written <= place.written
    }
}

impl Exports {
    /// Of services at these addresses.
    #[must_use]
    pub const fn new(services: BTreeMap<Endpoint, ShareId>, now: MonoTime) -> Self {
        Self {
            due: now,
            services,
            sent: BTreeMap::new(),
            coming: BTreeMap::new(),
            // Two lives of an agent do not use the same.
            number: now.as_nanos(),
            under_way: UnderWay::new(),
            waiting: None,
        }
    }

    /// The share of a connection whose twin is kept.
    #[must_use]
    pub fn share_of(&self, flow: FlowKey) -> Option<ShareId> {
        self.services.get(&flow.service).copied()
    }

    /// A number for the next commit.
    pub const fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// When to look next; `None` if this node has no such service.
    #[must_use]
    pub fn due(&self) -> Option<MonoTime> {
        (!self.services.is_empty()).then_some(self.due)
    }

    /// The next look is then.
    pub const fn set_due(&mut self, due: MonoTime) {
        self.due = due;
    }

    /// The room at one look, and [`Exports::end_look`] with it behind that.
    #[must_use]
    pub const fn begin_look(&self) -> Room {
        Room::new(self.under_way.ordinary(), self.waiting)
    }

    /// Who found no room comes first at the next look.
    pub const fn end_look(&mut self, room: &Room) {
        self.waiting = room.next();
    }

    /// The last one that was sent of that connection.
    #[must_use]
    pub fn sent(&self, flow: FlowKey) -> Option<&Sent> {
        self.sent.get(&flow)
    }

    /// One goes to the standby.
    pub fn note_sent(
        &mut self,
        flow: FlowId,
        generation: Generation,
        parcel: &Parcel,
        now: MonoTime,
    ) {
        let place = &parcel.exported.place;
        let sent = Sent {
            parts: part_count(parcel.len()),
            irs: flow.irs,
            generation,
            read: place.read,
            written: place.written,
            commit: parcel.commit,
            kept: false,
            urgency: Urgency::Ordinary,
            until: now.saturating_add(ANSWER),
        };
        self.under_way.add(sent.urgency, sent.parts);
        self.sent.insert(flow.key, sent);
    }

    /// What is on its way to the standby.
    #[must_use]
    pub const fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    /// A server waits for the one that was sent last of that connection.
    pub fn note_urgent(&mut self, flow: FlowKey) {
        if let Some(sent) = self.sent.get_mut(&flow) {
            self.under_way.remove(sent.urgency, sent.parts);
            sent.urgency = Urgency::Awaited;
            self.under_way.add(sent.urgency, sent.parts);
        }
    }

    /// Nobody answers what was sent in an earlier generation of the standby.
    pub fn count(&mut self, is_current: impl Fn(ShareId, Generation) -> bool, now: MonoTime) {
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
    pub fn forget(&mut self) {
        self.under_way = UnderWay::default();
        self.sent.clear();
        self.coming.clear();
    }

    /// A new twin of a connection is about to be made.
    pub fn note_rejoin(&mut self, flow: FlowKey) {
        self.sent.remove(&flow);
    }

    /// The data path reports a connection's end.
    pub fn note_end(&mut self, flow: FlowId) {
        self.coming.remove(&flow);
        let sent = self.sent.get(&flow.key);
        if sent.is_some_and(|sent| sent.irs == flow.irs) {
            self.sent.remove(&flow.key);
        }
    }

    /// The standby has the last one of that connection.
    pub fn note_kept(&mut self, flow: FlowId) {
        let sent = self.sent.get_mut(&flow.key);
        if let Some(sent) = sent.filter(|sent| sent.irs == flow.irs && sent.commit.is_none()) {
            sent.kept = true;
            self.under_way.remove(sent.urgency, sent.parts);
        }
    }

    /// The twin of that connection stands at this commit, or behind it: in which generation,
    /// if it was the last one that was sent.
    pub fn note_commit(&mut self, flow: FlowId, number: u64) -> Option<Generation> {
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
    pub fn add(&mut self, flow: FlowId, part: SnapshotPart) -> Option<Parcel> {
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
#[must_use]
pub fn latest(
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
#[must_use]
pub fn behind(first: SeqNumber, bytes: u64) -> SeqNumber {
    let [.., a, b, c, d] = bytes.to_be_bytes();
    first + u32::from_be_bytes([a, b, c, d])
}

/// Bytes of both streams between the connection's first and those, modulo 2^32.
#[must_use]
pub fn since((irs, iss): (SeqNumber, SeqNumber), at: (SeqNumber, SeqNumber)) -> (u32, u32) {
    let before = |at: SeqNumber, initial: SeqNumber| at.0.wrapping_sub(initial.0).wrapping_sub(1);
    (before(at.0, irs), before(at.1, iss))
}

#[cfg(test)]
mod tests;
