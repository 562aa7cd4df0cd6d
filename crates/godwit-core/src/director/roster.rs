//! Which back-ends a director gives connections to: from what is heard of each to what
//! the data path is told.
//!
//! ```text
//!             other ones are heard                 HOLD, and others are heard
//!   heard ──► doubtful ─────────────► silent ──────────────────────────────► gone
//!     ▲  as before       no new ones, the rest as before        all is given away
//!     └──────────┴──────────────────────┘ it is heard
//! ```
//!
//! A back-end that falls silent loses new connections only when another one has been heard
//! for longer than that: a director that hears nobody has gone deaf, and leaves everything
//! as it is. Those that it has are given away only after [`HOLD`]: an agent may have been
//! killed, and its server goes on. At its start a director waits until it has heard all of
//! them, or for as long as [`Config::grace`]: a table of the first one that speaks would
//! have to be changed at once.
//!
//! Where back-ends stand by for each other, what one had is another one's when it has
//! failed ([`Roster::handle_owner`]): its slots stay its own, and lead there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use godwit_wire::NodeName;

use super::{BackendId, Member, Slot, Slots, TableSize, lookup_table};
use crate::MonoTime;
use crate::detector::RESTART_ALLOWANCE;

/// How long a silent back-end keeps its connections: as long as one that has announced a
/// restart may take for it.
pub const HOLD: Duration = RESTART_ALLOWANCE;

/// What a director is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Slots of each service.
    pub size: TableSize,
    /// How long back-ends are waited for at the start.
    pub grace: Duration,
    /// How long others must have been heard while one is silent: one heartbeat, so that
    /// each that can be heard has been.
    pub heartbeat: Duration,
    /// All back-ends; a [`BackendId`] is an index into this.
    pub backends: Vec<NodeName>,
    /// Of each service the back-ends that serve it, with their weights.
    pub services: Vec<Vec<(BackendId, u16)>>,
}

/// What is heard of a back-end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It lives and takes new connections.
    Taking,
    /// It lives, and wants no new ones.
    Draining,
    /// It should have been heard, and was not.
    Silent,
    /// It has said that it ends, or it is known to be dead.
    Gone,
}

/// Whether a back-end serves a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// It takes new connections.
    Yes,
    /// All its processes stand still: it takes them, and they wait.
    Paused,
    /// Nothing listens there.
    No,
}

impl From<bool> for Serving {
    fn from(serves: bool) -> Self {
        if serves { Self::Yes } else { Self::No }
    }
}

/// What the data path is to know from now on, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Whether a back-end is there, or why: [`Roster::lives`].
    Backend {
        /// Which.
        id: BackendId,
        /// Whether frames may go to it.
        there: bool,
    },
    /// What a back-end has of a service is at another one, or at itself again.
    Owner {
        /// Which service: an index into [`Config::services`].
        service: usize,
        /// Whose connections they are by the slots.
        id: BackendId,
        /// Who has them.
        owner: BackendId,
    },
    /// Slots of a service that are no longer what they were, by their numbers.
    Slots {
        /// Which service: an index into [`Config::services`].
        service: usize,
        /// The slots.
        slots: Vec<(u32, Slot)>,
    },
}

/// What becomes of a back-end, as people see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendState {
    /// It has not been heard.
    Unknown,
    /// It gets new connections, of what it serves.
    Taking,
    /// It keeps those that it has.
    Draining,
    /// It is silent, and nobody else has been heard for longer.
    Doubtful,
    /// It is silent, others are not: it keeps what it has for a while.
    Silent,
    /// It gets nothing.
    Gone,
}

impl BackendState {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Taking => "taking",
            Self::Draining => "draining",
            Self::Doubtful => "doubtful",
            Self::Silent => "silent",
            Self::Gone => "gone",
        }
    }
}

/// Puts something into a set or takes it out; whether that changed anything.
fn mark<T: Ord>(set: &mut BTreeSet<T>, what: T, is: bool) -> bool {
    if is {
        set.insert(what)
    } else {
        set.remove(&what)
    }
}

/// All that the table is made of.
type Picture = (
    Vec<[bool; 4]>,
    [BTreeSet<(usize, BackendId)>; 3],
    BTreeMap<(usize, BackendId), BackendId>,
);

/// What is known of one back-end.
#[derive(Debug, Clone)]
struct Known {
    name: NodeName,
    /// Frames may go to it.
    lives: bool,
    takes: bool,
    /// Since when it is silent, or this director hears again.
    silent: Option<MonoTime>,
    /// It is silent and others are not.
    missing: bool,
    /// The operator wants no new connections there.
    drained: bool,
    /// Others are better ([`Roster::handle_yielding`]).
    yields: bool,
    heard: bool,
    /// Whether frames go to it, and whether that is because it lives.
    told: Option<(bool, bool)>,
}

