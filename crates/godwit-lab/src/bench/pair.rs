//! A pair of servers that fails over back and forth.
//!
//! A lab takes seconds to build and a machine a few tenths to boot: so the
//! machine that died boots again and becomes the standby of the survivor, and
//! the next failure goes the other way.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::apps::server::{self, Tuning};
use crate::cluster::{Cluster, ClusterOptions, Takeover};
use crate::host::Host;
use crate::lab::Lab;
use crate::links::{Crash, Death};
use crate::process::Process;

/// The port of the service.
pub(super) const PORT: u16 = 80;

/// Agents must have found each other by then.
const IN_SYNC: Duration = Duration::from_secs(20);

/// Who owns the service is looked at again after as long.
const CHANGED: Duration = Duration::from_secs(1);

/// A flow must be protected by then; 30 ms are allowed by design.
const PROTECTED: Duration = Duration::from_secs(1);

/// Congestion control of both sides, whatever the kernel's default is: with bbr
/// the same transfer over the same path takes times that differ by a tenth.
pub(super) const CONGESTION_CONTROL: &str = "cubic";

/// Two servers under Godwit, one of which owns the service.
#[derive(Debug)]
pub(super) struct Pair<'a> {
    pub(super) lab: &'a Lab,
    pub(super) cluster: Cluster<'a>,
    servers: BTreeMap<Host, Process>,
    owner: Host,
    pace: Option<u32>,
}

impl<'a> Pair<'a> {
    /// Starts servers and agents; `a` owns the service and `b` is in sync.
    pub(super) fn start(lab: &'a Lab, options: ClusterOptions) -> Result<Self> {
        Self::start_at(lab, options, None)
    }

    /// As [`start`](Self::start), with servers that send no more than `pace` bytes
    /// per second on each connection.
    pub(super) fn start_paced(lab: &'a Lab, options: ClusterOptions, pace: u32) -> Result<Self> {
        Self::start_at(lab, options, Some(pace))
    }

    fn start_at(lab: &'a Lab, options: ClusterOptions, pace: Option<u32>) -> Result<Self> {
        let mut servers = BTreeMap::new();
        for host in Host::SERVERS {
            servers.insert(host, start_server_at(lab, host, pace)?);
        }
        let mut cluster = Cluster::start(lab, options)?;
        cluster.wait_in_sync(Host::A, IN_SYNC)?;
        Ok(Self {
            lab,
            cluster,
            servers,
            owner: Host::A,
            pace,
        })
    }

    /// Who owns the service.
    pub(super) const fn owner(&self) -> Host {
        self.owner
    }

    /// Waits until one of both owns the service and the other is in sync: a machine
    /// that stood still may have changed who is which.
    pub(super) fn settle(&mut self) -> Result<()> {
        let end = Instant::now() + IN_SYNC;
        loop {
            self.find_owner();
            match self.cluster.wait_in_sync(self.owner, CHANGED) {
                Err(_) if Instant::now() < end => {}
                settled => return settled,
            }
        }
    }

    /// Looks who owns the service; what was known stays if nobody says so.
    pub(super) fn find_owner(&mut self) {
        let owns = |host| {
            let status = self.cluster.status(host);
            status.is_ok_and(|status| status.services.iter().all(|s| s.role == "owner"))
        };
        if !owns(self.owner) && owns(self.standby()) {
            self.owner = self.standby();
        }
    }

    /// Moves the service to the standby, as planned.
    pub(super) fn hand_over(&mut self) -> Result<()> {
        let to = self.standby();
        self.cluster.hand_over("web", self.owner, to)?;
        self.owner = to;
        Ok(())
    }

