//! Segments that are signed, or hold urgent data, from the client to a server that serves.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::cluster::ClusterOptions;
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::stage::{
    PORT, assert_unnoticed, flow, in_sync, service_v4, service_v6, stage, throughout, wait_flow,
    wait_in_sync, wait_protected, witness,
};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use nix::sys::socket::MsgFlags;

/// TCP-MD5 (RFC 2385), as `linux/tcp.h` has it: the key of an address.
const SIGNED: &str = r#"
import socket, struct, sys, time
KEY, TCP_MD5SIG = b"a shared secret", 14
def sign(s, host):
    if ":" in host: name = struct.pack("@HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, host), 0)
    else: name = struct.pack("@HH4s", socket.AF_INET, 0, socket.inet_aton(host))
    s.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, name.ljust(128, b"\0") + struct.pack("@BBHI80s", 0, 0, len(KEY), 0, KEY))
"#;

/// Echoes what comes, each connection in a process; the arguments are a port and addresses
/// whose segments are signed. Reads that block: tokio takes one that ends at an urgent mark
/// for the last.
const SERVER: &str = r#"
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("::", int(sys.argv[1])))
for host in sys.argv[2:]: sign(s, host if ":" in host else "::ffff:" + host)
s.listen(16)
while True:
    c, _ = s.accept()
    if os.fork() == 0:
        s.close()
        while (b := c.recv(4096)): c.sendall(b)
        os._exit(0)
    c.close()
"#;

/// Says a line each 20 ms for 2 s; fails if an answer takes longer than a second.
const SIGNED_CLIENT: &str = r#"
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family); s.settimeout(5); sign(s, sys.argv[1])
s.bind(("", int(sys.argv[3])))
s.connect((sys.argv[1], int(sys.argv[2]))); s.settimeout(1)
for i in range(100):
    line = b"%04d\n" % i
    s.sendall(line)
    assert s.recv(5, socket.MSG_WAITALL) == line
    time.sleep(0.02)
"#;

fn python(script: &str, args: &[String]) -> Command {
    let mut command = Command::new("python3");
    command.arg("-c").arg([SIGNED, script].concat()).args(args);
    command
}

fn server(lab: &Lab, host: Host, signing: &[String]) -> Process {
    let args = [&[PORT.to_string()], signing].concat();
    lab.node(host)
        .spawn("echoing", python(SERVER, &args))
        .expect("python runs")
}

/// A client that signs is served at the pace of plain TCP, named unprotected, and nothing
/// else changes; it never was so that it could not be served at all.
#[test]
fn a_connection_that_is_signed_is_served_and_named() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let clients = [Host::Client.v4().to_string(), Host::Client.v6().to_string()];
    let _servers = Host::SERVERS.map(|host| server(&lab, host, &clients));
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    for (service, port) in [(service_v4(), 5001_u16), (service_v6(), 5002)] {
        let args = [
            service.ip().to_string(),
            service.port().to_string(),
            port.to_string(),
        ];
        let mut client = lab
            .client()
            .spawn("signing", python(SIGNED_CLIENT, &args))
            .expect("python runs");
        let local = SocketAddr::new(
            if service.is_ipv4() {
                Host::Client.v4().into()
            } else {
                Host::Client.v6().into()
            },
            port,
        );
        let report = wait_flow(&cluster, Host::A, local, |it| it.state == "unprotected");
        assert_eq!(report.reason.as_deref(), Some("signed_segments"));
        assert_eq!(report.reprotect.as_deref(), Some("signed"));
        let status = client.wait(DEADLINE).expect("it ends");
        assert!(status.success(), "{service}: {}", client.log());
    }
    let status = cluster.status(Host::A).expect("a answers");
    assert_eq!(status.services[0].in_sync, ["b"], "{status:?}");
    assert_unnoticed(capture);
}

/// Ordinary bytes around an urgent one; a reader that does not ask for it does not get it.
fn exclaim(stream: &mut TcpStream) {
    send(stream, "to").expect("it holds");
    let sent = nix::sys::socket::send(
        std::os::fd::AsRawFd::as_raw_fd(stream),
        b"!",
        MsgFlags::MSG_OOB,
    );
    assert_eq!(sent, Ok(1));
    send(stream, "gether\n").expect("it holds");
    expect(stream, "together\n").expect("it is answered");
}

/// Urgent data reach twin and owner alike, so the connection outlives its owner. A twin
/// that comes later could not be told of the mark: it is not protected again, and says so.
#[test]
fn urgent_data_outlive_an_owner_and_are_not_said_again() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| server(&lab, host, &[]));
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let mut streams = [service_v4(), service_v6()].map(|service| {
        let mut stream = connect(lab.client(), service).expect("it listens");
        exclaim(&mut stream);
        wait_protected(&cluster, Host::A, stream.local_addr().expect("connected"));
        stream
    });
    lab.crash(Host::A).expect("it goes dark");
    cluster.wait_owner(Host::B, DEADLINE).expect("b owns");
    for stream in &mut streams {
        let since = Instant::now();
        exclaim(stream);
        assert!(since.elapsed() < STALL_LIMIT, "{:?}", since.elapsed());
    }
    lab.reboot(Host::A).expect("it boots");
    servers[0] = server(&lab, Host::A, &[]);
    cluster.start_agent(Host::A).expect("its agent starts");
    wait_in_sync(&mut cluster, Host::B);
    for stream in &mut streams {
        let local = stream.local_addr().expect("connected");
        let report = wait_flow(&cluster, Host::B, local, |it| {
            it.reprotect.as_deref() == Some("urgent_data")
        });
        assert!(!report.protected, "{report:?}");
        exclaim(stream);
    }
    throughout("it stays unprotected", Duration::from_millis(300), || {
        streams.iter().all(|stream| {
            let local = stream.local_addr().expect("connected");
            flow(&cluster, Host::B, local).is_some_and(|it| !it.protected)
        })
    });
    for stream in &mut streams {
        exclaim(stream);
    }
    assert_unnoticed(capture);
}
