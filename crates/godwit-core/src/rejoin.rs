//! Re-protection on the owner: twins of flows that run already.
//!
//! The driver offers the flows that could have one: not protected, and their
//! logs whole. A few at a time are handed to the standby, and each that is done
//! makes room for the next: so thousands take no longer than the standby needs
//! for them, and what is urgent never waits behind more than those few. Until
//! the standby has said that it will serve a twin it must not, so a flow may be
//! given up at any moment before that without asking; afterwards the supervision
//! of flows has to ask, see [`crate::flow`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use godwit_wire::{FlowId, SeqNumber};

use crate::MonoTime;

pub mod pace;
#[cfg(test)]
mod tests;

/// Flows under way at a time. One that only waits for its twin's application
/// counts for [`CROWD_TIME`].
pub const MAX_CROWD: usize = 64;

/// See [`MAX_CROWD`].
pub const CROWD_TIME: Duration = Duration::from_secs(1);

/// How long the standby may take to make a twin, from when it can have heard of it.
pub const ANSWER_DEADLINE: Duration = Duration::from_millis(500);

/// When a twin that is not whole is looked at for what it lacks. The gate is
/// closed, so a client waits for that; but where nothing is lacking, the twin's
/// application is awaited, and the interval doubles.
const FEED_INTERVAL: Duration = Duration::from_millis(20);

/// Up to 160 ms: thousands whose application does not answer cost little.
const MAX_FEED_DOUBLINGS: u32 = 3;

/// How long a twin may take to say again what its owner has said.
pub const CATCH_UP_DEADLINE: Duration = Duration::from_secs(60);

/// How long the standby may take to answer that it will serve a twin, and how
/// often it is asked.
const ADMIT_INTERVAL: Duration = Duration::from_millis(100);
const ADMIT_ATTEMPTS: u32 = 5;

/// How long a flow rests after the first failure; doubles up to a minute.
pub const REST: Duration = Duration::from_secs(1);
const MAX_DOUBLINGS: u32 = 6;

/// A flow that could have a twin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The flow.
    pub flow: FlowId,
    /// What became of its twins.
    pub past: Past,
}

/// What became of the twins that the standby in sync had of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// It had none in this generation.
    None,
    /// It was late, or ended early: another one may do better, after a rest.
    Failed,
    /// It said other things than its owner, and so would the next.
    Wrong,
}

/// Where one flow stands.
///
/// ```text
///  (offered) ──► Asked ──twin spoke──► Following ──it has all──► Admitting ──► (protected)
///      ▲           │                       │                         │
///      └── rest ───┴───── late, lost ──────┴─────────────────────────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The standby was told of the flow.
    Asked,
    /// Its twin exists, and repeats what was said.
    Following {
        /// When it was fed last.
        fed: MonoTime,
        /// How often since it lacked something.
        again: u32,
    },
    /// The standby was asked to serve it.
    Admitting {
        /// How often.
        attempts: u32,
        /// When last.
        asked: MonoTime,
    },
}

/// What is to be done. Drain after every input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Open the tap for the flow and hand the standby its record and its log.
    Begin(FlowId),
    /// Send the standby what its twin lacks of the log.
    Feed(FlowId),
    /// Ask the standby to serve the twin.
    Admit(FlowId),
    /// It will: the flow is protected.
    Protect(FlowId),
    /// No twin came about: the flow goes on as before.
    GiveUp(FlowId),
    /// The standby may serve the twin and does not say so: it has to be asked
    /// not to.
    Demote(FlowId),
}

#[derive(Debug, Clone, Copy)]
struct Active {
    state: State,
    since: MonoTime,
    /// How long the standby may take for its first word.
    patience: Duration,
    /// Where its twin was when it could not be fed last.
    starved: Option<SeqNumber>,
}

/// What is remembered of a flow that failed.
#[derive(Debug, Clone, Copy)]
struct Rest {
    until: MonoTime,
    failures: u32,
    /// It has been protected since then: if it fails again soon, the rest is longer.
    protected: Option<MonoTime>,
}

/// The flows of one share that are to be protected again, for one generation of a
/// standby.
#[derive(Debug, Clone, Default)]
pub struct Rejoin {
    active: BTreeMap<FlowId, Active>,
    /// When each of those needs attention.
    deadlines: BTreeSet<(MonoTime, FlowId)>,
    /// Those that have begun less than [`CROWD_TIME`] ago, or have just ceased to.
    young: BTreeSet<(MonoTime, FlowId)>,
    /// Offered, and not begun for want of room.
    waiting: VecDeque<Candidate>,
    resting: BTreeMap<FlowId, Rest>,
    orders: VecDeque<Order>,
}

