//! Three nginx behind a director that stand by for each other: a's connections have twins at
//! b, b's at c and c's at a.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::nginx::Nginx;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing, FlowReport, Service, ServiceReport};
use godwit_lab::host::{Host, SERVICE};
use godwit_lab::{Lab, LabOptions};

use crate::cells::{BACKENDS, Client};
use crate::stage::{PORT, flow, stage, until};
use crate::wait::DEADLINE;

const SECTIONS: &str = "
[director]
seed = \"0123456789abcdef\"
hook = \"tcx\"
";

/// Bytes of `/large`.
pub const LARGE: usize = 8 << 20;

/// A site whose servers stand by for each other.
#[derive(Debug)]
pub struct Ring<'a> {
    /// Its machines.
    pub lab: &'a Lab,
    /// Its agents and its director.
    pub cluster: Cluster<'a>,
    /// Where its servers are, in their order.
    pub hosts: &'static [Host],
    /// Its servers.
    pub nginx: BTreeMap<Host, Nginx>,
}

/// Who stands by for one of three servers.
///
/// # Panics
/// If it is none.
pub fn next(host: Host) -> Host {
    next_of(&BACKENDS, host)
}

fn next_of(hosts: &[Host], host: Host) -> Host {
    let at = hosts.iter().position(|it| *it == host);
    let at = at.expect("it is a server");
    hosts[(at + 1) % hosts.len()]
}

