//! Carries a fault out, and undoes it.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::unistd::Pid;

use super::plan::{Fault, Links, Part};
use super::reconfigure;
use super::scarce::Shortage;
use super::world::{Program, World};
use crate::capture::Stopwatch;
use crate::host::{Host, Network};
use crate::links::{Loss, Shape, Way};
use crate::process::Process;

/// A link whose queue takes 20 ms to leave, in `egress_residence`: if the kernel serves
/// it in time, which a [`Stopwatch`] measures.
const SLOW: Shape = Shape {
    rate_bits: 60_000_000,
    queue: Duration::from_millis(20),
};

/// Until that queue is full.
const FILLING: Duration = Duration::from_millis(80);

/// How long a tap loses segments before the owner may go dark.
const THINNING: Duration = Duration::from_millis(150);

/// A fault with names of machines in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) fault: Fault,
    /// The server whose service decides who is the owner.
    pub(super) program: Program,
    /// The machine concerned.
    pub(super) host: Host,
    owner: Host,
}

impl Target {
    /// Looks up who the owner is now.
    pub(super) fn of(fault: Fault, program: Program, world: &World<'_>) -> Result<Self> {
        let owner = world.owner_of(program)?;
        let host = match fault.part() {
            Part::Owner => owner,
            Part::Standby => other(owner),
            Part::Witness => Host::Witness,
        };
        Ok(Self {
            fault,
            program,
            host,
            owner,
        })
    }

    /// Whose agent can't answer while the fault lasts.
    pub(super) const fn silent(&self) -> Option<Host> {
        match self.fault {
            Fault::TapLoss { dark: false, .. }
            | Fault::ServersStopped(_)
            | Fault::ServerKilled(_)
            | Fault::DisksFull
            | Fault::Cut(..)
            | Fault::Muted(..)
            | Fault::Deafened(..)
            | Fault::Unplugged(_)
            | Fault::Disturbed(..)
            | Fault::Reconfigured(..)
            | Fault::Moved { dark: false } => None,
            Fault::Dark(..)
            | Fault::AgentStopped(_)
            | Fault::NodeStopped(_)
            | Fault::AgentKilled(_)
            | Fault::TapLoss { dark: true, .. }
            | Fault::MemoryShort(_)
            | Fault::Backlog(_)
            | Fault::Moved { dark: true } => Some(self.host),
        }
    }

    /// What has to be there before, and takes time.
    pub(super) fn prepare(&self, world: &mut World<'_>) -> Result<()> {
        match self.fault {
            Fault::TapLoss { per_myriad, .. } => {
                self.thin(world, per_myriad)?;
                thread::sleep(THINNING);
                Ok(())
            }
            Fault::Backlog(_) => {
                world.lab.shape(self.host, Some(SLOW))?;
                world.stopwatch = Some(Stopwatch::start(world.lab, self.host)?);
                thread::sleep(FILLING);
                Ok(())
            }
            Fault::Dark(..)
            | Fault::AgentStopped(_)
            | Fault::ServersStopped(_)
            | Fault::NodeStopped(_)
            | Fault::ServerKilled(_)
            | Fault::AgentKilled(_)
            | Fault::Cut(..)
            | Fault::Muted(..)
            | Fault::Deafened(..)
            | Fault::Unplugged(_)
            | Fault::DisksFull
            | Fault::MemoryShort(_)
            | Fault::Disturbed(..)
            | Fault::Reconfigured(..)
            | Fault::Moved { .. } => Ok(()),
        }
    }

