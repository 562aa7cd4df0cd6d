//! Rows of `docs/partitions.md` with real packets, leases in force; that of an
//! owner which is cut from all is in `fenced.rs`, those of stonith in `stonith.rs`.
//! What clients reach is at the end.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    assert_unnoticed, has_event, in_sync, servers, service_v4, service_v6, stage, throughout,
    until, wait_event, wait_in_sync, wait_protected, wait_unprotected, witness,
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
        Traffic::start(lab, service_v4(), Load::Upload),
        Traffic::start(lab, service_v6(), Load::Echo),
    ];
    for one in &pair {
        wait_protected(cluster, Host::A, one.local());
    }
    pair
}

const CUT_FOR: Duration = Duration::from_secs(1);

fn a_owns(cluster: &Cluster<'_>) -> bool {
    let status = cluster.status(Host::A).expect("a answers");
    status.services[0].role == "owner"
}

/// The way from b to a is cut, with or without that from a to b: a does not know
/// what b has, so b may not take over, and does not. It can when it is back.
fn without_b(both_ways: bool) {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let pair = protected_pair(&lab, &cluster);
    let since = Instant::now();
    lab.cut_way(Network::Control, Host::B, Host::A)
        .expect("it is cut");
    if both_ways {
        lab.cut_way(Network::Control, Host::A, Host::B)
            .expect("it is cut");
    }
    for one in &pair {
        wait_unprotected(&cluster, Host::A, one.local(), &["standby_lost"]);
    }
    throughout("a owns", CUT_FOR, || a_owns(&cluster));
    for one in &pair {
        one.goes_on();
    }
    let status = cluster.status(Host::B).expect("b answers");
    assert_eq!(status.services[0].takeovers, 0);
    assert!(!has_event(&cluster, Host::A, "lease_lapsed"));
    for (from, to) in [(Host::A, Host::B), (Host::B, Host::A)] {
        lab.heal_way(Network::Control, from, to).expect("it heals");
    }
    wait_in_sync(&mut cluster, Host::A);
    for one in pair {
        one.finish(since, STALL_LIMIT);
    }
    let pair = protected_pair(&lab, &cluster);
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in pair {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

#[test]
fn servers_that_do_not_hear_each_other_leave_the_owner_in_place() {
    without_b(true);
}

#[test]
fn an_owner_that_does_not_hear_its_standby_goes_on_without_it() {
    without_b(false);
}

/// The witness is cut off and comes back, again and again: nobody notices.
#[test]
fn a_witness_may_come_and_go() {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let pair = protected_pair(&lab, &cluster);
    let since = Instant::now();
    let control = [Network::Control];
    for _ in 0..4 {
        lab.cut(Host::Witness, &control).expect("it is cut");
        throughout("a owns", CUT_FOR / 4, || a_owns(&cluster));
        lab.heal(Host::Witness, &control).expect("it heals");
        throughout("a owns", CUT_FOR / 4, || a_owns(&cluster));
    }
    assert!(!has_event(&cluster, Host::A, "standby_left"));
    assert!(!has_event(&cluster, Host::A, "lease_lapsed"));
    wait_in_sync(&mut cluster, Host::A);
    until("the witness is heard", || {
        let status = cluster.status(Host::B).ok()?;
        let heard = status.peers.iter().all(|peer| peer.liveness == "alive");
        heard.then_some(())
    });
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in pair {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

/// The second loss within a minute is one too many here: the owner goes on alone
/// for a while, and says why.
#[test]
fn a_standby_that_comes_and_goes_is_held_off() {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let options = ClusterOptions {
        flap_limit: 2,
        ..options()
    };
    let mut cluster = in_sync(&lab, options);
    let capture = witness(&lab);
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    let since = Instant::now();
    let alone = |cluster: &Cluster<'_>| {
        let status = cluster.status(Host::A).expect("a answers");
        status.services[0].in_sync.is_empty()
    };
    let ways = [(Host::A, Host::B), (Host::B, Host::A)];
    for round in 0..2 {
        wait_in_sync(&mut cluster, Host::A);
        assert!(!has_event(&cluster, Host::A, "standby_held_off"), "{round}");
        for (from, to) in ways {
            lab.cut_way(Network::Control, from, to).expect("it is cut");
        }
        until("b has left", || alone(&cluster).then_some(()));
        for (from, to) in ways {
            lab.heal_way(Network::Control, from, to).expect("it heals");
        }
    }
    wait_event(&cluster, Host::A, "standby_held_off");
    throughout("b is held off", 2 * CUT_FOR, || alone(&cluster));
    let status = cluster.status(Host::A).expect("a answers");
    let told = status
        .warnings
        .iter()
        .any(|w| w.contains("is held off for"));
    assert!(told, "{:?}", status.warnings);
    wait_in_sync(&mut cluster, Host::A);
    echo.goes_on();
    echo.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}

/// Nothing gets through between the client and `host`, or all does again. The servers
/// and the witness hear each other all the time.
fn set_reach(lab: &Lab, host: Host, reached: bool) {
    for (from, to) in [(Host::Client, host), (host, Host::Client)] {
        let set = if reached { Lab::heal_way } else { Lab::cut_way };
        set(lab, Network::Data, from, to).expect("the switch obeys");
    }
}

/// How a connection attempt of the client ends.
fn attempt(lab: &Lab) -> io::Result<()> {
    let connect = || TcpStream::connect_timeout(&service_v4(), CUT_FOR / 2).map(drop);
    lab.client().enter(connect).expect("the client is there")
}

/// Clients reach only `owner`, which is as good as both: nobody else speaks to them.
/// Then only the other server: they wait until that is mended, for the owner is heard
/// by those who vote.
fn follows_those_who_vote(owner: Host) {
    let Some(lab) = lab() else { return };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, options());
    let standby = if owner == Host::A { Host::B } else { Host::A };
    if owner == Host::B {
        let service = cluster.status(Host::A).expect("a answers").services[0]
            .name
            .clone();
        cluster
            .hand_over(&service, Host::A, Host::B)
            .expect("a standby in sync takes it");
        wait_in_sync(&mut cluster, owner);
    }
    let capture = witness(&lab);
    let pair = [
        Traffic::start(&lab, service_v4(), Load::Upload),
        Traffic::start(&lab, service_v6(), Load::Echo),
    ];
    for one in &pair {
        wait_protected(&cluster, owner, one.local());
    }
    let owns = || {
        let status = cluster.status(owner).expect("it answers");
        let service = &status.services[0];
        service.role == "owner" && service.is_owner_in_sync()
    };
    let since = Instant::now();
    set_reach(&lab, standby, false);
    throughout("it owns with a standby in sync", CUT_FOR, owns);
    for one in &pair {
        one.goes_on();
        wait_protected(&cluster, owner, one.local());
    }
    attempt(&lab).expect("the owner is reached");
    set_reach(&lab, standby, true);

    set_reach(&lab, owner, false);
    throughout("it owns with a standby in sync", CUT_FOR, owns);
    let refused = attempt(&lab).expect_err("nobody is to answer");
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
    let passed = || pair.each_ref().map(|one| one.meter.bytes());
    let before = passed();
    throughout("nothing passes", CUT_FOR / 2, || passed() == before);
    for host in Host::SERVERS {
        let status = cluster.status(host).expect("it answers");
        assert_eq!(status.services[0].takeovers, 0, "{host}");
        assert!(!has_event(&cluster, host, "lease_lapsed"), "{host}");
    }
    set_reach(&lab, owner, true);
    attempt(&lab).expect("the owner is reached");
    for one in pair {
        one.goes_on();
        // The client's own retransmissions were backed off by then.
        one.finish(since, DEADLINE);
    }
    assert_unnoticed(capture);
}

#[test]
fn what_clients_reach_takes_nothing_from_a() {
    follows_those_who_vote(Host::A);
}

#[test]
fn what_clients_reach_takes_nothing_from_b() {
    follows_those_who_vote(Host::B);
}
