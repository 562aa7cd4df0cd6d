//! Connections of servers that know nothing of Godwit, of which nobody has read a byte:
//! they go to another server, which knows nothing of it either.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use godwit_lab::apps::nginx::Nginx;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_sock::{SocketView, view_tcp_socket};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    PORT, assert_no_reset, has_event, service_v4, service_v6, stage, until, witness,
};
use godwit_wire::{FlowKey, TcpFlags};
use nix::sys::signal::Signal;
use nix::sys::socket::{Backlog, listen};

/// Several times as long as an agent waits before it asks; it looks every two seconds.
const SILENCE: Duration = Duration::from_secs(7);

const FIRST_HALF: &str = "GET /na";
const SECOND_HALF: &str = "me HTTP/1.1\r\nHost: godwit\r\n\r\n";

/// Each server serves its own name, so that an answer tells whose it is.
fn serve(lab: &Lab, host: Host) -> Nginx {
    let root = lab.folder().join(format!("www-{host}"));
    fs::create_dir_all(&root).expect("a folder");
    fs::write(root.join("name"), format!("served by {host}\n")).expect("a file");
    Nginx::start(lab.node(host), &root, PORT).expect("nginx starts")
}

fn start<'a>(lab: &'a Lab, unread: &str) -> Cluster<'a> {
    start_with(lab, format!("unread = \"{unread}\"\n"))
}

fn start_with(lab: &Lab, extra: String) -> Cluster<'_> {
    let service = Service {
        standby: "none",
        extra,
        ..Service::new("web", PORT)
    };
    let options = ClusterOptions {
        services: vec![service],
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(lab, options).expect("the agents start");
    for host in Host::SERVERS {
        cluster
            .wait_owner(host, DEADLINE)
            .expect("it owns its share");
    }
    cluster
}

struct Client {
    stream: TcpStream,
    flow: FlowKey,
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
        Self { stream, flow }
    }

    /// What its server's kernel has.
    fn view(&self, lab: &Lab, host: Host) -> Option<SocketView> {
        let look = || view_tcp_socket(0, self.flow);
        let view = lab.node(host).enter(look).expect("the machine is there");
        view.expect("sock_diag")
    }

    fn wait_accepted(&self, lab: &Lab, host: Host) {
        until("a process accepts it", || {
            self.view(lab, host).filter(|view| view.inode != 0)
        });
    }

    fn wait_received(&self, lab: &Lab, host: Host, bytes: usize) {
        let is_there = |view: &SocketView| view.received == bytes as u64;
        until("it arrives", || self.view(lab, host).filter(is_there));
    }

    fn say(&self, words: &str) {
        (&self.stream).write_all(words.as_bytes()).expect("open");
    }

    /// An answer, from its status to its last byte.
    fn hear(&self) -> Result<String, String> {
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\n") || !answer.windows(10).any(|it| it == b"served by ") {
            match (&self.stream).read(&mut byte) {
                Ok(1) => answer.push(byte[0]),
                end => return Err(format!("{end:?} after {answer:?}")),
            }
        }
        Ok(String::from_utf8(answer).expect("it is text"))
    }

    fn hear_from(&self, host: Host) {
        let answer = self.hear().expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.ends_with(&format!("\r\n\r\nserved by {host}\n")),
            "{answer}"
        );
    }

    /// The reason why it stays.
    fn stays(&self, cluster: &Cluster<'_>, reason: &str) {
        // Soon after their start the agents have no link yet.
        let why = until("there is another reason", || {
            let moved = cluster.hand_over_flow(&self.flow.to_string(), Host::A, Host::B);
            let why = format!("{:#}", moved.expect_err("it does not move"));
            (!why.contains("link_lost")).then_some(why)
        });
        assert!(why.contains(reason), "{why}");
    }

    /// To b; soon after start that may need a moment.
    fn goes(&self, cluster: &Cluster<'_>, from: Host) {
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

/// One that has said nothing yet, to and fro, then served where it is; it may not know.
#[test]
fn a_silent_connection_goes_to_another_server() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let clients = [service_v4(), service_v6()].map(|service| Client::connect(&lab, service));
    for client in &clients {
        client.wait_accepted(&lab, Host::A);
        client.goes(&cluster, Host::A);
        client.wait_accepted(&lab, Host::B);
        client.goes(&cluster, Host::B);
        client.wait_accepted(&lab, Host::A);
        client.goes(&cluster, Host::A);
        for _ in 0..3 {
            client.say(FIRST_HALF);
            client.say(SECOND_HALF);
            client.hear_from(Host::B);
        }
        until("a has closed it", || {
            client.view(&lab, Host::A).is_none().then_some(())
        });
    }
    let newcomer = Client::connect(&lab, service_v4());
    newcomer.say(FIRST_HALF);
    newcomer.say(SECOND_HALF);
    newcomer.hear_from(Host::A);
    let trace = capture.finish().expect("the capture is complete");
    assert_no_reset(&trace);
    let count = |flag: TcpFlags| trace.segments().filter(|s| s.flags.contains(flag)).count();
    assert_eq!(count(TcpFlags::FIN), 0);
    // Each client's, and the answer.
    assert_eq!(count(TcpFlags::SYN), 6);
}

