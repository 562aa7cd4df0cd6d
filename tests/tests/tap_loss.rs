//! The tap loses frames, either way: clients notice nothing, protection nearly
//! nothing.

use std::io::{ErrorKind, Read as _};
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::client::{Client, Rounds};
use godwit_lab::cluster::{ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::links::Loss;
use godwit_lab::meter::Meter;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    PORT, assert_unnoticed, counted, in_sync, servers, service_v4, service_v6, stage, wait_event,
    wait_flow, wait_protected, witness,
};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// Short connections that are open at the same time.
const SHORT: usize = 200;

/// Mirrored segments.
const TAP: Loss = Loss {
    from: Host::A,
    to: Host::B,
    per_myriad: 0,
};

/// The twins' acknowledgements.
const TWIN_ACKS: Loss = Loss {
    from: Host::B,
    to: Host::A,
    per_myriad: 0,
};

fn lose(lab: &Lab, way: Loss, per_myriad: u16) {
    let loss = Loss { per_myriad, ..way };
    lab.lose(loss).expect("the rule is set");
}

#[test]
fn a_lossy_tap_costs_no_byte_and_little_protection() {
    costs_no_byte_and_little_protection(TAP);
}

#[test]
fn lost_twin_acks_cost_no_byte_and_little_protection() {
    costs_no_byte_and_little_protection(TWIN_ACKS);
}

/// At 1 % and at 5 %: an upload, a download and many short connections.
fn costs_no_byte_and_little_protection(way: Loss) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    for (per_myriad, least) in [(100, 190), (500, 150)] {
        let since = Instant::now();
        lose(&lab, way, per_myriad);
        let upload = Traffic::start(&lab, service_v4(), Load::Upload);
        let download = Traffic::start(&lab, service_v6(), Load::Download);
        let protected = lab.client().enter(|| {
            let mut open: Vec<_> = (0..SHORT).map(|_| one_exchange()).collect();
            let flows = cluster.flows(Host::A).expect("the owner answers").flows;
            for client in &mut open {
                exchange(client);
            }
            flows.iter().filter(|flow| flow.protected).count()
        });
        let protected = protected.expect("the client is there");
        let said = cluster.agent(Host::A).map(|agent| agent.log());
        assert!(
            protected >= least,
            "{protected} protected at {per_myriad}: {}",
            said.unwrap_or_default()
        );
        upload.goes_on();
        download.goes_on();
        download.finish(since, STALL_LIMIT);
        upload.finish(since, STALL_LIMIT);
        assert!(counted(&cluster, Host::A, "mirrored") > 0);
        assert!(dropped(&lab) > 0, "nothing was lost");
    }
    assert_unnoticed(capture);
}

/// Frames that the rules in force have dropped.
fn dropped(lab: &Lab) -> u64 {
    lab.frames_lost().expect("the switch has rules")
}

#[test]
fn an_upload_over_a_lossy_tap_survives_the_crash() {
    survives_the_crash(TAP, 100);
}

#[test]
fn an_upload_over_a_very_lossy_tap_survives_the_crash() {
    survives_the_crash(TAP, 500);
}

#[test]
fn an_upload_whose_twin_acks_are_lost_survives_the_crash() {
    survives_the_crash(TWIN_ACKS, 500);
}

