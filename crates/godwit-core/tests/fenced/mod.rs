//! Two servers and a witness (or none), with clocks that drift and a network
//! that can be cut between any two, in either direction.
//!
//! True time moves in steps of half a millisecond. What must hold at all times
//! is asserted in [`judge`] and [`World::step`], so that every test
//! checks it: one voice at a time, nobody takes over who lacks bytes, nothing is
//! said by an owner that has lost its lease.
#![allow(dead_code, reason = "each test uses a part of the harness")]

mod judge;
mod reload;
pub(crate) use reload::File;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use godwit_core::lease::Terms;
use godwit_core::node::{Resume, ServerExit, ShareNews};
use godwit_core::share::State;
use godwit_core::{
    Action, Beat, Command, Event, EventKind, Fencing, FlowCheck, FlowEvent, FlowEventKind,
    FlowPolicy, LeaseAction, LeaseConfig, Link, MonoTime, MoveAction, Node, NodeConfig, PeerAction,
    PeerConfig, PeerId, Power, ShareAction, ShareConfig, StonithFault, VoterMemory,
};
use godwit_wire::{
    Endpoint, Epoch, FlowId, FlowKey, Generation, GoodbyeReason, LeaseDatagram, Message, NodeName,
    Role, SeqNumber, ShareId,
};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const W: usize = 2;
pub(crate) const SHARE: ShareId = ShareId(3);

const STEP_NS: u64 = 500_000;
const STEPS_PER_MS: u64 = 1_000_000 / STEP_NS;
const LINK_DELAY_STEPS: u64 = 10;
const BEAT_STEPS: u64 = 20;
/// From the start of the command until the node is off.
const STONITH_STEPS: u64 = 200;

pub(crate) const TERMS: Terms = Terms {
    term: Duration::from_millis(60),
    long_term: Duration::from_millis(400),
    drift_ppm: 10_000,
    egress_residence: Duration::from_millis(2),
};

/// By how much each clock is wrong, in parts per million.
const DRIFT: [i64; 3] = [-10_000, 10_000, 3_000];

/// What the data path of a node was last told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) role: Role,
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    pub(crate) expiry: Option<MonoTime>,
}

const NOTHING: Entry = Entry {
    role: Role::None,
    epoch: Epoch::NONE,
    generation: Generation::NONE,
    expiry: None,
};

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) node: Option<Node>,
    starts: u64,
    beats: u64,
    latest: Generation,
    pub(crate) entry: Entry,
    pub(crate) actions: Vec<Action>,
    pub(crate) events: Vec<Event>,
    /// The agent is stopped with SIGSTOP.
    pub(crate) stopped: bool,
    /// Until when its agent does not vote, by the host's clock.
    quiet_until: MonoTime,
    /// What its agent has voted for, if that outlives it.
    kept: Option<String>,
    /// Who its file says may take the share over.
    pub(crate) backup: usize,
    /// What else its file says.
    pub(crate) file: Option<File>,
    /// Its file does not name the share yet.
    lacks: bool,
    /// How many seconds its clock of day is ahead, for agents that are started.
    pub(crate) ahead: u32,
    inbox: VecDeque<Parcel>,
}

#[derive(Debug, Clone)]
enum Parcel {
    Beat(usize, Beat),
    Lease(usize, LeaseDatagram),
    Message(usize, Message),
}

#[derive(Debug)]
pub(crate) struct World {
    step: u64,
    pub(crate) fencing: Fencing,
    pub(crate) sides: Vec<Side>,
    starts: u64,
    /// Nothing gets through from the first to the second.
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    /// Steps that a datagram takes, at least one.
    pub(crate) delay: u64,
    /// Lease datagrams that are lost, out of 100.
    pub(crate) loss: u64,
    links: BTreeSet<(usize, usize)>,
    link_due: Vec<((usize, usize), u64)>,
    wire: VecDeque<(u64, usize, Parcel)>,
    pub(crate) power: Switches,
    /// `ShareConfig::flap_limit` of agents that are started from now on.
    pub(crate) flap_limit: u32,
    /// `ShareConfig::failback` of the same.
    pub(crate) failback: Option<Duration>,
    /// What agents have voted for outlives them, but no boot.
    pub(crate) keeps: bool,
    /// How many may speak at one time: without a fence that may be more than one.
    pub(crate) voices: usize,
    /// Agents find on the link who was the other side of what one before has left.
    pub(crate) finds: bool,
    /// What [`MoveAction::CheckFlows`] finds.
    pub(crate) flow_check: FlowCheck,
    random: u64,
    judged: Judged,
    pub(crate) takeovers: u32,
}

