//! Back-ends that stand by for each other: what one had is another one's.

use godwit_bpf::director::{Backend, Via};

use super::{ACK, Act, BACKENDS, Bench, SYN, key, mac_of, on_bench};
use crate::bench::to_service;

/// All are followed: others may have what they had.
fn follow(bench: &Bench) {
    for number in BACKENDS {
        let table = &bench.director.backends;
        let backend = table.get(number).expect("it can be read");
        let backend = Backend {
            followed: true,
            ..backend.expect("it is there")
        };
        table.set(number, &backend).expect("there is room");
    }
}

/// To whom a frame goes, on account of who has taken over.
fn followed(bench: &Bench, via: Via, frame: &[u8]) -> u16 {
    let tries = std::iter::repeat_with(|| bench.put_once(via, frame)).take(20);
    let mut tries = tries.filter(|(_, reasons, _)| reasons.len() == 2);
    let (act, reasons, out) = tries.next().expect("two reasons");
    assert_eq!(act, Act::Send);
    assert!(
        reasons.iter().any(|it| it == "directed_owner"),
        "{reasons:?}"
    );
    let to = BACKENDS
        .into_iter()
        .find(|number| out[..6] == mac_of(*number).0);
    to.expect("to a back-end")
}

/// A connection that begins at who has taken over is that one's own, and an entry says so. One
/// that has lost its own share begins in what it has taken over, as the slot says.
#[test]
fn a_connection_begins_where_its_new_owner_begins_it() {
    on_bench(None, |bench, _| {
        follow(bench);
        for (port, v6) in [(1, false), (2, true)] {
            let home = bench.slots.get(bench.slot(&key(port, v6))).now;
            let home = home.expect("a back-end").0;
            let mut others = BACKENDS.into_iter().filter(|it| *it != home);
            let (owner, third) = (others.next(), others.next());
            let (owner, third) = owner.zip(third).expect("there are three");
            let posts = &bench.director.posts;
            let entry = || {
                let entry = bench.director.entries.get(key(port, v6));
                entry.expect("readable").map(|entry| entry.backend)
            };
            posts.set(0, home, owner).expect("there is room");
            posts.set(0, owner, third).expect("there is room");
            let data = to_service(port, v6, 9, 9, ACK, b"x");
            for via in [Via::Xdp, Via::Tcx] {
                let syn = to_service(port, v6, 77, 0, SYN, b"");
                assert_eq!(followed(bench, via, &syn), owner, "it has lost its own");
                assert_eq!(entry(), None);
                assert_eq!(followed(bench, via, &data), owner);
            }
            posts.set(0, owner, owner).expect("there is room");
            for via in [Via::Xdp, Via::Tcx] {
                let syn = to_service(port, v6, 78, 0, SYN, b"");
                bench.put_once(via, &syn);
                assert_eq!(entry(), Some(owner.into()), "its own");
                // What home had is third's by now: this one was never home's.
                posts.set(0, home, third).expect("there is room");
                assert_eq!(bench.sent(via, &data).0, Some(owner));
                posts.set(0, home, owner).expect("there is room");
            }
            posts.set(0, home, home).expect("there is room");
        }
    });
}
