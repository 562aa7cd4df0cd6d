//! Servers that stand by for each other: to which share a segment belongs, and connections
//! with twins that go with a request (`gw_ward.h`, `gw_ring.h`). This machine is a, number 0;
//! b, number 1, is its standby, and c, number 2, is the owner of its ward.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use godwit_bpf::{Hook, Mate, Order, PlacingRule, RulePath};
use godwit_lab::host::{Host, Network};
use godwit_wire::{Role, ShareId, TcpFlags};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, NODES, REDIRECT, SHARE, SLIP_TYPE, flow_id, from_service, note,
    on_bench, sent_on, to_service,
};
use crate::life::ip;

pub(crate) const WARD: ShareId = ShareId(SHARE.0 + 1);
const ACK: TcpFlags = TcpFlags::ACK;
const DATA: TcpFlags = TcpFlags(TcpFlags::ACK.0 | TcpFlags::PSH.0);
pub(crate) const PORT: u16 = 7;
const DEADLINE: Duration = Duration::from_secs(5);

/// First bytes of the client and of the service.
pub(crate) const CLIENT: u32 = IRS.wrapping_add(1);
pub(crate) const SERVICE: u32 = ISS + 1;

const GET: &[u8] = b"GET /c/x HTTP/1.1\r\nHost: s\r\n\r\n";

/// What a slip says.
#[derive(Clone, Copy)]
pub(crate) struct Slip {
    pub(crate) kind: u8,
    pub(crate) number: u8,
    /// Who is asked and who asks, by their places in [`NODES`] + 1.
    pub(crate) to: u8,
    pub(crate) from: u8,
}

pub(crate) const ASK: u8 = 1;
pub(crate) const ACCEPTED: u8 = 2;
pub(crate) const REFUSED: u8 = 3;
pub(crate) const BEGIN: u8 = 4;
pub(crate) const TWIN: u8 = 5;

/// By way of a from c to b.
pub(crate) const BY_WAY: Slip = Slip {
    kind: ASK,
    number: 1,
    to: 2,
    from: 3,
};

/// c says to its standby: b's connection has come to me.
pub(crate) const CAME: Slip = Slip {
    kind: TWIN,
    number: 3,
    to: 3,
    from: 2,
};

/// A frame from another server, with a slip of this connection.
pub(crate) fn with_slip(from: Host, mut frame: Vec<u8>, slip: Slip) -> Vec<u8> {
    frame[6..12].copy_from_slice(&from.mac(Network::Data).0);
    frame[12..14].copy_from_slice(&SLIP_TYPE);
    frame.extend(b"gwsp");
    frame.extend([2, slip.kind, 0, 0, 0, 0, 0, slip.number]);
    frame.extend(IRS.to_be_bytes());
    frame.extend(ISS.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(CLIENT.wrapping_add(65535).to_be_bytes());
    for node in [slip.to, slip.from] {
        let id = node.checked_sub(1).map_or(0, |at| NODES[usize::from(at)]);
        frame.extend(id.to_be_bytes());
    }
    frame.extend([0, 0]);
    frame.extend([5, 180, 5, 180, 7, 7, 0, 10, 0, 0, 0, 0, 0, 100]);
    frame
}

pub(crate) fn from(host: Host, mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&host.mac(Network::Data).0);
    frame
}

pub(crate) fn request(v6: bool) -> Vec<u8> {
    to_service(PORT, v6, CLIENT, SERVICE, DATA, GET)
}

/// What of a frame is for whom, and what it was counted as.
pub(crate) fn goes(bench: &Bench, frame: &[u8]) -> (i32, Vec<u8>) {
    let trial = bench.put(Hook::Tap, 0, frame);
    (trial.verdict, trial.frame)
}

/// The frame as it is sent on: of the first one in a millisecond a director is told.
fn sent_again(bench: &Bench, frame: &[u8]) -> Vec<u8> {
    let frames = std::iter::repeat_with(|| goes(bench, frame)).take(1000);
    let mut sent = frames.map(|(verdict, sent)| {
        assert_eq!(verdict, REDIRECT);
        sent
    });
    let sent = sent.find(|it| it[12..14] != [0x88, 0xb5]);
    sent.expect("it goes on")
}

