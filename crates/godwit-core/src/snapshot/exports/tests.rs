use godwit_wire::app::{Carried, SnapshotKind};

use super::super::PART;
use super::super::parcel::{Exported, parts};
use super::super::room::UNDER_WAY;
use super::*;

fn place(read: u64, written: u64, length: u32) -> SnapshotPlace {
    SnapshotPlace {
        offset: 0,
        length,
        kind: SnapshotKind::Regenerable,
        read,
        written,
    }
}

fn snapshot(length: usize) -> Parcel {
    let bytes: Vec<_> = (0..=250).cycle().take(length).collect();
    let length = u32::try_from(length).expect("short");
    let place = place(1, 2, length);
    let carried = Carried {
        kind: place.kind,
        bytes,
    };
    Parcel {
        commit: None,
        exported: Exported { place, carried },
        output: Vec::new(),
    }
}

fn commit(number: u64, length: usize, output: usize) -> Parcel {
    let Parcel { mut exported, .. } = snapshot(length);
    (exported.place.kind, exported.carried.kind) = (SnapshotKind::Commit, SnapshotKind::Commit);
    Parcel {
        commit: Some(number),
        exported,
        output: vec![7; output],
    }
}

fn flow(irs: u32) -> FlowId {
    let client = std::net::SocketAddr::from(([10, 9, 0, 10], 1)).into();
    let service = std::net::SocketAddr::from(([10, 9, 0, 100], 80)).into();
    FlowId {
        key: FlowKey { client, service },
        irs: SeqNumber(irs),
    }
}

fn exports() -> Exports {
    Exports::new(BTreeMap::new(), MonoTime::ZERO)
}

#[test]
fn a_snapshot_comes_in_parts() {
    for length in [0, 1, PART, PART + 1, 3 * PART - 1] {
        let (sent, mut exports) = (snapshot(length), exports());
        let mut came = None;
        for part in parts(sent.clone()) {
            assert_eq!(came, None);
            came = exports.add(flow(1), part);
        }
        assert_eq!(came, Some(sent));
        assert!(exports.coming.is_empty());
    }
}

/// The snapshot and the output are told apart, wherever a part ends.
#[test]
fn a_commit_comes_with_its_output() {
    for (length, output) in [(0, 0), (0, PART + 1), (PART - 1, 2), (PART, 0), (9, 9)] {
        let (sent, mut exports) = (commit(5, length, output), exports());
        let came = parts(sent.clone()).filter_map(|part| exports.add(flow(1), part));
        assert_eq!(came.collect::<Vec<_>>(), [sent], "{length} {output}");
    }
    let mut exports = exports();
    let mut first = parts(commit(5, PART, 1));
    assert_eq!(exports.add(flow(1), first.next().expect("two parts")), None);
    let of_another = parts(commit(6, PART, 1)).nth(1).expect("two parts");
    assert_eq!(exports.add(flow(1), of_another), None);
}

/// Of another commit, or of a snapshot at the same place.
#[test]
fn an_answer_is_about_one_commit() {
    let mut exports = exports();
    let sent = Sent {
        irs: SeqNumber(1),
        generation: Generation(3),
        read: 0,
        written: 0,
        parts: 1,
        commit: Some(8),
        kept: false,
        urgency: Urgency::Ordinary,
        until: MonoTime::ZERO,
    };
    exports.sent.insert(flow(1).key, sent);
    exports.note_kept(flow(1));
    assert_eq!(exports.note_commit(flow(1), 7), None);
    assert_eq!(exports.note_commit(flow(2), 8), None);
    assert!(!exports.sent[&flow(1).key].kept);
    assert_eq!(exports.note_commit(flow(1), 8), Some(Generation(3)));
    assert!(exports.sent[&flow(1).key].kept);
}

/// Beyond what may be under way nothing goes before an answer has come, or is not
/// expected any more; but one always may.
#[test]
fn what_is_under_way_has_a_bound() {
    let (mut exports, whole) = (exports(), UNDER_WAY * PART);
    exports.services.insert(flow(1).key.service, ShareId(0));
    let has_room = |exports: &Exports, bytes| exports.under_way.has_room(Urgency::Ordinary, bytes);
    assert!(has_room(&exports, 2 * whole));
    let sent = Sent {
        irs: SeqNumber(1),
        generation: Generation(1),
        read: 0,
        written: 0,
        parts: UNDER_WAY - 1,
        commit: Some(1),
        kept: false,
        urgency: Urgency::Ordinary,
        until: MonoTime::from_nanos(10),
    };
    exports.sent.insert(flow(1).key, sent);
    let count = |exports: &mut Exports, at| {
        exports.count(|_, stay| stay == Generation(1), MonoTime::from_nanos(at));
    };
    count(&mut exports, 9);
    assert!(has_room(&exports, PART) && !has_room(&exports, PART + 1));
    let mut answered = sent;
    answered.until = MonoTime::from_nanos(100);
    exports.sent.insert(flow(1).key, answered);
    count(&mut exports, 10);
    assert!(!has_room(&exports, whole));
    assert_eq!(exports.note_commit(flow(1), 1), Some(Generation(1)));
    assert_eq!(exports.under_way.ordinary(), 0);
    exports.sent.insert(flow(1).key, sent);
    count(&mut exports, 10);
    assert!(has_room(&exports, whole), "nobody answers");
    answered.generation = Generation(2);
    exports.sent.insert(flow(1).key, answered);
    count(&mut exports, 10);
    assert!(has_room(&exports, whole), "of another stay");
}

