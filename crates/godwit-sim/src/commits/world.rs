//! Two machines, of which one owns the share, the link between them, and time.

use std::collections::VecDeque;
use std::net::SocketAddr;

use godwit_core::MonoTime;
use godwit_core::snapshot::commit::{Commits, Look, Standing};
use godwit_core::snapshot::exports::Exports;
use godwit_wire::{FlowId, FlowKey, Generation, SeqNumber, ShareId};

use super::standby::Twin;
use super::{Fault, Sums};
use crate::random::Random;

pub(super) const SHARE: ShareId = ShareId(1);
const CONNECTIONS: u16 = 3;

/// Milliseconds of a history, and those behind it without faults: longer than anybody waits.
const LONG: u64 = 12_000;
const CALM: u64 = 7_000;

/// A silent standby is let go then; so agents know within what a demotion may take.
const LET_GO: u64 = 2_000;

/// One connection at its owner.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) flow: FlowId,
    pub(super) standing: Standing,
    pub(super) generation: Generation,
    /// Its server's last commit.
    pub(super) made: u64,
    /// The last one that was answered: nobody may go on from an older one.
    pub(super) answered: u64,
    /// Who waits, for which, since when.
    pub(super) asked: Option<(u64, u64, u64)>,
    /// Its standby is being told not to serve it.
    pub(super) given_up: bool,
    /// Its new twin may count.
    pub(super) passed: bool,
}

/// What is said over the link: about which connection, in which generation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    /// Make a twin.
    Install,
    /// The commit of that number, and where its server stands with it.
    Parcel(u64, u64),
    /// The twin counts.
    Counts,
    /// It must not be served.
    GiveUp,
    /// There is a twin.
    Installed,
    /// It has come to the commit of that number.
    Held(u64),
    /// It will be served.
    Counted,
    /// It will not.
    GivenUp,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) due: u64,
    pub(super) to_owner: bool,
    pub(super) at: usize,
    pub(super) generation: Generation,
    pub(super) word: Word,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) random: Random,
    pub(super) fault: Option<Fault>,
    pub(super) now: u64,
    pub(super) commits: Commits<u64, ()>,
    pub(super) exports: Exports,
    pub(super) served: Vec<Served>,
    pub(super) twins: Vec<Option<Twin>>,
    /// Of the standby, if one is in sync.
    pub(super) generation: Generation,
    last_generation: Generation,
    link: VecDeque<Frame>,
    /// Since when nothing is heard on it.
    down: Option<u64>,
    pub(super) askers: u64,
    pub(super) sums: Sums,
    pub(super) violation: Option<String>,
    pub(super) is_calm: bool,
}

pub(super) fn time(ms: u64) -> MonoTime {
    MonoTime::from_nanos(1_000_000_000 + ms * 1_000_000)
}

fn exports(now: u64) -> Exports {
    let services = [(key(0).service, SHARE)].into();
    Exports::new(services, time(now))
}

fn key(at: u16) -> FlowKey {
    FlowKey {
        client: SocketAddr::from(([10, 9, 0, 50], 40_000 + at)).into(),
        service: SocketAddr::from(([10, 9, 0, 100], 80)).into(),
    }
}

impl World {
    pub(super) fn new(seed: u64, fault: Option<Fault>, sums: Sums) -> Self {
        let mut world = Self {
            random: Random::new(seed),
            fault,
            now: 0,
            commits: Commits::default(),
            exports: exports(0),
            served: Vec::new(),
            twins: (0..CONNECTIONS).map(|_| None).collect(),
            generation: Generation(1),
            last_generation: Generation(1),
            link: VecDeque::new(),
            down: None,
            askers: 0,
            sums,
            violation: None,
            is_calm: false,
        };
        world.served = (0..CONNECTIONS).map(|at| world.begun(at, 1)).collect();
        for at in 0..world.served.len() {
            world.say(at, false, Word::Install);
        }
        world
    }

    pub(super) const fn sums(&self) -> Sums {
        self.sums
    }

    pub(super) fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// A connection that begins now.
    fn begun(&self, at: u16, irs: u32) -> Served {
        let has_standby = !self.generation.is_none();
        Served {
            flow: FlowId {
                key: key(at),
                irs: SeqNumber(irs),
            },
            standing: if has_standby {
                Standing::Confirming
            } else {
                Standing::Alone
            },
            generation: self.generation,
            made: 0,
            answered: 0,
            asked: None,
            given_up: false,
            passed: false,
        }
    }

    /// What is wrong, if something is.
    pub(super) fn run(&mut self) -> Option<String> {
        while self.now < LONG + CALM && self.violation.is_none() {
            self.is_calm = self.now >= LONG;
            self.now += self.random.between(1, 12);
            self.deliver();
            self.step();
            self.look();
        }
        self.violation.take()
    }