/// To whom it is sent on.
pub(crate) fn goes_on_to(bench: &Bench, frame: &[u8]) -> [u8; 6] {
    let sent = sent_again(bench, frame);
    sent[..6].try_into().expect("it is longer")
}

pub(crate) fn on_ring(work: impl Fn(&Bench, bool) + Send + Sync) {
    for v6 in [false, true] {
        on_bench(|bench| {
            bench.make_ring(WARD, Host::C);
            let table = &bench.datapath.requests.placing;
            let rule = |name: &str, node| PlacingRule {
                host: None,
                path: RulePath::Prefix(format!("/{name}/")),
                nodes: vec![node],
            };
            let rules = [rule("b", NODES[1]), rule("c", NODES[2])];
            for share in [SHARE, WARD] {
                table
                    .set(share, Some(NODES[0]), &NODES, &rules)
                    .expect("room");
                for (node, host) in [(NODES[1], Host::B), (NODES[2], Host::C)] {
                    let mate = Mate::Open(host.mac(Network::Data));
                    table.set_mate(share, node, mate).expect("room");
                }
            }
            work(bench, v6);
        });
    }
}

/// What becomes of the segment of which a twin is made: a trial has no socket for it.
pub(crate) const MADE: &str = "materialise_refused";

/// Takes part in a handshake of the ward's, as its standby; there is a server.
pub(crate) fn tap_handshake(bench: &Bench, v6: bool) {
    tap_syn(bench, v6, IRS);
    tap_syn_ack(bench, v6, IRS);
    let third = from(Host::C, to_service(PORT, v6, CLIENT, SERVICE, ACK, &[]));
    bench.expect(Hook::Tap, "third", &third, DROP, MADE);
}

pub(crate) fn tap_syn(bench: &Bench, v6: bool, irs: u32) {
    let syn = to_service(PORT, v6, irs, 0, TcpFlags::SYN, &[]);
    bench.expect(Hook::Tap, "SYN", &from(Host::C, syn), DROP, "tapped_syn");
}

fn tap_syn_ack(bench: &Bench, v6: bool, irs: u32) {
    let both = TcpFlags::SYN.with(ACK);
    let mut syn_ack = from_service(PORT, v6, ISS, irs.wrapping_add(1), both, &[]);
    syn_ack[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
    let syn_ack = from(Host::C, syn_ack);
    bench.expect(Hook::Tap, "SYN-ACK", &syn_ack, DROP, "tapped_syn_ack");
}

/// A twin of the ward's goes with its connection from c to b, by way of here.
pub(crate) fn twin_goes_to_b(bench: &Bench, v6: bool) {
    tap_handshake(bench, v6);
    let asked = with_slip(Host::C, request(v6), BY_WAY);
    bench.expect(Hook::Tap, "question", &asked, REDIRECT, "relayed");
    let kind = ACCEPTED;
    let answer = with_slip(Host::B, request(v6), Slip { kind, ..BY_WAY });
    bench.expect(Hook::Tap, "answer", &answer, NEXT, "accepted");
}

/// The frame as another server sends it on: with few hops left.
fn few_hops(mut frame: Vec<u8>, v6: bool) -> Vec<u8> {
    let behind = sent_on(&frame, v6, 1);
    frame.splice(12.., behind);
    frame
}

/// A SYN is the node's own, unless its ward's owner mirrors it; what that one passes on to be
/// begun has a slip. What follows goes by the handshake, whoever has sent the frame.
#[test]
fn a_segment_belongs_where_its_connection_does() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        let syn = |port| to_service(port, v6, IRS, 0, TcpFlags::SYN, &[]);
        bench.expect(Hook::Tap, "SYN", &syn(8), NEXT, "syn");
        let passed = Slip {
            kind: BEGIN,
            ..BY_WAY
        };
        let passed = with_slip(Host::C, syn(9), passed);
        bench.expect(Hook::Tap, "passed on", &passed, NEXT, "syn");
        tap_handshake(bench, v6);
        bench.connect(8, v6);
        let shares = |port| {
            let mut found = None;
            let all = bench.flows().for_each(|flow| {
                if flow.id.key.client.port == port {
                    found = Some(flow.share);
                }
            });
            all.expect("the map can be read");
            found
        };
        assert_eq!((shares(PORT), shares(8)), (Some(WARD), Some(SHARE)));
        let own = from_service(PORT, v6, SERVICE, CLIENT, ACK, b"");
        bench.expect(Hook::Gate, "a twin", &own, REDIRECT, "suppressed_ack");
    });
}

