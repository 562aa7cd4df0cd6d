//! Notes, probes, canaries and questions with another one's address that are not of it: they have
//! no effect, and are counted (`gw_key.h`). This machine is a, number 0, and b is number 1: a
//! server, or the director.

use godwit_bpf::{Hook, Moves, Order, TagKey, Whereabouts};
use godwit_lab::host::Host;
use godwit_wire::{
    EthernetHeader, Role, Segment, SeqNumber, TagDemand, TagKind, TcpFlags, TcpOptions, TimeStamps,
    tag_of,
};

use crate::bench::{
    Bench, DROP, IRS, NEXT, REDIRECT, WND, ends, flow_id, on_bench, tapped, to_service,
};
use crate::handoff;
use crate::proof::{EARLIER, OURS, THEIRS, number, stamped, tag, trust, trust_as};
use crate::steer::{LOADED, listen, load_note, open_place, steer, syn};
use crate::transfer::{PORT, mac};

/// First byte behind the Ethernet header.
const IP: usize = EthernetHeader::LEN;
const ACK: TcpFlags = TcpFlags::ACK;
/// How much earlier than the latest one a note may be, in nanoseconds.
const SLACK: u64 = 1 << 20;

/// Marks of canaries, and of a SYN that is asked about (`gw_marks.h`).
const CANARY: u32 = 0x6777_0010;
const CANARY_ECHO: u32 = 0x6777_0012;
const ASKED: u32 = 0x6777_000a;

/// Of a proof behind the packet of a question.
const MAGIC: [u8; 4] = *b"gwas";

/// `enum gw_tag_kind`.
const LEARN: u64 = 10;
const QUESTION: u64 = 12;
const UNKNOWN: u64 = 14;

fn refused(bench: &Bench, what: &str, frame: &[u8], reason: &str) {
    bench.expect(Hook::Tap, what, frame, DROP, reason);
}

/// b's load, with its order and a tag.
fn loaded(load: u8, v6: bool, order: u64, key: TagKey) -> Vec<u8> {
    let mut frame = load_note(Host::B, load, v6);
    frame[IP + 1] = 2;
    frame.extend([0; 4]);
    frame.extend(order.to_be_bytes());
    let tag = tag_of(TagKind::Load, &frame[IP..], key);
    frame.extend(tag.to_be_bytes());
    frame
}

/// New connections go to a server by what it says of itself, and by nobody else's word.
#[test]
fn a_forged_load_is_none() {
    on_bench(|bench| {
        open_place(bench);
        trust(bench, true);
        let _server = listen();
        let mut order = 5 * SLACK;
        for v6 in [false, true] {
            let light = |order, key| loaded(1, v6, order, key);
            refused(
                bench,
                "without a tag",
                &load_note(Host::B, 0, v6),
                "tag_missing",
            );
            refused(bench, "another key", &light(order, [0; 16]), "tag_wrong");
            refused(bench, "sent back", &light(order, OURS), "tag_wrong");
            let mut lighter = light(order, THEIRS);
            lighter[IP + 2] = 0;
            refused(bench, "another load", &lighter, "tag_wrong");
            let heavy = loaded(95, v6, order + SLACK, THEIRS);
            bench.expect(Hook::Tap, "its load", &heavy, DROP, "load_heard");
            refused(
                bench,
                "its load before",
                &light(order, THEIRS),
                "note_replayed",
            );
            steer(bench, LOADED);
            bench.expect(Hook::Tap, "a client", &syn(7, v6), NEXT, "none_lighter");
            let now = light(order + 2 * SLACK, THEIRS);
            bench.expect(Hook::Tap, "its load now", &now, DROP, "load_heard");
            bench.expect(Hook::Tap, "a client", &syn(8, v6), REDIRECT, "passed_on");
            order += 9 * SLACK;
        }
        for demanded in [TagDemand::Nothing, TagDemand::Segments] {
            trust_as(bench, false, demanded);
            let plain = load_note(Host::B, 50, false);
            bench.expect(Hook::Tap, "of before", &plain, DROP, "load_heard");
        }
    });
}

