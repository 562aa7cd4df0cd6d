//! The servers, how things are done to them, and how they come back together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::super::news::News;
use super::super::world as judge;
use super::roam::{FILES, FOLDERS, content};
use crate::apps::nginx::Nginx;
use crate::cluster::{
    Cluster, ClusterOptions, DirectorReport, EventReport, Fencing, FlowReport, Service,
    ServiceReport, Status,
};
use crate::host::Host;
use crate::lab::Lab;
use crate::process::{Process, SAME_CAUSE};

/// Before them.
const DIRECTORS: [Host; 2] = [Host::Director, Host::Reserve];

/// Each has a share of the connections, and the next one stands by for it.
pub(in crate::chaos) const SERVERS: [Host; 3] = [Host::A, Host::B, Host::C];

/// Its requests have rules.
pub(super) const PLACED: Program = Program {
    service: "web",
    port: 80,
};

/// Its requests stay where they are.
pub(in crate::chaos) const PLAIN: Program = Program {
    service: "more",
    port: 8080,
};

/// The servers' programs, an nginx for each.
pub(super) const PROGRAMS: [Program; 2] = [PLACED, PLAIN];

/// A server program: a service of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::chaos) struct Program {
    pub(super) service: &'static str,
    pub(in crate::chaos) port: u16,
}

/// `egress_residence`, as in the other chaos.
pub(super) const RESIDENCE: Duration = Duration::from_millis(25);

/// They must be protected again by then.
const READY: Duration = Duration::from_secs(20);

/// A voter whose agent has been started again keeps quiet for so long, and a little more.
const QUARANTINE: Duration = Duration::from_millis(10_200);