/// Runs `work` where each of three servers owns its share and has its standby in sync. `extra`
/// is the rest of the service's section in the file.
///
/// # Panics
/// If any of that can't be had.
pub fn on_ring(fencing: Fencing, extra: &str, work: impl FnOnce(&mut Ring<'_>)) {
    on_ring_of(&BACKENDS, fencing, extra, work);
}

/// The same with two servers or three.
///
/// # Panics
/// If any of that can't be had.
pub fn on_ring_of(
    hosts: &'static [Host],
    fencing: Fencing,
    extra: &str,
    work: impl FnOnce(&mut Ring<'_>),
) {
    let third = hosts.contains(&Host::C);
    let Some(lab) = stage(LabOptions {
        third,
        director: true,
        witness: fencing == Fencing::Lease,
        ..LabOptions::default()
    }) else {
        return;
    };
    let service = Service {
        standby: "shadow",
        others: if third { &[Host::C] } else { &[] },
        extra: format!(
            "front = \"director\"\nmask = [\"Date\", \"Served-By\"]\nverify = \"100%\"\n{extra}"
        ),
        ..Service::new("web", PORT)
    };
    let options = ClusterOptions {
        services: vec![service],
        // A switch's end of a veth does not poll, as XDP would need.
        sections: SECTIONS.into(),
        more: if third {
            &[Host::C, Host::Director]
        } else {
            &[Host::Director]
        },
        heartbeat: Duration::from_millis(40),
        fencing,
        ..ClusterOptions::default()
    };
    // What they say must be the same, but for their names.
    let root = lab.folder().join("root");
    for folder in ["a", "b", "c", "d"] {
        fs::create_dir_all(root.join(folder)).expect("it is made");
        fs::write(root.join(folder).join("name"), folder).expect("it is written");
        fs::write(root.join(folder).join("large"), large(folder)).expect("it is written");
    }
    let cluster = Cluster::prepare(&lab, options.clone()).expect("it has certificates");
    let mut ring = Ring {
        lab: &lab,
        hosts,
        nginx: BTreeMap::new(),
        cluster,
    };
    for host in hosts {
        ring.serve(*host);
    }
    for host in options.nodes() {
        ring.cluster.start_agent(host).expect("it starts");
    }
    for host in hosts {
        ring.wait_owner(*host, &own(), Some(next_of(hosts, *host)));
    }
    until("the director has all", || {
        let status = ring.cluster.status(Host::Director).ok()?;
        let director = status.director?;
        (director.services[0].slots.len() == hosts.len()).then_some(())
    });
    work(&mut ring);
    drop(ring.nginx);
}

/// What `/x/large` is, without a line's end.
pub fn large(folder: &str) -> String {
    let unit = format!("{folder}-0123456789abcde");
    unit.repeat(LARGE / unit.len())
}

/// What a server calls its own share.
pub fn own() -> String {
    "web".into()
}

/// What others call it.
pub fn of(host: Host) -> String {
    format!("web@{host}")
}

/// A connection, and who answers on it.
impl Client {
    /// Who answers a request, by its head, and whether that is what it is to be.
    ///
    /// # Panics
    /// If it is broken, or anything else is said.
    pub fn served(&mut self, path: &str) -> String {
        self.say(&format!("GET {path} HTTP/1.1\r\nHost: service\r\n\r\n"));
        let (head, body) = self.hear_all();
        let folder = path.split('/').nth(1).expect("it is in a folder");
        let wanted = match path.ends_with("large") {
            true => large(folder),
            false => folder.to_owned(),
        };
        assert!(body == wanted, "{path}: {} bytes", body.len());
        let field = head.lines().find_map(|it| it.strip_prefix("Served-By: "));
        field.expect("nginx says who it is").to_owned()
    }

    /// Its own address.
    ///
    /// # Panics
    /// If it has none.
    pub fn local(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }
}

impl Ring<'_> {
    /// Starts a server.
    ///
    /// # Panics
    /// If it does not listen.
    pub fn serve(&mut self, host: Host) {
        let root = self.lab.folder().join("root");
        let nginx = Nginx::start_named(self.lab.node(host), &root, PORT);
        self.nginx.insert(host, nginx.expect("nginx listens"));
    }

    /// What a server says of a share by that name.
    pub fn share(&self, host: Host, name: &str) -> Option<ServiceReport> {
        let services = self.cluster.status(host).ok()?.services;
        services.into_iter().find(|it| it.name == name)
    }

    /// Until a server owns a share, with that standby in sync.
    ///
    /// # Panics
    /// If it never does.
    pub fn wait_owner(&self, host: Host, name: &str, standby: Option<Host>) {
        let standby: Vec<_> = standby.into_iter().map(|it| it.to_string()).collect();
        let mut last = None;
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end {
            last = self.share(host, name);
            let is_it = |it: &ServiceReport| it.role == "owner" && it.in_sync == standby;
            if last.as_ref().is_some_and(is_it) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let all = self.hosts.iter().map(|host| self.cluster.status(*host));
        let all: Vec<_> = all.map(|it| it.map(|it| it.services)).collect();
        panic!("{host} does not own {name} with {standby:?}: {last:?}\n{all:#?}");
    }

    /// A connection that the director gives to a server.
    ///
    /// # Panics
    /// If it gives that one none of 200.
    pub fn client_of(&self, host: Host, address: IpAddr) -> Client {
        for _ in 0..200 {
            let mut client = Client::connect(self.lab, address);
            if client.served("/d/name") == host.name() {
                return client;
            }
        }
        panic!("{host} has got none of 200");
    }

    /// Two of them, of both families.
    ///
    /// # Panics
    /// As [`client_of`](Self::client_of).
    pub fn clients_of(&self, host: Host) -> Vec<Client> {
        SERVICE.map(|address| self.client_of(host, address)).into()
    }

    /// Until a server owns a client's connection and its twin would go on.
    ///
    /// # Panics
    /// If that never comes about.
    pub fn wait_protected(&self, host: Host, client: &Client) -> FlowReport {
        until("the connection is protected", || {
            let flow = flow(&self.cluster, host, client.local())?;
            (flow.role == "owner" && flow.protected).then_some(flow)
        })
    }

    /// The sum of a counter over all servers.
    ///
    /// # Panics
    /// If an agent does not answer.
    pub fn sum(&self, reason: &str) -> u64 {
        let counted = |host: &Host| self.counted(*host, reason);
        self.hosts.iter().map(counted).sum()
    }

    /// How often a machine's data path has counted a reason.
    ///
    /// # Panics
    /// If its agent does not answer.
    pub fn counted(&self, host: Host, reason: &str) -> u64 {
        let status = self.cluster.status(host).expect("it answers");
        status.counted(reason)
    }
}
