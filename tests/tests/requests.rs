//! Three nginx under their agents, and rules that say by whom each request is served: one
//! connection goes from server to server with its requests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};

use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::nginx::Nginx;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::{Host, SERVICE};
use godwit_lab::links::Loss;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{PORT, assert_moved, assert_no_live_reset, stage, until, witness};
use socket2::{Domain, Socket, Type};

const BACKENDS: [Host; 3] = [Host::A, Host::B, Host::C];

/// Each server has what begins with its name; pictures are b's, and a host of its own c's.
const RULES: &str = "
[[service.rule]]
prefix = \"/a/\"
to = [\"a\"]

[[service.rule]]
prefix = \"/b/\"
to = [\"b\"]

[[service.rule]]
prefix = \"/c/\"
to = [\"c\"]

[[service.rule]]
suffix = \".png\"
to = [\"b\"]

[[service.rule]]
host = \"c.example\"
to = [\"c\"]
";

/// A site whose requests are placed.
struct Cells<'a> {
    lab: &'a Lab,
    cluster: Cluster<'a>,
    nginx: BTreeMap<Host, Nginx>,
}

fn on_site(work: impl FnOnce(&mut Cells<'_>)) {
    let Some(lab) = stage(LabOptions {
        third: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let service = Service {
        standby: "none",
        others: &[Host::C],
        extra: RULES.into(),
        ..Service::new("web", PORT)
    };
    let options = ClusterOptions {
        services: vec![service],
        more: &[Host::C],
        // A machine that is busy must not seem to be dead.
        heartbeat: Duration::from_millis(100),
        ..ClusterOptions::default()
    };
    let nginx = BACKENDS.map(|host| (host, serve(&lab, host)));
    let mut cells = Cells {
        lab: &lab,
        cluster: Cluster::start(&lab, options).expect("the agents start"),
        nginx: nginx.into_iter().collect(),
    };
    // By then each has heard that the others serve.
    for host in BACKENDS {
        cells.wait_asks(host, 2);
    }
    work(&mut cells);
}

/// Every server has all files, and says in them who it is.
fn serve(lab: &Lab, host: Host) -> Nginx {
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
    Nginx::start(node, &root, PORT).expect("nginx listens")
}

/// A connection that stays open.
struct Client(TcpStream);

impl Client {
    fn connect(lab: &Lab, address: IpAddr) -> Self {
        let to = SocketAddr::from((address, PORT));
        let connect = || TcpStream::connect_timeout(&to, DEADLINE);
        let stream = lab.client().enter(connect).expect("the machine is there");
        let stream = stream.expect("somebody answers");
        stream.set_read_timeout(Some(DEADLINE)).expect("a limit");
        stream.set_nodelay(true).expect("an option");
        Self(stream)
    }

    fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).expect("it is open");
    }

    /// The body of one reply.
    fn hear(&mut self) -> String {
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
                    return body.to_owned();
                }
            }
            let read = self.0.read(&mut part).expect("it answers");
            assert!(read > 0, "it was closed");
            reply.extend_from_slice(&part[..read]);
        }
    }

    /// Who serves a path.
    fn ask(&mut self, path: &str) -> String {
        self.ask_with(path, "Host: service\r\n")
    }

    fn ask_with(&mut self, path: &str, fields: &str) -> String {
        self.say(&format!("GET {path} HTTP/1.1\r\n{fields}\r\n"));
        self.hear().trim().to_owned()
    }
}

impl Cells<'_> {
    /// Until a server would ask so many others.
    fn wait_asks(&self, host: Host, count: usize) {
        let end = Instant::now() + DEADLINE;
        loop {
            let status = self.cluster.status(host);
            let asks = status.as_ref().map(|it| it.services[0].asks.clone());
            if asks.is_ok_and(|asks| asks.is_some_and(|asks| asks.len() == count)) {
                return;
            }
            assert!(Instant::now() < end, "{host} does not ask: {status:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn counted(&self, host: Host, reason: &str) -> u64 {
        let status = self.cluster.status(host).expect("it answers");
        status.counted(reason)
    }

    fn wait_counted(&self, host: Host, reason: &str, count: u64) {
        until(reason, || {
            (self.counted(host, reason) == count).then_some(())
        });
    }

    fn sum(&self, reason: &str) -> u64 {
        BACKENDS
            .iter()
            .map(|host| self.counted(*host, reason))
            .sum()
    }
}

/// To and fro, over both address families, also by way of all three and back.
#[test]
fn each_request_is_served_where_its_rule_says() {
    on_site(|cells| {
        let capture = witness(cells.lab);
        for address in SERVICE {
            let mut client = Client::connect(cells.lab, address);
            for path in [
                "/b/name", "/b/name", "/c/name", "/a/name", "/c/name", "/b/name",
            ] {
                assert_eq!(client.ask(path), path[1..2], "{path}");
            }
            assert_eq!(client.ask("/c/face.png"), "b", "a suffix before a prefix");
            assert_eq!(client.ask_with("/b/name", "Host: c.example:80\r\n"), "c");
            assert_eq!(client.ask("/d/name"), "c", "no rule: where it is");
            for letter in ["a", "b", "c"] {
                let all = client.ask(&format!("/{letter}/large"));
                assert_eq!(all, letter.repeat(300_000));
            }
        }
        assert_eq!(cells.sum("asked"), cells.sum("accepted"));
        assert_eq!(cells.sum("came"), cells.sum("accepted"));
        assert!(cells.sum("came") >= 18, "{}", cells.sum("came"));
        assert_eq!(cells.sum("no_slip"), 0);
        assert_moved(&capture.finish().expect("it is complete"), 16);
    });
}

/// Questions and answers are lost, as is what is forwarded: each request is answered, once,
/// with its own bytes.
#[test]
fn what_is_lost_between_the_servers_is_said_again() {
    on_site(|cells| {
        let capture = witness(cells.lab);
        let pairs = BACKENDS
            .iter()
            .flat_map(|from| BACKENDS.map(|to| (*from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            let loss = Loss {
                from,
                to,
                per_myriad: 2000,
            };
            cells.lab.lose(loss).expect("the rule is set");
        }
        let joined = thread::scope(|scope| {
            let mut all = Vec::new();
            for number in 0..8 {
                let lab = cells.lab;
                all.push(scope.spawn(move || {
                    let mut client = Client::connect(lab, SERVICE[number % 2]);
                    for round in 0..12 {
                        let letter = ["a", "b", "c"][(number + round) % 3];
                        let path = format!("/{letter}/name");
                        // Whose reply was not acknowledged in time may stay.
                        let by = client.ask(&path);
                        assert!(["a", "b", "c"].contains(&&*by), "{by}");
                        if round % 4 == 0 {
                            let all = client.ask(&format!("/{letter}/large"));
                            assert_eq!(all, all[..1].repeat(300_000));
                        }
                    }
                }));
            }
            all.into_iter()
                .map(|it| it.join().is_ok())
                .collect::<Vec<_>>()
        });
        let trace = capture.finish().expect("it is complete");
        assert_no_live_reset(&trace);
        assert!(joined.iter().all(|it| *it));
        let [asked, came, accepted] = ["asked", "came", "accepted"].map(|it| cells.sum(it));
        println!("asked {asked}, came {came}, accepted {accepted}");
        assert!(asked > came, "questions were lost");
        assert!(came > accepted, "answers, too");
    });
}

/// Whose server has just ended, or is full, refuses; the request is served where it is.
#[test]
fn who_is_refused_is_served_where_it_is() {
    on_site(|cells| {
        let capture = witness(cells.lab);
        let mut clients: Vec<_> = SERVICE
            .map(|address| Client::connect(cells.lab, address))
            .into();
        cells
            .nginx
            .remove(&Host::B)
            .expect("it runs")
            .process
            .kill()
            .expect("it dies");
        for client in &mut clients {
            assert_eq!(client.ask("/b/name"), "a");
            assert_eq!(client.ask("/c/name"), "c");
        }
        assert_eq!(cells.counted(Host::A, "refused"), 2);
        assert_eq!(cells.counted(Host::B, "no_listener"), 2);
        cells.wait_asks(Host::C, 1);
        for client in &mut clients {
            assert_eq!(client.ask("/b/name"), "c", "nobody is asked any more");
        }
        // One that accepts nobody, and has room for two.
        let full = cells.lab.b().enter(|| {
            let listener = Socket::new(Domain::IPV6, Type::STREAM, None)?;
            listener.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)).into())?;
            listener.listen(2)?;
            Ok::<_, std::io::Error>(listener)
        });
        let _full = full
            .expect("the machine is there")
            .expect("the port is free");
        cells.wait_asks(Host::A, 2);
        let mut waiting: Vec<_> = (0..2)
            .map(|_| Client::connect(cells.lab, SERVICE[0]))
            .collect();
        for client in &mut waiting {
            client.say("GET /b/name HTTP/1.1\r\nHost: s\r\n\r\n");
        }
        cells.wait_counted(Host::B, "came", 2);
        let mut late = Client::connect(cells.lab, SERVICE[1]);
        assert_eq!(late.ask("/b/name"), "a");
        assert_eq!(cells.counted(Host::B, "overloaded"), 1);
        let trace = capture.finish().expect("it is complete");
        assert_eq!(trace.resets(), 0);
    });
}

/// Once rules and neighbours are written down no agent is needed; a new one goes on.
#[test]
fn no_agent_is_in_the_path() {
    on_site(|cells| {
        let capture = witness(cells.lab);
        let mut clients: Vec<_> = SERVICE
            .map(|address| Client::connect(cells.lab, address))
            .into();
        let ask_all = |clients: &mut Vec<Client>| {
            for client in clients {
                for letter in ["c", "b", "a", "b"] {
                    assert_eq!(client.ask(&format!("/{letter}/name")), letter);
                }
            }
        };
        ask_all(&mut clients);
        for host in BACKENDS {
            let agent = cells.cluster.agent(host).expect("it runs");
            agent.kill().expect("it dies");
        }
        ask_all(&mut clients);
        clients.extend(SERVICE.map(|address| Client::connect(cells.lab, address)));
        ask_all(&mut clients);
        for host in BACKENDS {
            cells.cluster.start_agent(host).expect("it starts");
        }
        for host in BACKENDS {
            cells.wait_asks(host, 2);
        }
        ask_all(&mut clients);
        assert_moved(&capture.finish().expect("it is complete"), 24);
    });
}
