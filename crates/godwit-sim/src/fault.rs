//! What goes wrong, how often, and whether it counts.
//!
//! A fault counts once, and only if it changed a role or hit a stream with
//! bytes in flight: a node that serves or shadows one, or a frame of one. One
//! that hit none waits: if it is the latest when a role changes soon after, it
//! counts then.

use std::time::Duration;

use godwit_core::{Command, Fencing};
use godwit_wire::{GoodbyeReason, Role};

use crate::host::Sleep;
use crate::mutant::Mutant;
use crate::network::{Net, Spell};
use crate::plan::{MS, SERVERS, US};
use crate::world::{Happening, World, name};

/// Position of a fault in the log of its history; 0: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FaultId(u32);

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A machine goes dark; later it boots.
    HostCrash,
    /// An agent dies, or all do; data paths go on, and new agents resume.
    AgentKill,
    /// An agent is stopped, as by SIGSTOP.
    AgentStop,
    /// An agent's deciding thread does not run; its heartbeats go on.
    DriverStall,
    /// An agent dies or stops between two actions of one decision.
    MidStep,
    /// A host does not run for a while; its clock goes on.
    HostPause,
    /// A host and its clock stop for a while. Only with stonith.
    ClockStop,
    /// A clock runs faster or slower, within its bounds.
    ClockRate,
    /// A server process dies, and with it the last listener.
    ServerDeath,
    /// A worker of the server dies.
    WorkerDeath,
    /// A twin's application closes early.
    TwinClose,
    /// An agent is restarted as planned.
    Restart,
    /// An agent hands over and ends.
    Shutdown,
    /// An owner gives its share back.
    Release,
    /// Somebody wants a share to be at its other server.
    Move,
    /// A control link breaks.
    LinkDrop,
    /// Nothing gets through from one node to another.
    OneWayCut,
    /// Nothing gets through between two nodes, on one network or both.
    Cut,
    /// A node is cut from all others, clients perhaps included.
    Isolation,
    /// Loss, delay, reordering and duplication on one path for a while.
    Weather,
    /// What passes a host's data path stays in its queues for as long as it may.
    DeepQueue,
    /// At a node no twins are born for a while.
    NoBirths,
    /// Something around a node is wrong for a while, and its agent sees that.
    WrongFact,
}

impl FaultKind {
    /// Every one.
    pub const ALL: [Self; 23] = [
        Self::HostCrash,
        Self::AgentKill,
        Self::AgentStop,
        Self::DriverStall,
        Self::MidStep,
        Self::HostPause,
        Self::ClockStop,
        Self::ClockRate,
        Self::ServerDeath,
        Self::WorkerDeath,
        Self::TwinClose,
        Self::Restart,
        Self::Shutdown,
        Self::Release,
        Self::Move,
        Self::LinkDrop,
        Self::OneWayCut,
        Self::Cut,
        Self::Isolation,
        Self::Weather,
        Self::DeepQueue,
        Self::NoBirths,
        Self::WrongFact,
    ];

