//! With leases and a witness: one voice, whatever is cut from whatever.

use std::time::{Duration, Instant};

use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    assert_unnoticed, counted, in_sync, servers, service_v4, service_v6, stage, throughout, until,
    wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

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

fn protected_pair(lab: &Lab, cluster: &Cluster<'_>) -> [Traffic; 2] {
    let pair = [
        Traffic::start(lab, service_v4(), Load::Download),
        Traffic::start(lab, service_v6(), Load::Echo),
    ];
    for one in &pair {
        wait_protected(cluster, Host::A, one.local());
    }
    pair
}

/// The survivor and the witness are a majority.
#[test]
fn a_dead_owner_is_taken_over_from_when_its_lease_has_ended() {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let pair = protected_pair(&lab, &cluster);
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in pair {
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

/// An owner that only the clients reach has no majority: it falls silent by the
/// clock, before the other one speaks.
#[test]
fn an_owner_without_voters_falls_silent_and_the_other_goes_on() {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let pair = protected_pair(&lab, &cluster);
    let since = Instant::now();
    lab.cut(Host::A, &[Network::Control]).expect("it is cut");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in pair {
        one.finish(since, STALL_LIMIT);
    }
    assert!(
        counted(&cluster, Host::A, "fenced") > 0,
        "a had something to say, and was silenced"
    );
    assert_unnoticed(capture);
    lab.heal(Host::A, &[Network::Control]).expect("it heals");
    until("a stands by", || {
        let status = cluster.status(Host::A).ok()?;
        status
            .services
            .iter()
            .all(|s| s.role == "shadow")
            .then_some(())
    });
}

/// Without the witness two voters of three are left: nobody notices.
#[test]
fn a_witness_may_die() {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let pair = protected_pair(&lab, &cluster);
    let since = Instant::now();
    cluster
        .agent(Host::Witness)
        .expect("it runs")
        .kill()
        .expect("it is killed");
    throughout("a owns", Duration::from_secs(1), || {
        let status = cluster.status(Host::A).expect("a answers");
        status
            .services
            .iter()
            .all(|s| s.role == "owner" && s.in_sync == ["b"])
    });
    for one in pair {
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}
