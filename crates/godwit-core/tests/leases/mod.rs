//! Voters and candidates with clocks that drift, and a network that loses,
//! delays, reorders and repeats.
//!
//! Time here is true time, in nanoseconds; each node sees its own clock. What
//! must hold at all times is asserted where a lease begins or is extended, so
//! that every test checks it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_core::lease::{
    Acceptor, Candidacy, LeaseEvent, Proposer, ProposerConfig, Speaker, Terms,
};
use godwit_core::share::Ballot;
use godwit_wire::{Epoch, Generation, Lease, LeaseMessage, NodeName, ShareId, Stay};

pub(crate) const SHARE: ShareId = ShareId(3);
pub(crate) const MS: u64 = 1_000_000;

/// A clock that runs too fast or too slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) offset: u64,
    /// Parts per million by which it runs ahead of true time.
    pub(crate) ppm: i64,
}

impl Clock {
    fn read(self, truth: u64) -> MonoTime {
        let rate = i128::from(1_000_000 + self.ppm);
        let ticks = i128::from(truth) * rate / 1_000_000;
        MonoTime(self.offset + u64::try_from(ticks).expect("clocks run forward"))
    }

    /// The first true time at which it shows `local` or more.
    fn reaches(self, local: MonoTime) -> u64 {
        let ticks = u128::from(local.0.saturating_sub(self.offset));
        let rate = u128::try_from(1_000_000 + self.ppm).expect("clocks run forward");
        u64::try_from((ticks * 1_000_000).div_ceil(rate)).unwrap_or(u64::MAX)
    }
}

/// The part of a node that does not restart with its agent.
#[derive(Debug, Clone, Copy, Default)]
struct DataPath {
    epoch: Epoch,
    /// When it falls silent, by the node's clock.
    expiry: MonoTime,
}

#[derive(Debug)]
pub(crate) struct Member {
    clock: Clock,
    starts: u64,
    pub(crate) acceptor: Acceptor,
    pub(crate) proposer: Option<Proposer>,
    data_path: DataPath,
    /// Twins, and of whom.
    pub(crate) held: Option<(Epoch, Generation)>,
    /// The in-sync set that a majority has confirmed to it as the owner.
    in_sync: Vec<Stay>,
    /// Sets that it has asked for.
    asked: BTreeMap<u64, Vec<Stay>>,
    pub(crate) stands: bool,
    /// Leaves precedence to nobody.
    pub(crate) impatient: bool,
    pub(crate) paused: bool,
    inbox: Vec<(usize, LeaseMessage)>,
}

/// What the network does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Network {
    pub(crate) delay_min: u64,
    pub(crate) delay_max: u64,
    /// Out of 100.
    pub(crate) loss: u64,
    pub(crate) repeat: u64,
}

impl Network {
    pub(crate) const GOOD: Self = Self {
        delay_min: MS / 20,
        delay_max: MS / 2,
        loss: 0,
        repeat: 0,
    };
    pub(crate) const BAD: Self = Self {
        delay_min: MS / 20,
        delay_max: 25 * MS,
        loss: 20,
        repeat: 10,
    };
}

#[derive(Debug)]
enum Happening {
    /// From, to, the life of the receiver that it is for.
    Arrival(usize, usize, u64, LeaseMessage),
    Wake(usize),
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) truth: u64,
    pub(crate) terms: Terms,
    pub(crate) members: Vec<Member>,
    pub(crate) network: Network,
    /// Cut in that direction.
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    /// Mutant: acceptors that restart vote at once.
    pub(crate) forgetful: bool,
    queue: BTreeMap<(u64, u64), Happening>,
    random: u64,
    count: u64,
    generation: u32,
    /// The owner that was granted last.
    last_granted: Epoch,
    /// Twins that lack what clients were told.
    stale: BTreeSet<(usize, Epoch, Generation)>,
    pub(crate) grants: u32,
    pub(crate) takeovers: u32,
    pub(crate) regains: u32,
}

pub(crate) fn name(index: usize) -> NodeName {
    NodeName::new(&format!("n{index}")).expect("a name")
}

