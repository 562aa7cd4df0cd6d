//! Carries a fault out, and undoes it.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::super::disturb::Disturbance;
use super::super::inject::each;
use super::super::reconfigure::{self, How};
use super::plan::{Draw, Fault};
use super::world::{Program, SERVERS, World, name_of, next};
use crate::host::{Host, Network};
use crate::links::{Loss, Way};
use crate::process::Process;

/// How long links lose frames before a machine may go dark.
const THINNING: Duration = Duration::from_millis(150);

/// A fault with names of machines in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    fault: Fault,
    pub(super) host: Host,
    program: Program,
}

impl Target {
    /// A director's is of the one that has the addresses.
    pub(super) fn of(draw: &Draw, world: &World<'_>) -> Self {
        let host = if draw.fault.is_directors() {
            world.holder()
        } else {
            draw.host
        };
        Self {
            fault: draw.fault,
            host,
            program: draw.program,
        }
    }

    /// Whose agent can't answer while the fault lasts.
    pub(super) const fn silent(&self) -> Option<Host> {
        match self.fault {
            Fault::Stopped { agent: false, .. }
            | Fault::ServerKilled
            | Fault::Cut(_)
            | Fault::Muted(_)
            | Fault::Deafened(_)
            | Fault::Unplugged
            | Fault::Disturbed(_)
            | Fault::Reconfigured(_)
            | Fault::Lossy { dark: false, .. }
            | Fault::Moved { dark: false }
            | Fault::DirectorStopped
            | Fault::DirectorKilled
            | Fault::DirectorDark => None,
            Fault::Dark(_)
            | Fault::Stopped { agent: true, .. }
            | Fault::AgentKilled
            | Fault::Lossy { dark: true, .. }
            | Fault::Moved { dark: true } => Some(self.host),
        }
    }

    /// Whether a server, or what it says, is gone.
    pub(super) const fn takes_server(&self) -> bool {
        match self.fault {
            Fault::Dark(_)
            | Fault::Stopped { .. }
            | Fault::ServerKilled
            | Fault::AgentKilled
            | Fault::Cut(_)
            | Fault::Muted(_)
            | Fault::Deafened(_)
            | Fault::Unplugged
            | Fault::Disturbed(Disturbance::Bounce | Disturbance::Mac)
            | Fault::Lossy { dark: true, .. }
            | Fault::Moved { dark: true } => true,
            Fault::Lossy { dark: false, .. }
            | Fault::Reconfigured(_)
            | Fault::Disturbed(Disturbance::Flush | Disturbance::Mute | Disturbance::Strict)
            | Fault::Moved { dark: false }
            | Fault::DirectorStopped
            | Fault::DirectorKilled
            | Fault::DirectorDark => false,
        }
    }

    /// What has to be there before, and takes time.
    pub(super) fn prepare(&self, world: &World<'_>) -> Result<()> {
        if let Fault::Lossy { per_myriad, .. } = self.fault {
            thin(world, per_myriad)?;
            thread::sleep(THINNING);
        }
        Ok(())
    }

    /// The fault itself.
    pub(super) fn inject(&self, world: &mut World<'_>) -> Result<()> {
        let (lab, host) = (world.lab, self.host);
        match self.fault {
            Fault::Dark(death) => lab.die(host, death).map(drop),
            Fault::Lossy { dark: true, .. } | Fault::DirectorDark => lab.crash(host).map(drop),
            Fault::Lossy { dark: false, .. } => Ok(()),
            Fault::Stopped { agent, server } => {
                each(world.processes(host, agent, server), Process::stop)
            }
            Fault::DirectorStopped => each(world.processes(host, true, false), Process::stop),
            Fault::ServerKilled => world.kill_server(host, self.program),
            Fault::AgentKilled | Fault::DirectorKilled => {
                each(world.processes(host, true, false), Process::kill)
            }
            Fault::Cut(links) => lab.cut(host, links.networks()).map(drop),
            Fault::Muted(links) => one_way(world, host, links.networks(), Way::From, false),
            Fault::Deafened(links) => one_way(world, host, links.networks(), Way::To, false),
            Fault::Unplugged => lab.unplug(host, Network::Data),
            Fault::Disturbed(disturbance) => disturbance.happen(lab, host),
            Fault::Reconfigured(how) => reconfigure::begin(&mut world.cluster, &order(host), how),
            Fault::Moved { dark } => {
                // Home if it was away, else away; one that is refused has changed nothing.
                let (owner, standby) = world.parts_of(self.program, host)?;
                let name = name_of(self.program, host, owner);
                let _refused = world.cluster.hand_over(&name, owner, standby);
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
            Fault::Dark(_) | Fault::Moved { dark: true } | Fault::DirectorDark => world.boot(host),
            Fault::Moved { dark: false } => Ok(()),
            Fault::Lossy { dark, .. } => {
                thin(world, 0)?;
                if dark { world.boot(host) } else { Ok(()) }
            }
            Fault::Stopped { agent, server } => {
                each(world.processes(host, agent, server), Process::cont)
            }
            Fault::DirectorStopped => each(world.processes(host, true, false), Process::cont),
            Fault::ServerKilled => world.restart_server(host, self.program),
            Fault::AgentKilled | Fault::DirectorKilled => world.restart_agent(host),
            Fault::Cut(links) => lab.heal(host, links.networks()),
            Fault::Muted(links) => one_way(world, host, links.networks(), Way::From, true),
            Fault::Deafened(links) => one_way(world, host, links.networks(), Way::To, true),
            Fault::Unplugged => lab.plug(host, Network::Data),
            Fault::Disturbed(disturbance) => disturbance.pass(lab, host),
            Fault::Reconfigured(how) => reconfigure::end(&mut world.cluster, &order(host), how),
        }
        .with_context(|| format!("healing {}", self.fault.name()))
    }
}

impl Fault {
    /// Whether it takes a vote away, or has another node ask for votes.
    pub(super) const fn needs_every_vote(self) -> bool {
        match self {
            Self::Dark(_)
            | Self::Stopped { .. }
            | Self::ServerKilled
            | Self::AgentKilled
            | Self::Cut(_)
            | Self::Muted(_)
            | Self::Deafened(_)
            | Self::Unplugged
            | Self::Moved { .. }
            | Self::Reconfigured(How::Restart)
            | Self::Lossy { dark: true, .. } => true,
            Self::Lossy { dark: false, .. }
            | Self::Disturbed(_)
            | Self::Reconfigured(How::Reload)
            | Self::DirectorStopped
            | Self::DirectorKilled
            | Self::DirectorDark => false,
        }
    }
}

/// All nodes, that server first.
fn order(host: Host) -> [Host; 6] {
    let (second, third) = (next(host), next(next(host)));
    [
        host,
        Host::Director,
        second,
        Host::Witness,
        Host::Reserve,
        third,
    ]
}

fn one_way(
    world: &World<'_>,
    host: Host,
    networks: &[Network],
    way: Way,
    open: bool,
) -> Result<()> {
    let mut networks = networks.iter();
    networks.try_for_each(|network| world.lab.set_way(host, *network, way, open))
}

/// What servers say to each other on the data network is lost.
fn thin(world: &World<'_>, per_myriad: u16) -> Result<()> {
    for from in SERVERS {
        for to in [next(from), next(next(from))] {
            world.lab.lose(Loss {
                from,
                to,
                per_myriad,
            })?;
        }
    }
    Ok(())
}