/// What the client was told is there when the owner dies, whatever was lost.
fn survives_the_crash(way: Loss, per_myriad: u16) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    lose(&lab, way, per_myriad);
    let uploads =
        [service_v4(), service_v6()].map(|service| Traffic::start(&lab, service, Load::Upload));
    // Long enough for some hundred losses.
    while uploads
        .iter()
        .any(|upload| upload.meter.bytes() < 20_000_000)
    {
        for upload in &uploads {
            upload.goes_on();
        }
    }
    for upload in &uploads {
        wait_protected(&cluster, Host::A, upload.local());
    }
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for upload in uploads {
        upload.goes_on();
        upload.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

/// Flows of the next test.
const ECHOES: usize = 12;
const UPLOADS: usize = 2;

/// What the tap has lost twice comes again after the client's time-out: the gate
/// holds for longer by default.
#[test]
fn a_flow_is_not_given_up_before_its_client_has_mended_it() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let start = |load| Traffic::start(&lab, service_v4(), load);
    let echoes = (0..ECHOES).map(|_| start(Load::Echo));
    let uploads = (0..UPLOADS).map(|_| start(Load::Upload));
    let traffic: Vec<_> = echoes.chain(uploads).collect();
    for one in &traffic {
        wait_protected(&cluster, Host::A, one.local());
    }
    let since = Instant::now();
    lose(&lab, TAP, 500);
    thread::sleep(LOSSY);
    let flows = cluster.flows(Host::A).expect("the owner answers").flows;
    let protected = flows.iter().filter(|flow| flow.protected).count();
    assert!(protected + 1 >= traffic.len(), "{flows:#?}");
    lose(&lab, TAP, 0);
    for one in traffic {
        one.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}

/// A few hundred losses: with a limit of 200 ms two to four are given up.
const LOSSY: Duration = Duration::from_secs(4);

/// A connection that has asked and been answered; it stays open.
fn one_exchange() -> Client {
    let mut client = Client::connect(service_v4(), DEADLINE).expect("it connects");
    let rounds = Rounds {
        count: 1,
        request: 150,
        reply: None,
        pause: Duration::ZERO,
    };
    let meter = Meter::default();
    client
        .exchange(rounds, &meter)
        .expect("the answer is right");
    thread::yield_now();
    client
}

/// One more question; the server takes the first line for a part of it.
fn exchange(client: &mut Client) {
    use std::io::{Read as _, Write as _};
    let (mut stream, mut answer) = (client.stream(), [0; 4]);
    stream.write_all(b"more").expect("it can be sent");
    stream.read_exact(&mut answer).expect("it is answered");
    assert_eq!(&answer, b"more");
}

/// A handshake that the standby does not see has no twin in time. That was for as
/// long as the standby stayed; now such a connection gets a twin while it runs.
#[test]
fn a_connection_whose_handshake_was_lost_is_protected_later() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    lose(&lab, TAP, 10_000);
    let mut streams = [service_v4(), service_v6()]
        .map(|service| connect(lab.client(), service).expect("it connects"));
    for stream in &streams {
        let local = stream.local_addr().expect("it is connected");
        wait_flow(&cluster, Host::A, local, |flow| flow.state != "confirming");
    }
    lose(&lab, TAP, 0);
    for stream in &mut streams {
        send(stream, b"echo\nhello").expect("it goes");
        expect(stream, b"hello").expect("it comes back");
        let local = stream.local_addr().expect("it is connected");
        let report = wait_flow(&cluster, Host::A, local, |flow| flow.protected);
        assert!(report.protected_again_ms.is_some(), "{report:?}");
    }
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for stream in &mut streams {
        send(stream, b"still there?").expect("it goes");
        expect(stream, b"still there?").expect("it comes back");
    }
    drop(streams);
    assert_unnoticed(capture);
}

/// The standby knows of such a connection only that it is not to serve it. A client
/// that has nothing to send hears from nobody else that it is over, and waited for ever.
#[test]
fn a_client_that_listens_hears_that_its_connection_is_gone() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut web = Service::new("web", PORT);
    // A new twin would need no tap.
    "reprotect = \"off\"\n".clone_into(&mut web.extra);
    let services = vec![web];
    let options = ClusterOptions {
        services,
        ..ClusterOptions::unfenced()
    };
    let cluster = in_sync(&lab, options);
    lose(&lab, TAP, 10_000);
    let mut streams = [service_v4(), service_v6()]
        .map(|service| connect(lab.client(), service).expect("it connects"));
    for stream in &mut streams {
        send(stream, b"echo\n").expect("it goes");
        let local = stream.local_addr().expect("it is connected");
        wait_flow(&cluster, Host::A, local, |flow| flow.state == "unprotected");
    }
    wait_event(&cluster, Host::B, "flow_given_up");
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for mut stream in streams {
        let heard = stream.read(&mut [0; 8]);
        let error = heard.expect_err("nobody serves it").kind();
        assert_eq!(error, ErrorKind::ConnectionReset);
    }
}