impl Known {
    const fn is_audible(&self) -> bool {
        self.lives && self.silent.is_none()
    }
}

/// The back-ends and the slots of all services.
#[derive(Debug, Clone)]
pub struct Roster {
    config: Config,
    known: Vec<Known>,
    slots: Vec<Slots>,
    /// Services that a back-end does not serve just now.
    idle: BTreeSet<(usize, BackendId)>,
    /// Those among them whose processes stand still.
    paused: BTreeSet<(usize, BackendId)>,
    /// Those that have nothing of a service just now, not even what was another's.
    without: BTreeSet<(usize, BackendId)>,
    /// Who has what a back-end had of a service, once somebody has said so.
    owners: BTreeMap<(usize, BackendId), BackendId>,
    /// What was told last: heartbeats come often, and tables are large.
    told: Option<Picture>,
    /// Until when back-ends are waited for; `None` once the start is over.
    starts: Option<MonoTime>,
    changes: VecDeque<Change>,
}

impl Roster {
    /// Knows of no back-end yet, and changes nothing before it does.
    pub fn new(config: Config, now: MonoTime) -> Self {
        let known = |name: &NodeName| Known {
            name: *name,
            lives: false,
            takes: false,
            silent: None,
            missing: false,
            drained: false,
            yields: false,
            heard: false,
            told: None,
        };
        let slots = Slots::new(config.size.get() as usize);
        Self {
            known: config.backends.iter().map(known).collect(),
            slots: vec![slots; config.services.len()],
            idle: BTreeSet::new(),
            paused: BTreeSet::new(),
            without: BTreeSet::new(),
            owners: BTreeMap::new(),
            told: None,
            starts: Some(now.saturating_add(config.grace)),
            changes: VecDeque::new(),
            config,
        }
    }

    /// Goes on where an earlier director has left the slots of a service.
    pub fn resume(&mut self, service: usize, slots: Vec<Slot>) {
        let fits = slots.len() == self.config.size.get() as usize;
        if let Some(place) = self.slots.get_mut(service).filter(|_| fits) {
            *place = Slots::from(slots);
        }
    }

    /// Frames may go to a back-end, as an earlier director has told the data path: until it
    /// is heard it keeps what it has, as one that falls silent at `now`.
    pub fn resume_backend(&mut self, id: BackendId, now: MonoTime) {
        if let Some(known) = self.known.get_mut(usize::from(id.0)) {
            known.lives = true;
            known.silent = Some(now);
            known.told = Some((true, true));
        }
    }

    /// Something has been heard of a back-end, or should have been.
    pub fn handle_health(&mut self, id: BackendId, health: Health, now: MonoTime) {
        let was_deaf = !self.known.iter().any(Known::is_audible);
        let Some(known) = self.known.get_mut(usize::from(id.0)) else {
            return;
        };
        match health {
            Health::Taking | Health::Draining => {
                known.lives = true;
                known.takes = health == Health::Taking;
                (known.silent, known.missing) = (None, false);
                known.heard = true;
                self.confirm(was_deaf, now);
            }
            Health::Silent if known.is_audible() => known.silent = Some(now),
            Health::Silent => {}
            Health::Gone => {
                (known.lives, known.takes, known.heard) = (false, false, true);
                (known.silent, known.missing) = (None, false);
            }
        }
        if self.starts.is_some() && self.known.iter().all(|known| known.heard) {
            self.starts = None;
        }
        self.tell();
    }

    /// Somebody is heard: who is not, is missing, but not before it could have been heard.
    fn confirm(&mut self, was_deaf: bool, now: MonoTime) {
        let patience = self.config.heartbeat;
        for known in &mut self.known {
            let Some(since) = known.silent else { continue };
            if was_deaf {
                known.silent = Some(now);
            } else if since.saturating_add(patience) < now {
                known.missing = true;
            }
        }
    }

    /// Whether a back-end serves a service just now: if not, it gets no new connections of
    /// that, and keeps what it has. Call it before the [`Health::Taking`] of the same
    /// heartbeat.
    pub fn handle_serving(&mut self, id: BackendId, service: usize, serving: impl Into<Serving>) {
        let (serving, what) = (serving.into(), (service, id));
        let idle = mark(&mut self.idle, what, serving != Serving::Yes);
        let paused = mark(&mut self.paused, what, serving == Serving::Paused);
        if idle || paused {
            self.tell();
        }
    }

    /// Whether all processes stand still that serve a service at a back-end.
    pub fn is_paused(&self, service: usize, id: BackendId) -> bool {
        self.paused.contains(&(service, id))
    }

    /// Whether a back-end has anything of a service just now: connections of its own, or what
    /// it has taken over. Call it before the [`Health::Taking`] of the same heartbeat.
    pub fn handle_having(&mut self, id: BackendId, service: usize, has: bool) {
        if mark(&mut self.without, (service, id), !has) {
            self.tell();
        }
    }