/// A server loses its own share to b, and its ward, which it has taken over, back to c.
/// A director that does not know yet sends it segments of both: each goes on to the server
/// that has its connection. The other one's kernel would reset it.
#[test]
fn what_was_lost_to_two_goes_to_the_right_one() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        tap_handshake(bench, v6);
        bench.take_ward_over(WARD, Host::C);
        bench.connect(8, v6);
        bench.play_own(Host::B, Role::Shadow);
        bench.play_ward(WARD, Host::C, Role::Shadow);
        let lost = [(PORT, WARD, Host::C), (8, SHARE, Host::B)];
        let segment = |port| to_service(port, v6, CLIENT, SERVICE, ACK, b"");
        for (port, share, to) in lost {
            let order = (flow_id(port, v6), Order::Forget);
            let given = bench.datapath.orders.give(share, order.0, order.1);
            given.expect("it is known");
            let (verdict, frame) = goes(bench, &segment(port));
            assert_eq!(verdict, REDIRECT, "{port}");
            assert_eq!(frame[..6], to.mac(Network::Data).0, "{port}");
            // Whom it belongs to has sent it: there is no way on.
            let back = from(to, segment(port));
            let (verdict, _) = goes(bench, &back);
            assert_eq!(verdict, DROP, "{port}");
        }
    });
}

/// A question about a connection with a twin goes to the standby, with who is asked.
#[test]
fn a_question_goes_by_the_standby() {
    on_ring(|bench, v6| {
        bench.connect(PORT, v6);
        let (verdict, frame) = goes(bench, &request(v6));
        assert_eq!(verdict, REDIRECT);
        assert_eq!(frame[..6], Host::B.mac(Network::Data).0);
        let slip = &frame[request(v6).len()..];
        assert_eq!(slip[5], ASK);
        let ids = [NODES[2], NODES[0]].map(u32::to_be_bytes).concat();
        assert_eq!(slip[28..36], ids);
        // The standby lost, it goes straight to c.
        bench.lose_standby_of_ring();
        let (_, frame) = goes(bench, &request(v6));
        assert_eq!(frame[..6], Host::C.mac(Network::Data).0);
        assert_eq!(frame[request(v6).len()..][28..30], [0, 0]);
    });
}

/// The standby sends questions and answers on. One that becomes the owner in between puts
/// the same question, and says nothing itself; a refusal gives it back.
#[test]
fn a_standby_knows_of_the_question() {
    for kind in [ACCEPTED, REFUSED] {
        on_ring(|bench, v6| {
            let _server = listen(v6);
            tap_handshake(bench, v6);
            let asked = with_slip(Host::C, request(v6), BY_WAY);
            let (verdict, frame) = goes(bench, &asked);
            assert_eq!(verdict, REDIRECT);
            assert_eq!(frame[..6], Host::B.mac(Network::Data).0);
            assert_eq!(frame[12..], asked[12..], "as it is");
            bench.take_ward_over(WARD, Host::C);
            let own = from_service(PORT, v6, SERVICE, CLIENT, DATA, b"x");
            bench.expect(Hook::Gate, "own", &own, DROP, "unanswered");
            let (verdict, frame) = goes(bench, &request(v6));
            assert_eq!(verdict, REDIRECT);
            assert_eq!(frame[..6], Host::B.mac(Network::Data).0);
            assert_eq!(frame[request(v6).len()..][8..12], [0, 0, 0, 1]);
            let slip = Slip {
                kind,
                to: 0,
                from: 0,
                ..BY_WAY
            };
            let answer = with_slip(Host::B, request(v6), slip);
            let reason = if kind == ACCEPTED {
                "accepted"
            } else {
                "refused"
            };
            bench.expect(Hook::Tap, "answer", &answer, NEXT, reason);
        });
    }
}

