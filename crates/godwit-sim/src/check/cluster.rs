//! The small cluster: what happens next, if nothing goes wrong.
//!
//! Time goes by in steps of a third of a term or less. In between, whatever is under way
//! arrives, one thing after the other: what can arrive does, and whose timers
//! are due looks at them, until nothing is left to do. That is the *usual* course
//! of things. What may go wrong on the way is in `fault.rs`.

use std::sync::Arc;

use godwit_core::{Command, FlowCheck, Link, MonoTime, Node};
use godwit_wire::{Message, PeerMessage, Role};

use super::Bounds;
use super::ghost::{Ghost, Voice};
use super::machine::{Machine, NODES, SERVERS, SHARE};
use super::print::{Mill, Print};
use super::time::Times;
use super::trail::Trail;
use super::wire::{Block, Item, What, Wire};
use crate::host::peer_of;

/// Datagrams and control links.
const KINDS: usize = 2;

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The first thing on a wire arrives.
    Arrive(usize),
    /// A node is told what its flows look like.
    Check(usize),
    /// A node looks at its timers, and says that it is alive; one that is due to
    /// start starts.
    Wake(usize),
    /// Two nodes connect, if they are not.
    Dial(usize, usize),
    /// What comes late comes now.
    Thaw,
    /// Time passes.
    Tick,
}

/// How an agent is stopped between two actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It dies, and is started again so many steps later.
    Kill(u8),
    /// It does not run for so many steps.
    Pause(u8),
}

/// Everything there is.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) bounds: Arc<Bounds>,
    pub(super) times: Times,
    /// Most steps change one: the others are shared with the state before.
    pub(super) machines: [Arc<Machine>; NODES],
    prints: [Arc<Print>; NODES],
    wires: Vec<Wire>,
    /// Whether each node believes that it has a link to each other one.
    pub(super) links: [[bool; NODES]; NODES],
    /// Steps of time until an agent starts, and goes on.
    pub(super) down: [u8; NODES],
    pub(super) paused: [u8; NODES],
    /// Steps of time until a server process is back.
    pub(super) unserved: [u8; SERVERS],
    /// Whose timers are due, and which pairs may connect, in this step of time.
    due: [bool; NODES],
    dials: [bool; NODES],
    ghost: Ghost,
    pub(super) moves: u8,
    /// Things done since time passed last.
    busy: u16,
    /// Actions carried out in the last step, and by whom.
    pub(super) acted: (usize, usize),
    stop: Option<(usize, Stop)>,
    pub(super) faults: u8,
    pub(super) violation: Option<String>,
    pub(super) trail: Trail,
}

impl Cluster {
    /// All machines have just been switched on.
    pub(super) fn new(bounds: &Arc<Bounds>) -> Self {
        let dark = Machine::new();
        let print = Arc::new(Print::default());
        Self {
            bounds: Arc::clone(bounds),
            times: Times::new(bounds.clocks(), bounds.ticks),
            machines: std::array::from_fn(|_| Arc::new(dark.clone())),
            prints: std::array::from_fn(|_| Arc::clone(&print)),
            wires: vec![Wire::new(); NODES * NODES * KINDS],
            links: [[false; NODES]; NODES],
            down: [0; NODES],
            paused: [0; NODES],
            unserved: [0; SERVERS],
            due: [true; NODES],
            dials: [true; NODES],
            ghost: Ghost::default(),
            moves: bounds.moves,
            busy: 0,
            acted: (0, 0),
            stop: None,
            faults: 0,
            violation: None,
            trail: Trail::default(),
        }
    }

    /// Names the state. What is only counted makes no difference.
    pub(super) fn digest(&self) -> u64 {
        let mut mill = Mill::new();
        for (machine, print) in self.machines.iter().zip(&self.prints) {
            print.mix(&mut mill, &self.times);
            mill.add(machine.incarnation);
            for key in machine.keys {
                mill.add(key);
            }
        }
        for wire in &self.wires {
            wire.mix(&mut mill, &self.times);
        }
        let bit = |mill: &mut Mill, bits: &[bool]| {
            mill.add(bits.iter().fold(1, |all, bit| all << 1 | u64::from(*bit)));
        };
        for row in &self.links {
            bit(&mut mill, row);
        }
        bit(&mut mill, &self.due);
        bit(&mut mill, &self.dials);
        for counts in [&self.down[..], &self.paused, &self.unserved, &[self.moves]] {
            mill.add(
                counts
                    .iter()
                    .fold(1, |all, left| all << 8 | u64::from(*left)),
            );
        }
        self.ghost.mix(&mut mill);
        mill.digest()
    }

    pub(super) const fn wire(from: usize, to: usize, messages: bool) -> usize {
        (from * NODES + to) * KINDS + if messages { 1 } else { 0 }
    }

