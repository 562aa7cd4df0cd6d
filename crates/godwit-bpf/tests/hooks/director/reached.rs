//! Back-ends answer whether notes arrive, at the director (`gw_reached.h`).

use godwit_lab::host::{Host, Network};
use godwit_wire::TagDemand;

use super::proved::trust;
use super::{Act, BACKENDS, IP, mac_of, on_bench};
use crate::proof::{EARLIER, OURS, THEIRS};
use crate::reach::note;

/// `enum gw_note_kind`.
const ASK: u8 = 3;
const ANSWER: u8 = 4;

/// An answer counts with the back-end's tag and the number of the last question; nothing else
/// that has a back-end's address does.
#[test]
fn only_the_answer_to_the_last_question_counts() {
    on_bench(None, |bench, _| {
        let [one, two, _] = BACKENDS;
        let by = |from: u16, number, key| {
            let ends = (Host::A.mac(Network::Data).0, mac_of(from).0);
            note(ends, ANSWER, number, key)
        };
        let paths = &bench.director.paths;
        let heard = || [one, two].map(|it| paths.heard(mac_of(it)).expect("readable"));
        let stop = |what, frame: &[u8], why| bench.expect(what, frame, Act::Stop, why);
        paths.expect(mac_of(one), 7).expect("there is room");
        stop("no key", &by(one, 7, Some(THEIRS)), "reach_stale");
        stop("no key, no tag", &by(one, 7, None), "reach_stale");
        trust(bench, true, TagDemand::Nothing);
        stop("no tag is demanded", &by(one, 7, None), "reach_stale");
        stop("nor this", &by(one, 7, Some([0; 16])), "reach_stale");
        trust(bench, true, TagDemand::All);
        stop("no tag", &by(one, 7, None), "tag_missing");
        stop("another key", &by(one, 7, Some([0; 16])), "tag_wrong");
        stop("the question itself", &by(one, 7, Some(OURS)), "tag_wrong");
        stop("not asked", &by(one, 8, Some(THEIRS)), "reach_stale");
        stop("who is not asked", &by(two, 7, Some(THEIRS)), "reach_stale");
        let mut turned = by(one, 7, Some(THEIRS));
        turned[IP] = ASK;
        let (act, reasons, _) = bench.put(godwit_bpf::director::Via::Tcx, &turned);
        assert_eq!((act, &*reasons[0]), (Act::Stop, "learn_refused"));
        let right = by(one, 7, Some(THEIRS));
        stop("cut off", &right[..IP + 15], "learn_refused");
        assert_eq!(heard(), [0, 0]);
        stop("its answer", &right, "reach_heard");
        assert_eq!(heard(), [7, 0]);
        paths.expect(mac_of(one), 8).expect("there is room");
        stop("the one before, again", &right, "reach_stale");
        assert_eq!(heard(), [7, 0]);
        let next = by(one, 8, Some(EARLIER));
        stop("by a key of before", &next, "reach_heard");
        assert_eq!(heard(), [8, 0]);
    });
}
