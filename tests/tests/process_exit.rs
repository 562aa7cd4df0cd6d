//! Server processes that die while their machine goes on: the kernel would
//! close their connections with FIN or RST, and another node takes them over
//! before it can.

use std::fs;
use std::io::Read as _;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::content::Content;
use godwit_lab::apps::curl::{self, Patience};
use godwit_lab::apps::nginx::Nginx;
use godwit_lab::apps::{redis, server};
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::links::Shape;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::resp::bulk;
use godwit_tests::stage::{
    PORT, assert_one_voice, assert_unnoticed, counted, has_event, in_sync, servers, service_v4,
    service_v6, stage, throughout, until, wait_event, wait_protected, wait_unprotected, witness,
};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::traffic::{Load, Traffic, mixed};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A client that is told of an end must be told within this time.
const TOLD: Duration = Duration::from_secs(2);

/// The same if what ended it was lost behind a fence, and only a retransmission
/// (200 ms, doubled four times: RFC 6298) meets an open one.
const TOLD_BY_TIMER: Duration = Duration::from_secs(8);

/// An owner confirms that nothing listens for 40 ms, and the move takes its time.
const AT_ONCE: Duration = Duration::from_millis(150);

/// For so long an owner is new.
const NEW_OWNER: Duration = Duration::from_secs(11);

fn with(extra: &str) -> ClusterOptions {
    let mut service = Service::new("web", PORT);
    service.extra = extra.to_owned();
    ClusterOptions {
        services: vec![service],
        ..ClusterOptions::unfenced()
    }
}

/// Waits until `owner` serves and the other one stands by.
fn wait_owner(cluster: &Cluster<'_>, owner: Host) {
    cluster.wait_owner(owner, DEADLINE).expect("it takes over");
}

/// kill -9 of the owner's server: nobody notices, the standby serves on, and
/// the machine is a standby again when its server is back. Then the same the
/// other way round, on the same connections' successors.
#[test]
fn a_killed_server_is_taken_over_and_its_clients_see_nothing() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [mut a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    for (owner, standby) in [(Host::A, Host::B), (Host::B, Host::A)] {
        let capture = witness(&lab);
        let traffic = mixed(&lab);
        for one in &traffic {
            wait_protected(&cluster, owner, one.local());
        }
        let victim = if owner == Host::A { &mut a } else { &mut b };
        let since = Instant::now();
        victim.kill().expect("it runs");
        wait_owner(&cluster, standby);
        for one in &traffic {
            one.goes_on();
        }
        assert!(has_event(&cluster, owner, "process_exit"));
        assert!(has_event(&cluster, owner, "share_released"));
        assert!(!has_event(&cluster, owner, "no_taker"));
        throughout("no standby without a server", TOLD / 4, || {
            let status = cluster.status(standby).expect("it answers");
            status.services[0].in_sync.is_empty()
        });
        *victim = server::start(lab.node(owner), PORT).expect("the server starts again");
        cluster
            .wait_in_sync(standby, DEADLINE)
            .expect("a standby again");
        let fresh = Traffic::start(&lab, service_v4(), Load::Echo);
        wait_protected(&cluster, standby, fresh.local());
        for one in traffic {
            one.finish(since, STALL_LIMIT);
        }
        fresh.finish(since, STALL_LIMIT);
        assert_unnoticed(capture);
    }
}

/// The processes that nginx's master has started.
fn workers(nginx: &Nginx) -> Vec<Pid> {
    let master = nginx.process.pid();
    let list = fs::read_to_string(format!("/proc/{master}/task/{master}/children"));
    let list = list.expect("the kernel lists children");
    let pids = list.split_whitespace().map(|pid| pid.parse());
    pids.map(|pid| Pid::from_raw(pid.expect("a number")))
        .collect()
}

/// Between the rounds of a busy client.
const PAUSE: Duration = Duration::from_millis(2);

const FILE: Content = Content {
    seed: 0x4774,
    length: 24_000_000,
};

/// Two nginx that serve [`FILE`], with the client behind 100 Mbit/s.
fn web_servers(lab: &Lab) -> [Nginx; 2] {
    let root = lab.folder().join("www");
    fs::create_dir(&root).expect("a new folder");
    FILE.write_to(&root.join("file")).expect("there is room");
    lab.shape(Host::Client, Some(Shape::mbit(100)))
        .expect("the link is slowed down");
    Host::SERVERS.map(|host| Nginx::start(lab.node(host), &root, PORT).expect("nginx starts"))
}

