//! Servers whose snapshots are on the standby before they are needed: whatever ends
//! the owner, their connections go on there, byte for byte.

use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::roam::Manner;
use godwit_lab::apps::server::REPLIES;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing, FlowReport};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::roaming::Roamer;
use godwit_tests::stage::{
    self, assert_no_reset, service_v4, service_v6, stage, until, wait_in_sync, witness,
};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::{DEADLINE, eager};

/// It reads faster than clients speak, or what they said while nobody served them would
/// be before it for good.
const QUICK: Manner = Manner {
    state: 0,
    chunk: 2 << 10,
    pace: Duration::from_micros(250),
    sessions: false,
    congestion: None,
    commits: false,
};

/// What clients say while nobody serves them is in the log.
const LOG: &str = "reprotect_cap = \"512KiB\"";

fn start(lab: &Lab) -> (Cluster<'_>, [Process; 2]) {
    eager::start_with(lab, eager::options(LOG), QUICK)
}

fn wait_protected(cluster: &Cluster<'_>, owner: Host, roamer: &Roamer) -> FlowReport {
    let end = Instant::now() + DEADLINE;
    loop {
        match report(cluster, owner, roamer) {
            Some(found) if found.protected => return found,
            last => assert!(Instant::now() < end, "not protected: {last:?}"),
        }
        thread::sleep(LOOK);
    }
}

/// How often is asked whether a connection is protected.
const LOOK: Duration = Duration::from_millis(10);

/// What the owner says of a connection.
fn report(cluster: &Cluster<'_>, owner: Host, roamer: &Roamer) -> Option<FlowReport> {
    let flows = cluster.flows(owner).ok()?.flows;
    flows.into_iter().find(|flow| flow.flow == roamer.flow)
}

/// More than a standby keeps of what a client says behind a snapshot, and an owner for
/// a standby that comes later.
const BEYOND_THE_LOG: u64 = 3 << 20;

/// Servers that die on both nodes within a second are taken for the victims of one
/// request, and nobody takes over.
const APART: Duration = Duration::from_secs(2);

/// In use for so long that without snapshots they were not protected any more.
fn protected(lab: &Lab, cluster: &Cluster<'_>, owner: Host) -> [Roamer; 2] {
    let roamers = [service_v4(), service_v6()].map(|service| Roamer::start(lab, service));
    say_much(cluster, owner, &roamers);
    roamers
}

/// That much, and they are protected.
fn say_much(cluster: &Cluster<'_>, owner: Host, roamers: &[Roamer]) {
    let said: Vec<_> = roamers.iter().map(Roamer::said).collect();
    for (roamer, before) in roamers.iter().zip(said) {
        until("much is said", || {
            (roamer.said() > before + BEYOND_THE_LOG).then_some(())
        });
        wait_protected(cluster, owner, roamer);
    }
}

/// As much as is kept for a standby that comes later.
const LITTLE: u64 = 20_000;

/// They go on, and no byte is wrong to the end.
fn end(cluster: &mut Cluster<'_>, roamers: [Roamer; 2]) {
    go_on(cluster, &roamers);
    for roamer in roamers {
        let (said, heard) = roamer.end();
        assert!(said >= LITTLE && heard > 0);
    }
}

fn go_on(cluster: &mut Cluster<'_>, roamers: &[Roamer]) {
    for roamer in roamers {
        if !roamer.goes_on_or_breaks() {
            let log = |host| cluster.agent(host).map(|agent| agent.log());
            let logs = Host::SERVERS.map(log).map(Option::unwrap_or_default);
            panic!("it broke\na: {}\nb: {}", logs[0], logs[1]);
        }
    }
}

/// Leases are in force: only who has one may be heard, and a third voter decides.
fn leased() -> (LabOptions, ClusterOptions) {
    let lab = LabOptions {
        witness: true,
        ..LabOptions::default()
    };
    let options = ClusterOptions {
        heartbeat: Duration::from_millis(20),
        misses: 6,
        fencing: Fencing::Lease,
        ..eager::options(LOG)
    };
    (lab, options)
}

fn unleased() -> (LabOptions, ClusterOptions) {
    (LabOptions::default(), eager::options(LOG))
}

/// The owner's machine goes dark while both sides talk.
#[test]
fn connections_outlive_their_machine() {
    outlive_their_machine(unleased());
}

#[test]
fn connections_outlive_their_machine_with_leases() {
    outlive_their_machine(leased());
}

