//! Running connections get a new twin when a standby comes back: the client
//! outlives one server after the other on one connection.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::content::Content;
use godwit_lab::apps::nginx::Nginx;
use godwit_lab::apps::server;
use godwit_lab::capture::Capture;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process, SAME_CAUSE};
use godwit_tests::stage::{
    PORT, assert_no_reset, assert_unnoticed, assert_voices, generation, in_sync, servers,
    service_v4, service_v6, stage, throughout, until, wait_flow, wait_protected, wait_unprotected,
    witness,
};
use godwit_tests::stream::{Download, connect, expect, expect_end, send};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT, misconduct};

/// An echo says 30 KB in a second.
const LONG_LOG: &str = "reprotect_cap = \"512KiB\"\n";

/// What a connection can go on with after each failure: little input.
fn lasting(lab: &Lab) -> Vec<Traffic> {
    let kinds = [
        (service_v4(), Load::LongDownload),
        (service_v6(), Load::LongDownload),
        (service_v4(), Load::Echo),
        (service_v6(), Load::Echo),
    ];
    kinds
        .map(|(service, load)| Traffic::start(lab, service, load))
        .into()
}

fn with(extra: &str) -> ClusterOptions {
    let mut service = Service::new("web", PORT);
    service.extra = extra.to_owned();
    ClusterOptions {
        heartbeat: Duration::from_millis(30),
        services: vec![service],
        ..ClusterOptions::unfenced()
    }
}

fn wait_all_protected(cluster: &Cluster<'_>, owner: Host, traffic: &[Traffic]) {
    for one in traffic {
        wait_protected(cluster, owner, one.local());
    }
}

fn wait_protected_again(cluster: &Cluster<'_>, owner: Host, traffic: &[Traffic]) {
    for one in traffic {
        let report = wait_flow(cluster, owner, one.local(), |flow| flow.protected);
        assert!(report.protected_again_ms.is_some(), "{report:?}");
        assert_eq!(report.reprotect, None, "{report:?}");
    }
}

fn finish_all(traffic: Vec<Traffic>, since: Instant) {
    for one in traffic {
        one.finish(since, STALL_LIMIT);
    }
}

fn restart(lab: &Lab, host: Host, server: &mut Process) {
    *server = server::start(lab.node(host), PORT).expect("the server starts again");
}

/// kill -9 of the server of one node after the other, each time when the
/// connections are protected again: nobody notices.
#[test]
fn the_same_connections_outlive_one_server_after_the_other() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [mut a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, with(LONG_LOG));
    let traffic = lasting(&lab);
    let capture = witness(&lab);
    wait_all_protected(&cluster, Host::A, &traffic);
    let since = Instant::now();
    for (owner, standby) in [(Host::A, Host::B), (Host::B, Host::A)] {
        let victim = if owner == Host::A { &mut a } else { &mut b };
        let killed = Instant::now();
        victim.kill().expect("it runs");
        cluster
            .wait_owner(standby, DEADLINE)
            .expect("it takes over");
        for one in &traffic {
            one.goes_on();
        }
        restart(&lab, owner, victim);
        cluster
            .wait_in_sync(standby, DEADLINE)
            .expect("a standby again");
        wait_protected_again(&cluster, standby, &traffic);
        thread::sleep(SAME_CAUSE.saturating_sub(killed.elapsed()));
    }
    let events = cluster.events(Host::B).expect("it answers");
    assert!(events.iter().any(|event| event == "flow_protected_again"));
    finish_all(traffic, since);
    assert_changed_hands(capture, 2);
}

