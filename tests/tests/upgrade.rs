//! From one version to the next, under running connections.

use std::env;
use std::path::PathBuf;
use std::time::Instant;

use godwit_lab::LabOptions;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing, Service};
use godwit_lab::host::Host;
use godwit_tests::shape::change_shape;
use godwit_tests::stage::{
    PORT, assert_one_voice, assert_unnoticed, assert_voices, in_sync, servers, service_v4,
    service_v6, stage, until, wait_in_sync, wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// Names the `godwit` of an earlier version.
const PREVIOUS: &str = "GODWIT_PREVIOUS";

/// What is said meanwhile can be said once more to a new twin.
fn with_long_logs(fencing: Fencing) -> ClusterOptions {
    let mut service = Service::new("web", PORT);
    "reprotect_cap = \"512KiB\"\n".clone_into(&mut service.extra);
    ClusterOptions {
        fencing,
        services: vec![service],
        ..ClusterOptions::default()
    }
}

/// The agent of `host` ends, and leaves its flows in another shape than the next
/// one has them.
fn leave_as_another_version(cluster: &mut Cluster<'_>, host: Host) {
    let agent = cluster.agent(host).expect("it was started");
    agent.kill().expect("the agent can be killed");
    let pins = cluster.pins(host).expect("the machine is there");
    for map in ["gw_flows", "gw_counters"] {
        change_shape(&pins, map).expect("the map can be replaced");
    }
}

/// Its twins end in silence, new ones are made, and it takes over with them.
#[test]
fn a_standby_that_changes_versions_begins_anew() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, with_long_logs(Fencing::None));
    let capture = witness(&lab);
    let since = Instant::now();
    let echoes = [service_v4(), service_v6()].map(|to| Traffic::start(&lab, to, Load::Echo));
    for one in &echoes {
        wait_protected(&cluster, Host::A, one.local());
    }
    leave_as_another_version(&mut cluster, Host::B);
    cluster.start_agent(Host::B).expect("it starts anew");
    wait_in_sync(&mut cluster, Host::A);
    for one in &echoes {
        wait_protected(&cluster, Host::A, one.local());
    }
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in echoes {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

/// Live connections are in what it can't read: it says what to do, and leaves the
/// data path of the earlier version at work.
#[test]
fn an_owner_that_changes_versions_has_to_hand_over_first() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, with_long_logs(Fencing::None));
    // Nobody is to take over while the owner has no agent.
    lab.crash(Host::B).expect("b crashes");
    let capture = witness(&lab);
    let since = Instant::now();
    let echo = Traffic::start(&lab, service_v6(), Load::Echo);
    leave_as_another_version(&mut cluster, Host::A);
    let refused = match cluster.start_agent(Host::A) {
        Ok(()) => {
            let agent = cluster.agent(Host::A).expect("it was started");
            let status = agent.wait(DEADLINE).expect("it ends");
            assert_eq!(status.code(), Some(1), "{}", agent.log());
            agent.log()
        }
        Err(error) => format!("{error:#}"),
    };
    assert!(refused.contains("`godwit drain a`"), "{refused}");
    assert!(cluster.pins(Host::A).expect("a is there").exists());
    echo.goes_on();
    echo.finish(since, STALL_LIMIT);
    assert_one_voice(&capture.finish().expect("the capture ends"));
}

/// An owner that was not handed over: its lease ends, the standby takes over, and
/// then nothing of it is worth keeping.
#[test]
fn an_owner_whose_lease_is_over_begins_anew() {
    let options = LabOptions {
        witness: true,
        ..LabOptions::default()
    };
    let Some(lab) = stage(options) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, with_long_logs(Fencing::Lease));
    let capture = witness(&lab);
    let since = Instant::now();
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_protected(&cluster, Host::A, echo.local());
    leave_as_another_version(&mut cluster, Host::A);
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    echo.goes_on();
    cluster.start_agent(Host::A).expect("it starts anew");
    wait_in_sync(&mut cluster, Host::B);
    let fresh = Traffic::start(&lab, service_v6(), Load::Echo);
    wait_protected(&cluster, Host::B, fresh.local());
    for one in [echo, fresh] {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

/// Standby first, then the owner after it has handed over: the connections stay,
/// and are protected before each step.
#[test]
fn two_servers_are_upgraded_one_after_the_other() {
    let Some(previous) = env::var_os(PREVIOUS).map(PathBuf::from) else {
        eprintln!("skipped: {PREVIOUS} names no earlier version (make upgrade FROM=REVISION)");
        return;
    };
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let next = godwit_lab::cluster::binary().expect("it was built");
    let _servers = servers(&lab);
    let cluster = Cluster::prepare(&lab, with_long_logs(Fencing::None));
    let mut cluster = cluster.expect("there are certificates");
    cluster.use_binary(&previous);
    for host in Host::SERVERS {
        cluster.start_agent(host).expect("the earlier one starts");
    }
    wait_in_sync(&mut cluster, Host::A);
    let capture = witness(&lab);
    let since = Instant::now();
    let echoes = [service_v4(), service_v6()].map(|to| Traffic::start(&lab, to, Load::Echo));
    cluster.use_binary(&next);
    for (owner, standby) in [(Host::A, Host::B), (Host::B, Host::A)] {
        for one in &echoes {
            wait_protected(&cluster, owner, one.local());
        }
        cluster.stop_agent(standby).expect("the earlier one ends");
        cluster.start_agent(standby).expect("the next one starts");
        wait_in_sync(&mut cluster, owner);
        for one in &echoes {
            wait_protected(&cluster, owner, one.local());
        }
        if owner == Host::A {
            until("the owner hands over", || cluster.drain(owner).ok());
            wait_in_sync(&mut cluster, standby);
        }
    }
    lab.crash(Host::B).expect("b crashes");
    cluster.wait_owner(Host::A, DEADLINE).expect("a takes over");
    for one in echoes {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    assert_voices(&capture.finish().expect("the capture ends"), 2);
}
