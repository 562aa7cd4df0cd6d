//! The right edge of the window that the client knows (RFC 9293 section 3.8.6),
//! told in units of its scale (RFC 7323 section 2.4).

use godwit_bpf::{Hook, MARK_SPOKEN, Order, Phase};
use godwit_lab::host::{Host, Network};
use godwit_wire::{EthernetHeader, Generation, Role, Segment, SeqNumber, TcpFlags, TcpOptions};

use crate::bench::{Bench, DROP, GENERATION, IRS, ISS, MSS, NEXT, REDIRECT, ends, on_bench};

const ACK: TcpFlags = TcpFlags::ACK;
const PORT: u16 = 7;

/// First bytes of the client and of the service.
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

/// As Linux chooses it for 6 MB of memory.
const WSCALE: u8 = 7;
const UNIT: u32 = 1 << WSCALE;

/// Who says something, to whom.
#[derive(Clone, Copy)]
enum Way {
    /// The client, or who mirrors its words, to this machine.
    In(Host),
    /// This machine's kernel, or its agent, to the client.
    Out,
    /// The other machine, in the service's name, to this one.
    Peer,
}

struct Frame {
    way: Way,
    flags: TcpFlags,
    numbers: (u32, u32),
    wnd: u16,
    payload: Vec<u8>,
}

impl Frame {
    fn new(way: Way, numbers: (u32, u32), wnd: u16) -> Self {
        Self {
            way,
            flags: ACK,
            numbers,
            wnd,
            payload: Vec::new(),
        }
    }

    fn bytes(&self, v6: bool) -> Vec<u8> {
        let (client, service) = ends(PORT, v6);
        let (source, destination, from, to) = match self.way {
            Way::In(from) => (client, service, from, Host::A),
            Way::Out => (service, client, Host::A, Host::Client),
            Way::Peer => (service, client, Host::B, Host::A),
        };
        let syn = self.flags.contains(TcpFlags::SYN);
        let segment = Segment {
            source,
            destination,
            seq: SeqNumber(self.numbers.0),
            ack: SeqNumber(self.numbers.1),
            flags: self.flags,
            wnd: self.wnd,
            options: TcpOptions {
                mss: syn.then_some(MSS),
                wscale: syn.then_some(WSCALE),
                ..TcpOptions::default()
            },
            payload: &self.payload,
        };
        let packet = segment.to_packet().expect("it is short");
        let mac = |host: Host| host.mac(Network::Data);
        EthernetHeader::frame_ip(mac(to), mac(from), &packet)
    }
}

/// A handshake whose SYN-ACK offers `wnd` bytes.
fn shake_hands(bench: &Bench, v6: bool, shadow: bool, wnd: u16) {
    let (client, service) = if shadow {
        (Way::In(Host::B), Way::Peer)
    } else {
        (Way::In(Host::Client), Way::Out)
    };
    let syn = Frame {
        flags: TcpFlags::SYN,
        ..Frame::new(client, (IRS, 0), wnd)
    };
    let syn_ack = Frame {
        flags: TcpFlags::SYN.with(ACK),
        ..Frame::new(service, (ISS, CLIENT), wnd)
    };
    let third = Frame::new(client, (CLIENT, SERVICE), wnd);
    let answer = if shadow { Hook::Tap } else { Hook::Gate };
    bench.put(Hook::Tap, 0, &syn.bytes(v6));
    bench.put(answer, 0, &syn_ack.bytes(v6));
    bench.put(Hook::Tap, 0, &third.bytes(v6));
    assert_eq!(bench.flow().rcv_wscale, WSCALE);
}

/// The ack and the right edge of a segment.
fn told(frame: &[u8]) -> (u32, u32) {
    let packet = &frame[EthernetHeader::LEN..];
    let segment = Segment::parse(packet).expect("it is a segment");
    let edge = segment.ack.0.wrapping_add(u32::from(segment.wnd) * UNIT);
    (segment.ack.0, edge)
}