/// Power switches, and what they were asked for.
#[derive(Debug)]
pub(crate) struct Switches {
    stonith: Vec<(u64, usize, usize)>,
    /// Whether the command that powers a node off does so, or why not.
    pub(crate) switch: Result<(), StonithFault>,
    /// How often it was run.
    pub(crate) switched: u32,
}

/// What the judge remembers.
#[derive(Debug)]
struct Judged {
    last_owner: Epoch,
    /// Who has owned under which epoch, ever.
    claims: BTreeMap<Epoch, usize>,
    /// Stays whose gates were opened: their twins lack bytes.
    stale: BTreeSet<(Epoch, Generation)>,
}

pub(crate) fn name(side: usize) -> NodeName {
    NodeName::new(["a", "b", "w"][side]).expect("a literal")
}

/// The number that `side` knows `other` by.
pub(crate) fn peer(side: usize, other: usize) -> PeerId {
    PeerId(u16::try_from(other - usize::from(other > side)).expect("few"))
}

fn other(side: usize, peer: PeerId) -> usize {
    let index = usize::from(peer.0);
    index + usize::from(index >= side)
}

impl World {
    pub(crate) fn dark(fencing: Fencing, nodes: usize) -> Self {
        let side = |_| Side {
            node: None,
            starts: 0,
            beats: 0,
            latest: Generation::NONE,
            entry: NOTHING,
            actions: Vec::new(),
            events: Vec::new(),
            stopped: false,
            quiet_until: MonoTime::ZERO.saturating_add(TERMS.quarantine()),
            kept: None,
            backup: B,
            file: None,
            lacks: false,
            ahead: 0,
            inbox: VecDeque::new(),
        };
        Self {
            // The hosts have been up for longer than any quarantine.
            step: 1_000 * STEPS_PER_MS,
            fencing,
            sides: (0..nodes).map(side).collect(),
            starts: 0,
            cuts: BTreeSet::new(),
            delay: 1,
            loss: 0,
            links: BTreeSet::new(),
            link_due: Vec::new(),
            wire: VecDeque::new(),
            power: Switches {
                stonith: Vec::new(),
                switch: Ok(()),
                switched: 0,
            },
            flap_limit: 0,
            failback: None,
            keeps: false,
            voices: 1,
            finds: false,
            flow_check: FlowCheck::default(),
            random: 0,
            judged: Judged {
                last_owner: Epoch::NONE,
                claims: BTreeMap::new(),
                stale: BTreeSet::new(),
            },
            takeovers: 0,
        }
    }

    pub(crate) fn booted(fencing: Fencing, nodes: usize) -> Self {
        let mut world = Self::dark(fencing, nodes);
        for side in 0..nodes {
            world.boot(side);
        }
        world
    }

    /// `a` owns, `b` is in sync.
    pub(crate) fn in_sync(fencing: Fencing, nodes: usize) -> Self {
        let mut world = Self::booted(fencing, nodes);
        world.run(3_000);
        assert_eq!(world.state(A), State::Owner);
        assert!(world.is_in_sync(A, B));
        world.forget_log();
        world
    }

    pub(crate) fn now(&self, side: usize) -> MonoTime {
        let truth = i128::from(self.step) * i128::from(STEP_NS);
        let ticks = truth * i128::from(1_000_000 + DRIFT[side]) / 1_000_000;
        let offset = 5_000_000_000 * side as u64;
        MonoTime(offset + u64::try_from(ticks).expect("forward"))
    }

