//! Flow supervision on the owner: the flows that do not fit.
//!
//! Nearly every flow is confirmed by its twin within a round trip and never
//! comes here. The data path reports the others. A flow can be let go alone
//! only when the standby has confirmed that it will not serve it; if that does
//! not come for half a second the whole standby has to leave the in-sync set.
//! Until then the client of that one flow waits: nothing is let out to it that
//! its twin may lack.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use godwit_wire::{FlowId, LeaveReason, UnprotectedReason};

use crate::MonoTime;

#[cfg(test)]
mod tests;

/// The most flows under supervision: all that a data path has room for.
pub const MAX_FLOWS: usize = 262_144;

/// How many of those that are let go are remembered. Clients decide how many there are, and
/// the standby knows that it does not serve them: beyond this the oldest are forgotten.
pub const MAX_DEMOTED: usize = 65_536;

/// How long the standby may take to confirm a demotion. Thousands of connections
/// on processors that are full can keep it from that for more than 20 ms, and to
/// dismiss it costs all of them their protection; one that is dead is noticed by
/// its heartbeats long before. The flow's client waits meanwhile, about as long
/// as a lost segment and its first retransmission would take (ADR 6).
pub const DEMOTE_DEADLINE: Duration = Duration::from_millis(500);

/// When the handshake is sent to the standby again, counted from the report
/// that comes 5 ms after the third ACK: 5, 10 and 20 ms after it.
const RESEND_OFFSETS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(5),
    Duration::from_millis(15),
];

/// When an unconfirmed flow is given up although the data path did not say so
/// (it does after 30 ms, but its report can be lost).
const CONFIRM_DEADLINE: Duration = Duration::from_millis(95);

/// What the data path says of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// Its handshake ended 5 ms ago and no twin has answered.
    Unconfirmed,
    /// Nor has one after 30 ms.
    NotConfirmed,
    /// What the client was told trails what the owner has for `lag_limit`.
    Stalled,
    /// Its server must not go back, and its twin is not known to be where it stands.
    CommitFailed,
    /// A twin has answered.
    Confirmed,
    /// The connection is over.
    Ended,
}

/// Where one supervised flow stands. A flow that is not in the table is fine.
///
/// ```text
///            unconfirmed              not confirmed, stalled, commit failed
///  (fine) ─────────────► Confirming ─────────────────────► Demoting
///    ▲  ▲                    │                               │  │
///    │  └───── confirmed ────┘                demoted by the │  │ 500 ms
///    │                                               standby ▼  ▼
///    └──────────────────── ended ──────────────────── Demoted  (standby leaves)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waits for its twin; the handshake is sent again.
    Confirming {
        /// How often it was sent again.
        resent: usize,
        /// When the data path first reported it.
        since: MonoTime,
    },
    /// Waits for the standby's word that it will not be served.
    Demoting {
        /// Why.
        reason: UnprotectedReason,
        /// Since when; decides [`DEMOTE_DEADLINE`].
        since: MonoTime,
    },
    /// Unprotected, and the standby knows.
    Demoted(UnprotectedReason),
}

/// What is to be done. Drain after every input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Send the handshake to the standby again.
    ResendHandshake(FlowId),
    /// Ask the standby not to serve the flow.
    AskDemotion(FlowId, UnprotectedReason),
    /// The standby will not serve it: open its gate.
    Ungate(FlowId, UnprotectedReason),
    /// The standby has to leave the in-sync set.
    GiveUp(LeaveReason),
}

/// How many flows are under supervision, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Waiting for a twin.
    pub confirming: usize,
    /// Waiting for the standby's word.
    pub demoting: usize,
    /// Unprotected.
    pub demoted: usize,
}

/// Watches over the exceptional flows of one share, for one generation of a standby.
#[derive(Debug, Clone)]
pub struct Supervision {
    limits: Limits,
    flows: BTreeMap<FlowId, State>,
    /// Those that are let go, oldest first, and some that have ended since.
    demoted: VecDeque<FlowId>,
    deadlines: BTreeSet<(MonoTime, FlowId)>,
    orders: VecDeque<Order>,
}

/// How many flows there may be at once.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// In all.
    pub flows: usize,
    /// Of those that are let go.
    pub demoted: usize,
}

impl Default for Supervision {
    fn default() -> Self {
        Self::new(Limits {
            flows: MAX_FLOWS,
            demoted: MAX_DEMOTED,
        })
    }
}

