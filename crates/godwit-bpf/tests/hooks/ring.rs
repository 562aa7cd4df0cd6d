//! Servers that stand by for each other: to which share a segment belongs, and connections
//! with twins that go with a request (`gw_ward.h`, `gw_ring.h`). This machine is a, number 0;
//! b, number 1, is its standby, and c, number 2, is the owner of its ward.

use std::net::TcpListener;

use godwit_bpf::{Hook, Mate, PlacingRule, RulePath};
use godwit_lab::host::{Host, Network};
use godwit_wire::{Role, ShareId, TcpFlags};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, REDIRECT, SHARE, from_service, on_bench, to_service,
};

const WARD: ShareId = ShareId(SHARE.0 + 1);
const ACK: TcpFlags = TcpFlags::ACK;
const DATA: TcpFlags = TcpFlags(TcpFlags::ACK.0 | TcpFlags::PSH.0);
const PORT: u16 = 7;

/// First bytes of the client and of the service.
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

const GET: &[u8] = b"GET /c/x HTTP/1.1\r\nHost: s\r\n\r\n";

/// What a slip says.
#[derive(Clone, Copy)]
struct Slip {
    kind: u8,
    number: u8,
    /// Who is asked and who asks, by their numbers + 1.
    to: u8,
    from: u8,
}

const ASK: u8 = 1;
const ACCEPTED: u8 = 2;
const REFUSED: u8 = 3;
const BEGIN: u8 = 4;
const TWIN: u8 = 5;

/// By way of a from c to b.
const BY_WAY: Slip = Slip {
    kind: ASK,
    number: 1,
    to: 2,
    from: 3,
};

/// A frame from another server, with a slip of this connection.
fn with_slip(from: Host, mut frame: Vec<u8>, slip: Slip) -> Vec<u8> {
    frame[6..12].copy_from_slice(&from.mac(Network::Data).0);
    frame.extend(b"gwsp");
    frame.extend([1, slip.kind, 0, 0, 0, 0, 0, slip.number]);
    frame.extend(IRS.to_be_bytes());
    frame.extend(ISS.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(CLIENT.wrapping_add(65535).to_be_bytes());
    frame.extend([slip.to, slip.from, 0, 0]);
    frame.extend([5, 180, 5, 180, 7, 7, 0, 10, 0, 0, 0, 100]);
    frame
}

fn from(host: Host, mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&host.mac(Network::Data).0);
    frame
}

fn request(v6: bool) -> Vec<u8> {
    to_service(PORT, v6, CLIENT, SERVICE, DATA, GET)
}

/// What of a frame is for whom, and what it was counted as.
fn goes(bench: &Bench, frame: &[u8]) -> (i32, Vec<u8>) {
    let trial = bench
        .datapath
        .try_frame(Hook::Tap, bench.ifindex, frame)
        .expect("the kernel runs it");
    (trial.verdict, trial.frame)
}

fn on_ring(work: impl Fn(&Bench, bool) + Send + Sync) {
    for v6 in [false, true] {
        on_bench(|bench| {
            bench.make_ring(WARD, Host::C);
            let table = &bench.datapath.placing;
            let rule = |name: &str, node| PlacingRule {
                host: None,
                path: RulePath::Prefix(format!("/{name}/")),
                nodes: vec![node],
            };
            let rules = [rule("b", 1), rule("c", 2)];
            for share in [SHARE, WARD] {
                table.set(share, Some(0), 3, &rules).expect("room");
                for (node, host) in [(1, Host::B), (2, Host::C)] {
                    let mate = Mate::Open(host.mac(Network::Data));
                    table.set_mate(share, node, mate).expect("room");
                }
            }
            work(bench, v6);
        });
    }
}

/// What becomes of the segment of which a twin is made: a trial has no socket for it.
const MADE: &str = "materialise_refused";

/// Takes part in a handshake of the ward's, as its standby; there is a server.
fn tap_handshake(bench: &Bench, v6: bool) {
    let syn = to_service(PORT, v6, IRS, 0, TcpFlags::SYN, &[]);
    bench.expect(Hook::Tap, "SYN", &from(Host::C, syn), DROP, "tapped_syn");
    let both = TcpFlags::SYN.with(ACK);
    let mut syn_ack = from_service(PORT, v6, ISS, CLIENT, both, &[]);
    syn_ack[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
    let syn_ack = from(Host::C, syn_ack);
    bench.expect(Hook::Tap, "SYN-ACK", &syn_ack, DROP, "tapped_syn_ack");
    let third = from(Host::C, to_service(PORT, v6, CLIENT, SERVICE, ACK, &[]));
    bench.expect(Hook::Tap, "third", &third, DROP, MADE);
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

/// A question about a connection with a twin goes to the standby, with who is asked.
#[test]
fn a_question_goes_by_the_standby() {
    on_ring(|bench, v6| {
        bench.connect(PORT, v6);
        let (verdict, frame) = goes(bench, &request(v6));
        assert_eq!(verdict, REDIRECT);
        assert_eq!(frame[..6], Host::B.mac(Network::Data).0);
        let slip = &frame[request(v6).len()..];
        assert_eq!((slip[5], slip[28], slip[29]), (ASK, 3, 1));
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
        let slip = Slip {
            kind: TWIN,
            number: 3,
            to: 3,
            from: 2,
        };
        let stranger = with_slip(Host::B, request(v6), slip);
        bench.expect(Hook::Tap, "b's", &stranger, DROP, "stale_slip");
        let twin = with_slip(Host::C, request(v6), slip);
        bench.expect(Hook::Tap, "c's", &twin, DROP, MADE);
        let flow = bench.flow();
        assert_eq!((flow.share, flow.twin), (WARD, true));
        bench.expect(Hook::Tap, "again", &twin, DROP, MADE);
        // Of an earlier stay in the same place: it gives way.
        let later = with_slip(Host::C, request(v6), Slip { number: 6, ..slip });
        bench.expect(Hook::Tap, "later", &later, NEXT, "way_cleared");
    });
}

fn listen(v6: bool) -> TcpListener {
    let any = if v6 { "[::]:80" } else { "0.0.0.0:80" };
    TcpListener::bind(any).expect("the port is free")
}
