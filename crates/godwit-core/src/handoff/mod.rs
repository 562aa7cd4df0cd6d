//! Handoff of single connections to another server, while they run.
//!
//! ```text
//!  origin                                          target
//!  Asked      ── prepare ────────────────────────► Hold: its segments wait
//!             ◄──────────────────────── ready ──── Holding
//!  Freeze: it is silent, its socket becomes bytes
//!  Frozen     ── state ──────────────────────────► Restore: a socket that is silent
//!             ◄───────────────────── prepared ──── Prepared
//!  Commit: it only forwards
//!  Committed  ── commit ─────────────────────────► Place: it speaks
//!             ◄───────────────────────── done ──── Here
//!  Release: its own socket ends, unheard
//!  Moved      ── settled ────────────────────────► the number need not be kept
//! ```
//!
//! The origin's [`Order::Commit`] is the only point of no return. Before it only the
//! origin may speak again, and needs to ask nobody for that; after it only the
//! target. A lost answer is asked for again. The origin reclaims a connection only
//! if the target says, in the life in which it made its socket, that it has not
//! spoken and will not. One that was started anew has forgotten what it did: then the
//! connection is lost, and reset. One that never comes back is asked for ever: these
//! connections have no lease, so nothing tells that it is silent (docs/adr/0017). Only
//! when its client has been silent, too, for very long, it is forgotten ([`Silence`]).
//!
//! Messages arrive in order or not at all: they are in one TCP connection between
//! two agents. When that ends, both sides forget every attempt that is not
//! committed; a driver hands nothing in that came over a link it called lost.
//!
//! Connections of one session go as a party: all are frozen before any is committed, all
//! commits are written down before one is said, and a target lets none of them speak
//! before it has been told so of each. So whatever breaks, they are on one side.
//!
//! Each attempt has a number of its own ([`godwit_wire::FlowEpoch`]), so that a late answer is
//! never taken for one to the next attempt.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use godwit_wire::{FlowId, HandoffId, Party};

use crate::time::earliest;
use crate::{MonoTime, PeerId};

mod course;
mod forward;
mod order;
mod origin;
mod place;
mod target;

#[cfg(test)]
mod tests;

pub use course::{Course, Mark};
pub use forward::Silence;
pub use order::{HandoffError, News, Order, Speaker, Step};
pub use place::{Arrival, Place, Written};

use place::{Attempt, Entry};

/// How long the target may take to make room; the connection runs meanwhile.
pub const ASK_PATIENCE: Duration = Duration::from_millis(500);

/// How long a connection is silent at most before its origin goes on with it.
///
/// Its client would retransmit after 200 ms (RFC 6298 as Linux has it), which
/// does no harm; the transfer of a large state takes as long as the link needs.
pub const FROZEN_PATIENCE: Duration = Duration::from_secs(1);

/// When a commit that was not answered is said again; doubles up to the second.
const COMMIT_AGAIN: Duration = Duration::from_millis(20);
const COMMIT_AGAIN_LONGEST: Duration = Duration::from_secs(1);

/// Attempts of one node that are under way and not committed at a time: the others
/// wait, so that no target is asked for more room than it has.
pub const MAX_ASKED: usize = 32;

/// Connections of one node that are frozen at a time. The state of each has the
/// link to itself for so much longer the fewer there are.
pub const MAX_FROZEN: usize = 8;

/// The handoffs of one node, as origin and as target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Handoffs {
    flows: BTreeMap<FlowId, Entry>,
    /// One of each party.
    queued: VecDeque<FlowId>,
    /// Those that are asked for or frozen, and when they are overdue.
    asked: BTreeMap<FlowId, Option<MonoTime>>,
    /// One of each party that the target is ready for.
    waiting: VecDeque<FlowId>,
    frozen: BTreeSet<FlowId>,
    /// Those whose target has been told to speak and has not answered, and when it is
    /// told again.
    answering: BTreeMap<FlowId, MonoTime>,
    /// Counts the parties of this node.
    parties: u32,
    orders: VecDeque<Order>,
    news: VecDeque<News>,
}

