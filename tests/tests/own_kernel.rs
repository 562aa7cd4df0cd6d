//! A server with a kernel of its own (Linux 6.12, in an emulator): another version
//! than the host's, a clock that can stop, a death of which nothing is left, and a
//! kernel that is too old; one that systemd runs. Clients and witnesses with User-mode
//! Linux.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use godwit_lab::apps::content::Content;
use godwit_lab::apps::curl::{self, Patience, Transfer};
use godwit_lab::apps::nginx::Nginx;
use godwit_lab::capture::{SegmentSeen, Trace};
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing, Service, Status};
use godwit_lab::host::Host;
use godwit_lab::links::Shape;
use godwit_lab::{Lab, LabOptions, Machine, Process};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    PORT, assert_no_live_reset, assert_unnoticed, assert_voices, has_event, in_sync, servers,
    service_v4, service_v6, stage, until, until_within, wait_in_sync, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_wire::TcpFlags;

/// An emulator and User-mode Linux stand still for tens of milliseconds, 32 of which
/// are a death by default: with this, 300 are.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// Detection, the rest of a lease, a retransmission timeout, all on a slow machine.
const STALL: Duration = Duration::from_secs(5);

/// A voter's silence after its start, 10 s, on a slow machine.
const VOTERS: Duration = Duration::from_secs(30);

/// Of the servers, and what lasts for some seconds there.
const LINK: Shape = Shape {
    rate_bits: 200_000_000,
    queue: Duration::from_millis(4),
};
const LENGTH: u64 = 100_000_000;

const MIXED: [Load; 3] = [Load::Download, Load::Echo, Load::Upload];

/// A lab, or `None` with the reason printed.
fn lab(options: LabOptions) -> Option<Lab> {
    if let Some(reason) = Machine::unavailable() {
        println!("skipped: {reason}");
        return None;
    }
    stage(options)
}

/// An emulated server at `machine` and one in a namespace; a owns.
fn start<'a>(
    lab: &'a Lab,
    options: ClusterOptions,
    machine: Host,
) -> (Machine, Cluster<'a>, Process) {
    let other = if machine == Host::A { Host::B } else { Host::A };
    let mut cluster = Cluster::prepare(lab, options).expect("there is a configuration");
    let server = godwit_lab::apps::server::start(lab.node(other), PORT);
    let server = server.expect("the server starts");
    let machine = Machine::boot(lab, machine, &cluster).expect("the machine boots");
    let witness = lab.options().witness.then_some(Host::Witness);
    for host in witness.into_iter().chain([other]) {
        cluster.start_agent(host).expect("the agent starts");
    }
    let in_sync = |status: Status| status.services[0].is_owner_in_sync().then_some(());
    until("a owns and b is in sync", || {
        let status = if other == Host::A {
            cluster.status(other)
        } else {
            machine.status()
        };
        in_sync(status.ok()?)
    });
    (machine, cluster, server)
}

/// Traffic of both families, all of it protected.
///
/// Under leases nothing is before voters that have just started may vote; a download
/// that began earlier would be over by then.
fn traffic(lab: &Lab, loads: &[Load], status: impl Fn() -> Status) -> Vec<Traffic> {
    until_within(VOTERS, "enough voters know the owner's lease", || {
        let is_missing = |warning: &String| warning.contains("too few voters");
        (!status().warnings.iter().any(is_missing)).then_some(())
    });
    let services = [service_v4(), service_v6()];
    let mut traffic = Vec::new();
    for (&load, service) in loads.iter().zip(services.into_iter().cycle()) {
        traffic.push(Traffic::start(lab, service, load));
        // One by one: a slow standby's twins need their time.
        let count = traffic.len() as u64;
        until("all flows are protected", || {
            (status().services[0].protected == count).then_some(())
        });
    }
    traffic
}

fn finish(traffic: Vec<Traffic>, since: Instant) {
    for one in traffic {
        one.goes_on();
        one.finish(since, STALL);
    }
}

fn options(fencing: Fencing) -> ClusterOptions {
    ClusterOptions {
        heartbeat: HEARTBEAT,
        fencing,
        ..ClusterOptions::default()
    }
}

/// All that the owner was is gone at one instant, and the survivor goes on.
#[test]
fn the_power_of_an_owner_with_its_own_kernel_fails() {
    let Some(lab) = lab(LabOptions::default()) else {
        return;
    };
    let (mut machine, cluster, _server) = start(&lab, options(Fencing::None), Host::A);
    println!("Linux {}", machine.release().expect("it answers"));
    let capture = witness(&lab);
    let traffic = traffic(&lab, &MIXED, || machine.status().expect("it answers"));
    let since = machine.die().expect("it dies");
    finish(traffic, since);
    assert!(has_event(&cluster, Host::B, "takeover_started"));
    assert_unnoticed(capture);
}

