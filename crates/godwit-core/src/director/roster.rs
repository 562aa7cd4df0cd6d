//! Which back-ends a director gives connections to: from what is heard of each to what
//! the data path is told.
//!
//! A back-end that falls silent is given up only when another one has been heard since: a
//! director that hears nobody has gone deaf, and leaves everything as it is. At its start
//! it waits until it has heard all of them, or for as long as [`Config::grace`]: a table
//! of the first one that speaks would have to be changed at once.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use godwit_wire::NodeName;

use super::{BackendId, Member, Slot, Slots, TableSize, lookup_table};
use crate::MonoTime;

/// What a director is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Slots of each service.
    pub size: TableSize,
    /// How long back-ends are waited for at the start.
    pub grace: Duration,
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

/// What the data path is to know from now on, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Whether a back-end is there.
    Backend {
        /// Which.
        id: BackendId,
        /// Whether frames may go to it.
        there: bool,
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
    /// It is silent, and so is everybody else since.
    Doubtful,
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
            Self::Gone => "gone",
        }
    }
}

/// All that the table is made of.
type Picture = (Vec<(bool, bool, bool)>, BTreeSet<(usize, BackendId)>);

/// What is known of one back-end.
#[derive(Debug, Clone)]
struct Known {
    name: NodeName,
    lives: bool,
    takes: bool,
    /// Silent, and nobody has been heard since.
    doubtful: bool,
    /// The operator wants no new connections there.
    drained: bool,
    heard: bool,
    told: Option<bool>,
}

/// The back-ends and the slots of all services.
#[derive(Debug, Clone)]
pub struct Roster {
    config: Config,
    known: Vec<Known>,
    slots: Vec<Slots>,
    /// Services that a back-end does not serve just now.
    idle: BTreeSet<(usize, BackendId)>,
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
            doubtful: false,
            drained: false,
            heard: false,
            told: None,
        };
        let slots = Slots::new(config.size.get() as usize);
        Self {
            known: config.backends.iter().map(known).collect(),
            slots: vec![slots; config.services.len()],
            idle: BTreeSet::new(),
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

    /// Something has been heard of a back-end, or should have been.
    pub fn handle_health(&mut self, id: BackendId, health: Health) {
        let Some(known) = self.known.get_mut(usize::from(id.0)) else {
            return;
        };
        (known.lives, known.takes, known.doubtful) = match health {
            Health::Taking => (true, true, false),
            Health::Draining => (true, false, false),
            Health::Silent => (known.lives, known.takes, known.lives),
            Health::Gone => (false, false, false),
        };
        match health {
            Health::Taking | Health::Draining => {
                known.heard = true;
                // So this director is not deaf.
                self.give_up_doubtful();
            }
            Health::Silent => {}
            Health::Gone => known.heard = true,
        }
        if self.starts.is_some() && self.known.iter().all(|known| known.heard) {
            self.starts = None;
        }
        self.tell();
    }

    /// Whether a back-end serves a service just now: if its process has ended there, it
    /// gets no new connections of that, and keeps what it has. Call it before the
    /// [`Health::Taking`] of the same heartbeat.
    pub fn handle_serving(&mut self, id: BackendId, service: usize, serves: bool) {
        let changed = if serves {
            self.idle.remove(&(service, id))
        } else {
            self.idle.insert((service, id))
        };
        if changed {
            self.tell();
        }
    }

    /// The operator wants a back-end to get no new connections, or to get some again.
    pub fn handle_drain(&mut self, id: BackendId, drained: bool) {
        if let Some(known) = self.known.get_mut(usize::from(id.0)) {
            known.drained = drained;
            self.tell();
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub const fn poll_timeout(&self) -> Option<MonoTime> {
        self.starts
    }

    /// Whoever has not been heard by then is not waited for.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        if self.starts.is_some_and(|starts| starts <= now) {
            self.starts = None;
            self.tell();
        }
    }

    /// What is to be done, in order, until there is nothing left.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Whether frames go to a back-end.
    pub fn is_there(&self, id: BackendId) -> bool {
        let known = self.known.get(usize::from(id.0));
        known.is_some_and(|known| known.told == Some(true))
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
        match (known.heard, known.lives, known.doubtful) {
            (false, ..) => BackendState::Unknown,
            (true, false, _) => BackendState::Gone,
            (true, true, true) => BackendState::Doubtful,
            (true, true, false) if known.takes && !known.drained => BackendState::Taking,
            (true, true, false) => BackendState::Draining,
        }
    }

    /// The slots of a service, in order; none if there is no such service.
    pub fn slots(&self, service: usize) -> &[Slot] {
        self.slots.get(service).map_or(&[], Slots::all)
    }

    /// Whether every back-end that lived has fallen silent.
    pub fn is_deaf(&self) -> bool {
        let mut living = self.known.iter().filter(|known| known.lives).peekable();
        living.peek().is_some() && living.all(|known| known.doubtful)
    }

    fn give_up_doubtful(&mut self) {
        for known in self.known.iter_mut().filter(|known| known.doubtful) {
            (known.lives, known.takes, known.doubtful) = (false, false, false);
        }
    }

    /// Back-ends before slots: no slot leads to one that the data path does not know.
    fn tell(&mut self) {
        // Nobody at all: there is nothing better than what was.
        if self.starts.is_some() || !self.known.iter().any(|known| known.lives) {
            return;
        }
        let picture = self.picture();
        if self.told.as_ref() == Some(&picture) {
            return;
        }
        self.told = Some(picture);
        for (known, id) in self.known.iter_mut().zip(0..) {
            let there = known.lives;
            if known.told != Some(there) {
                known.told = Some(there);
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
        let known = known.map(|known| (known.lives, known.takes, known.drained));
        (known.collect(), self.idle.clone())
    }

    fn tell_slots(&mut self, service: usize) {
        let members = self.members(service);
        let table = lookup_table(self.config.size, &members);
        let known = &self.known;
        let is_there = |id: BackendId| known.get(usize::from(id.0)).is_some_and(|it| it.lives);
        let Some(slots) = self.slots.get_mut(service) else {
            return;
        };
        let changed = slots.change(&table, is_there);
        if changed.is_empty() {
            return;
        }
        let slots = changed.into_iter().map(|at| (at, slots.get(at))).collect();
        self.changes.push_back(Change::Slots { service, slots });
    }

    /// Those of a service that take new connections.
    fn members(&self, service: usize) -> Vec<Member> {
        let members = self.config.services.get(service).into_iter().flatten();
        members
            .filter_map(|(id, weight)| {
                let known = self.known.get(usize::from(id.0))?;
                let serves = !self.idle.contains(&(service, *id));
                let takes = known.lives && known.takes && !known.drained && serves;
                takes.then_some(Member {
                    name: known.name,
                    id: *id,
                    weight: *weight,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
