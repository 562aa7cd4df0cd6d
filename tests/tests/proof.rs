//! A standby is in sync only while it proves that twins are born there; local clients.

use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    PORT, has_event, in_sync, servers, service_v4, service_v6, stage, until, wait_protected,
};
use godwit_tests::stream::{connect, expect, send};

/// Within this a standby that can bear no twins is said to be out of sync.
const NOTICED: Duration = Duration::from_secs(2);

/// Runs a program on a machine; whether it went well.
fn run(lab: &Lab, host: Host, program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args);
    let output = lab.node(host).run(command, DEADLINE).expect("it ends");
    output.status.success()
}

fn is_in_sync(cluster: &Cluster<'_>) -> Option<bool> {
    let status = cluster.status(Host::A).ok()?;
    let service = status.services.first()?;
    Some(!service.in_sync.is_empty())
}

/// A rule of the standby's firewall that twins do not pass: out with the reason, and
/// back when the rule is gone.
fn expect_noticed(rule: &str) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let rules = format!(
        "add table inet strict; \
         add chain inet strict in {{ type filter hook input priority filter; }}; \
         add rule inet strict in {rule}"
    );
    assert!(run(&lab, Host::B, "nft", &[&rules]), "the rule is taken");
    let since = Instant::now();
    until("b is not in sync", || {
        (!is_in_sync(&cluster)?).then_some(())
    });
    let noticed = since.elapsed();
    assert!(noticed < NOTICED, "{noticed:?}");
    until("a says why", || {
        let status = cluster.status(Host::A).ok()?;
        let said = |text: &String| text.contains("not_born");
        status.warnings.iter().any(said).then_some(())
    });
    assert!(run(&lab, Host::B, "nft", &["delete table inet strict"]));
    until("b is in sync again", || is_in_sync(&cluster)?.then_some(()));
    let status = cluster.status(Host::A).expect("a answers");
    let said = |text: &String| text.contains("not_born");
    assert!(!status.warnings.iter().any(said), "{status:?}");
}

#[test]
fn a_rule_new_but_not_syn_on_the_standby_is_noticed() {
    expect_noticed("tcp flags != syn ct state new drop");
}

#[test]
fn a_rule_for_one_family_on_the_standby_is_noticed() {
    expect_noticed("meta nfproto ipv6 tcp dport 80 drop");
}

/// A rule of the standby's firewall bans a client, whose short connections have no twin. They
/// end as others do, and what has ended is in nobody's way.
#[test]
fn a_client_that_the_standby_bans_leaves_nothing_behind() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let rules = format!(
        "add table inet strict; \
         add chain inet strict in {{ type filter hook input priority filter; }}; \
         add rule inet strict in ip saddr {} tcp dport {PORT} drop",
        Host::Client.v4()
    );
    assert!(run(&lab, Host::B, "nft", &[&rules]), "the rule is taken");
    for _ in 0..5 {
        let mut stream = connect(lab.client(), service_v4()).expect("it is served");
        send(&mut stream, "echo\nhello\n").expect("it takes that");
        expect(&mut stream, "hello\n").expect("an echo");
        drop(stream);
    }
    let lasting = connect(lab.client(), service_v6()).expect("it is served");
    let lasting = lasting.local_addr().expect("it has one");
    wait_protected(&cluster, Host::A, lasting);
    until("what has ended is forgotten", || {
        let flows = cluster.flows(Host::A).ok()?.flows;
        (flows.len() == 1).then_some(())
    });
    assert!(run(&lab, Host::B, "nft", &["delete table inet strict"]));
    cluster
        .hand_over("web", Host::A, Host::B)
        .expect("nothing is in the way");
}

/// Packets that the rule of [`twins_that_can_t_be_born_are_asked_for_ever_more_seldom`] has dropped.
fn dropped(lab: &Lab) -> u64 {
    let mut command = Command::new("nft");
    command.args(["list", "chain", "inet", "strict", "in"]);
    let output = lab.b().run(command, DEADLINE).expect("it ends");
    let text = output.stdout;
    let words: Vec<_> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "packets");
    let count = at.and_then(|at| words.get(at + 1)?.parse().ok());
    count.unwrap_or_else(|| panic!("no counter: {text}"))
}

