//! Notes and answers with a back-end's address that are not of it: they have no effect, and are
//! counted (`gw_learn.h`, `gw_query.h`).

use std::thread::sleep;
use std::time::Duration;

use godwit_bpf::Trust;
use godwit_bpf::director::Via;
use godwit_core::director::BackendId;
use godwit_lab::host::{Host, Network};
use godwit_wire::{FlowKey, TagDemand};

use super::{Act, BACKENDS, Bench, IP, NOTE, SYN, key, mac_of, on_bench, unknown};
use crate::bench::{note, to_service};
use crate::proof::{EARLIER, OURS, THEIRS, number, tag};

/// `enum gw_tag_kind`.
const LEARN: u64 = 10;
const QUESTION: u64 = 12;
const UNKNOWN: u64 = 14;

/// Of a proof behind the packet of a question.
const MAGIC: [u8; 4] = *b"gwas";

/// How much earlier than the latest one a note may be, in nanoseconds.
const SLACK: u64 = 1 << 20;

fn trust(bench: &Bench, all: bool, demanded: TagDemand) {
    for number in BACKENDS {
        let trust = Trust {
            node: number.into(),
            out: Some(OURS),
            believed: Some(THEIRS),
            before: Some(EARLIER),
            all,
            demanded,
            pending: false,
        };
        let set = bench.director.trusts.set(mac_of(number), &trust);
        set.expect("there is room");
    }
}