/// The other way: twins on that kernel become the connections.
#[test]
fn a_standby_with_its_own_kernel_takes_over() {
    let Some(lab) = lab(LabOptions::default()) else {
        return;
    };
    let (machine, cluster, _server) = start(&lab, options(Fencing::None), Host::B);
    let capture = witness(&lab);
    let traffic = traffic(&lab, &[Load::Echo, Load::Echo, Load::Download], || {
        cluster.status(Host::A).expect("a answers")
    });
    let since = lab.crash(Host::A).expect("a dies").from;
    finish(traffic, since);
    let status = machine.status().expect("it answers");
    assert_eq!(status.services[0].role, "owner");
    assert_unnoticed(capture);
}

/// The hypervisor stops the owner and its clock. Its lease would not run out by
/// that clock, so its power is switched off before it is taken over.
#[test]
fn an_owner_whose_clock_stops_is_powered_off() {
    let Some(lab) = lab(LabOptions::default()) else {
        return;
    };
    let switch = lab.folder().join("power");
    let stonith = ClusterOptions {
        stonith: format!("sh {}", switch.display()),
        ..options(Fencing::Stonith)
    };
    fs::write(&switch, "exit 1\n").expect("there is room");
    let (mut machine, cluster, _server) = start(&lab, stonith, Host::A);
    let script = format!("kill -9 {}\n", machine.pid());
    fs::write(&switch, script).expect("there is room");
    let capture = witness(&lab);
    let traffic = traffic(&lab, &MIXED, || machine.status().expect("it answers"));
    let since = Instant::now();
    machine.pause().expect("it stands still");
    finish(traffic, since);
    assert!(has_event(&cluster, Host::B, "stonith_succeeded"));
    assert!(machine.resume().is_err(), "it has no power");
    let _ = machine.die();
    assert_unnoticed(capture);
}