    /// What people read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HostCrash => "host crashed",
            Self::AgentKill => "agent killed, or all of them",
            Self::AgentStop => "agent stopped",
            Self::DriverStall => "driver stalled",
            Self::MidStep => "killed or stopped between two actions",
            Self::HostPause => "host paused",
            Self::ClockStop => "host and clock stopped",
            Self::ClockRate => "clock rate changed",
            Self::ServerDeath => "server died",
            Self::WorkerDeath => "worker died",
            Self::TwinClose => "twin closed",
            Self::Restart => "agent restarted as planned",
            Self::Shutdown => "agent shut down",
            Self::Release => "lease given back",
            Self::Move => "share moved as planned",
            Self::LinkDrop => "control link dropped",
            Self::OneWayCut => "one direction cut",
            Self::Cut => "two nodes cut",
            Self::Isolation => "node isolated",
            Self::Weather => "loss, delay, reordering, duplication",
            Self::DeepQueue => "deep queue",
            Self::NoBirths => "no twins born",
            Self::WrongFact => "wrong fact",
        }
    }

    /// How often it happens in relation to the others: light ones, which are
    /// over before anybody is given up for them, and heavy ones.
    const fn weight(self, heavy: bool) -> u64 {
        match (self, heavy) {
            (Self::Weather, false) => 50,
            (Self::OneWayCut | Self::Cut, false) => 8,
            (Self::AgentStop | Self::DriverStall | Self::HostPause, false) => 6,
            (Self::ClockStop | Self::DeepQueue, false) => 3,
            (Self::LinkDrop | Self::ClockRate | Self::TwinClose | Self::Move, false) => 1,
            (Self::OneWayCut | Self::Cut | Self::HostCrash | Self::AgentKill, true)
            | (Self::Move, true) => 4,
            (Self::AgentStop | Self::DriverStall | Self::HostPause, true) => 3,
            (Self::ServerDeath | Self::WorkerDeath | Self::Isolation | Self::Weather, true) => 3,
            (Self::ClockStop | Self::Restart | Self::Shutdown | Self::Release, true) => 2,
            (Self::NoBirths | Self::WrongFact, true) => 2,
            // Those between two actions happen where these are carried out.
            (Self::MidStep, _)
            | (Self::LinkDrop | Self::ClockRate | Self::TwinClose | Self::DeepQueue, true)
            | (Self::HostCrash | Self::AgentKill | Self::ServerDeath, false)
            | (Self::WorkerDeath | Self::Isolation, false)
            | (Self::Restart | Self::Shutdown | Self::Release, false)
            | (Self::NoBirths | Self::WrongFact, false) => 0,
        }
    }
}

#[derive(Debug)]
struct Record {
    kind: FaultKind,
    counted: bool,
}

/// The faults of one history.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    log: Vec<Record>,
    /// The latest that has not counted, and when it was.
    pending: Option<(FaultId, u64)>,
}

/// How long after a fault a change of role is put down to it.
const CONSEQUENCE_NS: u64 = 3_000 * MS;

impl World {
    /// Notes a fault. It counts at once if it hit.
    pub(crate) fn strike(&mut self, kind: FaultKind, hit: bool) -> FaultId {
        self.faults.log.push(Record {
            kind,
            counted: false,
        });
        let id = FaultId(u32::try_from(self.faults.log.len()).unwrap_or(u32::MAX));
        self.tally.injected += 1;
        if hit {
            self.count(id);
        } else {
            self.faults.pending = Some((id, self.now_ns));
        }
        id
    }

    /// A fault hit a stream with bytes in flight, or changed a role.
    pub(crate) fn count(&mut self, id: FaultId) {
        let index = usize::try_from(id.0).unwrap_or(0).wrapping_sub(1);
        let Some(record) = self.faults.log.get_mut(index) else {
            return;
        };
        if !record.counted {
            record.counted = true;
            self.tally.faults += 1;
            self.tally.by_kind[record.kind as usize] += 1;
        }
    }

    /// A role has changed: if a fault hit nothing else, it was for this.
    pub(crate) fn blame_role_change(&mut self) {
        if let Some((id, at_ns)) = self.faults.pending.take()
            && self.now_ns - at_ns < CONSEQUENCE_NS
        {
            self.count(id);
        }
    }

    /// Whether a node serves or shadows a stream with bytes in flight.
    fn is_busy(&self, node: usize) -> bool {
        (0..self.plan.shares).any(|share| {
            let involved = self.hosts[node].up
                && match self.hosts[node].kernel.entries[share].role {
                    Role::Owner => true,
                    Role::Shadow => !self.hosts[node].kernel.entries[share].generation.is_none(),
                    Role::None => false,
                };
            involved && self.slots_of(share).any(|slot| self.is_in_flight(slot))
        })
    }

