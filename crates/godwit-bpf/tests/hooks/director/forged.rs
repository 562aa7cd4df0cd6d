//! Forged notes by the thousand, and in a figure by the million: where a director sends a
//! connection is a back-end's word with its tag, or nobody's.

use godwit_bpf::director::{Slot, Via};
use godwit_wire::{MacAddr, TagDemand};

use super::proved::trust;
use super::{BACKENDS, Bench, key, mac_of, on_bench};
use crate::bench::note;

const PORT: u16 = 1;

/// So many notes of `from`, about one connection of each family.
fn forge(bench: &Bench, from: MacAddr, notes: u32) {
    for number in 0..notes {
        let at = mac_of(BACKENDS[usize::from(number.to_be_bytes()[3]) % BACKENDS.len()]);
        let mut frame = note(PORT, number % 2 == 1, at);
        frame[..6].copy_from_slice(&godwit_lab::host::Host::A.mac(super::Network::Data).0);
        frame[6..12].copy_from_slice(&from.0);
        let irs = number.wrapping_mul(0x9e37_79b9);
        frame[22..26].copy_from_slice(&irs.to_be_bytes());
        if number % 4 > 1 {
            // With its order, and a guess where its tag is.
            frame[15] = 2;
            frame.extend(u64::from(number).to_be_bytes());
            let guess = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            frame.extend(guess.to_be_bytes());
        }
        for via in [Via::Xdp, Via::Tcx] {
            let trial = bench.director.try_frame(via, bench.ifindex, &frame);
            trial.expect("the kernel runs it");
        }
    }
}

/// The slots and the entries of those connections.
fn known(bench: &Bench) -> (Vec<Slot>, [bool; 2]) {
    let entries = [false, true].map(|v6| {
        let entry = bench.director.entries.get(key(PORT, v6));
        entry.expect("readable").is_some()
    });
    (bench.director.slots.all(0).expect("readable"), entries)
}

fn forge_all(notes: u32) {
    on_bench(None, |bench, _| {
        trust(bench, true, TagDemand::All);
        let before = known(bench);
        let counted = |bench: &Bench, name: &str| {
            let counts = bench.counts().into_iter();
            counts.filter(|it| it.0 == name).map(|it| it.1).sum::<u64>()
        };
        forge(bench, MacAddr([2, 0, 0, 0, 9, 9]), notes);
        assert_eq!(known(bench), before, "a stranger's");
        assert_eq!(counted(bench, "learn_refused"), 2 * u64::from(notes));
        forge(bench, mac_of(BACKENDS[0]), notes);
        assert_eq!(known(bench), before, "with a back-end's MAC");
        for reason in ["tag_missing", "tag_wrong"] {
            assert_eq!(counted(bench, reason), u64::from(notes), "{reason}");
        }
    });
}

/// The same with a million is a figure.
#[test]
fn a_forged_note_leads_nobody_astray() {
    forge_all(1000);
}

/// A million notes (docs/benchmarks.md).
#[test]
#[ignore = "takes a minute"]
fn a_million_forged_notes_lead_nobody_astray() {
    forge_all(1_000_000);
}
