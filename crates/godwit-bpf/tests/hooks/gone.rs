//! What a stranger's segments change of a connection that another server has, or is asked to
//! have: nothing, unless they have the client's numbers (RFC 5961).

use godwit_bpf::{Hook, Mate, Order, TransferEntry};
use godwit_lab::host::Host;
use godwit_wire::TcpFlags;

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, REDIRECT, flow_id, from_service, on_bench, to_service,
};
use crate::transfer::{ACCEPTED, PORT, answer, ask, ask_and_die, mac, place, request};

const ACK: TcpFlags = TcpFlags::ACK;
const RST: TcpFlags = TcpFlags::RST;

/// First bytes of the client and of the service, and the length of the request.
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;
const REQUEST: u32 = 30;

/// Where the client goes on behind its request.
const NEXT_BYTE: u32 = CLIENT.wrapping_add(REQUEST);

/// How long entries are kept, in seconds: `GW_FORWARD_NS`, `GW_ENDING_NS`, `GW_CLOSING_NS`.
const FORWARD: u64 = 3600;
const ENDING: u64 = 120;
const CLOSING: u64 = 5;

/// As `GW_TRANSFER_ASKED` and `GW_TRANSFER_GONE`.
const ASKED: u32 = 2;
const GONE: u32 = 3;

/// What is known of where the connection is.
fn entry(bench: &Bench, v6: bool) -> TransferEntry {
    let entry = bench.datapath.requests.transfers.get(flow_id(PORT, v6));
    entry.expect("it can be read").expect("it is known")
}

/// How long the entry of the connection is kept, in seconds.
fn kept(bench: &Bench, v6: bool) -> u64 {
    entry(bench, v6).idle.as_secs()
}

/// A connection that b has.
fn gone(bench: &Bench, v6: bool) {
    place(bench, Mate::Open(mac(Host::B)));
    bench.connect(PORT, v6);
    bench.put(Hook::Tap, 0, &answer(&ask(bench, v6), ACCEPTED));
    assert_eq!(kept(bench, v6), FORWARD);
}

/// It is forgotten: b is dead.
fn forget(bench: &Bench, v6: bool) {
    place(bench, Mate::Dead(mac(Host::B)));
    let any = to_service(PORT, v6, NEXT_BYTE, SERVICE, ACK, b"");
    bench.expect(Hook::Tap, "ACK", &any, NEXT, "mate_gone");
}

/// What becomes of the connection its server's kernel decides, which knows the window. Here an
/// entry that goes early has an idle client reset.
#[test]
fn a_forged_end_does_not_shorten_a_connection_that_has_gone() {
    on_bench(|bench| {
        for v6 in [false, true] {
            gone(bench, v6);
            let to_b = |seq: u32, flags, payload: &[u8], reason| {
                let frame = to_service(PORT, v6, seq, SERVICE, flags, payload);
                bench.expect(Hook::Tap, "to b", &frame, REDIRECT, reason);
            };
            for flags in [RST, RST.with(ACK), ACK.with(TcpFlags::FIN)] {
                for off in [1, 2, 1 << 10, 1 << 20, 1 << 31] {
                    for seq in [NEXT_BYTE.wrapping_add(off), NEXT_BYTE.wrapping_sub(off)] {
                        to_b(seq, flags, b"", "not_heard");
                    }
                }
            }
            // Nor can somebody move what is expected to where a RST is then exact.
            to_b(NEXT_BYTE.wrapping_add(1), ACK, b"data", "sent_on");
            to_b(NEXT_BYTE.wrapping_add(5), RST, b"", "not_heard");
            assert_eq!(kept(bench, v6), FORWARD);
            // The client itself goes on, and ends.
            to_b(NEXT_BYTE, ACK, b"more", "sent_on");
            to_b(NEXT_BYTE, RST, b"", "not_heard");
            assert_eq!(kept(bench, v6), FORWARD);
            to_b(
                NEXT_BYTE.wrapping_add(4),
                ACK.with(TcpFlags::FIN),
                b"",
                "sent_on",
            );
            assert_eq!(kept(bench, v6), ENDING);
            to_b(NEXT_BYTE.wrapping_add(5), RST, b"", "sent_on");
            assert_eq!(kept(bench, v6), CLOSING);
            forget(bench, v6);
        }
    });
}

/// Who acknowledges what the target has sent must be the client: its numbers are near those of
/// the request. Any other segment goes to the target, whose kernel refuses it.
#[test]
fn a_blind_ack_answers_no_question() {
    on_bench(|bench| {
        for v6 in [false, true] {
            place(bench, Mate::Open(mac(Host::B)));
            bench.connect(PORT, v6);
            ask(bench, v6);
            let to_b = |(seq, ack), payload: &[u8], reason| {
                let frame = to_service(PORT, v6, seq, ack, ACK, payload);
                bench.expect(Hook::Tap, "to b", &frame, REDIRECT, reason);
                let own = from_service(PORT, v6, SERVICE, CLIENT, ACK, b"");
                bench.expect(Hook::Gate, "our kernel", &own, DROP, "unanswered");
            };
            for numbers in blind() {
                to_b(numbers, b"", "client_beyond");
                to_b(numbers, b"data", "client_beyond");
            }
            // The request with something before it, and an acknowledgement of long ago.
            let before = CLIENT.wrapping_sub(10);
            to_b((before, SERVICE.wrapping_sub(1 << 20)), &[0; 40], "sent_on");
            to_b((before, SERVICE), &[0; 40], "rest_asked");
            assert_eq!(entry(bench, v6).state, ASKED);
            let heard = to_service(PORT, v6, NEXT_BYTE, SERVICE + 5, ACK, b"");
            bench.expect(Hook::Tap, "the client", &heard, NEXT, "accepted");
            assert_eq!(entry(bench, v6).state, GONE);
            forget(bench, v6);
        }
    });
}

/// The same where the target is dead: what is taken back is not lost to a stranger.
#[test]
fn a_blind_ack_ends_no_connection_whose_target_is_dead() {
    on_bench(|bench| {
        for v6 in [false, true] {
            ask_and_die(bench, v6);
            for (seq, ack) in blind() {
                let frame = to_service(PORT, v6, seq, ack, ACK, b"");
                bench.expect(Hook::Tap, "blind", &frame, DROP, "client_beyond");
                assert_eq!(entry(bench, v6).state, ASKED);
            }
            let (_, reasons) = bench.pass(Hook::Tap, &request(v6));
            assert!(reasons.iter().any(|it| it == "reclaimed"), "{reasons:?}");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// Numbers of segments that acknowledge what this server has not sent, and are not the client's.
fn blind() -> impl Iterator<Item = (u32, u32)> {
    let far = [1 << 16, 1 << 20, 1 << 30];
    let of_seq = far.map(|off| [CLIENT.wrapping_add(off), CLIENT.wrapping_sub(off)]);
    let seqs = of_seq.into_iter().flatten().map(|seq| (seq, SERVICE + 5));
    let acks = far.map(|off| (NEXT_BYTE, SERVICE + off));
    seqs.chain([(CLIENT.wrapping_sub(1), SERVICE + 5)])
        .chain(acks)
}