fn downloads(lab: &Lab, cluster: &Cluster<'_>) -> Vec<curl::Transfer> {
    let start = |address| {
        let url = format!("http://{address}/file");
        curl::download(lab.client(), &url, FILE, Patience(10)).expect("curl starts")
    };
    let transfers: Vec<_> = [service_v4(), service_v6()]
        .into_iter()
        .map(start)
        .collect();
    until("the downloads are protected and half-way", || {
        let protected = cluster.status(Host::A).ok()?.services[0].protected;
        let half = |transfer: &curl::Transfer| transfer.meter.bytes() > FILE.length / 3;
        (protected == 2 && transfers.iter().all(half)).then_some(())
    });
    transfers
}

fn expect_exact(transfers: Vec<curl::Transfer>) {
    for transfer in transfers {
        let report = transfer.finish(DEADLINE).expect("it ends");
        assert!(report.status.success(), "curl: {report:?}");
        assert!(report.verdict.exact, "{report:?}");
    }
}

/// A worker of nginx is killed, master and listener live on.
#[test]
fn a_killed_nginx_worker_takes_no_download_with_it() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [a, _b] = web_servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let transfers = downloads(&lab, &cluster);
    for worker in workers(&a) {
        kill(worker, Signal::SIGKILL).expect("it runs");
    }
    wait_owner(&cluster, Host::B);
    // nginx has another worker at once, so a is a standby again.
    cluster
        .wait_in_sync(Host::B, DEADLINE)
        .expect("a stands by");
    expect_exact(transfers);
    assert_unnoticed(capture);
}

/// Master and worker are killed at the same moment.
#[test]
fn a_killed_nginx_is_taken_over() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [mut a, _b] = web_servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let transfers = downloads(&lab, &cluster);
    a.process.kill().expect("it runs");
    wait_owner(&cluster, Host::B);
    expect_exact(transfers);
    assert_unnoticed(capture);
}

/// nginx -s quit: idle connections are closed as ever, downloads end well, and new
/// clients are served by the standby, as nothing listens here any more.
#[test]
fn a_server_that_quits_hands_its_service_over() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [mut a, _b] = web_servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let transfers = downloads(&lab, &cluster);
    let mut idle = connect(lab.client(), service_v4()).expect("it listens");
    wait_protected(&cluster, Host::A, idle.local_addr().expect("connected"));
    send(&mut idle, "HEAD /file HTTP/1.1\r\nHost: web\r\n\r\n").expect("it is read");
    expect(&mut idle, "HTTP/1.1 200 OK\r\n").expect("it is answered");
    a.process.signal(Signal::SIGQUIT).expect("it runs");
    expect_exact(transfers);
    // The rest of the head of the answer, then FIN.
    idle.read_to_end(&mut Vec::new())
        .expect("the idle connection is closed in an orderly way");
    a.process.wait(DEADLINE).expect("it ends");
    wait_owner(&cluster, Host::B);
    let mut next = connect(lab.client(), service_v4()).expect("the standby listens");
    send(&mut next, "HEAD /file HTTP/1.1\r\nHost: web\r\n\r\n").expect("it is read");
    expect(&mut next, "HTTP/1.1 200 OK\r\n").expect("it is answered");
    assert!(!has_event(&cluster, Host::A, "process_exit"));
    assert!(has_event(&cluster, Host::A, "server_missing_hand_over"));
}

/// A server that closes its listener: the data path sees it, and nobody waits for the next
/// look at all listeners, which comes every half second.
#[test]
fn who_does_not_listen_any_more_hands_over_at_once() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = web_servers(&lab).map(Some);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let mut took = Vec::new();
    for (from, to) in [(Host::A, Host::B), (Host::B, Host::A)] {
        let at = usize::from(from == Host::B);
        let mut server = servers[at].take().expect("it runs");
        let quit = Instant::now();
        server.process.signal(Signal::SIGQUIT).expect("it runs");
        wait_owner(&cluster, to);
        took.push(quit.elapsed());
        server.process.wait(DEADLINE).expect("it ends");
        let root = lab.folder().join("www");
        servers[at] = Some(Nginx::start(lab.node(from), &root, PORT).expect("it starts again"));
        cluster.wait_in_sync(to, DEADLINE).expect("a standby again");
        // An owner that is new takes its time, lest the share be tossed to and fro.
        thread::sleep(NEW_OWNER.saturating_sub(quit.elapsed()));
    }
    assert!(took.iter().all(|it| *it < AT_ONCE), "{took:?}");
}

