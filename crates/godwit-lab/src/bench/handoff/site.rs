//! Two or three Apaches with their files, each with a page cache and a disk of its own,
//! and what gives clients' connections and requests to them.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::apps::apache::{Apache, ApacheOptions, Mpm};
use crate::apps::nginx::Nginx;
use crate::apps::wait_until_listening;
use crate::apps::webstone::{FileSet, Load, Tally};
use crate::bench::direct::wait_takers;
use crate::cluster::{Cluster, ClusterOptions, Service};
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions, which};
use crate::limits::{Disk, Limits};
use crate::process::Process;
use crate::volume::{Image, Volume};

/// The machines that a site has servers on, or the first two of them.
const BACKENDS: [Host; 3] = [Host::A, Host::B, Host::C];

const PORT: u16 = 80;

/// What a hard disk does.
const DISK: Disk = Disk {
    bytes: 100 << 20,
    reads: 200,
};

/// Servers must have found each other by then.
const START: Duration = Duration::from_secs(20);

/// Until caches are as they remain: each file has been asked for so often.
const PASSES: u64 = 3;

/// They may take so long.
const WARM: Duration = Duration::from_secs(40);

/// Source ports of clients: more than the kernel lends by itself.
const PORTS: &str = "2000 65000";

/// What gives requests to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// A director, by a hash of each connection: the same as in turn, on an average.
    Spread,
    /// The same, and each request is handed to the server that a hash of its path names.
    Placed,
    /// The same, and a program is asked first, which leaves it to the rules.
    Asked,
    /// The same as placed, by servers that stand by for each other.
    Twinned,
    /// haproxy in HTTP mode, requests in turn.
    HaproxyInTurn,
    /// haproxy in HTTP mode, requests by a hash of their path.
    HaproxyByPath,
}

impl Front {
    /// Whether each request has a server of its own.
    const fn places(self) -> bool {
        matches!(self, Self::Placed | Self::Asked | Self::Twinned)
    }
}

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Web {
    Apache,
    /// One worker.
    Nginx,
}

/// A way to serve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setup {
    pub(super) front: Front,
    pub(super) web: Web,
    /// How many there are.
    pub(super) servers: usize,
    /// Page cache of each: so many hundredths of its share of the files; all of it with
    /// `None`, and a disk as it is.
    pub(super) cache: Option<u32>,
}

/// Machines whose files stay when they boot again.
#[derive(Debug)]
pub(super) struct Site {
    lab: Lab,
    files: FileSet,
    /// Of each of [`BACKENDS`].
    disks: Vec<Image>,
}

/// A site that serves.
#[derive(Debug)]
pub(super) struct Running<'a> {
    site: &'a Site,
    setup: Setup,
    servers: Vec<Process>,
    haproxy: Option<Process>,
    cluster: Option<Cluster<'a>>,
    limits: Vec<Limits>,
    volumes: Vec<Volume>,
}

impl Site {
    /// Builds the machines and writes their files.
    pub(super) fn new(files: FileSet) -> Result<Self> {
        let lab = Lab::new(LabOptions {
            third: true,
            director: true,
            ..LabOptions::default()
        })?;
        lab.client()
            .netns()
            .sysctl("ipv4.ip_local_port_range", PORTS)?;
        let image = |host: Host| lab.folder().join(format!("{host}.img"));
        let room = (files.cached(), files.files());
        let first = Image::create(&image(Host::A), room, |root| files.write(root))?;
        let mut disks = Vec::new();
        for host in &BACKENDS[1..] {
            disks.push(first.copy(&image(*host))?);
        }
        disks.insert(0, first);
        Ok(Self { lab, files, disks })
    }

    pub(super) const fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Serves in the way of `setup` to `connections` clients at a time, on machines that
    /// have just booted; caches are as they remain.
    pub(super) fn start(&self, setup: Setup, connections: u32) -> Result<Running<'_>> {
        let hosts = &BACKENDS[..setup.servers];
        for host in BACKENDS.into_iter().chain([Host::Director]) {
            self.lab.reboot(host)?;
        }
        let mut running = Running {
            site: self,
            setup,
            servers: Vec::new(),
            haproxy: None,
            cluster: None,
            limits: Vec::new(),
            volumes: Vec::new(),
        };
        if setup.front.is_godwit() {
            running.cluster = Some(Cluster::start(&self.lab, setup.cluster())?);
        }
        for (host, disk) in hosts.iter().zip(&self.disks) {
            running.serve(*host, disk, connections)?;
        }
        match &running.cluster {
            Some(cluster) => {
                wait_takers(cluster, hosts.len())?;
                if setup.front.places() {
                    wait_asked(cluster, hosts)?;
                }
            }
            None => running.haproxy = Some(self.haproxy(setup)?),
        }
        if setup.cache.is_some() {
            running.warm()?;
        }
        Ok(running)
    }

    fn haproxy(&self, setup: Setup) -> Result<Process> {
        let program = which("haproxy").context("haproxy is not installed (Debian package)")?;
        let node = self.lab.node(Host::Director);
        let balance = if setup.front == Front::HaproxyByPath {
            "uri\n hash-type consistent"
        } else {
            "roundrobin"
        };
        let mut text = format!(
            "global\n maxconn 8000\ndefaults\n mode http\n timeout connect 5s\n \
             timeout client 60s\n timeout server 60s\n\
             listen web\n bind :{PORT}\n balance {balance}\n"
        );
        for host in &BACKENDS[..setup.servers] {
            text.push_str(&format!(" server {host} {}:{PORT}\n", host.v4()));
        }
        let config = node.folder()?.join("haproxy.cfg");
        fs::write(&config, text).context("writing haproxy.cfg")?;
        let mut command = Command::new(program);
        command.arg("-db").arg("-f").arg(&config);
        let mut process = node.spawn("haproxy", command)?;
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        wait_until_listening(node, &mut process, local, Duration::from_secs(5))?;
        Ok(process)
    }
}