impl Cluster {
    /// Voters that have been silent for long. The first `candidates` of them
    /// may own the share.
    pub(crate) fn new(clocks: &[Clock], candidates: usize, terms: Terms, seed: u64) -> Self {
        let mut this = Self {
            truth: 1_000 * MS,
            terms,
            members: Vec::new(),
            network: Network::GOOD,
            cuts: BTreeSet::new(),
            forgetful: false,
            queue: BTreeMap::new(),
            random: seed,
            count: 0,
            generation: 0,
            last_granted: Epoch::NONE,
            stale: BTreeSet::new(),
            grants: 0,
            takeovers: 0,
            regains: 0,
        };
        for (index, clock) in clocks.iter().enumerate() {
            this.members.push(Member {
                clock: *clock,
                starts: 0,
                acceptor: Acceptor::new(
                    terms,
                    [(SHARE, false)],
                    MonoTime::ZERO.saturating_add(terms.quarantine()),
                ),
                proposer: None,
                data_path: DataPath::default(),
                held: None,
                in_sync: Vec::new(),
                asked: BTreeMap::new(),
                stands: index < candidates,
                impatient: false,
                paused: false,
                inbox: Vec::new(),
            });
        }
        for index in 0..candidates {
            this.members[index].proposer = Some(Proposer::new(this.proposer_config(index)));
        }
        this
    }

    fn proposer_config(&mut self, index: usize) -> ProposerConfig {
        let count = self.members.len();
        let starts = u32::try_from(self.members[index].starts).expect("few");
        ProposerConfig {
            share: SHARE,
            node: name(index),
            voters: (0..count).map(name).collect(),
            others: (0..count)
                .filter(|other| *other != index)
                .map(name)
                .collect(),
            ballot: Ballot::new(
                100 + starts,
                u32::try_from(index).expect("few"),
                u32::try_from(count).expect("few"),
            ),
            endless: false,
            terms: self.terms,
            seed: self.draw(),
        }
    }

    pub(crate) fn now(&self, index: usize) -> MonoTime {
        self.members[index].clock.read(self.truth)
    }

    /// Whose data path lets segments out.
    pub(crate) fn speakers(&self) -> Vec<usize> {
        let speaks = |index: &usize| self.now(*index) < self.members[*index].data_path.expiry;
        (0..self.members.len()).filter(speaks).collect()
    }

    pub(crate) fn run_ms(&mut self, ms: u64) {
        let end = self.truth + ms * MS;
        for index in 0..self.members.len() {
            self.attend(index);
        }
        while let Some(entry) = self
            .queue
            .first_entry()
            .filter(|entry| entry.key().0 <= end)
        {
            let ((at, _), happening) = entry.remove_entry();
            self.truth = self.truth.max(at);
            match happening {
                Happening::Wake(index) => self.attend(index),
                Happening::Arrival(from, to, life, message) => {
                    if self.members[to].starts == life {
                        self.members[to].inbox.push((from, message));
                        self.attend(to);
                    }
                }
            }
        }
        self.truth = end;
    }

    /// A node takes what has arrived, looks at its clock, and speaks.
    pub(crate) fn attend(&mut self, index: usize) {
        if self.members[index].paused {
            return;
        }
        let now = self.now(index);
        for (from, message) in std::mem::take(&mut self.members[index].inbox) {
            self.hear(index, from, &message, now);
        }
        self.stand(index, now);
        if let Some(proposer) = &mut self.members[index].proposer {
            proposer.handle_timeout(now);
        }
        self.settle(index, now);
        self.set_alarm(index);
    }

    fn hear(&mut self, index: usize, from: usize, message: &LeaseMessage, now: MonoTime) {
        let speaker = Speaker {
            node: name(from),
            incarnation: self.members[from].starts,
        };
        let member = &mut self.members[index];
        if message.is_answer() {
            if let Some(proposer) = &mut member.proposer {
                proposer.handle_message(name(from), message, now);
            }
        } else {
            member.acceptor.handle_message(speaker, message, now);
        }
        self.settle(index, now);
    }

    fn stand(&mut self, index: usize, now: MonoTime) {
        let member = &mut self.members[index];
        if let (true, Some(proposer)) = (member.stands, &mut member.proposer)
            && proposer.is_idle()
        {
            let candidacy = Candidacy {
                above: Epoch::NONE,
                held: member.held,
                unvoted: false,
                kept: None,
                void: None,
                yields: Duration::ZERO,
                stagger: if member.impatient {
                    Duration::ZERO
                } else {
                    Duration::from_millis(10) * u32::try_from(index).expect("few")
                },
                fresh_after: now.saturating_add(self.terms.term),
                owner_has: Duration::ZERO,
                fence_after: now,
            };
            proposer.handle_candidacy(candidacy, now);
        }
    }

