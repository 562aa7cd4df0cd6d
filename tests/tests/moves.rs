//! Planned moves under load: owner and standby change places, the connections
//! stay, and stay protected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::content::Content;
use godwit_lab::apps::curl::{self, Patience};
use godwit_lab::apps::nginx::Nginx;
use godwit_lab::apps::redis;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing, Service};
use godwit_lab::host::{Host, Network, SERVICE};
use godwit_lab::links::{Loss, Shape};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::resp::bulk;
use godwit_tests::stage::{
    PORT, assert_no_live_reset, assert_no_reset, assert_voices, has_event, in_sync, servers,
    service_v4, service_v6, stage, until, wait_flow, wait_protected, witness,
};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use godwit_wire::TcpFlags;
use nix::sys::signal::Signal;

/// curl gives up after ten seconds without a byte.
const PATIENCE: Patience = Patience(10);

const FILE: Content = Content {
    seed: 0xd7a1,
    length: 40_000_000,
};

/// There and back again, this often; with leases, this often.
/// What a server that was told to end has to close the connections that it has.
const MAY_CLOSE: Duration = Duration::from_millis(200);

/// Between the rounds of a busy client.
const PAUSE: Duration = Duration::from_millis(2);

const MOVES: usize = 20;
const MOVES_WITH_LEASES: usize = 8;

/// What a busy machine may make of a heartbeat must not be a crash here.
fn options() -> ClusterOptions {
    ClusterOptions {
        heartbeat: Duration::from_millis(30),
        ..ClusterOptions::unfenced()
    }
}

fn traffic(lab: &Lab, cluster: &Cluster<'_>) -> Vec<Traffic> {
    let loads = [Load::Upload, Load::Echo, Load::Download];
    let services = [service_v4(), service_v6()];
    let pairs = services
        .into_iter()
        .flat_map(|at| loads.map(|load| (at, load)));
    let traffic: Vec<_> = pairs
        .map(|(at, load)| Traffic::start(lab, at, load))
        .collect();
    for one in &traffic {
        wait_protected(cluster, Host::A, one.local());
    }
    traffic
}

fn other(host: Host) -> Host {
    if host == Host::A { Host::B } else { Host::A }
}

/// Moves the service `count` times; every connection goes on, protected, after
/// each of them. A download that has come to its end makes way for a new one.
fn move_about(lab: &Lab, cluster: &Cluster<'_>, traffic: &mut Vec<Traffic>, count: usize) {
    let (mut owner, since) = (Host::A, Instant::now());
    for turn in 0..count {
        for one in traffic
            .extract_if(.., |one| one.is_over())
            .collect::<Vec<_>>()
        {
            one.finish(since, STALL_LIMIT);
            let next = Traffic::start(lab, service_v4(), Load::Download);
            wait_protected(cluster, owner, next.local());
            traffic.push(next);
        }
        let to = other(owner);
        let report = cluster.hand_over("web", owner, to);
        let report = report.unwrap_or_else(|error| panic!("move {turn}: {error:#}"));
        assert!(report.flows >= 4, "move {turn}: {report:?}");
        owner = to;
        for one in traffic.iter().filter(|one| !one.is_over()) {
            one.goes_on();
            wait_flow(cluster, owner, one.local(), |flow| {
                flow.protected || flow.state == "ended"
            });
        }
    }
}

fn moves_under_load(lab: &Lab, options: ClusterOptions, count: usize) {
    let _servers = servers(lab);
    let cluster = in_sync(lab, options);
    let capture = witness(lab);
    let mut traffic = traffic(lab, &cluster);
    let since = Instant::now();
    move_about(lab, &cluster, &mut traffic, count);
    for one in traffic {
        one.finish(since, STALL_LIMIT);
    }
    let trace = capture.finish().expect("the capture is complete");
    assert_no_live_reset(&trace);
    assert_voices(&trace, count);
}

#[test]
fn connections_stay_over_twenty_moves() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    moves_under_load(&lab, options(), MOVES);
}