/// A probe of b's, or its answer (kind 2); with a tag, if there is a key.
fn probe(kind: u8, count: u32, key: Option<TagKey>) -> Vec<u8> {
    let mut frame = [mac(Host::A).0, mac(Host::B).0].concat();
    frame.extend([0x88, 0xb6, kind, if key.is_some() { 2 } else { 1 }, 0, 0]);
    frame.extend(count.to_be_bytes());
    if let Some(key) = key {
        let tag = tag_of(TagKind::Probe, &frame[IP..], key);
        frame.extend(tag.to_be_bytes());
    }
    frame.resize(100, 0);
    frame
}

/// Whether requests are handed to b depends on its answers, which nobody else can give, and
/// nobody can give twice.
#[test]
fn a_forged_probe_is_none() {
    on_bench(|bench| {
        open_place(bench);
        let table = &bench.datapath.requests.placing;
        let put = |frame: &[u8]| {
            let trial = bench.datapath.try_frame(Hook::Tap, bench.ifindex, frame);
            trial.expect("the kernel runs it")
        };
        let heard = || table.heard(mac(Host::B)).expect("readable");
        table.expect(mac(Host::B), 8).expect("there is room");
        // Before keys are agreed on, as ever.
        let answer = put(&probe(1, 3, None));
        assert_eq!(
            (answer.verdict, &answer.frame[IP..IP + 2]),
            (REDIRECT, &[2, 1][..])
        );
        assert_eq!(answer.frame[IP + 8..], [0; 100 - IP - 8]);
        bench.expect(
            Hook::Tap,
            "its answer",
            &probe(2, 8, None),
            DROP,
            "path_heard",
        );
        assert_eq!(heard(), 8);

        trust(bench, true);
        table.expect(mac(Host::B), 9).expect("there is room");
        for kind in [1, 2] {
            refused(bench, "without a tag", &probe(kind, 9, None), "tag_missing");
            refused(
                bench,
                "another key",
                &probe(kind, 9, Some([0; 16])),
                "tag_wrong",
            );
            refused(bench, "sent back", &probe(kind, 9, Some(OURS)), "tag_wrong");
        }
        let mut turned = probe(1, 9, Some(THEIRS));
        turned[IP] = 2;
        refused(bench, "a question as an answer", &turned, "tag_wrong");
        assert_eq!(heard(), 8);
        let answer = put(&probe(1, 4, Some(THEIRS)));
        assert_eq!(answer.verdict, REDIRECT);
        let mut expected = probe(2, 4, Some(OURS));
        expected[..12].copy_from_slice(&[mac(Host::B).0, mac(Host::A).0].concat());
        assert_eq!(answer.frame, expected);
        let right = probe(2, 9, Some(EARLIER));
        bench.expect(Hook::Tap, "its answer", &right, DROP, "path_heard");
        assert_eq!(heard(), 9);
        table.expect(mac(Host::B), 10).expect("there is room");
        let now = probe(2, 10, Some(THEIRS));
        bench.expect(Hook::Tap, "its answer", &now, DROP, "path_heard");
        refused(bench, "the one before", &right, "path_stale");
        assert_eq!(heard(), 10, "nothing is disproved");
    });
}

/// A canary of b's, or what b says of one of ours.
fn canary(v6: bool, to_service: bool, flags: TcpFlags, stamps: (u32, u32)) -> Vec<u8> {
    let (client, service) = ends(200, v6);
    let (source, destination) = if to_service {
        (client, service)
    } else {
        (service, client)
    };
    let segment = Segment {
        source,
        destination,
        seq: SeqNumber(5),
        ack: SeqNumber(6),
        flags,
        wnd: WND,
        options: TcpOptions {
            time_stamps: Some(TimeStamps {
                ts_val: stamps.0,
                ts_ecr: stamps.1,
            }),
            ..TcpOptions::default()
        },
        payload: &[],
    };
    let packet = segment.to_packet().expect("it is short");
    EthernetHeader::frame_ip(mac(Host::A), mac(Host::B), &packet)
}

fn to_b(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..12].copy_from_slice(&[mac(Host::B).0, mac(Host::A).0].concat());
    frame
}