    /// Somebody has what a back-end has, or had, of a service: that one itself or another.
    pub fn handle_owner(&mut self, service: usize, id: BackendId, owner: BackendId) {
        if self.owners.insert((service, id), owner) == Some(owner) {
            return;
        }
        self.changes.push_back(Change::Owner { service, id, owner });
        self.tell();
    }

    /// Who has what back-ends have, or had, of services, as far as somebody has said.
    pub fn owners(&self) -> impl Iterator<Item = (usize, BackendId, BackendId)> + '_ {
        let owners = self.owners.iter();
        owners.map(|((service, id), owner)| (*service, *id, *owner))
    }

    /// Whether connections of a service that are a back-end's by the slots are anywhere.
    fn is_served(&self, service: usize, id: BackendId) -> bool {
        let lives = |id: BackendId| {
            let known = self.known.get(usize::from(id.0));
            known.is_some_and(|known| known.lives)
        };
        lives(id) || self.owners.get(&(service, id)).is_some_and(|it| lives(*it))
    }

    /// The operator wants a back-end to get no new connections, or to get some again.
    pub fn handle_drain(&mut self, id: BackendId, drained: bool) {
        if let Some(known) = self.known.get_mut(usize::from(id.0)) {
            known.drained = drained;
            self.tell();
        }
    }

    /// A back-end gets new connections only where nobody else does, or as any other one again.
    /// What it has stays there.
    pub fn handle_yielding(&mut self, id: BackendId, yields: bool) {
        let known = self.known.get_mut(usize::from(id.0));
        if known.is_some_and(|it| std::mem::replace(&mut it.yields, yields) != yields) {
            self.tell();
        }
    }

    /// Another director, which has the addresses, remembers this of slots of a service, from
    /// the `first` one on: where connections are that have no entry, and whether some have.
    pub fn handle_slots(
        &mut self,
        service: usize,
        first: u32,
        told: impl IntoIterator<Item = (Option<BackendId>, bool)>,
    ) {
        let starts = self.starts.is_some();
        // At the start nobody has been heard yet: the table is filled when some have.
        let lives = |id: &BackendId| starts || self.is_served(service, *id);
        let told = told.into_iter();
        let told: Vec<_> = told
            .map(|(base, mixed)| (base.filter(lives), mixed))
            .collect();
        let Some(slots) = self.slots.get_mut(service) else {
            return;
        };
        let changed = slots.adopt(first, told);
        self.push_slots(service, changed);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        self.starts.or_else(|| {
            let is_held = |known: &&Known| known.lives && known.missing;
            let held = self.known.iter().filter(is_held);
            let ends = held.filter_map(|known| Some(known.silent?.saturating_add(HOLD)));
            ends.min().filter(|_| self.hears_somebody())
        })
    }

    /// Whoever has not been heard by then is not waited for.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        let mut changed = false;
        if self.starts.is_some_and(|starts| starts <= now) {
            self.starts = None;
            changed = true;
        }
        if self.hears_somebody() {
            for known in self.known.iter_mut().filter(|known| known.missing) {
                let ends = known.silent.map(|since| since.saturating_add(HOLD));
                if known.lives && ends.is_some_and(|ends| ends <= now) {
                    (known.lives, known.takes) = (false, false);
                    changed = true;
                }
            }
        }
        if changed {
            self.tell();
        }
    }

    fn hears_somebody(&self) -> bool {
        self.known.iter().any(Known::is_audible)
    }

    /// What is to be done, in order, until there is nothing left.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Whether frames go to a back-end.
    pub fn is_there(&self, id: BackendId) -> bool {
        let known = self.known.get(usize::from(id.0));
        known.is_some_and(|known| matches!(known.told, Some((true, _))))
    }

    /// Whether a back-end has, or may have, connections itself.
    pub fn lives(&self, id: BackendId) -> bool {
        let known = self.known.get(usize::from(id.0));
        known.is_some_and(|known| known.lives)
    }

    /// Whether back-ends are still waited for.
    pub const fn is_starting(&self) -> bool {
        self.starts.is_some()
    }

    /// Whether the operator wants no new connections there.
    pub fn is_drained(&self, id: BackendId) -> bool {
        let known = self.known.get(usize::from(id.0));
        known.is_some_and(|known| known.drained)
    }

    /// What becomes of a back-end.
    pub fn state(&self, id: BackendId) -> BackendState {
        let Some(known) = self.known.get(usize::from(id.0)) else {
            return BackendState::Unknown;
        };
        match (known.heard, known.lives, known.silent) {
            (false, ..) => BackendState::Unknown,
            (true, false, _) => BackendState::Gone,
            (true, true, Some(_)) if known.missing => BackendState::Silent,
            (true, true, Some(_)) => BackendState::Doubtful,
            (true, true, None) if known.takes && !known.drained && !known.yields => {
                BackendState::Taking
            }
            (true, true, None) => BackendState::Draining,
        }
    }

    /// The slots of a service, in order; none if there is no such service.
    pub fn slots(&self, service: usize) -> &[Slot] {
        self.slots.get(service).map_or(&[], Slots::all)
    }

    /// How many services there are.
    pub const fn services(&self) -> usize {
        self.slots.len()
    }

    /// Whether every back-end that lived has fallen silent.
    pub fn is_deaf(&self) -> bool {
        let lives = self.known.iter().any(|known| known.lives);
        lives && self.starts.is_none() && !self.hears_somebody()
    }

    /// Back-ends before slots: no slot leads to one that the data path does not know.
    fn tell(&mut self) {
        // Nobody at all, or it is this director that is deaf: there is nothing better than
        // what was.
        if self.starts.is_some() || !self.hears_somebody() {
            return;
        }
        let picture = self.picture();
        if self.told.as_ref() == Some(&picture) {
            return;
        }
        self.told = Some(picture);
        let all = (0..).map(BackendId).take(self.known.len());
        let there: Vec<_> = all
            .map(|id| (0..self.slots.len()).any(|it| self.is_served(it, id)))
            .collect();
        for ((known, id), there) in self.known.iter_mut().zip(0..).zip(there) {
            let there = there || known.lives;
            let now = Some((there, known.lives));
            if known.told != now {
                known.told = now;
                let id = BackendId(id);
                self.changes.push_back(Change::Backend { id, there });
            }
        }
        for service in 0..self.slots.len() {
            self.tell_slots(service);
        }
    }

    fn picture(&self) -> Picture {
        let known = self.known.iter();
        let known = known.map(|it| [it.lives, it.takes && !it.missing, it.drained, it.yields]);
        let idle = [&self.idle, &self.paused, &self.without].map(Clone::clone);
        (known.collect(), idle, self.owners.clone())
    }

    fn tell_slots(&mut self, service: usize) {
        let members = self.members(service);
        let table = lookup_table(self.config.size, &members);
        let all = (0..).map(BackendId).take(self.known.len());
        let served: BTreeSet<_> = all.filter(|id| self.is_served(service, *id)).collect();
        let Some(slots) = self.slots.get_mut(service) else {
            return;
        };
        let changed = slots.change(&table, |id| served.contains(&id));
        self.push_slots(service, changed);
    }

    fn push_slots(&mut self, service: usize, changed: Vec<u32>) {
        let Some(slots) = self.slots.get(service).filter(|_| !changed.is_empty()) else {
            return;
        };
        let slots = changed.into_iter().map(|at| (at, slots.get(at))).collect();
        self.changes.push_back(Change::Slots { service, slots });
    }

    /// Those of a service that take new connections, and among them such as yield to others only
    /// if there are no others. If none does, for each has what was another's, those whose connections somebody has who would take new ones. If nobody does
    /// that either, those whose servers stand still: there new clients wait for them.
    fn members(&self, service: usize) -> Vec<Member> {
        let serve = |id: BackendId| !self.idle.contains(&(service, id)) && self.takes(id);
        let taking = self.members_if(service, |id| serve(id) && !self.yields(id));
        if !taking.is_empty() {
            return taking;
        }
        let yielding = self.members_if(service, serve);
        if !yielding.is_empty() {
            return yielding;
        }
        let taken_over = self.members_if(service, |id| {
            let owner = self.owners.get(&(service, id));
            owner.is_some_and(|owner| {
                let has = !self.without.contains(&(service, *owner));
                let serves = has && !self.is_paused(service, *owner);
                *owner != id && serves && self.takes(*owner)
            })
        });
        if !taken_over.is_empty() {
            return taken_over;
        }
        self.members_if(service, |id| self.is_paused(service, id) && self.takes(id))
    }

    fn members_if(&self, service: usize, is: impl Fn(BackendId) -> bool) -> Vec<Member> {
        let members = self.config.services.get(service).into_iter().flatten();
        members
            .filter(|(id, _)| is(*id))
            .filter_map(|(id, weight)| {
                let known = self.known.get(usize::from(id.0))?;
                Some(Member {
                    name: known.name,
                    id: *id,
                    weight: *weight,
                })
            })
            .collect()
    }

    fn yields(&self, id: BackendId) -> bool {
        let known = self.known.get(usize::from(id.0));
        known.is_some_and(|known| known.yields)
    }

    /// Whether a back-end takes new connections of what it serves.
    fn takes(&self, id: BackendId) -> bool {
        let known = self.known.get(usize::from(id.0));
        known.is_some_and(|it| it.lives && it.takes && !it.missing && !it.drained)
    }
}

#[cfg(test)]
mod tests;
