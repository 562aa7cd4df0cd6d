//! The service interface is made of others, and others come beside it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::content::Content;
use godwit_lab::apps::curl::{self, Patience};
use godwit_lab::apps::nginx::Nginx;
use godwit_lab::apps::server;
use godwit_lab::cluster::{ClusterOptions, Service};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_sock::Interface;
use godwit_tests::stage::{
    PORT, assert_unnoticed, counted, in_sync, service_v4, service_v6, stage, wait_protected,
    witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use godwit_wire::Endpoint;
use socket2::{Domain, Socket, Type};

/// What `eth0` of a server is made of instead of a plain card.
#[derive(Clone, Copy)]
enum Stack {
    Bridge,
    Macvlan,
}

/// Runs one `ip` with many commands, as fast as a machine can be configured.
fn ip(lab: &Lab, host: Host, lines: &[String]) {
    let node = lab.node(host);
    let file = node.folder().expect("it has one").join("ip.batch");
    fs::write(&file, lines.join("\n")).expect("it can be written");
    let mut command = Command::new("ip");
    command.arg("-batch").arg(&file);
    let output = node.run(command, DEADLINE).expect("it ends");
    assert!(output.status.success(), "{lines:?}: {output:?}");
}

impl Stack {
    /// Puts a device called `eth0`, with all that the card had, above the card.
    fn build(self, lab: &Lab, host: Host) {
        let mac = host.mac(Network::Data);
        let [a, b, c, d, e, f] = mac.0;
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        let mut lines = vec![
            "link set eth0 down".to_owned(),
            "addr flush dev eth0".to_owned(),
            "link set eth0 name card".to_owned(),
        ];
        lines.extend(match self {
            Self::Bridge => vec![
                format!("link add eth0 address {mac} type bridge"),
                "link set card master eth0".to_owned(),
            ],
            Self::Macvlan => vec![
                format!("link set card address 02:00:00:00:ff:{f:02x}"),
                format!("link add link card name eth0 address {mac} type macvlan mode bridge"),
            ],
        });
        if matches!(self, Self::Macvlan) {
            // The card hears the same requests: `godwit doctor` asks for this.
            let set = || fs::write("/proc/sys/net/ipv4/conf/card/arp_ignore", "1");
            ip(lab, host, &lines);
            lines.clear();
            let written = lab.node(host).enter(set).expect("the machine is there");
            written.expect("the card is there");
        }
        lines.extend([
            "link set card up".to_owned(),
            "link set eth0 up".to_owned(),
            format!("addr add {}/24 dev eth0", host.v4()),
            format!("addr add {}/64 dev eth0 nodad", host.v6()),
        ]);
        ip(lab, host, &lines);
    }
}

/// A page by HTTP, then traffic of every kind over a crash: as with a card.
fn serves_and_survives(stack: Stack) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    for host in Host::SERVERS {
        stack.build(&lab, host);
    }
    let _servers =
        Host::SERVERS.map(|host| server::start(lab.node(host), PORT).expect("it starts"));
    let root = lab.folder().join("root");
    fs::create_dir(&root).expect("a new folder");
    let page = Content {
        seed: 0xb0d,
        length: 300_000,
    };
    page.write_to(&root.join("page"))
        .expect("it can be written");
    let _nginx =
        Host::SERVERS.map(|host| Nginx::start(lab.node(host), &root, 8080).expect("nginx"));
    let mut options = ClusterOptions::unfenced();
    options.services.push(Service::new("pages", 8080));
    let cluster = in_sync(&lab, options);
    let capture = witness(&lab);
    for mut address in [service_v4(), service_v6()] {
        address.set_port(8080);
        let url = format!("http://{address}/page");
        let transfer = curl::download(lab.client(), &url, page, Patience(5)).expect("curl starts");
        let report = transfer.finish(DEADLINE).expect("curl ends");
        assert!(
            report.status.success() && report.verdict.exact,
            "{report:?}"
        );
    }
    let traffic = [
        Traffic::start(&lab, service_v4(), Load::Upload),
        Traffic::start(&lab, service_v6(), Load::Echo),
        Traffic::start(&lab, service_v6(), Load::Download),
    ];
    for one in &traffic {
        wait_protected(&cluster, Host::A, one.local());
    }
    for host in Host::SERVERS {
        assert_eq!(counted(&cluster, host, "wrong_interface"), 0, "{host}");
    }
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in traffic {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

#[test]
fn the_service_interface_may_be_a_bridge() {
    serves_and_survives(Stack::Bridge);
}

/// Stacked on its card as a VLAN is.
#[test]
fn the_service_interface_may_be_a_macvlan() {
    serves_and_survives(Stack::Macvlan);
}

/// Runs a program on the owner and returns what it says.
fn on_owner(lab: &Lab, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    let output = lab.a().run(command, DEADLINE).expect("it ends");
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    output.stdout
}

/// Segments of the service that got out by the new way.
fn strayed(lab: &Lab) -> u64 {
    let said = on_owner(lab, "nft", &["list", "counter", "inet", "stray", "stray"]);
    let mut words = said.split_whitespace();
    words
        .find(|word| *word == "packets")
        .and_then(|_| words.next()?.parse().ok())
        .unwrap_or_else(|| panic!("no counter: {said}"))
}

fn count_strays(lab: &Lab) {
    let rules = "add table inet stray; add counter inet stray stray;
        add chain inet stray in { type filter hook prerouting priority raw; };
        add rule inet stray in iifname x1 tcp sport 80 counter name stray";
    on_owner(lab, "nft", &[rules]);
}

/// A second way to the client comes up ready to use, all at once, while much
/// is being said: next to nothing gets out by it past the gate.
#[test]
fn a_new_interface_is_guarded_before_it_is_used() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers =
        Host::SERVERS.map(|host| server::start(lab.node(host), PORT).expect("it starts"));
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    count_strays(&lab);
    let upload = Traffic::start(&lab, service_v4(), Load::Upload);
    wait_protected(&cluster, Host::A, upload.local());
    let (add, remove) = (new_way(), vec!["link del x0".to_owned()]);
    let mut counts = Vec::new();
    for _ in 0..ROUNDS {
        let before = strayed(&lab);
        ip(&lab, Host::A, &add);
        thread::sleep(OPEN);
        ip(&lab, Host::A, &remove);
        upload.goes_on();
        counts.push(strayed(&lab) - before);
    }
    let dropped = counted(&cluster, Host::A, "wrong_interface");
    assert!(dropped > 0, "nothing tried to leave by it: {counts:?}");
    let strays: u64 = counts.iter().sum();
    assert!(strays <= MAY_STRAY, "segments that got out: {counts:?}");
    upload.finish(Instant::now(), DEADLINE);
}

const ROUNDS: usize = 5;

/// Long enough for a client's retransmissions to be answered there.
const OPEN: Duration = Duration::from_millis(300);

/// Between the interface's first moment and its guard lie the turns of two
/// threads. Without a guard 15 segments or so get out each time.
const MAY_STRAY: u64 = 10;

/// An interface that is up and has a route to the client, in one breath. Its
/// other end is on the same machine, where frames are counted and end.
fn new_way() -> Vec<String> {
    let (client, other_end) = (Host::Client.v4(), "02:00:00:00:07:10");
    vec![
        format!("link add x0 type veth peer name x1 address {other_end}"),
        "link set x1 up".to_owned(),
        "link set x0 up".to_owned(),
        format!("neigh add {client} lladdr {other_end} dev x0 nud permanent"),
        format!("route add {client}/32 dev x0"),
    ]
}

/// The client has nothing but its address on the link; the kernel ties the
/// sockets of both servers to it.
#[test]
fn a_link_local_client_is_no_exception() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers =
        Host::SERVERS.map(|host| server::start(lab.node(host), PORT).expect("it starts"));
    for host in Host::SERVERS {
        // Whoever does not say which link is meant has the other one.
        let line = "route add fe80::/64 dev eth1 metric 1".to_owned();
        ip(&lab, host, &[line]);
    }
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let connect = || {
        let link_local = Interface::by_name(Network::Data.interface()).expect("it has eth0");
        let own = link_local
            .addresses
            .iter()
            .find_map(|address| match address {
                IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(*v6),
                IpAddr::V4(_) | IpAddr::V6(_) => None,
            });
        let own = own.expect("every interface has one");
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).expect("a socket");
        let own = SocketAddrV6::new(own, 0, 0, link_local.index);
        socket.bind(&SocketAddr::V6(own).into()).expect("its own");
        socket
            .connect(&service_v6().into())
            .expect("it is on the link");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        stream
    };
    let mut stream = lab.client().enter(connect).expect("the machine is there");
    stream.write_all(b"echo\n").expect("it can be sent");
    let mut exchange = |question: &[u8; 4]| {
        let mut answer = [0; 4];
        stream.write_all(question).expect("it can be sent");
        stream.read_exact(&mut answer).expect("it is answered");
        assert_eq!(&answer, question);
        stream.local_addr().expect("it is connected")
    };
    let local = exchange(b"here");
    wait_protected(&cluster, Host::A, local);
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    let since = Instant::now();
    exchange(b"gone");
    assert!(since.elapsed() < STALL_LIMIT, "{:?}", since.elapsed());
    let trace = assert_unnoticed(capture);
    let own = Endpoint::from(local);
    // Probes have found their way before the client had asked again.
    let asked = trace.segments().filter(|s| s.from == own && s.length > 0);
    let asked = asked.last().expect("it has asked").at_ns;
    let survivor = Host::B.mac(Network::Data);
    let mut probes = trace
        .segments()
        .filter(|s| s.to == own && s.from_mac == survivor && s.at_ns < asked);
    assert!(probes.next().is_some(), "the survivor has not spoken first");
}
