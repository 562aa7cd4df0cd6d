//! Owner and standby change places: each flow from its next segment on.

use godwit_bpf::{Hook, Order, Phase};
use godwit_lab::host::{Host, Network};
use godwit_wire::{Generation, Role, SeqNumber, TcpFlags};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::bench::{
    Bench, DROP, GENERATION, IRS, ISS, NEXT, REDIRECT, WND, from_service, mirrored, on_bench,
    on_bench_of, sent_on, summed, to_service, twin,
};

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: [u8; 100] = [7; 100];

/// First bytes of the client and of the service.
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

fn protect(bench: &Bench, port: u16, v6: bool) {
    bench.connect(port, v6);
    let standby = Host::B.mac(Network::Data);
    let greeting = twin(standby, port, v6, (SERVICE, CLIENT), ACK, b"");
    bench.expect(Hook::Tap, "the twin's ACK", &greeting, DROP, "twin_ack");
    assert_eq!(bench.flow().phase, Phase::Protected);
}

/// The window in a frame, as it is there.
fn window(frame: &[u8], v6: bool) -> u16 {
    let at = 14 + if v6 { 40 } else { 20 } + 14;
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn forget(bench: &Bench) {
    bench.order(Order::Forget).expect("it is removed");
}

/// A tapped handshake. There is no listener, so no socket, but the entry.
pub(crate) fn shadow(bench: &Bench, port: u16, v6: bool) {
    bench.play(Role::Shadow);
    let owner = Host::B.mac(Network::Data);
    let syn = mirrored(port, v6, (IRS, 0), TcpFlags::SYN, b"");
    bench.expect(Hook::Tap, "SYN", &syn, DROP, "tapped_syn");
    let both = TcpFlags::SYN.with(ACK);
    let answer = twin(owner, port, v6, (ISS, CLIENT), both, b"");
    bench.expect(Hook::Tap, "SYN-ACK", &answer, DROP, "tapped_syn_ack");
    let third = mirrored(port, v6, (CLIENT, SERVICE), ACK, b"");
    bench.expect(Hook::Tap, "third ACK", &third, DROP, "no_listener");
    let greeting = from_service(port, v6, SERVICE, CLIENT, ACK, b"");
    bench.expect(Hook::Gate, "its ACK", &greeting, REDIRECT, "suppressed_ack");
    assert_eq!(bench.flow().phase, Phase::Twin);
}

/// Not a byte of the owner that was reaches the client, and what it has under
/// way is not taken for acknowledged.
#[test]
fn an_owner_that_becomes_the_standby_is_silent_at_once() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            protect(bench, 7, v6);
            let sent = from_service(7, v6, SERVICE, CLIENT, ACK, &DATA);
            bench.expect(Hook::Gate, "data", &sent, NEXT, "spoken");
            bench.turn(Role::Shadow, 1);
            // Twice, as in loss recovery: a retransmission that is dropped is none
            // to TCP, and an answer to it would have it tried again at once.
            for _ in 0..2 {
                bench.expect(Hook::Gate, "the same again", &sent, REDIRECT, "under_way");
            }
            let new = from_service(7, v6, SERVICE + 100, CLIENT, ACK, &DATA);
            bench.expect(Hook::Gate, "what follows", &new, DROP, "unsent");
            let flow = bench.flow();
            assert_eq!(
                (flow.phase, flow.twin, flow.gated),
                (Phase::Twin, true, false)
            );
            assert_eq!(flow.snd_una, SeqNumber(SERVICE));
            assert_eq!(flow.snd_nxt, SeqNumber(SERVICE + 100), "under way");
            let ack = from_service(7, v6, SERVICE + 100, CLIENT, ACK, b"");
            bench.expect(Hook::Gate, "its ACK", &ack, REDIRECT, "suppressed_ack");
            let probe = from_service(7, v6, SERVICE - 1, CLIENT, ACK, b"");
            bench.expect(Hook::Gate, "its probe", &probe, REDIRECT, "probe_answered");
            // The client has it after all, and the socket may drop it.
            let got = mirrored(7, v6, (CLIENT, SERVICE + 100), ACK, b"");
            bench.expect(Hook::Tap, "the client's ACK", &got, NEXT, "tapped_segment");
            bench.expect(Hook::Gate, "again", &sent, REDIRECT, "reflected");
            forget(bench);
        }
    });
}