    /// Delivers what a node says, to itself at once.
    fn settle(&mut self, index: usize, now: MonoTime) {
        loop {
            let event = self.members[index]
                .proposer
                .as_mut()
                .and_then(Proposer::poll_event);
            if let Some(event) = event {
                self.follow(index, event, now);
                continue;
            }
            let proposer = self.members[index].proposer.as_mut();
            if let Some(message) = proposer.and_then(Proposer::poll_message) {
                for to in 0..self.members.len() {
                    self.send(index, to, &message, now);
                }
                continue;
            }
            let Some((to, message)) = self.members[index].acceptor.poll_answer() else {
                return;
            };
            let to = (0..self.members.len())
                .find(|other| name(*other) == to)
                .expect("known");
            self.send(index, to, &message, now);
        }
    }

    fn send(&mut self, from: usize, to: usize, message: &LeaseMessage, now: MonoTime) {
        if from == to {
            self.hear(to, from, message, now);
            return;
        }
        let copies = 1 + u64::from(self.chance(self.network.repeat));
        for _ in 0..copies {
            if self.cuts.contains(&(from, to)) || self.chance(self.network.loss) {
                continue;
            }
            let spread = self.network.delay_max - self.network.delay_min;
            let delay = self.network.delay_min + self.draw() % spread;
            let life = self.members[to].starts;
            self.push(
                self.truth + delay,
                Happening::Arrival(from, to, life, message.clone()),
            );
        }
    }

    fn follow(&mut self, index: usize, event: LeaseEvent, now: MonoTime) {
        let expiry = self.members[index]
            .proposer
            .as_ref()
            .and_then(Proposer::expiry);
        match event {
            LeaseEvent::Granted { epoch, member } => {
                self.grants += 1;
                self.take(index, epoch, member);
                self.write(index, epoch, expiry);
                self.members[index].in_sync.clear();
            }
            LeaseEvent::Moved => {
                let epoch = self.members[index].data_path.epoch;
                self.write(index, epoch, expiry);
            }
            LeaseEvent::Regained => {
                self.regains += 1;
                let epoch = self.members[index].data_path.epoch;
                assert_eq!(epoch, self.last_granted, "another owned in between");
            }
            LeaseEvent::Agreed { revision } => self.agree(index, revision),
            LeaseEvent::Lapsed => {
                let data_path = &mut self.members[index].data_path;
                data_path.expiry = data_path.expiry.min(now);
            }
            LeaseEvent::Lost { .. } => {
                self.members[index].data_path = DataPath::default();
                self.members[index].in_sync.clear();
                self.stand(index, now);
            }
            LeaseEvent::FenceWanted { .. } => panic!("leases end here"),
        }
    }

    /// A node becomes the owner, with its twins or without.
    fn take(&mut self, index: usize, epoch: Epoch, member: bool) {
        if member {
            self.takeovers += 1;
            let (of, generation) = self.members[index].held.expect("a member has twins");
            assert!(
                !self.stale.contains(&(index, of, generation)),
                "{index} lacks what clients were told under {of}"
            );
            assert_eq!(of, self.last_granted, "another owned in between");
        }
        self.last_granted = epoch;
        self.members[index].held = None;
    }

    /// Invariant 1, in true time.
    fn write(&mut self, index: usize, epoch: Epoch, expiry: Option<MonoTime>) {
        let expiry = expiry.expect("leases end here");
        self.members[index].data_path = DataPath { epoch, expiry };
        assert!(
            self.speakers().len() <= 1,
            "two voices: {:?}",
            self.speakers()
        );
    }

    /// A majority knows the set: now clients are told more than others have.
    fn agree(&mut self, index: usize, revision: u64) {
        let epoch = self.members[index].data_path.epoch;
        let asked = &mut self.members[index].asked;
        let Some(set) = asked.get(&revision).cloned() else {
            return;
        };
        asked.retain(|asked, _| *asked > revision);
        let gone = std::mem::replace(&mut self.members[index].in_sync, set);
        for stay in gone {
            if !self.members[index].in_sync.contains(&stay) {
                let node = (0..self.members.len()).find(|other| name(*other) == stay.node);
                self.stale
                    .insert((node.expect("known"), epoch, stay.generation));
            }
        }
    }

