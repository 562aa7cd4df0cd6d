//! The servers in `apps/`, which users copy: their connections go on at another server
//! in the middle of an answer, a request or a line, and when their machine goes dark.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use godwit_lab::apps::wait_until_listening;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service, binary};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    PORT, assert_moved, service_v4, service_v6, stage, until, wait_in_sync, wait_protected, witness,
};
use godwit_wire::FlowKey;

/// Moves of each stream.
const MOVES: usize = 5;

/// What a client reads at a time, once in [`PACE`], until it is told to hurry: a stream
/// has to last for all moves.
const SIP: usize = 4096;
const PACE: Duration = Duration::from_millis(1);

/// What it hears between two moves at least.
const BETWEEN: u64 = 200_000;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Agents of a service with `snapshots` so, and `command` on both machines, which listens
/// there at `local` among others.
fn start<'a>(
    lab: &'a Lab,
    snapshots: &str,
    servers: &[(IpAddr, &dyn Fn() -> Command)],
) -> (Cluster<'a>, Vec<Process>) {
    let service = Service {
        standby: "snapshot",
        extra: format!("snapshots = \"{snapshots}\""),
        ..Service::new("web", PORT)
    };
    let options = ClusterOptions {
        services: vec![service],
        ..ClusterOptions::unfenced()
    };
    let cluster = Cluster::start(lab, options).expect("the agents start");
    let mut started = Vec::new();
    for host in Host::SERVERS {
        for (local, command) in servers {
            let mut command = command();
            let agent = cluster.app_socket(host).expect("the machine is there");
            command.env("GODWIT_APP_SOCKET", agent);
            let node = lab.node(host);
            let mut server = node.spawn("server", command).expect("it starts");
            let local = SocketAddr::new(*local, PORT);
            let listens = wait_until_listening(node, &mut server, local, DEADLINE);
            listens.expect("it listens");
            started.push(server);
        }
    }
    (cluster, started)
}

/// Until both servers are known to their agents: what was accepted before can't be moved
/// before its server exports again, and one that waits for its client does not.
fn wait_known(lab: &Lab, cluster: &Cluster<'_>, service: SocketAddr) {
    until("the servers are known", || {
        let client = Client::connect(lab, service);
        let flow = client.flow.to_string();
        cluster.hand_over_flow(&flow, Host::A, Host::B).ok()
    });
}

/// What `make build` leaves beside the command.
fn built(name: &str) -> PathBuf {
    let path = binary().expect("it is built").with_file_name(name);
    assert!(path.is_file(), "no {}: `make build`", path.display());
    path
}

/// One listener for both families.
fn stream() -> Command {
    let mut command = Command::new(built("apps/stream"));
    command.args(["::", "80"]);
    command
}

fn http(folder: &Path) -> Command {
    let mut command = Command::new(built("apps/http"));
    command.args(["::", "80"]).arg(folder);
    command
}

/// Python's `::` is IPv6 only.
fn game(address: &str) -> Command {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new("python3");
    command
        .arg("-B")
        .arg(tree.join("apps/game.py"))
        .args([address, "80"])
        .env("PYTHONPATH", tree.join("bindings/python"))
        .env("GODWIT_LIBRARY", built("libgodwit.so"));
    command
}

/// A client's connection, and which server has it.
struct Client {
    stream: TcpStream,
    flow: FlowKey,
    at: Host,
}

impl Client {
    fn connect(lab: &Lab, service: SocketAddr) -> Self {
        let connect = || TcpStream::connect_timeout(&service, DEADLINE);
        let stream = lab.client().enter(connect).expect("the machine is there");
        let stream = stream.expect("the service is there");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        let flow = FlowKey {
            client: stream.local_addr().expect("it is connected").into(),
            service: service.into(),
        };
        let at = Host::A;
        Self { stream, flow, at }
    }

    fn say(&mut self, words: &[u8]) {
        self.stream.write_all(words).expect("it is open");
    }

    /// The same, until the server has read it.
    fn say_half(&mut self, lab: &Lab, words: &[u8]) {
        self.say(words);
        let port = self.flow.client.port;
        until("it is read", || {
            let (unsaid, _) = queues(lab, Host::Client, port)?;
            let (_, unread) = queues(lab, self.at, port)?;
            (unsaid == 0 && unread == 0).then_some(())
        });
    }

