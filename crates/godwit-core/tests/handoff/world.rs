//! Servers, links between them, and a connection, or a party of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use godwit_core::handoff::{Handoffs, Order, Place, Silence, Speaker, Step, Written};
use godwit_core::{MonoTime, PeerId};
use godwit_wire::{Epoch, FlowId, FlowKey, HandoffId, HandoffRefusal, SeqNumber};

const NOW: MonoTime = MonoTime::ZERO;
const LATE: MonoTime = MonoTime(u64::MAX);

/// How much may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bounds {
    pub(crate) begins: u8,
    pub(crate) timeouts: u8,
    pub(crate) faults: u8,
}

/// What the driver of a node still owes an answer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owed {
    Held(HandoffId),
    Frozen(HandoffId),
    Restored(HandoffId),
    Placed(HandoffId),
}

/// One server: its decisions, and what its kernel and its data path hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    machine: Handoffs,
    owed: VecDeque<Owed>,
    ends: BTreeMap<FlowId, End>,
    /// It is on.
    alive: bool,
    /// How often it was switched on.
    life: Epoch,
}

/// What a server has of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct End {
    /// It sends segments of the connection.
    speaks: bool,
    /// Its own socket, stopped.
    stopped: Option<HandoffId>,
    /// A socket made of bytes, silent.
    silent: Option<HandoffId>,
    /// What is written down for the next run of the agent.
    written: Option<Written>,
}

/// Messages on their way, or who has not noticed yet that there is no way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Wire {
    Up(VecDeque<(HandoffId, Step)>),
    Broken { unnoticed: bool },
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct World {
    nodes: Vec<Node>,
    /// From, to.
    wires: BTreeMap<(usize, usize), Wire>,
    /// Attempts whose origin has spoken again since it made the bytes.
    stale: BTreeSet<HandoffId>,
    /// Attempts under which a target has spoken.
    placed: BTreeSet<HandoffId>,
    /// A server has sent it to a node that is gone: it may be lost.
    at_risk: bool,
    over: BTreeSet<FlowId>,
    bounds: Bounds,
}

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Begin { at: usize, to: usize },
    Deliver { from: usize, to: usize },
    Answer { at: usize, well: bool },
    Timeout { at: usize },
    Break { one: usize, other: usize },
    Notice { at: usize, of: usize },
    Restart { at: usize },
    Die { at: usize },
    Reboot { at: usize },
    End,
    Ask { at: usize },
}

fn flow(number: u16) -> FlowId {
    FlowId {
        key: FlowKey {
            client: format!("10.9.0.10:{}", 40_000 + number).parse().unwrap(),
            service: "10.9.0.100:80".parse().unwrap(),
        },
        irs: SeqNumber(7),
    }
}

fn peer(node: usize) -> PeerId {
    PeerId(u16::try_from(node).unwrap())
}

impl End {
    fn has_socket(&self) -> bool {
        self.speaks || self.stopped.is_some() || self.silent.is_some()
    }
}

impl Node {
    fn new(flows: impl Iterator<Item = FlowId>, speaks: bool) -> Self {
        let end = End {
            speaks,
            ..End::default()
        };
        Self {
            machine: Handoffs::new(),
            owed: VecDeque::new(),
            ends: flows.map(|flow| (flow, end)).collect(),
            alive: true,
            life: Epoch(1),
        }
    }

    fn end(&mut self, flow: FlowId) -> &mut End {
        self.ends.get_mut(&flow).unwrap()
    }

    fn speaks(&self) -> bool {
        self.ends.values().any(|end| end.speaks)
    }

    fn write(&mut self, flow: FlowId) {
        let written = self.machine.written(&flow);
        self.end(flow).written = written;
    }
}

