//! Three nginx under their agents, behind a director: who serves whom, while servers
//! come and go, and the director itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::nginx::Nginx;
use godwit_lab::cluster::{Cluster, ClusterOptions, DirectorReport, Service};
use godwit_lab::host::{Host, Network, SERVICE};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{PORT, stage, until};

#[path = "director/forged.rs"]
mod forged;
#[path = "director/health.rs"]
mod health;
#[path = "director/pair.rs"]
mod pair;
#[path = "director/reach.rs"]
mod reach;
#[path = "director/tunnel.rs"]
mod tunnel;
#[path = "director/xdp.rs"]
mod xdp;

const BACKENDS: [Host; 3] = [Host::A, Host::B, Host::C];

const SECTIONS: &str = "
[director]
seed = \"0123456789abcdef\"
hook = \"tcx\"
";

/// A site whose machines all run what they would.
struct Front<'a> {
    lab: &'a Lab,
    cluster: Cluster<'a>,
    nginx: BTreeMap<Host, Nginx>,
}

fn options() -> ClusterOptions {
    let service = Service {
        standby: "none",
        others: &[Host::C],
        extra: "front = \"director\"".into(),
        ..Service::new("web", PORT)
    };
    ClusterOptions {
        services: vec![service],
        // A switch's end of a veth does not poll, as XDP would need.
        sections: SECTIONS.into(),
        more: &[Host::C, Host::Director],
        ..ClusterOptions::unfenced()
    }
}

fn lab() -> Option<Lab> {
    stage(LabOptions {
        third: true,
        director: true,
        ..LabOptions::default()
    })
}

