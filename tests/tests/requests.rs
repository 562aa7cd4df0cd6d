//! Three nginx under their agents, and rules that say by whom each request is served: one
//! connection goes from server to server with its requests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};

use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::nginx::Nginx;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::{Host, SERVICE};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{PORT, assert_moved, stage, witness};

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

#[test]
#[ignore = "experiment"]
fn speed() {
    on_site(|cells| {
        let node = cells.lab.client();
        let folder = node.folder().expect("a folder");
        let script = folder.join("x.lua");
        for (name, paths) in [
            ("stay", ["/a/name", "/d/name"]),
            ("b", ["/b/name", "/b/name"]),
            ("alternate", ["/b/name", "/c/name"]),
        ] {
            for close in ["", "Connection: close"] {
                fs::write(&script, format!("local n = 0\nrequest = function()\n n = n + 1\n local p = n % 2 == 0 and \"{}\" or \"{}\"\n return wrk.format(\"GET\", p, {{ {} }})\nend\n", paths[0], paths[1], if close.is_empty() {""} else {"Connection = \"close\""})).expect("written");
                let before = cells.sum("came");
                let mut wrk = std::process::Command::new("wrk");
                wrk.args(["-t1", "-c32", "-d5s", "--latency", "-s"])
                    .arg(&script);
                wrk.arg(format!("http://{}:{PORT}/", SERVICE[0]));
                let out = node.run(wrk, DEADLINE).expect("wrk runs");
                println!("{name} {close}: {}", out.stdout);
                println!(
                    "came {} refused {} own_rst {} asked {}",
                    cells.sum("came") - before,
                    cells.sum("refused"),
                    cells.sum("own_rst"),
                    cells.sum("asked")
                );
            }
        }
        for host in BACKENDS {
            let status = cells.cluster.status(host).expect("it answers");
            println!("{host}: {:?}", status.data_path.reasons);
        }
    });
}