/// That twins can be born at its standby an owner believes of that one only.
#[test]
fn a_forged_answer_to_a_canary_is_none() {
    on_bench(|bench| {
        let table = &bench.datapath.twins.canaries;
        bench.play(Role::Owner);
        trust(bench, true);
        for (v6, slot) in [(false, 5), (true, 6)] {
            let nonce = |at: u32| at * 1024 + slot;
            let asked = [4, 3, 2, 1].map(nonce);
            table.ask(slot, mac(Host::B), asked).expect("it is taken");
            let seen = || {
                let answer = table.answer(slot).expect("readable");
                (answer.heard, answer.born)
            };
            for (flags, reason) in [
                (ACK.with(TcpFlags::PSH), "canary_echoed"),
                (ACK, "canary_proved"),
            ] {
                let bare = |at| canary(v6, false, flags, (9, nonce(at)));
                let said = |at, key| stamped(bare(at), v6, (key, 0), (9, nonce(at)));
                refused(bench, "without a tag", &bare(4), "tag_missing");
                refused(bench, "another key", &said(4, [0; 16]), "tag_wrong");
                refused(bench, "sent back", &said(4, OURS), "tag_wrong");
                let before = seen();
                refused(bench, "not asked", &said(5, THEIRS), "canary_stale");
                assert_eq!(seen(), before);
                refused(bench, "an earlier one", &said(3, THEIRS), reason);
                refused(bench, "the last one", &said(4, THEIRS), reason);
                refused(
                    bench,
                    "the earlier one again",
                    &said(3, THEIRS),
                    "canary_stale",
                );
            }
            assert_eq!(seen(), (nonce(4), nonce(4)));
            let sent = to_b(canary(v6, true, ACK, (nonce(4), 0x6777_4341)));
            let sent_as = bench.put(Hook::Tap, CANARY, &sent).frame;
            let stamps = (nonce(4), 0x6777_4341);
            assert_eq!(sent_as, stamped(sent, v6, (OURS, 0), stamps));
        }
        trust_as(bench, false, TagDemand::Segments);
        let plain = canary(false, false, ACK, (9, 4 * 1024 + 5));
        refused(bench, "of before", &plain, "canary_proved");
    });
}

/// A standby makes sockets of the owner's canaries only, and its answers have tags.
#[test]
fn a_forged_canary_is_not_answered() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        let known = bench.datapath.twins.canaries.know_peer(mac(Host::B));
        known.expect("there is room");
        for v6 in [false, true] {
            trust(bench, true);
            let stamps = (4096, 0x6777_4341);
            let bare = || canary(v6, true, ACK, stamps);
            let said = |key| stamped(bare(), v6, (key, 0), stamps);
            refused(bench, "without a tag", &bare(), "tag_missing");
            refused(bench, "another key", &said([0; 16]), "tag_wrong");
            refused(bench, "sent back", &said(OURS), "tag_wrong");
            // Nobody listens on this machine.
            refused(bench, "the owner's", &said(THEIRS), "canary_no_listener");
            for (mark, flags) in [(0, ACK), (CANARY_ECHO, ACK.with(TcpFlags::PSH))] {
                let answer = to_b(canary(v6, false, flags, (9, 4096)));
                let out = bench.put(Hook::Gate, mark, &answer);
                assert_eq!(out.verdict, NEXT);
                assert_eq!(out.frame, stamped(answer, v6, (OURS, 0), (9, 4096)));
            }
            trust_as(bench, false, TagDemand::Segments);
            refused(bench, "of before", &bare(), "canary_no_listener");
            let answer = to_b(canary(v6, false, ACK, (9, 4096)));
            assert_eq!(bench.put(Hook::Gate, 0, &answer).frame, answer);
        }
    });
}