fn on_site(work: impl FnOnce(&mut Front<'_>)) {
    if let Some(lab) = lab() {
        on_lab(&lab, options(), work);
    }
}

fn on_lab(lab: &Lab, options: ClusterOptions, work: impl FnOnce(&mut Front<'_>)) {
    let cluster = Cluster::start(lab, options).expect("agents and director start");
    let nginx = BACKENDS.map(|host| (host, serve(lab, host)));
    let mut front = Front {
        lab,
        cluster,
        nginx: nginx.into_iter().collect(),
    };
    front.wait(|director| director.services[0].slots.len() == BACKENDS.len());
    work(&mut front);
}

fn serve(lab: &Lab, host: Host) -> Nginx {
    let node = lab.node(host);
    let root = node.folder().expect("a folder").join("root");
    fs::create_dir_all(&root).expect("it is made");
    fs::write(root.join("name"), host.name()).expect("it is written");
    Nginx::start(node, &root, PORT).expect("nginx listens")
}

impl Front<'_> {
    /// What the director says once it is as wanted.
    fn wait(&self, wanted: impl Fn(&DirectorReport) -> bool) -> DirectorReport {
        let mut last = String::new();
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end {
            let status = self.cluster.status(Host::Director);
            last = format!("{status:?}");
            if let Ok(Some(director)) = status.map(|status| status.director)
                && wanted(&director)
            {
                return director;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("{last}");
    }

    fn wait_takers(&self, takers: &[Host]) -> DirectorReport {
        self.wait(|director| {
            let takes = director.services[0].slots.keys().cloned();
            !director.starting && takes.collect::<BTreeSet<_>>() == names(takers)
        })
    }

    /// `godwit drain` at the director.
    fn drain(&self, args: &[&str]) {
        self.drain_at(Host::Director, args);
    }

    fn drain_at(&self, host: Host, args: &[&str]) {
        let socket = self.cluster.socket(host).expect("it is there");
        let socket = socket.to_str().expect("a plain path");
        let args = [&["drain"], args, &["--socket", socket]].concat();
        let output = self.cluster.godwit(host, &args).expect("it runs");
        assert!(output.status.success(), "{}", output.stderr);
    }

    /// Who answers new clients, each within half a second: no SYN is lost.
    fn curls(&self, count: usize) -> BTreeSet<String> {
        let one = |number: usize| {
            let address = SocketAddr::from((SERVICE[number % 2], PORT));
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--connect-timeout", "0.5", "--max-time", "5"])
                .arg(format!("http://{address}/name"));
            let output = self.lab.client().run(curl, DEADLINE).expect("curl runs");
            assert!(output.status.success(), "{number}: {}", output.stderr);
            output.stdout
        };
        (0..count).map(one).collect()
    }

    fn connect(&self, count: usize) -> Vec<Regular> {
        let one = |number: usize| Regular::connect(self.lab, SERVICE[number % 2]);
        (0..count).map(one).collect()
    }

    /// The link hears of them from the director alone, however often somebody asks.
    fn ask_who_has_the_addresses(&self) {
        let client = self.lab.client();
        let ip = |args: &[&str]| {
            let mut ip = Command::new("ip");
            ip.args(args);
            client.run(ip, DEADLINE).expect("ip runs").stdout
        };
        let director = Host::Director.mac(Network::Data).to_string();
        for _ in 0..5 {
            ip(&["neigh", "flush", "dev", "eth0"]);
            self.curls(2);
            for address in SERVICE {
                let known = ip(&["neigh", "show", &address.to_string()]);
                assert!(known.contains(&director), "{known}");
            }
        }
    }

    /// The client asks the link anew where everybody is.
    fn forget_neighbours(&self) {
        let mut ip = Command::new("ip");
        ip.args(["neigh", "flush", "dev", "eth0"]);
        let client = self.lab.client();
        let output = client.run(ip, DEADLINE).expect("ip runs");
        assert!(output.status.success(), "{}", output.stderr);
    }

    /// What a shell on its machine says.
    fn at_the_director(&self, commands: &str) -> String {
        let mut shell = Command::new("sh");
        shell.args(["-ec", commands]);
        let node = self.lab.node(Host::Director);
        let output = node.run(shell, DEADLINE).expect("it runs");
        assert!(output.status.success(), "{commands}: {}", output.stderr);
        output.stdout
    }

    /// Until it has followed its interface. It is told of a change within milliseconds: what
    /// was before is not looked at.
    fn wait_attached(&self, attached: bool) {
        thread::sleep(Duration::from_millis(100));
        until("the director has followed its interface", || {
            let status = self.cluster.status(Host::Director).ok()?;
            (status.data_path.attached == attached).then_some(())
        });
    }

    fn counted(&self, reason: &str) -> u64 {
        let status = self.cluster.status(Host::Director).expect("it answers");
        status.counted(reason)
    }
}

fn names(hosts: &[Host]) -> BTreeSet<String> {
    hosts.iter().map(|host| host.name().to_owned()).collect()
}

/// A connection that stays open.
struct Regular {
    stream: TcpStream,
    server: String,
}

impl Regular {
    fn connect(lab: &Lab, address: IpAddr) -> Self {
        let to = SocketAddr::from((address, PORT));
        let connect = || TcpStream::connect_timeout(&to, DEADLINE);
        let stream = lab.client().enter(connect).expect("the machine is there");
        let stream = stream.expect("somebody answers");
        stream.set_read_timeout(Some(DEADLINE)).expect("a limit");
        let mut regular = Self {
            stream,
            server: String::new(),
        };
        regular.server = regular.ask();
        regular
    }

    /// Who serves it.
    fn ask(&mut self) -> String {
        let request = b"GET /name HTTP/1.1\r\nHost: service\r\n\r\n";
        self.stream.write_all(request).expect("it is open");
        let (mut reply, mut part) = (Vec::new(), [0; 2048]);
        loop {
            let read = self.stream.read(&mut part).expect("it answers");
            assert!(read > 0, "it was closed");
            reply.extend_from_slice(&part[..read]);
            let text = String::from_utf8_lossy(&reply);
            if let Some((_, body)) = text.split_once("\r\n\r\n")
                && !body.is_empty()
            {
                return body.to_owned();
            }
        }
    }
}

impl Regular {
    /// So many requests at once that they fill many segments.
    fn ask_much(&mut self) {
        const MANY: usize = 500;
        let request = "GET /name HTTP/1.1\r\nHost: service\r\n\r\n";
        let all = request.repeat(MANY);
        self.stream.write_all(all.as_bytes()).expect("it is open");
        let (mut reply, mut part) = (Vec::new(), [0; 65536]);
        let reply_end = format!("\r\n\r\n{}", self.server);
        loop {
            let read = self.stream.read(&mut part).expect("it answers");
            assert!(read > 0, "it was closed");
            reply.extend_from_slice(&part[..read]);
            let text = String::from_utf8_lossy(&reply);
            if text.matches(&reply_end).count() == MANY {
                return;
            }
        }
    }
}

fn all_stay(regulars: &mut [Regular]) {
    for regular in regulars {
        assert_eq!(regular.ask(), regular.server, "as before");
    }
}

/// Each server has some; one that is drained keeps what it has, and gets nothing new.
#[test]
fn connections_are_spread_and_a_drained_server_keeps_its_own() {
    on_site(|front| {
        let mut regulars = front.connect(48);
        let seen: BTreeSet<_> = regulars.iter().map(|it| it.server.clone()).collect();
        assert_eq!(seen, names(&BACKENDS));
        front.drain(&["b"]);
        let director = front.wait_takers(&[Host::A, Host::C]);
        let b = director.backends.iter().find(|it| it.name == "b");
        let b = b.expect("it is known");
        assert_eq!((b.drained, b.there, &*b.state), (true, true, "draining"));
        assert_eq!(front.curls(24), names(&[Host::A, Host::C]));
        all_stay(&mut regulars);
        front.drain(&["b", "--undo"]);
        front.wait_takers(&BACKENDS);
        assert!(front.curls(32).contains("b"));
        all_stay(&mut regulars);
        assert_eq!(front.counted("no_backend"), 0);
        front.ask_who_has_the_addresses();
    });
}

/// A machine is gone: after the time of detection no client waits for it.
#[test]
fn new_connections_go_elsewhere_when_a_machine_is_dark() {
    on_site(|front| {
        let mut regulars = front.connect(36);
        front.lab.crash(Host::C).expect("it goes dark");
        let since = Instant::now();
        let director = front.wait_takers(&[Host::A, Host::B]);
        let noticed = since.elapsed();
        let detection = front.cluster.options().detection();
        println!("noticed after {noticed:?}, detection {detection:?}");
        // A look at the status takes its time on a busy machine.
        assert!(
            noticed < detection + Duration::from_millis(500),
            "{noticed:?}"
        );
        let c = director.backends.iter().find(|it| it.name == "c");
        assert!(
            c.is_some_and(|c| c.there && c.state == "silent"),
            "for a while"
        );
        assert_eq!(front.curls(24), names(&[Host::A, Host::B]));
        regulars.retain(|regular| regular.server != "c");
        assert!(regulars.len() > 8);
        all_stay(&mut regulars);
    });
}

/// Nothing listens there: nobody is sent there, and its machine is no less alive.
#[test]
fn a_server_whose_process_has_ended_gets_nothing_new() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        let nginx = front.nginx.remove(&Host::A).expect("it runs");
        drop(nginx);
        let director = front.wait_takers(&[Host::B, Host::C]);
        assert!(director.backends.iter().all(|backend| backend.there));
        assert_eq!(front.curls(16), names(&[Host::B, Host::C]));
        regulars.retain(|regular| regular.server != "a");
        all_stay(&mut regulars);
        front.nginx.insert(Host::A, serve(front.lab, Host::A));
        front.wait_takers(&BACKENDS);
        assert!(front.curls(32).contains("a"));
    });
}