/// What was rounded up for one ACK must not be the base of the next: by and by
/// the client was told of a window that neither kernel had, which retreated as
/// soon as our kernel spoke for itself, and at a takeover.
#[test]
fn what_is_rounded_up_does_not_add_up() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            shake_hands(bench, v6, false, 43 * MSS);
            let mut end = CLIENT;
            let mut ends = Vec::new();
            for length in [1448, 1000, 333, 1448, 77].repeat(20) {
                let data = Frame {
                    payload: vec![7; length],
                    ..Frame::new(Way::In(Host::Client), (end, SERVICE), 500)
                };
                bench.put(Hook::Tap, 0, &data.bytes(v6));
                end = end.wrapping_add(u32::try_from(length).expect("short"));
                ends.push(end);
                if ends.len() == 50 {
                    // Our kernel has it all at once, and its application reads
                    // nothing; the twin's does, segment by segment.
                    let own = Frame::new(Way::Out, (SERVICE, end), 700);
                    bench.put(Hook::Gate, 0, &own.bytes(v6));
                    break;
                }
            }
            let (offered, mut most) = (end.wrapping_add(700 * UNIT), CLIENT);
            for ack in ends {
                let said = Frame::new(Way::Peer, (SERVICE, ack), 3000).bytes(v6);
                let forwarded = bench.put(Hook::Tap, 0, &said);
                assert_eq!(forwarded.verdict, REDIRECT);
                let (told_ack, edge) = told(&forwarded.frame);
                assert_eq!(told_ack, ack);
                let retreat = SeqNumber(most).checked_distance(SeqNumber(edge));
                assert!(retreat.is_none_or(|by| by < UNIT), "back by {retreat:?}");
                most = SeqNumber(most).max(SeqNumber(edge)).0;
                let beyond = SeqNumber(most).checked_distance(SeqNumber(offered));
                assert!(
                    beyond.is_none_or(|by| by < UNIT),
                    "{beyond:?} bytes beyond what our kernel takes"
                );
            }
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// The last bytes were less than a segment and more than the window said, in its units:
/// the twin waited for its timer (200 ms), and whoever took over in that time spoke to
/// a client that was gone.
#[test]
fn a_twin_may_send_to_the_end_when_its_owner_has_closed() {
    on_bench(|bench| {
        for (v6, closed) in [(false, false), (true, false), (false, true), (true, true)] {
            bench.play(Role::Shadow);
            shake_hands(bench, v6, true, 43 * MSS);
            let rest = UNIT + UNIT / 2;
            let flags = if closed { ACK.with(TcpFlags::FIN) } else { ACK };
            let said = Frame {
                flags,
                payload: vec![7; usize::try_from(rest - 1).expect("short")],
                ..Frame::new(Way::Peer, (SERVICE, CLIENT), 700)
            };
            bench.put(Hook::Tap, 0, &said.bytes(v6));
            let end = SERVICE.wrapping_add(rest);
            let heard = Frame::new(Way::In(Host::B), (CLIENT, end), 500);
            let heard = bench.put(Hook::Tap, 0, &heard.bytes(v6));
            let (ack, edge) = told(&heard.frame);
            assert_eq!(ack, SERVICE, "the twin has sent nothing yet");
            let units = if closed { 2 } else { 1 };
            assert_eq!(edge, SERVICE.wrapping_add(units * UNIT), "{closed}");
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// The agent makes a segment, is held up, and sends it when our kernel has
/// offered more: the client hears of no smaller window.
#[test]
fn a_late_segment_of_the_agent_takes_no_window_back() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Shadow);
            shake_hands(bench, v6, true, 43 * MSS);
            bench.lose_standby();
            let own = Frame::new(Way::Out, (SERVICE, CLIENT), 700).bytes(v6);
            bench.expect(Hook::Gate, "its own words", &own, NEXT, "caught_up");
            for (late, wanted) in [(652, 700), (0, 700), (700, 700), (701, 701)] {
                let frame = Frame::new(Way::Out, (SERVICE, CLIENT), late).bytes(v6);
                let said = bench.put(Hook::Gate, MARK_SPOKEN, &frame);
                assert_eq!(said.verdict, NEXT);
                let (_, edge) = told(&said.frame);
                assert_eq!(edge, CLIENT.wrapping_add(wanted * UNIT), "{late}");
            }
            // A reset has no window.
            let reset = Frame {
                flags: TcpFlags::RST.with(ACK),
                ..Frame::new(Way::Out, (SERVICE, CLIENT), 0)
            };
            let said = bench.put(Hook::Gate, MARK_SPOKEN, &reset.bytes(v6));
            assert_eq!(told(&said.frame).1, CLIENT);
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// Units that the owner's kernel offered while there was no twin, and what the
/// new twin's kernel offers.
const WIDE: u16 = 3000;
const NARROW: u16 = 500;

/// Right edge of so many units at the beginning of the stream.
fn edge(units: u16) -> u32 {
    CLIENT.wrapping_add(u32::from(units) * UNIT)
}

/// The owner's kernel tells of a wide window while nobody stands by; then a twin
/// with a narrow one is made.
fn rejoin(bench: &Bench, v6: bool) {
    bench.play(Role::Owner);
    shake_hands(bench, v6, false, 43 * MSS);
    bench.lose_standby();
    let own = Frame::new(Way::Out, (SERVICE, CLIENT), WIDE).bytes(v6);
    bench.expect(Hook::Gate, "its own words", &own, NEXT, "spoken");
    let next = Generation(GENERATION.0 + 1);
    bench.gain_standby(next);
    bench
        .order(Order::Rejoin(next, SeqNumber(ISS + 1)))
        .expect("it can have a twin");
    let twin = Frame::new(Way::Peer, (SERVICE, CLIENT), NARROW).bytes(v6);
    bench.expect(Hook::Tap, "the twin's ACK", &twin, DROP, "twin_ack");
    bench.order(Order::Protect).expect("it has all");
    assert_eq!(bench.flow().phase, Phase::Protected);
    assert_eq!(bench.flow().floor, Some(SeqNumber(edge(WIDE))));
}

/// The client was told of a wide window before there was a twin, whose kernel
/// has a narrow one: the edge stays until the twin has come so far.
#[test]
fn a_new_twin_takes_no_window_back() {
    on_bench(|bench| {
        for v6 in [false, true] {
            rejoin(bench, v6);
            let own = Frame::new(Way::Out, (SERVICE, CLIENT), WIDE).bytes(v6);
            let said = bench.put(Hook::Gate, 0, &own);
            assert_eq!(told(&said.frame), (CLIENT, edge(WIDE)));
            let mut end = CLIENT;
            for length in [1000, 333, 77].repeat(20) {
                let data = Frame {
                    payload: vec![7; length],
                    ..Frame::new(Way::In(Host::Client), (end, SERVICE), 500)
                };
                bench.put(Hook::Tap, 0, &data.bytes(v6));
                end = end.wrapping_add(u32::try_from(length).expect("short"));
                let own = Frame::new(Way::Out, (SERVICE, end), WIDE).bytes(v6);
                bench.expect(Hook::Gate, "our ACK", &own, REDIRECT, "held");
                let twin = Frame::new(Way::Peer, (SERVICE, end), NARROW).bytes(v6);
                let forwarded = bench.put(Hook::Tap, 0, &twin);
                assert_eq!(forwarded.verdict, REDIRECT);
                let (ack, edge_told) = told(&forwarded.frame);
                assert_eq!(ack, end);
                let beyond = SeqNumber(edge_told).checked_distance(SeqNumber(edge(WIDE)));
                assert!(beyond.is_some_and(|by| by < UNIT), "{beyond:?}");
            }
            // The twin's application reads, and its kernel offers more than that.
            let twin = Frame::new(Way::Peer, (SERVICE, end), WIDE).bytes(v6);
            bench.put(Hook::Tap, 0, &twin);
            let own = Frame::new(Way::Out, (SERVICE, end), WIDE).bytes(v6);
            let said = bench.put(Hook::Gate, 0, &own);
            let both = end.wrapping_add(u32::from(WIDE) * UNIT);
            assert_eq!(told(&said.frame), (end, both));
            assert_eq!(bench.flow().floor, None, "it has done its work");
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// A shadow with a narrow window, to which the owner has said what the client
/// was told before there was this twin.
fn shadow_with_floor(bench: &Bench, v6: bool) {
    bench.play(Role::Shadow);
    shake_hands(bench, v6, true, 43 * MSS);
    let word = Frame {
        flags: ACK.with(TcpFlags::PSH),
        ..Frame::new(Way::Peer, (SERVICE, CLIENT), WIDE)
    };
    bench.expect(Hook::Tap, "the word", &word.bytes(v6), DROP, "owner_word");
    let own = Frame::new(Way::Out, (SERVICE, CLIENT), NARROW).bytes(v6);
    bench.expect(Hook::Gate, "its ACK", &own, REDIRECT, "suppressed_ack");
    assert_eq!(bench.flow().floor, Some(SeqNumber(edge(WIDE))));
}

/// The twin becomes the owner, and its client knows of more than it offers: by
/// the agent's words, too.
#[test]
fn a_takeover_by_a_new_twin_takes_no_window_back() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow_with_floor(bench, v6);
            assert_eq!(bench.flow().wnd, WIDE, "of the first ACK and probe");
            bench.lose_standby();
            let own = |ack, wnd| Frame::new(Way::Out, (SERVICE, ack), wnd).bytes(v6);
            let say = |ack, wnd| told(&bench.put(Hook::Gate, 0, &own(ack, wnd)).frame);
            assert_eq!(say(CLIENT, NARROW), (CLIENT, edge(WIDE)));
            assert_eq!(say(edge(100), NARROW), (edge(100), edge(WIDE)));
            assert_eq!(bench.flow().wnd, WIDE - 100);
            // Its application does not read: what would come now is lost.
            assert_eq!(say(edge(600), 0), (edge(600), edge(600)));
            assert_eq!(bench.flow().wnd, 0);
            assert_eq!(say(edge(600), WIDE), (edge(600), edge(WIDE + 600)));
            assert_eq!(bench.flow().floor, None, "it has done its work");
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// The same if it becomes the owner by a planned move, with a gate from the
/// first word on.
#[test]
fn a_move_to_a_new_twin_takes_no_window_back() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow_with_floor(bench, v6);
            let word = Frame::new(Way::Peer, (SERVICE, CLIENT), WIDE).bytes(v6);
            bench.expect(Hook::Tap, "the last word", &word, DROP, "owner_word");
            bench.turn(Role::Owner, 1);
            bench.order(Order::Turn).expect("it follows");
            assert_eq!(bench.flow().phase, Phase::Protected);
            let own = Frame::new(Way::Out, (SERVICE, CLIENT), NARROW).bytes(v6);
            let said = bench.put(Hook::Gate, 0, &own);
            assert_eq!(told(&said.frame), (CLIENT, edge(WIDE)));
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// A SYN-ACK's window is no multiple of a unit. The first that a twin's kernel
/// says in units is less than that, and what is told beyond it must be less than
/// a unit: the twin may be the next owner.
#[test]
fn a_twin_offers_what_it_says_first() {
    const LESS: u16 = 490;
    const { assert!(LESS as u32 * UNIT < 43 * MSS as u32) };
    const { assert!((LESS as u32 + 1) * UNIT > 43 * MSS as u32) };
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            shake_hands(bench, v6, false, 43 * MSS);
            let twin = Frame::new(Way::Peer, (SERVICE, CLIENT), LESS).bytes(v6);
            bench.expect(Hook::Tap, "the twin's ACK", &twin, DROP, "twin_ack");
            let own = Frame::new(Way::Out, (SERVICE, CLIENT), 600).bytes(v6);
            let said = bench.put(Hook::Gate, 0, &own);
            assert_eq!(told(&said.frame), (CLIENT, edge(LESS)));
            bench.order(Order::Forget).expect("it is removed");

            bench.play(Role::Shadow);
            shake_hands(bench, v6, true, 43 * MSS);
            let own = Frame::new(Way::Out, (SERVICE, CLIENT), LESS).bytes(v6);
            bench.expect(Hook::Gate, "its ACK", &own, REDIRECT, "suppressed_ack");
            assert_eq!(bench.flow().rcv_edge, SeqNumber(edge(LESS)));
            assert_eq!(bench.flow().wnd, LESS);
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}