impl Rejoin {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// All flows that could have a twin now; to be called again and again.
    pub fn handle_candidates(&mut self, candidates: &[Candidate], now: MonoTime) {
        let offered: BTreeSet<_> = candidates.iter().map(|candidate| candidate.flow).collect();
        self.resting
            .retain(|flow, rest| offered.contains(flow) || rest.is_remembered(now));
        let begun = |candidate: &Candidate| self.active.contains_key(&candidate.flow);
        let waiting = candidates.iter().copied();
        self.waiting = waiting.filter(|candidate| !begun(candidate)).collect();
        self.begin_waiting(now);
    }

    /// Begins as many as there is room for.
    fn begin_waiting(&mut self, now: MonoTime) {
        while self.crowd(now) < MAX_CROWD
            && let Some(Candidate { flow, past }) = self.waiting.pop_front()
        {
            if !self.is_due(flow, past, now) {
                continue;
            }
            let asked = Active {
                state: State::Asked,
                since: now,
                patience: ANSWER_DEADLINE,
                starved: None,
            };
            self.young.insert((now, flow));
            self.set(flow, asked);
            self.orders.push_back(Order::Begin(flow));
        }
    }

    /// What the standby needs for a twin is so long on its way, behind what it needs for
    /// others.
    pub fn handle_delay(&mut self, flow: FlowId, delay: Duration) {
        if let Some(active) = self.active.get(&flow).copied() {
            let patience = ANSWER_DEADLINE.saturating_add(delay);
            self.set(flow, Active { patience, ..active });
        }
    }

    /// What the standby needs for a twin finds no room on the way: it is begun later, and
    /// has not failed.
    pub fn handle_postponed(&mut self, flow: FlowId) {
        self.remove(flow);
    }

    /// The twin of a flow has spoken.
    pub fn handle_twin(&mut self, flow: FlowId, now: MonoTime) {
        if self.state(&flow) == Some(State::Asked) {
            self.enter(flow, State::Following { fed: now, again: 0 });
            self.orders.push_back(Order::Feed(flow));
        }
    }

    /// The twin of a flow lacked something, and was fed.
    pub fn handle_fed(&mut self, flow: FlowId, now: MonoTime) {
        if let Some(State::Following { .. }) = self.state(&flow) {
            self.enter(flow, State::Following { fed: now, again: 0 });
        }
    }

    /// The twin of a flow lacks what the log does not have any more, and `has` all before
    /// that. If it is where it was when this was said last, nothing more comes by the tap
    /// either: its client waits behind the gate for what can't come.
    pub fn handle_starved(&mut self, flow: FlowId, has: SeqNumber, now: MonoTime) {
        let Some(State::Following { .. }) = self.state(&flow) else {
            return;
        };
        let Some(active) = self.active.get_mut(&flow) else {
            return;
        };
        if active.starved.replace(has) == Some(has) {
            self.give_up(flow, now);
        }
    }

    /// The twin of a flow has all that the client was told.
    pub fn handle_whole(&mut self, flow: FlowId, now: MonoTime) {
        match self.state(&flow) {
            Some(State::Asked | State::Following { .. }) => {
                let admitting = State::Admitting {
                    attempts: 1,
                    asked: now,
                };
                self.enter(flow, admitting);
                self.orders.push_back(Order::Admit(flow));
            }
            None | Some(State::Admitting { .. }) => {}
        }
    }

    /// The standby says that it will serve the twin.
    pub fn handle_admitted(&mut self, flow: FlowId) {
        if matches!(self.state(&flow), Some(State::Admitting { .. })) {
            self.orders.push_back(Order::Protect(flow));
        }
    }

    /// The flow is protected: nothing is left to do, and another may begin. When
    /// this one was begun, if it was one of these.
    pub fn handle_protected(&mut self, flow: FlowId, now: MonoTime) -> Option<MonoTime> {
        if let Some(rest) = self.resting.get_mut(&flow) {
            rest.protected = Some(now);
        }
        let since = self.remove(flow)?;
        self.begin_waiting(now);
        Some(since)
    }

    /// The connection is over.
    pub fn handle_ended(&mut self, flow: FlowId) {
        self.remove(flow);
        self.resting.remove(&flow);
    }

    /// It did not come about: the flow changed, or its twin is gone.
    pub fn handle_lost(&mut self, flow: FlowId, now: MonoTime) {
        if self.remove(flow).is_some() {
            self.rest(flow, now);
        }
    }