impl Handoffs {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// What an earlier run of this agent has written down of a connection: at
    /// [`Order::Commit`], [`Order::Place`] and [`Order::Reclaim`].
    pub fn handle_resumed(&mut self, flow: FlowId, written: Written, now: MonoTime) {
        let attempt = match written.place {
            Place::Elsewhere => return,
            Place::Here | Place::Moved { .. } => Attempt::None,
            Place::Committed { .. } => Attempt::answering(now),
        };
        let entry = Entry {
            place: written.place,
            arrival: written.arrival,
            attempt,
            course: Course::resumed(now),
            party: Party::ALONE,
            over: false,
            unreached: None,
            spent: written.spent,
        };
        self.flows.insert(flow, entry);
        if attempt != Attempt::None {
            self.answering.insert(flow, now);
        }
        if let Some(arrival) = written.arrival.filter(|arrival| !arrival.settled) {
            self.remind(flow, arrival);
        }
    }

    /// What is to be written down of a connection for the next run of this agent;
    /// `None` if its handshake was here and it was never handed over.
    pub fn written(&self, flow: &FlowId) -> Option<Written> {
        let entry = self.flows.get(flow)?;
        let written = Written {
            place: entry.place,
            arrival: entry.arrival,
            spent: entry.spent,
        };
        (entry.place != Place::Elsewhere).then_some(written)
    }

    /// The other side has said something of an attempt.
    pub fn handle_step(&mut self, by: Speaker, id: HandoffId, step: Step, now: MonoTime) {
        let peer = by.peer;
        match step {
            Step::Prepare(party) => self.handle_prepare(peer, id, party, now),
            Step::State => self.handle_state(peer, id, now),
            Step::Commit => self.handle_commit(peer, id, now),
            Step::Settled => self.handle_settled(peer, id),
            Step::Abort => self.handle_abort(peer, id),
            Step::Ready => self.handle_ready(peer, id, now),
            Step::Prepared => self.handle_prepared(by, id, now),
            Step::Done => self.handle_done(peer, id, now),
            Step::Refused(reason) => self.handle_refused(by, id, reason, now),
            Step::Over => self.handle_over(peer, id),
        }
    }

    /// The link to a peer is gone: nothing that was said on it arrives any more.
    pub fn handle_link_lost(&mut self, peer: PeerId, now: MonoTime) {
        self.end_attempts(peer, HandoffError::LinkLost, now);
    }

    /// The connection is over here.
    pub fn handle_ended(&mut self, flow: FlowId, now: MonoTime) {
        if self.is_here(&flow) {
            self.end_attempt(flow, HandoffError::Ended, now);
            self.end(flow);
        }
    }

