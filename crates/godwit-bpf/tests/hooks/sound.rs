//! What a client's TCP would not have said, or a kernel drops, changes nothing: wrong
//! checksums, segments that RFC 9293 section 3.10.7.4 or PAWS refuse, TSvals that no
//! clock can have come to. And a window that shrinks is followed by who serves it.

use std::time::{Duration, Instant};

use godwit_bpf::{FlowState, Hook, LogState, Order, Phase};
use godwit_lab::host::{Host, Network};
use godwit_wire::{
    EthernetHeader, Generation, Role, Segment, SeqNumber, TcpFlags, TcpOptions, TimeStamps,
    UnprotectedReason,
};

use crate::bench::{
    Bench, DROP, GENERATION, IRS, ISS, MSS, NEXT, WND, ends, from_service, mirrored, on_bench,
    summed, tapped, to_service, twin, with_options,
};
use crate::moves::shadow;

const ACK: TcpFlags = TcpFlags::ACK;
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;
/// Both clocks, at the handshake.
const CLOCK: u32 = 0x4000_0000;
/// As long as the client is silent before it is believed.
const SILENCE: Duration = Duration::from_millis(180);
const PATIENCE: Duration = Duration::from_secs(5);

/// The same frame with another TCP checksum.
fn spoilt(mut frame: Vec<u8>, v6: bool) -> Vec<u8> {
    frame[EthernetHeader::LEN + if v6 { 40 } else { 20 } + 16] ^= 0x55;
    frame
}

/// All that outlives a segment.
fn books(flow: FlowState) -> impl PartialEq + std::fmt::Debug {
    let ts = flow.ts.map(|ts| (ts.client_val, ts.client_ecr, ts.base));
    let log = flow.log;
    (
        (flow.phase, flow.snd_una, flow.snd_edge, flow.client_end),
        (flow.client_fin, flow.bytes_in, flow.twin_ack, ts),
        (log.end, log.base),
    )
}

/// Nothing of it is kept, and nothing is mirrored.
fn expect_nothing(bench: &Bench, what: &str, frame: &[u8], verdict: i32, reason: &str) {
    let before = books(bench.flow());
    let (got, reasons) = bench.pass(Hook::Tap, frame);
    assert_eq!(got, verdict, "{what}: {reasons:?}");
    assert!(reasons.iter().any(|it| it == reason), "{what}: {reasons:?}");
    let mirrored = reasons.iter().any(|it| it == "mirrored");
    assert!(!mirrored || reason == "not_heard", "{what}: {reasons:?}");
    assert_eq!(books(bench.flow()), before, "{what}");
}

#[test]
fn a_third_ack_with_a_wrong_checksum_begins_nothing() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            let syn = to_service(7, v6, IRS, 0, TcpFlags::SYN, b"");
            bench.expect(Hook::Tap, "SYN", &syn, NEXT, "syn");
            let syn_ack = from_service(7, v6, ISS, CLIENT, TcpFlags::SYN.with(ACK), b"");
            bench.expect(Hook::Gate, "SYN-ACK", &syn_ack, NEXT, "syn_ack");
            for data in [&b""[..], b"odd", &[7; 1460]] {
                let third = to_service(7, v6, CLIENT, SERVICE, ACK, data);
                let wrong = spoilt(third, v6);
                bench.expect(Hook::Tap, "third ACK", &wrong, NEXT, "bad_checksum");
            }
            let mut flows = 0;
            bench.flows().for_each(|_| flows += 1).expect("it is read");
            assert_eq!(flows, 0);
            let third = to_service(7, v6, CLIENT, SERVICE, ACK, b"");
            bench.expect(Hook::Tap, "third ACK", &third, NEXT, "handshake_done");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