    /// Who stands by.
    pub(super) const fn standby(&self) -> Host {
        match self.owner {
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

    /// The server process of one machine.
    pub(super) fn server(&mut self, host: Host) -> Result<&mut Process> {
        let server = self.servers.get_mut(&host);
        server.with_context(|| format!("no server runs on {host}"))
    }

    /// Waits until `count` flows would survive the owner, at most a second;
    /// returns how many there are then.
    pub(super) fn wait_protected(&self, count: u64) -> Result<u64> {
        let end = Instant::now() + PROTECTED;
        loop {
            let protected = self.protected()?;
            if protected >= count || Instant::now() > end {
                return Ok(protected);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether as many flows would survive the owner now.
    pub(super) fn are_protected(&self, count: u64) -> Result<bool> {
        Ok(self.protected()? >= count)
    }

    fn protected(&self) -> Result<u64> {
        let status = self.cluster.status(self.owner)?;
        Ok(status.services.iter().map(|s| s.protected).sum())
    }

    /// As [`wait_protected`](Self::wait_protected), and an error if they are
    /// fewer.
    pub(super) fn must_protect(&self, count: u64) -> Result<()> {
        let protected = self.wait_protected(count)?;
        ensure!(
            protected >= count,
            "{protected} of {count} flows are protected"
        );
        Ok(())
    }

    /// The owner's machine goes dark; from now on the other one is the owner.
    pub(super) fn crash_owner(&mut self, death: Death) -> Result<Crash> {
        let crash = self.lab.die(self.owner, death)?;
        self.owner = self.standby();
        Ok(crash)
    }

    /// The owner's server is killed (SIGKILL), its machine goes on; from now on
    /// the other one is the owner. Returns a moment just before.
    pub(super) fn kill_owner_server(&mut self) -> Result<Instant> {
        let owner = self.owner;
        let since = Instant::now();
        self.server(owner)?.kill()?;
        self.owner = self.standby();
        Ok(since)
    }

    /// Stops the owner's agent and server (SIGSTOP); from now on the other one is
    /// the owner. Returns the machine.
    pub(super) fn stop_owner(&mut self) -> Result<Host> {
        let owner = self.owner;
        let agent = self.cluster.agent(owner);
        agent.context("both agents run")?.stop()?;
        self.server(owner)?.stop()?;
        self.owner = self.standby();
        Ok(owner)
    }

    /// Lets a stopped machine go on, and waits until it stands by.
    pub(super) fn resume(&mut self, host: Host) -> Result<()> {
        self.server(host)?.cont()?;
        let agent = self.cluster.agent(host);
        agent.context("both agents run")?.cont()?;
        self.wait_in_sync()
    }

    /// What the owner says of its last takeover.
    pub(super) fn last_takeover(&self) -> Result<Takeover> {
        let status = self.cluster.wait_owner(self.owner, IN_SYNC)?;
        let takeover = status.services.into_iter().find_map(|s| s.last_takeover);
        takeover.context("the owner knows of no takeover")
    }

    /// Boots the machine that is not the owner, as if it had died, and waits
    /// until it stands by.
    pub(super) fn reboot_standby(&mut self) -> Result<()> {
        let host = self.standby();
        // Dark first: what dies here must not be heard.
        self.lab.crash(host)?;
        self.servers.remove(&host);
        self.cluster.power_off(host)?;
        self.lab.reboot(host)?;
        let server = start_server_at(self.lab, host, self.pace)?;
        self.servers.insert(host, server);
        self.cluster.start_agent(host)?;
        self.wait_in_sync()
    }

    /// Starts a server again that was killed; nobody may have taken over from it.
    pub(super) fn restart_server(&mut self) -> Result<()> {
        let host = self.standby();
        self.servers.remove(&host);
        let server = start_server_at(self.lab, host, self.pace)?;
        self.servers.insert(host, server);
        self.settle()
    }

    fn wait_in_sync(&mut self) -> Result<()> {
        self.cluster.wait_in_sync(self.owner, IN_SYNC)
    }
}

/// Starts the server of one machine.
pub(super) fn start_server(lab: &Lab, host: Host) -> Result<Process> {
    start_server_at(lab, host, None)
}

fn start_server_at(lab: &Lab, host: Host, pace: Option<u32>) -> Result<Process> {
    let tuning = Tuning {
        congestion: Some(CONGESTION_CONTROL),
        pace,
    };
    server::start_tuned(lab.node(host), PORT, tuning)
}

/// Ties all threads of a process to one CPU.
pub(super) fn pin(process: Pid, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).context("no such CPU")?;
    let tasks = Path::new("/proc").join(process.to_string()).join("task");
    for entry in fs::read_dir(&tasks).with_context(|| format!("reading {}", tasks.display()))? {
        let name = entry.context("listing threads")?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok());
        let thread = thread.context("a thread's id is a number")?;
        sched_setaffinity(Pid::from_raw(thread), &set)
            .with_context(|| format!("pinning process {process} to CPU {cpu}"))?;
    }
    Ok(())
}

/// Ties the calling thread to one CPU.
pub(super) fn pin_current_thread(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).context("no such CPU")?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pinning to CPU {cpu}"))
}

/// Fails where there is only one CPU to pin to.
pub(super) fn need_two_cpus() -> Result<()> {
    let cpus = thread::available_parallelism().context("counting the CPUs")?;
    ensure!(cpus.get() >= 2, "two CPUs are needed");
    Ok(())
}