    fn hears(&mut self, wanted: &[u8]) {
        let mut heard = vec![0; wanted.len()];
        self.stream.read_exact(&mut heard).expect("it comes");
        let (heard, wanted) = (heard.escape_ascii(), wanted.escape_ascii());
        assert!(heard.to_string() == wanted.to_string(), "{heard}");
    }

    fn hears_line(&mut self) -> String {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("it comes");
            line.push(byte[0]);
        }
        String::from_utf8(line).expect("text")
    }

    /// To the other server; that a server stands at no snapshot may need a moment.
    fn moves(&mut self, cluster: &Cluster<'_>) {
        let to = if self.at == Host::A { Host::B } else { Host::A };
        let flow = self.flow.to_string();
        until("it moves", || {
            let moved = cluster.hand_over_flow(&flow, self.at, to);
            moved.inspect_err(|error| eprintln!("{error:#}")).ok()
        });
        self.at = to;
    }

    /// What is to come is heard in a thread.
    fn listens_to(&self, wanted: Vec<u8>) -> Listening {
        let mut stream = self.stream.try_clone().expect("descriptors are left");
        let shared = Arc::<Shared>::default();
        let seen = shared.clone();
        let thread = thread::spawn(move || {
            let mut buffer = [0; SIP];
            let mut heard = 0;
            while heard < wanted.len() {
                let most = SIP.min(wanted.len() - heard);
                let length = stream.read(&mut buffer[..most]).expect("it comes");
                let right = wanted[heard..].starts_with(&buffer[..length]);
                assert!(right && length > 0, "behind {heard}: {length} bytes");
                heard += length;
                seen.heard.store(heard as u64, Ordering::Relaxed);
                if !seen.hurries.load(Ordering::Relaxed) {
                    thread::sleep(PACE);
                }
            }
        });
        Listening { shared, thread }
    }
}

/// The bytes of a connection that its client, or its server, has not sent and not read,
/// as `proc_net_tcp` has them.
fn queues(lab: &Lab, host: Host, port: u16) -> Option<(u32, u32)> {
    let read =
        || ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")));
    let tables = lab.node(host).enter(read).expect("the machine is there");
    // sl local_address rem_address st tx_queue:rx_queue ...
    let port = format!(":{port:04X}");
    let tables = tables.map(|table| table.expect("it can be read"));
    let mut rows = tables.iter().flat_map(|table| table.lines());
    rows.find_map(|row| {
        let mut words = row.split_whitespace().skip(1);
        let ends = [words.next()?, words.next()?];
        let (unsent, unread) = words.nth(1)?.split_once(':')?;
        let number = |word| u32::from_str_radix(word, 16).ok();
        let found = ends.iter().any(|end| end.ends_with(&port));
        number(unsent).zip(number(unread)).filter(|_| found)
    })
}

/// A client that hears, at its leisure.
struct Listening {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    heard: AtomicU64,
    hurries: AtomicBool,
}

impl Listening {
    fn goes_on(&self) {
        let heard = || self.shared.heard.load(Ordering::Relaxed);
        let before = heard();
        until("it goes on", || {
            (heard() > before + BETWEEN || self.thread.is_finished()).then_some(())
        });
        assert!(!self.thread.is_finished(), "it ended after {}", heard());
    }

    /// All of it was right.
    fn ends(self) {
        self.shared.hurries.store(true, Ordering::Relaxed);
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// What `stream.c` sends.
fn streamed(length: u64) -> Vec<u8> {
    let byte_at = |at: u64| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0];
    (0..length).map(byte_at).collect()
}

/// One of 20 MB.
fn stream_from(lab: &Lab, service: SocketAddr) -> (Client, Listening) {
    const LENGTH: u64 = 20_000_000;
    let mut client = Client::connect(lab, service);
    client.say(format!("{LENGTH}\n").as_bytes());
    let listening = client.listens_to(streamed(LENGTH));
    listening.goes_on();
    (client, listening)
}

/// The server has closed it, too.
fn ended(mut client: Client) {
    let left = client.stream.read(&mut [0]).expect("it ends in order");
    assert_eq!(left, 0, "more than was asked for");
}

#[test]
fn a_stream_goes_to_and_fro() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, _servers) = start(&lab, "lazy", &[(V4, &stream)]);
    let capture = witness(&lab);
    for service in [service_v4(), service_v6()] {
        let (mut client, listening) = stream_from(&lab, service);
        for _ in 0..MOVES {
            client.moves(&cluster);
            listening.goes_on();
        }
        listening.ends();
        ended(client);
    }
    assert_moved(&capture.finish().expect("the capture is complete"), MOVES);
}