/// The program goes on without it, and the next one goes on where it was.
#[test]
fn nothing_is_lost_when_the_director_is_restarted_or_killed() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        front.drain(&["a"]);
        front.wait_takers(&[Host::B, Host::C]);
        regulars.extend(front.connect(24));
        // Load that would notice a single reset, or a SYN that waits for a second.
        let mut wrk = Command::new("wrk");
        wrk.args(["-t1", "-c16", "-d6s", "--timeout", "2s"]);
        wrk.arg(format!("http://{}:{PORT}/name", SERVICE[0]));
        thread::scope(|scope| {
            let load = scope.spawn(|| front.lab.client().run(wrk, DEADLINE).expect("wrk runs"));
            for round in 0..2 {
                if round == 0 {
                    front.cluster.stop_agent(Host::Director).expect("it ends");
                } else {
                    let agent = front.cluster.agent(Host::Director).expect("it runs");
                    agent.kill().expect("it dies");
                }
                all_stay(&mut regulars);
                regulars.extend(front.connect(8));
                front
                    .cluster
                    .start_agent(Host::Director)
                    .expect("another one starts");
                all_stay(&mut regulars);
                // What the operator said holds, whoever was told.
                front.wait_takers(&[Host::B, Host::C]);
                all_stay(&mut regulars);
            }
            let said = load.join().expect("it has ended").stdout;
            assert!(said.contains("requests in"), "{said}");
            for wrong in ["Socket errors", "Non-2xx"] {
                assert!(!said.contains(wrong), "{said}");
            }
        });
        front.drain(&["a", "--undo"]);
        front.wait_takers(&BACKENDS);
        all_stay(&mut regulars);
    });
}