    /// The next fault of a storm, and how long until the one after.
    ///
    /// Most hit while a standby is in sync: else there is less to lose.
    pub(crate) fn do_harm(&mut self) -> u64 {
        let heavy = self.random.chance(self.plan.weather.heavy);
        let total: u64 = FaultKind::ALL.iter().map(|kind| kind.weight(heavy)).sum();
        let mut drawn = self.random.below(total);
        for kind in FaultKind::ALL {
            let weight = kind.weight(heavy);
            if drawn < weight {
                self.harm(kind, heavy);
                break;
            }
            drawn -= weight;
        }
        let gap_ns = self
            .random
            .between(self.plan.weather.gap_ns / 4, 2 * self.plan.weather.gap_ns);
        if self.is_whole() { gap_ns } else { 10 * gap_ns }
    }

    fn harm(&mut self, kind: FaultKind, heavy: bool) {
        match kind {
            FaultKind::Weather => self.bad_weather(heavy),
            FaultKind::OneWayCut | FaultKind::Cut | FaultKind::Isolation => self.cut(kind, heavy),
            FaultKind::AgentStop => self.put_to_sleep(kind, Sleep::Agent, heavy),
            FaultKind::DriverStall => self.put_to_sleep(kind, Sleep::Driver, heavy),
            FaultKind::HostPause => self.put_to_sleep(kind, Sleep::Host, heavy),
            FaultKind::ClockStop => self.put_to_sleep(kind, Sleep::Clock, heavy),
            FaultKind::ServerDeath | FaultKind::WorkerDeath => self.kill_server(kind),
            FaultKind::HostCrash => self.crash_a_host(),
            FaultKind::AgentKill => self.kill_agents(),
            FaultKind::Restart => self.restart_an_agent(),
            FaultKind::Shutdown => self.shut_an_agent_down(),
            FaultKind::Release => self.give_a_share_back(),
            FaultKind::Move => self.move_a_share(),
            FaultKind::ClockRate => {
                let node = self.any_node();
                self.strike(kind, false);
                self.retune(node);
            }
            FaultKind::TwinClose => self.close_a_twin(),
            FaultKind::LinkDrop => {
                let (one, two) = self.any_pair();
                self.strike(kind, false);
                self.drop_link(one, two);
            }
            FaultKind::DeepQueue => {
                let node = self.any_server();
                if self.plan.residence_ns > 0 && self.is_busy(node) {
                    self.strike(kind, true);
                    let lasts_ns = self.random.spread(5 * MS, 300 * MS);
                    self.hosts[node].kernel.deep_until_ns = self.now_ns + lasts_ns;
                }
            }
            FaultKind::NoBirths => {
                let node = self.any_server();
                self.prevent_births(node);
            }
            FaultKind::WrongFact => {
                let node = self.any_server();
                self.make_wrong(node);
            }
            FaultKind::MidStep => {}
        }
    }

    fn any_node(&mut self) -> usize {
        let nodes = self.plan.nodes as u64;
        usize::try_from(self.random.below(nodes)).unwrap_or(0)
    }

    fn any_server(&mut self) -> usize {
        usize::try_from(self.random.below(SERVERS as u64)).unwrap_or(0)
    }

    /// Servers are hit more often than those that only vote.
    fn any_victim(&mut self) -> usize {
        if self.random.chance(800) {
            self.any_server()
        } else {
            self.any_node()
        }
    }

    fn any_pair(&mut self) -> (usize, usize) {
        let one = self.any_victim();
        loop {
            let two = self.any_node();
            if two != one {
                return (one, two);
            }
        }
    }

    fn bad_weather(&mut self, heavy: bool) {
        let id = self.strike(FaultKind::Weather, false);
        let net = self
            .random
            .pick(&[Net::Control, Net::Data, Net::Data, Net::Data]);
        let (mut one, mut two) = self.any_pair();
        if net == Net::Data {
            // Twins and clients: nobody else has frames.
            one = self.any_server();
            two = self.random.pick(&[1 - one, self.plan.nodes]);
        }
        if self.random.chance(500) {
            std::mem::swap(&mut one, &mut two);
        }
        let most_ns = if heavy { 300 * MS } else { 15 * MS };
        let spell = Spell {
            until_ns: self.now_ns + self.random.spread(MS, most_ns),
            // As long as a light one lasts, it spoils a few.
            left: if heavy {
                u64::MAX
            } else {
                self.random.between(1, 4)
            },
            lost: self.random.pick(&[0, 100, 300, 900]),
            late: self.random.pick(&[100, 300, 1000]),
            twice: self.random.pick(&[0, 100, 400]),
            delay_ns: self.random.spread(200 * US, 40 * MS),
            fault: id,
        };
        self.network.worsen(net, one, two, spell);
        self.trace(|_| format!("weather on {net:?} {one} to {two}: {spell:?}"));
    }