/// The snapshots, and what the client has said, are on the standby before.
#[test]
fn streams_outlive_their_machine() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, _servers) = start(&lab, "eager", &[(V4, &stream)]);
    wait_in_sync(&mut cluster, Host::A);
    let capture = witness(&lab);
    let streams = [service_v4(), service_v6()].map(|service| stream_from(&lab, service));
    for (client, listening) in &streams {
        wait_protected(&cluster, Host::A, client.flow.client.into());
        listening.goes_on();
    }
    lab.crash(Host::A).expect("a crashes");
    for (client, listening) in streams {
        listening.goes_on();
        listening.ends();
        ended(client);
    }
    assert_moved(&capture.finish().expect("the capture is complete"), 1);
}

/// A request of which half is said goes to the other server, and in the middle of the
/// answer back. The next request is answered there.
#[test]
fn a_download_goes_on_in_the_middle() {
    const SIZE: u64 = 5_000_000;
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let folder = lab.folder().join("www");
    fs::create_dir(&folder).expect("the lab's folder is ours");
    let file = streamed(SIZE);
    fs::write(folder.join("file"), &file).expect("the folder is ours");
    let (cluster, _servers) = start(&lab, "lazy", &[(V4, &|| http(&folder))]);
    let capture = witness(&lab);
    for service in [service_v4(), service_v6()] {
        wait_known(&lab, &cluster, service);
        let mut client = Client::connect(&lab, service);
        client.say_half(&lab, b"GET /fi");
        client.moves(&cluster);
        client.say(b"le HTTP/1.1\r\n\r\n");
        client.hears(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n").as_bytes());
        let listening = client.listens_to(file.clone());
        listening.goes_on();
        client.moves(&cluster);
        listening.goes_on();
        listening.ends();
        client.say(b"GET /none HTTP/1.1\r\n\r\n");
        client.hears(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    }
    assert_moved(&capture.finish().expect("the capture is complete"), 2);
}

/// A player who has half a line said, in the middle of a letter even, is understood by
/// the other server, which counts on.
#[test]
fn a_game_goes_on_in_the_middle_of_a_line() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let servers: [(_, &dyn Fn() -> Command); 2] = [(V4, &|| game("0.0.0.0")), (V6, &|| game("::"))];
    let (cluster, _servers) = start(&lab, "lazy", &servers);
    let capture = witness(&lab);
    for service in [service_v4(), service_v6()] {
        wait_known(&lab, &cluster, service);
        let mut client = Client::connect(&lab, service);
        client.say_half(&lab, b"J\xc3");
        client.moves(&cluster);
        client.say(b"\xb6rg\n");
        let greeting = client.hears_line();
        assert!(greeting.contains("Hello J\u{f6}rg"), "{greeting}");
        for won in 1..=2 {
            let (mut low, mut high, mut guesses) = (1, 1000, 0);
            let said = loop {
                let middle = (low + high) / 2;
                let guess = format!("{middle}\n");
                let (half, rest) = guess.as_bytes().split_at(guess.len() / 2);
                client.say_half(&lab, half);
                if guesses < 2 {
                    client.moves(&cluster);
                }
                client.say(rest);
                guesses += 1;
                match client.hears_line() {
                    more if more == "More.\n" => low = middle + 1,
                    less if less == "Less.\n" => high = middle - 1,
                    said => break said,
                }
            };
            let wanted = format!("Yes, {guesses} guesses. You have won {won}. Again!\n");
            assert_eq!(said, wanted);
        }
    }
    assert_moved(&capture.finish().expect("the capture is complete"), 5);
}