    pub(super) const fn ends(wire: usize) -> (usize, usize, bool) {
        let pair = wire / KINDS;
        (pair / NODES, pair % NODES, wire % KINDS == 1)
    }

    /// Whether an agent runs.
    pub(super) fn runs(&self, node: usize) -> bool {
        self.machines[node].agent.is_some() && self.paused[node] == 0
    }

    /// Whether the node owns the share, as far as its data path is concerned.
    pub(super) fn owns(&self, node: usize) -> bool {
        self.machines[node].entry.role == Role::Owner
    }

    /// What happens next if nothing goes wrong.
    pub(super) fn usual(&self) -> Step {
        let arrives = |wire: &usize| {
            let (_, to, _) = Self::ends(*wire);
            let it = &self.wires[*wire];
            let comes = matches!(it.block, Block::No) || matches!(it.block, Block::Cut(_));
            comes && !it.items.is_empty() && self.paused[to] == 0
        };
        if let Some(wire) = (0..self.wires.len()).find(arrives) {
            return Step::Arrive(wire);
        }
        let asked = |node: &usize| self.machines[*node].asked && self.paused[*node] == 0;
        if let Some(node) = (0..NODES).find(asked) {
            return Step::Check(node);
        }
        if let Some((one, two)) = PAIRS.into_iter().find(|pair| self.may_dial(*pair)) {
            return Step::Dial(one, two);
        }
        // Candidates before the primary: they get the chance to be too early.
        if let Some(node) = (0..NODES).rev().find(|node| self.due[*node]) {
            return Step::Wake(node);
        }
        let late = |wire: &Wire| wire.block == Block::Late(0);
        if self.wires.iter().any(late) {
            return Step::Thaw;
        }
        Step::Tick
    }

    /// Lets it happen, and checks what must hold.
    pub(super) fn take(&mut self, step: Step) {
        self.acted = (0, 0);
        self.busy += 1;
        self.trail.count();
        match step {
            Step::Arrive(wire) => self.arrive(wire),
            Step::Check(node) => {
                self.machine(node).asked = false;
                let check = FlowCheck::default();
                self.feed(node, |agent, now| {
                    agent.handle_flow_check(SHARE, check, now)
                });
            }
            Step::Wake(node) => self.wake(node),
            Step::Dial(one, two) => self.dial(one, two),
            Step::Thaw => {
                for wire in &mut self.wires {
                    if wire.block == Block::Late(0) {
                        wire.block = Block::No;
                    }
                }
            }
            Step::Tick => self.tick(),
        }
        self.stop = None;
        if self.busy > 2000 {
            self.violate(|| "there is no end to what is said".to_owned());
        }
    }

    /// The same, but the agent that acts is stopped before its action `at`.
    pub(super) fn take_until(&mut self, step: Step, at: usize, stop: Stop) {
        self.stop = Some((at, stop));
        self.take(step);
    }

    /// A step, for people.
    pub(super) fn say(&self, step: Step) -> String {
        let Step::Arrive(wire) = step else {
            return format!("{step:?}");
        };
        let (from, to, _) = Self::ends(wire);
        let what = self.wires[wire].items.front().map(|item| &item.what);
        format!("{from} to {to}: {what:?}")
    }

    /// What the data paths were told and who speaks, for people, if that changed.
    pub(super) fn roles(&mut self) -> Option<String> {
        let role = |node: usize| {
            let entry = &self.machines[node].entry;
            let speaks = if self.speaks(node) { ", heard" } else { "" };
            format!(
                "{node}: {} {} {}{speaks}",
                entry.role, entry.epoch, entry.generation
            )
        };
        let now = (0..SERVERS).map(role).collect::<Vec<_>>().join("; ");
        let news = self.trail.told != now;
        self.trail.told.clone_from(&now);
        news.then(|| format!("            {now}"))
    }

    /// Whether the share has an owner that is heard, and a standby in sync.
    pub(super) fn is_whole(&self) -> bool {
        let entry = |node: usize| &self.machines[node].entry;
        let whole = |owner: usize| {
            let (one, two) = (entry(owner), entry(1 - owner));
            self.speaks(owner)
                && two.role == Role::Shadow
                && !one.generation.is_none()
                && (one.generation, one.epoch) == (two.generation, two.epoch)
        };
        (0..SERVERS).any(whole)
    }

    fn speaks(&self, node: usize) -> bool {
        self.machines[node].can_speak(self.times.now(node), self.bounds.flaw)
    }