    /// When the next attempt needs attention.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        earliest(self.with_deadlines().map(|(_, due)| Some(due)))
    }

    /// Only attempts of an origin have one, and of very many connections few are
    /// under way.
    fn with_deadlines(&self) -> impl Iterator<Item = (FlowId, MonoTime)> {
        let asked = self.asked.iter();
        let asked = asked.filter_map(|(flow, due)| Some((*flow, (*due)?)));
        asked.chain(self.answering.iter().map(|(flow, again)| (*flow, *again)))
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        let overdue = self.with_deadlines().filter(|(_, due)| *due <= now);
        let overdue: Vec<_> = overdue.map(|(flow, _)| flow).collect();
        for flow in overdue {
            self.overdue(flow, now);
        }
    }

    /// The next order, oldest first.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// The next piece of news, oldest first.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Where a connection is, as far as this node knows.
    pub fn place(&self, flow: &FlowId) -> Place {
        self.flows
            .get(flow)
            .map_or(Place::Elsewhere, |entry| entry.place)
    }

    /// Whether this node has a connection, and may let it speak.
    pub fn is_here(&self, flow: &FlowId) -> bool {
        self.place(flow) == Place::Here
    }

    /// Whether this node waits for the state of a connection from a peer.
    pub fn is_holding(&self, peer: PeerId, id: HandoffId) -> bool {
        self.current(id) == (Attempt::Holding { from: peer })
    }

    /// Whether an attempt is under way for a connection.
    pub fn is_moving(&self, flow: &FlowId) -> bool {
        self.flows
            .get(flow)
            .is_some_and(|entry| entry.attempt != Attempt::None)
    }

    fn say(&mut self, to: PeerId, id: HandoffId, step: Step) {
        self.orders.push_back(Order::Say { to, id, step });
    }

    /// An origin that has not said that it knows is told again.
    fn remind(&mut self, flow: FlowId, arrival: Arrival) {
        let epoch = arrival.epoch;
        self.say(arrival.from, HandoffId { flow, epoch }, Step::Done);
    }

    /// Every attempt with a peer that is not committed.
    fn end_attempts(&mut self, peer: PeerId, reason: HandoffError, now: MonoTime) {
        let of_peer = |entry: &Entry| entry.attempt.peer() == Some(peer);
        let flows: BTreeSet<_> = self
            .flows
            .iter()
            .filter(|(_, entry)| of_peer(entry))
            .map(|(flow, _)| *flow)
            .collect();
        // The end of one makes room for none of the others.
        self.queued.retain(|flow| !flows.contains(flow));
        self.waiting.retain(|flow| !flows.contains(flow));
        for flow in flows {
            self.end_attempt(flow, reason, now);
        }
    }

    fn end_attempt(&mut self, flow: FlowId, reason: HandoffError, now: MonoTime) {
        let Some(entry) = self.flows.get(&flow) else {
            return;
        };
        match entry.attempt {
            Attempt::Queued { .. }
            | Attempt::Asked { .. }
            | Attempt::Waiting { .. }
            | Attempt::Freezing { .. }
            | Attempt::Frozen { .. }
            | Attempt::Agreed { .. } => self.call_off(flow, reason, now),
            Attempt::Looking { from }
            | Attempt::Holding { from }
            | Attempt::Restoring { from }
            | Attempt::Prepared { from }
            | Attempt::Consented { from } => self.discard(flow, from),
            Attempt::None | Attempt::Answering { .. } | Attempt::Placing { .. } => {}
        }
    }

    /// Those that go with a connection, and itself.
    fn party(&self, flow: FlowId) -> Vec<FlowId> {
        let Some(one) = self.flows.get(&flow) else {
            return Vec::new();
        };
        if one.party.is_alone() {
            return vec![flow];
        }
        let with = self.flows.iter().filter(|(_, entry)| one.is_with(entry));
        with.map(|(flow, _)| *flow).collect()
    }

    /// Whether all that go with a connection have come as far as it has.
    fn are_all(&self, party: &[FlowId], come: impl Fn(&Attempt) -> bool) -> bool {
        let entries = party.iter().filter_map(|flow| self.flows.get(flow));
        let there = entries.filter(|entry| come(&entry.attempt));
        let size = party.first().and_then(|flow| self.flows.get(flow));
        size.is_some_and(|one| there.count() == usize::from(one.party.size))
    }

    fn mark(&mut self, flow: FlowId, mark: Mark, now: MonoTime) {
        if let Some(entry) = self.flows.get_mut(&flow) {
            entry.course.note(mark, now);
        }
    }

    fn set(&mut self, flow: FlowId, attempt: Attempt) {
        if let Some(entry) = self.flows.get_mut(&flow) {
            entry.attempt = attempt;
        }
        if let Some(due) = self.asked.get_mut(&flow) {
            *due = attempt.due();
        }
    }

    /// The attempt of that number, if it is the one that is under way.
    fn current(&self, id: HandoffId) -> Attempt {
        self.flows
            .get(&id.flow)
            .filter(|entry| entry.spent == id.epoch)
            .map_or(Attempt::None, |entry| entry.attempt)
    }

    /// Nothing is left to serve or to forward. Whoever forwards hears it; a number
    /// that its origin may still ask for is kept until it has heard of it.
    fn end(&mut self, flow: FlowId) {
        let Some(entry) = self.flows.get_mut(&flow) else {
            return;
        };
        entry.over = true;
        if let Some(arrival) = entry.arrival {
            if !arrival.settled {
                return self.remind(flow, arrival);
            }
            let epoch = arrival.epoch;
            self.say(arrival.from, HandoffId { flow, epoch }, Step::Over);
        }
        self.flows.remove(&flow);
        self.orders.push_back(Order::Forget(flow));
    }
}