/// A director hears with a tag where a connection has gone.
#[test]
fn a_director_is_told_with_a_tag() {
    on_bench(|bench| {
        bench.own_behind(Moves::Guest);
        for v6 in [false, true] {
            let to = mac(Host::Director);
            let heard = tapped(to_service(PORT, v6, IRS.wrapping_add(1), 9, ACK, b"x"));
            let mut orders = Vec::new();
            for _ in 0..2 {
                trust(bench, true);
                handoff::set(bench, v6, Whereabouts::Away { to, origin: None });
                let sent = bench.datapath.try_frame(Hook::Tap, bench.ifindex, &heard);
                let sent = sent.expect("the kernel runs it").frame;
                assert_eq!((sent.len(), &sent[..6]), (IP + 80, &mac(Host::B).0[..]));
                assert_eq!(sent[12..IP + 2], [0x88, 0xb5, 1, 2]);
                let words = sent[IP..IP + 72].chunks(8).map(number);
                let words: Vec<_> = std::iter::once(LEARN).chain(words).collect();
                assert_eq!(sent[IP + 72..], tag(&words, OURS).to_be_bytes());
                orders.push(words[9]);
                handoff::remove(bench, v6);
            }
            assert!(orders[0] < orders[1], "{orders:?}");
            // One that would not know it hears it as ever.
            trust_as(bench, false, TagDemand::Nothing);
            handoff::set(bench, v6, Whereabouts::Away { to, origin: None });
            let sent = bench.datapath.try_frame(Hook::Tap, bench.ifindex, &heard);
            let sent = sent.expect("the kernel runs it").frame;
            assert_eq!((sent.len(), sent[IP + 1]), (IP + 64, 1));
            handoff::remove(bench, v6);
        }
    });
}

/// A director's question about a SYN, behind which is a proof.
fn question(v6: bool, kind: u64, time: u32, key: TagKey) -> [Vec<u8>; 2] {
    let seq = IRS.wrapping_add(1 << 20);
    let flow = flow_id(PORT, v6).key;
    let ports = u64::from(flow.client.port) << 16 | u64::from(flow.service.port);
    let mut words = vec![kind, u64::from(time) << 32 | u64::from(seq), ports];
    for end in [flow.client, flow.service] {
        words.extend(end.addr.octets().chunks(8).map(number));
    }
    let tag = tag(&words, key).to_be_bytes();
    let syn = tapped(to_service(PORT, v6, seq, 0, TcpFlags::SYN, b""));
    let proof = [&MAGIC[..], &time.to_be_bytes(), &tag].concat();
    [syn, proof]
}

/// Only a director has a server say, with a proof, which connections it does not have.
#[test]
fn a_forged_question_about_a_syn_has_no_answer() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.own_behind(Moves::Home);
            trust(bench, true);
            let put = |time, key| question(v6, QUESTION, time, key).concat();
            let stop = |what: &str, frame: &[u8], reason: &str| {
                let (verdict, reasons) = bench.pass_marked(Hook::Tap, ASKED, frame);
                assert_eq!(
                    (verdict, &*reasons[0]),
                    (DROP, reason),
                    "{what}: {reasons:?}"
                );
            };
            let [syn, _] = question(v6, QUESTION, 7, THEIRS);
            stop("without a proof", &syn, "tag_missing");
            stop("another key", &put(7, [0; 16]), "tag_wrong");
            stop("sent back", &put(7, OURS), "tag_wrong");
            let answered = question(v6, UNKNOWN, 7, THEIRS).concat();
            stop("an answer", &answered, "tag_wrong");
            let mut later = put(7, THEIRS);
            later[syn.len() + 7] += 1;
            stop("of another time", &later, "tag_wrong");
            let answer = bench.put(Hook::Tap, ASKED, &put(7, THEIRS));
            assert_eq!(answer.verdict, REDIRECT);
            assert_eq!(answer.frame[12..IP], [0x88, 0xb5]);
            assert_eq!(answer.frame[IP..syn.len()], syn[IP..]);
            let [_, proof] = question(v6, UNKNOWN, 7, OURS);
            assert_eq!(answer.frame[syn.len()..], proof);
            bench.connect(PORT, v6);
            let known = bench.put(Hook::Tap, ASKED, &put(7, THEIRS));
            assert_eq!(known.frame.len(), syn.len(), "the proof stays here");
            bench.order(Order::Forget).expect("it is there");
            // One of before, which says nothing behind its SYN.
            trust_as(bench, false, TagDemand::Nothing);
            let answer = bench.put(Hook::Tap, ASKED, &syn);
            assert_eq!((answer.verdict, answer.frame.len()), (REDIRECT, syn.len()));
        }
    });
}