/// The lease is handed over, too.
#[test]
fn connections_stay_over_moves_with_leases() {
    let Some(lab) = stage(LabOptions {
        witness: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let fencing = Fencing::Lease;
    moves_under_load(
        &lab,
        ClusterOptions {
            fencing,
            ..options()
        },
        MOVES_WITH_LEASES,
    );
}

/// Right after a move the old owner can take everything back: it was in sync
/// from the new owner's first word on.
#[test]
fn an_old_owner_survives_the_crash_of_the_new_one() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let traffic = traffic(&lab, &cluster);
    let since = Instant::now();
    cluster
        .hand_over("web", Host::A, Host::B)
        .expect("it moves");
    lab.crash(Host::B).expect("b crashes");
    cluster.wait_owner(Host::A, DEADLINE).expect("a takes over");
    for one in traffic {
        one.finish(since, STALL_LIMIT);
    }
    let trace = capture.finish().expect("the capture is complete");
    assert_no_reset(&trace);
    assert_voices(&trace, 2);
}

/// What systemd does with the drop-in (`packaging/nginx-drain.conf`): drain,
/// `nginx -s quit`, and nginx again. Downloads and their one connection stay; the
/// other commands of the drop-in are systemd's.
#[test]
fn a_server_that_is_drained_first_may_be_restarted() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let root = lab.folder().join("www");
    fs::create_dir(&root).expect("a folder can be made");
    FILE.write_to(&root.join("file")).expect("it is written");
    lab.shape(Host::Client, Some(Shape::mbit(100)))
        .expect("the link is shaped");
    let start = |host| Nginx::start(lab.node(host), &root, PORT).expect("nginx starts");
    let (mut a, _b) = (start(Host::A), start(Host::B));
    let mut cluster = in_sync(&lab, options());
    let capture = witness(&lab);
    let transfers = [service_v4(), service_v6()].map(|at| {
        let url = format!("http://{at}/file");
        curl::download(lab.client(), &url, FILE, PATIENCE).expect("curl starts")
    });
    until("the downloads are protected", || {
        let status = cluster.status(Host::A).ok()?;
        let begun = transfers.iter().all(|t| t.meter.bytes() > 1_000_000);
        (begun && status.services[0].protected == 2).then_some(())
    });
    cluster.drain(Host::A).expect("it is drained");
    a.process.signal(Signal::SIGQUIT).expect("it runs");
    // As `nginx -s quit`: connections that it still has, it serves to their end.
    drop(cluster.wait_owner(Host::B, DEADLINE).expect("b owns"));
    thread::sleep(MAY_CLOSE);
    drop(a);
    let _a = start(Host::A);
    cluster
        .wait_in_sync(Host::B, DEADLINE)
        .expect("a stands by again");
    for transfer in transfers {
        let report = transfer.finish(DEADLINE).expect("curl ends");
        assert!(
            report.status.success() && report.verdict.exact,
            "{report:?}"
        );
    }
    let trace = capture.finish().expect("the capture is complete");
    assert_no_reset(&trace);
    assert_voices(&trace, 1);
    let opened = trace.segments().filter(|s| s.flags == TcpFlags::SYN);
    assert_eq!(opened.count(), 2, "one connection for each download");
}

/// A connection that can't move is reset by its old owner while that still may
/// speak: its client hears of it at once, though it says nothing. The others stay.
#[test]
fn a_forced_move_resets_what_it_loses() {
    let Some(lab) = stage(LabOptions {
        witness: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let _servers = servers(&lab);
    let mut web = Service::new("web", PORT);
    web.extra = "reprotect = \"off\"".to_owned();
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        services: vec![web],
        ..options()
    };
    let cluster = in_sync(&lab, options);
    let capture = witness(&lab);
    let start = || connect(lab.client(), service_v4()).expect("it is answered");
    let mut kept = start();
    let local = |stream: &TcpStream| stream.local_addr().expect("it is connected");
    wait_protected(&cluster, Host::A, local(&kept));
    let tap = |per_myriad| {
        let (from, to) = (Host::A, Host::B);
        let thinned = lab.lose(Loss {
            from,
            to,
            per_myriad,
        });
        thinned.expect("the tap can be thinned");
    };
    tap(10_000);
    let mut lost = start();
    wait_flow(&cluster, Host::A, local(&lost), |flow| {
        flow.state == "unprotected"
    });
    tap(0);
    assert!(cluster.hand_over("web", Host::A, Host::B).is_err());
    let moved = cluster.hand_over_by_force("web", Host::A, Host::B);
    moved.expect("it moves");
    let ended = lost.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(ended, Err(ErrorKind::ConnectionReset));
    let status = cluster.status(Host::A).expect("a answers");
    let counted = BTreeMap::from([("unprotected".to_owned(), 1)]);
    assert_eq!(status.services[0].resets, counted);
    assert!(has_event(&cluster, Host::A, "connections_reset"));
    send(&mut kept, "echo\nstay").expect("it goes on");
    expect(&mut kept, "stay").expect("it goes on");
    drop(kept);
    let trace = capture.finish().expect("the capture is complete");
    let resets = trace.segments().filter(|s| s.flags.contains(TcpFlags::RST));
    let from: BTreeSet<_> = resets.map(|s| s.from_mac).collect();
    assert_eq!(from, BTreeSet::from([Host::A.mac(Network::Data)]));
}

/// An unmodified redis: every reply comes once and in order, over either family,
/// and both servers end with the same data.
#[test]
fn pipelined_redis_commands_stay_over_moves() {
    const PORT: u16 = 6379;
    const ROUNDS: usize = 240;
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let start = |host| redis::start(lab.node(host), PORT, 0).expect("redis starts");
    let _servers = Host::SERVERS.map(start);
    let services = vec![Service::new("redis", PORT)];
    let cluster = in_sync(
        &lab,
        ClusterOptions {
            services,
            ..options()
        },
    );
    let capture = witness(&lab);
    let mut streams = SERVICE.map(|at| {
        let at = SocketAddr::new(at, PORT);
        connect(lab.client(), at).expect("redis answers")
    });
    let mut owner = Host::A;
    for round in 0..ROUNDS {
        if round % 40 == 20 {
            until("both are protected", || {
                let status = cluster.status(owner).ok()?;
                (status.services[0].protected == 2).then_some(())
            });
            let to = other(owner);
            cluster.hand_over("redis", owner, to).expect("it moves");
            owner = to;
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let key = format!("k{number}-{round}");
            send(
                stream,
                format!("SET {key} {round}\r\nINCR n{number}\r\nGET {key}\r\n"),
            )
            .expect("it is sent");
            let replies = format!("+OK\r\n:{}\r\n{}", round + 1, bulk(&round.to_string()));
            expect(stream, replies).unwrap_or_else(|error| panic!("round {round}: {error:#}"));
        }
        thread::sleep(PAUSE);
    }
    let trace = capture.finish().expect("the capture is complete");
    assert_no_reset(&trace);
}