impl World {
    /// Connections at the first of some servers, which go together.
    pub(crate) fn new(servers: usize, flows: u16, bounds: Bounds) -> Self {
        let pairs = (0..servers).flat_map(|one| (0..servers).map(move |other| (one, other)));
        Self {
            nodes: (0..servers)
                .map(|node| Node::new((0..flows).map(flow), node == 0))
                .collect(),
            wires: pairs
                .filter(|(one, other)| one != other)
                .map(|pair| (pair, Wire::Up(VecDeque::new())))
                .collect(),
            stale: BTreeSet::new(),
            placed: BTreeSet::new(),
            at_risk: false,
            over: BTreeSet::new(),
            bounds,
        }
    }

    /// All that may happen.
    pub(crate) fn deeds(&self) -> Vec<Deed> {
        let mut deeds = self.courses();
        let bounds = &self.bounds;
        let alive = |at: &usize| self.nodes.get(*at).is_some_and(|node| node.alive);
        if bounds.begins > 0 && self.over.is_empty() {
            for at in (0..self.nodes.len()).filter(alive) {
                let others = (0..self.nodes.len()).filter(|to| *to != at);
                if self.nodes[at].speaks() {
                    deeds.extend(others.map(|to| Deed::Begin { at, to }));
                }
            }
        }
        if bounds.timeouts > 0 {
            let due = |at: &usize| self.nodes[*at].machine.poll_timeout().is_some();
            let nodes = (0..self.nodes.len()).filter(alive).filter(due);
            deeds.extend(nodes.map(|at| Deed::Timeout { at }));
            let forwards = |at: &usize| {
                let machine = &self.nodes[*at].machine;
                self.flows()
                    .any(|flow| machine.forwards_to(&flow).is_some())
            };
            let nodes = (0..self.nodes.len()).filter(alive).filter(forwards);
            deeds.extend(nodes.map(|at| Deed::Ask { at }));
        }
        if bounds.faults > 0 {
            for at in (0..self.nodes.len()).filter(alive) {
                deeds.extend([Deed::Restart { at }, Deed::Die { at }, Deed::Reboot { at }]);
                if !self.nodes[at].owed.is_empty() {
                    deeds.push(Deed::Answer { at, well: false });
                }
                deeds.extend((0..at).map(|other| Deed::Break { one: at, other }));
            }
            if self.over.is_empty() {
                deeds.push(Deed::End);
            }
        }
        deeds
    }

    /// What happens without anybody's doing.
    fn courses(&self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for ((from, to), wire) in &self.wires {
            match wire {
                Wire::Up(queue) if !queue.is_empty() => deeds.push(Deed::Deliver {
                    from: *from,
                    to: *to,
                }),
                // The one who would have received is the one who notices.
                Wire::Broken { unnoticed: true } => deeds.push(Deed::Notice { at: *to, of: *from }),
                Wire::Up(_) | Wire::Broken { .. } => {}
            }
        }
        let owing = |(_, node): &(usize, &Node)| node.alive && !node.owed.is_empty();
        let owing = self.nodes.iter().enumerate().filter(owing);
        deeds.extend(owing.map(|(at, _)| Deed::Answer { at, well: true }));
        deeds
    }

    /// Lets one thing happen.
    pub(crate) fn perform(&mut self, deed: Deed) -> Result<(), String> {
        match deed {
            Deed::Begin { at, to } => {
                self.bounds.begins -= 1;
                let node = &mut self.nodes[at];
                let flows: Vec<_> = node.ends.keys().copied().collect();
                let _refused = node.machine.begin_together(&flows, peer(to), NOW);
            }
            Deed::Deliver { from, to } => self.deliver(from, to),
            Deed::Answer { at, well } => {
                self.bounds.faults -= u8::from(!well);
                self.answer(at, well);
            }
            Deed::Timeout { at } => {
                self.bounds.timeouts -= 1;
                self.nodes[at].machine.handle_timeout(LATE);
            }
            Deed::Break { one, other } => {
                self.bounds.faults -= 1;
                self.snap(one, other);
            }
            Deed::Notice { at, of } => self.notice(at, of),
            Deed::Restart { at } => {
                self.bounds.faults -= 1;
                self.restart(at)?;
            }
            Deed::Die { at } => {
                self.bounds.faults -= 1;
                self.die(at);
            }
            Deed::Reboot { at } => {
                self.bounds.faults -= 1;
                self.reboot(at);
            }
            Deed::End => {
                self.bounds.faults -= 1;
                self.end();
            }
            Deed::Ask { at } => {
                self.bounds.timeouts -= 1;
                self.ask(at);
            }
        }
        for at in 0..self.nodes.len() {
            self.obey(at)?;
        }
        Ok(())
    }

