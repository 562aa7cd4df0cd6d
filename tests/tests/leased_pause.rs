//! Nodes that stand still for a while, with leases in force: a planned restart
//! of an agent that takes long, a crash of one, a server machine that freezes.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::capture::{Capture, Trace};
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    assert_unnoticed, counted, generation, in_sync, servers, service_v4, service_v6, stage,
    throughout, until, wait_in_sync, wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic, mixed};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use godwit_wire::Endpoint;

fn lab() -> Option<Lab> {
    stage(LabOptions {
        witness: true,
        ..LabOptions::default()
    })
}

fn options() -> ClusterOptions {
    ClusterOptions {
        heartbeat: Duration::from_millis(30),
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    }
}

fn protected(lab: &Lab, cluster: &Cluster<'_>) -> Vec<Traffic> {
    let traffic = mixed(lab);
    for one in &traffic {
        wait_protected(cluster, Host::A, one.local());
    }
    traffic
}

/// How long the new agent takes to start; many leases.
const SLOW_START: Duration = Duration::from_secs(2);

/// The owner's agent asks for a long lease before it ends: its data path goes on
/// to speak, and to gate, while no agent runs.
#[test]
fn a_planned_restart_of_the_owners_agent_costs_nothing() {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let traffic = protected(&lab, &cluster);
    let (stay, fenced) = (
        generation(&cluster, Host::A),
        counted(&cluster, Host::A, "fenced"),
    );
    let since = Instant::now();
    cluster.stop_agent(Host::A).expect("it ends");
    throughout("b waits", SLOW_START, || {
        let status = cluster.status(Host::B).expect("b answers");
        status.services[0].role == "shadow"
    });
    for one in &traffic {
        one.goes_on();
    }
    cluster.start_agent(Host::A).expect("it starts again");
    wait_in_sync(&mut cluster, Host::A);
    assert_eq!(generation(&cluster, Host::A), stay, "the same stay");
    assert_eq!(counted(&cluster, Host::A, "fenced"), fenced);
    for one in &traffic {
        wait_protected(&cluster, Host::A, one.local());
    }
    // And protected they are.
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in traffic {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

/// Nobody asked for a long lease: the data path falls silent by itself.
#[test]
fn a_crash_of_the_owners_agent_is_a_takeover() {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let traffic = protected(&lab, &cluster);
    let since = Instant::now();
    cluster
        .agent(Host::A)
        .expect("it runs")
        .kill()
        .expect("it is killed");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in traffic {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    cluster.start_agent(Host::A).expect("it starts again");
    wait_in_sync(&mut cluster, Host::B);
    assert_unnoticed(capture);
}

/// How long a machine stands still, as the invariant has it.
const FROZEN: Duration = Duration::from_secs(10);

/// Long enough for its kernel to try, before its agent can.
const KERNEL_TRIES: Duration = Duration::from_millis(500);

/// A retransmission timer that was due has run out by then.
const TIMERS_RUN_OUT: Duration = Duration::from_secs(2);

/// What a said to clients on connections of `old`, from `since` on.
fn said_by_a(trace: &Trace, old: &[SocketAddr], since: u64) -> usize {
    let mac = |host: Host| host.mac(Network::Data);
    let services = [service_v4(), service_v6()].map(Endpoint::from);
    let old: Vec<Endpoint> = old.iter().copied().map(Endpoint::from).collect();
    trace
        .segments()
        .filter(|segment| segment.at_ns >= since)
        .filter(|segment| segment.from_mac == mac(Host::A) && segment.to_mac != mac(Host::B))
        .filter(|segment| services.contains(&segment.from) && old.contains(&segment.to))
        .count()
}

fn wall_clock_ns() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).expect("later");
    u64::try_from(since.as_nanos()).expect("before 2554")
}

/// Ten seconds under load, then agent and server of the old owner go on where
/// they were: with full send queues and retransmission timers that are due.
#[test]
fn a_frozen_owner_that_goes_on_says_nothing_on_its_old_connections() {
    let Some(lab) = lab() else { return };
    let [mut a, _b] = servers(&lab);
    let mut cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let traffic = protected(&lab, &cluster);
    let old: Vec<SocketAddr> = traffic.iter().map(Traffic::local).collect();
    let since = Instant::now();
    a.stop().expect("the server stops");
    cluster.agent(Host::A).expect("it runs").stop().expect("so");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    let wire_exit = Capture::start(lab.a(), Network::Data).expect("the capture starts");
    thread::sleep(FROZEN);
    let resumed = wall_clock_ns();
    a.cont().expect("the server goes on");
    thread::sleep(KERNEL_TRIES);
    cluster.agent(Host::A).expect("it runs").cont().expect("so");
    wait_in_sync(&mut cluster, Host::B);
    assert!(counted(&cluster, Host::A, "fenced") > 0, "it has tried");
    for one in traffic {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
    until("b's connections are over", || {
        let flows = cluster.flows(Host::B).ok()?.flows;
        flows.iter().all(|flow| flow.state == "ended").then_some(())
    });
    lab.crash(Host::B).expect("b crashes");
    cluster.wait_owner(Host::A, DEADLINE).expect("a owns again");
    let fresh = Traffic::start(&lab, service_v4(), Load::Echo);
    thread::sleep(TIMERS_RUN_OUT);
    fresh.finish(Instant::now(), STALL_LIMIT);
    let trace = wire_exit.finish().expect("the capture is complete");
    assert_eq!(said_by_a(&trace, &old, resumed), 0, "from old sockets");
    assert_eq!(said_by_a(&trace, &old, 0), 0, "while it was frozen");
}
