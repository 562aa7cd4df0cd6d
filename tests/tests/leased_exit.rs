//! Server processes that die, with leases in force and a witness: a lease that
//! was given back need not run out, and one that nobody wants goes on.

use std::io::Read as _;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, SAME_CAUSE};
use godwit_tests::stage::{
    PORT, assert_one_voice, assert_unnoticed, has_event, in_sync, servers, service_v4, service_v6,
    stage, until, wait_event, wait_in_sync, wait_protected, witness,
};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::traffic::{Load, Traffic, mixed};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// A client that is told of an end must be told within this time, also if what
/// ended it was lost behind a fence, and only a retransmission (200 ms, doubled
/// four times: RFC 6298) meets an open one.
const TOLD: Duration = Duration::from_secs(8);

fn lab() -> Option<Lab> {
    stage(LabOptions {
        witness: true,
        ..LabOptions::default()
    })
}

/// Leases of `12 * beat`.
fn options(beat: Duration) -> ClusterOptions {
    ClusterOptions {
        heartbeat: beat,
        misses: 6,
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    }
}

const BEAT: Duration = Duration::from_millis(20);

fn other(host: Host) -> Host {
    if host == Host::A { Host::B } else { Host::A }
}

fn protected(lab: &Lab, cluster: &Cluster<'_>, owner: Host) -> Vec<Traffic> {
    let traffic = mixed(lab);
    for one in &traffic {
        wait_protected(cluster, owner, one.local());
    }
    traffic
}

fn takeovers(cluster: &Cluster<'_>, host: Host) -> u64 {
    let status = cluster.status(host).expect("it answers");
    status.services[0].takeovers
}

/// A lease lasts for three seconds here, and its owner's heartbeats go on: only
/// one that is given back ends in time. Then the same the other way round.
#[test]
fn the_lease_of_a_killed_server_is_taken_over_at_once() {
    let Some(lab) = lab() else { return };
    let [mut a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, options(Duration::from_millis(250)));
    for (owner, standby) in [(Host::A, Host::B), (Host::B, Host::A)] {
        let capture = witness(&lab);
        let traffic = protected(&lab, &cluster, owner);
        let victim = if owner == Host::A { &mut a } else { &mut b };
        let since = Instant::now();
        victim.kill().expect("it runs");
        let status = cluster.wait_owner(standby, DEADLINE).expect("it owns");
        for one in traffic {
            one.goes_on();
            one.finish(since, STALL_LIMIT);
        }
        let takeover = status.services[0].last_takeover.as_ref();
        let reason = &takeover.expect("it took over").reason;
        assert!(
            ["owner_server_lost", "owner_released"].contains(&reason.as_str()),
            "{reason}"
        );
        assert!(has_event(&cluster, owner, "share_released"));
        assert!(!has_event(&cluster, owner, "no_taker"));
        assert_unnoticed(capture);
        *victim = server::start(lab.node(owner), PORT).expect("the server starts again");
        wait_in_sync(&mut cluster, standby);
        thread::sleep(SAME_CAUSE.saturating_sub(since.elapsed()));
    }
}

/// A client that waits for the next request's answer, and only hears of an end.
fn idle(lab: &Lab, cluster: &Cluster<'_>) -> std::net::TcpStream {
    let mut idle = connect(lab.client(), service_v4()).expect("it listens");
    send(&mut idle, "echo\nhello").expect("it is read");
    expect(&mut idle, "hello").expect("it is answered");
    wait_protected(cluster, Host::A, idle.local_addr().expect("connected"));
    idle
}

/// Nobody owns but a, which never gave its share away; the client's FIN came
/// after a silence of at least `silence`.
fn expect_told(mut idle: std::net::TcpStream, since: Instant, silence: Duration) {
    let read = idle.read(&mut [0; 1]).expect("an orderly end");
    let told = since.elapsed();
    assert_eq!(read, 0, "FIN");
    assert!((silence..TOLD).contains(&told), "{told:?}");
}

/// Time for the first death to be heard of; far below [`SAME_CAUSE`].
const BETWEEN_DEATHS: Duration = Duration::from_millis(300);

/// Both servers die within a second, the standby's first: what did it must not
/// go on, and clients hear of it at once.
#[test]
fn servers_killed_together_are_not_taken_over() {
    let Some(lab) = lab() else { return };
    let [mut a, mut b] = servers(&lab);
    let cluster = in_sync(&lab, options(BEAT));
    let capture = witness(&lab);
    let idle = idle(&lab, &cluster);
    let traffic = protected(&lab, &cluster, Host::A);
    b.kill().expect("it runs");
    thread::sleep(BETWEEN_DEATHS);
    let since = Instant::now();
    a.kill().expect("it runs");
    expect_told(idle, since, Duration::ZERO);
    for one in traffic {
        let _ = one.outcome();
    }
    wait_event(&cluster, Host::A, "no_taker");
    cluster.wait_owner(Host::A, DEADLINE).expect("still");
    assert_eq!(takeovers(&cluster, Host::B), 0);
    assert_one_voice(&capture.finish().expect("the capture is complete"));
}

/// The standby can't even say that it is no taker: its agent hangs. The fence
/// opens by itself after two leases, not before.
#[test]
fn a_share_that_nobody_takes_opens_after_two_leases() {
    let Some(lab) = lab() else { return };
    let [mut a, _b] = servers(&lab);
    let mut cluster = in_sync(&lab, options(BEAT));
    let capture = witness(&lab);
    let idle = idle(&lab, &cluster);
    let traffic = protected(&lab, &cluster, Host::A);
    cluster
        .agent(Host::B)
        .expect("it runs")
        .stop()
        .expect("it stops");
    let since = Instant::now();
    a.kill().expect("it runs");
    // Less a margin for the clock of whoever measures.
    expect_told(idle, since, BEAT * 12 * 2 - BEAT);
    for one in traffic {
        let _ = one.outcome();
    }
    wait_event(&cluster, Host::A, "no_taker");
    cluster
        .agent(Host::B)
        .expect("it runs")
        .cont()
        .expect("it goes on");
    let a = server::start(lab.a(), PORT).expect("the server starts again");
    wait_in_sync(&mut cluster, Host::A);
    assert_eq!(takeovers(&cluster, Host::B), 0);
    assert_one_voice(&capture.finish().expect("the capture is complete"));
    drop(a);
}

/// A supervisor starts the standby's server again: it is a standby as before,
/// and takes over when the owner's machine goes dark.
#[test]
fn a_standby_whose_server_was_restarted_takes_over() {
    let Some(lab) = lab() else { return };
    let [_a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, options(BEAT));
    let traffic = protected(&lab, &cluster, Host::A);
    let since = Instant::now();
    b.kill().expect("it runs");
    until("the owner is alone", || {
        let status = cluster.status(Host::A).ok()?;
        status.services[0].in_sync.is_empty().then_some(())
    });
    for one in traffic {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    let b = server::start(lab.b(), PORT).expect("the server starts again");
    wait_in_sync(&mut cluster, Host::A);
    let capture = witness(&lab);
    let traffic = protected(&lab, &cluster, Host::A);
    let late = Traffic::start(&lab, service_v6(), Load::Echo);
    wait_protected(&cluster, Host::A, late.local());
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster
        .wait_owner(other(Host::A), DEADLINE)
        .expect("b takes over");
    for one in traffic.into_iter().chain([late]) {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
    drop(b);
}
