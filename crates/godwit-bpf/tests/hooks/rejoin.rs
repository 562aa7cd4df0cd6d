//! The log of a flow, and a running flow that gets a new twin.

use godwit_bpf::{Hook, LogState, Order, Phase};
use godwit_lab::host::{Host, Network};
use godwit_wire::{FlowId, Generation, Role, SeqNumber, TcpFlags, UnprotectedReason};

use crate::bench::{
    Bench, DROP, GENERATION, IRS, ISS, NEXT, REDIRECT, flow_id, from_service, mirrored, on_bench,
    to_service, twin,
};
use crate::moves::shadow;

const ACK: TcpFlags = TcpFlags::ACK;
const NEXT_GENERATION: Generation = Generation(GENERATION.0 + 1);

fn at(offset: u32) -> u32 {
    IRS.wrapping_add(1).wrapping_add(offset)
}

/// `data`, at that many bytes from the beginning of the stream.
fn say(bench: &Bench, v6: bool, offset: u32, data: &[u8]) {
    let segment = to_service(7, v6, at(offset), ISS + 1, ACK, data);
    bench.expect(Hook::Tap, "data", &segment, NEXT, "client_segment");
}

/// Our kernel has everything up to there.
fn acknowledge(bench: &Bench, v6: bool, offset: u32) {
    let own = from_service(7, v6, ISS + 1, at(offset), ACK, b"");
    bench.pass(Hook::Gate, &own);
}

/// In order, out of order, twice, and with other bytes in place of what was not
/// acknowledged (a wrong checksum the first time).
#[test]
fn what_a_client_says_is_kept_in_order() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.connect(7, v6);
            assert_eq!(bench.log(), Some(Vec::new()));
            say(bench, v6, 0, b"first ");
            say(bench, v6, 13, b"third");
            assert_eq!(bench.log().as_deref(), Some(&b"first "[..]));
            say(bench, v6, 6, b"secand ");
            assert_eq!(bench.log().as_deref(), Some(&b"first secand third"[..]));
            say(bench, v6, 6, b"second ");
            acknowledge(bench, v6, 18);
            say(bench, v6, 12, b" THIRD and more");
            assert_eq!(
                bench.log().as_deref(),
                Some(&b"first second third and more"[..])
            );
            assert_eq!(bench.chunks(), 1);
            let reset = to_service(7, v6, at(27), ISS + 1, TcpFlags::RST, b"");
            bench.expect(Hook::Tap, "RST", &reset, NEXT, "client_rst");
            assert_eq!(bench.chunks(), 0, "it goes with the flow");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// Across chunks, up to the cap and over it.
#[test]
fn a_log_has_a_cap() {
    on_bench(|bench| {
        bench.connect(7, false);
        let mut said = Vec::new();
        for n in 0..65_u8 {
            let offset = u32::try_from(said.len()).expect("short");
            let data = [n; 1000];
            say(bench, false, offset, &data);
            said.extend_from_slice(&data);
            acknowledge(bench, false, offset + 1000);
        }
        assert_eq!(bench.log(), Some(said));
        say(bench, false, 65_000, &[1; 1000]);
        assert_eq!(bench.flow().log.state, LogState::Over);
        assert_eq!(bench.chunks(), 0);
    });
}

