//! Servers that know nothing of Godwit, and their clients, who wait until they are told to
//! speak.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use godwit_lab::Lab;
use godwit_lab::apps::nginx::Nginx;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::{Host, SERVICE};
use godwit_lab::lab::Node;
use godwit_sock::{SocketView, view_tcp_socket};
use godwit_wire::FlowKey;
use nix::sys::socket::{Backlog, listen};
use socket2::{Socket, Type};

use crate::DEADLINE;
use crate::stage::{PORT, until};

/// What a client of [`serve`] says first.
pub const FIRST_HALF: &str = "GET /na";
/// And then.
pub const SECOND_HALF: &str = "me HTTP/1.1\r\nHost: godwit\r\n\r\n";

/// Each server serves its own name, so that an answer tells whose it is.
///
/// # Panics
/// If nginx does not start.
pub fn serve(lab: &Lab, host: Host) -> Nginx {
    let root = lab.folder().join(format!("www-{host}"));
    fs::create_dir_all(&root).expect("a folder");
    fs::write(root.join("name"), format!("served by {host}\n")).expect("a file");
    Nginx::start(lab.node(host), &root, PORT).expect("nginx starts")
}

/// A cluster whose connections have no twins; `unread` as in the file.
///
/// # Panics
/// If the agents do not start.
pub fn start<'a>(lab: &'a Lab, unread: &str) -> Cluster<'a> {
    start_with(lab, format!("unread = \"{unread}\"\n"))
}

/// The same, with more in the file.
///
/// # Panics
/// As [`start`].
pub fn start_with(lab: &Lab, extra: String) -> Cluster<'_> {
    let service = Service {
        standby: "none",
        extra,
        ..Service::new("web", PORT)
    };
    let options = ClusterOptions {
        services: vec![service],
        ..ClusterOptions::unfenced()
    };
    let cluster = Cluster::start(lab, options).expect("the agents start");
    for host in Host::SERVERS {
        cluster
            .wait_owner(host, DEADLINE)
            .expect("it owns its share");
    }
    cluster
}

/// Somebody who connects and says nothing that it is not told to.
#[derive(Debug)]
pub struct Client {
    /// Its socket.
    pub stream: TcpStream,
    /// Its connection.
    pub flow: FlowKey,
}

impl Client {
    /// From the client's machine.
    ///
    /// # Panics
    /// If nobody is there.
    pub fn connect(lab: &Lab, service: SocketAddr) -> Self {
        Self::connect_from(lab.client(), service)
    }

    /// From any.
    ///
    /// # Panics
    /// If nobody is there.
    pub fn connect_from(node: &Node, service: SocketAddr) -> Self {
        let connect = || TcpStream::connect_timeout(&service, DEADLINE);
        let stream = node.enter(connect).expect("the machine is there");
        let stream = stream.expect("the service is there");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        let flow = FlowKey {
            client: stream.local_addr().expect("it is connected").into(),
            service: service.into(),
        };
        Self { stream, flow }
    }

    /// Ends it with a RST, and connects from the same port.
    ///
    /// # Panics
    /// If nobody is there.
    pub fn begins_anew(self, lab: &Lab) -> Self {
        let Self { stream, flow } = self;
        let old = Socket::from(stream);
        let local = old.local_addr().expect("it is connected");
        let no_wait = Some(Duration::ZERO);
        old.set_linger(no_wait).expect("a socket");
        drop(old);
        let connect = || -> io::Result<TcpStream> {
            let socket = Socket::new(local.domain(), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&local)?;
            socket.connect_timeout(&SocketAddr::from(flow.service).into(), DEADLINE)?;
            socket.set_read_timeout(Some(DEADLINE))?;
            Ok(socket.into())
        };
        let stream = lab.client().enter(connect).expect("the machine is there");
        let stream = stream.expect("the service is there");
        Self { stream, flow }
    }

    /// What its server's kernel has.
    ///
    /// # Panics
    /// If that can't be asked.
    pub fn view(&self, lab: &Lab, host: Host) -> Option<SocketView> {
        let look = || view_tcp_socket(0, self.flow);
        let view = lab.node(host).enter(look).expect("the machine is there");
        view.expect("sock_diag")
    }

    /// In the kernel, and in no process.
    ///
    /// # Panics
    /// After [`DEADLINE`].
    pub fn wait_queued(&self, lab: &Lab, host: Host, bytes: usize) {
        let waits = |view: &SocketView| view.inode == 0 && view.received == bytes as u64;
        until("it waits", || self.view(lab, host).filter(waits));
    }

