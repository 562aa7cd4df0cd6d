//! The cluster that things are done to, and how it is brought back together.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::news::News;
use super::scarce::{Disk, Shortage};
use super::talk::FILE;
use crate::apps::nginx::Nginx;
use crate::apps::{redis, server};
use crate::capture::Stopwatch;
use crate::cluster::{Cluster, ClusterOptions, EventReport, Fencing, FlowReport, Service, Status};
use crate::host::Host;
use crate::lab::{Lab, which};
use crate::process::{Process, SAME_CAUSE};

/// `egress_residence`: frames may wait for so long below the data path.
pub(super) const RESIDENCE: Duration = Duration::from_millis(25);

/// Port of the service on the lab's own server.
pub(super) const PORT: u16 = 80;

/// A healed cluster must be protected again by then.
const READY: Duration = Duration::from_secs(20);

/// A voter whose agent has been started again keeps quiet for so long, as it
/// has forgotten what it promised (`godwit-core`, `Terms::quarantine`); and a
/// little more.
const QUARANTINE: Duration = Duration::from_millis(10_200);

/// An unmodified server, or the lab's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Program {
    Own,
    Nginx,
    Redis,
}

/// A lab, its servers and Godwit on them.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) lab: &'a Lab,
    pub(super) cluster: Cluster<'a>,
    pub(super) programs: Vec<Program>,
    servers: BTreeMap<(Host, Program), Process>,
    pub(super) shortage: Option<Shortage>,
    /// Runs while a queue is full.
    pub(super) stopwatch: Option<Stopwatch>,
    disks: Vec<Disk>,
    /// When a server was killed last.
    last_death: Option<Instant>,
    /// When an agent was started again last, on a machine that had not booted.
    last_restart: Option<Instant>,
    news: News,
}

impl Program {
    pub(super) const fn port(self) -> u16 {
        match self {
            Self::Own => PORT,
            Self::Nginx => 8080,
            Self::Redis => 6379,
        }
    }

    pub(super) const fn service(self) -> &'static str {
        match self {
            Self::Own => "web",
            Self::Nginx => "files",
            Self::Redis => "cache",
        }
    }

    /// Whose port it is.
    pub(super) fn at(port: u16) -> Option<Self> {
        let all = [Self::Own, Self::Nginx, Self::Redis];
        all.into_iter().find(|program| program.port() == port)
    }

    /// Those that are installed here.
    pub(super) fn installed() -> Vec<Self> {
        let all = [(Self::Nginx, "nginx"), (Self::Redis, "redis-server")];
        let there = all.into_iter().filter(|(_, name)| which(name).is_some());
        [Self::Own]
            .into_iter()
            .chain(there.map(|(program, _)| program))
            .collect()
    }
}

impl<'a> World<'a> {
    /// Starts servers and agents and waits until all is protected. `tls`: more lines of that
    /// section.
    pub(super) fn start(lab: &'a Lab, tls: &str) -> Result<Self> {
        let programs = Program::installed();
        let root = lab.folder().join("www");
        fs::create_dir(&root).context("creating nginx's root")?;
        FILE.write_to(&root.join("file"))?;
        let mut disks = Vec::new();
        for host in Host::SERVERS {
            disks.push(Disk::new(lab.node(host).folder()?)?);
        }
        let mut servers = BTreeMap::new();
        for host in Host::SERVERS {
            for &program in &programs {
                servers.insert((host, program), start_server(lab, host, program)?);
            }
        }
        let mut world = Self {
            lab,
            cluster: Cluster::start(lab, options(&programs, tls))?,
            programs,
            servers,
            shortage: None,
            stopwatch: None,
            disks,
            last_death: None,
            last_restart: None,
            news: News::default(),
        };
        world.wait_ready()?;
        Ok(world)
    }

    /// Who owns the service of `program`.
    pub(super) fn owner_of(&self, program: Program) -> Result<Host> {
        let name = program.service();
        let owns = |host: &Host| {
            self.cluster.status(*host).is_ok_and(|status| {
                let mut services = status.services.iter();
                services.any(|s| s.name == name && s.role == "owner")
            })
        };
        let found = Host::SERVERS.into_iter().find(owns);
        found.with_context(|| format!("nobody owns {name}"))
    }