/// The owner's machine goes dark and comes back empty. What is protected again
/// moves like anything else, there and back; in between the node that it came
/// from starts its server anew.
#[test]
fn the_same_connections_outlive_a_machine_and_move() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, with(LONG_LOG));
    let capture = witness(&lab);
    let traffic = lasting(&lab);
    wait_all_protected(&cluster, Host::A, &traffic);
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in &traffic {
        let report = wait_flow(&cluster, Host::B, one.local(), |flow| {
            flow.reprotect.is_some()
        });
        assert!(!report.protected, "{report:?}");
    }
    lab.reboot(Host::A).expect("a boots");
    let _a = server::start(lab.a(), PORT).expect("the server starts");
    cluster.start_agent(Host::A).expect("its agent starts");
    cluster
        .wait_in_sync(Host::B, DEADLINE)
        .expect("a stands by for b");
    wait_protected_again(&cluster, Host::B, &traffic);

    hand_over(&cluster, Host::B, Host::A, &traffic);
    b.kill().expect("it runs");
    for one in &traffic {
        wait_flow(&cluster, Host::A, one.local(), |flow| !flow.protected);
    }
    restart(&lab, Host::B, &mut b);
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b stands by for a");
    wait_protected_again(&cluster, Host::A, &traffic);

    hand_over(&cluster, Host::A, Host::B, &traffic);
    hand_over(&cluster, Host::B, Host::A, &traffic);
    lab.crash(Host::A).expect("a crashes again");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in &traffic {
        one.goes_on();
    }
    finish_all(traffic, since);
    assert_changed_hands(capture, 5);
}

/// As [`assert_unnoticed`], of a service that changed hands so often.
fn assert_changed_hands(capture: Capture, times: usize) {
    let trace = capture.finish().expect("the capture is complete");
    assert_no_reset(&trace);
    assert_voices(&trace, times);
    let wrong = misconduct(&trace, &[service_v4(), service_v6()]);
    assert!(wrong.is_empty(), "{} times: {:?}", wrong.len(), wrong[0]);
}

/// As planned: nothing becomes unprotected. A node whose server died within the
/// last second refuses.
fn hand_over(cluster: &Cluster<'_>, from: Host, to: Host, traffic: &[Traffic]) {
    until("it moves", || cluster.hand_over("web", from, to).ok());
    for one in traffic {
        one.goes_on();
        let report = wait_flow(cluster, to, one.local(), |flow| flow.protected);
        assert_eq!(report.reprotect, None, "{report:?}");
    }
}

/// The standby's server is killed and started again: what runs is protected
/// again, what is idle too, and survives the owner.
#[test]
fn a_standby_whose_server_returns_protects_what_runs() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, with(LONG_LOG));
    let capture = witness(&lab);
    let traffic = lasting(&lab);
    let mut quiet = [service_v4(), service_v6()]
        .map(|service| connect(lab.client(), service).expect("it connects"));
    let mut talked = connect(lab.client(), service_v4()).expect("it connects");
    send(&mut talked, b"echo\nfirst").expect("it goes");
    expect(&mut talked, b"first").expect("it comes");
    let locals: Vec<_> = quiet
        .iter()
        .chain([&talked])
        .map(|stream| stream.local_addr().expect("it is connected"))
        .chain(traffic.iter().map(Traffic::local))
        .collect();
    for local in &locals {
        wait_protected(&cluster, Host::A, *local);
    }
    let since = Instant::now();
    b.kill().expect("it runs");
    for local in &locals {
        wait_flow(&cluster, Host::A, *local, |flow| !flow.protected);
    }
    for one in &traffic {
        one.goes_on();
    }
    restart(&lab, Host::B, &mut b);
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("a standby again");
    for local in &locals {
        wait_protected(&cluster, Host::A, *local);
    }
    wait_protected_again(&cluster, Host::A, &traffic);
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    send(&mut talked, b"second").expect("it goes");
    expect(&mut talked, b"second").expect("it comes");
    for stream in &mut quiet {
        send(stream, b"echo\nhello").expect("it goes");
        expect(stream, b"hello").expect("it comes");
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("it is connected");
        expect_end(stream).expect("it ends");
    }
    drop(talked);
    for one in &traffic {
        one.goes_on();
    }
    finish_all(traffic, since);
    assert_unnoticed(capture);
}