/// A pipeline of commands goes on although redis is killed.
#[test]
fn a_killed_redis_is_taken_over() {
    const PORT: u16 = 6379;
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [mut a, _b] =
        Host::SERVERS.map(|host| redis::start(lab.node(host), PORT, 0).expect("redis starts"));
    let options = ClusterOptions {
        services: vec![Service::new("kv", PORT)],
        ..ClusterOptions::unfenced()
    };
    let cluster = in_sync(&lab, options);
    let capture = witness(&lab);
    let mut address = service_v6();
    address.set_port(PORT);
    let mut stream = connect(lab.client(), address).expect("redis listens");
    wait_protected(&cluster, Host::A, stream.local_addr().expect("connected"));
    for round in 0..200u64 {
        if round == 80 {
            a.kill().expect("it runs");
        }
        let value = round.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_string();
        let commands = format!("SET k{round} {value}\r\nGET k{round}\r\nINCR n\r\n");
        let replies = format!("+OK\r\n{}:{}\r\n", bulk(&value), round + 1);
        send(&mut stream, commands).expect("the connection holds");
        expect(&mut stream, replies).unwrap_or_else(|e| panic!("round {round}: {e:#}"));
        thread::sleep(PAUSE);
    }
    wait_owner(&cluster, Host::B);
    assert_unnoticed(capture);
}

/// A standby without a server protects nothing, and says so at once: not when
/// the twins' kernel has nothing more to say.
#[test]
fn a_standby_whose_server_is_killed_is_demoted_at_once() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let traffic = mixed(&lab);
    for one in &traffic {
        wait_protected(&cluster, Host::A, one.local());
    }
    let since = Instant::now();
    b.kill().expect("it runs");
    until("the owner is alone", || {
        let status = cluster.status(Host::A).ok()?;
        (status.services[0].in_sync.is_empty()).then_some(())
    });
    let noticed = since.elapsed();
    assert!(noticed < Duration::from_millis(100), "{noticed:?}");
    for one in &traffic {
        wait_unprotected(
            &cluster,
            Host::A,
            one.local(),
            &["standby_lost", "twin_closed"],
        );
        one.goes_on();
    }
    b = server::start(lab.b(), PORT).expect("the server starts again");
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b is in sync again");
    for one in traffic {
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
    drop(b);
}

/// What kills both servers must not be passed on, and clients are told.
#[test]
fn servers_killed_together_are_not_taken_over() {
    for (first, apart) in [
        (Host::B, Duration::from_millis(300)),
        (Host::B, Duration::ZERO),
        (Host::A, Duration::ZERO),
    ] {
        let Some(lab) = stage(LabOptions::default()) else {
            return;
        };
        let mut victims: Vec<Process> = servers(&lab).into();
        let cluster = in_sync(&lab, ClusterOptions::unfenced());
        let capture = witness(&lab);
        let traffic = mixed(&lab);
        for one in &traffic {
            wait_protected(&cluster, Host::A, one.local());
        }
        if first == Host::B {
            victims.reverse();
        }
        for victim in &mut victims {
            victim.signal(Signal::SIGKILL).expect("it runs");
            thread::sleep(apart);
        }
        let since = Instant::now();
        // An echo that ends early may look like one that ends well.
        for one in traffic {
            let _ = one.outcome();
        }
        let told = since.elapsed();
        assert!(told < TOLD_BY_TIMER, "{first} first, {apart:?}: {told:?}");
        let trace = capture.finish().expect("the capture is complete");
        assert_one_voice(&trace);
        assert_one_owner(&cluster);
    }
}

/// Whoever it is: with a first the standby may have taken over before its own
/// server died.
fn assert_one_owner(cluster: &Cluster<'_>) {
    let owners = Host::SERVERS.map(|host| {
        let status = cluster.status(host).expect("it answers");
        status.services[0].role == "owner"
    });
    assert_eq!(owners.iter().filter(|owns| **owns).count(), 1);
}

/// `on_process_exit = "close"`: as without Godwit.
#[test]
fn a_service_may_choose_to_close() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [mut a, _b] = servers(&lab);
    let cluster = in_sync(&lab, with("on_process_exit = \"close\""));
    let upload = Traffic::start(&lab, service_v4(), Load::Upload);
    wait_protected(&cluster, Host::A, upload.local());
    let since = Instant::now();
    a.kill().expect("it runs");
    assert!(upload.outcome().is_err(), "it is closed");
    assert!(since.elapsed() < TOLD);
    wait_event(&cluster, Host::A, "process_exit");
    let status = cluster.status(Host::A).expect("a answers");
    assert_eq!(status.services[0].role, "owner");
    for reason in ["released", "process_exit"] {
        assert_eq!(counted(&cluster, Host::A, reason), 0, "{reason}");
    }
}