/// That a connection is at `at` now, by `from`.
fn noted(port: u16, v6: bool, (from, at): (u16, u16)) -> Vec<u8> {
    let mut frame = note(port, v6, mac_of(at));
    frame[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
    frame[6..12].copy_from_slice(&mac_of(from).0);
    frame
}

/// The same with its order and a tag.
fn proved(mut frame: Vec<u8>, order: u64, key: [u8; 16]) -> Vec<u8> {
    frame[IP + 1] = 2;
    frame.extend(order.to_be_bytes());
    let words = frame[IP..].chunks(8).map(number);
    let words: Vec<_> = std::iter::once(LEARN).chain(words).collect();
    frame.extend(tag(&words, key).to_be_bytes());
    frame
}

/// The tag of a question or an answer.
fn query_tag(kind: u64, flow: &FlowKey, (seq, time): (u32, u32), key: [u8; 16]) -> [u8; 8] {
    let ports = u64::from(flow.client.port) << 16 | u64::from(flow.service.port);
    let mut words = vec![kind, u64::from(time) << 32 | u64::from(seq), ports];
    for end in [flow.client, flow.service] {
        words.extend(end.addr.octets().chunks(8).map(number));
    }
    tag(&words, key).to_be_bytes()
}

/// Its answer with a proof of that time.
fn given_back(
    by: u16,
    syn: &[u8],
    (flow, seq): (&FlowKey, u32),
    time: u32,
    key: [u8; 16],
) -> Vec<u8> {
    let tag = query_tag(UNKNOWN, flow, (seq, time), key);
    let proof = [&MAGIC[..], &time.to_be_bytes(), &tag].concat();
    [&unknown(by, syn)[..], &proof].concat()
}

/// With the MAC of a back-end nobody has a connection's segments sent elsewhere: not without a
/// tag, nor with that of another key, nor with what was said before.
#[test]
fn a_forged_note_moves_nothing() {
    on_bench(None, |bench, _| {
        let [one, two, three] = BACKENDS;
        trust(bench, true, TagDemand::All);
        let entry = |port, v6| {
            let entry = bench.director.entries.get(key(port, v6));
            entry.expect("readable").map(|entry| entry.backend)
        };
        let mut order = 5 * SLACK;
        for (port, v6) in [(1, false), (2, true)] {
            let said = || noted(port, v6, (one, two));
            let stop = |what, frame: &[u8], why| bench.expect(what, frame, Act::Stop, why);
            stop("without a tag", &said(), "tag_missing");
            stop("another key", &proved(said(), order, [0; 16]), "tag_wrong");
            stop("sent back", &proved(said(), order, OURS), "tag_wrong");
            let mut other = proved(said(), order, THEIRS);
            other[IP + 2..IP + 8].copy_from_slice(&mac_of(three).0);
            stop("about another back-end", &other, "tag_wrong");
            let cut = proved(said(), order, THEIRS);
            stop("cut off", &cut[..cut.len() - 1], "learn_refused");
            assert_eq!(entry(port, v6), None);
            stop("a note", &proved(said(), order, THEIRS), "learnt");
            assert_eq!(entry(port, v6), Some(two.into()));
            let later = proved(noted(port, v6, (two, three)), order + SLACK, THEIRS);
            stop("a later one", &later, "learnt");
            let again = proved(said(), order, THEIRS);
            stop("the first one again", &again, "note_replayed");
            assert_eq!(entry(port, v6), Some(three.into()));
            let earlier = proved(said(), order + 1, THEIRS);
            stop("by another CPU a moment ago", &earlier, "learnt");
            order += 9 * SLACK;
        }
        // Of a key before it counts on its own.
        let under_way = proved(noted(1, false, (one, three)), 7, EARLIER);
        bench.expect("a key before", &under_way, Act::Stop, "learnt");
    });
}

/// Who has not said that it tags all is believed without, and asked so.
#[test]
fn a_back_end_that_knows_no_tags_is_believed_without() {
    on_bench(None, |bench, _| {
        let home = bench.slots.get(bench.slot(&key(1, false))).now;
        let home = home.expect("a back-end").0;
        let at = BACKENDS.into_iter().find(|it| *it != home);
        let at = at.expect("there are three");
        for demanded in [TagDemand::Nothing, TagDemand::Segments] {
            trust(bench, false, demanded);
            let plain = noted(1, false, (home, at));
            bench.expect("a note", &plain, Act::Stop, "learnt");
        }
        let syn = to_service(1, false, 77, 0, SYN, b"");
        for via in [Via::Xdp, Via::Tcx] {
            let (_, reasons, out) = bench.put(via, &syn);
            assert_eq!((&*reasons[0], out.len()), ("directed_asked", syn.len()));
        }
        let answer = unknown(at, &syn);
        let (act, reasons, _) = bench.put(Via::Xdp, &answer);
        assert_eq!((act, &*reasons[0]), (Act::Send, "directed_new"));
        bench
            .director
            .trusts
            .forget(mac_of(home))
            .expect("it is done");
        let plain = noted(2, false, (home, at));
        bench.expect("without keys", &plain, Act::Stop, "learnt");
    });
}

/// Only who was asked says that it knows no connection, and only now.
#[test]
fn a_forged_answer_begins_nothing() {
    on_bench(None, |bench, _| {
        bench.gone.push(BackendId(BACKENDS[0]));
        bench.change();
        bench.gone.clear();
        bench.change();
        trust(bench, true, TagDemand::All);
        for v6 in [false, true] {
            let mut ports = 1..500;
            let asked = |port: &u16| {
                let syn = to_service(*port, v6, 77, 0, SYN, b"");
                bench.put(Via::Tcx, &syn).1 == ["directed_asked"]
            };
            let port = ports.find(asked).expect("some slot has changed");
            let syn = to_service(port, v6, 77, 0, SYN, b"");
            let flow = key(port, v6);
            for via in [Via::Xdp, Via::Tcx] {
                let (_, _, out) = bench.put(via, &syn);
                assert_eq!((&out[12..IP], &out[IP..syn.len()]), (&NOTE[..], &syn[IP..]));
                let proof = &out[syn.len()..];
                assert_eq!((proof.len(), &proof[..4]), (16, &MAGIC[..]));
                let time = u32::try_from(number(&proof[4..8])).expect("four bytes");
                let expected = query_tag(QUESTION, &flow, (77, time), OURS);
                assert_eq!(proof[8..], expected, "{via:?}");
                let to = &out[..6];
                let by = BACKENDS.into_iter().find(|it| mac_of(*it).0 == to);
                let by = by.expect("a back-end");
                let answer = |time, key| given_back(by, &syn, (&flow, 77), time, key);
                let stop = |what, frame: &[u8], why| bench.expect(what, frame, Act::Stop, why);
                stop("without a proof", &unknown(by, &syn), "tag_missing");
                stop("another key", &answer(time, [0; 16]), "tag_wrong");
                stop("the question itself", &answer(time, OURS), "tag_wrong");
                stop("of before", &answer(time - 3, THEIRS), "answer_stale");
                let of_other = given_back(by, &syn, (&flow, 78), time, THEIRS);
                stop("of another SYN", &of_other, "tag_wrong");
                let entry = bench.director.entries.get(flow).expect("readable");
                assert_eq!(entry, None, "nothing has begun");
                let right = answer(time, THEIRS);
                let (act, reasons, _) = bench.put(via, &right);
                assert_eq!((act, &*reasons[0]), (Act::Send, "directed_new"));
                bench.director.entries.remove(flow).expect("it is done");
                sleep(Duration::from_millis(1));
            }
        }
    });
}