/// An agent that is killed, and a director that hears nobody for a while, or is told to
/// drain before it has heard anybody: whoever serves goes on.
#[test]
fn who_is_not_heard_for_a_while_keeps_its_connections() {
    on_site(|front| {
        let mut regulars = front.connect(36);
        let agent = front.cluster.agent(Host::B).expect("it runs");
        agent.kill().expect("it dies");
        front.wait_takers(&[Host::A, Host::C]);
        all_stay(&mut regulars);
        front.cluster.start_agent(Host::B).expect("another one");
        front.wait_takers(&BACKENDS);
        all_stay(&mut regulars);
        let control = [Network::Control];
        front.lab.cut(Host::Director, &control).expect("it is cut");
        front.wait(|director| director.deaf);
        all_stay(&mut regulars);
        assert_eq!(front.curls(24), names(&BACKENDS), "as before");
        front.cluster.stop_agent(Host::Director).expect("it ends");
        let start = front.cluster.start_agent(Host::Director);
        start.expect("another one starts");
        front.wait(|_| true);
        front.drain(&["c"]);
        all_stay(&mut regulars);
        front.lab.heal(Host::Director, &control).expect("it heals");
        front.wait_takers(&[Host::A, Host::B]);
        all_stay(&mut regulars);
        assert_eq!(front.counted("no_backend"), 0);
    });
}

/// Servers go on while their agents are restarted, and the table stays as it was: a slot
/// that has changed once costs more for as long as its first server lives.
#[test]
fn agents_that_are_restarted_change_no_slot() {
    let Some(lab) = lab() else {
        return;
    };
    // While programs are loaded nobody else on the tests' machine is heard, for 50 ms at times.
    let options = ClusterOptions {
        heartbeat: Duration::from_millis(100),
        ..options()
    };
    on_lab(&lab, options, |front| {
        let mut regulars = front.connect(12);
        let before = front.wait_takers(&BACKENDS).services[0].mixed;
        for host in BACKENDS {
            front.cluster.stop_agent(host).expect("it ends");
            let start = front.cluster.start_agent(host);
            start.expect("another one starts");
            until("it is linked again", || {
                let status = front.cluster.status(Host::Director).ok()?;
                let mut peers = status.peers.iter();
                let linked = peers.any(|peer| peer.name == host.name() && peer.linked);
                linked.then_some(())
            });
            // Longer than it is not believed that nobody listens there.
            thread::sleep(Duration::from_millis(1300));
        }
        let after = front.wait_takers(&BACKENDS).services[0].mixed;
        assert_eq!(after, before);
        all_stay(&mut regulars);
    });
}

/// Its card gets another address, goes away, comes back, and is a port of a bridge one day:
/// each time connections wait for the link to hear of it, no longer.
#[test]
fn connections_outlive_the_directors_interface() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        let renew = [
            // Its IPv6 addresses go with the link.
            "ip link set eth0 address 02:00:00:00:0d:0d",
            "ip link set eth0 down && ip link set eth0 up",
        ];
        for commands in renew {
            front.at_the_director(commands);
            front.wait_attached(true);
            all_stay(&mut regulars);
            front.curls(8);
        }
        front.at_the_director("ip link set eth0 down && ip link set eth0 name port0");
        front.wait_attached(false);
        let own = front.at_the_director("ip -o address");
        let has = |address: &IpAddr| own.contains(&address.to_string());
        assert!(!SERVICE.iter().any(has), "its kernel would reset: {own}");
        front.at_the_director("ip link set port0 name eth0 && ip link set eth0 up");
        front.wait_attached(true);
        all_stay(&mut regulars);
        front.at_the_director(&format!(
            "ip link set eth0 down && ip link set eth0 name port0 &&
            ip link add eth0 type bridge forward_delay 0 &&
            ip link set port0 master eth0 && ip link set port0 up && ip link set eth0 up &&
            ip address add {}/24 dev eth0 && ip address add {}/64 dev eth0 nodad",
            Host::Director.v4(),
            Host::Director.v6(),
        ));
        front.wait_attached(true);
        all_stay(&mut regulars);
        assert_eq!(front.curls(32), names(&BACKENDS));
    });
}