/// The answer goes through the standby: its twin ends with it, or stays.
#[test]
fn an_answer_ends_the_twin_or_leaves_it() {
    for (kind, verdict, reason) in [(ACCEPTED, NEXT, "accepted"), (REFUSED, REDIRECT, "sent_on")] {
        on_ring(|bench, v6| {
            let _server = listen(v6);
            tap_handshake(bench, v6);
            let asked = with_slip(Host::C, request(v6), BY_WAY);
            bench.expect(Hook::Tap, "question", &asked, REDIRECT, "relayed");
            let other = Slip {
                kind,
                number: 2,
                ..BY_WAY
            };
            let other = with_slip(Host::B, request(v6), other);
            bench.expect(Hook::Tap, "another's", &other, REDIRECT, "relayed");
            let answer = with_slip(Host::B, request(v6), Slip { kind, ..BY_WAY });
            bench.expect(Hook::Tap, "answer", &answer, verdict, reason);
            let mut twins = 0;
            let all = bench.flows().for_each(|_| twins += 1);
            all.expect("the map can be read");
            assert_eq!(twins, i32::from(kind == REFUSED));
        });
    }
}

/// Who is no standby any more, and was never asked, says nothing to a question that is only
/// to go by it.
#[test]
fn a_question_by_way_of_nobody_is_dropped() {
    on_ring(|bench, v6| {
        bench.play_ward(WARD, Host::C, Role::None);
        let asked = with_slip(Host::C, request(v6), BY_WAY);
        bench.expect(Hook::Tap, "question", &asked, DROP, "stale_slip");
    });
}

/// The owner's standby makes a twin of the segment that came with a connection: once, and not
/// of anybody else's word, nor where it has promised not to.
#[test]
fn a_twin_is_made_of_the_segment_that_came() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        let stranger = with_slip(Host::B, request(v6), CAME);
        bench.expect(Hook::Tap, "b's", &stranger, DROP, "stale_slip");
        let twin = with_slip(Host::C, request(v6), CAME);
        bench.expect(Hook::Tap, "c's", &twin, DROP, MADE);
        let flow = bench.flow();
        assert_eq!((flow.share, flow.twin), (WARD, true));
        bench.expect(Hook::Tap, "again", &twin, DROP, MADE);
        // Of an earlier generation in the same place: it gives way.
        let later = with_slip(Host::C, request(v6), Slip { number: 6, ..CAME });
        bench.expect(Hook::Tap, "later", &later, NEXT, "way_cleared");
    });
}

/// A twin makes way, and its flow is not known for a moment. Another CPU has still something for the
/// twin's socket, which is gone. What the kernel says to that is a twin's word: the client must not
/// be reset, for its connection goes on.
#[test]
fn nothing_is_said_for_a_twin_that_has_made_way() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        let twin = with_slip(Host::C, request(v6), CAME);
        bench.expect(Hook::Tap, "c's", &twin, DROP, MADE);
        // Its copy makes another twin, and has not come yet.
        ip(&["link", "set", Network::Data.interface(), "down"]);
        let later = with_slip(Host::C, request(v6), Slip { number: 6, ..CAME });
        bench.expect(Hook::Tap, "later", &later, NEXT, "way_cleared");
        let mut flows = 0;
        let all = bench.flows().for_each(|_| flows += 1);
        all.expect("the map can be read");
        assert_eq!(flows, 0);
        let rst = from_service(PORT, v6, SERVICE, 0, TcpFlags::RST, b"");
        bench.expect(Hook::Gate, "RST", &rst, DROP, "suppressed_no_flow");
        // Of a connection that nobody knows the client is told.
        let rst = from_service(8, v6, SERVICE, 0, TcpFlags::RST, b"");
        let reason = "unprotected_at_takeover";
        bench.expect(Hook::Gate, "another's RST", &rst, NEXT, reason);
    });
}

