//! Connections of servers whose snapshots are on the standby, and that no server there takes.

use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use godwit_lab::apps::server::REPLIES;
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::eager;
use godwit_tests::stage::{self, service_v4, service_v6, stage};
use godwit_tests::stream::{connect, expect, send};
use nix::sys::signal::Signal;

/// Bytes of a reply.
const REPLY: usize = 4096;

/// Requests, so that the client is far from where the connection began.
const REQUESTS: u64 = 64;

/// Longer than a server is waited for.
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
