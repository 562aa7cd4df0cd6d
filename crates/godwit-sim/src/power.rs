//! Machines and agents that start, end and sleep.

use godwit_core::node::Resume;
use godwit_core::{
    Command, FlowPolicy, LeaseConfig, MonoTime, Node, NodeConfig, PeerConfig, ShareConfig,
    VoterMemory,
};
use std::time::Duration;

use crate::clock::Clock;
use crate::flow::Flow;
use crate::host::{Entry, Half, Input, SHARES, Sleep, Votes};
use crate::plan::{MS, SERVERS};
use crate::world::{Happening, World, name};

impl World {
    /// Switches a machine on: empty memory, a clock that begins anew.
    pub(crate) fn boot(&mut self, node: usize) {
        if self.hosts[node].up {
            return;
        }
        let ppm = self.any_drift();
        let now_ns = self.now_ns;
        let deep = self.plan.deep;
        let host = &mut self.hosts[node];
        host.up = true;
        host.boots += 1;
        host.kernel.deep_until_ns = if deep { u64::MAX } else { 0 };
        host.clock = Clock::new(now_ns, 0, ppm);
        host.voted.votes = Votes::None;
        host.voted.memory = None;
        host.voted.kept = None;
        host.rest.sleep = Sleep::No;
        self.trace(|_| format!("{node}: host boots, clock wrong by {ppm} ppm"));
        // Init runs a while before it comes to the agent.
        let start_ns = now_ns + self.random.spread(20 * MS, 1500 * MS);
        self.queue.push(start_ns, Happening::Start { node });
    }

    /// The machine goes dark. Its peers are not told.
    pub(crate) fn crash(&mut self, node: usize) {
        self.trace(|_| format!("{node}: host crashes"));
        self.end_agent_process(node, false);
        let host = &mut self.hosts[node];
        host.up = false;
        host.rest.sleep = Sleep::No;
        host.rest.nap += 1;
        host.kernel.entries = [Entry::DARK; SHARES];
        host.kernel.flows.fill(Flow::default());
        host.kernel.halves.fill(Half::default());
        host.kernel.deep_until_ns = 0;
        self.lose_singles(node);
    }

    /// The agent is gone; the data path goes on until its lease ends.
    pub(crate) fn kill_agent(&mut self, node: usize) {
        self.trace(|_| format!("{node}: agent ends"));
        self.end_agent_process(node, true);
    }

    /// The agent ends in order, and leaves word of its votes: what they were, and, as one of
    /// an earlier version does, for how long they bind.
    pub(crate) fn retire_agent(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        let now = host.clock.read(self.now_ns);
        let bound = host.agent.as_ref().map(|agent| agent.bound_until(now));
        if let Some(bound) = bound {
            host.voted.votes = Votes::Until(bound);
        }
        let memory = host.agent.clone().and_then(Node::into_memory);
        host.voted.memory = memory.map(|memory| memory.to_text());
        host.voted.kept = None;
        if self.random.chance(250) {
            self.hosts[node].voted.memory = None;
        }
        self.kill_agent(node);
    }

    fn end_agent_process(&mut self, node: usize, aloud: bool) {
        let host = &mut self.hosts[node];
        if host.agent.take().is_none() {
            return;
        }
        host.life += 1;
        host.inbox.clear();
        host.kernel.unwritten = None;
        host.parting_ns = None;
        host.askers.clear();
        host.keys.fill(0);
        if matches!(host.rest.sleep, Sleep::Driver | Sleep::Agent) {
            host.rest.sleep = Sleep::No;
            host.rest.nap += 1;
        }
        self.end_made(node);
        self.close_links(node, aloud);
    }

    /// Starts an agent, with what an earlier one left in the data path.
    pub(crate) fn start(&mut self, node: usize) {
        let host = &self.hosts[node];
        if !host.up || host.agent.is_some() {
            return;
        }
        if !host.runs() {
            let again_ns = self.now_ns + 50 * MS;
            self.queue.push(again_ns, Happening::Start { node });
            return;
        }
        let now = host.clock.read(self.now_ns);
        // Seconds and a fraction; the wall clock is right enough.
        let seconds = 1_000_000 + self.now_ns / (1_000 * MS);
        // Epochs are of a second, and after a boot nothing tells them from those before: so
        // they count on boots that take longer.
        if matches!(host.voted.votes, Votes::None) && seconds == host.incarnation >> 32 {
            let again_ns = (self.now_ns / (1_000 * MS) + 1) * (1_000 * MS);
            self.queue.push(again_ns, Happening::Start { node });
            return;
        }
        let fraction = (self.now_ns % (1_000 * MS)) << 2;
        let incarnation = seconds << 32 | fraction;
        let config = self.config(node, incarnation, now);
        let seed = self.random.draw();
        let host = &mut self.hosts[node];
        host.life += 1;
        host.incarnation = incarnation;
        host.voted.votes = Votes::Unknown;
        host.file.read = host.file.written;
        host.beats = 0;
        host.rest.wake_ns = u64::MAX;
        let config = NodeConfig {
            lease: LeaseConfig {
                seed,
                ..config.lease
            },
            ..config
        };
        let kept = host.voted.kept.take();
        let memory = host.voted.memory.take().or(kept);
        let terms = config.lease.terms;
        let memory = memory.map(|text| VoterMemory::of_text(&text, terms).expect("it is whole"));
        let mut agent = Node::new(&config, now).remembering(memory);
        for share in 0..self.plan.shares {
            agent.handle_inherited_flows(
                Self::share_id(share),
                host.kernel.entries[share].latest,
                now,
            );
            let listening = host.kernel.entries[share].listening;
            agent.handle_listening(Self::share_id(share), listening, now);
        }
        host.agent = Some(agent);
        self.note_followed(node);
        if node < SERVERS {
            self.report_facts(node);
        }
        self.resume_singles(node);
        let host = &mut self.hosts[node];
        let life = host.life;
        self.trace(|_| format!("{node}: agent starts, incarnation {incarnation:#x}"));
        let tick_ns = self.now_ns + self.random.below(self.plan.heartbeat_ns);
        self.queue.push(tick_ns, Happening::Tick { node, life });
        self.begin_canaries(node);
        for other in (0..self.plan.nodes).filter(|other| *other != node) {
            self.dial_later(node, other);
        }
        self.carry_on(node);
    }

