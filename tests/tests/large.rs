//! Snapshots as large as they may be go to the other machine with their connection.

use godwit_lab::apps::roam::{self, Manner, came_at};
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::eager;
use godwit_tests::roaming::Roamer;
use godwit_tests::stage::{PORT, assert_no_reset, service_v4, service_v6, stage, until, witness};

/// With what the server needs itself: 16 MiB.
const BALLAST: usize = (16 << 20) - 16;

/// More than a twin takes of what is said behind its snapshot.
const ROOM: u64 = 3 << 20;

fn manner() -> Manner {
    Manner {
        state: BALLAST,
        ..Manner::default()
    }
}

fn start(lab: &Lab) -> (Cluster<'_>, [Process; 2]) {
    let service = Service {
        standby: "snapshot",
        ..Service::new("web", PORT)
    };
    let options = ClusterOptions {
        services: vec![service],
        ..ClusterOptions::unfenced()
    };
    let manner = manner();
    let cluster = Cluster::start(lab, options).expect("the agents start");
    let servers = Host::SERVERS.map(|host| {
        let agent = cluster.app_socket(host).expect("the machine is there");
        roam::start_with(lab.node(host), PORT, &agent, manner).expect("the server starts")
    });
    (cluster, servers)
}

#[test]
fn sixteen_mebibytes_go_to_and_fro() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    for service in [service_v4(), service_v6()] {
        let roamer = Roamer::start(&lab, service);
        for (from, to) in [(Host::A, Host::B), (Host::B, Host::A)] {
            let moved = until("it moves", || {
                let moved = cluster.hand_over_flow(&roamer.flow, from, to);
                moved.inspect_err(|error| eprintln!("{error:#}")).ok()
            });
            eprintln!("silent for {} ms", moved.moved[0].silent_ms);
            roamer.goes_on();
        }
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// The standby has one of that size before it is needed, and what the client has said
/// since, of each connection, though their servers export all the time.
#[test]
fn sixteen_mebibytes_are_there_when_the_machine_dies() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, servers) = eager::start(&lab, manner());
    let capture = witness(&lab);
    let roamers = [service_v4(), service_v6()].map(|at| Roamer::start(&lab, at));
    for roamer in &roamers {
        until("it is protected", || {
            let flows = cluster.flows(Host::A).ok()?.flows;
            let found = flows.into_iter().find(|flow| flow.flow == roamer.flow)?;
            found.protected.then_some(())
        });
        // Its server reads it as it comes, and so does its twin, or it is unprotected.
        until("one is there", || (roamer.heard() > ROOM).then_some(()));
        roamer.goes_on();
    }
    // A twin that has fallen behind meanwhile is not there, and catches up again.
    let last = until("both are protected", || {
        let flows = cluster.flows(Host::A).ok()?.flows;
        let is_protected = |roamer: &Roamer| {
            let found = flows.iter().find(|flow| flow.flow == roamer.flow);
            found.is_some_and(|flow| flow.protected)
        };
        roamers.iter().all(is_protected).then_some(flows)
    });
    lab.crash(Host::A).expect("a crashes");
    for roamer in roamers {
        if !roamer.goes_on_or_breaks() {
            let log = |host| cluster.agent(host).map(|agent| agent.log());
            let [a, b] = Host::SERVERS.map(log).map(Option::unwrap_or_default);
            let server = servers[1].log();
            panic!("it broke: {last:?}\na: {a}\nb: {b}\nb's server: {server}");
        }
        let came = came_at(&servers[1].log(), roamer.client);
        assert!(came > Some(0), "it began at the beginning: {came:?}");
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}
