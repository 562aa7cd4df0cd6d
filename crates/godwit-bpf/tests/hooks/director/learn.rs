//! What back-ends say of connections that have gone from one of them to another.

use godwit_bpf::director::{Backend, Slot, Via};
use godwit_core::director::BackendId;
use godwit_lab::host::{Host, Network};
use godwit_wire::MacAddr;

use super::{ACK, Act, BACKENDS, SYN, key, mac_of, on_bench};
use crate::bench::{note, to_service};

/// A note, as a back-end sends it to this machine.
fn noted(port: u16, v6: bool, from: MacAddr, at: MacAddr) -> Vec<u8> {
    let mut frame = note(port, v6, at);
    frame[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
    frame[6..12].copy_from_slice(&from.0);
    frame
}

/// The connection's segments go there from then on, until its four-tuple is used again; a
/// change of the table alters nothing.
#[test]
fn a_back_end_says_where_a_connection_is_now() {
    on_bench(None, |bench, _| {
        for (port, v6) in [(1, false), (2, true)] {
            let home = bench.slots.get(bench.slot(&key(port, v6))).now;
            let home = home.expect("a back-end").0;
            let to = BACKENDS.into_iter().find(|it| *it != home);
            let to = to.expect("there are three");
            let frame = noted(port, v6, mac_of(home), mac_of(to));
            bench.expect("a note", &frame, Act::Stop, "learnt");
            let entry = vec!["directed_entry".to_owned()];
            let data = to_service(port, v6, 9, 9, ACK, b"x");
            for via in [Via::Xdp, Via::Tcx] {
                assert_eq!(bench.sent(via, &data), (Some(to), entry.clone()));
            }
            // As somebody writes it who knows of nothing that was learnt.
            let slot = Slot {
                now: Some(home),
                base: Some(home),
                mixed: false,
            };
            let at = bench.slot(&key(port, v6));
            let written = bench.director.slots.set(0, [(at, slot)]);
            written.expect("it is written");
            for via in [Via::Xdp, Via::Tcx] {
                assert_eq!(bench.sent(via, &data), (Some(to), entry.clone()));
            }
            let syn = to_service(port, v6, 77, 0, SYN, b"");
            let (asked, reasons) = bench.sent(Via::Tcx, &syn);
            assert_eq!(
                (asked, &*reasons),
                (Some(to), &["directed_asked".to_owned()][..])
            );
            let (begun, reasons) = bench.begun(Via::Tcx, &syn);
            assert_eq!(
                (begun, &*reasons),
                (Some(home), &["directed_new".to_owned()][..])
            );
        }
    });
}

/// Two back-ends have changed cards: whoever is written first, both may speak, each as
/// what it is now.
#[test]
fn back_ends_that_swap_their_addresses_may_still_say_where_connections_are() {
    on_bench(None, |bench, _| {
        let [one, two, home] = BACKENDS;
        let backends = &bench.director.backends;
        for (number, mac) in [(two, mac_of(one)), (one, mac_of(two))] {
            let known = backends.get(number).expect("readable").expect("it is one");
            let swapped = Backend { mac, ..known };
            backends.set(number, &swapped).expect("there is room");
        }
        for (port, at) in [(1, one), (2, two)] {
            let frame = noted(port, false, mac_of(home), mac_of(at));
            bench.expect("a note", &frame, Act::Stop, "learnt");
            let other = if at == one { two } else { one };
            let entry = bench.director.entries.get(key(port, false));
            let entry = entry.expect("readable").expect("it is there");
            assert_eq!(entry.backend, u32::from(other));
        }
    });
}

/// Only of what is there, and of services; broken ones say nothing.
#[test]
fn nobody_else_says_where_a_connection_is() {
    on_bench(None, |bench, _| {
        let [one, two] = [BACKENDS[0], BACKENDS[1]].map(mac_of);
        let stranger = MacAddr([2, 0, 0, 0, 9, 9]);
        let mut foreign = noted(1, false, one, two);
        foreign[14 + 34] ^= 1;
        let mut version = noted(1, false, one, two);
        version[15] = 2;
        let mut kind = noted(1, false, one, two);
        kind[14] = 9;
        let short = noted(1, false, one, two)[..70].to_vec();
        let refused = [
            ("from a stranger", noted(1, false, stranger, two)),
            ("at a stranger", noted(1, false, one, stranger)),
            ("another port", foreign),
            ("another version", version),
            ("another kind", kind),
            ("cut off", short),
        ];
        for (what, frame) in &refused {
            bench.expect(what, frame, Act::Stop, "learn_refused");
        }
        bench.gone.push(BackendId(BACKENDS[1]));
        bench.change();
        let gone = noted(1, false, one, two);
        bench.expect("at one that is gone", &gone, Act::Stop, "learn_refused");
        let gone = noted(1, false, two, one);
        bench.expect("from one that is gone", &gone, Act::Stop, "learn_refused");
        assert_eq!(bench.director.entries.count().expect("readable"), 0);
    });
}