    /// The fault itself.
    pub(super) fn inject(&self, world: &mut World<'_>) -> Result<()> {
        let (lab, host) = (world.lab, self.host);
        match self.fault {
            Fault::Dark(_, death) => lab.die(host, death).map(drop),
            Fault::TapLoss { dark: true, .. } => lab.crash(host).map(drop),
            Fault::TapLoss { dark: false, .. } => Ok(()),
            Fault::AgentStopped(_) | Fault::Backlog(_) => {
                each(world.processes(host, true, false), Process::stop)
            }
            Fault::ServersStopped(_) => each(world.processes(host, false, true), Process::stop),
            Fault::NodeStopped(_) => each(world.processes(host, true, true), Process::stop),
            Fault::ServerKilled(_) => world.kill_server(host, self.program),
            Fault::DisksFull => {
                world.fill_disks()?;
                world.kill_server(host, self.program)
            }
            Fault::AgentKilled(_) => each(world.processes(host, true, false), Process::kill),
            Fault::Cut(_, links) => lab.cut(host, links.networks()).map(drop),
            Fault::Muted(_, links) => self.one_way(world, links, Way::From, false),
            Fault::Deafened(_, links) => self.one_way(world, links, Way::To, false),
            Fault::Unplugged(_) => lab.unplug(host, Network::Data),
            Fault::Disturbed(_, disturbance) => disturbance.happen(lab, host),
            Fault::Reconfigured(_, how) => {
                reconfigure::begin(&mut world.cluster, &self.order(), how)
            }
            Fault::MemoryShort(_) => {
                let all = world.processes(host, true, true);
                let pids = all
                    .iter()
                    .map(|process| process.pid())
                    .collect::<Vec<Pid>>();
                let name = format!("{}-{host}", lab.id());
                world.shortage = Some(Shortage::new(&name, &pids)?);
                Ok(())
            }
            Fault::Moved { dark } => {
                // One that is refused has changed nothing; the sums tell.
                let service = self.program.service();
                let _refused = world.cluster.hand_over(service, self.owner, host);
                // What is booted again has lost its power: one that runs would say
                // goodbye to its clients when its data path is taken away.
                if dark {
                    lab.crash(host).map(drop)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Everything is as it was before, but for who owns what.
    pub(super) fn heal(&self, world: &mut World<'_>) -> Result<()> {
        let (lab, host) = (world.lab, self.host);
        match self.fault {
            Fault::Dark(..) | Fault::Moved { dark: true } => world.boot(host),
            Fault::Moved { dark: false } => Ok(()),
            Fault::TapLoss { dark, .. } => {
                self.thin(world, 0)?;
                if dark { world.boot(host) } else { Ok(()) }
            }
            Fault::AgentStopped(_) => each(world.processes(host, true, false), Process::cont),
            Fault::Backlog(_) => {
                each(world.processes(host, true, false), Process::cont)?;
                lab.shape(host, None)
            }
            Fault::ServersStopped(_) => each(world.processes(host, false, true), Process::cont),
            Fault::NodeStopped(_) => each(world.processes(host, true, true), Process::cont),
            Fault::ServerKilled(_) => world.restart_server(host, self.program),
            Fault::DisksFull => {
                world.clear_disks()?;
                world.restart_server(host, self.program)
            }
            Fault::AgentKilled(_) => world.restart_agent(host),
            Fault::Cut(_, links) => lab.heal(host, links.networks()),
            Fault::Muted(_, links) => self.one_way(world, links, Way::From, true),
            Fault::Deafened(_, links) => self.one_way(world, links, Way::To, true),
            Fault::Unplugged(_) => lab.plug(host, Network::Data),
            Fault::Disturbed(_, disturbance) => disturbance.pass(lab, host),
            Fault::Reconfigured(_, how) => reconfigure::end(&mut world.cluster, &self.order(), how),
            Fault::MemoryShort(_) => {
                world.shortage = None;
                Ok(())
            }
        }
        .with_context(|| format!("healing {}", self.fault.name()))
    }

    /// All nodes, its own machine first.
    const fn order(&self) -> [Host; 3] {
        [self.host, other(self.host), Host::Witness]
    }

    fn one_way(&self, world: &World<'_>, links: Links, way: Way, open: bool) -> Result<()> {
        let mut networks = links.networks().iter();
        networks.try_for_each(|network| world.lab.set_way(self.host, *network, way, open))
    }

    fn thin(&self, world: &World<'_>, per_myriad: u16) -> Result<()> {
        world.lab.lose(Loss {
            from: self.owner,
            to: other(self.owner),
            per_myriad,
        })
    }
}

impl Fault {
    const fn part(self) -> Part {
        match self {
            Self::Dark(part, _)
            | Self::AgentStopped(part)
            | Self::ServersStopped(part)
            | Self::NodeStopped(part)
            | Self::ServerKilled(part)
            | Self::AgentKilled(part)
            | Self::Cut(part, _)
            | Self::Muted(part, _)
            | Self::Deafened(part, _)
            | Self::Unplugged(part)
            | Self::Disturbed(part, _)
            | Self::Reconfigured(part, _)
            | Self::MemoryShort(part)
            | Self::Backlog(part) => part,
            Self::TapLoss { .. } | Self::DisksFull => Part::Owner,
            Self::Moved { .. } => Part::Standby,
        }
    }
}

impl Links {
    pub(super) const fn networks(self) -> &'static [Network] {
        match self {
            Self::Data => &[Network::Data],
            Self::Control => &[Network::Control],
            Self::All => &[Network::Data, Network::Control],
        }
    }
}

/// Does the same to each of them.
pub(super) fn each(
    processes: Vec<&mut Process>,
    what: fn(&mut Process) -> Result<()>,
) -> Result<()> {
    processes.into_iter().try_for_each(what)
}

const fn other(host: Host) -> Host {
    match host {
        Host::A => Host::B,
        Host::B
        | Host::C
        | Host::Client
        | Host::Attacker
        | Host::Witness
        | Host::Director
        | Host::Reserve => Host::A,
    }
}