fn outlive_their_machine((lab, options): (LabOptions, ClusterOptions)) {
    let Some(lab) = stage(lab) else { return };
    let (mut cluster, _servers) = eager::start_with(&lab, options, QUICK);
    let capture = witness(&lab);
    let roamers = protected(&lab, &cluster, Host::A);
    lab.crash(Host::A).expect("a crashes");
    end(&mut cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// kill -9 of the owner's server; the machine is a standby again when its server is
/// back. Then the same the other way round.
#[test]
fn connections_outlive_their_servers() {
    outlive_their_servers(unleased());
}

#[test]
fn connections_outlive_their_servers_with_leases() {
    outlive_their_servers(leased());
}

fn outlive_their_servers((lab, options): (LabOptions, ClusterOptions)) {
    let Some(lab) = stage(lab) else { return };
    let (mut cluster, mut servers) = eager::start_with(&lab, options, QUICK);
    let capture = witness(&lab);
    let mut killed = None;
    for (index, owner, standby) in [(0, Host::A, Host::B), (1, Host::B, Host::A)] {
        let roamers = protected(&lab, &cluster, owner);
        if let Some(killed) = killed {
            thread::sleep(APART.saturating_sub(Instant::elapsed(&killed)));
        }
        servers[index].kill().expect("it runs");
        killed = Some(Instant::now());
        end(&mut cluster, roamers);
        servers[index] = eager::serve(&lab, &cluster, owner, QUICK);
        wait_in_sync(&mut cluster, standby);
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Clients have said megabytes when the standby's machine goes dark, and go on: when it
/// is back it gets the latest snapshots and what was said behind them, and stays with
/// them for megabytes more. Then the owner goes dark. The first standby's server gets
/// connections that it has never seen begin, exports their state, and so the next
/// standby can have them as well.
#[test]
fn connections_in_use_are_protected_again() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, servers) = start(&lab);
    let capture = witness(&lab);
    let mut servers = servers.map(Some);
    let roamers = protected(&lab, &cluster, Host::A);
    for (owner, standby) in [(Host::A, Host::B), (Host::B, Host::A)] {
        lab.crash(standby).expect("it crashes");
        go_on(&mut cluster, &roamers);
        boot(&lab, &mut cluster, standby, &mut servers);
        wait_in_sync(&mut cluster, owner);
        for roamer in &roamers {
            wait_protected(&cluster, owner, roamer);
        }
        let again = Instant::now();
        say_much(&cluster, owner, &roamers);
        let lasts = again.elapsed();
        for roamer in &roamers {
            let report = wait_protected(&cluster, owner, roamer);
            let since = report.protected_again_ms.map(Duration::from_millis);
            assert!(
                since >= Some(lasts),
                "by another twin: {lasts:?} {report:?}"
            );
        }
        lab.crash(owner).expect("it crashes");
        go_on(&mut cluster, &roamers);
        boot(&lab, &mut cluster, owner, &mut servers);
        wait_in_sync(&mut cluster, standby);
        say_much(&cluster, standby, &roamers);
    }
    end(&mut cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// The standby's agent dies under load, and its twins with it: nobody waits for them
/// longer than for one that lags. When it is back it gets the connections, and they
/// outlive their owner.
#[test]
fn connections_outlive_the_agent_of_their_standby() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let roamers = protected(&lab, &cluster, Host::A);
    let killed = Instant::now();
    let agent = cluster.agent(Host::B).expect("it was started");
    agent.kill().expect("it runs");
    go_on(&mut cluster, &roamers);
    let waited = killed.elapsed();
    assert!(waited < LAG_LIMIT, "clients waited for {waited:?}");
    for roamer in &roamers {
        until("it is not protected", || {
            (!report(&cluster, Host::A, roamer)?.protected).then_some(())
        });
    }
    cluster.start_agent(Host::B).expect("it starts again");
    wait_in_sync(&mut cluster, Host::A);
    say_much(&cluster, Host::A, &roamers);
    lab.crash(Host::A).expect("a crashes");
    end(&mut cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// `lag_limit`.
const LAG_LIMIT: Duration = Duration::from_millis(700);

/// A client neither speaks nor listens, so its server can't say more, and is ahead of
/// it: the snapshot of which the client has all output is not where it is now. That one
/// is enough for a standby that comes back.
#[test]
fn connections_that_stand_still_are_protected_again() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, servers) = start(&lab);
    let capture = witness(&lab);
    let mut servers = servers.map(Some);
    let roamers = protected(&lab, &cluster, Host::A);
    for roamer in &roamers {
        roamer.pause();
    }
    let said = |roamer: &Roamer| report(&cluster, Host::A, roamer).map(|flow| flow.bytes_out);
    for roamer in &roamers {
        let (mut before, mut since) = (None, Instant::now());
        until("its server says no more", || {
            let now = said(roamer);
            if now != before {
                (before, since) = (now, Instant::now());
            }
            (since.elapsed() > STILL).then_some(())
        });
    }
    lab.crash(Host::B).expect("it crashes");
    for roamer in &roamers {
        until("it is not protected", || {
            (!report(&cluster, Host::A, roamer)?.protected).then_some(())
        });
    }
    boot(&lab, &mut cluster, Host::B, &mut servers);
    wait_in_sync(&mut cluster, Host::A);
    for roamer in &roamers {
        wait_protected(&cluster, Host::A, roamer);
    }
    lab.crash(Host::A).expect("it crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for roamer in &roamers {
        roamer.resume();
    }
    let status = cluster.status(Host::B).expect("b answers");
    let resets = &status.services[0].resets;
    assert!(
        resets.is_empty(),
        "{resets:?}, {:#?}",
        cluster.event_reports(Host::B)
    );
    end(&mut cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// A server that says nothing for so long can't.
const STILL: Duration = Duration::from_millis(300);

/// A machine that was dark comes back without memory.
fn boot(lab: &Lab, cluster: &mut Cluster<'_>, host: Host, servers: &mut [Option<Process>; 2]) {
    cluster.power_off(host).expect("it is dark");
    lab.reboot(host).expect("it boots");
    let server = &mut servers[usize::from(host == Host::B)];
    drop(server.take());
    cluster.start_agent(host).expect("its agent starts");
    *server = Some(eager::serve(lab, cluster, host, QUICK));
}

/// The servers of a connection die one after the other: the next standby gets its
/// snapshots, and what its client has said.
#[test]
fn connections_go_from_standby_to_standby() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, mut servers) = start(&lab);
    let capture = witness(&lab);
    let roamers = [service_v4(), service_v6()].map(|at| Roamer::saying(&lab, at, LITTLE));
    for roamer in &roamers {
        wait_protected(&cluster, Host::A, roamer);
    }
    servers[0].kill().expect("it runs");
    let killed = Instant::now();
    go_on(&mut cluster, &roamers);
    servers[0] = eager::serve(&lab, &cluster, Host::A, QUICK);
    wait_in_sync(&mut cluster, Host::B);
    for roamer in &roamers {
        wait_protected(&cluster, Host::B, roamer);
    }
    thread::sleep(APART.saturating_sub(killed.elapsed()));
    servers[1].kill().expect("it runs");
    end(&mut cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// There and back again while both sides talk: the second time to a server that has
/// run on as a twin in earnest. Then the owner's machine goes dark.
#[test]
fn a_service_moves_with_its_connections() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let roamers = protected(&lab, &cluster, Host::A);
    for (from, to) in [(Host::A, Host::B), (Host::B, Host::A)] {
        let report = cluster.hand_over("web", from, to);
        let report = report.unwrap_or_else(|error| panic!("{from} to {to}: {error:#}"));
        assert_eq!(report.flows, 2, "{report:?}");
        go_on(&mut cluster, &roamers);
        for roamer in &roamers {
            wait_protected(&cluster, to, roamer);
        }
    }
    lab.crash(Host::A).expect("a crashes");
    end(&mut cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// A server that never exports, and a client that says more than waits for one on the
/// standby: the client waits, but no longer than for any twin that lags.
#[test]
fn who_never_exports_is_given_up_and_served() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, _servers) = eager::start_silent(&lab);
    let capture = witness(&lab);
    for service in [service_v4(), service_v6()] {
        let mut stream = connect(lab.client(), service).expect("the service is there");
        let client = stream.local_addr().expect("it is connected");
        send(&mut stream, format!("ask {CHUNK} 4\n")).expect("it is open");
        stage::wait_protected(&cluster, Host::A, client);
        let (chunk, mut longest) = (vec![7; CHUNK], Duration::ZERO);
        for reply in 0..(8 * UNREAD / CHUNK) as u64 {
            let since = Instant::now();
            send(&mut stream, &chunk).expect("it goes on");
            let mut expected = [0; 4];
            REPLIES.fill(4 * reply, &mut expected);
            expect(&mut stream, expected).expect("it goes on");
            longest = longest.max(since.elapsed());
        }
        let enough = LAG_LIMIT / 2..3 * LAG_LIMIT;
        assert!(
            enough.contains(&longest),
            "the client waited for {longest:?}"
        );
        stage::wait_unprotected(&cluster, Host::A, client, &["lagging"]);
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Bytes of a request.
const CHUNK: usize = 64 << 10;

/// As much as a standby keeps of what a client says behind a snapshot.
const UNREAD: usize = 1 << 20;
