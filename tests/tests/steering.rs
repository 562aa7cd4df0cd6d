//! Three nginx under their agents, and where connections to them begin: a server that is
//! loaded passes a client's SYN on, a program of the user's own says who has it, or routers
//! give each server its part.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use godwit_lab::host::{Host, SERVICE};
use godwit_tests::DEADLINE;
use godwit_tests::cells::{BACKENDS, Cells, Client, on_cells};
use godwit_tests::stage::{assert_moved, assert_no_live_reset, until, witness};

/// Nothing ever waits for a processor: what else runs on the machine of the tests is no
/// server's load.
fn calm(_: Host, folder: &Path) {
    fs::write(folder.join("psi"), "some total=0\n").expect("there is room");
}

fn policy(lines: &str) -> String {
    format!("\n[service.policy]\npressure = \"psi\"\n{lines}\n")
}

/// Who serves what no rule is about: whoever the connection began at.
fn whose(client: &mut Client) -> String {
    client.ask("/d/name")
}

/// Up to its mark the primary keeps what comes; then the others have it, until nobody is
/// lighter. No connection notices.
#[test]
fn connections_begin_at_a_lighter_server() {
    // Agents and listeners have some ten sockets themselves.
    let extra = policy("redirect = 50\nmargin = 10\nconnections = 60");
    on_cells(&extra, calm, |cells| {
        let capture = witness(cells.lab);
        let mut clients = Vec::new();
        let mut begun = Vec::new();
        for number in 0..60 {
            let mut client = Client::connect(cells.lab, SERVICE[number % 2]);
            begun.push(whose(&mut client));
            clients.push(client);
            // As slow as people: a load is told twenty times a second.
            thread::sleep(Duration::from_millis(60));
        }
        let count = |letter: &str| begun.iter().filter(|it| *it == letter).count();
        println!("a {}, b {}, c {}", count("a"), count("b"), count("c"));
        assert!(begun[..8].iter().all(|it| it == "a"), "{begun:?}");
        assert!(count("b") >= 8 && count("c") >= 8, "{begun:?}");
        assert!(begun.windows(2).any(|pair| pair[0] != pair[1]));
        assert_eq!(
            cells.counted(Host::A, "passed_on"),
            (count("b") + count("c")) as u64
        );
        assert_eq!(cells.counted(Host::B, "passed_on"), 0, "it has come there");
        for (client, server) in clients.iter_mut().zip(&begun) {
            assert_eq!(&whose(client), server, "it is still there");
        }
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    });
}

/// A server whose workers accept nobody has its queue looked at with each SYN.
#[test]
fn a_server_that_accepts_nobody_passes_connections_on() {
    let extra = policy("redirect = 1\nmargin = 1");
    on_cells(&extra, calm, |cells| {
        let capture = witness(cells.lab);
        let mut early = Client::connect(cells.lab, SERVICE[0]);
        assert_eq!(whose(&mut early), "a");
        let nginx = cells.servers.get_mut(&Host::A).expect("it runs");
        nginx.stop().expect("it is stopped");
        let mut waiting = Vec::new();
        until("one is passed on", || {
            waiting.push(Client::connect(cells.lab, SERVICE[waiting.len() % 2]));
            (cells.counted(Host::A, "passed_on") > 0).then_some(())
        });
        assert!(waiting.len() > 1, "the first ones find room");
        let server = whose(waiting.last_mut().expect("one"));
        assert!(["b", "c"].contains(&&*server), "{server}");
        let nginx = cells.servers.get_mut(&Host::A).expect("it runs");
        nginx.cont().expect("it goes on");
        for client in &mut waiting {
            whose(client);
        }
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    });
}

/// A control group whose pressure is a server's load, and who makes it.
struct Pressed {
    group: PathBuf,
    spinners: Vec<Child>,
}

impl Pressed {
    /// `None` where there are no control groups of version 2.
    fn new() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let root = roots
            .into_iter()
            .find(|root| root.join("cgroup.controllers").exists())?;
        let group = root.join(format!("godwit-pressed-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let this = Self {
            group,
            spinners: Vec::new(),
        };
        this.pressure().exists().then_some(this)
    }

    fn pressure(&self) -> PathBuf {
        self.group.join("cpu.pressure")
    }

    /// More of them than there are processors.
    fn press(&mut self) {
        let processors = thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..4 * processors {
            let mut command = Command::new("sh");
            let spinner = command.args(["-c", "while :; do :; done"]).spawn();
            let spinner = spinner.expect("there is a shell");
            let procs = self.group.join("cgroup.procs");
            fs::write(procs, spinner.id().to_string()).expect("it joins");
            self.spinners.push(spinner);
        }
    }