/// A rule of the standby's firewall that twins of two clients do not pass, while canaries
/// and the third client's do.
#[test]
fn twins_that_can_t_be_born_are_asked_for_ever_more_seldom() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let mut clients = [service_v4(), service_v6(), service_v4()].map(|service| {
        let mut stream = connect(lab.client(), service).expect("it is served");
        send(&mut stream, "echo\nhello\n").expect("it takes that");
        expect(&mut stream, "hello\n").expect("an echo");
        stream
    });
    let locals = clients
        .each_ref()
        .map(|stream| stream.local_addr().expect("it has one"));
    for local in locals {
        wait_protected(&cluster, Host::A, local);
    }
    let ports = [locals[0].port(), locals[1].port()];
    let rules = format!(
        "add table inet strict; \
         add chain inet strict in {{ type filter hook input priority filter; }}; \
         add rule inet strict in tcp sport {{ {}, {} }} counter drop",
        ports[0], ports[1],
    );
    assert!(run(&lab, Host::B, "nft", &[&rules]), "the rule is taken");
    b.kill().expect("it runs");
    until("b is not in sync", || {
        (!is_in_sync(&cluster)?).then_some(())
    });
    let before = dropped(&lab);
    b = server::start(lab.b(), PORT).expect("the server starts again");
    wait_protected(&cluster, Host::A, locals[2]);
    thread::sleep(Duration::from_secs(3));
    let tries = dropped(&lab) - before;
    assert!(
        (2..100).contains(&tries),
        "{tries} packets in three seconds"
    );
    // The rule gone, it succeeds.
    assert!(run(&lab, Host::B, "nft", &["delete table inet strict"]));
    for (stream, local) in clients.iter_mut().zip(locals) {
        wait_protected(&cluster, Host::A, local);
        send(stream, "hello\n").expect("it takes that");
        expect(stream, "hello\n").expect("an echo");
    }
    drop(b);
}

/// Whether a process of `host` can connect.
fn connects(lab: &Lab, host: Host, service: SocketAddr) -> bool {
    let (ip, port) = (service.ip(), service.port());
    let script = format!("import socket; socket.create_connection(('{ip}', {port}), 3)");
    run(lab, host, "python3", &["-c", &script])
}

/// What a process of the standby says to the service must not reach the silent copy.
#[test]
fn a_local_client_of_a_standby_is_refused() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    for service in [service_v4(), service_v6()] {
        assert!(
            !connects(&lab, Host::B, service),
            "{service} on the standby"
        );
        assert!(connects(&lab, Host::A, service), "{service} on the owner");
    }
    let status = cluster.status(Host::B).expect("b answers");
    let refused = status.data_path.reasons.get("local_client_refused");
    assert_eq!(refused, Some(&2), "{status:?}");
}

/// Echoes lines over one connection, and says how that ended.
const LOCAL: &str = r#"
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
s.sendall(b"echo\n")
try:
    for i in range(500):
        s.sendall(b"%04d\n" % i)
        got = s.recv(5, socket.MSG_WAITALL)
        if got != b"%04d\n" % i: break
        if i == 0: print("well", flush=True)
        time.sleep(0.02)
    print("an end", flush=True)
except (ConnectionResetError, ConnectionAbortedError):
    print("a reset", flush=True)
"#;

/// A local client of `host`, which is served.
fn local_client(lab: &Lab, host: Host, service: SocketAddr) -> Process {
    let mut command = Command::new("python3");
    let (ip, port) = (service.ip().to_string(), service.port().to_string());
    command.args(["-c", LOCAL, &ip, &port]);
    let local = lab.node(host).spawn("local", command).expect("python runs");
    until("it is served", || {
        local.log().contains("well").then_some(())
    });
    local
}

fn expect_reset(local: &Process) {
    let log = until("it ends", || {
        Some(local.log()).filter(|text| text.lines().count() > 1)
    });
    assert_eq!(log.lines().nth(1), Some("a reset"), "{log}");
}

/// Nor must what it says on a connection that is older than the node's being a standby.
#[test]
fn a_local_client_is_ended_when_its_service_goes() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let mut stream = connect(lab.client(), service_v4()).expect("it listens");
    send(&mut stream, "echo\nhello\n").expect("it takes that");
    expect(&mut stream, "hello\n").expect("an echo");
    let services = [service_v4(), service_v6()];
    let locals = services.map(|service| local_client(&lab, Host::A, service));
    cluster
        .hand_over("web", Host::A, Host::B)
        .expect("it moves");
    for local in &locals {
        expect_reset(local);
    }
    send(&mut stream, "hello again\n").expect("it takes that");
    expect(&mut stream, "hello again\n").expect("others stay");
    assert!(has_event(&cluster, Host::A, "local_clients_ended"));
}

/// An owner whose agent is dead may not speak when its lease has ended: local clients are
/// refused, and when an agent is back those that are left are ended.
#[test]
fn a_local_client_of_an_owner_that_may_not_speak_is_refused() {
    let Some(lab) = stage(LabOptions {
        witness: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let _servers = servers(&lab);
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut cluster = in_sync(&lab, options);
    let services = [service_v4(), service_v6()];
    let locals = services.map(|service| local_client(&lab, Host::A, service));
    let agent = cluster.agent(Host::A).expect("it runs");
    agent.kill().expect("it runs");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for service in services {
        assert!(!connects(&lab, Host::A, service), "{service}, b owns it");
    }
    cluster.start_agent(Host::A).expect("it starts again");
    for local in &locals {
        expect_reset(local);
    }
    for service in services {
        assert!(!connects(&lab, Host::A, service), "{service}, b owns it");
    }
}