/// A client that has not heard of the move, or anybody else: the owner gets the segment, and
/// mirrors it if it believes it. Its twin here is told nothing before.
#[test]
fn what_reaches_the_standby_directly_is_handed_on() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            protect(bench, 7, v6);
            bench.turn(Role::Shadow, 1);
            let late = to_service(7, v6, CLIENT, SERVICE, ACK, &DATA);
            let reset = to_service(7, v6, CLIENT, SERVICE, TcpFlags::RST, b"");
            let syn = to_service(8, v6, 1, 0, TcpFlags::SYN, b"");
            for heard in [&late, &reset, &syn] {
                let sent = bench.put(Hook::Tap, 0, heard);
                assert_eq!(sent.verdict, REDIRECT);
                assert_eq!(sent.frame[..6], Host::B.mac(Network::Data).0);
                assert_eq!(sent.frame[6..12], Host::A.mac(Network::Data).0);
                bench.expect(Hook::Tap, "a client", heard, REDIRECT, "handed_on");
            }
            let flow = bench.flow();
            assert_eq!((flow.bytes_in, flow.client_end.0), (0, CLIENT));
            assert_ne!(flow.phase, Phase::Ended, "nor its end");
            // What the owner mirrors is taken.
            let tapped = mirrored(7, v6, (CLIENT, SERVICE), ACK, &DATA);
            bench.expect(Hook::Tap, "tapped", &tapped, NEXT, "tapped_segment");
            bench.turn(Role::Owner, 2);
            for heard in [&tapped, &late] {
                let (_, reasons) = bench.pass(Hook::Tap, heard);
                assert!(reasons.iter().any(|it| it == "mirrored"), "{reasons:?}");
            }
            forget(bench);
        }
    });
}

/// Three servers of which each takes the next one for the owner, for their files differ: what
/// two of them have handed on ends at the third.
#[test]
fn what_is_handed_on_goes_round_no_more_than_twice() {
    on_bench(|bench| {
        let a = Host::A.mac(Network::Data);
        for v6 in [false, true] {
            for (role, reason) in [(Role::Shadow, "handed_on"), (Role::None, "forwarded")] {
                bench.turn(role, 1);
                let first = to_service(7, v6, CLIENT, SERVICE, ACK, &DATA);
                let mut frame = first.clone();
                for times in [1, 2] {
                    bench.expect(Hook::Tap, "a client's", &frame, REDIRECT, reason);
                    frame = bench.put(Hook::Tap, 0, &frame).frame;
                    assert_eq!(frame[12..], sent_on(&first, v6, times), "{reason}");
                    // The next server's name is not that of the one that it takes for the owner.
                    frame[..6].copy_from_slice(&a.0);
                    frame[6..12].copy_from_slice(&Host::C.mac(Network::Data).0);
                }
                bench.expect(Hook::Tap, "once more", &frame, DROP, "hops");
            }
        }
    });
}

/// With whatever TTL or hop limit a client's segment arrives: nearly always it is sent on, and
/// a circle of servers ends soon.
#[test]
fn a_segment_with_few_hops_is_sent_on_and_ends_soon() {
    on_bench(|bench| {
        let a = Host::A.mac(Network::Data);
        bench.turn(Role::None, 1);
        for v6 in [false, true] {
            let at = if v6 { 14 + 7 } else { 14 + 8 };
            for start in 0..=u8::MAX {
                let mut frame = to_service(7, v6, CLIENT, SERVICE, ACK, &DATA);
                frame[at] = start;
                frame = summed(frame, v6);
                let mut way = Vec::new();
                loop {
                    let trial = bench.put(Hook::Tap, 0, &frame);
                    if trial.verdict == DROP {
                        break;
                    }
                    assert_eq!(trial.verdict, REDIRECT, "{start}");
                    frame = trial.frame;
                    assert_eq!(frame, summed(frame.clone(), v6), "the header's checksum");
                    way.push(frame[at]);
                    frame[..6].copy_from_slice(&a.0);
                    frame[6..12].copy_from_slice(&Host::C.mac(Network::Data).0);
                }
                let wanted = match start {
                    0..=8 | 31 => vec![],
                    9..=16 => vec![start - 8],
                    17..=24 => vec![start - 8, start - 16],
                    25..=30 => vec![start - 8, start - 16, start - 24],
                    32 => vec![31],
                    33.. => vec![32, 31],
                };
                assert_eq!(way, wanted, "v6 {v6}, {start}");
            }
        }
    });
}

