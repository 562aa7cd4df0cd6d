//! An agent that is stopped for good: SIGQUIT, as `systemctl stop` sends it.

use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    PORT, assert_unnoticed, in_sync, servers, service_v4, service_v6, stage, throughout, until,
    wait_protected, wait_unprotected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use nix::sys::signal::Signal;

/// SIGQUIT, to the agent's end.
fn stop(cluster: &mut Cluster<'_>, host: Host) {
    let agent = cluster.agent(host).expect("it was started");
    agent.signal(Signal::SIGQUIT).expect("it runs");
    agent.wait(Duration::from_secs(5)).expect("it ends");
}

fn traffic(lab: &Lab, cluster: &Cluster<'_>) -> [Traffic; 3] {
    let traffic = [
        Traffic::start(lab, service_v4(), Load::Upload),
        Traffic::start(lab, service_v6(), Load::Echo),
        Traffic::start(lab, service_v6(), Load::Download),
    ];
    for one in &traffic {
        wait_protected(cluster, Host::A, one.local());
    }
    traffic
}

/// The standby has all connections; the old owner is silent, also to new ones,
/// and stands by when its agent is there again.
#[test]
fn an_owner_hands_over() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let moved = traffic(&lab, &cluster);
    let since = Instant::now();
    stop(&mut cluster, Host::A);
    let status = cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    let takeover = status.services[0].last_takeover.as_ref().expect("it did");
    assert_eq!(takeover.reason, "owner_shutdown");
    for one in &moved {
        one.goes_on();
    }
    let fresh = Traffic::start(&lab, service_v4(), Load::Echo);
    cluster.start_agent(Host::A).expect("it starts again");
    cluster
        .wait_in_sync(Host::B, DEADLINE)
        .expect("a stands by for b");
    let late = Traffic::start(&lab, service_v6(), Load::Echo);
    wait_protected(&cluster, Host::B, late.local());
    for one in moved.into_iter().chain([fresh, late]) {
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

/// With the standby there but out of reach of the mirror, everything stays: the
/// other node must not claim what this one goes on with.
#[test]
fn an_owner_without_a_standby_keeps_its_connections() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut command = Command::new("ip");
    command.args(["link", "set", Network::Data.interface(), "arp", "off"]);
    lab.b().run(command, DEADLINE).expect("it ends");
    let mut cluster = Cluster::start(&lab, ClusterOptions::unfenced()).expect("the agents start");
    until("a can't find b", || {
        let status = cluster.status(Host::A).ok()?;
        let lost = |text: &String| text.contains("does not answer");
        status.warnings.iter().any(lost).then_some(())
    });
    let capture = witness(&lab);
    let bare = Traffic::start(&lab, service_v4(), Load::Upload);
    wait_unprotected(&cluster, Host::A, bare.local(), &["no_standby"]);
    let since = Instant::now();
    stop(&mut cluster, Host::A);
    bare.goes_on();
    throughout("b does not claim", Duration::from_millis(500), || {
        let status = cluster.status(Host::B).expect("b answers");
        status.services[0].state == "standby"
    });
    let fresh = Traffic::start(&lab, service_v4(), Load::Echo);
    bare.finish(since, STALL_LIMIT);
    fresh.finish(since, STALL_LIMIT);
    let trace = assert_unnoticed(capture);
    let b = Host::B.mac(Network::Data);
    let voices = trace
        .segments()
        .filter(|s| s.from_mac == b && s.from.port == PORT);
    assert_eq!(voices.count(), 0, "segments of the standby at the client");
}

/// A standby that is stopped is missed by nobody but protection.
#[test]
fn a_standby_leaves() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let bare = traffic(&lab, &cluster);
    let since = Instant::now();
    stop(&mut cluster, Host::B);
    for one in bare {
        wait_unprotected(&cluster, Host::A, one.local(), &["standby_lost"]);
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}
