//! Connections that the kernel serves and no list of the agent has are said.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::{Host, Network, SERVICE};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{PORT, in_sync, servers, service_v4, service_v6, stage, until};
use godwit_tests::stream::{connect, expect, send};

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

/// Two connections are older than the agent. They are said by name, until they have ended.
/// Then clients come and go, and one of the machine itself: nothing is said.
#[test]
fn a_connection_in_no_list_is_said() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    put_addresses(&lab);
    let clients = [service_v4(), service_v6()].map(|service: SocketAddr| {
        let mut stream = connect(lab.client(), service).expect("it listens");
        send(&mut stream, "echo\nhello\n").expect("it takes that");
        expect(&mut stream, "hello\n").expect("an echo");
        stream
    });
    let first = clients[0].local_addr().expect("it has one");
    let cluster = in_sync(&lab, ClusterOptions::default());
    let said = until("they are said", || unlisted(&cluster));
    let name = format!("2 connections are in no list, such as {first} -> 10.9.0.100:{PORT}");
    assert!(said.contains(&name), "{said}");
    drop(clients);
    until("it is taken back", || {
        unlisted(&cluster).is_none().then_some(())
    });
    let local = lab.a().enter(|| std::net::TcpStream::connect(service_v4()));
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
