//! Three web servers under their agents, that hand connections to each other in the data path: for
//! tests of rules and of where connections begin.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use godwit_lab::apps::apache::{Apache, ApacheOptions, Mpm};
use godwit_lab::apps::nginx::Nginx;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::process::Process;
use godwit_lab::{Lab, LabOptions};

use crate::stage::{PORT, stage, until};
use crate::wait::DEADLINE;

/// Who answers at all does so within this time.
const BRIEFLY: Duration = Duration::from_millis(500);

/// The servers.
pub const BACKENDS: [Host; 3] = [Host::A, Host::B, Host::C];

/// Each server has what begins with its name.
pub const OWN_RULES: &str = "
[[service.rule]]
prefix = \"/a/\"
to = [\"a\"]

[[service.rule]]
prefix = \"/b/\"
to = [\"b\"]

[[service.rule]]
prefix = \"/c/\"
to = [\"c\"]
";

/// A site whose connections go from server to server.
#[derive(Debug)]
pub struct Cells<'a> {
    /// Its machines.
    pub lab: &'a Lab,
    /// Its agents.
    pub cluster: Cluster<'a>,
    /// Its servers; one that is taken out ends.
    pub servers: BTreeMap<Host, Process>,
}

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Web {
    /// nginx, one worker.
    Nginx,
    /// Apache.
    Apache(Mpm),
}

/// Runs `work` where every nginx hears that the others serve. `extra` is the rest of the
/// service's section in the file; `prepare` is told of each machine's folder before its agent
/// starts, which reads its own file there.
///
/// # Panics
/// If any of that can't be had.
pub fn on_cells(extra: &str, prepare: impl Fn(Host, &Path), work: impl FnOnce(&mut Cells<'_>)) {
    on_cells_of(Web::Nginx, extra, prepare, work);
}

/// The same with other servers.
///
/// # Panics
/// As above.
pub fn on_cells_of(
    web: Web,
    extra: &str,
    prepare: impl Fn(Host, &Path),
    work: impl FnOnce(&mut Cells<'_>),
) {
    let Some(lab) = stage(LabOptions {
        third: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let service = Service {
        standby: "none",
        others: &[Host::C],
        extra: extra.into(),
        ..Service::new("web", PORT)
    };
    let options = ClusterOptions {
        services: vec![service],
        more: &[Host::C],
        // A machine that is busy must not seem to be dead.
        heartbeat: Duration::from_millis(100),
        ..ClusterOptions::unfenced()
    };
    let servers = BACKENDS.map(|host| (host, serve(&lab, host, web)));
    for host in BACKENDS {
        prepare(host, lab.node(host).folder().expect("a folder"));
    }
    let mut cells = Cells {
        lab: &lab,
        cluster: Cluster::start(&lab, options).expect("the agents start"),
        servers: servers.into_iter().collect(),
    };
    // By then each has heard that the others serve.
    for host in BACKENDS {
        cells.wait_asks(host, 2);
    }
    work(&mut cells);
}

/// Every server has all files, and says in them who it is.
fn serve(lab: &Lab, host: Host, web: Web) -> Process {
    let node = lab.node(host);
    let root = node.folder().expect("a folder").join("root");
    for folder in ["a", "b", "c", "d"] {
        fs::create_dir_all(root.join(folder)).expect("it is made");
        for file in ["name", "face.png"] {
            let name = format!("{host}\n");
            fs::write(root.join(folder).join(file), name).expect("it is written");
        }
        let large = host.name().repeat(300_000);
        fs::write(root.join(folder).join("large"), large).expect("it is written");
    }
    match web {
        Web::Nginx => {
            Nginx::start(node, &root, PORT)
                .expect("nginx listens")
                .process
        }
        Web::Apache(mpm) => {
            let options = ApacheOptions {
                mpm,
                root: &root,
                port: PORT,
                keep_alive: true,
                workers: 64,
                limits: None,
            };
            Apache::start(node, &options)
                .expect("Apache listens")
                .process
        }
    }
}

/// A connection that stays open.
#[derive(Debug)]
pub struct Client(pub TcpStream);

impl Client {
    /// Opens one to the service.
    ///
    /// # Panics
    /// If nobody answers.
    pub fn connect(lab: &Lab, address: IpAddr) -> Self {
        let to = SocketAddr::from((address, PORT));
        let connect = || TcpStream::connect_timeout(&to, DEADLINE);
        let stream = lab.client().enter(connect).expect("the machine is there");
        let stream = stream.expect("somebody answers");
        stream.set_read_timeout(Some(DEADLINE)).expect("a limit");
        stream.set_nodelay(true).expect("an option");
        Self(stream)
    }

    /// Connects where perhaps nobody is; `None` if nobody answers within half a second.
    ///
    /// # Panics
    /// If there is no machine for it.
    pub fn try_connect(lab: &Lab, to: SocketAddr) -> Option<Self> {
        let connect = || TcpStream::connect_timeout(&to, BRIEFLY);
        let stream = lab.client().enter(connect).expect("the machine is there");
        let stream = stream.ok()?;
        stream.set_read_timeout(Some(DEADLINE)).expect("a limit");
        Some(Self(stream))
    }

    /// Says something.
    ///
    /// # Panics
    /// If it is broken.
    pub fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).expect("it is open");
    }

    /// The body of one reply.
    ///
    /// # Panics
    /// If it is broken, or too short or long.
    pub fn hear(&mut self) -> String {
        self.hear_all().1
    }

    /// Head and body of one reply.
    ///
    /// # Panics
    /// If it is broken, or too short or long.
    pub fn hear_all(&mut self) -> (String, String) {
        let (mut reply, mut part) = (Vec::new(), [0; 65536]);
        loop {
            let text = String::from_utf8_lossy(&reply);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let field = head
                    .lines()
                    .find_map(|line| line.strip_prefix("Content-Length: "));
                let length: usize = field.expect("a length").parse().expect("a number");
                if body.len() >= length {
                    assert_eq!(body.len(), length, "nothing behind it");
                    return (head.to_owned(), body.to_owned());
                }
            }
            let read = self.0.read(&mut part).expect("it answers");
            assert!(read > 0, "it was closed");
            reply.extend_from_slice(&part[..read]);
        }
    }

    /// Who serves a path.
    ///
    /// # Panics
    /// If it is broken.
    pub fn ask(&mut self, path: &str) -> String {
        self.ask_with(path, "Host: service\r\n")
    }

    /// The same, with all fields of the head.
    ///
    /// # Panics
    /// If it is broken.
    pub fn ask_with(&mut self, path: &str, fields: &str) -> String {
        self.say(&format!("GET {path} HTTP/1.1\r\n{fields}\r\n"));
        self.hear().trim().to_owned()
    }
}

impl Cells<'_> {
    /// Until a server would ask so many others.
    ///
    /// # Panics
    /// If it never does.
    pub fn wait_asks(&self, host: Host, count: usize) {
        until("it asks", || {
            let asks = self.cluster.status(host).ok()?.services[0].asks.clone();
            (asks?.len() == count).then_some(())
        });
    }

    /// How often a server's data path has counted a reason.
    ///
    /// # Panics
    /// If its agent does not answer.
    pub fn counted(&self, host: Host, reason: &str) -> u64 {
        let status = self.cluster.status(host).expect("it answers");
        status.counted(reason)
    }

    /// Until a server says that it is so loaded, in percent.
    ///
    /// # Panics
    /// If it never does.
    pub fn wait_load(&self, host: Host, is: impl Fn(u8) -> bool) {
        until("its load", || {
            let load = self.cluster.status(host).ok()?.services[0].load;
            load.filter(|load| is(*load))
        });
    }

    /// Until it has so often.
    ///
    /// # Panics
    /// If it never does.
    pub fn wait_counted(&self, host: Host, reason: &str, count: u64) {
        until(reason, || {
            (self.counted(host, reason) == count).then_some(())
        });
    }

    /// The same of all servers.
    ///
    /// # Panics
    /// If an agent does not answer.
    pub fn sum(&self, reason: &str) -> u64 {
        BACKENDS
            .iter()
            .map(|host| self.counted(*host, reason))
            .sum()
    }
}
