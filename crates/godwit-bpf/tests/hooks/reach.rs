//! A director asks whether notes arrive, and a server's data path answers (`gw_reach.h`). This
//! machine is a, and b is the director.

use godwit_bpf::{Hook, TagKey};
use godwit_lab::host::Host;
use godwit_wire::{EthernetHeader, TagDemand, TagKind, tag_of};

use crate::bench::{Bench, DROP, REDIRECT, on_bench};
use crate::proof::{EARLIER, OURS, THEIRS, trust, trust_as};
use crate::transfer::mac;

/// First byte behind the Ethernet header.
const IP: usize = EthernetHeader::LEN;
/// `enum gw_note_kind`.
const ASK: u8 = 3;
const ANSWER: u8 = 4;

/// A question (kind 3) or an answer, 60 bytes long; with a tag, if there is a key.
pub(crate) fn note(
    (to, from): ([u8; 6], [u8; 6]),
    kind: u8,
    number: u32,
    key: Option<TagKey>,
) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend([0x88, 0xb5, kind, if key.is_some() { 2 } else { 1 }, 0, 0]);
    frame.extend(number.to_be_bytes());
    if let Some(key) = key {
        let tag = tag_of(TagKind::Probe, &frame[IP..], key);
        frame.extend(tag.to_be_bytes());
    }
    frame.resize(60, 0);
    frame
}

fn asked(number: u32, key: Option<TagKey>) -> Vec<u8> {
    note((mac(Host::A).0, mac(Host::B).0), ASK, number, key)
}

fn refused(bench: &Bench, what: &str, frame: &[u8], reason: &str) {
    bench.expect(Hook::Tap, what, frame, DROP, reason);
}

/// A question comes back with the same number, and with a tag of this server.
#[test]
fn a_director_hears_that_its_notes_arrive() {
    on_bench(|bench| {
        trust(bench, true);
        for key in [THEIRS, EARLIER] {
            let answer = bench.put(Hook::Tap, 0, &asked(7, Some(key)));
            assert_eq!(answer.verdict, REDIRECT);
            let ends = (mac(Host::B).0, mac(Host::A).0);
            assert_eq!(answer.frame, note(ends, ANSWER, 7, Some(OURS)));
        }
        let question = asked(8, Some(THEIRS));
        bench.expect(Hook::Tap, "counted", &question, REDIRECT, "reach_answered");
    });
}

/// Only a question that is proved has an answer, and only of whom a key is known.
#[test]
fn a_forged_question_whether_notes_arrive_has_no_answer() {
    on_bench(|bench| {
        let stop = |what, frame: &[u8], reason| refused(bench, what, frame, reason);
        stop("no key, no tag", &asked(7, None), "reach_no_key");
        stop("no key", &asked(7, Some(THEIRS)), "reach_no_key");
        trust(bench, false);
        stop("no tag is demanded", &asked(7, None), "reach_no_key");
        stop("nor this", &asked(7, Some([0; 16])), "reach_no_key");
        trust(bench, true);
        stop("no tag", &asked(7, None), "tag_missing");
        stop("another key", &asked(7, Some([0; 16])), "tag_wrong");
        stop("sent back", &asked(7, Some(OURS)), "tag_wrong");
        let mut later = asked(7, Some(THEIRS));
        later[IP + 7] += 1;
        stop("another number", &later, "tag_wrong");
        let mut turned = asked(7, Some(THEIRS));
        turned[IP] = ANSWER;
        let (_, reasons) = bench.pass_marked(Hook::Tap, 0, &turned);
        assert_eq!(reasons, ["note_refused"], "an answer, and no director");
        let whole = asked(7, Some(THEIRS));
        stop("cut off", &whole[..IP + 15], "note_refused");
        // A peer of before has no key for notes.
        trust_as(bench, false, TagDemand::Nothing);
        stop("of before", &asked(7, Some(THEIRS)), "reach_no_key");
    });
}
