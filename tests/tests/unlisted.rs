//! Connections that the kernel serves and no list of the agent has are said.

use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::{Host, Network, SERVICE};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{PORT, in_sync, servers, service_v4, service_v6, stage, until};
use godwit_tests::stream::{connect, expect, send};

/// A client asks again after 200 ms and 400 ms, should the first segment be lost.
const TOLD: Duration = Duration::from_secs(1);

/// The addresses are there before the agents are.
fn put_addresses(lab: &Lab) {
    for address in SERVICE {
        let mut command = Command::new("ip");
        command.args(["address", "add", &address.to_string(), "dev"]);
        command.arg(Network::Data.interface());
        if address.is_ipv6() {
            command.arg("nodad");
        }
        let output = lab.a().run(command, DEADLINE).expect("ip runs");
        assert!(output.status.success(), "{output:?}");
    }
}

fn unlisted(cluster: &Cluster<'_>) -> Option<String> {
    let status = cluster.status(Host::A).ok()?;
    let mut warnings = status.warnings.into_iter();
    warnings.find(|text| text.starts_with("unlisted"))
}

/// A connection in each family.
fn clients(lab: &Lab) -> [TcpStream; 2] {
    [service_v4(), service_v6()].map(|service: SocketAddr| {
        let mut stream = connect(lab.client(), service).expect("it listens");
        send(&mut stream, "echo\nhello\n").expect("it takes that");
        expect(&mut stream, "hello\n").expect("an echo");
        stream
    })
}

/// Two connections are older than the agent. They are said by name, until they have ended.
/// Then clients come and go, and one of the machine itself: nothing is said.
#[test]
fn a_connection_in_no_list_is_said() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    put_addresses(&lab);
    let clients = clients(&lab);
    let first = clients[0].local_addr().expect("it has one");
    let cluster = in_sync(&lab, ClusterOptions::default());
    let said = until("they are said", || unlisted(&cluster));
    let name = format!("2 connections are in no list, such as {first} -> 10.9.0.100:{PORT}");
    assert!(said.contains(&name), "{said}");
    drop(clients);
    until("it is taken back", || {
        unlisted(&cluster).is_none().then_some(())
    });
    let local = lab.a().enter(|| TcpStream::connect(service_v4()));
    let _local = local.expect("a namespace").expect("it owns the service");
    let end = Instant::now() + Duration::from_secs(4);
    let mut count = 0;
    while Instant::now() < end {
        for service in [service_v4(), service_v6()] {
            let mut stream = connect(lab.client(), service).expect("it listens");
            send(&mut stream, "echo\nhello\n").expect("it takes that");
            expect(&mut stream, "hello\n").expect("an echo");
            count += 1;
        }
        assert_eq!(unlisted(&cluster), None, "after {count} connections");
    }
}

/// Nobody has twins of them (ADR 28), so a takeover ends them: aloud, as soon as they speak.
#[test]
fn a_connection_in_no_list_is_reset_after_a_takeover() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    put_addresses(&lab);
    let clients = clients(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    until("they are said", || unlisted(&cluster));
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for mut stream in clients {
        send(&mut stream, "still there?\n").expect("it is connected");
        stream.set_read_timeout(Some(TOLD)).expect("not zero");
        let outcome = stream.read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(outcome, Err(ErrorKind::ConnectionReset));
    }
}