/// With leases, a paused owner is replaced; when it goes on, what is left of its
/// lease by its own clock lets it speak, and clients drop what they hear twice. It
/// hears of the new owner, and stands by.
#[test]
fn a_paused_owner_is_replaced_and_comes_back() {
    let Some(lab) = lab(LabOptions {
        witness: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let (machine, cluster, _server) = start(&lab, options(Fencing::Lease), Host::A);
    let capture = witness(&lab);
    let traffic = traffic(&lab, &MIXED, || machine.status().expect("it answers"));
    let since = Instant::now();
    machine.pause().expect("it stands still");
    until("b owns", || {
        let status = cluster.status(Host::B).expect("b answers");
        (status.services[0].role == "owner").then_some(())
    });
    traffic.iter().for_each(Traffic::goes_on);
    machine.resume().expect("it goes on");
    until("a stands by", || {
        let status = machine.status().ok()?;
        (status.services[0].state == "shadow").then_some(())
    });
    finish(traffic, since);
    assert_no_live_reset(&capture.finish().expect("the capture is complete"));
}

/// One sentence, and the machine is as it was.
#[test]
fn a_kernel_that_is_too_old_is_refused() {
    let Some(lab) = lab(LabOptions::default()) else {
        return;
    };
    let cluster = Cluster::prepare(&lab, options(Fencing::None)).expect("a configuration");
    let machine = Machine::boot_old(&lab, Host::A, &cluster).expect("the machine boots");
    let console = machine.console();
    assert!(console.contains("the agent ended: 1"), "{console}");
    let said: Vec<_> = console
        .lines()
        .filter(|line| line.contains("godwit"))
        .collect();
    let [sentence] = said[..] else {
        panic!("one sentence: {said:?}");
    };
    assert!(
        sentence.contains("is older than 6.9; install"),
        "{sentence}"
    );
    let left = machine
        .shell("ls /sys/fs/bpf; ip address show dev lo")
        .expect("it answers");
    assert!(!left.contains("godwit"), "{left}");
    assert!(!left.contains(&service_v4().ip().to_string()), "{left}");
}

/// What systemd needs for a stop and a start there, and a twin to come from.
const SLOW: Duration = Duration::from_secs(90);

/// A file that lasts for a stop and a start.
const PAGE: Content = Content {
    seed: 0x5d,
    length: 30_000_000,
};

/// Of the client, in Mbit/s.
const NARROW: u64 = 8;

/// A restart is to be seen, and no second in which the emulator stands still.
fn patient() -> ClusterOptions {
    let mut web = Service::new("web", PORT);
    web.extra = "lag_limit = \"10s\"".to_owned();
    ClusterOptions {
        misses: 20,
        services: vec![web],
        ..options(Fencing::None)
    }
}

/// Downloads of the page in both families, both protected by `status`.
fn downloads(lab: &Lab, status: impl Fn() -> Option<Status>) -> [Transfer; 2] {
    let transfers = [service_v4(), service_v6()].map(|at| {
        let url = format!("http://{at}/page");
        curl::download(lab.client(), &url, PAGE, Patience(10)).expect("curl starts")
    });
    until("the downloads are protected", || {
        let begun = transfers.iter().all(|t| t.meter.bytes() > 500_000);
        (begun && status()?.services[0].protected == 2).then_some(())
    });
    transfers
}

/// Every byte was right.
fn expect_exact(transfers: [Transfer; 2]) {
    for transfer in transfers {
        let report = transfer.finish(SLOW).expect("curl ends");
        assert!(
            report.status.success() && report.verdict.exact,
            "{report:?}"
        );
    }
}

/// systemd runs nginx, with the drop-in, and the agent, with all that its unit forbids
/// it. A restart and a stop of nginx drain first; killed, it is taken over and started
/// again; a restart of a standby's agent disturbs nobody.
#[test]
fn systemd_restarts_what_it_runs_and_no_client_notices() {
    if let Some(reason) = Machine::system_unavailable() {
        println!("skipped: {reason}");
        return;
    }
    let Some(lab) = lab(LabOptions::default()) else {
        return;
    };
    let root = lab.folder().join("www");
    fs::create_dir(&root).expect("a folder can be made");
    let page = root.join("page");
    PAGE.write_to(&page).expect("it is written");
    let narrow = lab.shape(Host::Client, Some(Shape::mbit(NARROW)));
    narrow.expect("the link is shaped");
    let mut cluster = Cluster::prepare(&lab, patient()).expect("a configuration");
    let _b = Nginx::start(lab.b(), &root, PORT).expect("nginx starts");
    let machine = Machine::boot_system(&lab, Host::A, &cluster, &page).expect("it boots");
    cluster.start_agent(Host::B).expect("the agent starts");
    until("a owns and b is in sync", || {
        let status = machine.status().ok()?;
        status.services[0].is_owner_in_sync().then_some(())
    });
    let run = |line: &str| machine.shell(line).expect("it is done");
    println!("{}", run("systemd-analyze --no-pager security godwit"));
    let confined = run("cat /proc/$(systemctl show --value -p MainPID godwit)/status");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(confined.contains(line), "{line}: {confined}");
    }
    nginx_is_restarted(&lab, &cluster, &machine);
    nginx_is_killed(&lab, &cluster, &machine);
    the_agent_is_restarted_and_nginx_stopped(&lab, &cluster, &machine);
}

/// a owns; afterwards b does, and a stands by.
fn nginx_is_restarted(lab: &Lab, cluster: &Cluster<'_>, machine: &Machine) {
    let capture = witness(lab);
    let transfers = downloads(lab, || machine.status().ok());
    systemctl(machine, "restart nginx");
    wait_protected_by_a(cluster);
    expect_exact(transfers);
    assert_unbroken(&capture.finish().expect("the capture is complete"), 1);
    assert!(!has_event(cluster, Host::B, "takeover_started"));
}

/// b owns, hands over to a, and owns again in the end.
fn nginx_is_killed(lab: &Lab, cluster: &Cluster<'_>, machine: &Machine) {
    let capture = witness(lab);
    let transfers = downloads(lab, || cluster.status(Host::B).ok());
    hand_back(cluster);
    systemctl(machine, "kill --signal=KILL nginx");
    wait_protected_by_a(cluster);
    expect_exact(transfers);
    assert_unbroken(&capture.finish().expect("the capture is complete"), 2);
    assert!(has_event(cluster, Host::B, "takeover_started"));
    let restarts = systemctl(machine, "show --value -p NRestarts nginx");
    assert_eq!(restarts.trim(), "1");
}

/// b owns, hands over to a, and owns again in the end. Only a standby's agent is
/// restarted: the emulator verifies programs for longer than the 10 s for which a peer
/// waits, so an owner's would be taken over.
fn the_agent_is_restarted_and_nginx_stopped(lab: &Lab, cluster: &Cluster<'_>, machine: &Machine) {
    let capture = witness(lab);
    let transfers = downloads(lab, || cluster.status(Host::B).ok());
    systemctl(machine, "restart godwit");
    until_within(SLOW, "the agent is there again", || {
        let web = machine.status().ok()?.services.remove(0);
        web.is_shadow().then_some(())
    });
    wait_protected_by_a(cluster);
    hand_back(cluster);
    systemctl(machine, "--no-block stop nginx");
    expect_exact(transfers);
    assert_unbroken(&capture.finish().expect("the capture is complete"), 2);
    let status = cluster.status(Host::B).expect("b answers");
    assert_eq!(status.services[0].role, "owner");
}

fn systemctl(machine: &Machine, what: &str) -> String {
    let done = machine.shell(&format!("systemctl {what}"));
    done.unwrap_or_else(|error| panic!("{error:#}: {}", machine.console()))
}

fn hand_back(cluster: &Cluster<'_>) {
    let moved = cluster.hand_over("web", Host::B, Host::A);
    assert_eq!(moved.expect("it goes back").flows, 2);
}

/// Waits until b owns and a would survive it, with both downloads.
fn wait_protected_by_a(cluster: &Cluster<'_>) {
    until_within(SLOW, "a stands by, and has both downloads", || {
        let web = cluster.status(Host::B).ok()?.services.remove(0);
        (web.is_owner_in_sync() && web.protected == 2).then_some(())
    });
}

/// Two connections, one handshake each, and one voice for each that moved at most so
/// often; both ended in order.
fn assert_unbroken(trace: &Trace, moves: usize) {
    assert_no_live_reset(trace);
    assert_voices(trace, moves);
    let is_opening = |s: &&SegmentSeen| s.flags == TcpFlags::SYN && s.to.port == PORT;
    let opened = trace.segments().filter(is_opening);
    let clients: BTreeSet<_> = opened.map(|segment| segment.from).collect();
    assert_eq!(clients.len(), 2, "one connection for each download");
}

/// User-mode Linux and its place, or `None` with the reason printed.
fn user_mode_lab(options: LabOptions) -> Option<Lab> {
    if let Some(reason) = Machine::user_mode_unavailable() {
        println!("skipped: {reason}");
        return None;
    }
    stage(options)
}

/// The vote that makes a majority comes from another kernel, by another clock.
#[test]
fn a_witness_with_its_own_kernel_votes() {
    let site = LabOptions {
        witness: true,
        ..LabOptions::default()
    };
    let Some(lab) = user_mode_lab(site) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster =
        Cluster::prepare(&lab, options(Fencing::Lease)).expect("there is a configuration");
    let machine = Machine::boot_user_mode(&lab, Host::Witness, &cluster);
    let mut machine = machine.expect("the witness boots");
    println!("Linux {}", machine.release().expect("it answers"));
    for host in Host::SERVERS {
        cluster.start_agent(host).expect("the agent starts");
    }
    wait_in_sync(&mut cluster, Host::A);
    let capture = witness(&lab);
    let traffic = traffic(&lab, &MIXED, || cluster.status(Host::A).expect("a answers"));
    let since = lab.crash(Host::A).expect("a dies").from;
    finish(traffic, since);
    assert!(has_event(&cluster, Host::B, "takeover_started"));
    assert_unnoticed(capture);
    machine.die().expect("it dies");
    until("one voter of three has no lease", || {
        has_event(&cluster, Host::B, "lease_lapsed").then_some(())
    });
}

/// A client whose kernel knows nothing of Godwit's: its download and its upload go on
/// after the death of a server, to the last byte.
#[test]
fn a_client_with_its_own_kernel_notices_nothing() {
    let options = LabOptions {
        attacker: true,
        ..LabOptions::default()
    };
    let Some(lab) = user_mode_lab(options) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let machine = Machine::boot_user_mode(&lab, Host::Client, &cluster);
    let machine = machine.expect("the client boots");
    for host in Host::SERVERS {
        lab.shape(host, Some(LINK)).expect("there is a TBF");
    }
    let work = [("get", service_v4()), ("put", service_v6())];
    for (verb, service) in work {
        let line = format!(
            "(godwit-lab app {verb} '{service}' {LENGTH} > /tmp/{verb}.log 2>&1; \
             echo $? > /tmp/{verb}.status) > /dev/null 2>&1 < /dev/null &"
        );
        machine.shell(&line).expect("it answers");
    }
    until("both are protected", || {
        let status = cluster.status(Host::A).expect("a answers");
        (status.services[0].protected == 2).then_some(())
    });
    lab.crash(Host::A).expect("a dies");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for (verb, _) in work {
        let log = || machine.shell(&format!("cat /tmp/{verb}.log"));
        let status = until(verb, || {
            machine.shell(&format!("cat /tmp/{verb}.status")).ok()
        });
        assert_eq!(status.trim(), "0", "{verb}: {:?}", log());
    }
    // The shell's connections are the others that it has.
    let count = tcp_counter(&machine, "ActiveOpens");
    assert_eq!((count, tcp_counter(&machine, "EstabResets")), (2, 0));
}

/// What the kernel of `machine` has counted, by its name in /proc/net/snmp (RFC 4022).
fn tcp_counter(machine: &Machine, name: &str) -> u64 {
    let text = machine.shell("cat /proc/net/snmp").expect("it answers");
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp: "));
    let mut words = || lines.next().expect("two lines").split_whitespace();
    let (names, values) = (words(), words());
    let found = names.zip(values).find(|(known, _)| *known == name);
    let (_, value) = found.expect("there is such a counter");
    value.parse().expect("it is a number")
}
