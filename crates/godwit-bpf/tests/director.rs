//! Three nginx behind a director, with real clients: who answers, and that a connection
//! is answered by one server to its end. Needs root.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use godwit_bpf::PinDir;
use godwit_bpf::director::{Backend, Director, Settings, Slot, Via};
use godwit_core::director::{BackendId, Member, Slots, TableSize, lookup_table};
use godwit_lab::apps::content::Content;
use godwit_lab::apps::nginx::Nginx;
use godwit_lab::host::{Host, Network, SERVICE};
use godwit_lab::{Lab, LabOptions};
use godwit_sock::{Interface, add_address};
use godwit_wire::NodeName;

const BACKENDS: [Host; 3] = [Host::B, Host::Attacker, Host::Witness];
const SIZE: TableSize = TableSize::DEFAULT;
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the long reply.
const LENGTH: u64 = 20_000_000;

/// What runs on the director's machine.
struct Front {
    director: Director,
    slots: Slots,
    weights: [u16; 3],
    there: [bool; 3],
}

impl Front {
    /// On the machine itself.
    fn open(pins: &str) -> Self {
        let interface = Interface::by_name(Network::Data.interface()).expect("it has eth0");
        let settings = Settings {
            ifindex: interface.index,
            mac: interface.mac,
            // The switch's end of a veth does not poll.
            via: Via::Tcx,
            table_size: SIZE.get(),
            services: 1,
            max_entries: 4096,
            seed: 1,
            shares: false,
            trial_flows: None,
        };
        let pins = PinDir::open(pins).expect("bpffs is there");
        let director = Director::open(&settings, pins).expect("the programs load");
        let fronts = SERVICE.map(|address| (SocketAddr::from((address, 80)).into(), 0));
        director.fronts.replace(&fronts).expect("services are set");
        for address in SERVICE {
            add_address(interface.index, address).expect("it is added");
        }
        let mut front = Self {
            director,
            slots: Slots::new(SIZE.get() as usize),
            weights: [1; 3],
            there: [true; 3],
        };
        front.change();
        front
    }

    fn change(&mut self) {
        let mut members = Vec::new();
        for ((host, id), (weight, there)) in BACKENDS
            .into_iter()
            .zip(0..)
            .zip(self.weights.into_iter().zip(self.there))
        {
            let name = NodeName::new(host.name()).expect("a name");
            let mac = host.mac(Network::Data);
            let drained = weight == 0;
            let backend = Backend {
                name,
                mac,
                tunnel: None,
                there,
                drained,
                followed: false,
                gone: false,
                tells: false,
            };
            self.director
                .backends
                .set(id, &backend)
                .expect("there is room");
            members.extend(there.then_some(Member {
                name,
                id: BackendId(id),
                weight,
            }));
        }
        let table = lookup_table(SIZE, &members);
        let there = |id: BackendId| self.there[usize::from(id.0)];
        let changed = self.slots.change(&table, there);
        let slots = changed.into_iter().map(|number| {
            let slot = self.slots.get(number);
            let raw = Slot {
                now: slot.now.map(|id| id.0),
                base: slot.base.map(|id| id.0),
                mixed: slot.mixed,
            };
            (number, raw)
        });
        self.director.slots.set(0, slots).expect("they are written");
    }

    fn count(&self, reason: &str) -> u64 {
        self.director.counters.by_name(reason)
    }
}

/// A server that has the service's addresses and says nothing of them on the link.
fn serve(lab: &Lab, host: Host) -> Nginx {
    let node = lab.node(host);
    for (key, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
        let key = format!("ipv4.conf.all.{key}");
        node.netns().sysctl(&key, value).expect("it is there");
    }
    let add = || {
        for address in SERVICE {
            add_address(1, address).expect("lo takes it");
        }
    };
    let mut lo = Command::new("ip");
    lo.args(["link", "set", "lo", "up"]);
    assert!(node.run(lo, PATIENCE).expect("it runs").status.success());
    node.enter(add).expect("the machine is there");
    let root = node.folder().expect("a folder").join("root");
    std::fs::create_dir_all(&root).expect("it is made");
    std::fs::write(root.join("name"), host.name()).expect("it is written");
    let long = Content {
        seed: 7,
        length: LENGTH,
    };
    long.write_to(&root.join("long")).expect("it is written");
    Nginx::start(node, &root, 80).expect("nginx listens")
}

/// A connection that stays open.
struct Regular {
    stream: TcpStream,
    server: String,
}

