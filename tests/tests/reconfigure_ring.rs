//! Files that change in a ring behind a director, with a witness: each node takes its own in
//! any order, while connections run.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use godwit_lab::cluster::Fencing;
use godwit_lab::host::{Host, SERVICE};
use godwit_tests::cells::{BACKENDS, Client};
use godwit_tests::change::{How, change, reload};
use godwit_tests::ring::{Ring, next, of, on_ring, own};
use godwit_tests::shape::values;
use godwit_tests::stage::{PORT, assert_no_live_reset, until, witness};

/// Where the second service is.
const SHOP: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 101)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x101)),
];

/// Where it goes.
const ELSEWHERE: &str = "10.9.0.103";

/// The second service before the first one, which it is like.
fn with_shop_first(text: &str) -> String {
    let first = text.find("[[service]]").expect("it has a service");
    let [v4, v6] = SERVICE.map(|address| address.to_string());
    let shop = text[first..]
        .replace("\"web\"", "\"shop\"")
        .replace(&format!("\"{v4}:"), &format!("\"{}:", SHOP[0]))
        .replace(&format!("[{v6}]:"), &format!("[{}]:", SHOP[1]));
    format!("{}{shop}\n{}", &text[..first], &text[first..])
}

type Edit = fn(&str) -> String;

fn without_shop(text: &str) -> String {
    let first = text.find("[[service]]").expect("it has services");
    let last = text.rfind("[[service]]").expect("it has services");
    assert_ne!(first, last);
    format!("{}{}", &text[..first], &text[last..])
}

/// All that each node must have after a change: its own share, with its standby.
fn settle(ring: &Ring<'_>) {
    for host in BACKENDS {
        ring.wait_owner(host, &own(), Some(next(host)));
    }
}

fn serve_on(clients: &mut [(Host, Client)], what: &str) {
    for (host, client) in clients {
        assert_eq!(client.served("/d/name"), host.name(), "{what}");
    }
}

