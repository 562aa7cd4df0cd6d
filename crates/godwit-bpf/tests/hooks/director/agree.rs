//! The same steps in the core and in the kernel.

use std::collections::BTreeMap;

use godwit_bpf::director::Via;
use godwit_core::director::{BackendId, Entry, Placed, Route, Word};
use godwit_wire::{FlowKey, SeqNumber};

use super::{ACK, BACKENDS, Bench, FLOWS, SYN, key, on_bench, unknown};
use crate::bench::to_service;

/// What the core knows of connections, and where they are.
#[derive(Default)]
struct Model {
    entries: BTreeMap<FlowKey, Entry>,
    /// Back-end, client's port and family.
    held: BTreeMap<FlowKey, (u16, u16, bool)>,
    turn: usize,
}

impl Model {
    /// A SYN with that number, of a new connection or forged while one goes on, or another
    /// segment.
    fn say(&mut self, bench: &Bench, port: u16, v6: bool, syn: Option<(u32, bool)>) {
        let key = key(port, v6);
        let Some((irs, forged)) = syn else {
            let frame = to_service(port, v6, 9, 9, ACK, b"x");
            let got = self.put(bench, (port, v6), Word::Other, &frame);
            if let Some((backend, ..)) = self.held.get(&key) {
                let at = got.map(|it| it.backend.0);
                assert_eq!(at, Some(*backend), "{port}: it changed place");
            }
            return;
        };
        let frame = to_service(port, v6, irs, 0, SYN, b"");
        let irs = SeqNumber(irs);
        let mut placed = self.put(bench, (port, v6), Word::Syn(irs), &frame);
        let asked = placed.filter(|it| it.route == Route::Asked);
        let lives = self.held.get(&key).filter(|_| forged).map(|it| it.0);
        if let Some(asked) = asked.filter(|it| lives != Some(it.backend.0)) {
            let frame = unknown(asked.backend.0, &frame);
            let word = Word::Unknown(irs, asked.backend);
            placed = self.put(bench, (port, v6), word, &frame);
        }
        if let Some(placed) = placed.filter(|_| lives.is_none()) {
            self.held.insert(key, (placed.backend.0, port, v6));
        }
    }

    /// A frame, in the core and in the kernel.
    fn put(
        &mut self,
        bench: &Bench,
        (port, v6): (u16, bool),
        word: Word,
        frame: &[u8],
    ) -> Option<Placed> {
        self.turn += 1;
        let via = [Via::Xdp, Via::Tcx][self.turn % 2];
        let key = key(port, v6);
        let slot = bench.slots.get(bench.slot(&key));
        let there = |id: BackendId| !bench.gone.contains(&id);
        let before = self.entries.get(&key).copied();
        let placed = slot.place(word, before, there, |_| bench.tell);
        match placed.and_then(|placed| placed.entry) {
            Some(entry) => self.entries.insert(key, entry),
            None => self.entries.remove(&key),
        };
        let want = placed.map(|placed| placed.backend.0);
        let (got, reasons) = bench.sent(via, frame);
        assert_eq!(
            got, want,
            "{port}: {slot:?} {word:?} {before:?} {reasons:?}"
        );
        let number = |backend: u32| u16::try_from(backend).map(BackendId);
        let entry = bench.director.entries.get(key).expect("readable");
        let entry = entry.filter(|entry| number(entry.backend).is_ok_and(there));
        let wanted = self.entries.get(&key);
        let wanted = wanted.map(|entry| (u32::from(entry.backend.0), entry.irs));
        assert_eq!(entry.map(|it| (it.backend, it.irs)), wanted, "{port}");
        placed
    }
}

/// The same steps in the core and in the kernel, through changes of the table: the same
/// places, the same entries, and no connection that changes place.
#[test]
fn programs_and_core_agree() {
    for tell in [true, false] {
        on_bench(None, |bench, _| {
            bench.tell = tell;
            bench.change();
            agree(bench);
        });
    }
}

fn agree(bench: &mut Bench) {
    let mut model = Model::default();
    let changes: [fn(&mut Bench); 7] = [
        |_| (),
        |bench| bench.members[0].weight = 0,
        |bench| bench.members[0].weight = 3,
        |bench| bench.gone.push(BackendId(BACKENDS[1])),
        |bench| bench.members[2].weight = 2,
        |bench| bench.gone.clear(),
        |bench| bench.gone.extend(BACKENDS.map(BackendId)),
    ];
    for (round, change) in (0_u16..).zip(changes) {
        change(bench);
        bench.change();
        let gone = &bench.gone;
        model
            .held
            .retain(|_, (backend, ..)| !gone.contains(&BackendId(*backend)));
        let old: Vec<_> = model.held.values().copied().collect();
        for (_, port, v6) in old {
            model.say(bench, port, v6, None);
        }
        // Anybody can send a SYN.
        for port in (0..FLOWS).filter(|port| bench.tell && port % 3 == (round + 1) % 3) {
            let irs = 0x8000_0000 + u32::from(round);
            model.say(bench, port, port % 2 == 0, Some((irs, true)));
        }
        let old: Vec<_> = model.held.values().copied().collect();
        for (_, port, v6) in old {
            model.say(bench, port, v6, None);
        }
        // Some four-tuples are used again, and each SYN comes twice.
        for port in (0..FLOWS).filter(|port| port % 3 == round % 3) {
            for _ in 0..2 {
                model.say(bench, port, port % 2 == 0, Some((round.into(), false)));
            }
        }
    }
    let directed = |reason| bench.director.counters.by_name(reason);
    for reason in [
        "directed_entry",
        "directed_base",
        "directed_new",
        "no_backend",
    ] {
        assert!(directed(reason) > 0, "{reason} was never the reason");
    }
    assert_eq!(directed("entry_failed"), 0);
    assert_eq!(directed("directed_asked") > 0, bench.tell);
}