    fn config(&self, side: usize, starts: u64, resume: Option<Resume>) -> NodeConfig {
        let nodes = self.sides.len();
        let others = (0..nodes).filter(|other| *other != side);
        NodeConfig {
            name: name(side),
            incarnation: self.incarnation(side, starts),
            peers: others
                .map(|other| PeerConfig { name: name(other) })
                .collect(),
            shares: self.shares(side, resume).collect(),
            lease: LeaseConfig {
                voters: (0..nodes).map(name).collect(),
                terms: TERMS,
                quiet_until: self.sides[side].quiet_until,
                seed: starts,
            },
            heartbeat: Duration::from_millis(10),
            misses: 3,
            startup_grace: NodeConfig::STARTUP_GRACE,
            heartbeat_key: [7; 32],
            config_digest: self.digest(side),
        }
    }

    /// Switches a machine on, with an empty data path.
    pub(crate) fn boot(&mut self, side: usize) {
        self.crash(side);
        self.sides[side].latest = Generation::NONE;
        self.start(side, None);
    }

    /// Starts the agent again; the data path was not touched.
    pub(crate) fn resume(&mut self, side: usize) {
        let entry = self.sides[side].entry;
        let resume = Resume {
            role: entry.role,
            epoch: entry.epoch,
            generation: entry.generation,
            expiry: entry.expiry,
            other: self.other_side(side, entry),
        };
        self.start(side, Some(resume));
        let latest = self.sides[side].latest;
        self.input(side, |node, now| {
            node.handle_inherited_flows(SHARE, latest, now);
        });
    }

    fn incarnation(&self, side: usize, starts: u64) -> u64 {
        (1000 + u64::from(self.sides[side].ahead) + starts) << 32 | starts
    }

    /// As far as its last agent has left word.
    fn other_side(&self, side: usize, entry: Entry) -> Option<NodeName> {
        let Some(kept) = &self.sides[side].kept else {
            return self.found_on_link(side, entry);
        };
        let votes = VoterMemory::of_text(kept, TERMS).expect("whole");
        votes.other_side(SHARE, name(side), (entry.epoch, entry.generation))
    }

    fn start(&mut self, side: usize, resume: Option<Resume>) {
        self.starts += 1;
        let config = self.config(side, self.starts, resume);
        let now = self.now(side);
        let this = &mut self.sides[side];
        this.starts = self.starts;
        this.beats = 0;
        this.stopped = false;
        this.inbox.clear();
        let kept = this.kept.take();
        let memory = kept.map(|votes| VoterMemory::of_text(&votes, TERMS).expect("whole"));
        this.node = Some(Node::new(&config, now).remembering(memory));
        self.drop_links(side);
        self.drain(side);
    }

    /// The machine goes dark. Its peers are not told.
    pub(crate) fn crash(&mut self, side: usize) {
        self.kill_agent(side);
        self.sides[side].entry = NOTHING;
        self.sides[side].kept = None;
    }

    /// The agent is gone; the data path goes on until its lease ends.
    pub(crate) fn kill_agent(&mut self, side: usize) {
        if self.sides[side].node.take().is_some() {
            self.sides[side].quiet_until = self.now(side).saturating_add(TERMS.quarantine());
        }
        self.power.stonith.retain(|(_, by, _)| *by != side);
        self.drop_links(side);
    }

    /// An agent that is started here does not vote before that.
    pub(crate) fn keep_quiet(&mut self, side: usize, until: MonoTime) {
        self.sides[side].quiet_until = until;
    }

    pub(crate) fn goodbye(&mut self, side: usize, reason: GoodbyeReason) {
        self.input(side, |node, now| {
            node.handle_command(Command::Goodbye(reason), now);
        });
        self.run(2);
        let now = self.now(side);
        let bound = self.sides[side].node.as_ref().map(|it| it.bound_until(now));
        self.kill_agent(side);
        self.sides[side].quiet_until = bound.unwrap_or(now);
        self.sides[side].kept = None;
    }

