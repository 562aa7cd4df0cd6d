//! Servers whose snapshots are to be on the standby, and that do not find their agent:
//! nothing is protected, which is said; and what none of them takes is reset where its
//! client is.

use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::server::{self, REPLIES};
use godwit_lab::cluster::Cluster;
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::eager;
use godwit_tests::stage::{
    self, PORT, has_event, service_v4, service_v6, stage, until, wait_in_sync, wait_unprotected,
};
use godwit_tests::stream::{connect, expect, send};
use nix::sys::signal::Signal;

/// Bytes of a reply.
const REPLY: usize = 4096;

/// Requests, so that the client is far from where the connection began.
const REQUESTS: u64 = 64;

/// Longer than a server may take to register.
const LONG: Duration = Duration::from_secs(5);

/// It has been answered many times, and waits for nothing.
fn answered(lab: &Lab, service: SocketAddr) -> TcpStream {
    let mut stream = connect(lab.client(), service).expect("the service is there");
    send(&mut stream, format!("ask 1 {REPLY}\n")).expect("it is open");
    for reply in 0..REQUESTS {
        send(&mut stream, b"?").expect("it is open");
        let mut expected = [0; REPLY];
        REPLIES.fill(reply * REPLY as u64, &mut expected);
        expect(&mut stream, expected).expect("it is answered");
    }
    stream
}

fn registered(lab: &Lab, cluster: &Cluster<'_>, host: Host) -> Process {
    let agent = cluster.app_socket(host).expect("the machine is there");
    server::start_registered(lab.node(host), PORT, &agent).expect("it starts")
}

fn warns(cluster: &Cluster<'_>, host: Host) -> bool {
    let status = cluster.status(host).expect("it answers");
    let mut warnings = status.warnings.iter();
    warnings.any(|it| it.contains("no server process of it has registered on this node"))
}

/// They listen and serve, and the agents never hear of them: each connection was said to be
/// protected, and ended with its owner.
#[test]
fn connections_of_servers_that_find_no_agent_are_not_protected() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let plain = stage::servers(&lab);
    let mut cluster = Cluster::start(&lab, eager::options("")).expect("the agents start");
    cluster.wait_owner(Host::A, LONG * 2).expect("a owns");
    let mut streams = [service_v4(), service_v6()].map(|service| answered(&lab, service));
    for host in Host::SERVERS {
        until("it is said", || warns(&cluster, host).then_some(()));
        assert!(has_event(&cluster, host, "server_unregistered"));
    }
    for stream in &streams {
        let client = stream.local_addr().expect("it is connected");
        wait_unprotected(&cluster, Host::A, client, &["no_standby"]);
    }
    assert!(!has_event(&cluster, Host::A, "standby_joined"));
    for stream in &mut streams {
        send(stream, b"?").expect("it goes on");
        let mut expected = [0; REPLY];
        REPLIES.fill(REQUESTS * REPLY as u64, &mut expected);
        expect(stream, expected).expect("it goes on");
    }
    // One side alone is not enough, and both are.
    let [a, b] = plain;
    drop((streams, b));
    let _b = registered(&lab, &cluster, Host::B);
    until("b has its server", || {
        (!warns(&cluster, Host::B)).then_some(())
    });
    thread::sleep(LONG / 2);
    assert!(!has_event(&cluster, Host::A, "standby_joined"));
    drop(a);
    let _a = registered(&lab, &cluster, Host::A);
    wait_in_sync(&mut cluster, Host::A);
    assert!(!warns(&cluster, Host::A));
}

/// The server of the standby lets go of its agent, and at once the owner's machine goes
/// dark: clients that wait for nothing hear of the end, at the number that they expect.
/// They took the RST that came from the beginning of the connection for an old one, and hung.
#[test]
fn what_no_server_takes_is_reset_where_its_client_is() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, [_a, mut b]) = eager::start_silent(&lab);
    let streams = [service_v4(), service_v6()].map(|service| answered(&lab, service));
    for stream in &streams {
        let client = stream.local_addr().expect("it is connected");
        stage::wait_protected(&cluster, Host::A, client);
    }
    b.signal(Signal::SIGUSR1).expect("it runs");
    lab.crash(Host::A).expect("a crashes");
    let crashed = Instant::now();
    for mut stream in streams {
        stream.set_read_timeout(Some(2 * LONG)).expect("a socket");
        let end = stream.read(&mut [0]).expect_err("nobody serves it");
        let waited = crashed.elapsed();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset, "after {waited:?}");
        assert!(waited < LONG, "{waited:?}");
    }
    let status = cluster.status(Host::B).expect("b answers");
    let resets = &status.services[0].resets;
    assert_eq!(resets.get("no_server"), Some(&2), "{resets:?}");
}