#[test]
fn no_twin_is_born_of_a_wrong_checksum() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Shadow);
            let syn = mirrored(7, v6, (IRS, 0), TcpFlags::SYN, b"");
            bench.expect(Hook::Tap, "SYN", &syn, DROP, "tapped_syn");
            let owner = Host::B.mac(Network::Data);
            let both = TcpFlags::SYN.with(ACK);
            let answer = twin(owner, 7, v6, (ISS, CLIENT), both, b"");
            let wrong = spoilt(answer.clone(), v6);
            bench.expect(Hook::Tap, "SYN-ACK", &wrong, DROP, "bad_checksum");
            bench.expect(Hook::Tap, "SYN-ACK", &answer, DROP, "tapped_syn_ack");
            let third = mirrored(7, v6, (CLIENT, SERVICE), ACK, b"");
            let wrong = spoilt(third.clone(), v6);
            bench.expect(Hook::Tap, "third ACK", &wrong, DROP, "bad_checksum");
            let mut flows = 0;
            bench.flows().for_each(|_| flows += 1).expect("it is read");
            assert_eq!(flows, 0);
            bench.expect(Hook::Tap, "third ACK", &third, DROP, "no_listener");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// Data of every length: what nobody has verified is summed up in pieces.
#[test]
fn a_wrong_checksum_moves_no_books() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            bench.connect(7, v6);
            let standby = Host::B.mac(Network::Data);
            let own = from_service(7, v6, SERVICE, CLIENT, ACK, &[7; 1000]);
            bench.expect(Hook::Gate, "data", &own, NEXT, "spoken");
            for (flags, ack) in [
                (ACK, SERVICE + 1000),
                (ACK.with(TcpFlags::FIN), SERVICE),
                (ACK.with(TcpFlags::RST), SERVICE),
                (TcpFlags::RST, 0),
            ] {
                let segment = to_service(7, v6, CLIENT, ack, flags, b"");
                let wrong = spoilt(segment, v6);
                expect_nothing(bench, "control", &wrong, NEXT, "bad_checksum");
            }
            let words = twin(standby, 7, v6, (SERVICE, CLIENT), ACK, b"");
            let wrong = spoilt(words, v6);
            expect_nothing(bench, "the twin's", &wrong, DROP, "bad_checksum");
            let mut next = CLIENT;
            for length in [1, 2, 3, 511, 512, 513, 1023, 1024, 1025, 1460] {
                let data = vec![0xa5; length];
                let right = to_service(7, v6, next, SERVICE, ACK, &data);
                let wrong = spoilt(right.clone(), v6);
                expect_nothing(bench, "data", &wrong, NEXT, "bad_checksum");
                bench.expect(Hook::Tap, "data", &right, NEXT, "client_segment");
                next = next.wrapping_add(u32::try_from(length).expect("short"));
                assert_eq!(bench.flow().client_end, SeqNumber(next));
            }
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

#[test]
fn a_wrong_checksum_says_nothing_to_a_shadow() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            for flags in [ACK, ACK.with(TcpFlags::FIN), TcpFlags::RST] {
                let segment = mirrored(7, v6, (CLIENT, SERVICE), flags, b"data");
                let wrong = spoilt(segment, v6);
                expect_nothing(bench, "tapped", &wrong, DROP, "bad_checksum");
            }
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// Without ACK, with SYN, or with an acknowledgement older than any window.
#[test]
fn what_tcp_ignores_is_not_heard() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            bench.connect(7, v6);
            let fin = TcpFlags::FIN;
            let beyond = CLIENT.wrapping_add(u32::from(WND)).wrapping_add(1);
            let old = SERVICE.wrapping_sub(0xffff).wrapping_sub(1);
            for (what, seq, ack, flags) in [
                ("no ACK", CLIENT, 0, fin),
                ("SYN", CLIENT, SERVICE, fin.with(ACK).with(TcpFlags::SYN)),
                ("an old ACK", CLIENT, old, fin.with(ACK)),
                ("beyond the window", beyond, SERVICE, fin.with(ACK)),
            ] {
                let segment = to_service(7, v6, seq, ack, flags, b"data");
                expect_nothing(bench, what, &segment, NEXT, "not_heard");
            }
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

struct Stamped {
    v6: bool,
    seq: u32,
    flags: TcpFlags,
    ts_val: u32,
    payload: &'static [u8],
}

impl Stamped {
    fn segment(&self, from_client: bool, (seq, ack): (u32, u32)) -> Vec<u8> {
        let (client, service) = ends(7, self.v6);
        let (source, destination) = match from_client {
            true => (client, service),
            false => (service, client),
        };
        let syn = self.flags.contains(TcpFlags::SYN);
        let segment = Segment {
            source,
            destination,
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: self.flags,
            wnd: WND,
            options: TcpOptions {
                mss: syn.then_some(MSS),
                time_stamps: Some(TimeStamps {
                    ts_val: self.ts_val,
                    ts_ecr: if ack == 0 { 0 } else { CLOCK },
                }),
                ..TcpOptions::default()
            },
            payload: self.payload,
        };
        segment.to_packet().expect("it is short")
    }