    /// Hears who speaks.
    pub(super) fn listen(&mut self) {
        let voices: Vec<_> = (0..SERVERS).filter(|node| self.speaks(*node)).collect();
        match *voices {
            [] => {}
            [node] => {
                let entry = self.machines[node].entry;
                let voice = Voice {
                    node,
                    boots: self.times.boots(node),
                    epoch: entry.epoch,
                };
                let wrong = self.ghost.hear(voice, entry.generation, entry.from);
                if let Some(wrong) = wrong {
                    self.violate(|| wrong);
                }
            }
            _ => {
                let epochs = voices.iter().map(|node| self.machines[*node].entry.epoch);
                let epochs: Vec<_> = epochs.collect();
                self.violate(|| format!("two voices, under {epochs:?}"));
            }
        }
    }

    pub(super) fn violate(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    pub(super) fn machine(&mut self, node: usize) -> &mut Machine {
        Arc::make_mut(&mut self.machines[node])
    }

    /// The agent of a node has changed.
    fn reprint(&mut self, node: usize) {
        let machine = &self.machines[node];
        let seen = (
            &machine.agent,
            &machine.entry,
            &machine.undone,
            machine.asked,
        );
        self.prints[node] = Arc::new(Print::of(&(seen, machine.silent_since)));
    }

    fn tick(&mut self) {
        self.busy = 0;
        self.times.pass();
        for wire in &mut self.wires {
            wire.pass();
        }
        let counts = [&mut self.down[..], &mut self.paused, &mut self.unserved];
        for left in counts.into_iter().flatten() {
            *left = left.saturating_sub(1);
        }
        self.due = [true; NODES];
        self.dials = [true; NODES];
        self.listen();
    }

    fn wake(&mut self, node: usize) {
        self.due[node] = false;
        if self.paused[node] > 0 {
            return;
        }
        if self.machines[node].agent.is_none() {
            if self.down[node] == 0 {
                let (now, boots) = (self.times.now(node), self.times.boots(node));
                let bounds = Arc::clone(&self.bounds);
                self.machine(node).start(node, boots, &bounds, now);
                // When it has its links it says that it is alive.
                self.due[node] = true;
                self.carry_on(node);
            }
            return;
        }
        if node < SERVERS && self.unserved[node] == 0 && !self.machines[node].entry.listening {
            self.machine(node).entry.listening = true;
            self.feed(node, |agent, now| agent.handle_listening(SHARE, true, now));
        }
        self.feed(node, Node::handle_timeout);
        if self.runs(node) {
            self.beat(node);
        }
    }

    fn beat(&mut self, node: usize) {
        let machine = self.machine(node);
        machine.beats += 1;
        let (incarnation, beats) = (machine.incarnation, machine.beats);
        let claims = machine.agent.iter().flat_map(Node::share_claims).collect();
        let beat = Item::new(incarnation, What::Beat(beats, claims));
        for to in (0..NODES).filter(|to| *to != node) {
            self.put(Self::wire(node, to, false), Arc::clone(&beat));
        }
    }

    pub(super) fn put(&mut self, wire: usize, item: Arc<Item>) {
        let wire = &mut self.wires[wire];
        if !matches!(wire.block, Block::Cut(_)) {
            wire.items.push_back(item);
        }
    }

    /// Whether two agents can connect. A link that has broken is not there again
    /// within a step of time.
    fn may_dial(&self, (one, two): (usize, usize)) -> bool {
        let clear =
            |from: usize, to: usize| self.wires[Self::wire(from, to, true)].block == Block::No;
        let linked = self.links[one][two] && self.links[two][one];
        let both = self.runs(one) && self.runs(two) && clear(one, two) && clear(two, one);
        self.dials[pair_index(one, two)] && both && !linked
    }

    /// Two agents connect.
    fn dial(&mut self, one: usize, two: usize) {
        self.dials[pair_index(one, two)] = false;
        let ways = [(one, two), (two, one)];
        for (from, to) in ways {
            self.links[from][to] = true;
            self.wires[Self::wire(from, to, true)].items.clear();
        }
        for (node, other) in ways {
            self.feed(node, |agent, now| {
                agent.handle_link(peer_of(node, other), Link::Up, now);
            });
        }
    }

    fn arrive(&mut self, wire: usize) {
        let (from, to, _) = Self::ends(wire);
        let Some(item) = self.wires[wire].items.pop_front() else {
            return;
        };
        if self.machines[to].agent.is_none() {
            return;
        }
        let (peer, incarnation) = (peer_of(to, from), item.incarnation);
        // Its key came with the last hello.
        let authentic = self.machines[to].keys[from] == incarnation;
        match &item.what {
            What::Beat(sequence, claims) => {
                if authentic {
                    let beat = What::beat(incarnation, *sequence, claims);
                    self.feed(to, |agent, now| agent.handle_heartbeat(peer, &beat, now));
                }
            }
            What::Lease(datagram) => {
                if authentic {
                    self.feed(to, |agent, now| agent.handle_lease(peer, datagram, now));
                }
            }
            What::Message(message) => {
                if !self.links[to][from] {
                    return;
                }
                if let Message::Peer(PeerMessage::Hello(hello)) = message {
                    self.machine(to).keys[from] = hello.incarnation;
                }
                self.feed(to, |agent, now| agent.handle_message(peer, message, now));
            }
            What::Gone => {
                if self.links[to][from] {
                    self.links[to][from] = false;
                    self.feed(to, |agent, now| agent.handle_link(peer, Link::Down, now));
                }
            }
        }
    }

    /// Feeds the core, and carries out what it decides.
    pub(super) fn feed(&mut self, node: usize, act: impl FnOnce(&mut Node, MonoTime)) {
        let now = self.times.now(node);
        if let Some(agent) = &mut self.machine(node).agent {
            act(agent, now);
        }
        self.carry_on(node);
    }

    pub(super) fn command(&mut self, node: usize, command: Command) {
        self.feed(node, |agent, now| agent.handle_command(command, now));
    }

    /// Carries out what is left to do, unless the agent is stopped.
    fn carry_on(&mut self, node: usize) {
        loop {
            if let Some((at, stop)) = self.stop
                && at == self.acted.1
            {
                self.stop = None;
                self.stop_agent(node, stop);
                break;
            }
            let machine = self.machine(node);
            let undone = machine.undone.pop_front();
            let next = || machine.agent.as_mut().and_then(Node::poll_action);
            let Some(action) = undone.or_else(next) else {
                break;
            };
            self.acted = (node, self.acted.1 + 1);
            self.carry_out(node, action);
        }
        while let Some(event) = self.machine(node).agent.as_mut().and_then(Node::poll_event) {
            self.misjudge(node, &event.kind);
        }
        self.reprint(node);
    }

    fn stop_agent(&mut self, node: usize, stop: Stop) {
        match stop {
            Stop::Kill(ticks) => self.kill(node, ticks),
            Stop::Pause(ticks) => {
                self.paused[node] = ticks;
                let machine = self.machine(node);
                let rest = std::iter::from_fn(|| machine.agent.as_mut()?.poll_action());
                machine.undone = rest.collect();
            }
        }
    }

    /// The agent dies; its kernel closes its links.
    pub(super) fn kill(&mut self, node: usize, ticks: u8) {
        self.down[node] = ticks;
        self.paused[node] = 0;
        self.machine(node).end_agent();
        for other in (0..NODES).filter(|other| *other != node) {
            if std::mem::take(&mut self.links[node][other]) {
                let gone = Item::new(0, What::Gone);
                self.wires[Self::wire(node, other, true)]
                    .items
                    .push_back(gone);
            }
            self.wires[Self::wire(other, node, true)].items.clear();
        }
        self.reprint(node);
    }

    /// The machine goes dark: nobody is told, and what it had sent arrives.
    pub(super) fn darken(&mut self, node: usize, ticks: u8) {
        self.down[node] = ticks;
        self.paused[node] = 0;
        self.times.boot(node);
        let now = self.times.now(node);
        self.machine(node).darken(now);
        self.links[node] = [false; NODES];
        for other in (0..NODES).filter(|other| *other != node) {
            for messages in [false, true] {
                self.wires[Self::wire(other, node, messages)].items.clear();
            }
        }
        self.reprint(node);
    }

    pub(super) fn block(&mut self, wire: usize, block: Block) {
        let (_, _, messages) = Self::ends(wire);
        let wire = &mut self.wires[wire];
        wire.block = match block {
            Block::Cut(ticks) if messages => Block::Late(ticks),
            Block::No | Block::Cut(_) | Block::Late(_) => block,
        };
        if matches!(wire.block, Block::Cut(_)) {
            wire.items.clear();
        }
    }

    /// The first thing on a wire is lost.
    pub(super) fn lose(&mut self, wire: usize) {
        self.wires[wire].items.pop_front();
    }

    /// Both ends hear that their link is gone, and what was on it is.
    pub(super) fn break_link(&mut self, one: usize, two: usize) {
        self.dials[pair_index(one, two)] = false;
        for (from, to) in [(one, two), (two, one)] {
            let wire = &mut self.wires[Self::wire(from, to, true)];
            wire.items.clear();
            wire.items.push_back(Item::new(0, What::Gone));
        }
    }

    pub(super) fn ghost(&mut self) -> &mut Ghost {
        &mut self.ghost
    }
}

const PAIRS: [(usize, usize); NODES] = [(0, 1), (0, 2), (1, 2)];

/// The place of a pair.
const fn pair_index(one: usize, two: usize) -> usize {
    one + two - 1
}