    pub(crate) fn drop_links(&mut self, side: usize) {
        let touches = |(one, two): (usize, usize)| one == side || two == side;
        self.wire.retain(|(_, to, parcel)| match parcel {
            Parcel::Message(from, _) => !touches((*from, *to)),
            Parcel::Beat(..) | Parcel::Lease(..) => true,
        });
        self.link_due.retain(|(link, _)| !touches(*link));
        let broken: Vec<_> = self
            .links
            .iter()
            .copied()
            .filter(|link| touches(*link))
            .collect();
        for (one, two) in broken {
            self.links.remove(&(one, two));
            for (at, to) in [(one, two), (two, one)] {
                self.input(at, |node, now| {
                    node.handle_link(peer(at, to), Link::Down, now)
                });
            }
        }
    }

    pub(crate) fn isolate(&mut self, side: usize) {
        for other in (0..self.sides.len()).filter(|other| *other != side) {
            self.cuts.extend([(side, other), (other, side)]);
        }
    }

    pub(crate) fn flow_event(&mut self, side: usize, port: u16, kind: FlowEventKind) {
        let endpoint = |text: &str| text.parse::<Endpoint>().expect("a literal");
        let event = FlowEvent {
            share: SHARE,
            flow: FlowId {
                key: FlowKey {
                    client: Endpoint::new(endpoint("10.9.0.10:1").addr, port),
                    service: endpoint("10.9.0.100:80"),
                },
                irs: SeqNumber(77),
            },
            generation: self.sides[side].entry.generation,
            kind,
        };
        self.input(side, |node, now| node.handle_flow_event(event, now));
    }

    /// A server process dies, and with it the last listener or not.
    pub(crate) fn server_exit(&mut self, side: usize, listener_lost: bool) {
        let exit = ServerExit {
            share: SHARE,
            server: true,
            kept: 1,
            listener_lost,
            movable: true,
        };
        self.input(side, |node, now| node.handle_server_exit(exit, now));
    }

    /// In milliseconds of true time.
    pub(crate) const fn elapsed(&self) -> u64 {
        self.step / STEPS_PER_MS
    }

    pub(crate) fn run(&mut self, ms: u64) {
        for _ in 0..ms * STEPS_PER_MS {
            self.step();
        }
    }

    pub(crate) fn step(&mut self) {
        self.step += 1;
        self.bring_up_links();
        self.cut_power();
        self.deliver();
        if self.step.is_multiple_of(BEAT_STEPS) {
            (0..self.sides.len()).for_each(|side| self.beat(side));
        }
        for side in 0..self.sides.len() {
            let now = self.now(side);
            let due = |node: &Node| node.poll_timeout().is_some_and(|due| due <= now);
            if self.sides[side].node.as_ref().is_some_and(due) {
                self.input(side, Node::handle_timeout);
            }
        }
        let voices = self.speakers().len();
        assert!(voices <= self.voices, "two voices: {:?}", self.sides);
    }

    fn bring_up_links(&mut self) {
        let works = |world: &Self, side: usize| {
            world.sides[side].node.is_some() && !world.sides[side].stopped
        };
        for one in 0..self.sides.len() {
            for two in one + 1..self.sides.len() {
                let cut = self.cuts.contains(&(one, two)) || self.cuts.contains(&(two, one));
                let known = self.links.contains(&(one, two))
                    || self.link_due.iter().any(|(link, _)| *link == (one, two));
                if works(self, one) && works(self, two) && !cut && !known {
                    self.link_due
                        .push(((one, two), self.step + LINK_DELAY_STEPS));
                }
            }
        }
        let now = self.step;
        let due: Vec<_> = self
            .link_due
            .iter()
            .filter(|(_, at)| *at <= now)
            .copied()
            .collect();
        self.link_due.retain(|(_, at)| *at > now);
        for ((one, two), _) in due {
            // A handshake needs both ends.
            if !works(self, one) || !works(self, two) {
                continue;
            }
            self.links.insert((one, two));
            for (at, to) in [(one, two), (two, one)] {
                self.input(at, |node, now| {
                    node.handle_link(peer(at, to), Link::Up, now)
                });
            }
        }
    }