impl Running<'_> {
    /// A load of WebStone's mix.
    pub(super) fn load(&self, connections: u32) -> Load {
        let address = if self.setup.front.is_godwit() {
            SERVICE_V4
        } else {
            Host::Director.v4()
        };
        let target = SocketAddr::from((address, PORT));
        Load::new(target, self.site.files, connections)
    }

    /// What its clients see.
    pub(super) fn run(&self, load: &Load) -> Result<Tally> {
        load.run(self.site.lab.client())
    }

    fn serve(&mut self, host: Host, disk: &Image, connections: u32) -> Result<()> {
        let node = self.site.lab.node(host);
        let volume = disk.mount(&node.folder()?.join("root"))?;
        let limits = self.setup.cache.map(|hundredths| {
            let share = self.site.files.cached() / self.setup.servers as u64;
            let cache = share * u64::from(hundredths) / 100;
            Limits::new(&self.site.lab, host, cache)
        });
        let limits = limits.transpose()?;
        let options = ApacheOptions {
            mpm: Mpm::Event,
            root: volume.folder(),
            port: PORT,
            keep_alive: true,
            // All clients may want something from the disk of one server, and Apache ends
            // connections that are idle when all its workers are busy.
            workers: (2 * connections).next_multiple_of(64),
            limits: limits.as_ref(),
        };
        let server = match self.setup.web {
            Web::Apache => Apache::start(node, &options)?.process,
            Web::Nginx => Nginx::start_named(node, volume.folder(), PORT)?.process,
        };
        self.servers.push(server);
        self.limits.extend(limits);
        self.volumes.push(volume);
        Ok(())
    }

    /// With disks as they are; then they are slow.
    fn warm(&self) -> Result<()> {
        let load = self.load(32);
        let load = Load {
            requests: PASSES * u64::from(self.site.files.files()),
            span: WARM,
            // What is measured has other files first.
            seed: 0,
            per_connection: 100,
            ..load
        };
        self.run(&load)?;
        let mut disks = self.limits.iter().zip(&self.volumes);
        disks.try_for_each(|(limits, volume)| limits.slow_down(volume, DISK))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.servers.clear();
        if let Some(cluster) = &mut self.cluster {
            for host in cluster.options().nodes() {
                // The lab removes at its end what remains.
                let _ = cluster.power_off(host);
            }
        }
    }
}

impl Setup {
    fn cluster(self) -> ClusterOptions {
        let three = self.servers == BACKENDS.len();
        let mut extra = "front = \"director\"\n".to_owned();
        let twinned = self.front == Front::Twinned;
        if twinned {
            extra.push_str("mask = [\"Date\", \"Served-By\"]\n");
        }
        if self.front.places() {
            let names: Vec<_> = BACKENDS[..self.servers]
                .iter()
                .map(|host| host.name())
                .collect();
            extra.push_str(&format!("\n[[service.rule]]\nto = {names:?}\n"));
        }
        if self.front == Front::Asked {
            extra.push_str("\n[service.policy]\nprogram = \"least_loaded\"\n");
        }
        ClusterOptions {
            services: vec![Service {
                standby: if twinned { "shadow" } else { "none" },
                others: if three { &[Host::C] } else { &[] },
                extra,
                ..Service::new("web", PORT)
            }],
            // XDP_TX on a veth needs a peer that polls, and the switch's end does not.
            sections: "[director]\nseed = \"0123456789abcdef\"\nhook = \"tcx\"\n".into(),
            more: if three {
                &[Host::C, Host::Director]
            } else {
                &[Host::Director]
            },
            ..ClusterOptions::unfenced()
        }
    }
}

impl Front {
    const fn is_godwit(self) -> bool {
        match self {
            Self::Spread | Self::Placed | Self::Asked | Self::Twinned => true,
            Self::HaproxyInTurn | Self::HaproxyByPath => false,
        }
    }
}

/// Until each of these servers hands requests to all others.
fn wait_asked(cluster: &Cluster<'_>, hosts: &[Host]) -> Result<()> {
    let end = Instant::now() + START;
    let asks = |host: &Host| {
        let status = cluster.status(*host)?;
        let asked = status.services.first().and_then(|it| it.asks.as_ref());
        anyhow::Ok(asked.is_some_and(|asked| asked.len() + 1 == hosts.len()))
    };
    for host in hosts {
        while !asks(host)? {
            ensure!(Instant::now() < end, "{host} does not ask the others");
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

impl fmt::Display for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spread => "spread",
            Self::Placed => "placed",
            Self::Asked => "asked",
            Self::Twinned => "twinned",
            Self::HaproxyInTurn => "haproxy.in_turn",
            Self::HaproxyByPath => "haproxy.by_path",
        })
    }
}