/// This server's connection is c's now, and its own standby is lost.
fn give_to_c(bench: &Bench, v6: bool) {
    bench.connect(PORT, v6);
    bench.lose_standby_of_ring();
    bench.expect(Hook::Tap, "request", &request(v6), REDIRECT, "asked");
    let slip = Slip {
        kind: ACCEPTED,
        to: 0,
        from: 0,
        ..BY_WAY
    };
    let answer = with_slip(Host::C, request(v6), slip);
    bench.expect(Hook::Tap, "answer", &answer, NEXT, "accepted");
}

pub(crate) fn ack(v6: bool) -> Vec<u8> {
    to_service(PORT, v6, CLIENT + 30, SERVICE + 9, ACK, b"")
}

/// What a director is told next: something once a millisecond.
fn told(bench: &Bench, v6: bool) -> Vec<u8> {
    let end = Instant::now() + DEADLINE;
    loop {
        let (_, frame) = goes(bench, &ack(v6));
        if frame[12..14] == [0x88, 0xb5] {
            return frame;
        }
        assert!(Instant::now() < end, "it is told nothing");
    }
}

/// c has it, and b has what c had: b has connections of its own, too, so a director is to
/// know whose this one is.
#[test]
fn a_director_is_told_whose_it_is_and_not_who_has_it() {
    on_ring(|bench, v6| {
        give_to_c(bench, v6);
        let [b, c] = [Host::B, Host::C].map(|host| host.mac(Network::Data));
        let taken_over = Mate::TakenOver { own: c, by: b };
        let its_own = Mate::Open(c);
        for mate in [taken_over, its_own] {
            let set = bench
                .datapath
                .requests
                .placing
                .set_mate(SHARE, NODES[2], mate);
            set.expect("room");
            let at = if mate == its_own { c } else { b };
            let (mut told, mut sent) = (0, 0);
            let end = Instant::now() + DEADLINE;
            // It is told once a millisecond.
            while told == 0 || sent == 0 {
                assert!(Instant::now() < end, "{told} told, {sent} sent");
                let (verdict, frame) = goes(bench, &ack(v6));
                assert_eq!(verdict, REDIRECT);
                if frame[12..14] == [0x88, 0xb5] {
                    assert_eq!(frame[12..], note(PORT, v6, c)[12..], "{mate:?}");
                    told += 1;
                } else {
                    assert_eq!(frame[..6], at.0, "{mate:?}");
                    sent += 1;
                }
            }
        }
    });
}

/// It has come round to the owner of the ward, and nothing is made of that here: what the
/// owner sends of it is for a twin, and not for where it was.
#[test]
fn what_came_round_to_its_owner_is_not_sent_on() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        twin_goes_to_b(bench, v6);
        let tapped = few_hops(from(Host::C, ack(v6)), v6);
        bench.expect(Hook::Tap, "on its way", &tapped, REDIRECT, "sent_on");
        bench.play_ward(WARD, Host::C, Role::None);
        let later = Slip { number: 2, ..CAME };
        let twin = with_slip(Host::C, request(v6), later);
        bench.expect(Hook::Tap, "a twin", &twin, DROP, "stale_slip");
        bench.expect(Hook::Tap, "tapped", &tapped, DROP, "sent_back");
    });
}

/// A connection has gone to b, and its client connects again from the same port, to c. c mirrors
/// that: it was once sent to b, whose kernel reset the client.
#[test]
fn what_is_mirrored_is_not_sent_on_for_an_earlier_connection() {
    const LATER: u32 = IRS.wrapping_add(1 << 28);
    let copy = |v6, seq: u32| from(Host::C, to_service(PORT, v6, seq, SERVICE, ACK, &[]));
    let director = |v6| to_service(PORT, v6, LATER.wrapping_add(1), SERVICE, ACK, &[]);
    let b = Host::B.mac(Network::Data).0;
    for has_hops in [true, false] {
        on_ring(|bench, v6| {
            let _server = listen(v6);
            twin_goes_to_b(bench, v6);
            let third = copy(v6, LATER.wrapping_add(1));
            // The copy of its SYN was lost.
            bench.expect(Hook::Tap, "alone", &third, DROP, "no_handshake");
            let third = if has_hops { third } else { few_hops(third, v6) };
            tap_syn(bench, v6, LATER);
            // Whoever can send SYNs ends nothing: the earlier one is where it is.
            assert_eq!(goes_on_to(bench, &director(v6)), b);
            bench.expect(Hook::Tap, "no SYN-ACK", &third, DROP, "not_exact");
            tap_syn_ack(bench, v6, LATER);
            // Nor does its owner's answer.
            assert_eq!(goes_on_to(bench, &ack(v6)), b);
            // Its client has heard that, so the earlier one is over.
            assert_eq!(
                goes_on_to(bench, &director(v6)),
                Host::C.mac(Network::Data).0
            );
            bench.expect(Hook::Tap, "third", &third, DROP, MADE);
            assert_eq!(bench.flow().id.irs.0, LATER);
        });
    }
}

