//! Where the peer is on the link: not known, known too late, known before.

use std::process::Command;
use std::time::Instant;

use godwit_lab::cluster::{Cluster, ClusterOptions, Status};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    assert_unnoticed, in_sync, servers, service_v4, service_v6, stage, until, wait_protected,
    wait_unprotected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

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