/// One that has said half a request, which its server did not come to read, and half a
/// buffer of one: what was acknowledged goes along.
#[test]
fn what_was_said_and_not_read_goes_along() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let long = format!(
        "{FIRST_HALF}me HTTP/1.1\r\nCookie: {}\r\n",
        "x".repeat(5000)
    );
    for (first, second) in [(FIRST_HALF, SECOND_HALF), (&long, "Host: godwit\r\n\r\n")] {
        let clients = [service_v4(), service_v6()].map(|service| Client::connect(&lab, service));
        for client in &clients {
            client.wait_accepted(&lab, Host::A);
        }
        servers[0].process.stop().expect("it runs");
        for client in &clients {
            client.say(first);
            client.wait_received(&lab, Host::A, first.len());
            client.goes(&cluster, Host::A);
        }
        servers[0].process.cont().expect("it runs");
        for client in &clients {
            client.say(second);
            client.hear_from(Host::B);
        }
    }
    let trace = capture.finish().expect("the capture is complete");
    assert_no_reset(&trace);
}

/// For whom its origin asks again and again whether there is anything to forward for.
#[test]
fn who_is_silent_for_long_does_not_lose_the_way() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start_with(&lab, "unread = \"move\"\nforward_idle = \"1s\"\n".into());
    let capture = witness(&lab);
    let clients = [service_v4(), service_v6()].map(|service| Client::connect(&lab, service));
    for client in &clients {
        client.wait_accepted(&lab, Host::A);
        client.goes(&cluster, Host::A);
    }
    thread::sleep(SILENCE);
    for client in &clients {
        client.say(FIRST_HALF);
        client.say(SECOND_HALF);
        client.hear_from(Host::B);
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
    assert!(!has_event(&cluster, Host::A, "flow_over"));
}

/// Its server has begun: it stays, and goes on.
#[test]
fn what_was_read_from_stays() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    for service in [service_v4(), service_v6()] {
        let client = Client::connect(&lab, service);
        client.say(FIRST_HALF);
        client.say(SECOND_HALF);
        client.hear_from(Host::A);
        client.stays(&cluster, "already_read");
        client.say(FIRST_HALF);
        client.say(SECOND_HALF);
        client.hear_from(Host::A);
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Nobody looks into processes who was not told to.
#[test]
fn without_a_word_in_the_file_it_stays() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "stay");
    let client = Client::connect(&lab, service_v4());
    client.wait_accepted(&lab, Host::A);
    client.stays(&cluster, "no_server");
    client.say(FIRST_HALF);
    client.say(SECOND_HALF);
    client.hear_from(Host::A);
}

/// The target has no room in its accept queue: the origin goes on. If its server has
/// closed it meanwhile, its client hears of that, and people why.
#[test]
fn one_that_was_stopped_in_vain_goes_on() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _server = serve(&lab, Host::A);
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let (_listener, _filler) = lab
        .node(Host::B)
        .enter(|| {
            let at = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
            let listener = TcpListener::bind(at).expect("a free port");
            listen(&listener, Backlog::new(0).expect("small")).expect("it listens");
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
            let filler = TcpStream::connect(at).expect("it listens");
            (listener, filler)
        })
        .expect("the machine is there");
    let client = Client::connect(&lab, service_v4());
    client.wait_accepted(&lab, Host::A);
    for _ in 0..5 {
        until("b has no room", || {
            let moved = cluster.hand_over_flow(&client.flow.to_string(), Host::A, Host::B);
            let why = format!("{:#}", moved.expect_err("it does not move"));
            why.contains("no_capacity").then_some(())
        });
    }
    client.say(FIRST_HALF);
    client.say(SECOND_HALF);
    client.hear_from(Host::A);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Asks for a move, and does not wait for the answer.
fn ask(cluster: &Cluster<'_>, client: &Client) -> UnixStream {
    let socket = cluster.socket(Host::A).expect("the machine is there");
    let mut stream = UnixStream::connect(socket).expect("the agent listens");
    let flow = client.flow;
    let wish = format!("{{\"cmd\":\"move_flows\",\"flow\":\"{flow}\",\"to\":\"b\"}}\n");
    stream.write_all(wish.as_bytes()).expect("it reads");
    stream
}

/// An agent is killed at any moment of a move and started again: somebody serves it, or
/// it is reset.
fn agent_dies(host: Host) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let mut cluster = start(&lab, "move");
    for step in 0..8 {
        // Until they know each other, again.
        let first = Client::connect(&lab, service_v4());
        first.wait_accepted(&lab, Host::A);
        first.goes(&cluster, Host::A);
        let client = Client::connect(&lab, [service_v4(), service_v6()][step % 2]);
        client.wait_accepted(&lab, Host::A);
        let delay = Duration::from_micros(1300) * u32::try_from(step).expect("small");
        let asked = ask(&cluster, &client);
        thread::sleep(delay);
        let agent = cluster.agent(host).expect("it was started");
        agent.signal(Signal::SIGKILL).expect("it runs");
        agent.wait(DEADLINE).expect("it ends");
        cluster.start_agent(host).expect("it starts again");
        cluster
            .wait_owner(host, DEADLINE)
            .expect("it owns its share");
        drop(asked);
        // Where it was reset already, that is what it hears.
        let said = (&client.stream).write_all((FIRST_HALF.to_owned() + SECOND_HALF).as_bytes());
        match said
            .map_err(|error| error.to_string())
            .and_then(|()| client.hear())
        {
            Ok(answer) => eprintln!(
                "killed after {delay:?}: {}",
                answer.lines().last().expect("text")
            ),
            Err(why) => {
                eprintln!("killed after {delay:?}: {why}");
                let told = Host::SERVERS.into_iter().any(|server| {
                    let tells = |event| has_event(&cluster, server, event);
                    tells("flow_closed") || tells("flow_lost")
                });
                assert!(told, "no reason");
            }
        }
    }
}

#[test]
fn an_origin_that_dies_on_the_way_leaves_nothing_silent() {
    agent_dies(Host::A);
}

#[test]
fn a_target_that_dies_on_the_way_leaves_no_second_server() {
    agent_dies(Host::B);
}