    /// Some process has it.
    ///
    /// # Panics
    /// After [`DEADLINE`].
    pub fn wait_accepted(&self, lab: &Lab, host: Host) {
        until("a process accepts it", || {
            self.view(lab, host).filter(|view| view.inode != 0)
        });
    }

    /// So much has come.
    ///
    /// # Panics
    /// After [`DEADLINE`].
    pub fn wait_received(&self, lab: &Lab, host: Host, bytes: usize) {
        let is_there = |view: &SocketView| view.received == bytes as u64;
        until("it arrives", || self.view(lab, host).filter(is_there));
    }

    /// Some of a request.
    ///
    /// # Panics
    /// If it has ended.
    pub fn say(&self, words: &str) {
        (&self.stream).write_all(words.as_bytes()).expect("open");
    }

    /// An answer, from its status to its last byte.
    ///
    /// # Errors
    /// If it ends before that, or nothing comes until [`DEADLINE`].
    ///
    /// # Panics
    /// If it is no text.
    pub fn hear(&self) -> Result<String, String> {
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\n") || !answer.windows(10).any(|it| it == b"served by ") {
            match (&self.stream).read(&mut byte) {
                Ok(1) => answer.push(byte[0]),
                end => return Err(format!("{end:?} after {answer:?}")),
            }
        }
        Ok(String::from_utf8(answer).expect("it is text"))
    }

    /// The answer of that server.
    ///
    /// # Panics
    /// If it is another, or none.
    pub fn hear_from(&self, host: Host) {
        let answer = self.hear().expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.ends_with(&format!("\r\n\r\nserved by {host}\n")),
            "{answer}"
        );
    }

    /// The reason why it stays.
    ///
    /// # Panics
    /// If it moves, or for another reason does not.
    pub fn stays(&self, cluster: &Cluster<'_>, reason: &str) {
        // Soon after their start the agents have no link yet, or don't know where the other is.
        let early = ["link_lost", "wrong_service"];
        let why = until("there is another reason", || {
            let moved = cluster.hand_over_flow(&self.flow.to_string(), Host::A, Host::B);
            let why = format!("{:#}", moved.expect_err("it does not move"));
            let is_early = early.iter().any(|it| why.contains(it) && *it != reason);
            (!is_early).then_some(why)
        });
        assert!(why.contains(reason), "{why}");
    }

    /// It stays, for b has no room.
    ///
    /// # Panics
    /// After [`DEADLINE`].
    pub fn has_no_room(&self, cluster: &Cluster<'_>) {
        until("b has no room", || {
            let moved = cluster.hand_over_flow(&self.flow.to_string(), Host::A, Host::B);
            let why = format!("{:#}", moved.expect_err("it does not move"));
            why.contains("no_capacity").then_some(())
        });
    }

    /// To b; soon after start that may need a moment.
    ///
    /// # Panics
    /// If it does not until [`DEADLINE`].
    pub fn goes(&self, cluster: &Cluster<'_>, from: Host) {
        let to = if from == Host::A { Host::B } else { Host::A };
        let mut last = String::new();
        let moved = until("it moves", || {
            let moved = cluster.hand_over_flow(&self.flow.to_string(), from, to);
            moved
                .inspect_err(|error| {
                    let now = format!("{error:#}");
                    if now != last {
                        eprintln!("{now}");
                        last = now;
                    }
                })
                .ok()
        });
        eprintln!("silent for {} ms", moved.moved[0].silent_ms);
    }
}

/// At b, with no room in its accept queues.
///
/// # Panics
/// If it can't be.
pub fn full_listener(lab: &Lab) -> Vec<(TcpListener, TcpStream)> {
    let full = |at: IpAddr, local: IpAddr| {
        let listener = TcpListener::bind((at, PORT)).expect("a free port");
        listen(&listener, Backlog::new(0).expect("small")).expect("it listens");
        let filler = TcpStream::connect((local, PORT)).expect("it listens");
        (listener, filler)
    };
    let both = || {
        let v4 = full(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into());
        // Of this machine alone, or it would be that of IPv4, too.
        let v6 = full(SERVICE[1], SERVICE[1]);
        vec![v4, v6]
    };
    lab.node(Host::B).enter(both).expect("the machine is there")
}

/// Asks for a move, and does not wait for the answer.
///
/// # Panics
/// If the agent is not there.
pub fn ask(cluster: &Cluster<'_>, client: &Client) -> UnixStream {
    let socket = cluster.socket(Host::A).expect("the machine is there");
    let mut stream = UnixStream::connect(socket).expect("the agent listens");
    let flow = client.flow;
    let wish = format!("{{\"cmd\":\"move_flows\",\"flow\":\"{flow}\",\"to\":\"b\"}}\n");
    stream.write_all(wish.as_bytes()).expect("it reads");
    stream
}