    fn step(&mut self) {
        let drawn = self.random.below(CONNECTIONS.into());
        let at = usize::try_from(drawn).unwrap_or(0);
        match self.random.below(1_000) {
            0..=99 if !self.is_calm => self.commit(at),
            100..=299 => self.renew(at),
            300..=499 => self.look_at_exports(at),
            500..=504 if !self.is_calm => self.lose_link(),
            510..=529 => self.link_up(),
            530 if !self.is_calm => self.let_go(),
            531 if !self.is_calm => self.die(),
            532..=533 if !self.is_calm => self.distrust(at),
            _ => {}
        }
        if self.down.is_some_and(|since| self.now - since > LET_GO) {
            self.let_go();
        }
    }

    /// The flow, as its owner's data path has it.
    pub(super) fn look_of(&self, at: usize) -> Look {
        let it = &self.served[at];
        Look {
            share: SHARE,
            flow: it.flow,
            generation: it.generation,
            standing: it.standing,
            current: !it.generation.is_none() && it.generation == self.generation,
        }
    }

    pub(super) fn find(&self, flow: FlowId) -> Option<usize> {
        self.served.iter().position(|it| it.flow == flow)
    }

    pub(super) fn say(&mut self, at: usize, to_owner: bool, word: Word) {
        if self.down.is_some() || self.generation.is_none() {
            return;
        }
        // In order, each way.
        let last = self.link.iter().rev().find(|it| it.to_owner == to_owner);
        let after = last.map_or(self.now, |it| it.due);
        let due = after.max(self.now + self.random.spread(1, 200));
        self.link.push_back(Frame {
            due,
            to_owner,
            at,
            generation: self.generation,
            word,
        });
    }

    fn deliver(&mut self) {
        while let Some(at) = self.link.iter().position(|it| it.due <= self.now) {
            let Some(frame) = self.link.remove(at) else {
                return;
            };
            if frame.generation != self.generation {
                continue;
            }
            if frame.to_owner {
                self.hear_standby(frame.at, frame.word);
            } else {
                self.hear_owner(frame.at, frame.word);
            }
        }
    }

    fn lose_link(&mut self) {
        if self.down.is_none() {
            self.sums.faults += 1;
            self.down = Some(self.now);
            self.link.clear();
            self.commits.handle_link_change();
            self.exports.forget();
        }
    }

    /// What the standby was not told yet it is told again; one that is new gets in sync.
    fn link_up(&mut self) {
        let was_down = self.down.take().is_some();
        if self.generation.is_none() {
            self.last_generation = Generation(self.last_generation.0 + 1);
            self.generation = self.last_generation;
        } else if was_down {
            for at in 0..self.served.len() {
                self.say_again(at);
            }
        }
    }

    /// The standby is not in sync any more, as all know who could let it take over.
    fn let_go(&mut self) {
        if self.generation.is_none() {
            return;
        }
        self.lose_link();
        self.sums.faults += 1;
        self.generation = Generation::NONE;
        self.twins.fill_with(|| None);
        for it in &mut self.served {
            (it.standing, it.given_up, it.passed) = (Standing::Alone, false, false);
        }
        self.commits.handle_end(|_, _| true);
        self.commits.forget_all(|_| true);
        self.carry_out();
    }

    /// The owner dies, and its standby takes over what it may serve.
    fn die(&mut self) {
        self.sums.faults += 1;
        let takes_over = !self.generation.is_none();
        self.generation = Generation::NONE;
        self.down = Some(self.now);
        self.link.clear();
        self.commits = Commits::default();
        self.exports = exports(self.now);
        for at in 0..self.served.len() {
            let twin = self.twins[at].take().filter(|it| takes_over && it.counts);
            let Some(twin) = twin else {
                let port = u16::try_from(at).unwrap_or(0);
                let irs = self.served[at].flow.irs.0 + 1;
                self.served[at] = self.begun(port, irs);
                continue;
            };
            let it = &mut self.served[at];
            if twin.stands_at < it.answered {
                let (from, answered) = (twin.stands_at, it.answered);
                self.violation = Some(format!(
                    "{} ms: connection {at} goes on from commit {from}, and {answered} was answered",
                    self.now
                ));
                return;
            }
            self.sums.goes_on += u64::from(twin.stands_at > 0);
            // What it has beyond that nobody was told.
            (it.made, it.answered) = (twin.stands_at, twin.stands_at);
            (it.asked, it.given_up, it.passed) = (None, false, false);
            (it.standing, it.generation) = (Standing::Alone, Generation::NONE);
        }
    }
}