/// Where a twin can begin at a snapshot, what is earlier makes room; not while one is
/// being made. What was given up begins anew.
#[test]
fn a_log_that_slides_has_the_latest() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.slide(Generation::NONE);
            bench.connect(7, v6);
            let mut said = Vec::new();
            let cap = 64 << 10;
            let slides = |length: usize| length.saturating_sub(cap);
            let mut go_on = |times: u32, begin: &dyn Fn(usize) -> usize| {
                for n in 0..times {
                    let offset = u32::try_from(said.len()).expect("short");
                    let data = (offset + n).to_be_bytes().repeat(250);
                    say(bench, v6, offset, &data);
                    said.extend_from_slice(&data);
                    acknowledge(bench, v6, offset + 1000);
                    let latest = &said[begin(said.len())..];
                    assert_eq!(bench.log().as_deref(), Some(latest), "behind {offset}");
                }
            };
            go_on(150, &slides);
            assert!(bench.chunks() <= cap / 400 + 2);
            bench.slide(NEXT_GENERATION);
            let rejoin = Order::Rejoin(NEXT_GENERATION, SeqNumber(ISS + 1));
            bench.order(rejoin).expect("it can have a twin");
            go_on(80, &|_| slides(150_000));
            let reason = UnprotectedReason::NotConfirmed;
            bench.order(Order::Ungate(reason)).expect("it is there");
            go_on(1, &slides);
            assert!(bench.chunks() <= cap / 400 + 2);
            // Of another mode there is no way back.
            bench.lose_standby();
            say(bench, v6, 231_000, &[1; 1000]);
            acknowledge(bench, v6, 232_000);
            assert_eq!(bench.flow().log.state, LogState::Over);
            assert_eq!(bench.chunks(), 0);
            bench.slide(Generation::NONE);
            say(bench, v6, 233_000, b"behind a gap");
            assert_eq!(bench.flow().log.state, LogState::Over);
            say(bench, v6, 232_000, b"anew");
            assert_eq!(bench.log().as_deref(), Some(&b"anew"[..]));
            assert_eq!(bench.flow().log.base.0, at(232_000));
            bench.order(Order::Forget).expect("it is there");
            assert_eq!(bench.chunks(), 0);
        }
    });
}

/// Step by step from a flow without a standby to a protected one.
#[test]
fn a_running_flow_gets_a_twin() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        bench.connect(7, false);
        bench.lose_standby();
        say(bench, false, 0, b"hello");
        acknowledge(bench, false, 5);
        let rejoin = || bench.order(Order::Rejoin(NEXT_GENERATION, SeqNumber(ISS + 1)));
        assert!(rejoin().is_err(), "there is no such standby");
        bench.gain_standby(NEXT_GENERATION);
        rejoin().expect("it can have a twin");
        let flow = bench.flow();
        assert_eq!((flow.phase, flow.gated), (Phase::Rejoining, false));
        assert!(bench.order(Order::Protect).is_err(), "it has none yet");
        // What is let out meanwhile is told.
        say(bench, false, 5, b" world");
        let own = from_service(7, false, ISS + 1, at(11), ACK, b"");
        bench.expect(Hook::Gate, "our ACK", &own, NEXT, "spoken");
        let first = twin(standby, 7, false, (ISS + 1, at(5)), ACK, b"");
        bench.expect(Hook::Tap, "the twin's ACK", &first, DROP, "twin_ack");
        let flow = bench.flow();
        assert_eq!((flow.phase, flow.gated), (Phase::Rejoining, true));
        assert_eq!(flow.told_ack.0, at(11));
        assert!(bench.order(Order::Protect).is_err(), "it lacks something");
        let all = twin(standby, 7, false, (ISS + 1, at(11)), ACK, b"");
        bench.expect(Hook::Tap, "the twin's ACK", &all, DROP, "twin_ack");
        bench.order(Order::Protect).expect("it has all");
        let flow = bench.flow();
        assert!(flow.is_protected(NEXT_GENERATION), "{flow:?}");
        assert!(flow.rejoined_ns > 0 && flow.why.is_none(), "{flow:?}");
        // From here on it is gated like any other.
        say(bench, false, 11, b"!");
        let own = from_service(7, false, ISS + 1, at(12), ACK, b"");
        let (_, reasons) = bench.pass(Hook::Gate, &own);
        assert!(reasons.iter().any(|r| r == "held"), "{reasons:?}");
    });
}