/// A machine that does not answer for what is on its loopback would take all services off
/// the link.
#[test]
fn a_director_that_would_be_mute_does_not_start() {
    let Some(lab) = lab() else {
        return;
    };
    let cluster = Cluster::prepare(&lab, options()).expect("files are written");
    let mut shell = Command::new("sh");
    shell.args(["-ec", "echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_ignore"]);
    let node = lab.node(Host::Director);
    assert!(node.run(shell, DEADLINE).expect("it runs").status.success());
    let file = cluster.config_file(Host::Director).expect("it is there");
    let args = ["director", "--config", file.to_str().expect("a plain path")];
    let output = cluster.godwit(Host::Director, &args).expect("it runs");
    let sentence = "net.ipv4.conf.eth0.arp_ignore is 1";
    assert!(output.stderr.contains(sentence), "{}", output.stderr);
    assert!(!output.status.success());
    let pins = cluster.pins(Host::Director).expect("the machine is there");
    assert!(!pins.exists(), "nothing was attached");
}

/// One sentence, and nothing is changed.
#[test]
fn a_director_that_is_configured_wrongly_says_so_in_one_sentence() {
    let Some(lab) = lab() else {
        return;
    };
    let cluster = Cluster::prepare(&lab, options()).expect("files are written");
    let file = cluster.config_file(Host::Director).expect("it is there");
    let right = fs::read_to_string(&file).expect("it is written");
    let cases = [
        (
            "0123456789abcdef",
            "password",
            "seed must be 16 hexadecimal digits",
        ),
        ("hook = \"tcx\"", "hook = \"eth\"", "hook must be one of"),
        (SECTIONS, "", "needs a section [director]"),
        (
            "standby = \"none\"",
            "standby = \"shadow\"\ntap = \"multicast\"",
            "does not go with front = \"director\"",
        ),
    ];
    for (from, to, sentence) in cases {
        assert!(right.contains(from), "{from}");
        fs::write(&file, right.replacen(from, to, 1)).expect("it is written");
        let path = file.to_str().expect("a plain path");
        let args = ["director", "--config", path];
        let output = cluster.godwit(Host::Director, &args).expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{}", output.stderr);
        assert_eq!(output.stderr.trim().lines().count(), 1, "{}", output.stderr);
        assert!(output.stderr.contains(sentence), "{}", output.stderr);
    }
    let pins = cluster.pins(Host::Director).expect("the machine is there");
    assert!(!pins.exists(), "nothing was attached");
}

/// Where all of Godwit ends a director does, and its program stays: its connections go on.
/// `--detach` leaves nothing behind: no program, no address.
#[test]
fn a_director_that_is_detached_leaves_nothing() {
    on_site(|front| {
        let file = front.cluster.config_file(Host::Director).expect("a file");
        let path = file.to_str().expect("a plain path");
        let addresses = || {
            let mut ip = Command::new("ip");
            ip.args(["-o", "address"]);
            let node = front.lab.node(Host::Director);
            node.run(ip, DEADLINE).expect("ip runs").stdout
        };
        let there = |address: &IpAddr| addresses().contains(&address.to_string());
        assert!(SERVICE.iter().all(there));
        let pins = front.cluster.pins(Host::Director).expect("it is there");
        let args = ["agent", "--config", path, "--detach", "--all"];
        let output = front.cluster.godwit(Host::Director, &args);
        let output = output.expect("it runs");
        assert!(output.status.success(), "{output:?}");
        for wanted in ["its process has ended", "the program of its director stays"] {
            assert!(output.stdout.contains(wanted), "{output:?}");
        }
        assert!(pins.exists() && SERVICE.iter().all(there));
        let args = ["director", "--config", path, "--detach"];
        let output = front
            .cluster
            .godwit(Host::Director, &args)
            .expect("it runs");
        assert!(output.status.success(), "{}", output.stderr);
        assert!(!SERVICE.iter().any(there), "{}", addresses());
        assert!(!pins.exists());
    });
}