    /// The owner, if there is one, takes `standby` into its in-sync set.
    pub(crate) fn admit(&mut self, standby: usize) {
        let Some(owner) = self.working_owner().filter(|owner| *owner != standby) else {
            return;
        };
        self.generation += 1;
        let stay = Stay {
            node: name(standby),
            generation: Generation(self.generation),
        };
        self.members[standby].held = Some((self.members[owner].data_path.epoch, stay.generation));
        self.ask_set(owner, vec![stay]);
    }

    /// The owner, if there is one, wants nobody in its in-sync set.
    pub(crate) fn dismiss(&mut self) {
        if let Some(owner) = self.working_owner() {
            self.ask_set(owner, Vec::new());
        }
    }

    fn ask_set(&mut self, owner: usize, set: Vec<Stay>) {
        let now = self.now(owner);
        let member = &mut self.members[owner];
        let proposer = member.proposer.as_mut().expect("an owner has one");
        let revision = proposer.handle_in_sync(set.clone(), now);
        member.asked.insert(revision, set);
        self.attend(owner);
    }

    fn working_owner(&self) -> Option<usize> {
        let works = |index: &usize| {
            let member = &self.members[*index];
            let proposer = member.proposer.as_ref();
            !member.paused && proposer.is_some_and(|one| one.is_in_force(self.now(*index)))
        };
        (0..self.members.len()).find(works)
    }

    /// The host goes dark and comes back with nothing.
    pub(crate) fn reboot(&mut self, index: usize) {
        self.members[index].data_path = DataPath::default();
        self.members[index].held = None;
        self.restart_agent(index);
    }

    /// The agent dies and comes back; the data path goes on, and so do twins.
    pub(crate) fn restart_agent(&mut self, index: usize) {
        let now = self.now(index);
        let terms = self.terms;
        let since = if self.forgetful { MonoTime::ZERO } else { now };
        let quiet_until = since.saturating_add(terms.quarantine());
        let config = {
            self.members[index].starts += 1;
            self.proposer_config(index)
        };
        let member = &mut self.members[index];
        member.acceptor = Acceptor::new(terms, [(SHARE, false)], quiet_until);
        member.inbox.clear();
        member.paused = false;
        member.asked.clear();
        let DataPath { epoch, expiry } = member.data_path;
        if member.proposer.is_some() {
            member.proposer = Some(if epoch == Epoch::NONE {
                Proposer::new(config)
            } else {
                // As a data path does, it knows the set that was agreed upon.
                let set = member.in_sync.clone();
                let lease = Lease {
                    holder: name(index),
                    epoch,
                    number: 0,
                    term_ns: 0,
                    in_sync: set.clone(),
                };
                member.acceptor.handle_inherited(SHARE, lease, expiry);
                Proposer::resume(config, epoch, expiry, set, now)
            });
        }
        self.attend(index);
    }

    /// The node gives its lease back.
    pub(crate) fn release(&mut self, index: usize) {
        let now = self.now(index);
        if let Some(proposer) = &mut self.members[index].proposer {
            proposer.handle_release(now);
        }
        self.attend(index);
    }

    /// The node learns that the share is free.
    pub(crate) fn vacate(&mut self, index: usize) {
        let now = self.now(index);
        if let Some(proposer) = &mut self.members[index].proposer {
            proposer.handle_vacancy(now);
        }
        self.attend(index);
    }

    pub(crate) fn pause(&mut self, index: usize, paused: bool) {
        self.members[index].paused = paused;
        self.attend(index);
    }

    /// Everything works again; quarantines are over.
    pub(crate) fn heal(&mut self) {
        self.network = Network::GOOD;
        self.cuts.clear();
        for index in 0..self.members.len() {
            self.pause(index, false);
        }
    }

    fn set_alarm(&mut self, index: usize) {
        let member = &self.members[index];
        let due = member.proposer.as_ref().and_then(Proposer::poll_timeout);
        if let Some(due) = due {
            let at = member.clock.reaches(due).max(self.truth + 1);
            self.push(at, Happening::Wake(index));
        }
    }

    fn push(&mut self, at: u64, happening: Happening) {
        self.count += 1;
        self.queue.insert((at, self.count), happening);
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.draw() % 100 < percent
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