impl Supervision {
    /// An empty table.
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            flows: BTreeMap::new(),
            demoted: VecDeque::new(),
            deadlines: BTreeSet::new(),
            orders: VecDeque::new(),
        }
    }

    /// The data path reports a flow of the share's generation.
    pub fn handle_report(&mut self, flow: FlowId, report: Report, now: MonoTime) {
        match (self.flows.get(&flow).copied(), report) {
            (None, Report::Unconfirmed) => {
                self.set(flow, State::Confirming { resent: 0, since: now });
                self.resend_due(flow, now);
            }
            (None | Some(State::Confirming { .. }), Report::NotConfirmed) => {
                self.demote(flow, UnprotectedReason::NotConfirmed, now);
            }
            (None | Some(State::Confirming { .. }), Report::Stalled) => {
                self.demote(flow, UnprotectedReason::Lagging, now);
            }
            (None | Some(State::Confirming { .. }), Report::CommitFailed) => {
                self.demote(flow, UnprotectedReason::CommitFailed, now);
            }
            (Some(State::Confirming { .. }), Report::Confirmed) | (Some(_), Report::Ended) => {
                self.remove(flow);
            }
            (None, Report::Confirmed | Report::Ended)
            | (Some(State::Confirming { .. }), Report::Unconfirmed)
            // The standby may have given the flow up already: no way back.
            | (
                Some(State::Demoting { .. } | State::Demoted(_)),
                Report::Unconfirmed
                | Report::NotConfirmed
                | Report::Stalled
                | Report::CommitFailed
                | Report::Confirmed,
            ) => {}
        }
    }

    /// The standby confirms that it will not serve the flow.
    pub fn handle_demoted(&mut self, flow: FlowId) {
        match self.flows.get(&flow).copied() {
            Some(State::Demoting { reason, .. }) => self.let_go(flow, reason),
            // Late: it ended, or the standby confirmed twice.
            None | Some(State::Confirming { .. } | State::Demoted(_)) => {}
        }
    }

    /// The standby lost its twin and will not serve the flow: no need to ask.
    pub fn handle_twin_closed(&mut self, flow: FlowId, why: UnprotectedReason) {
        match self.flows.get(&flow).copied() {
            None | Some(State::Confirming { .. }) => self.let_go(flow, why),
            Some(State::Demoting { reason, .. }) => self.let_go(flow, reason),
            Some(State::Demoted(_)) => {}
        }
    }

    /// A new twin is made of the flow: what became of the old one is past.
    pub fn forget(&mut self, flow: FlowId) {
        self.remove(flow);
    }

    /// The standby is gone or another one has come: nothing is left to watch.
    pub fn clear(&mut self) {
        self.flows.clear();
        self.demoted.clear();
        self.deadlines.clear();
        self.orders.clear();
    }

    /// When the next flow needs attention.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        self.deadlines.first().map(|(due, _)| *due)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        while let Some((due, flow)) = self
            .deadlines
            .first()
            .copied()
            .filter(|(due, _)| *due <= now)
        {
            self.deadlines.remove(&(due, flow));
            match self.flows.get(&flow).copied() {
                Some(State::Confirming { .. }) => self.resend_due(flow, now),
                Some(State::Demoting { .. }) => {
                    self.orders
                        .push_back(Order::GiveUp(LeaveReason::DemoteUnconfirmed));
                }
                None | Some(State::Demoted(_)) => {
                    debug_assert!(false, "a flow without a deadline has none in the table");
                }
            }
        }
    }

    /// The next order, oldest first.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Where a flow stands; `None` if it is fine.
    pub fn state(&self, flow: &FlowId) -> Option<State> {
        self.flows.get(flow).copied()
    }

    /// Every flow that is not fine. The data path reports the end of each, but
    /// a report can be lost: whoever sees flows must look after these.
    pub fn flows(&self) -> impl Iterator<Item = FlowId> + '_ {
        self.flows.keys().copied()
    }

    /// How many flows there are, by state. Walks over all of them.
    pub fn counts(&self) -> Counts {
        self.flows
            .values()
            .fold(Counts::default(), |mut counts, state| {
                match state {
                    State::Confirming { .. } => counts.confirming += 1,
                    State::Demoting { .. } => counts.demoting += 1,
                    State::Demoted(_) => counts.demoted += 1,
                }
                counts
            })
    }

    /// Sends the handshake again if that is due, and gives up at the end.
    fn resend_due(&mut self, flow: FlowId, now: MonoTime) {
        let Some(State::Confirming { mut resent, since }) = self.flows.get(&flow).copied() else {
            return;
        };
        if now >= since.saturating_add(CONFIRM_DEADLINE) {
            self.demote(flow, UnprotectedReason::NotConfirmed, now);
            return;
        }
        let before = resent;
        while RESEND_OFFSETS
            .get(resent)
            .is_some_and(|offset| since.saturating_add(*offset) <= now)
        {
            resent += 1;
        }
        if resent > before {
            self.orders.push_back(Order::ResendHandshake(flow));
        }
        self.set(flow, State::Confirming { resent, since });
    }

    fn demote(&mut self, flow: FlowId, reason: UnprotectedReason, now: MonoTime) {
        if self.set(flow, State::Demoting { reason, since: now }) {
            self.orders.push_back(Order::AskDemotion(flow, reason));
        }
    }

    fn let_go(&mut self, flow: FlowId, reason: UnprotectedReason) {
        self.set(flow, State::Demoted(reason));
        self.orders.push_back(Order::Ungate(flow, reason));
        self.demoted.push_back(flow);
        while self.demoted.len() > self.limits.demoted {
            let oldest = self.demoted.pop_front();
            let is_demoted = |flow: &FlowId| matches!(self.state(flow), Some(State::Demoted(_)));
            if let Some(oldest) = oldest.filter(is_demoted) {
                self.remove(oldest);
            }
        }
    }

    /// Enters a state and its deadline; false if the table is full. The data path has room for
    /// no more flows, so that some of these have ended unheard: this one is reported again.
    fn set(&mut self, flow: FlowId, state: State) -> bool {
        self.remove(flow);
        if self.flows.len() >= self.limits.flows {
            return false;
        }
        self.flows.insert(flow, state);
        if let Some(due) = state.deadline() {
            self.deadlines.insert((due, flow));
        }
        true
    }

    fn remove(&mut self, flow: FlowId) {
        if let Some(due) = self.flows.remove(&flow).and_then(State::deadline) {
            self.deadlines.remove(&(due, flow));
        }
    }
}

impl State {
    fn deadline(self) -> Option<MonoTime> {
        match self {
            Self::Confirming { resent, since } => {
                let offset = RESEND_OFFSETS.get(resent).unwrap_or(&CONFIRM_DEADLINE);
                Some(since.saturating_add(*offset))
            }
            Self::Demoting { since, .. } => Some(since.saturating_add(DEMOTE_DEADLINE)),
            Self::Demoted(_) => None,
        }
    }
}
