//! The order of a ring's servers is another one in a changed file: who stands by for whom
//! changes under connections that go from server to server with their requests.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use godwit_lab::cluster::Fencing;
use godwit_lab::host::Host;
use godwit_tests::cells::{BACKENDS, Client, OWN_RULES};
use godwit_tests::change::{How, change};
use godwit_tests::ring::{Ring, on_ring, own};
use godwit_tests::stage::{assert_no_live_reset, until, witness};

const ONE_WAY: &str = "backups = [\"b\", \"c\"]";
const OTHER_WAY: &str = "backups = [\"c\", \"b\"]";

/// Orders in which three nodes take their files.
const ORDERS: [[Host; 4]; 4] = [
    [Host::A, Host::Director, Host::B, Host::C],
    [Host::A, Host::B, Host::Director, Host::C],
    [Host::B, Host::Director, Host::A, Host::C],
    [Host::C, Host::Director, Host::A, Host::B],
];

/// What each node is like after a change.
fn settle(ring: &Ring<'_>, round: usize) {
    for (at, host) in BACKENDS.into_iter().enumerate() {
        let step = if round.is_multiple_of(2) { 2 } else { 1 };
        ring.wait_owner(host, &own(), Some(BACKENDS[(at + step) % 3]));
    }
}

/// Goes round the servers as fast as it can until it is told to stop.
fn go_round(client: &mut Client, (done, served): (&AtomicBool, &AtomicU64)) {
    while !done.load(Ordering::Relaxed) {
        for letter in ["b", "c", "a"] {
            client.served(&format!("/{letter}/name"));
            served.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn servers_change_their_order_while_requests_move() {
    on_ring(Fencing::Lease, OWN_RULES, |ring| {
        for host in BACKENDS {
            until("it asks the others", || {
                let asks = ring.share(host, "web")?.asks?;
                (asks.len() == 2).then_some(())
            });
        }
        let capture = witness(ring.lab);
        let clients: Vec<_> = BACKENDS
            .into_iter()
            .flat_map(|host| ring.clients_of(host))
            .collect();
        let (done, served) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let workers = clients.into_iter().map(|mut client| {
                let told = (&done, &served);
                scope.spawn(move || go_round(&mut client, told))
            });
            let workers: Vec<_> = workers.collect();
            let changes = panic::catch_unwind(AssertUnwindSafe(|| {
                for round in 0..2 * ORDERS.len() {
                    let (from, to) = match round % 2 {
                        0 => (ONE_WAY, OTHER_WAY),
                        _ => (OTHER_WAY, ONE_WAY),
                    };
                    for host in ORDERS[round / 2 % ORDERS.len()] {
                        change(&mut ring.cluster, host, How::Reload, |text| {
                            text.replace(from, to)
                        });
                        thread::sleep(Duration::from_millis(30));
                    }
                    settle(ring, round);
                }
            }));
            done.store(true, Ordering::Relaxed);
            let lost = workers.into_iter().filter_map(|it| it.join().err()).count();
            if let Err(cause) = changes {
                panic::resume_unwind(cause);
            }
            assert_eq!(lost, 0, "every request is answered");
        });
        println!(
            "{} requests, {} moved",
            served.into_inner(),
            ring.sum("came")
        );
        let trace = capture.finish().expect("it is complete");
        assert_no_live_reset(&trace);
    });
}

/// Without a fence nobody has voted for who is in sync. An agent that starts takes the new
/// first backup for the one before, and clients wait for it, unless it finds that on the link.
#[test]
fn an_agent_that_starts_with_another_order_knows_who_stood_by() {
    on_ring(Fencing::None, OWN_RULES, |ring| {
        change(&mut ring.cluster, Host::A, How::Restart, |text| {
            text.replace(ONE_WAY, OTHER_WAY)
        });
        let left = until("who stood by leaves", || {
            let events = ring.cluster.event_text(Host::A).ok()?;
            let mut lines = events.lines();
            lines
                .find(|it| it.contains("standby_left"))
                .map(str::to_owned)
        });
        assert!(left.contains("peer=b"), "{left}");
    });
}