impl Regular {
    fn connect(lab: &Lab, address: IpAddr) -> Self {
        let to = SocketAddr::from((address, 80));
        let connect = || TcpStream::connect_timeout(&to, PATIENCE);
        let stream = lab.client().enter(connect).expect("the machine is there");
        let stream = stream.expect("somebody answers");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
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
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "));
            let length: usize = length.expect("a length").parse().expect("a number");
            if body.len() == length {
                return body.to_owned();
            }
        }
    }
}

/// Who answers new clients.
fn curls(lab: &Lab, count: usize) -> BTreeSet<String> {
    let one = |number: usize| {
        let address = SocketAddr::from((SERVICE[number % 2], 80));
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "8"])
            .arg(format!("http://{address}/name"));
        let output = lab.client().run(curl, PATIENCE).expect("curl runs");
        assert!(output.status.success(), "{}", output.stderr);
        output.stdout
    };
    (0..count).map(one).collect()
}

fn names(hosts: &[Host]) -> BTreeSet<String> {
    hosts.iter().map(|host| host.name().to_owned()).collect()
}

/// Bytes that the director's machine has taken in.
fn received(lab: &Lab) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev").expect("it is there");
    let text = lab.a().enter(read).expect("the machine is there");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("eth0:"));
    let bytes = line.and_then(|line| line.split_whitespace().next());
    bytes.expect("eth0 has a line").parse().expect("a number")
}

fn on_lab(work: impl FnOnce(&Lab, &mut Front)) {
    if let Err(reason) = Lab::available() {
        let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        return;
    }
    let options = LabOptions {
        attacker: true,
        witness: true,
        ..LabOptions::default()
    };
    let lab = Lab::new(options).expect("a lab can be built");
    let _servers = BACKENDS.map(|host| serve(&lab, host));
    let pins = format!("front-{}", lab.id());
    let folder = format!("/sys/fs/bpf/godwit/{pins}");
    lab.remove_at_end(folder.as_ref())
        .expect("it is remembered");
    let front = lab.a().enter(|| Front::open(&pins));
    let mut front = front.expect("the machine is there");
    work(&lab, &mut front);
    front.director.detach().expect("the programs are removed");
}

#[test]
fn connections_stay_with_their_server_while_others_come_and_go() {
    on_lab(|lab, front| {
        let connect = |number: usize| Regular::connect(lab, SERVICE[number % 2]);
        let mut regulars: Vec<_> = (0..60).map(connect).collect();
        let seen: BTreeSet<_> = regulars.iter().map(|it| it.server.clone()).collect();
        assert_eq!(seen, names(&BACKENDS), "each has some");

        // One drains: what it has stays.
        front.weights[0] = 0;
        front.change();
        assert_eq!(curls(lab, 24), names(&BACKENDS[1..]));
        regulars.extend((0..40).map(connect));
        for regular in &mut regulars {
            assert_eq!(regular.ask(), regular.server, "as before");
        }

        // It comes back, and another one is lost. What that one had is lost with it.
        front.weights[0] = 1;
        front.there[1] = false;
        front.change();
        // What was said to it until all slots were written.
        let in_vain = front.count("no_backend");
        let lost = BACKENDS[1].name();
        regulars.retain(|regular| regular.server != lost);
        for regular in &mut regulars {
            assert_eq!(regular.ask(), regular.server, "as before");
        }
        assert_eq!(curls(lab, 24), names(&[BACKENDS[0], BACKENDS[2]]));

        // And the lost one is there again.
        front.there[1] = true;
        front.change();
        assert!(curls(lab, 32).contains(lost));
        for regular in &mut regulars {
            assert_eq!(regular.ask(), regular.server, "as before");
        }
        for reason in [
            "directed_new",
            "directed",
            "directed_base",
            "directed_entry",
        ] {
            assert!(front.count(reason) > 0, "{reason} was never the reason");
        }
        assert_eq!(front.count("no_backend"), in_vain);
        assert_eq!(front.count("entry_failed"), 0);
    });
}

/// The director carries requests only.
#[test]
fn replies_do_not_pass_the_director() {
    on_lab(|lab, _| {
        let before = received(lab);
        for address in SERVICE {
            let url = format!("http://{}/long", SocketAddr::from((address, 80)));
            let mut curl = Command::new("curl");
            curl.args([
                "-sS",
                "--max-time",
                "20",
                "-o",
                "/dev/null",
                "-w",
                "%{size_download}",
            ]);
            curl.arg(url);
            let output = lab.client().run(curl, 2 * PATIENCE).expect("curl runs");
            assert_eq!(output.stdout, LENGTH.to_string(), "{}", output.stderr);
        }
        let passed = received(lab) - before;
        assert!(passed < LENGTH / 4, "{passed} bytes of {}", 2 * LENGTH);
    });
}
