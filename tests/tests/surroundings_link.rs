//! This node's place on the link changes while agents and clients are at it: it is
//! followed, or said, within a second.

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::{Host, Network, SERVICE};
use godwit_lab::{Lab, LabOptions};
use godwit_sock::Interface;
use godwit_tests::stage::{
    assert_no_reset, has_event, in_sync, servers, service_v4, service_v6, stage, until_within,
    wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use godwit_wire::{ArpOperation, ArpPacket, MacAddr, NeighbourAdvertisement};

/// One second is promised; a busy machine takes its turns besides.
const SOON: Duration = Duration::from_secs(2);

fn run(lab: &Lab, host: Host, line: &str) {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    let output = lab.node(host).run(command, DEADLINE).expect("it ends");
    assert!(output.status.success(), "{line}: {output:?}");
}

fn interface(lab: &Lab, host: Host) -> Interface {
    let read = || Interface::by_name(Network::Data.interface());
    let found = lab.node(host).enter(read).expect("the machine is there");
    found.expect("it has eth0")
}

/// Both families, under way.
fn echoes(lab: &Lab, cluster: &Cluster<'_>) -> [Traffic; 2] {
    [service_v4(), service_v6()].map(|service| {
        let one = Traffic::start(lab, service, Load::Echo);
        wait_protected(cluster, Host::A, one.local());
        one
    })
}

/// All that there is and what comes is protected, and lives on when a dies.
fn survives(lab: &Lab, cluster: &Cluster<'_>, old: [Traffic; 2]) {
    for one in &old {
        one.goes_on();
        wait_protected(cluster, Host::A, one.local());
    }
    let new = echoes(lab, cluster);
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in old.into_iter().chain(new) {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
}

fn another_mac(host: Host) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let old = echoes(&lab, &cluster);
    run(&lab, host, "ip link set eth0 address 02:00:00:00:aa:01");
    let other = if host == Host::A { Host::B } else { Host::A };
    until_within(SOON, "both know", || {
        let knows = has_event(&cluster, host, "interface_changed");
        let events = cluster.event_text(other).ok()?;
        (knows && events.contains("02:00:00:00:aa:01")).then_some(())
    });
    for host in Host::SERVERS {
        assert!(!has_event(&cluster, host, "address_conflict"), "{host}");
    }
    survives(&lab, &cluster, old);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

#[test]
fn the_owner_gets_another_mac_address() {
    another_mac(Host::A);
}

#[test]
fn the_standby_gets_another_mac_address() {
    another_mac(Host::B);
}

/// As the interface's down and up, a flush, or a manager of networks takes them.
#[test]
fn service_addresses_that_are_removed_are_put_back() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let old = echoes(&lab, &cluster);
    let [v4, v6] = SERVICE;
    for host in [Host::B, Host::A] {
        run(&lab, host, &format!("ip addr del {v6}/128 dev eth0"));
        until_within(SOON, "the IPv6 address is back", || {
            interface(&lab, host).addresses.contains(&v6).then_some(())
        });
        run(&lab, host, &format!("ip addr del {v4}/32 dev lo"));
        until_within(SOON, "the IPv4 address is back", || {
            let list = || godwit_sock::addresses().expect("netlink works");
            let there: Vec<(u32, IpAddr)> = lab.node(host).enter(list).ok()?;
            there.contains(&(1, v4)).then_some(())
        });
    }
    survives(&lab, &cluster, old);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Its frames go by a device that is deleted and made again with the same name.
fn made_anew(host: Host) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let other = if host == Host::A { Host::B } else { Host::A };
    run(&lab, host, "ip link set eth0 down");
    run(&lab, host, "ip link set eth0 name card");
    run(&lab, host, "sysctl -qw net.ipv4.conf.card.arp_ignore=1");
    run(&lab, host, "ip link set card address 02:00:00:00:ff:01 up");
    let make = || {
        let mac = host.mac(Network::Data);
        let line = format!("ip link add link card name eth0 address {mac} type macvlan");
        run(&lab, host, &line);
        run(&lab, host, "ip link set eth0 up");
        run(
            &lab,
            host,
            &format!("ip addr add {}/24 dev eth0", host.v4()),
        );
        run(
            &lab,
            host,
            &format!("ip addr add {}/64 dev eth0 nodad", host.v6()),
        );
    };
    run(&lab, host, "ip addr flush dev card");
    make();
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let before = interface(&lab, host).index;
    run(&lab, host, "ip link del eth0");
    until_within(SOON, "it is said", || {
        warns(&cluster, host, "interface: eth0").then_some(())
    });
    cluster.wait_owner(other, DEADLINE).expect("it owns");
    make();
    assert_ne!(interface(&lab, host).index, before);
    until_within(SOON, "it is taken back", || {
        has_event(&cluster, host, "interface_changed").then_some(())
    });
    cluster
        .wait_in_sync(other, DEADLINE)
        .expect("it is in sync again");
    if host == Host::A {
        // Back to where the tests have it.
        let service = cluster.status(Host::B).expect("it answers").services[0]
            .name
            .clone();
        let moved = cluster.hand_over(&service, Host::B, Host::A);
        moved.expect("it is handed over");
        cluster
            .wait_in_sync(Host::A, DEADLINE)
            .expect("b is in sync");
    }
    let old = echoes(&lab, &cluster);
    survives(&lab, &cluster, old);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

#[test]
fn the_standbys_interface_is_made_anew() {
    made_anew(Host::B);
}

#[test]
fn the_owners_interface_is_made_anew() {
    made_anew(Host::A);
}

fn warns(cluster: &Cluster<'_>, host: Host, what: &str) -> bool {
    let status = cluster.status(host).expect("the agent answers");
    status.warnings.iter().any(|text| text.contains(what))
}

/// The standby's place is wrong: it leaves, and is in sync again when it is right.
fn leaves_until(fact: &str, wrong: &[&str], right: &[&str]) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let old = echoes(&lab, &cluster);
    for line in wrong {
        run(&lab, Host::B, line);
    }
    until_within(SOON, fact, || warns(&cluster, Host::B, fact).then_some(()));
    until_within(SOON, "nobody is in sync", || {
        let status = cluster.status(Host::A).expect("the agent answers");
        status.services[0].in_sync.is_empty().then_some(())
    });
    old.iter().for_each(Traffic::goes_on);
    for line in right {
        run(&lab, Host::B, line);
    }
    until_within(SOON, fact, || {
        (!warns(&cluster, Host::B, fact)).then_some(())
    });
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b is in sync again");
    drop(old);
    let old = echoes(&lab, &cluster);
    survives(&lab, &cluster, old);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

#[test]
fn a_standby_whose_interface_became_a_port_of_a_bridge_leaves_until_it_is_none() {
    leaves_until(
        "master: eth0 is a port of br9",
        &["ip link add br9 type bridge", "ip link set eth0 master br9"],
        &["ip link set eth0 nomaster"],
    );
}

/// The kernel takes IPv6 addresses from an interface that goes down, and routes with them.
#[test]
fn a_standby_whose_interface_was_down_has_no_way_to_clients_until_it_has_its_address() {
    let own = format!("ip addr add {}/64 dev eth0 nodad", Host::B.v6());
    leaves_until(
        "interface_address: eth0 has no IPv6",
        &["ip link set eth0 down", "ip link set eth0 up"],
        &[&own],
    );
}

#[test]
fn a_carrier_that_is_lost_is_said_and_taken_back() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    for _ in 0..2 {
        let fact = "carrier: eth0 is down or has no carrier";
        lab.unplug(Host::B, Network::Data).expect("it has a port");
        until_within(SOON, fact, || warns(&cluster, Host::B, fact).then_some(()));
        lab.plug(Host::B, Network::Data).expect("it has a port");
        until_within(SOON, fact, || {
            (!warns(&cluster, Host::B, fact)).then_some(())
        });
    }
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b is in sync again");
    let old = echoes(&lab, &cluster);
    survives(&lab, &cluster, old);
}

/// A lab in which the client is behind a router.
fn stage_behind_a_router() -> Option<Lab> {
    let lab = stage(LabOptions {
        attacker: true,
        ..LabOptions::default()
    })?;
    behind_a_router(&lab);
    Some(lab)
}

/// The client's address is behind another machine, which forwards.
fn behind_a_router(lab: &Lab) {
    let (router, client) = (Host::Attacker, Host::Client);
    for setting in [
        "net.ipv4.ip_forward=1",
        "net.ipv4.conf.all.send_redirects=0",
        "net.ipv4.conf.eth0.send_redirects=0",
        "net.ipv6.conf.all.forwarding=1",
    ] {
        run(lab, router, &format!("sysctl -qw {setting}"));
    }
    for host in [client, Host::A, Host::B] {
        run(
            lab,
            host,
            "sysctl -qw net.ipv6.conf.eth0.accept_redirects=0",
        );
    }
    let [v4, v6] = SERVICE;
    run(lab, client, "ip addr add 192.0.2.10/32 dev lo");
    run(lab, client, "ip addr add 2001:db8:a::10/128 dev lo");
    let (by_v4, by_v6) = (router.v4(), router.v6());
    for line in [
        format!("ip route add {v4}/32 via {by_v4} src 192.0.2.10"),
        format!("ip route add {v6}/128 via {by_v6} src 2001:db8:a::10"),
    ] {
        run(lab, client, &line);
    }
    for host in Host::SERVERS {
        run(lab, host, &format!("ip route add 192.0.2.0/24 via {by_v4}"));
        run(
            lab,
            host,
            &format!("ip route add 2001:db8:a::/64 via {by_v6}"),
        );
    }
    run(
        lab,
        router,
        &format!("ip route add 192.0.2.0/24 via {}", client.v4()),
    );
    run(
        lab,
        router,
        &format!("ip route add 2001:db8:a::/64 via {}", client.v6()),
    );
}

/// Clients are behind a router, and another machine takes its address, as VRRP does.
#[test]
fn the_gateway_gets_another_mac_address() {
    let Some(lab) = stage_behind_a_router() else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let old = echoes(&lab, &cluster);
    assert!(
        old[0].local().ip().to_string() == "192.0.2.10",
        "by the router"
    );
    let (router, mac) = (Host::Attacker, MacAddr([2, 0, 0, 0, 0xaa, 2]));
    let (by_v4, by_v6) = (router.v4(), router.v6());
    run(&lab, router, &format!("ip link set eth0 address {mac}"));
    let frames = [
        ArpPacket::gratuitous(ArpOperation::Request, by_v4, mac).broadcast_frame(),
        NeighbourAdvertisement { target: by_v6, mac }.multicast_frame(),
    ];
    let sent = lab.node(router).send_frames(&frames);
    sent.expect("the machine is there");
    survives(&lab, &cluster, old);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// It may be as silent to the other node: that is said, and nothing moves.
#[test]
fn a_gateway_that_does_not_answer_is_said() {
    let Some(lab) = stage_behind_a_router() else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let old = echoes(&lab, &cluster);
    let router = Host::Attacker;
    let answers = |lab: &Lab, yes: bool| {
        let ignore = if yes { 0 } else { 8 };
        let setting = format!("sysctl -qw net.ipv4.conf.eth0.arp_ignore={ignore}");
        run(lab, router, &setting);
        run(lab, Host::A, "ip neigh flush dev eth0");
    };
    answers(&lab, false);
    let silent = format!("router {} does not answer", router.v4());
    until_within(2 * SOON, &silent, || {
        warns(&cluster, Host::A, &silent).then_some(())
    });
    answers(&lab, true);
    until_within(2 * SOON, "taken back", || {
        (!warns(&cluster, Host::A, &silent)).then_some(())
    });
    old.iter().for_each(Traffic::goes_on);
    cluster
        .wait_owner(Host::A, DEADLINE)
        .expect("it has stayed");
}

/// The routes to clients, taken away at one machine or given back.
fn routes(lab: &Lab, host: Host, there: bool) {
    let (by_v4, by_v6) = (Host::Attacker.v4(), Host::Attacker.v6());
    let verb = if there { "add" } else { "del" };
    for line in [
        format!("ip route {verb} 192.0.2.0/24 via {by_v4}"),
        format!("ip route {verb} 2001:db8:a::/64 via {by_v6}"),
    ] {
        run(lab, host, &line);
    }
}

const NO_ROUTE: &str = "no route leads there";

/// No client can be answered from there: an owner hands over, a standby leaves.
#[test]
fn who_has_no_route_to_clients_serves_none_until_it_has() {
    let Some(lab) = stage_behind_a_router() else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let old = echoes(&lab, &cluster);
    routes(&lab, Host::A, false);
    cluster
        .wait_owner(Host::B, DEADLINE)
        .unwrap_or_else(|error| {
            panic!("{error:#}: {:?}", cluster.event_text(Host::A));
        });
    old.iter().for_each(Traffic::goes_on);
    assert!(warns(&cluster, Host::A, NO_ROUTE));
    routes(&lab, Host::A, true);
    cluster
        .wait_in_sync(Host::B, DEADLINE)
        .expect("a is in sync again");
    routes(&lab, Host::A, false);
    until_within(SOON, NO_ROUTE, || {
        warns(&cluster, Host::A, NO_ROUTE).then_some(())
    });
    until_within(SOON, "nobody is in sync", || {
        let status = cluster.status(Host::B).expect("the agent answers");
        status.services[0].in_sync.is_empty().then_some(())
    });
    old.iter().for_each(Traffic::goes_on);
    routes(&lab, Host::A, true);
    cluster
        .wait_in_sync(Host::B, DEADLINE)
        .expect("a is in sync again");
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Clients on the link are reached all the same: those behind the router are better served by
/// the other node. A standby stays, for others have twins there. An answer that could not be
/// sent is no measure for its twin.
#[test]
fn an_owner_that_does_not_reach_all_clients_hands_over() {
    let Some(lab) = stage_behind_a_router() else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let old = echoes(&lab, &cluster);
    // Its routes to the client's IPv4 addresses are gone, those to IPv6 are there.
    let route = |host: Host, verb: &str| {
        let by = Host::Attacker.v4();
        run(
            &lab,
            host,
            &format!("ip route {verb} 192.0.2.0/24 via {by}"),
        );
    };
    route(Host::B, "del");
    until_within(SOON, NO_ROUTE, || {
        warns(&cluster, Host::B, NO_ROUTE).then_some(())
    });
    let refused = cluster.hand_over("web", Host::A, Host::B);
    assert!(refused.is_err(), "some would hear nothing");
    route(Host::B, "add");
    until_within(SOON, NO_ROUTE, || {
        (!warns(&cluster, Host::B, NO_ROUTE)).then_some(())
    });
    for echo in &old {
        wait_protected(&cluster, Host::A, echo.local());
    }
    route(Host::A, "del");
    cluster.wait_owner(Host::B, DEADLINE).expect("it is moved");
    old.iter().for_each(Traffic::goes_on);
    route(Host::A, "add");
    cluster
        .wait_in_sync(Host::B, DEADLINE)
        .expect("a is in sync");
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// A ban of one client is somebody's will: it is said, and costs no other anything.
#[test]
fn a_client_that_a_route_drops_is_said() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let old = echoes(&lab, &cluster);
    let client = old[0].local().ip();
    for kind in ["blackhole", "unreachable", "prohibit"] {
        run(&lab, Host::B, &format!("ip route add {kind} {client}/32"));
        let fact = format!("of type {kind} drops it");
        until_within(SOON, kind, || warns(&cluster, Host::B, &fact).then_some(()));
        run(&lab, Host::B, &format!("ip route del {kind} {client}/32"));
        until_within(SOON, kind, || {
            (!warns(&cluster, Host::B, &fact)).then_some(())
        });
    }
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b has been in sync");
    survives(&lab, &cluster, old);
}

/// What can't be followed is said, and taken back.
#[test]
fn what_is_wrong_with_the_link_is_said_and_taken_back() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let own = format!("{}/24 dev eth0", Host::A.v4());
    let cases = [
        (
            "mtu: ",
            "ip link set eth0 mtu 1400",
            "ip link set eth0 mtu 1500",
        ),
        (
            "qdisc: ",
            "tc qdisc add dev eth0 root tbf rate 1gbit burst 64kb latency 9ms",
            "tc qdisc del dev eth0 root",
        ),
        (
            "own_address: ",
            &format!("ip addr del {own}"),
            &format!("ip addr add {own}"),
        ),
    ];
    for (fact, wrong, right) in cases {
        let is_said = || {
            let status = cluster.status(Host::A).expect("the agent answers");
            status.warnings.iter().any(|text| text.starts_with(fact))
        };
        assert!(!is_said(), "{fact} before");
        run(&lab, Host::A, wrong);
        until_within(SOON, fact, || is_said().then_some(()));
        run(&lab, Host::A, right);
        until_within(SOON, fact, || (!is_said()).then_some(()));
    }
}