    fn cut_power(&mut self) {
        let now = self.step;
        while let Some(index) = self.power.stonith.iter().position(|(at, ..)| *at <= now) {
            let (_, by, target) = self.power.stonith.remove(index);
            let outcome = self.power.switch;
            if outcome.is_ok() {
                self.crash(target);
            }
            self.input(by, |node, now| {
                node.handle_stonith(peer(by, target), outcome, now);
            });
        }
    }

    fn deliver(&mut self) {
        let now = self.step;
        let cuts = &self.cuts;
        let held = |to: usize, parcel: &Parcel| match parcel {
            // As TCP does: what a cut holds back arrives when it is mended.
            Parcel::Message(from, _) => cuts.contains(&(*from, to)),
            Parcel::Beat(..) | Parcel::Lease(..) => false,
        };
        let ready = |(due, to, parcel): &(u64, usize, Parcel)| *due <= now && !held(*to, parcel);
        let (due, later) = self.wire.drain(..).partition::<VecDeque<_>, _>(ready);
        self.wire = later;
        for (_, to, parcel) in due {
            if self.sides[to].node.is_some() {
                self.sides[to].inbox.push_back(parcel);
            }
        }
        for side in 0..self.sides.len() {
            while let Some(parcel) = self.take(side) {
                match parcel {
                    Parcel::Beat(from, beat) => self.input(side, |node, now| {
                        node.handle_heartbeat(peer(side, from), &beat, now);
                    }),
                    Parcel::Lease(from, datagram) => self.input(side, |node, now| {
                        node.handle_lease(peer(side, from), &datagram, now);
                    }),
                    Parcel::Message(from, message) => self.input(side, |node, now| {
                        node.handle_message(peer(side, from), &message, now);
                    }),
                }
            }
        }
    }

    fn take(&mut self, side: usize) -> Option<Parcel> {
        let this = &mut self.sides[side];
        if this.stopped {
            return None;
        }
        this.inbox.pop_front()
    }

    fn beat(&mut self, side: usize) {
        let incarnation = self.incarnation(side, self.sides[side].starts);
        let this = &mut self.sides[side];
        let Some(node) = this.node.as_ref().filter(|_| !this.stopped) else {
            return;
        };
        this.beats += 1;
        let beat = Beat {
            incarnation,
            sequence: this.beats,
            sent: None,
            shares: node.share_claims().collect(),
        };
        for other in (0..self.sides.len()).filter(|other| *other != side) {
            self.send_datagram(side, other, Parcel::Beat(side, beat.clone()));
        }
    }

    fn send_datagram(&mut self, from: usize, to: usize, parcel: Parcel) {
        // The keys come with the hello.
        let known = self.sides[from].node.is_some();
        if known && !self.cuts.contains(&(from, to)) {
            self.wire.push_back((self.step + self.delay, to, parcel));
        }
    }

    pub(crate) fn input(&mut self, side: usize, act: impl FnOnce(&mut Node, MonoTime)) {
        let now = self.now(side);
        let this = &mut self.sides[side];
        if let Some(node) = this.node.as_mut().filter(|_| !this.stopped) {
            act(node, now);
        }
        self.drain(side);
    }