    fn deliver(&mut self, from: usize, to: usize) {
        if let Some(Wire::Up(queue)) = self.wires.get_mut(&(from, to))
            && let Some((id, step)) = queue.pop_front()
            && self.nodes[to].alive
        {
            // A link does not outlive the life in which it was made.
            let by = Speaker {
                peer: peer(from),
                life: self.nodes[from].life,
            };
            self.nodes[to].machine.handle_step(by, id, step, NOW);
        }
    }

    fn answer(&mut self, at: usize, well: bool) {
        let node = &mut self.nodes[at];
        let failed = if well {
            Ok(())
        } else {
            Err(HandoffRefusal::NotRestored)
        };
        match node.owed.pop_front() {
            Some(Owed::Held(id)) => node.machine.handle_held(id, failed, NOW),
            Some(Owed::Frozen(id)) => node.machine.handle_frozen(id, failed.map(|()| NOW), NOW),
            Some(Owed::Restored(id)) => {
                if !well {
                    node.end(id.flow).silent = None;
                }
                node.machine.handle_restored(id, failed, NOW);
            }
            Some(Owed::Placed(id)) => node.machine.handle_placed(id, NOW),
            None => {}
        }
    }

    fn snap(&mut self, one: usize, other: usize) {
        for pair in [(one, other), (other, one)] {
            self.wires.insert(pair, Wire::Broken { unnoticed: true });
        }
    }

    /// A link is up again when both sides know that it was down.
    fn notice(&mut self, at: usize, of: usize) {
        let broken = Wire::Broken { unnoticed: false };
        self.wires.insert((of, at), broken.clone());
        if self.wires.get(&(at, of)) == Some(&broken) {
            for pair in [(of, at), (at, of)] {
                self.wires.insert(pair, Wire::Up(VecDeque::new()));
            }
        }
        let node = &mut self.nodes[at];
        if node.alive {
            node.machine.handle_link_lost(peer(of), NOW);
        }
    }