    fn relax(&mut self) {
        for mut spinner in self.spinners.drain(..) {
            spinner.kill().expect("it is a child");
            spinner.wait().expect("it is a child");
        }
    }
}

impl Drop for Pressed {
    fn drop(&mut self) {
        self.relax();
        let _ = fs::remove_dir(&self.group);
    }
}

/// The kernel's own word about who waits for a processor.
#[test]
fn pressure_on_the_processors_is_a_load() {
    let Some(mut pressed) = Pressed::new() else {
        println!("skipped: no control groups of version 2 that tell of pressure");
        return;
    };
    let file = pressed.pressure();
    let prepare = |host, folder: &Path| {
        if host == Host::A {
            symlink(&file, folder.join("psi")).expect("there is room");
        } else {
            calm(host, folder);
        }
    };
    let extra = policy("redirect = 60\nmargin = 20");
    on_cells(&extra, prepare, |cells| {
        let begin = |number: usize| whose(&mut Client::connect(cells.lab, SERVICE[number % 2]));
        assert_eq!(begin(0), "a");
        pressed.press();
        cells.wait_load(Host::A, |load| load >= 80);
        let places: BTreeSet<_> = (0..6).map(begin).collect();
        assert!(!places.contains("a"), "{places:?}");
        pressed.relax();
        cells.wait_load(Host::A, |load| load < 60);
        assert_eq!(begin(1), "a");
    });
}

/// Sessions stay together over connections, by a program that comes with Godwit.
#[test]
fn a_program_places_sessions() {
    let extra = policy("program = \"by_cookie\"");
    on_cells(&extra, calm, |cells| {
        let capture = witness(cells.lab);
        let mut places = BTreeSet::new();
        for session in 0..12 {
            let field = format!("Host: s\r\nCookie: a=b; session=s{session}\r\n");
            let mut servers = BTreeSet::new();
            for address in SERVICE {
                let mut client = Client::connect(cells.lab, address);
                for path in ["/a/name", "/d/name", "/c/face.png"] {
                    servers.insert(client.ask_with(path, &field));
                }
            }
            assert_eq!(servers.len(), 1, "session {session}: {servers:?}");
            places.extend(servers);
        }
        assert_eq!(places.len(), 3, "{places:?}");
        assert_eq!(cells.sum("policy_refused"), 0);
        // Agents may come and go: the program stays in the path, and its successor takes over.
        let mut client = Client::connect(cells.lab, SERVICE[0]);
        let field = "Host: s\r\nCookie: session=s1\r\n";
        let server = client.ask_with("/d/name", field);
        for host in BACKENDS {
            cells
                .cluster
                .agent(host)
                .expect("it runs")
                .kill()
                .expect("it dies");
        }
        assert_eq!(
            Client::connect(cells.lab, SERVICE[1]).ask_with("/a/name", field),
            server
        );
        for host in BACKENDS {
            cells.cluster.start_agent(host).expect("it starts");
        }
        for host in BACKENDS {
            cells.wait_asks(host, 2);
        }
        assert_eq!(
            Client::connect(cells.lab, SERVICE[1]).ask_with("/a/name", field),
            server
        );
        assert_moved(&capture.finish().expect("it is complete"), 4);
    });
}

/// The void director: nobody stands before the servers but routers that spread connections by
/// themselves. Whoever gets one has it, its requests go where they are best served, and no
/// server answers for the addresses on the link.
#[test]
fn any_server_may_have_any_connection() {
    let rules = "front = \"router\"\n
[[service.rule]]
prefix = \"/a/\"
to = [\"a\"]

[[service.rule]]
prefix = \"/b/\"
to = [\"b\"]
";
    on_cells(rules, calm, |cells| {
        let capture = witness(cells.lab);
        for via in BACKENDS {
            route(cells, via);
            for address in SERVICE {
                let mut client = Client::connect(cells.lab, address);
                assert_eq!(whose(&mut client), via.name());
                assert_eq!(client.ask("/b/name"), "b");
                assert_eq!(client.ask("/a/name"), "a");
                assert_eq!(client.ask("/b/large"), "b".repeat(300_000));
            }
        }
        assert_moved(&capture.finish().expect("it is complete"), 4);
    });
}

/// From here on the client's machine sends the service's packets to one server.
fn route(cells: &Cells<'_>, via: Host) {
    let gateways: [IpAddr; 2] = [via.v4().into(), via.v6().into()];
    for (address, gateway) in SERVICE.into_iter().zip(gateways) {
        let mut command = Command::new("ip");
        let (to, gateway) = (address.to_string(), gateway.to_string());
        command.args(["route", "replace", &to, "via", &gateway, "dev", "eth0"]);
        let output = cells.lab.client().run(command, DEADLINE);
        assert!(output.expect("ip runs").status.success());
    }
}