/// What both services have.
const COMMON: &str = "front = \"director\"
mask = [\"Date\", \"Served-By\"]
reprotect_cap = \"512KiB\"
";

/// A folder for each server.
const RULES: &str = "[[service.rule]]
prefix = \"/a/\"
to = [\"a\"]
[[service.rule]]
prefix = \"/b/\"
to = [\"b\"]
[[service.rule]]
prefix = \"/c/\"
to = [\"c\"]
";

/// A lab, its servers, two directors, and Godwit on them.
#[derive(Debug)]
pub(in crate::chaos) struct World<'a> {
    pub(in crate::chaos) lab: &'a Lab,
    pub(super) cluster: Cluster<'a>,
    nginx: BTreeMap<(Host, Program), Process>,
    /// When a server was killed last.
    last_death: Option<Instant>,
    /// When a voter's agent was started again last, on a machine that had not booted.
    last_restart: Option<Instant>,
    news: News,
}

/// Who stands by for a server as long as nothing fails.
pub(super) fn next(host: Host) -> Host {
    match host {
        Host::A => Host::B,
        Host::B => Host::C,
        Host::C
        | Host::Client
        | Host::Attacker
        | Host::Witness
        | Host::Director
        | Host::Reserve => Host::A,
    }
}

/// What `host` calls the share of a service that is `home`'s.
pub(super) fn name_of(program: Program, home: Host, host: Host) -> String {
    if home == host {
        program.service.to_owned()
    } else {
        format!("{}@{home}", program.service)
    }
}

impl<'a> World<'a> {
    /// Starts servers and agents and waits until all is protected.
    pub(in crate::chaos) fn start(lab: &'a Lab) -> Result<Self> {
        for folder in FOLDERS {
            let path = lab.folder().join("www").join(folder);
            fs::create_dir_all(&path).context("creating nginx's root")?;
            for file in FILES {
                content(folder, file).write_to(&path.join(file.0))?;
            }
        }
        let mut nginx = BTreeMap::new();
        for (host, program) in all_programs() {
            nginx.insert((host, program), serve(lab, host, program)?);
        }
        let mut world = Self {
            lab,
            cluster: Cluster::start(lab, options())?,
            nginx,
            last_death: None,
            last_restart: None,
            news: News::default(),
        };
        world.wait_ready()?;
        Ok(world)
    }

    /// Who owns the share of `home`, and who stands by for it.
    pub(super) fn parts_of(&self, program: Program, home: Host) -> Result<(Host, Host)> {
        let is_owner = |host: Host| {
            let status = self.cluster.status(host).ok();
            let share = status.and_then(|it| share(&it, program, home, host));
            share.is_some_and(|it| it.role == "owner")
        };
        match [home, next(home)].map(is_owner) {
            [true, false] => Ok((home, next(home))),
            [false, true] => Ok((next(home), home)),
            [_, _] => bail!("the share of {home} has not one owner"),
        }
    }

    /// Waits until each share has one owner whose standby is in sync.
    pub(in crate::chaos) fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + READY;
        loop {
            let all = SERVERS.map(|host| (host, self.cluster.status(host)));
            let find = |host: Host, program, home: Host| {
                let (_, status) = all.iter().find(|(it, _)| *it == host)?;
                share(status.as_ref().ok()?, program, home, host)
            };
            let ready = all_programs().all(|(home, program)| {
                let (one, other) = (find(home, program, home), find(next(home), program, home));
                let both = one.zip(other);
                both.is_some_and(|(one, other)| {
                    (one.is_owner_in_sync() && other.is_shadow())
                        || (other.is_owner_in_sync() && one.is_shadow())
                })
            });
            if ready && self.is_directed() {
                return Ok(());
            }
            self.look_for_the_dead()?;
            if Instant::now() > end {
                let shown: Vec<_> = all.iter().map(|(host, it)| show(*host, it)).collect();
                bail!("not protected again after {READY:?}: {}", shown.join("; "));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether both directors have servers for new connections, and one the addresses.
    fn is_directed(&self) -> bool {
        let director = |host| self.cluster.status(host).ok()?.director;
        let ready = |it: &DirectorReport| {
            !it.starting && !it.deaf && it.services.iter().all(|it| it.nobody == 0)
        };
        match DIRECTORS.map(director) {
            [Some(one), Some(other)] => ready(&one) && ready(&other) && one.holds != other.holds,
            [_, _] => false,
        }
    }

    /// The director that has the services' addresses.
    pub(in crate::chaos) fn holder(&self) -> Host {
        let holds = |host: &Host| {
            let status = self.cluster.status(*host).ok();
            status.and_then(|it| it.director).is_some_and(|it| it.holds)
        };
        DIRECTORS.into_iter().find(holds).unwrap_or(Host::Director)
    }

    /// Waits until a server's death would not count as the consequence of another one's.
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

    /// The agent's process and the servers', of one machine.
    pub(super) fn processes(
        &mut self,
        host: Host,
        agent: bool,
        servers: bool,
    ) -> Vec<&mut Process> {
        let all = self.nginx.iter_mut();
        let servers = all.filter(|((at, _), _)| servers && *at == host);
        let agent = agent.then(|| self.cluster.agent(host)).flatten();
        let servers = servers.map(|(_, process)| process);
        agent.into_iter().chain(servers).collect()
    }

    pub(super) fn kill_server(&mut self, host: Host, program: Program) -> Result<()> {
        self.last_death = Some(Instant::now());
        let server = self.nginx.get_mut(&(host, program));
        server.context("every machine has its servers")?.kill()
    }

    pub(super) fn restart_server(&mut self, host: Host, program: Program) -> Result<()> {
        self.nginx.remove(&(host, program));
        let server = serve(self.lab, host, program)?;
        self.nginx.insert((host, program), server);
        Ok(())
    }

    pub(super) fn restart_agent(&mut self, host: Host) -> Result<()> {
        // c has no vote.
        if Host::SERVERS.contains(&host) {
            self.last_restart = Some(Instant::now());
        }
        self.cluster.start_agent(host)
    }

    /// Boots a dark machine with all that runs on it.
    pub(super) fn boot(&mut self, host: Host) -> Result<()> {
        self.nginx.retain(|(at, _), _| *at != host);
        self.cluster.power_off(host)?;
        self.lab.reboot(host)?;
        if SERVERS.contains(&host) {
            for program in PROGRAMS {
                self.restart_server(host, program)?;
            }
        }
        self.cluster.start_agent(host)
    }

    /// The flows of all servers whose agents answer, but for one that can't.
    pub(in crate::chaos) fn flows(&self, silent: Option<Host>) -> Vec<FlowReport> {
        let hosts = SERVERS.into_iter().filter(|host| Some(*host) != silent);
        let flows = hosts.filter_map(|host| self.cluster.flows(host).ok());
        flows.flat_map(|flows| flows.flows).collect()
    }

    /// Events of all servers that were not handed out before. A share has the same name in all
    /// of them, also in those of its home: `web@a`.
    pub(in crate::chaos) fn news(&mut self) -> Vec<EventReport> {
        let mut news = Vec::new();
        for host in SERVERS {
            let Ok(events) = self.cluster.event_reports(host) else {
                continue;
            };
            let new = self.news.of(host, events);
            news.extend(new.into_iter().map(|mut event| {
                let own = event.service.take_if(|it| !it.contains('@'));
                if let Some(own) = own {
                    event.service = Some(format!("{own}@{host}"));
                }
                event
            }));
        }
        news
    }

    /// What all agents remember, and the flows that they have, for a person.
    pub(in crate::chaos) fn story(&self) -> String {
        let mut told = Vec::new();
        for host in SERVERS.into_iter().chain(DIRECTORS) {
            let said = self.cluster.event_text(host);
            told.push(said.unwrap_or_else(|error| format!("{error:#}")));
            let flows = self.cluster.flows(host).map(|flows| flows.flows);
            for flow in flows.into_iter().flatten() {
                told.push(format!("{host}: {flow:?}"));
            }
            if let Ok(status) = self.cluster.status(host) {
                told.push(format!("{host}: {:?}", status.data_path.reasons));
            }
        }
        told.join("\n")
    }

    /// Nothing that should run may have ended by itself.
    fn look_for_the_dead(&mut self) -> Result<()> {
        for host in self.cluster.options().nodes() {
            let agent = self.cluster.agent(host);
            let agent = agent.with_context(|| format!("no agent on {host}"))?;
            ensure!(
                agent.is_running(),
                "the agent on {host} has ended, {:?}: {}",
                agent.ended(),
                agent.log().trim()
            );
        }
        for ((host, program), server) in &mut self.nginx {
            ensure!(
                server.is_running(),
                "nginx of {} on {host} has ended: {}",
                program.service,
                server.log().trim()
            );
        }
        Ok(())
    }
}

/// Each server with each of its programs.
fn all_programs() -> impl Iterator<Item = (Host, Program)> {
    let of = |host| PROGRAMS.into_iter().map(move |program| (host, program));
    SERVERS.into_iter().flat_map(of)
}

/// Services of shares, by the names that judges have for their ports.
pub(super) fn services_of(shares: &BTreeSet<String>) -> BTreeSet<String> {
    let of = |share: &str| {
        PROGRAMS
            .into_iter()
            .find(|it| share.starts_with(it.service))
    };
    let judged = |program: Program| judge::Program::at(program.port);
    let found = shares.iter().filter_map(|share| of(share));
    let found = found.filter_map(judged);
    found.map(|it| it.service().to_owned()).collect()
}

/// What `host` says of the share of a service that is `home`'s.
fn share(status: &Status, program: Program, home: Host, host: Host) -> Option<ServiceReport> {
    let name = name_of(program, home, host);
    status.services.iter().find(|it| it.name == name).cloned()
}

/// One node's shares in a few words.
fn show(host: Host, report: &Result<Status>) -> String {
    match report {
        Ok(status) => {
            let services = status.services.iter();
            let shown = services.map(|s| format!("{} {} {}", s.name, s.state, s.generation));
            format!("{host}: {}", shown.collect::<Vec<_>>().join(", "))
        }
        Err(error) => format!("{host}: {error:#}"),
    }
}

fn serve(lab: &Lab, host: Host, program: Program) -> Result<Process> {
    let root = lab.folder().join("www");
    Nginx::start_named(lab.node(host), &root, program.port).map(|nginx| nginx.process)
}

/// Leases, and a detection that a busy machine does not trip over.
fn options() -> ClusterOptions {
    ClusterOptions {
        heartbeat: Duration::from_millis(20),
        fencing: Fencing::Lease,
        detect: format!("egress_residence = \"{}ms\"", RESIDENCE.as_millis()),
        services: vec![
            service(PLACED, format!("{COMMON}{RULES}")),
            service(PLAIN, COMMON.to_owned()),
        ],
        // XDP_TX on a veth needs a peer that polls, and the switch's end does not.
        sections: "[director]\nseed = \"0123456789abcdef\"\nhook = \"tcx\"\n".into(),
        more: &[Host::C, Host::Director, Host::Reserve],
        ..ClusterOptions::default()
    }
}

fn service(program: Program, extra: String) -> Service {
    Service {
        others: &[Host::C],
        extra,
        ..Service::new(program.service, program.port)
    }
}