/// The numbers by which a director's program knows the services at addresses in use; slots
/// go by them.
fn numbers(ring: &Ring<'_>) -> Vec<u32> {
    let pins = ring.cluster.pins(Host::Director).expect("it runs");
    let fronts = values(&pins, "gw_fronts").expect("the map is pinned");
    let numbers = fronts.into_iter().filter_map(|(key, value)| {
        let is_endpoint = key[16..18] == PORT.to_be_bytes();
        is_endpoint.then(|| u32::from_ne_bytes(value.try_into().expect("a word")))
    });
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// A service comes, moves and goes; each time the nodes take their files in that order.
/// Whatever knows the new file serves it; the connections of the other service stay where
/// they are. Then a machine dies: they are protected.
fn roll(ring: &mut Ring<'_>, order: [Host; 5], how: How) {
    let capture = witness(ring.lab);
    let mut clients: Vec<_> = BACKENDS
        .into_iter()
        .flat_map(|host| ring.clients_of(host).into_iter().map(move |it| (host, it)))
        .collect();
    let edits: [(&str, Edit); 3] = [
        ("it comes", with_shop_first),
        ("it moves", |text| text.replace("10.9.0.101", ELSEWHERE)),
        ("it goes", without_shop),
    ];
    for (at, (what, edit)) in edits.into_iter().enumerate() {
        for host in order {
            change(&mut ring.cluster, host, how, edit);
            serve_on(&mut clients, &format!("{what}: {host} {how:?}"));
            settle(ring);
        }
        let shop = [SHOP[0], ELSEWHERE.parse().expect("a literal")];
        if let Some(address) = shop.get(at) {
            until("the new service is served", || {
                Client::try_connect(ring.lab, (*address, PORT).into())
            });
            serve_on(&mut clients, &format!("{what}: it is served"));
            assert_eq!(numbers(ring).len(), 2, "each has slots of its own: {what}");
        }
    }
    // A director that starts reads its file before it loads its programs, and that takes a while.
    until("nothing is left of the other", || {
        (numbers(ring).len() == 1).then_some(())
    });
    for address in SHOP {
        let there = Client::try_connect(ring.lab, (address, PORT).into());
        assert!(there.is_none(), "{address} is nobody's");
    }
    for (host, client) in &clients {
        ring.wait_protected(*host, client);
    }
    ring.lab.crash(Host::B).expect("b crashes");
    for (host, client) in &mut clients {
        let wanted = if *host == Host::B { Host::C } else { *host };
        assert_eq!(client.served("/d/large"), wanted.name(), "{host}'s");
    }
    ring.wait_owner(Host::C, &of(Host::B), None);
    assert_no_live_reset(&capture.finish().expect("it is complete"));
}

/// Descriptors that the process of a node has open.
fn descriptors(ring: &mut Ring<'_>, host: Host) -> usize {
    let agent = ring.cluster.agent(host).expect("it runs");
    let folder = fs::read_dir(format!("/proc/{}/fd", agent.pid()));
    folder.expect("it runs").count()
}

/// Threads of a life that has ended go, with all that they had open: a process that takes its
/// file a hundred times in a minute needs no more than one that takes it once.
#[test]
fn a_life_leaves_nothing_open() {
    on_ring(Fencing::Lease, "", |ring| {
        for host in [Host::A, Host::Witness, Host::Director] {
            let before = descriptors(ring, host);
            for _ in 0..15 {
                let output = reload(&ring.cluster, host);
                assert!(output.status.success(), "{output:?}");
            }
            until("what was left is closed", || {
                (descriptors(ring, host) <= before + 10).then_some(())
            });
        }
    });
}

/// The list of servers is edited in another order: a's connections lose their twins on b and
/// get new ones on c, and so on. All stay where they are.
fn reorder(ring: &mut Ring<'_>, order: [Host; 5], how: How) {
    let capture = witness(ring.lab);
    let mut clients: Vec<_> = BACKENDS
        .into_iter()
        .flat_map(|host| ring.clients_of(host).into_iter().map(move |it| (host, it)))
        .collect();
    for (host, client) in &clients {
        ring.wait_protected(*host, client);
    }
    for host in order {
        change(&mut ring.cluster, host, how, |text| {
            text.replace("backups = [\"b\", \"c\"]", "backups = [\"c\", \"b\"]")
        });
        serve_on(&mut clients, &format!("{host} {how:?}"));
    }
    for (host, standby) in [(Host::A, Host::C), (Host::C, Host::B), (Host::B, Host::A)] {
        ring.wait_owner(host, &own(), Some(standby));
    }
    serve_on(&mut clients, "all have it");
    for (host, client) in &clients {
        ring.wait_protected(*host, client);
    }
    assert_no_live_reset(&capture.finish().expect("it is complete"));
}

#[test]
fn a_ring_in_another_order_keeps_every_connection() {
    on_ring(Fencing::Lease, "", |ring| {
        reorder(ring, OUTSIDE_IN, How::Reload)
    });
    on_ring(Fencing::Lease, "", |ring| {
        reorder(ring, INSIDE_OUT, How::Restart)
    });
}

const OUTSIDE_IN: [Host; 5] = [Host::Director, Host::Witness, Host::A, Host::B, Host::C];
const INSIDE_OUT: [Host; 5] = [Host::C, Host::A, Host::B, Host::Witness, Host::Director];

#[test]
fn a_ring_reloads_from_its_director_on() {
    on_ring(Fencing::Lease, "", |ring| {
        roll(ring, OUTSIDE_IN, How::Reload)
    });
}

#[test]
fn a_ring_reloads_up_to_its_director() {
    on_ring(Fencing::Lease, "", |ring| {
        roll(ring, INSIDE_OUT, How::Reload)
    });
}

#[test]
fn a_ring_restarts_from_its_director_on() {
    on_ring(Fencing::Lease, "", |ring| {
        roll(ring, OUTSIDE_IN, How::Restart)
    });
}

#[test]
fn a_ring_restarts_up_to_its_director() {
    on_ring(Fencing::Lease, "", |ring| {
        roll(ring, INSIDE_OUT, How::Restart)
    });
}