/// Of a client that has closed its half, the end is the last that a new twin must have.
#[test]
fn a_twin_that_lacks_the_clients_fin_is_not_whole() {
    on_bench(|bench| {
        let (standby, fin) = (Host::B.mac(Network::Data), TcpFlags::FIN.with(ACK));
        for v6 in [false, true] {
            bench.lose_standby();
            bench.connect(7, v6);
            say(bench, v6, 0, b"hello");
            let closed = to_service(7, v6, at(5), ISS + 1, fin, b"");
            bench.expect(Hook::Tap, "its FIN", &closed, NEXT, "client_segment");
            acknowledge(bench, v6, 6);
            bench.gain_standby(NEXT_GENERATION);
            let rejoin = bench.order(Order::Rejoin(NEXT_GENERATION, SeqNumber(ISS + 1)));
            rejoin.expect("it can have a twin");
            for (has, whole) in [(5, false), (6, true)] {
                let twins = twin(standby, 7, v6, (ISS + 1, at(has)), ACK, b"");
                bench.expect(Hook::Tap, "the twin's ACK", &twins, DROP, "twin_ack");
                assert_eq!(bench.order(Order::Protect).is_ok(), whole, "{has}");
            }
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// A kernel has all that the client has said, and its server hangs: it must say
/// what the client has heard before anybody counts on it.
#[test]
fn a_twin_whose_application_says_nothing_is_not_whole() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            begin_behind_an_answer(bench, v6, |stay| bench.gain_standby(stay));
            for said in [0, 4] {
                let silent = twin(standby, 7, v6, (ISS + 1 + said, at(5)), ACK, b"");
                bench.expect(Hook::Tap, "the twin's ACK", &silent, DROP, "twin_ack");
                assert!(bench.order(Order::Protect).is_err(), "after {said} bytes");
            }
            let all = twin(standby, 7, v6, (ISS + 6, at(5)), ACK, b"");
            bench.expect(Hook::Tap, "the twin's ACK", &all, DROP, "twin_ack");
            bench.order(Order::Protect).expect("it has said it");
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// One that stands at a snapshot has no application that could: what was said since is
/// made again by whoever is to serve it.
#[test]
fn a_twin_that_stands_at_a_snapshot_need_not_say_anything() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            begin_behind_an_answer(bench, v6, |stay| bench.slide(stay));
            for (heard, whole) in [(4, false), (5, true)] {
                let silent = twin(standby, 7, v6, (ISS + 1, at(heard)), ACK, b"");
                bench.expect(Hook::Tap, "the twin's ACK", &silent, DROP, "twin_ack");
                assert_eq!(bench.order(Order::Protect).is_ok(), whole, "{heard} bytes");
            }
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// A twin is asked for when the client has said five bytes, and heard as many. `own`:
/// as the owner, with a standby in that generation.
fn begin_behind_an_answer(bench: &Bench, v6: bool, own: impl Fn(Generation)) {
    own(Generation::NONE);
    bench.connect(7, v6);
    say(bench, v6, 0, b"hello");
    let answer = from_service(7, v6, ISS + 1, at(5), ACK, b"hello");
    bench.pass(Hook::Gate, &answer);
    let heard = to_service(7, v6, at(5), ISS + 6, ACK, b"");
    bench.expect(Hook::Tap, "its ACK", &heard, NEXT, "client_segment");
    own(NEXT_GENERATION);
    let rejoin = bench.order(Order::Rejoin(NEXT_GENERATION, SeqNumber(ISS + 1)));
    rejoin.expect("it can have a twin");
}

/// A twin that was given up lives on. Its ACK counted for that of the next one,
/// which the owner had asked for in the same generation and which had nothing yet.
#[test]
fn a_twin_that_was_given_up_is_mute() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            let own = |data: &[u8]| from_service(7, v6, ISS + 1, at(5), ACK, data);
            let ack = own(b"");
            bench.expect(Hook::Gate, "its ACK", &ack, REDIRECT, "suppressed_ack");
            let given_up = Order::NotInSync(UnprotectedReason::Lagging);
            bench.order(given_up).expect("it is there");
            bench.expect(Hook::Gate, "its ACK", &ack, REDIRECT, "given_up_ack");
            let (_, reasons) = bench.pass(Hook::Gate, &own(b"data"));
            assert!(!reasons.contains(&"reported".to_owned()), "{reasons:?}");
            bench.order(Order::Admit).expect("it has spoken");
            bench.expect(Hook::Gate, "its ACK", &ack, REDIRECT, "suppressed_ack");
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// What asks for a twin may be late: the client's next connection may have the
/// same addresses, and its twin was forgotten and ended.
#[test]
fn a_twin_that_lives_makes_no_room_for_another() {
    on_bench(|bench| {
        for v6 in [false, true] {
            let same = flow_id(7, v6);
            let earlier = FlowId {
                irs: SeqNumber(IRS - 1),
                ..same
            };
            let room = || [same, earlier].map(|asked| bench.flow().gives_way_to(asked));
            shadow(bench, 7, v6);
            assert_eq!(room(), [false, false], "it may be served");
            let reason = UnprotectedReason::NotConfirmed;
            let given_up = bench.order(Order::NotInSync(reason));
            given_up.expect("it is there");
            assert_eq!(room(), [true, false], "nobody serves it");
            let reset = mirrored(7, v6, (at(0), ISS + 1), TcpFlags::RST, b"");
            bench.expect(Hook::Tap, "RST", &reset, NEXT, "tapped_rst");
            assert_eq!(room(), [true, false], "it is over, and its entry lingers");
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// What the last twin had the next may lack: its ACK comes late out of a queue,
/// when the new one has just been asked for.
#[test]
fn an_ack_of_the_last_twin_counts_for_nothing() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            let ack = |stay: Generation, offset| {
                let frame = twin(standby, 7, v6, (ISS + 1, at(offset)), ACK, b"");
                with_urgent(frame, v6, u16::try_from(stay.0).expect("short"))
            };
            bench.play(Role::Owner);
            bench.connect(7, v6);
            say(bench, v6, 0, b"hello");
            bench.pass(Hook::Gate, &from_service(7, v6, ISS + 1, at(5), ACK, b""));
            let old = ack(GENERATION, 5);
            let told = bench.put(Hook::Tap, 0, &old);
            assert_eq!(told.verdict, REDIRECT, "it has it, and the client hears");
            assert_eq!(urgent(&told.frame, v6), 0, "of that no word");
            bench.lose_standby();
            bench.gain_standby(NEXT_GENERATION);
            let rejoin = bench.order(Order::Rejoin(NEXT_GENERATION, SeqNumber(ISS + 1)));
            rejoin.expect("it can have a twin");
            bench.expect(Hook::Tap, "late", &old, DROP, "twin_ack_generation");
            assert!(!bench.flow().gated, "no new twin has spoken");
            let new = ack(NEXT_GENERATION, 0);
            bench.expect(Hook::Tap, "the new twin's", &new, DROP, "twin_ack");
            bench.expect(Hook::Tap, "late", &old, DROP, "twin_ack_generation");
            assert_eq!(bench.flow().twin_ack.0, at(0));
            assert!(bench.order(Order::Protect).is_err(), "it lacks all");
            // One that knows nothing of generations is believed.
            let plain = twin(standby, 7, v6, (ISS + 1, at(5)), ACK, b"");
            bench.expect(Hook::Tap, "its ACK", &plain, DROP, "twin_ack");
            bench.order(Order::Protect).expect("it has all");
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// A twin's words name its generation: pure ACKs, and those that ride on data.
#[test]
fn a_twin_says_in_which_stay_it_is() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            let own = from_service(7, v6, ISS + 1, at(0), ACK, b"");
            let said = bench.put(Hook::Gate, 0, &own);
            assert_eq!(said.verdict, REDIRECT);
            assert_eq!(u32::from(urgent(&said.frame, v6)), GENERATION.0);
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

fn urgent_at(v6: bool) -> usize {
    14 + if v6 { 40 } else { 20 } + 18
}

fn urgent(frame: &[u8], v6: bool) -> u16 {
    let at = urgent_at(v6);
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Puts the urgent pointer; the checksum is 16 bits further on the left.
fn with_urgent(mut frame: Vec<u8>, v6: bool, pointer: u16) -> Vec<u8> {
    let at = urgent_at(v6);
    let sum = u16::from_be_bytes([frame[at - 2], frame[at - 1]]);
    // One's complement (RFC 1624): the field was 0.
    let (rest, borrow) = sum.overflowing_sub(pointer);
    let sum = rest - u16::from(borrow);
    frame[at - 2..at].copy_from_slice(&sum.to_be_bytes());
    frame[at..at + 2].copy_from_slice(&pointer.to_be_bytes());
    frame
}
