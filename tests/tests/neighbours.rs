//! Where the peer is on the link: not known, known too late, known before.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::capture::Capture;
use godwit_lab::cluster::{Cluster, ClusterOptions, Status};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    PORT, assert_unnoticed, in_sync, servers, service_v4, service_v6, stage, throughout, until,
    wait_protected, wait_unprotected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use godwit_wire::{ArpOperation, ArpPacket};

/// Has b answer for its address on the data network, or not.
fn set_arp(lab: &Lab, state: &str) {
    let run = |host: Host, words: &str| {
        let mut command = Command::new("ip");
        command.args(words.split(' '));
        let output = lab.node(host).run(command, DEADLINE).expect("it ends");
        assert!(output.status.success(), "ip {words}: {output:?}");
    };
    run(Host::B, &format!("link set eth0 arp {state}"));
    run(Host::A, "neigh flush dev eth0");
}

fn events(cluster: &Cluster<'_>, host: Host, name: &str) -> usize {
    let events = cluster.events(host).expect("the agent answers");
    events.iter().filter(|event| *event == name).count()
}

fn owns(status: &Status) -> bool {
    status
        .services
        .iter()
        .all(|service| service.role == "owner")
}

/// The owner serves, says what is wrong, and protects as soon as it can.
#[test]
fn a_peer_that_is_not_found_on_the_link_costs_protection_only() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    set_arp(&lab, "off");
    let mut cluster = Cluster::start(&lab, ClusterOptions::unfenced()).expect("the agents start");
    until("a says that b is not found", || {
        let status = cluster.status(Host::A).ok()?;
        let said = |text: &String| text.contains("peer b does not answer for 10.9.0.12");
        (owns(&status) && status.warnings.iter().any(said)).then_some(())
    });
    assert!(events(&cluster, Host::A, "peer_unresolved") > 0);
    let status = cluster.status(Host::A).expect("a answers");
    assert!(status.services[0].in_sync.is_empty(), "{status:?}");
    let capture = witness(&lab);
    let since = Instant::now();
    let bare = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_unprotected(&cluster, Host::A, bare.local(), &["no_standby"]);
    set_arp(&lab, "on");
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b is in sync once it is found");
    assert_eq!(events(&cluster, Host::A, "peer_resolved"), 1);
    let fresh = Traffic::start(&lab, service_v6(), Load::Echo);
    wait_protected(&cluster, Host::A, fresh.local());
    // Nobody took the other for dead while it was looked for.
    for host in Host::SERVERS {
        assert_eq!(events(&cluster, host, "peer_down"), 0, "{host}");
    }
    bare.finish(since, STALL_LIMIT);
    fresh.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}

/// What was known once is not forgotten, not even by an agent's restart.
#[test]
fn a_peer_that_falls_silent_on_the_link_is_where_it_was() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let since = Instant::now();
    let old = Traffic::start(&lab, service_v4(), Load::Upload);
    wait_protected(&cluster, Host::A, old.local());
    set_arp(&lab, "off");
    cluster.stop_agent(Host::A).expect("the agent ends");
    cluster.start_agent(Host::A).expect("it starts again");
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("in sync as before");
    wait_protected(&cluster, Host::A, old.local());
    let fresh = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_protected(&cluster, Host::A, fresh.local());
    assert_eq!(events(&cluster, Host::A, "peer_unresolved"), 0);
    old.finish(since, STALL_LIMIT);
    fresh.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}

/// More than the agent takes to look at what its kernel believes.
const ROUNDS: Duration = Duration::from_millis(2500);

/// Ends that, however the test goes on.
struct Liar<'a>(&'a AtomicBool);

impl Drop for Liar<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Says again and again that b's address is at the attacker.
fn lie(lab: &Lab, done: &AtomicBool) {
    let mac = Host::Attacker.mac(Network::Data);
    let lie = ArpPacket::gratuitous(ArpOperation::Reply, Host::B.v4(), mac);
    while !done.load(Ordering::Relaxed) {
        let sent = lab
            .node(Host::Attacker)
            .send_frames(&[lie.broadcast_frame()]);
        sent.expect("the machine is there");
        thread::sleep(Duration::from_millis(50));
    }
}

/// What a's kernel believes.
fn is_taken_in(lab: &Lab) -> bool {
    let mut command = Command::new("ip");
    command.args(["neigh", "show", &Host::B.v4().to_string()]);
    let output = lab.node(Host::A).run(command, DEADLINE).expect("it ends");
    let liar = Host::Attacker.mac(Network::Data).to_string();
    output.stdout.contains(&liar)
}

/// A peer says over its link where it is. Who lies about that on the data network got what
/// clients say, and their connections lost their twins.
#[test]
fn who_claims_a_peers_address_gets_nothing_of_what_clients_say() {
    let options = LabOptions {
        attacker: true,
        ..LabOptions::default()
    };
    let Some(lab) = stage(options) else { return };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let since = Instant::now();
    let old = Traffic::start(&lab, service_v4(), Load::Upload);
    wait_protected(&cluster, Host::A, old.local());
    let liar = Host::Attacker.mac(Network::Data).to_string();
    let overheard = Capture::start(lab.node(Host::Attacker), Network::Data);
    let overheard = overheard.expect("it starts");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| lie(&lab, &done));
        let _liar = Liar(&done);
        until("a's kernel believes it", || is_taken_in(&lab).then_some(()));
        until("it is said", || {
            let status = cluster.status(Host::A).ok()?;
            let says = |it: &String| it.contains("address_conflict") && it.contains(&liar);
            status.warnings.iter().any(says).then_some(())
        });
        throughout("a is in sync with b", ROUNDS, || {
            let status = cluster.status(Host::A).expect("it answers");
            status.services[0].in_sync == ["b"]
        });
        let fresh = Traffic::start(&lab, service_v6(), Load::Echo);
        wait_protected(&cluster, Host::A, fresh.local());
        fresh.finish(since, STALL_LIMIT);
    });
    wait_protected(&cluster, Host::A, old.local());
    old.finish(since, STALL_LIMIT);
    let trace = overheard.finish().expect("it is complete");
    let told = trace.segments().filter(|it| it.to.port == PORT).count();
    assert_eq!(told, 0, "segments of clients at the liar's");
}