/// The gate of the new owner is shut before its first word, and it sends nothing
/// twice that the last one has under way.
#[test]
fn a_standby_that_becomes_the_owner_is_gated_at_once() {
    on_bench(|bench| {
        let last = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            let word = twin(last, 7, v6, (SERVICE + 200, CLIENT), ACK, b"");
            bench.expect(Hook::Tap, "the owner's word", &word, DROP, "owner_word");
            bench.turn(Role::Owner, 1);
            bench.order(Order::Turn).expect("it follows");
            let flow = bench.flow();
            assert_eq!((flow.phase, flow.gated), (Phase::Protected, true));
            let first = from_service(7, v6, SERVICE, CLIENT, ACK, &DATA);
            bench.expect(Hook::Gate, "under way", &first, REDIRECT, "under_way");
            let second = from_service(7, v6, SERVICE + 100, CLIENT, ACK, &DATA);
            bench.expect(Hook::Gate, "under way", &second, REDIRECT, "under_way");
            bench.expect(Hook::Gate, "again: it was lost", &second, NEXT, "spoken");
            let third = from_service(7, v6, SERVICE + 200, CLIENT, ACK, &DATA);
            bench.expect(Hook::Gate, "new data", &third, NEXT, "spoken");
            let told = bench.put(Hook::Gate, 0, &third).frame;
            assert_eq!(window(&told, v6), WND, "no more than it offers");
            // The client says something that the standby has not got yet.
            let said = to_service(7, v6, CLIENT, SERVICE, ACK, &DATA);
            bench.expect(Hook::Tap, "data", &said, NEXT, "client_segment");
            let ack = from_service(7, v6, SERVICE + 300, CLIENT.wrapping_add(100), ACK, b"");
            bench.expect(Hook::Gate, "our ACK", &ack, REDIRECT, "held");
            let twins = twin(
                last,
                7,
                v6,
                (SERVICE + 300, CLIENT.wrapping_add(100)),
                ACK,
                b"",
            );
            bench.expect(
                Hook::Tap,
                "the twin's ACK",
                &twins,
                REDIRECT,
                "twin_ack_forwarded",
            );
            forget(bench);
        }
    });
}

/// Leaves a flow that was taken over as earlier programs did: in `GW_PHASE_TWIN`.
fn as_before(pins: &str) {
    let pin = format!("/sys/fs/bpf/godwit/{pins}/maps/gw_flows");
    let flows = MapHandle::from_pinned_path(pin).expect("it is pinned");
    let key = flows.keys().next().expect("there is one flow");
    let found = flows.lookup(&key, MapFlags::ANY).expect("it can be read");
    let mut flow = found.expect("it is there");
    // Phase, reason and the shifts of two windows.
    let words: Vec<_> = (0..flow.len() - 1)
        .filter(|at| flow[*at..].starts_with(&[3, 6]))
        .collect();
    let [at] = words[..] else {
        panic!("the phase is not found: {words:?}");
    };
    flow[at] = 4;
    let put = flows.update(&key, &flow, MapFlags::EXIST);
    put.expect("it is written");
}

/// Nobody has a twin of it: it is an unprotected flow of the owner, may get a twin, and is a
/// silent twin again when the share moves on. The same holds for one that earlier programs
/// took over.
#[test]
fn a_flow_that_was_taken_over_is_unprotected() {
    let next = Generation(GENERATION.0 + 1);
    on_bench_of(|bench, _, pins| {
        for (v6, before) in [(false, false), (true, false), (false, true), (true, true)] {
            shadow(bench, 7, v6);
            bench.take_over(Generation::NONE, 1);
            let first = from_service(7, v6, SERVICE, CLIENT, ACK, &DATA);
            bench.expect(Hook::Gate, "data", &first, NEXT, "caught_up");
            if before {
                as_before(pins);
            }
            let flow = bench.flow();
            assert!(flow.is_taken_over(), "{flow:?}");
            assert!(!flow.gated && flow.twin, "{flow:?}");
            let second = from_service(7, v6, SERVICE + 100, CLIENT, ACK, &DATA);
            bench.expect(Hook::Gate, "data", &second, NEXT, "caught_up");
            let admitted = bench.order(Order::Admit);
            assert!(admitted.is_err(), "it is no silent twin");
            bench.take_over(next, 1);
            let rejoin = bench.order(Order::Rejoin(next, SeqNumber(SERVICE)));
            rejoin.expect("it can have a twin");
            assert_eq!(bench.flow().phase, Phase::Rejoining);
            bench.take_over(Generation::NONE, 1);
            bench.turn(Role::Shadow, 2);
            bench.order(Order::Turn).expect("it follows");
            let flow = bench.flow();
            assert_eq!((flow.phase, flow.gated), (Phase::Twin, false));
            forget(bench);
        }
    });
}

/// What the other side did not hold it can't serve, and neither can we again.
#[test]
fn a_flow_that_could_not_move_is_not_served_later() {
    on_bench(|bench| {
        bench.lose_standby();
        bench.connect(7, false);
        bench.turn(Role::Shadow, 1);
        bench.order(Order::Turn).expect("it follows");
        assert!(bench.flow().not_in_sync);
        bench.turn(Role::Owner, 2);
        let own = from_service(7, false, SERVICE, CLIENT, ACK, &DATA);
        bench.expect(Hook::Gate, "data", &own, DROP, "unprotected_at_takeover");
    });
}
