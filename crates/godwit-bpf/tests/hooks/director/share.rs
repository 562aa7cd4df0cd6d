//! What other directors are to hear of connections.

use std::time::Duration;

use godwit_bpf::director::{Entry, Exception, Via};
use godwit_lab::host::{Host, Network};
use godwit_wire::SeqNumber;

use super::{ACK, BACKENDS, SYN, key, mac_of, on_bench};
use crate::bench::{IRS, note, to_service};

/// Longer than the ring needs to be read.
const SOON: Duration = Duration::from_millis(50);

/// An entry that is made, one that a back-end tells of, and one that has ended; nothing else.
#[test]
fn others_hear_of_entries_as_they_are_made() {
    on_bench(None, |bench, _| {
        let told = bench.director.exceptions().expect("there is a ring");
        bench.members[0].weight = 0;
        bench.change();
        for v6 in [false, true] {
            let slot = |port| bench.slots.get(bench.slot(&key(port, v6)));
            let mut ports = (1..400).map(|port| (port, slot(port)));
            let found = ports.find(|(_, slot)| slot.now != slot.base);
            let (port, slot) = found.expect("a slot has changed");
            let now = slot.now.expect("a back-end").0;
            let syn = to_service(port, v6, 77, 0, SYN, b"");
            let made = |backend: u16, irs: u32| {
                let (backend, irs) = (u32::from(backend), SeqNumber(irs));
                let entry = Some(Entry { backend, irs });
                let key = key(port, v6);
                vec![Exception { key, irs, entry }]
            };
            bench.begun(Via::Xdp, &syn);
            assert_eq!(told.wait(SOON), made(now, 77));
            bench.begun(Via::Tcx, &syn);
            bench.sent(Via::Xdp, &to_service(port, v6, 78, 9, ACK, b"x"));
            assert!(told.wait(SOON).is_empty(), "nothing is new");
            let base = slot.base.expect("a back-end").0;
            let to = BACKENDS.into_iter().find(|it| ![now, base].contains(it));
            let to = to.expect("there are three");
            let mut learnt = note(port, v6, mac_of(to));
            learnt[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
            learnt[6..12].copy_from_slice(&mac_of(now).0);
            bench.put(Via::Tcx, &learnt);
            assert_eq!(told.wait(SOON), made(to, IRS));
        }
        let old = (1..400).find(|port| {
            let entry = bench.director.entries.get(key(*port, false));
            entry.expect("readable").is_some()
        });
        let port = old.expect("there is one");
        // As before: its next connection needs none.
        bench.members[0].weight = 1;
        bench.change();
        bench.begun(Via::Xdp, &to_service(port, false, 99, 0, SYN, b""));
        let ended = Exception {
            key: key(port, false),
            irs: SeqNumber(99),
            entry: None,
        };
        assert_eq!(told.wait(SOON), [ended]);
    });
}
