//! Servers behind a director that stand by for each other: each has connections of its own,
//! and twins of another one's.

use std::collections::BTreeSet;

use godwit_lab::cluster::Fencing;
use godwit_lab::host::{Host, SERVICE};
use godwit_tests::cells::{BACKENDS, Client};
use godwit_tests::ring::{Ring, next, of, on_ring, own};
use godwit_tests::stage::{assert_no_live_reset, until, witness};

/// A machine dies: its connections go on at its standby, those of others where they are, and
/// new ones are protected again.
fn one_dies(ring: &mut Ring<'_>) {
    let capture = witness(ring.lab);
    for host in BACKENDS {
        let ward = BACKENDS.into_iter().find(|it| next(*it) == host);
        let ward = of(ward.expect("it stands by for somebody"));
        let share = ring.share(host, &ward).expect("it has a part in it");
        assert_eq!((&*share.role, share.takeovers), ("shadow", 0), "{host}");
    }
    let mut clients: Vec<_> = BACKENDS
        .into_iter()
        .flat_map(|host| ring.clients_of(host).into_iter().map(move |it| (host, it)))
        .collect();
    for (host, client) in &clients {
        ring.wait_protected(*host, client);
    }
    ring.lab.crash(Host::B).expect("b crashes");
    for (host, client) in &mut clients {
        let by = client.served("/d/large");
        let wanted = if *host == Host::B { Host::C } else { *host };
        assert_eq!(by, wanted.name(), "{host}'s");
    }
    ring.wait_owner(Host::C, &of(Host::B), None);
    let share = ring.share(Host::C, &of(Host::B)).expect("it owns it");
    assert_eq!(share.takeovers, 1);
    // a has lost its standby, c has not.
    ring.wait_owner(Host::A, &own(), None);
    ring.wait_owner(Host::C, &own(), Some(Host::A));
    for (number, (host, client)) in clients.iter_mut().enumerate() {
        let by = client.served("/d/name");
        assert_eq!(by == "c", *host != Host::A, "{number}: {host}'s by {by}");
    }
    let mut new: Vec<_> = (0..8)
        .map(|number| Client::connect(ring.lab, SERVICE[number % 2]))
        .collect();
    let by: BTreeSet<_> = new.iter_mut().map(|it| it.served("/d/name")).collect();
    assert!(!by.contains("b"), "{by:?}");
    let fresh = ring.client_of(Host::C, SERVICE[0]);
    ring.wait_protected(Host::C, &fresh);
    assert_no_live_reset(&capture.finish().expect("it is complete"));
}

#[test]
fn a_machine_dies_and_its_standby_goes_on() {
    on_ring(Fencing::None, "", one_dies);
}

#[test]
fn each_share_has_a_lease_of_its_own() {
    on_ring(Fencing::Lease, "", one_dies);
}

/// Only the server of one machine dies: all that it had, and all twins that it had.
#[test]
fn a_server_dies_and_its_twins_with_it() {
    on_ring(Fencing::None, "", |ring| {
        let capture = witness(ring.lab);
        let mut clients: Vec<_> = BACKENDS
            .into_iter()
            .flat_map(|host| ring.clients_of(host).into_iter().map(move |it| (host, it)))
            .collect();
        for (host, client) in &clients {
            ring.wait_protected(*host, client);
        }
        let mut nginx = ring.nginx.remove(&Host::B).expect("it runs");
        nginx.process.kill().expect("it dies");
        for (host, client) in &mut clients {
            let by = client.served("/d/large");
            let wanted = if *host == Host::B { Host::C } else { *host };
            assert_eq!(by, wanted.name(), "{host}'s");
        }
        ring.wait_owner(Host::C, &of(Host::B), None);
        ring.wait_owner(Host::A, &own(), None);
        until("no new connections go there", || {
            let director = ring.cluster.status(Host::Director).ok()?.director?;
            (!director.services[0].slots.contains_key("b")).then_some(())
        });
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    });
}

/// It comes back: it stands by for two, each connection gets a new twin, and its share is its
/// own again when somebody says so.
#[test]
fn a_machine_comes_back_and_has_its_own_again() {
    on_ring(Fencing::None, "", |ring| {
        let capture = witness(ring.lab);
        let mut clients = ring.clients_of(Host::B);
        for client in &clients {
            ring.wait_protected(Host::B, client);
        }
        ring.lab.crash(Host::B).expect("b crashes");
        for client in &mut clients {
            assert_eq!(client.served("/d/name"), "c");
        }
        ring.cluster.power_off(Host::B).expect("it is off");
        ring.nginx.remove(&Host::B);
        ring.lab.reboot(Host::B).expect("it boots");
        ring.serve(Host::B);
        ring.cluster.start_agent(Host::B).expect("it starts");
        ring.wait_owner(Host::C, &of(Host::B), Some(Host::B));
        ring.wait_owner(Host::A, &own(), Some(Host::B));
        for client in &mut clients {
            ring.wait_protected(Host::C, client);
            assert_eq!(client.served("/d/large"), "c");
        }
        let moved = ring.cluster.hand_over(&of(Host::B), Host::C, Host::B);
        moved.expect("it is handed over");
        ring.wait_owner(Host::B, &own(), Some(Host::C));
        for client in &mut clients {
            assert_eq!(client.served("/d/large"), "b");
            ring.wait_protected(Host::B, client);
        }
        let fresh = ring.client_of(Host::B, SERVICE[1]);
        ring.wait_protected(Host::B, &fresh);
        ring.lab.crash(Host::B).expect("b crashes again");
        for client in clients.iter_mut().chain([&mut { fresh }]) {
            assert_eq!(client.served("/d/large"), "c");
        }
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    });
}

/// One after the other has failed and come back, and each has what was another's: new
/// connections begin there, are protected, and outlive the next failure.
#[test]
fn where_nobody_has_its_own_connections_begin_all_the_same() {
    on_ring(Fencing::None, "", |ring| {
        let capture = witness(ring.lab);
        let mut clients: Vec<_> = BACKENDS
            .into_iter()
            .flat_map(|host| ring.clients_of(host))
            .collect();
        for host in BACKENDS {
            let moved = ring.cluster.hand_over(&own(), host, next(host));
            moved.expect("it is handed over");
        }
        for host in BACKENDS {
            ring.wait_owner(next(host), &of(host), Some(host));
        }
        until("the director gives connections to all", || {
            let director = ring.cluster.status(Host::Director).ok()?.director?;
            let service = &director.services[0];
            (service.slots.len() == BACKENDS.len() && service.nobody == 0).then_some(())
        });
        for host in BACKENDS {
            let new = ring.clients_of(host);
            for client in &new {
                ring.wait_protected(host, client);
            }
            clients.extend(new);
        }
        ring.lab.crash(Host::B).expect("b crashes");
        for client in &mut clients {
            let by = client.served("/d/large");
            assert!(by == "a" || by == "c", "{by}");
        }
        ring.wait_owner(Host::A, &own(), None);
        let mut new = Client::connect(ring.lab, SERVICE[0]);
        new.served("/d/name");
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    });
}