    fn drain(&mut self, side: usize) {
        while let Some(action) = self.sides[side].node.as_mut().and_then(Node::poll_action) {
            self.observe(side, &action);
            match &action {
                Action::Peer(peer, PeerAction::Send(message)) => {
                    let to = other(side, *peer);
                    if self.links.contains(&(side.min(to), side.max(to))) {
                        let parcel = Parcel::Message(side, message.clone());
                        self.wire.push_back((self.step + 1, to, parcel));
                    }
                }
                Action::Lease(LeaseAction::Send { peer, datagram }) => {
                    let lost = self.draw() % 100 < self.loss;
                    if !lost {
                        let parcel = Parcel::Lease(side, datagram.clone());
                        self.send_datagram(side, other(side, *peer), parcel);
                    }
                }
                Action::Peer(peer, PeerAction::Stonith) => {
                    let target = other(side, *peer);
                    self.power.switched += 1;
                    self.power
                        .stonith
                        .push((self.step + STONITH_STEPS, side, target));
                }
                Action::Move(share, MoveAction::CheckFlows { .. }) => {
                    let (now, check) = (self.now(side), self.flow_check);
                    if let Some(node) = self.sides[side].node.as_mut() {
                        node.handle_flow_check(*share, check, now);
                    }
                }
                &Action::Move(share, MoveAction::Ask { wish }) => {
                    let (to, force) = (wish.to, wish.force);
                    let (now, command) = (self.now(side), Command::Move { share, to, force });
                    if let Some(node) = self.sides[side].node.as_mut() {
                        node.handle_command(command, now);
                    }
                }
                Action::Move(
                    _,
                    MoveAction::ResetUnprotected
                    | MoveAction::HandOver
                    | MoveAction::Resume
                    | MoveAction::Ended { .. },
                )
                | Action::Lease(LeaseAction::KeepVotes { .. })
                | Action::Share(..)
                | Action::Flow(..)
                | Action::Twin(..)
                | Action::Rejoin(..)
                | Action::Snapshot(..)
                | Action::Handoff(..) => {}
            }
            self.sides[side].actions.push(action);
        }
        while let Some(event) = self.sides[side].node.as_mut().and_then(Node::poll_event) {
            self.sides[side].events.push(event);
        }
    }

    /// What `side` knows of the power of `other`, and why it can't cut it.
    pub(crate) fn power(&self, side: usize, other: usize) -> (Power, Option<StonithFault>) {
        let node = self.sides[side].node.as_ref().expect("runs");
        let peer = usize::from(peer(side, other).0);
        let status = node.peer_status().nth(peer).expect("a peer");
        (status.power, status.stonith_fault)
    }

    /// Whose data path lets segments out.
    pub(crate) fn speakers(&self) -> Vec<usize> {
        let sides = 0..self.sides.len();
        sides.filter(|side| self.speaks(*side)).collect()
    }

    pub(crate) fn state(&self, side: usize) -> State {
        let node = self.sides[side].node.as_ref().expect("runs");
        node.share_status().next().expect("one share").state
    }

    /// Whether owner and standby agree that the standby is in sync.
    pub(crate) fn is_in_sync(&self, owner: usize, standby: usize) -> bool {
        let (owner, standby) = (self.sides[owner].entry, self.sides[standby].entry);
        owner.role == Role::Owner
            && standby.role == Role::Shadow
            && !owner.generation.is_none()
            && owner.generation == standby.generation
            && owner.epoch == standby.epoch
    }

    pub(crate) fn share_news(&self, side: usize, wanted: fn(&ShareNews) -> bool) -> Vec<ShareNews> {
        let news = |event: &Event| match &event.kind {
            EventKind::Share { news, .. } if wanted(news) => Some(*news),
            EventKind::Share { .. } | EventKind::Peer { .. } | EventKind::Flow { .. } => None,
        };
        self.sides[side].events.iter().filter_map(news).collect()
    }

    /// What a side has asked of its data path, but for the end of its lease.
    pub(crate) fn local_actions(&self, side: usize) -> Vec<Action> {
        let local = |action: &&Action| {
            !matches!(
                action,
                Action::Peer(_, PeerAction::Send(_))
                    | Action::Lease(LeaseAction::Send { .. })
                    | Action::Share(_, ShareAction::SetExpiry { .. })
                    | Action::Lease(LeaseAction::KeepVotes { .. })
            )
        };
        self.sides[side]
            .actions
            .iter()
            .filter(local)
            .cloned()
            .collect()
    }

    pub(crate) fn forget_log(&mut self) {
        for side in &mut self.sides {
            side.actions.clear();
            side.events.clear();
        }
    }

    fn draw(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.random >> 33
    }
}