    /// The next run of the agent knows what was written down, and lets a stopped
    /// socket speak that was not given away.
    fn restart(&mut self, at: usize) -> Result<(), String> {
        let node = &mut self.nodes[at];
        node.owed.clear();
        node.machine = Handoffs::new();
        let mut left = Vec::new();
        for (flow, end) in &mut node.ends {
            end.silent = None;
            let committed = |written: &Written| matches!(written.place, Place::Committed { .. });
            let committed = end.written.as_ref().is_some_and(committed);
            if let Some(written) = end.written {
                node.machine.handle_resumed(*flow, written, NOW);
            }
            left.extend(end.stopped.filter(|_| !committed));
        }
        for id in left {
            self.speak(at, id)?;
        }
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            self.snap(at, other);
            self.notice(at, other);
        }
        Ok(())
    }

    fn die(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        for end in node.ends.values_mut() {
            self.at_risk |= end.speaks || end.written.is_some() || end.stopped.is_some();
            (end.speaks, end.stopped, end.silent) = (false, None, None);
        }
        node.alive = false;
        node.owed.clear();
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            self.snap(at, other);
            self.wires
                .insert((other, at), Wire::Broken { unnoticed: false });
        }
    }

    /// It comes back without memory, before the others have noticed anything.
    fn reboot(&mut self, at: usize) {
        self.die(at);
        let life = Epoch(self.nodes[at].life.0 + 1);
        let flows: Vec<_> = self.nodes[at].ends.keys().copied().collect();
        self.nodes[at] = Node {
            life,
            ..Node::new(flows.into_iter(), false)
        };
    }

    /// The first of them.
    fn end(&mut self) {
        let flow = flow(0);
        self.over.insert(flow);
        for node in &mut self.nodes {
            if std::mem::take(&mut node.end(flow).speaks) {
                node.machine.handle_ended(flow, NOW);
            }
        }
    }

    /// Clients have long been silent: whoever forwards for them asks. Without a link it
    /// waits for ever; how long is a matter of unit tests.
    fn ask(&mut self, at: usize) {
        for flow in self.flows().collect::<Vec<_>>() {
            let machine = &mut self.nodes[at].machine;
            let Some(to) = machine.forwards_to(&flow) else {
                continue;
            };
            let up = |wire: Option<&Wire>| matches!(wire, Some(Wire::Up(_)));
            let silence = Silence {
                lasted: Duration::MAX,
                patience: Duration::MAX,
                linked: up(self.wires.get(&(at, usize::from(to.0)))),
            };
            machine.handle_silence(flow, silence, NOW);
        }
    }

    fn obey(&mut self, at: usize) -> Result<(), String> {
        while self.nodes[at].machine.poll_news().is_some() {}
        while let Some(order) = self.nodes[at].machine.poll_order() {
            self.carry_out(at, order)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, at: usize, order: Order) -> Result<(), String> {
        let node = &mut self.nodes[at];
        match order {
            Order::Say { to, id, step } => {
                let to = usize::from(to.0);
                if let Some(Wire::Up(queue)) = self.wires.get_mut(&(at, to)) {
                    queue.push_back((id, step));
                }
            }
            Order::Hold { id, .. } => node.owed.push_back(Owed::Held(id)),
            Order::Freeze { id, .. } => {
                if self.placed.contains(&id) {
                    return Err(format!("{at} uses a number again: {id:?}"));
                }
                self.stale.remove(&id);
                let end = node.end(id.flow);
                (end.speaks, end.stopped) = (false, Some(id));
                node.owed.push_back(Owed::Frozen(id));
            }
            Order::Restore(id) => {
                node.end(id.flow).silent = Some(id);
                node.owed.push_back(Owed::Restored(id));
            }
            Order::Commit { id, .. } => node.write(id.flow),
            Order::Place(id) => self.place(at, id)?,
            Order::Thaw(id) => self.speak(at, id)?,
            Order::Reclaim(id) => {
                if self.placed.contains(&id) {
                    return Err(format!("{at} takes back what the other has served: {id:?}"));
                }
                node.write(id.flow);
                self.speak(at, id)?;
            }
            Order::Lose(id) => {
                if node.end(id.flow).stopped.take() != Some(id) {
                    return Err(format!("{at} loses what it has not: {id:?}"));
                }
                self.lose(at, id)?;
            }
            Order::Release(id) => {
                node.end(id.flow).stopped = None;
                node.write(id.flow);
            }
            Order::Discard { id, .. } => node.end(id.flow).silent = None,
            Order::Forget(flow) => node.end(flow).written = None,
            Order::Look { id, from } => {
                if !node.end(id.flow).has_socket() {
                    node.machine.handle_absent(id, from);
                }
            }
        }
        Ok(())
    }

    fn place(&mut self, at: usize, id: HandoffId) -> Result<(), String> {
        let node = &mut self.nodes[at];
        if node.end(id.flow).silent.take() != Some(id) {
            return Err(format!("{at} has no socket for {id:?}"));
        }
        if self.stale.contains(&id) {
            return Err(format!("{at} serves what is out of date: {id:?}"));
        }
        node.end(id.flow).speaks = !self.over.contains(&id.flow);
        node.write(id.flow);
        self.placed.insert(id);
        node.owed.push_back(Owed::Placed(id));
        Ok(())
    }

    /// A connection may be lost only if a node is, with its memory.
    fn lose(&mut self, at: usize, id: HandoffId) -> Result<(), String> {
        let failed = |node: &Node| !node.alive || node.life != Epoch(1);
        if !self.nodes.iter().any(failed) {
            return Err(format!("{at} loses what its target knows: {id:?}"));
        }
        self.at_risk = true;
        Ok(())
    }

    /// An origin goes on: what it has sent of its state is out of date.
    fn speak(&mut self, at: usize, id: HandoffId) -> Result<(), String> {
        let end = self.nodes[at].end(id.flow);
        if end.stopped.take().is_none() {
            return Err(format!("{at} has nothing to go on with: {id:?}"));
        }
        end.speaks = !self.over.contains(&id.flow);
        self.stale.insert(id);
        Ok(())
    }

    /// One voice for each connection.
    pub(crate) fn check(&self) -> Result<(), String> {
        for flow in self.flows() {
            match self.speakers(flow).len() {
                0 | 1 => {}
                more => return Err(format!("{more} nodes speak")),
            }
        }
        Ok(())
    }

    fn flows(&self) -> impl Iterator<Item = FlowId> + '_ {
        self.nodes
            .first()
            .into_iter()
            .flat_map(|node| node.ends.keys().copied())
    }

    /// Where segments of a client end, which come to the first server.
    fn way(&self, flow: FlowId) -> usize {
        let mut at = 0;
        for _ in 0..=self.nodes.len() {
            match self.nodes[at].machine.forwards_to(&flow) {
                Some(to) => at = usize::from(to.0),
                None => break,
            }
        }
        at
    }

    fn speakers(&self, flow: FlowId) -> Vec<usize> {
        let speaks = |(_, node): &(usize, &Node)| node.ends.get(&flow).is_some_and(|it| it.speaks);
        let nodes = self.nodes.iter().enumerate().filter(speaks);
        nodes.map(|(at, _)| at).collect()
    }

    /// Without further faults everything is decided, and one node speaks.
    pub(crate) fn calm(mut self) -> Result<(), String> {
        for _ in 0..40 {
            while let Some(deed) = self.courses().first().copied() {
                self.perform(deed)?;
                self.check()?;
            }
            for node in self.nodes.iter_mut().filter(|node| node.alive) {
                node.machine.handle_timeout(LATE);
            }
            for at in 0..self.nodes.len() {
                self.obey(at)?;
            }
        }
        let (mut places, mut at_risk) = (BTreeSet::new(), self.at_risk);
        for flow in self.flows() {
            // Given to a node that never comes back, which may have spoken.
            let lost = |node: &&Node| match node.machine.place(&flow) {
                Place::Committed { to, .. } => !self.nodes[usize::from(to.0)].alive,
                Place::Elsewhere | Place::Here | Place::Moved { .. } => false,
            };
            let moving = |node: &&Node| node.alive && node.machine.is_moving(&flow);
            if self.nodes.iter().any(|node| moving(&node) && !lost(&node)) {
                return Err("it is never decided".to_owned());
            }
            at_risk |= self.nodes.iter().any(|node| lost(&node));
            let speakers = self.speakers(flow);
            if speakers.is_empty() && !self.over.contains(&flow) && !at_risk {
                return Err("nobody speaks".to_owned());
            }
            let end = self.way(flow);
            if !at_risk && speakers.iter().any(|at| *at != end) {
                return Err(format!("clients reach {end}, and {speakers:?} speaks"));
            }
            places.extend(speakers);
        }
        if places.len() > 1 && !at_risk {
            return Err(format!(
                "some are at one server, some at another: {places:?}"
            ));
        }
        Ok(())
    }
}