    /// Whether a flow may be begun; one that has just failed rests first.
    fn is_due(&mut self, flow: FlowId, past: Past, now: MonoTime) -> bool {
        match (self.resting.get(&flow), past) {
            (_, Past::Wrong) => false,
            (None, Past::None) => true,
            (Some(rest), _) if rest.protected.is_none() => rest.until <= now,
            // Another stay: what failed in the last one says nothing.
            (Some(_), Past::None) => true,
            (None | Some(_), Past::Failed) => {
                self.rest(flow, now);
                false
            }
        }
    }

    /// Each time for longer.
    fn rest(&mut self, flow: FlowId, now: MonoTime) {
        let before = self.resting.get(&flow);
        let before = before.filter(|rest| rest.protected.is_none() || rest.is_remembered(now));
        let failures = before.map_or(0, |rest| rest.failures);
        let rest = Rest {
            until: now.saturating_add(REST * (1 << failures.min(MAX_DOUBLINGS))),
            failures: failures.saturating_add(1),
            protected: None,
        };
        self.resting.insert(flow, rest);
    }

    /// The standby is gone: nothing is left to hand over.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// When the next flow needs attention.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        self.deadlines.first().map(|(due, _)| *due)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        while let Some((_, flow)) = self
            .deadlines
            .first()
            .copied()
            .filter(|(due, _)| *due <= now)
        {
            let Some(active) = self.active.get(&flow).copied() else {
                debug_assert!(false, "a flow with a deadline is under way");
                return;
            };
            match active.state {
                State::Asked => self.give_up(flow, now),
                State::Following { .. } if active.is_late(now) => self.give_up(flow, now),
                State::Following { again, .. } => {
                    let again = again.saturating_add(1);
                    self.enter(flow, State::Following { fed: now, again });
                    self.orders.push_back(Order::Feed(flow));
                }
                State::Admitting { attempts, .. } if attempts >= ADMIT_ATTEMPTS => {
                    self.handle_lost(flow, now);
                    self.orders.push_back(Order::Demote(flow));
                }
                State::Admitting { attempts, .. } => {
                    let again = State::Admitting {
                        attempts: attempts + 1,
                        asked: now,
                    };
                    self.enter(flow, again);
                    self.orders.push_back(Order::Admit(flow));
                }
            }
        }
    }

    /// The next order, oldest first.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Where a flow stands; `None` if nothing is under way.
    pub fn state(&self, flow: &FlowId) -> Option<State> {
        self.active.get(flow).map(|active| active.state)
    }

    /// How many flows are under way.
    pub fn count(&self) -> usize {
        self.active.len()
    }

    fn crowd(&mut self, now: MonoTime) -> usize {
        while let Some((since, _)) = self.young.first()
            && now.since(*since) >= CROWD_TIME
        {
            self.young.pop_first();
        }
        self.young.len()
    }

    fn give_up(&mut self, flow: FlowId, now: MonoTime) {
        self.handle_lost(flow, now);
        self.orders.push_back(Order::GiveUp(flow));
    }

    /// One that is under way is in that state now.
    fn enter(&mut self, flow: FlowId, state: State) {
        if let Some(active) = self.active.get(&flow).copied() {
            self.set(flow, Active { state, ..active });
        }
    }

    fn set(&mut self, flow: FlowId, active: Active) {
        if let Some(before) = self.active.insert(flow, active) {
            self.deadlines.remove(&(before.due(), flow));
        }
        self.deadlines.insert((active.due(), flow));
    }

    /// When it was begun, if it was.
    fn remove(&mut self, flow: FlowId) -> Option<MonoTime> {
        let active = self.active.remove(&flow)?;
        self.deadlines.remove(&(active.due(), flow));
        self.young.remove(&(active.since, flow));
        Some(active.since)
    }
}

impl Rest {
    /// A flow that has been protected as long as it can have rested has mended.
    fn is_remembered(&self, now: MonoTime) -> bool {
        let longest = REST * (1 << MAX_DOUBLINGS);
        self.protected
            .is_some_and(|since| now.since(since) < longest)
    }
}

impl Active {
    fn due(&self) -> MonoTime {
        match self.state {
            State::Asked => self.since.saturating_add(self.patience),
            State::Following { fed, again } => {
                fed.saturating_add(FEED_INTERVAL * (1 << again.min(MAX_FEED_DOUBLINGS)))
            }
            State::Admitting { asked, .. } => asked.saturating_add(ADMIT_INTERVAL),
        }
    }

    fn is_late(&self, now: MonoTime) -> bool {
        now.since(self.since) >= CATCH_UP_DEADLINE
    }
}