/// A server waited for its commit behind others' snapshots for a second, and its
/// connection was given up.
#[test]
fn what_a_server_waits_for_has_room_of_its_own() {
    let (mut exports, whole) = (exports(), UNDER_WAY * PART);
    exports.services.insert(flow(1).key.service, ShareId(0));
    let mut other = flow(1);
    other.key.client.port = 2;
    let sent = |commit| Sent {
        irs: SeqNumber(1),
        generation: Generation(1),
        read: 0,
        written: 0,
        parts: UNDER_WAY,
        commit,
        kept: false,
        urgency: Urgency::Ordinary,
        until: MonoTime::from_nanos(10),
    };
    let count = |exports: &mut Exports| {
        exports.count(|_, stay| stay == Generation(1), MonoTime::from_nanos(9));
    };
    let has_room = |exports: &Exports| {
        [Urgency::Ordinary, Urgency::Awaited].map(|it| exports.under_way.has_room(it, whole))
    };
    exports.sent.insert(flow(1).key, sent(None));
    count(&mut exports);
    assert_eq!(has_room(&exports), [false, true]);
    exports.sent.insert(other.key, sent(Some(8)));
    count(&mut exports);
    for _ in 0..2 {
        exports.note_urgent(other.key);
        assert_eq!(has_room(&exports), [false, false]);
        count(&mut exports);
    }
    let took = exports.under_way.duration();
    assert!(took > Duration::from_secs(2), "{took:?} at 100 Mbit/s");
    exports.note_commit(other, 8);
    assert_eq!(has_room(&exports), [false, true]);
    exports.note_kept(flow(1));
    assert_eq!(has_room(&exports), [true, true]);
}

/// One that is not whole is thrown away with the link, or by the next.
#[test]
fn parts_of_two_snapshots_make_none() {
    let mut exports = exports();
    let mut first = parts(snapshot(2 * PART));
    let begun = first.next().expect("two parts");
    let rest = first.next().expect("two parts");
    assert_eq!(exports.add(flow(1), begun.clone()), None);
    assert_eq!(
        exports.add(flow(2), rest.clone()),
        None,
        "another connection"
    );
    let other = SnapshotPart {
        read: 7,
        ..rest.clone()
    };
    assert_eq!(exports.add(flow(1), other), None, "another snapshot");
    assert_eq!(exports.add(flow(1), begun), None);
    exports.forget();
    assert_eq!(exports.add(flow(1), rest), None, "another link");
    // What has no end, and adds nothing.
    let empty = SnapshotPart {
        part: Vec::new(),
        ..parts(snapshot(1)).next().expect("one part")
    };
    exports.forget();
    assert_eq!(exports.add(flow(1), empty), None);
    assert!(exports.coming.is_empty());
}

/// Others with the same addresses may have begun.
#[test]
fn nothing_is_remembered_of_a_connection_that_has_ended() {
    let mut exports = exports();
    let sent = Sent {
        irs: SeqNumber(1),
        generation: Generation(1),
        read: 0,
        written: 0,
        parts: 1,
        commit: None,
        kept: true,
        urgency: Urgency::Ordinary,
        until: MonoTime::ZERO,
    };
    exports.sent.insert(flow(1).key, sent);
    let begun = parts(snapshot(2 * PART)).next().expect("two parts");
    assert_eq!(exports.add(flow(1), begun), None);
    exports.note_end(flow(2));
    assert_eq!((exports.sent.len(), exports.coming.len()), (1, 1));
    exports.note_end(flow(1));
    assert!(exports.sent.is_empty() && exports.coming.is_empty());
}

/// Where sequence numbers come round, too.
#[test]
fn the_latest_is_sent_whose_output_the_client_has() {
    let kept = [place(0, 0, 0), place(5, 1000, 0), place(5, 1 << 33, 0)];
    for iss in [SeqNumber(7), SeqNumber(u32::MAX - 500)] {
        let at = |written: u32| latest((iss + 1, iss + 1 + written), &kept[..2], |_| true);
        assert_eq!(at(0), Some(kept[0]));
        assert_eq!(at(999), Some(kept[0]));
        assert_eq!(at(1000), Some(kept[1]));
        let before = latest((iss + 1, iss), &kept, |_| true);
        assert_eq!(before, None, "before its SYN-ACK");
        let round = latest((iss + 1, iss + 1), &kept, |_| true);
        assert_eq!(round, Some(kept[2]), "8 GiB later");
    }
    assert_eq!(latest((SeqNumber(0), SeqNumber(1)), &[], |_| true), None);
}

/// A busy server throws the others away while they are copied.
#[test]
fn of_large_ones_the_oldest_is_sent_that_is_new() {
    let sent = |read, written| Sent {
        irs: SeqNumber(1),
        generation: Generation(1),
        read,
        written,
        parts: 1,
        commit: None,
        kept: true,
        urgency: Urgency::Ordinary,
        until: MonoTime::ZERO,
    };
    let kept = |length| [1, 2, 3, 4].map(|at| place(at, 10 * at, length));
    let (large, small) = (kept(16 << 20), kept(100));
    let after = |kept: &[SnapshotPlace], at, written| {
        let (sent, first) = (sent(at, 10 * at), SeqNumber(1));
        let place = latest((first, first + written), kept, |place| {
            sent.is_before(place)
        });
        place.map(|place| place.read)
    };
    assert_eq!(after(&large, 0, 30), Some(1));
    assert_eq!(after(&large, 1, 30), Some(2));
    assert_eq!(
        after(&large, 3, 30),
        None,
        "the client lacks some of the fourth"
    );
    assert_eq!(after(&large, 9, 30), None, "nothing goes back");
    assert_eq!(after(&small, 1, 30), Some(3));
    assert_eq!(after(&small, 3, 30), None);
}