    /// Waits until each service has one owner whose standby is in sync.
    pub(super) fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + READY;
        loop {
            let reports = Host::SERVERS.map(|host| self.cluster.status(host));
            let ready = match &reports {
                [Ok(one), Ok(other)] => self.programs.iter().all(|program| {
                    let find = |status: &Status| {
                        let mut services = status.services.iter();
                        services.find(|s| s.name == program.service()).cloned()
                    };
                    let both = (find(one), find(other));
                    both.0.zip(both.1).is_some_and(|(one, other)| {
                        (one.is_owner_in_sync() && other.is_shadow())
                            || (other.is_owner_in_sync() && one.is_shadow())
                    })
                }),
                _ => false,
            };
            if ready {
                return Ok(());
            }
            self.look_for_the_dead()?;
            if Instant::now() > end {
                let shown = reports.iter().map(show).collect::<Vec<_>>();
                bail!("not protected again after {READY:?}: {}", shown.join("; "));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a server's death would not count as the consequence of
    /// another one's.
    pub(super) fn wait_same_cause(&self) {
        if let Some(last) = self.last_death {
            thread::sleep(SAME_CAUSE.saturating_sub(last.elapsed()));
        }
    }

    /// Waits until every voter may vote.
    pub(super) fn wait_votes(&self) {
        if let Some(last) = self.last_restart {
            thread::sleep(QUARANTINE.saturating_sub(last.elapsed()));
        }
    }

    /// Starts an agent again.
    pub(super) fn restart_agent(&mut self, host: Host) -> Result<()> {
        self.last_restart = Some(Instant::now());
        self.cluster.start_agent(host)
    }

    /// The agents' processes and the servers', of one machine.
    pub(super) fn processes(
        &mut self,
        host: Host,
        agent: bool,
        servers: bool,
    ) -> Vec<&mut Process> {
        let agent = agent.then(|| self.cluster.agent(host)).flatten();
        let servers = self
            .servers
            .iter_mut()
            .filter(|((at, _), _)| servers && *at == host);
        agent
            .into_iter()
            .chain(servers.map(|(_, process)| process))
            .collect()
    }

    /// Kills one server.
    pub(super) fn kill_server(&mut self, host: Host, program: Program) -> Result<()> {
        self.last_death = Some(Instant::now());
        let server = self.servers.get_mut(&(host, program));
        server.context("every machine has its servers")?.kill()
    }

    /// Starts it again.
    pub(super) fn restart_server(&mut self, host: Host, program: Program) -> Result<()> {
        self.servers.remove(&(host, program));
        let server = start_server(self.lab, host, program)?;
        self.servers.insert((host, program), server);
        Ok(())
    }

    /// Boots a dark machine with all that runs on it.
    pub(super) fn boot(&mut self, host: Host) -> Result<()> {
        self.servers.retain(|(at, _), _| *at != host);
        self.cluster.power_off(host)?;
        self.lab.reboot(host)?;
        for program in self.programs.clone() {
            self.restart_server(host, program)?;
        }
        self.cluster.start_agent(host)
    }

    pub(super) fn fill_disks(&self) -> Result<()> {
        self.disks.iter().try_for_each(Disk::fill)
    }

    pub(super) fn clear_disks(&self) -> Result<()> {
        self.disks.iter().try_for_each(Disk::clear)
    }

    /// The flows of both servers, as far as their agents answer.
    pub(super) fn flows(&self, silent: Option<Host>) -> Vec<FlowReport> {
        let hosts = Host::SERVERS
            .into_iter()
            .filter(|host| Some(*host) != silent);
        let flows = hosts.filter_map(|host| self.cluster.flows(host).ok());
        flows.flat_map(|flows| flows.flows).collect()
    }

    /// Events of both servers that were not handed out before.
    pub(super) fn news(&mut self) -> Vec<EventReport> {
        let mut news = Vec::new();
        for host in Host::SERVERS {
            let Ok(events) = self.cluster.event_reports(host) else {
                continue;
            };
            news.extend(self.news.of(host, events));
        }
        news
    }

    /// What both agents remember, and the flows that they have, for a person.
    pub(super) fn story(&self) -> String {
        let mut told = Vec::new();
        for host in Host::SERVERS {
            let said = self.cluster.event_text(host);
            told.push(said.unwrap_or_else(|error| format!("{error:#}")));
            let flows = self.cluster.flows(host).map(|flows| flows.flows);
            for flow in flows.into_iter().flatten() {
                told.push(format!("{host:?}: {flow:?}"));
            }
        }
        told.join("\n")
    }

    /// Nothing that should run may have ended by itself.
    fn look_for_the_dead(&mut self) -> Result<()> {
        for host in [Host::A, Host::B, Host::Witness] {
            let agent = self.cluster.agent(host);
            let agent = agent.with_context(|| format!("no agent on {host}"))?;
            ensure!(
                agent.is_running(),
                "the agent on {host} has ended, {:?}: {}",
                agent.ended(),
                last_lines(&agent.log())
            );
        }
        for ((host, program), server) in &mut self.servers {
            if !server.is_running() {
                return Err(anyhow!(
                    "{program:?} on {host} has ended: {}",
                    last_lines(&server.log())
                ));
            }
        }
        Ok(())
    }
}

/// One node's services in a few words.
fn show(report: &Result<Status>) -> String {
    let status = match report {
        Ok(status) => status,
        Err(error) => return format!("{error:#}"),
    };
    let services = status.services.iter();
    let shown = services.map(|s| format!("{} {} {}", s.name, s.state, s.generation));
    format!("{}: {}", status.node, shown.collect::<Vec<_>>().join(", "))
}

/// Enough to see why something ended.
fn last_lines(log: &str) -> String {
    let lines = log.lines().rev().take(5).collect::<Vec<_>>();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}

fn start_server(lab: &Lab, host: Host, program: Program) -> Result<Process> {
    let node = lab.node(host);
    match program {
        Program::Own => server::start(node, program.port()),
        Program::Nginx => {
            let root = lab.folder().join("www");
            Nginx::start(node, &root, program.port()).map(|nginx| nginx.process)
        }
        Program::Redis => redis::start(node, program.port(), 0),
    }
}

/// Leases, with a queue below the data path taken into account, and a detection
/// that a busy machine does not trip over.
fn options(programs: &[Program], tls: &str) -> ClusterOptions {
    let services = programs.iter();
    ClusterOptions {
        heartbeat: Duration::from_millis(20),
        fencing: Fencing::Lease,
        detect: format!("egress_residence = \"{}ms\"", RESIDENCE.as_millis()),
        services: services
            .map(|p| Service {
                extra: "reprotect_cap = \"512KiB\"\n".to_owned(),
                ..Service::new(p.service(), p.port())
            })
            .collect(),
        tls: tls.to_owned(),
        ..ClusterOptions::default()
    }
}