/// Its own connection has gone to c and its twin is here, when another server becomes its ward:
/// what a director still sends here goes on to c.
#[test]
fn who_has_had_a_twin_sends_on_to_its_owner() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        bench.connect(PORT, v6);
        bench.expect(Hook::Tap, "request", &request(v6), REDIRECT, "asked");
        let slip = Slip {
            kind: TWIN,
            to: 3,
            from: 1,
            number: 1,
        };
        let twin = with_slip(Host::C, request(v6), slip);
        bench.expect(Hook::Tap, "a twin", &twin, DROP, MADE);
        let flow = bench.flow();
        assert_eq!((flow.share, flow.twin), (WARD, true));
        bench.play_ward(WARD, Host::C, Role::None);
        let orders = &bench.datapath.orders;
        orders
            .give(WARD, flow.id, Order::Forget)
            .expect("it is known");
        // Nobody is the ward any more.
        bench.play_ward(WARD, Host::B, Role::None);
        assert_eq!(goes_on_to(bench, &ack(v6)), Host::C.mac(Network::Data).0);
    });
}

/// What a director or client has sent has few hops left where it is sent on for its connection,
/// and one less at each server that sends it on again.
#[test]
fn a_frame_goes_round_no_longer_than_it_lives() {
    on_ring(|bench, v6| {
        give_to_c(bench, v6);
        let at = if v6 { 14 + 7 } else { 14 + 8 };
        let first = ack(v6);
        let first = sent_again(bench, &first);
        assert_eq!(first[12..], sent_on(&ack(v6), v6, 1), "a director's");
        let mut frame = from(Host::B, first);
        frame[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
        while frame[at] > 1 {
            let left = sent_again(bench, &frame);
            assert_eq!(left[at], frame[at] - 1);
            if !v6 {
                let words = left[14..34].chunks(2);
                let sum: u32 = words
                    .map(|it| u32::from(it[0]) * 256 + u32::from(it[1]))
                    .sum();
                assert_eq!(sum % 0xffff, 0, "the header's checksum");
            }
            frame = from(Host::B, left);
            frame[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
        }
        bench.expect(Hook::Tap, "the last", &frame, DROP, "sent_round");
    });
}

/// Its own share is another one's, and its ward its own: there it begins, and the director
/// hears of it.
#[test]
fn who_has_lost_its_own_share_begins_in_its_ward() {
    on_ring(|bench, v6| {
        let syn = to_service(PORT, v6, IRS, 0, TcpFlags::SYN, &[]);
        bench.play_own(Host::B, Role::Shadow);
        bench.take_ward_over(WARD, Host::C);
        let tapped = from(Host::B, syn.clone());
        bench.expect(Hook::Tap, "b's", &tapped, DROP, "tapped_syn");
        // What b passes on is for who has c's connections by now, and no twin of b's.
        let again = to_service(9, v6, IRS, 0, TcpFlags::SYN, &[]);
        let passed = Slip {
            kind: BEGIN,
            ..BY_WAY
        };
        let passed = with_slip(Host::B, again, passed);
        bench.expect(Hook::Tap, "passed on by b", &passed, NEXT, "syn");
        let (verdict, frame) = goes(bench, &syn);
        assert_eq!(verdict, REDIRECT);
        let c = Host::C.mac(Network::Data);
        assert_eq!(frame[12..], note(PORT, v6, c)[12..]);
        bench.play_own(Host::B, Role::Owner);
        bench.expect(Hook::Tap, "SYN", &syn, NEXT, "syn");
        // What was meant for c is c's: that is where the director looks for it.
        let passed = from(Host::C, to_service(8, v6, IRS, 0, TcpFlags::SYN, &[]));
        bench.expect(Hook::Tap, "SYN by way of c", &passed, NEXT, "syn");
        let both = TcpFlags::SYN.with(ACK);
        bench.expect(
            Hook::Gate,
            "SYN-ACK",
            &from_service(8, v6, ISS, CLIENT, both, &[]),
            NEXT,
            "syn_ack",
        );
        let third = to_service(8, v6, CLIENT, SERVICE, ACK, &[]);
        bench.expect(Hook::Tap, "third", &third, NEXT, "handshake_done");
        assert_eq!(bench.flow().share, WARD);
    });
}

/// The next agent begins with what is known of servers: it forgets those that are none any
/// more, and not where those that there are have their own place.
#[test]
fn whose_it_is_outlives_an_agent() {
    on_ring(|bench, v6| {
        give_to_c(bench, v6);
        let [b, c] = [Host::B, Host::C].map(|host| host.mac(Network::Data));
        let table = &bench.datapath.requests.placing;
        let taken_over = Mate::TakenOver { own: c, by: b };
        table.set_mate(SHARE, NODES[2], taken_over).expect("room");
        table
            .forget_mates(SHARE, &NODES[1..])
            .expect("it can be read");
        bench.expect(Hook::Tap, "it goes on", &ack(v6), REDIRECT, "told");
        assert_eq!(told(bench, v6)[12..], note(PORT, v6, c)[12..]);
        table.forget_mates(SHARE, &[1]).expect("it can be read");
        table
            .set_mate(SHARE, NODES[2], Mate::Open(b))
            .expect("room");
        assert_eq!(told(bench, v6)[12..], note(PORT, v6, b)[12..]);
    });
}

/// Of two servers each is the other's standby, and its copies can't be told from what it
/// sends on: a SYN is a copy as long as there is nothing of one's own ward here.
#[test]
fn of_two_servers_a_syn_is_a_copy_or_sent_on() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        let peer = Host::B;
        let syn = |port| from(peer, to_service(port, v6, IRS, 0, TcpFlags::SYN, &[]));
        bench.play_own(peer, Role::Owner);
        bench.play_ward(WARD, peer, Role::Shadow);
        bench.expect(Hook::Tap, "a copy", &syn(7), DROP, "tapped_syn");
        // It has come back, and stands by for both: it begins in the other one's own.
        bench.play_own(peer, Role::Shadow);
        bench.expect(Hook::Tap, "a copy", &syn(8), DROP, "tapped_syn");
        let mut frame = to_service(9, v6, IRS, 0, TcpFlags::SYN, &[]);
        let (verdict, sent) = goes(bench, &frame);
        assert_eq!(verdict, REDIRECT);
        let at = peer.mac(Network::Data);
        assert_eq!(sent[12..], note(9, v6, at)[12..], "the director is told");
        frame[6..12].copy_from_slice(&at.0);
        // Both are here: what the other one sends on begins in our own.
        bench.play_own(peer, Role::Owner);
        bench.take_ward_over(WARD, peer);
        bench.expect(Hook::Tap, "sent on", &frame, NEXT, "syn");
        let both = TcpFlags::SYN.with(ACK);
        let answer = from_service(9, v6, ISS, CLIENT, both, &[]);
        bench.expect(Hook::Gate, "SYN-ACK", &answer, NEXT, "syn_ack");
        let third = to_service(9, v6, CLIENT, SERVICE, ACK, &[]);
        bench.expect(Hook::Tap, "third", &third, NEXT, "handshake_done");
        let mut shares = Vec::new();
        let all = bench.flows().for_each(|flow| {
            shares.push((flow.id.key.client.port, flow.share));
        });
        all.expect("the map can be read");
        assert!(shares.contains(&(9, SHARE)), "{shares:?}");
    });
}

pub(crate) fn listen(v6: bool) -> TcpListener {
    let any = if v6 { "[::]:80" } else { "0.0.0.0:80" };
    TcpListener::bind(any).expect("the port is free")
}