    fn config(&self, node: usize, incarnation: u64, now: MonoTime) -> NodeConfig {
        let host = &self.hosts[node];
        let others = (0..self.plan.nodes).filter(|other| *other != node);
        let share = |share: usize| {
            let entry = &host.kernel.entries[share];
            let primary = Self::primary(share);
            ShareConfig {
                id: Self::share_id(share),
                name: String::new(),
                primary: name(primary),
                mates: self.mates(node, share),
                backups: vec![name(1 - primary)],
                fencing: self.plan.fencing,
                server_lost_hold: self.hold(),
                policy: FlowPolicy::default(),
                flap_limit: self.plan.habits.flap_limit,
                failback: self.plan.habits.failback,
                paths: self.plan.habits.paths,
                moves_within: None,
                resume: (node < SERVERS).then_some(Resume {
                    role: entry.role,
                    epoch: entry.epoch,
                    generation: entry.generation,
                    expiry: entry.expiry,
                    other: None,
                }),
            }
        };
        NodeConfig {
            name: name(node),
            incarnation,
            peers: others
                .map(|other| PeerConfig { name: name(other) })
                .collect(),
            shares: (0..self.plan.shares)
                .filter(|it| self.has_share(node, *it))
                .map(share)
                .chain(self.single_shares(node))
                .collect(),
            lease: LeaseConfig {
                voters: (0..self.plan.nodes).map(name).collect(),
                terms: self.plan.terms,
                quiet_until: host.voted.votes.quiet_until(&self.plan.terms, now),
                seed: 0,
            },
            heartbeat: Duration::from_nanos(self.plan.heartbeat_ns),
            misses: self.plan.misses,
            startup_grace: Duration::from_nanos(self.plan.grace_ns),
            heartbeat_key: [0; 32],
            config_digest: [0; 32],
        }
    }

    /// How long a share whose server died is silent for a taker.
    pub(crate) fn hold(&self) -> Duration {
        2 * self.plan.terms.term
    }

    /// Stops something of a host for a while.
    pub(crate) fn sleep(&mut self, node: usize, sleep: Sleep, lasts_ns: u64) {
        let now_ns = self.now_ns;
        let host = &mut self.hosts[node];
        if !host.up || host.rest.sleep != Sleep::No {
            return;
        }
        host.rest.sleep = sleep;
        host.rest.nap += 1;
        if sleep == Sleep::Clock {
            host.clock.stop(now_ns);
        }
        let nap = host.rest.nap;
        self.queue
            .push(now_ns + lasts_ns, Happening::WakeUp { node, nap });
        self.trace(|_| format!("{node}: {sleep:?} sleeps for {} ms", lasts_ns / MS));
    }

    pub(crate) fn wake_up(&mut self, node: usize) {
        let now_ns = self.now_ns;
        let host = &mut self.hosts[node];
        if host.rest.sleep == Sleep::Clock {
            host.clock.go_on(now_ns);
        }
        host.rest.sleep = Sleep::No;
        host.rest.nap += 1;
        host.rest.wake_ns = u64::MAX;
        self.trace(|_| format!("{node}: wakes up"));
        self.carry_on(node);
        while self.hosts[node].thinks()
            && let Some(input) = self.hosts[node].inbox.pop_front()
        {
            self.feed(node, input);
        }
    }

    /// Another rate of a clock, within what all nodes are told of clocks.
    pub(crate) fn retune(&mut self, node: usize) {
        let ppm = self.any_drift();
        let now_ns = self.now_ns;
        let host = &mut self.hosts[node];
        if host.up && host.rest.sleep != Sleep::Clock {
            host.clock.retune(now_ns, ppm);
            host.rest.wake_ns = u64::MAX;
            self.trace(|_| format!("{node}: clock wrong by {ppm} ppm"));
            self.set_alarm(node);
        }
    }

    /// As wrong as clocks may be, more often than not.
    fn any_drift(&mut self) -> i64 {
        let most = self.plan.drift_ppm.cast_signed();
        let any = self.random.below(self.plan.drift_ppm).cast_signed();
        self.random.pick(&[most, -most, any, -any])
    }

    /// The command that cuts power has ended.
    pub(crate) fn power_off(&mut self, by: usize, life: u64, target: usize) {
        // A command that fails says so.
        let off = self.random.chance(900);
        if off {
            self.crash(target);
            let back_ns = self.now_ns + self.random.spread(20 * MS, 2000 * MS);
            self.queue.push(back_ns, Happening::Boot { node: target });
        }
        if self.hosts[by].life == life {
            self.give(by, Input::Stonith(target, off));
        }
    }

    pub(crate) fn command(&mut self, node: usize, command: Command) {
        self.trace(|_| format!("{node}: {command:?}"));
        self.input(node, |agent, now| agent.handle_command(command, now));
    }
}
