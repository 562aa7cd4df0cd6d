use godwit_core::{Link, PeerId};
use nix::unistd::Uid;

use super::prepare::incarnation;
use super::*;
use crate::config::PeerRole;
use crate::control::{Client, find};
use crate::input::Inputs;
use crate::testing::{Pair, wait_for};

const OTHER: PeerId = PeerId(0);

/// Starting an agent takes its capabilities; without them a test can only say so.
fn is_privileged() -> bool {
    let privileged = Uid::effective().is_root();
    if !privileged {
        eprintln!("skipped: needs root");
    }
    privileged
}

fn start(config: &Config) -> (Edge, Inputs) {
    let prepared = Prepared::load(&config.path, PeerRole::Server).expect("ready to start");
    let (inbox, inputs) = Inbox::new();
    let (edge, _leases) = Edge::start(prepared, inbox).expect("started");
    (edge, inputs)
}

fn link(input: &Input, wanted: Link) -> Option<()> {
    let Input::Link { peer: OTHER, link } = input else {
        return None;
    };
    (*link == wanted).then_some(())
}

#[test]
fn two_edges_find_each_other_and_leave_nothing_behind() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new();
    let ((a, a_inputs), (b, b_inputs)) = (start(&pair.a), start(&pair.b));
    for (edge, inputs, name) in [(&a, &a_inputs, "a"), (&b, &b_inputs, "b")] {
        let up = wait_for(inputs, |input| link(&input, Link::Up));
        assert!(up.is_some(), "{name} is linked");
        edge.peers
            .send(OTHER, crate::testing::hello(name, 1))
            .expect("linked");
    }
    let run_dir = pair.a.node.run_dir.clone();
    assert_eq!(places(&run_dir), 2);
    a.shutdown();
    let down = wait_for(&b_inputs, |input| link(&input, Link::Down));
    assert!(down.is_some(), "b notices");
    b.shutdown();
    assert_eq!(places(&run_dir), 0);
}

/// Folders of agents; votes and starts of nodes are remembered beside them.
fn places(run_dir: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(run_dir).expect("there").flatten();
    entries.filter(|entry| entry.path().is_dir()).count()
}

#[test]
fn a_second_agent_of_a_node_is_refused() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new();
    let (edge, _inputs) = start(&pair.a);
    let error = Prepared::load(&pair.a.path, PeerRole::Server)
        .expect_err("taken")
        .to_string();
    assert!(
        error.starts_with("an agent of node \"a\" is already running"),
        "{error}"
    );
    let cookie = godwit_sock::netns_cookie().expect("Linux 5.14");
    let socket = find(&pair.a.node.run_dir, cookie, None).expect("one agent");
    drop(Client::connect(&socket).expect("it listens"));
    edge.shutdown();
}

/// The kernel closes the files of one that was killed some time later.
#[test]
fn a_place_that_becomes_free_in_a_moment_is_waited_for() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new();
    let taken = std::net::UdpSocket::bind(pair.a.own_peer().control).expect("free");
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(taken);
        });
        Prepared::load(&pair.a.path, PeerRole::Server).expect("it is free soon");
    });
}

#[test]
fn an_address_that_is_taken_is_named() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new();
    let address = pair.a.own_peer().control;
    let _taken = std::net::UdpSocket::bind(address).expect("free");
    // Before anything is changed.
    let error = Prepared::load(&pair.a.path, PeerRole::Server)
        .expect_err("taken")
        .to_string();
    assert!(
        error.starts_with(&format!("can't listen on {address}")),
        "{error}"
    );
}

/// Any account of the machine may take a port from 1024 on, and an agent that reloads has to
/// come back to its own.
#[test]
fn addresses_stay_taken_between_two_lives() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new();
    let text = std::fs::read_to_string(&pair.a.path).expect("it is there");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let metrics = free.expect("loopback");
    let text = text.replacen("[node]", &format!("[node]\nmetrics = \"{metrics}\""), 1);
    std::fs::write(&pair.a.path, text).expect("written");
    let control = pair.a.own_peer().control;
    let assert_taken = || {
        for address in [control, metrics] {
            let error = TcpListener::bind(address).expect_err("taken");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{address}");
        }
        let error = std::net::UdpSocket::bind(control).expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    };
    let (b, b_inputs) = start(&pair.b);
    let (edge, _inputs) = start(&pair.a);
    assert_taken();
    let up = wait_for(&b_inputs, |input| link(&input, Link::Up));
    assert!(up.is_some(), "each life is heard");
    let left = edge.shutdown();
    assert_taken();
    let config = Arc::new(Config::load(&pair.a.path).expect("it is valid"));
    let fresh = (config, left.identity());
    let prepared = Prepared::again(fresh, left).expect("another life");
    let (inbox, _inputs) = Inbox::new();
    let (edge, _leases) = Edge::start(prepared, inbox).expect("started");
    let up = wait_for(&b_inputs, |input| link(&input, Link::Up));
    assert!(up.is_some(), "each life is heard");
    edge.shutdown();
    b.shutdown();
    TcpListener::bind(control).expect("nothing is left behind");
}

#[test]
fn later_starts_have_greater_incarnations() {
    let first = incarnation();
    thread::sleep(Duration::from_millis(1));
    assert!(incarnation() > first);
}
