//! A standby in sync that nobody could elect: `flows` does not call that protected.

use std::fs;
use std::time::Duration;

use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    assert_unnoticed, has_event, in_sync, servers, service_v4, stage, wait_event, wait_flow,
    wait_in_sync, wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// How long a voter that crashed keeps quiet.
const QUARANTINE: Duration = Duration::from_secs(10);

fn options() -> ClusterOptions {
    ClusterOptions {
        heartbeat: Duration::from_millis(30),
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    }
}

fn lab() -> Option<Lab> {
    stage(LabOptions {
        witness: true,
        ..LabOptions::default()
    })
}

/// What the last agent of a node has voted for is lost, as where it keeps that on a disk.
fn forget_votes(cluster: &Cluster<'_>, host: Host) {
    let socket = cluster.socket(host).expect("it ran");
    let run_dir = socket.ancestors().nth(2).expect("it has a folder");
    let files = fs::read_dir(run_dir).expect("it can be read");
    let votes = files.flatten().map(|file| file.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("voted-")
    });
    for path in votes {
        fs::write(path, "").expect("it can be written");
    }
}

/// The standby's agent crashes, and what it has voted for is lost. It is started again: it
/// shadows at once, and votes ten seconds later. Only then can it take over.
#[test]
fn a_restarted_standby_protects_when_it_can_vote() {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, options());
    assert!(!has_event(&cluster, Host::A, "no_quorum"));
    cluster
        .agent(Host::B)
        .expect("it runs")
        .kill()
        .expect("it is killed");
    forget_votes(&cluster, Host::B);
    cluster.start_agent(Host::B).expect("it starts again");
    wait_in_sync(&mut cluster, Host::A);
    let capture = witness(&lab);
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_flow(&cluster, Host::A, echo.local(), |flow| {
        flow.state == "protected" && flow.reason.as_deref() == Some("no_quorum")
    });
    wait_event(&cluster, Host::A, "no_quorum");
    let status = cluster.status(Host::A).expect("a answers");
    assert_eq!(status.services[0].protected, 0);
    let told = status.warnings.iter().any(|w| w.contains("too few voters"));
    assert!(told, "{:?}", status.warnings);
    wait_protected(&cluster, Host::A, echo.local());
    wait_event(&cluster, Host::A, "quorum_back");
    let since = std::time::Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    echo.goes_on();
    echo.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}

/// Witness and standby are upgraded, one after the other: as they end in order,
/// each votes again as soon as it is back. Then the owner crashes.
#[test]
fn who_is_restarted_in_order_votes_at_once() {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_protected(&cluster, Host::A, echo.local());
    for host in [Host::Witness, Host::B] {
        cluster.stop_agent(host).expect("it ends");
        cluster.start_agent(host).expect("it starts again");
        wait_in_sync(&mut cluster, Host::A);
    }
    let since = std::time::Instant::now();
    wait_protected(&cluster, Host::A, echo.local());
    let took = since.elapsed();
    assert!(took < QUARANTINE / 2, "as long as after a crash: {took:?}");
    let since = std::time::Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    echo.goes_on();
    echo.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}