    /// From the client.
    fn bytes(&self) -> Vec<u8> {
        let ack = if self.flags == TcpFlags::SYN {
            0
        } else {
            SERVICE
        };
        let packet = self.segment(true, (self.seq, ack));
        let mac = |host: Host| host.mac(Network::Data);
        EthernetHeader::frame_ip(mac(Host::A), mac(Host::Client), &packet)
    }

    /// From the service.
    fn answer(&self) -> Vec<u8> {
        let packet = self.segment(false, (ISS, CLIENT));
        let mac = |host: Host| host.mac(Network::Data);
        EthernetHeader::frame_ip(mac(Host::Client), mac(Host::A), &packet)
    }
}

/// An owner's flow with time stamps; the client's next is at [`CLIENT`].
fn stamped(bench: &Bench, v6: bool) {
    bench.play(Role::Owner);
    let frame = |seq, flags, ts_val| Stamped {
        v6,
        seq,
        flags,
        ts_val,
        payload: b"",
    };
    let syn = frame(IRS, TcpFlags::SYN, CLOCK).bytes();
    bench.expect(Hook::Tap, "SYN", &syn, NEXT, "syn");
    let syn_ack = frame(ISS, TcpFlags::SYN.with(ACK), CLOCK).answer();
    bench.expect(Hook::Gate, "SYN-ACK", &syn_ack, NEXT, "syn_ack");
    let old = frame(CLIENT, ACK, CLOCK - 5000).bytes();
    bench.expect(Hook::Tap, "an old third ACK", &old, NEXT, "no_flow");
    let third = frame(CLIENT, ACK, CLOCK + 1).bytes();
    bench.expect(Hook::Tap, "third ACK", &third, NEXT, "handshake_done");
}