/// What has said more than its log may hold is not protected again, and says why.
#[test]
fn what_is_over_the_cap_says_so() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, with("reprotect_cap = \"2KiB\"\n"));
    let capture = witness(&lab);
    let upload = Traffic::start(&lab, service_v4(), Load::Upload);
    let echo = Traffic::start(&lab, service_v6(), Load::Echo);
    let traffic = [upload, echo];
    wait_all_protected(&cluster, Host::A, &traffic);
    for one in &traffic {
        one.goes_on();
    }
    let since = Instant::now();
    b.kill().expect("it runs");
    for one in &traffic {
        wait_flow(&cluster, Host::A, one.local(), |flow| !flow.protected);
    }
    restart(&lab, Host::B, &mut b);
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("a standby again");
    for one in &traffic {
        let why =
            |flow: &godwit_lab::cluster::FlowReport| flow.reprotect.as_deref() == Some("over_cap");
        wait_flow(&cluster, Host::A, one.local(), why);
    }
    throughout("over the cap", Duration::from_millis(300), || {
        let flows = cluster.flows(Host::A).expect("it answers").flows;
        flows.iter().all(|flow| !flow.protected)
    });
    finish_all(traffic.into(), since);
    assert_unnoticed(capture);
}

/// nginx keeps nothing between the requests of a connection: with
/// `reprotect = "request"` a connection over the cap has its twin all the same,
/// and survives its owner in the middle of a later reply.
#[test]
fn a_request_begins_a_new_log() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let root = lab.folder().join("www");
    fs::create_dir(&root).expect("a folder");
    FILE.write_to(&root.join("file")).expect("a file");
    let [_a, mut b] =
        Host::SERVERS.map(|host| Nginx::start(lab.node(host), &root, PORT).expect("it starts"));
    let extra = "reprotect = \"request\"\nreprotect_cap = \"1KiB\"\n";
    let mut cluster = in_sync(&lab, with(extra));
    let capture = witness(&lab);
    let mut stream = connect(lab.client(), service_v4()).expect("it connects");
    let local = stream.local_addr().expect("it is connected");
    wait_protected(&cluster, Host::A, local);
    for _ in 0..20 {
        get(&mut stream, || {});
    }
    b.process.kill().expect("it runs");
    wait_flow(&cluster, Host::A, local, |flow| !flow.protected);
    get(&mut stream, || {});
    b = Nginx::start(lab.b(), &root, PORT).expect("it starts again");
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("a standby again");
    wait_protected(&cluster, Host::A, local);
    get(&mut stream, || {});
    get(&mut stream, || {
        lab.crash(Host::A).expect("a crashes");
    });
    get(&mut stream, || {});
    assert!(b.process.is_running());
    drop(stream);
    assert_unnoticed(capture);
}

/// Long enough that a crash may come in the middle of its reply.
const FILE: Content = Content {
    seed: 0xf11e,
    length: 4 << 20,
};

/// One request on a connection that stays; `at_half` comes in the middle of the
/// reply.
fn get(stream: &mut TcpStream, at_half: impl FnOnce()) {
    send(stream, b"GET /file HTTP/1.1\r\nHost: lab\r\n\r\n").expect("it goes");
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a header");
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut body = Download::expecting(stream.try_clone().expect("a copy"), FILE);
    body.read_until(FILE.length / 2).expect("the first half");
    at_half();
    body.read_until(FILE.length).expect("the second half");
}

/// The standby's server hangs for a while and its twin is let go, though the
/// standby stays: a rest later there is another one, and it can take over.
#[test]
fn what_lagged_is_protected_again_in_the_same_stay() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let cluster = in_sync(&lab, with(""));
    let capture = witness(&lab);
    let download = Traffic::start(&lab, service_v6(), Load::LongDownload);
    wait_protected(&cluster, Host::A, download.local());
    let stay = generation(&cluster, Host::A);
    b.stop().expect("the standby's server stops");
    wait_unprotected(&cluster, Host::A, download.local(), &["lagging"]);
    b.cont().expect("it goes on");
    let all = [download];
    wait_protected_again(&cluster, Host::A, &all);
    assert_eq!(generation(&cluster, Host::A), stay, "the same stay");
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    let [download] = all;
    download.goes_on();
    download.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}