    fn cut(&mut self, kind: FaultKind, heavy: bool) {
        let id = self.strike(kind, false);
        let most_ns = if heavy { 800 * MS } else { 12 * MS };
        let until_ns = self.now_ns + self.random.spread(MS, most_ns);
        let nets: &[Net] = match self.random.below(3) {
            0 => &[Net::Control],
            1 => &[Net::Data],
            _ => &[Net::Control, Net::Data],
        };
        let (one, mut two) = self.any_pair();
        let clients = self.plan.nodes;
        if nets.contains(&Net::Data) && one < SERVERS && self.random.chance(300) {
            two = clients;
        }
        let with_clients = self.random.chance(500);
        let others: Vec<usize> = if kind == FaultKind::Isolation {
            let all = 0..clients + usize::from(with_clients);
            all.filter(|other| *other != one).collect()
        } else {
            vec![two]
        };
        for net in nets {
            for other in &others {
                if *net == Net::Control && *other == clients {
                    continue;
                }
                self.network.cut(*net, one, *other, until_ns, id);
                if kind != FaultKind::OneWayCut {
                    self.network.cut(*net, *other, one, until_ns, id);
                }
            }
        }
        self.trace(|world| {
            let ms = (until_ns - world.now_ns) / MS;
            format!(
                "{}: {one} to {others:?} on {nets:?} for {ms} ms",
                kind.as_str()
            )
        });
    }

    fn put_to_sleep(&mut self, kind: FaultKind, sleep: Sleep, heavy: bool) {
        let node = self.any_victim();
        // With leases a clock that stops is not allowed for.
        let stops =
            self.plan.fencing == Fencing::Stonith || self.plan.mutant == Some(Mutant::StoppedClock);
        if sleep == Sleep::Clock && !stops || self.hosts[node].rest.sleep != Sleep::No {
            return;
        }
        let most_ns = if heavy { 1500 * MS } else { 15 * MS };
        let lasts_ns = self.random.spread(MS, most_ns);
        let hit = self.is_busy(node);
        self.strike(kind, hit);
        self.sleep(node, sleep, lasts_ns);
    }

    /// A node whose agent runs, and when that comes back if it ends now.
    fn any_agent(&mut self) -> Option<(usize, u64)> {
        let node = self.any_victim();
        let back_ns = self.now_ns + self.random.spread(5 * MS, 2500 * MS);
        self.hosts[node].thinks().then_some((node, back_ns))
    }

    fn crash_a_host(&mut self) {
        let Some((node, back_ns)) = self.any_agent() else {
            return;
        };
        let hit = self.is_busy(node);
        self.strike(FaultKind::HostCrash, hit);
        self.crash(node);
        self.queue.push(back_ns, Happening::Boot { node });
    }

    fn kill_agents(&mut self) {
        let Some((node, back_ns)) = self.any_agent() else {
            return;
        };
        let hit = self.is_busy(node);
        self.strike(FaultKind::AgentKill, hit);
        // An upgrade, or a bug that all have.
        let all = self.random.chance(300);
        for node in (0..self.plan.nodes).filter(|other| all || *other == node) {
            self.kill_agent(node);
            self.queue.push(back_ns, Happening::Start { node });
        }
    }