/// RFC 7323 section 5.3: dropped by the kernel, so its FIN and its data are none.
#[test]
fn an_old_stamp_is_not_heard() {
    on_bench(|bench| {
        for v6 in [false, true] {
            stamped(bench, v6);
            let old = Stamped {
                v6,
                seq: CLIENT,
                flags: ACK.with(TcpFlags::FIN),
                ts_val: CLOCK - 5000,
                payload: b"old",
            };
            expect_nothing(bench, "an old one", &old.bytes(), NEXT, "not_heard");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// A later connection on the same addresses and ports, whose SYN was forgotten here in a flood:
/// the kernel has its socket, and its client's clock is another one.
#[test]
fn a_stamp_on_an_ended_flow_is_for_the_kernel_to_judge() {
    on_bench(|bench| {
        for v6 in [false, true] {
            stamped(bench, v6);
            let reset = to_service(7, v6, CLIENT, SERVICE, TcpFlags::RST, b"");
            bench.expect(Hook::Tap, "RST", &reset, NEXT, "client_rst");
            let fin = Stamped {
                v6,
                seq: CLIENT.wrapping_add(1 << 28),
                flags: ACK.with(TcpFlags::FIN),
                ts_val: CLOCK + (1 << 24),
                payload: b"",
            };
            bench.expect(Hook::Tap, "FIN", &fin.bytes(), NEXT, "client_segment");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// One copy with a TSval far ahead would have TCP, here and on whoever takes over, drop
/// all that the client says later. A client whose clock has jumped says it again.
#[test]
fn a_stamp_that_jumps_is_believed_if_it_is_said_again() {
    on_bench(|bench| {
        for v6 in [false, true] {
            stamped(bench, v6);
            let at = |ts_val, payload| Stamped {
                v6,
                seq: CLIENT,
                flags: ACK,
                ts_val,
                payload,
            };
            let jump = at(CLOCK + (1 << 24), b"jump").bytes();
            expect_nothing(bench, "a jump", &jump, DROP, "ts_jump");
            expect_nothing(bench, "again at once", &jump, DROP, "ts_jump");
            let heard = Instant::now();
            let usual = at(CLOCK + 50, b"").bytes();
            bench.expect(Hook::Tap, "its own", &usual, NEXT, "client_segment");
            expect_nothing(bench, "and again", &jump, DROP, "ts_jump");
            // As a client does that nobody acknowledges: after its timer.
            while bench.pass(Hook::Tap, &jump).0 != NEXT {
                assert!(heard.elapsed() < PATIENCE, "it is never believed");
            }
            assert!(heard.elapsed() >= SILENCE, "too soon");
            assert_eq!(
                bench.flow().ts.map(|ts| ts.client_val),
                Some(CLOCK + (1 << 24))
            );
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// The window in a frame, as it is there.
fn window(frame: &[u8], v6: bool) -> u16 {
    let at = EthernetHeader::LEN + if v6 { 40 } else { 20 } + 14;
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// The same segment with another window.
fn with_window(mut frame: Vec<u8>, v6: bool, wnd: u16) -> Vec<u8> {
    let at = EthernetHeader::LEN + if v6 { 40 } else { 20 } + 14;
    frame[at..at + 2].copy_from_slice(&wnd.to_be_bytes());
    summed(frame, v6)
}

/// What a socket that was a twin sent beyond such a window waited for the
/// retransmission timer, backed off; another socket probes.
#[test]
fn who_serves_a_client_follows_a_window_that_shrinks() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            bench.lose_standby();
            let own = from_service(7, v6, SERVICE, CLIENT, ACK, &[7; 1000]);
            bench.expect(Hook::Gate, "data", &own, NEXT, "caught_up");
            let said = |ack: u32, wnd| {
                let segment = to_service(7, v6, CLIENT, ack, ACK, b"");
                let trial = bench.put(Hook::Tap, 0, &with_window(segment, v6, wnd));
                assert_eq!(trial.verdict, NEXT);
                window(&trial.frame, v6)
            };
            let edge = || bench.flow().snd_edge.0;
            assert_eq!(said(SERVICE + 500, 5000), 5000);
            assert_eq!(edge(), SERVICE + 5500);
            assert_eq!(said(SERVICE + 1000, 1000), 1000, "it has shrunk");
            assert_eq!(edge(), SERVICE + 2000);
            assert_eq!(said(SERVICE + 1000, 0), 0, "it is shut");
            assert_eq!(edge(), SERVICE + 1000);
            assert_eq!(said(SERVICE + 1000, 3000), 3000, "it opens");
            assert_eq!(edge(), SERVICE + 4000);
            // At the same place the larger one is the later one, as far as TCP can tell.
            said(SERVICE + 1000, 2000);
            assert_eq!(edge(), SERVICE + 4000);
            said(SERVICE + 500, 9000);
            assert_eq!(edge(), SERVICE + 4000, "an old one");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// MSS, TCP-MD5 with any digest, and room for TCP Fast Open, which is not taken out.
fn signed(frame: Vec<u8>, v6: bool, kind: u8) -> Vec<u8> {
    let mut options = vec![2, 4, 3, 0xe8, kind, 18];
    options.extend_from_slice(&[0xd1; 16]);
    options.extend_from_slice(&[34, 2, 1, 1, 1, 1]);
    with_options(frame, v6, &options)
}

/// A changed segment is refused at the other end, so the connection was impossible: the
/// SYN-ACK had a window that a twin would have. Nothing may be changed, and no twin made.
#[test]
fn segments_that_are_signed_are_left_as_they_are() {
    on_bench(|bench| {
        for (v6, kind) in [(false, 19), (true, 19), (false, 29), (true, 29)] {
            let whole = |hook, what: &str, frame: &[u8]| {
                let before: u64 = mirrored_so_far(bench);
                let trial = bench.put(hook, 0, frame);
                assert_eq!(trial.verdict, NEXT, "{what}");
                assert_eq!(trial.frame, frame, "{what} was changed");
                assert_eq!(mirrored_so_far(bench), before, "{what} was mirrored");
            };
            bench.play(Role::Owner);
            let client = |seq, ack, flags, data: &[u8]| {
                signed(to_service(7, v6, seq, ack, flags, data), v6, kind)
            };
            let service = |seq, ack, flags, data: &[u8]| {
                signed(from_service(7, v6, seq, ack, flags, data), v6, kind)
            };
            let both = TcpFlags::SYN.with(ACK);
            whole(Hook::Tap, "SYN", &client(IRS, 0, TcpFlags::SYN, b""));
            whole(Hook::Gate, "SYN-ACK", &service(ISS, CLIENT, both, b""));
            whole(Hook::Tap, "third ACK", &client(CLIENT, SERVICE, ACK, b""));
            let flow = bench.flow();
            assert_eq!(flow.phase, Phase::Unprotected);
            assert_eq!(flow.why, Some(UnprotectedReason::SignedSegments));
            assert_eq!((flow.gated, flow.generation), (false, Generation::NONE));
            whole(Hook::Tap, "data", &client(CLIENT, SERVICE, ACK, b"data"));
            let next = CLIENT.wrapping_add(4);
            whole(Hook::Gate, "its ACK", &service(SERVICE, next, ACK, b""));
            whole(Hook::Gate, "data", &service(SERVICE, next, ACK, b"data"));
            assert_eq!(bench.flow().log.state, LogState::None);
            let rejoin = Order::Rejoin(GENERATION, SeqNumber(SERVICE));
            assert!(bench.order(rejoin).is_err(), "no twin has the key");
            bench.order(Order::Forget).expect("it is there");
            // A network that copies segments by itself makes no twin, either.
            bench.play(Role::Shadow);
            let copy = tapped(client(IRS, 0, TcpFlags::SYN, b""));
            bench.expect(Hook::Tap, "SYN", &copy, DROP, "tapped_syn");
            let copy = tapped(client(CLIENT, SERVICE, ACK, b""));
            bench.expect(Hook::Tap, "third ACK", &copy, DROP, "no_handshake");
        }
    });
}

fn mirrored_so_far(bench: &Bench) -> u64 {
    let counts = bench.counts().into_iter();
    counts.filter(|it| it.0 == "mirrored").map(|it| it.1).sum()
}

/// Urgent data were said again as ordinary data: other bytes than the first server read.
#[test]
fn a_log_has_no_urgent_data() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            bench.connect(7, v6);
            let data = to_service(7, v6, CLIENT, SERVICE, ACK, b"data");
            bench.expect(Hook::Tap, "data", &data, NEXT, "client_segment");
            assert_eq!(bench.flow().log.state, LogState::Kept);
            let urgent = ACK.with(TcpFlags::URG);
            let next = CLIENT.wrapping_add(4);
            let urgent = to_service(7, v6, next, SERVICE, urgent, b"!");
            bench.expect(Hook::Tap, "urgent data", &urgent, NEXT, "log_urgent");
            let data = to_service(7, v6, next.wrapping_add(1), SERVICE, ACK, b"data");
            bench.expect(Hook::Tap, "data", &data, NEXT, "client_segment");
            assert_eq!(bench.flow().log.state, LogState::Urgent);
            assert_eq!(bench.chunks(), 0);
            let rejoin = Order::Rejoin(GENERATION, SeqNumber(SERVICE));
            assert!(bench.order(rejoin).is_err(), "it would hear something else");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// A request that is sent ahead while a reply pauses looked like the next one, and a twin
/// that began there said the wrong reply. Here no server has read it: it is none yet.
#[test]
fn what_no_server_has_read_begins_no_log() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.log_requests();
            bench.connect(7, v6);
            let first = to_service(7, v6, CLIENT, SERVICE, ACK, b"first");
            bench.expect(Hook::Tap, "a request", &first, NEXT, "client_segment");
            let next = CLIENT.wrapping_add(5);
            let half = from_service(7, v6, SERVICE, next, ACK, b"half");
            bench.expect(Hook::Gate, "half a reply", &half, NEXT, "spoken");
            let ahead = to_service(7, v6, next, SERVICE + 4, ACK, b"second");
            bench.expect(Hook::Tap, "ahead", &ahead, NEXT, "client_segment");
            assert_eq!(bench.log().as_deref(), Some(&b"firstsecond"[..]));
            let rest = from_service(7, v6, SERVICE + 4, next, ACK, b"rest");
            bench.expect(Hook::Gate, "the rest", &rest, NEXT, "spoken");
            assert_eq!(bench.flow().log.base, SeqNumber(CLIENT));
            assert_eq!(bench.log().as_deref(), Some(&b"firstsecond"[..]));
            bench.order(Order::Forget).expect("it is there");
        }
    });
}
