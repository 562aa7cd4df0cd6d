//! Connections with twins that go from server to server with their requests: to a third one,
//! to the one that has their twin, and back; and what becomes of them when servers die.

use std::panic::{self, AssertUnwindSafe};
use std::thread;

use godwit_lab::cluster::Fencing;
use godwit_lab::host::{Host, SERVICE};
use godwit_lab::links::Loss;
use godwit_tests::cells::{BACKENDS, Client, OWN_RULES};
use godwit_tests::live_resets;
use godwit_tests::ring::{Ring, next, of, on_ring, on_ring_of, own};
use godwit_tests::stage::{assert_no_live_reset, flow, service_v4, service_v6, until, witness};

fn on_placed(work: impl FnOnce(&mut Ring<'_>)) {
    on_ring(Fencing::None, OWN_RULES, |ring| {
        for host in BACKENDS {
            until("it asks the others", || {
                let asks = ring.share(host, "web")?.asks?;
                (asks.len() == 2).then_some(())
            });
        }
        work(ring);
    });
}

/// One of each family that is a's, and protected.
fn of_a(ring: &Ring<'_>) -> Vec<Client> {
    let clients = ring.clients_of(Host::A);
    for client in &clients {
        ring.wait_protected(Host::A, client);
    }
    clients
}

/// Nobody but its owner and that one's standby has anything of it.
fn wait_placed(ring: &Ring<'_>, owner: Host, client: &Client) {
    ring.wait_protected(owner, client);
    for host in BACKENDS {
        let role = || Some(flow(&ring.cluster, host, client.local())?.role);
        let wanted = match host {
            it if it == owner => Some("owner"),
            it if it == next(owner) => Some("shadow"),
            _ => None,
        };
        until("only two have it", || {
            (role().as_deref() == wanted).then_some(())
        });
    }
}

/// To a third server, to the one that has the twin, and back; from each it goes on when that
/// dies.
#[test]
fn a_connection_goes_on_when_its_new_owner_dies() {
    for (letter, to) in [("b", Host::B), ("c", Host::C)] {
        on_placed(|ring| {
            let capture = witness(ring.lab);
            let mut clients = of_a(ring);
            for client in &mut clients {
                assert_eq!(client.served(&format!("/{letter}/name")), letter);
                wait_placed(ring, to, client);
                assert_eq!(client.served(&format!("/{letter}/large")), letter);
                assert_eq!(client.served(&format!("/{letter}/name")), letter);
            }
            assert_eq!(ring.counted(to, "came"), 2);
            assert_eq!(ring.counted(next(to), "twin_came"), 2);
            assert_eq!(ring.sum("not_confirmed"), 0);
            ring.lab.crash(to).expect("it crashes");
            for client in &mut clients {
                assert_eq!(client.served("/d/large"), next(to).name());
                assert_eq!(client.served("/d/name"), next(to).name());
            }
            ring.wait_owner(next(to), &of(to), None);
            assert_no_live_reset(&capture.finish().expect("it is complete"));
        });
    }
}

/// It goes round, and each time it is protected again, by somebody else.
#[test]
fn a_connection_goes_round_with_its_twin() {
    on_placed(|ring| {
        let capture = witness(ring.lab);
        let mut clients = of_a(ring);
        for letter in ["c", "b", "a", "b", "c", "a"] {
            for client in &mut clients {
                assert_eq!(client.served(&format!("/{letter}/name")), letter);
                let owner = BACKENDS.into_iter().find(|it| it.name() == letter);
                wait_placed(ring, owner.expect("a server"), client);
            }
        }
        // In a row, without a moment for anybody: a twin whose server is still at work on the
        // last reply does not make way, and the request is served where it is.
        let mut stayed = 0;
        for client in &mut clients {
            for letter in ["b", "c", "a"].repeat(8) {
                let by = client.served(&format!("/{letter}/name"));
                stayed += u64::from(by != letter);
            }
            let by = client.served("/d/large");
            let owner = BACKENDS.into_iter().find(|it| it.name() == by);
            wait_placed(ring, owner.expect("a server"), client);
        }
        let [asked, came, accepted] = ["asked", "came", "accepted"].map(|it| ring.sum(it));
        // An answer by way of a standby is read there, too.
        println!("asked {asked}, came {came}, accepted {accepted}, stayed {stayed}");
        assert!(came >= 12 + 24, "most of them go");
        assert_eq!(ring.sum("refused"), stayed);
        assert!(ring.sum("relayed") > 0);
        assert_eq!(ring.sum("twin_came"), came);
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    });
}

/// Of two servers each is the other's standby: a connection that goes changes places with its
/// twin, and outlives either.
#[test]
fn two_servers_change_places_with_a_request() {
    const TWO: &[Host] = &[Host::A, Host::B];
    let rules = OWN_RULES.split_inclusive("\n\n");
    let rules: String = rules.take(2).collect();
    on_ring_of(TWO, Fencing::None, &rules, |ring| {
        for host in TWO {
            until("it asks the other", || {
                let asks = ring.share(*host, "web")?.asks?;
                (asks.len() == 1).then_some(())
            });
        }
        let capture = witness(ring.lab);
        let mut clients = of_a(ring);
        for (letter, to) in [("b", Host::B), ("a", Host::A), ("b", Host::B)] {
            for client in &mut clients {
                assert_eq!(client.served(&format!("/{letter}/large")), letter);
                ring.wait_protected(to, client);
            }
        }
        assert_eq!(ring.sum("came"), 6);
        ring.lab.crash(Host::B).expect("b crashes");
        for client in &mut clients {
            assert_eq!(client.served("/d/large"), "a");
        }
        ring.wait_owner(Host::A, &of(Host::B), None);
        // It has both shares, and what was taken over stays.
        let mut new = Client::connect(ring.lab, SERVICE[1]);
        for client in clients.iter_mut().chain([&mut new]) {
            assert_eq!(client.served("/b/name"), "a");
        }
        assert!(ring.counted(Host::A, "kept_adopted") > 0);
        // It stands by for both, has its own again, and goes on with either.
        ring.cluster.power_off(Host::B).expect("it is off");
        ring.nginx.remove(&Host::B);
        ring.lab.reboot(Host::B).expect("it boots");
        ring.serve(Host::B);
        ring.cluster.start_agent(Host::B).expect("it starts");
        ring.wait_owner(Host::A, &own(), Some(Host::B));
        ring.wait_owner(Host::A, &of(Host::B), Some(Host::B));
        clients.extend([Client::connect(ring.lab, SERVICE[0]), new]);
        for client in &mut clients {
            assert_eq!(client.served("/d/name"), "a");
            ring.wait_protected(Host::A, client);
        }
        let moved = ring.cluster.hand_over(&of(Host::B), Host::A, Host::B);
        moved.expect("it is handed over");
        ring.wait_owner(Host::B, &own(), Some(Host::A));
        for client in &mut clients {
            client.served("/d/large");
        }
        ring.lab.crash(Host::A).expect("a crashes");
        for client in &mut clients {
            assert_eq!(client.served("/d/large"), "b");
        }
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    });
}

/// The answer does not arrive over the link, and its owner dies, whether the agents have settled
/// the question by then or not: its standby knows whom it has asked.
#[test]
fn an_owner_dies_while_its_question_is_open() {
    on_placed(|ring| {
        let capture = witness(ring.lab);
        let mut clients = of_a(ring);
        let answers = Loss {
            from: Host::C,
            to: Host::B,
            per_myriad: 10_000,
        };
        ring.lab.lose(answers).expect("the rule is set");
        for client in &mut clients {
            assert_eq!(client.served("/c/name"), "c");
        }
        assert_eq!(ring.counted(Host::C, "came"), 2);
        ring.lab.crash(Host::A).expect("a crashes");
        ring.wait_owner(Host::B, &of(Host::A), None);
        ring.lab
            .lose(Loss {
                per_myriad: 0,
                ..answers
            })
            .expect("the rule is set");
        for client in &mut clients {
            for path in ["/c/name", "/d/large", "/d/name"] {
                assert_eq!(client.served(path), "c", "{path}");
            }
        }
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    });
}

/// Who is asked dies before it has the question: its standby is asked in its place, or the
/// request is served where it is. Either way once.
#[test]
fn who_is_asked_dies() {
    on_placed(|ring| {
        let capture = witness(ring.lab);
        let mut clients = of_a(ring);
        ring.lab.crash(Host::C).expect("c crashes");
        for client in &mut clients {
            let by = client.served("/c/name");
            assert!(by == "a" || by == "b", "{by}");
            assert_eq!(client.served("/d/large"), by);
        }
        let mut late = Client::connect(ring.lab, SERVICE[0]);
        let by = late.served("/c/name");
        assert!(by == "a" || by == "b", "{by}");
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    });
}

/// What eight clients ask for, `rounds` times each, and what becomes of it.
fn ask_around(ring: &Ring<'_>, rounds: usize, meanwhile: impl FnOnce()) -> Vec<bool> {
    thread::scope(|scope| {
        let one = |number: usize| {
            let mut client = Client::connect(ring.lab, SERVICE[number % 2]);
            let local = client.local();
            let asked = panic::catch_unwind(AssertUnwindSafe(|| {
                for round in 0..rounds {
                    let letter = ["a", "b", "c"][(number * 7 + round * round) % 3];
                    client.served(&format!("/{letter}/name"));
                    if round % 16 == number {
                        client.served(&format!("/{letter}/large"));
                    }
                }
            }));
            if asked.is_err() {
                for host in BACKENDS {
                    println!("{local} at {host}: {:?}", flow(&ring.cluster, host, local));
                    let status = ring.cluster.status(host).expect("it answers");
                    println!("{host}: {:?}", status.data_path.reasons);
                }
            }
            asked.is_ok()
        };
        let all: Vec<_> = (0..8)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        meanwhile();
        all.into_iter()
            .map(|it| it.join().is_ok_and(|ok| ok))
            .collect()
    })
}

/// Questions, answers, twins and all that is mirrored are lost: each request is answered, with
/// its own bytes.
#[test]
fn what_is_lost_between_the_servers_is_said_again() {
    on_placed(|ring| {
        let capture = witness(ring.lab);
        for from in BACKENDS {
            for to in BACKENDS.into_iter().filter(|to| *to != from) {
                let per_myriad = 500;
                let loss = Loss {
                    from,
                    to,
                    per_myriad,
                };
                ring.lab.lose(loss).expect("the rule is set");
            }
        }
        let all = ask_around(ring, 32, || ());
        let trace = capture.finish().expect("it is complete");
        assert_no_live_reset(&trace);
        assert!(all.iter().all(|it| *it), "{all:?}");
        let [came, twins] = ["came", "twin_came"].map(|it| ring.sum(it));
        println!("came {came}, twins {twins}");
        assert!(twins < came, "some were lost");
    });
}

/// A machine dies while connections go round. One that came to it a moment ago, and has no
/// twin at its standby yet, is lost with it.
#[test]
fn a_machine_dies_while_connections_go_round() {
    on_placed(|ring| {
        let capture = witness(ring.lab);
        let all = ask_around(ring, 200, || {
            until("they are under way", || {
                (ring.sum("came") > 300).then_some(())
            });
            ring.lab.crash(Host::B).expect("b crashes");
        });
        ring.wait_owner(Host::C, &of(Host::B), None);
        let lost = all.iter().filter(|it| !**it).count();
        println!("lost {lost}");
        assert!(lost <= 1, "{all:?}");
        let resets = live_resets(
            &capture.finish().expect("it is complete"),
            &[service_v4(), service_v6()],
        );
        assert!(resets.len() <= lost, "{resets:?}");
    });
}