    fn give_a_share_back(&mut self) {
        let share = self.any_share();
        let Some((node, _)) = self.any_agent() else {
            return;
        };
        if self.is_owner(node, share) {
            let hit = self.is_busy(node);
            self.strike(FaultKind::Release, hit);
            for share in self.that_move_with(node, share) {
                self.command(node, Command::Release(Self::share_id(share)));
            }
        }
    }

    fn move_a_share(&mut self) {
        let share = self.any_share();
        let owner = (0..SERVERS).find(|node| self.is_owner(*node, share));
        let Some(node) = owner.filter(|node| self.hosts[*node].thinks()) else {
            return;
        };
        let hit = self.is_busy(node);
        self.strike(FaultKind::Move, hit);
        let force = self.random.below(3) == 0;
        self.order_move(node, share, name(1 - node), force);
        self.carry_on(node);
    }

    fn restart_an_agent(&mut self) {
        if let Some((node, _)) = self.any_agent() {
            let hit = self.is_busy(node);
            self.strike(FaultKind::Restart, hit);
            self.prepare_restart(node);
        }
    }

    fn shut_an_agent_down(&mut self) {
        let Some((node, back_ns)) = self.any_agent() else {
            return;
        };
        // Without a standby the agent would detach, which is no fault.
        let bare = (0..self.plan.shares).any(|share| {
            let entry = &self.hosts[node].kernel.entries[share];
            entry.role == Role::Owner && entry.generation.is_none()
        });
        if !bare {
            let hit = self.is_busy(node);
            self.strike(FaultKind::Shutdown, hit);
            self.command(node, Command::Goodbye(GoodbyeReason::Shutdown));
            self.retire_agent(node);
            self.queue.push(back_ns, Happening::Start { node });
        }
    }

    pub(crate) fn any_share(&mut self) -> usize {
        usize::try_from(self.random.below(self.plan.shares as u64)).unwrap_or(0)
    }

    pub(crate) fn prepare_restart(&mut self, node: usize) {
        // As `godwit agent` does on SIGTERM: it waits, but not for ever.
        let patience = Duration::from_millis(500);
        self.command(node, Command::Prepare(GoodbyeReason::Restart));
        let end_ns = self.now_ns + u64::try_from(patience.as_nanos()).unwrap_or(0);
        self.hosts[node].parting_ns = Some(end_ns);
        let life = self.hosts[node].life;
        self.queue
            .push(self.now_ns + 5 * MS, Happening::Part { node, life });
    }

    /// A planned restart goes on when the voters have agreed to a long lease.
    pub(crate) fn part(&mut self, node: usize) {
        let host = &self.hosts[node];
        let (Some(end_ns), Some(agent)) = (host.parting_ns, &host.agent) else {
            return;
        };
        let now = host.clock.read(self.now_ns);
        let ready = agent.is_prepared(GoodbyeReason::Restart, now);
        let life = host.life;
        if !host.thinks() || !ready && self.now_ns < end_ns {
            self.queue
                .push(self.now_ns + 5 * MS, Happening::Part { node, life });
            return;
        }
        self.command(node, Command::Goodbye(GoodbyeReason::Restart));
        self.retire_agent(node);
        let back_ns = self.now_ns + self.random.spread(5 * MS, 400 * MS);
        self.queue.push(back_ns, Happening::Start { node });
    }

    /// Between two actions of one decision: true if the agent does not go on.
    pub(crate) fn interrupt(&mut self, node: usize) -> bool {
        let harmless = !self.storming || self.plan.weather.interrupt == 0;
        if harmless || !self.random.chance(self.plan.weather.interrupt) {
            return false;
        }
        let hit = self.is_busy(node);
        self.strike(FaultKind::MidStep, hit);
        let back_ns = self.random.spread(5 * MS, 1500 * MS);
        match self.random.below(4) {
            0 => {
                self.kill_agent(node);
                self.queue
                    .push(self.now_ns + back_ns, Happening::Start { node });
            }
            1 => self.sleep(node, Sleep::Driver, back_ns),
            2 => self.sleep(node, Sleep::Agent, back_ns),
            _ => self.sleep(node, Sleep::Host, back_ns),
        }
        true
    }
}
