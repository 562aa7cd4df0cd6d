//! A connection goes to another server with its next request: what becomes of segments,
//! questions and answers on either side (`gw_transfer.h`).

use std::net::TcpListener;
use std::time::{Duration, Instant};

use godwit_bpf::{Hook, Mate, Moves, PlacingRule, RulePath};
use godwit_lab::host::{Host, Network};
use godwit_wire::{MacAddr, Role, Segment, TcpFlags};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, NODES, REDIRECT, SHARE, SLIP_TYPE, from_service, on_bench, tapped,
    to_service,
};
use crate::ring::{ASK, Slip, with_slip};

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: TcpFlags = TcpFlags(TcpFlags::ACK.0 | TcpFlags::PSH.0);
pub(crate) const PORT: u16 = 7;

const DEADLINE: Duration = Duration::from_secs(5);

/// First bytes of the client and of the service.
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

const GET: &[u8] = b"GET /b/x HTTP/1.1\r\nHost: s\r\n\r\n";

/// Bytes of a slip, and what it may be.
const SLIP: usize = 52;
pub(crate) const ACCEPTED: u8 = 2;
pub(crate) const REFUSED: u8 = 3;

pub(crate) fn mac(host: Host) -> MacAddr {
    host.mac(Network::Data)
}

/// This node is number 0, and b, number 1, has what begins with its name.
pub(crate) fn place(bench: &Bench, mate: Mate) {
    let table = &bench.datapath.requests.placing;
    let rule = PlacingRule {
        host: None,
        path: RulePath::Prefix("/b/".into()),
        nodes: vec![NODES[1]],
    };
    table
        .set(SHARE, Some(NODES[0]), &NODES[..2], &[rule])
        .expect("there is room");
    table
        .set_mate(SHARE, NODES[1], mate)
        .expect("there is room");
    bench.own(Moves::Home);
}

pub(crate) fn request(v6: bool) -> Vec<u8> {
    to_service(PORT, v6, CLIENT, SERVICE, DATA, GET)
}

/// Puts the request, and gives what goes to b.
pub(crate) fn ask(bench: &Bench, v6: bool) -> Vec<u8> {
    let trial = bench.put(Hook::Tap, 0, &request(v6));
    assert_eq!(trial.verdict, REDIRECT);
    trial.frame
}

/// A connection of this server's is asked about, and b dies.
pub(crate) fn ask_and_die(bench: &Bench, v6: bool) {
    place(bench, Mate::Open(mac(Host::B)));
    bench.connect(PORT, v6);
    ask(bench, v6);
    place(bench, Mate::Dead(mac(Host::B)));
}

/// b's answer to a question, or b's own question, which names nobody.
pub(crate) fn answer(question: &[u8], kind: u8) -> Vec<u8> {
    let mut frame = question.to_vec();
    frame[..6].copy_from_slice(&mac(Host::A).0);
    frame[6..12].copy_from_slice(&mac(Host::B).0);
    let slip = frame.len() - SLIP;
    frame[slip + 5] = kind;
    if kind == 1 {
        frame[slip + 28..slip + 32].fill(0);
    }
    frame
}

/// The same question, put to us by b under a number.
pub(crate) fn put_by_b(question: &[u8], number: u8) -> Vec<u8> {
    let mut frame = answer(question, 1);
    let slip = frame.len() - SLIP;
    frame[slip + 8..slip + 12].copy_from_slice(&[0, 0, 0, number]);
    frame
}

/// The request is not changed by a byte, and what is put to b is put again if the client
/// says it again. Our server is not heard meanwhile.
#[test]
fn a_request_goes_with_a_question() {
    on_bench(|bench| {
        place(bench, Mate::Open(mac(Host::B)));
        for v6 in [false, true] {
            bench.connect(PORT, v6);
            bench.expect(Hook::Tap, "request", &request(v6), REDIRECT, "asked");
            let question = ask(bench, v6);
            assert_eq!(question[..6], mac(Host::B).0);
            assert_eq!(question[6..12], mac(Host::A).0);
            let plain = request(v6);
            assert_eq!(question[12..14], SLIP_TYPE);
            assert_eq!(question[14..plain.len()], plain[14..]);
            let slip = &question[plain.len()..];
            assert_eq!((slip.len(), &slip[..4]), (SLIP, &b"gwsp"[..]));
            assert_eq!(slip[8..12], [0, 0, 0, 1], "the first number, again");
            assert_eq!(slip[12..16], IRS.to_be_bytes());
            assert_eq!(slip[16..20], ISS.to_be_bytes());
            let fin = from_service(PORT, v6, SERVICE, CLIENT, ACK.with(TcpFlags::FIN), b"");
            for hook in [Hook::Gate, Hook::Guard] {
                bench.expect(hook, "FIN", &fin, DROP, "unanswered");
            }
            let more = to_service(PORT, v6, CLIENT, SERVICE, ACK, b"");
            bench.expect(Hook::Tap, "more", &more, REDIRECT, "sent_on");
        }
    });
}

/// Who is in another server's place takes nothing new for it.
#[test]
fn what_another_server_is_asked_for_does_not_come_here() {
    on_bench(|bench| {
        place(bench, Mate::Open(mac(Host::B)));
        for v6 in [false, true] {
            bench.connect(PORT, v6);
            let question = ask(bench, v6);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            let mut of_b = put_by_b(&question, 5);
            let to = of_b.len() - SLIP + 28;
            of_b[to..to + 4].copy_from_slice(&question[to..to + 4]);
            bench.expect(Hook::Tap, "of b", &of_b, REDIRECT, "not_owner");
        }
    });
}

/// Its own socket is reset in the client's name, and from then on it only forwards.
#[test]
fn who_is_answered_yes_resets_its_own_and_forwards() {
    on_bench(|bench| {
        place(bench, Mate::Open(mac(Host::B)));
        for v6 in [false, true] {
            bench.connect(PORT, v6);
            let yes = answer(&ask(bench, v6), ACCEPTED);
            let trial = bench.put(Hook::Tap, 0, &yes);
            assert_eq!(trial.verdict, NEXT);
            let end = trial.frame.len() - SLIP;
            let reset = Segment::parse(&trial.frame[14..end]).expect("a segment");
            assert_eq!(
                (reset.seq.0, reset.flags),
                (CLIENT, TcpFlags::RST.with(ACK))
            );
            bench.expect(Hook::Tap, "twice", &yes, DROP, "stale_slip");
            let next = to_service(PORT, v6, CLIENT + 30, SERVICE + 9, ACK, b"");
            bench.expect(Hook::Tap, "ACK", &next, REDIRECT, "sent_on");
            bench.expect(Hook::Tap, "a circle", &tapped(next), DROP, "sent_back");
            let own = from_service(PORT, v6, SERVICE, CLIENT, TcpFlags::RST, b"");
            for hook in [Hook::Gate, Hook::Guard] {
                bench.expect(hook, "our kernel", &own, DROP, "away");
            }
            assert!(
                bench
                    .datapath
                    .flows
                    .get(crate::bench::flow_id(PORT, v6).key)
                    .is_ok_and(|it| it.is_none())
            );
        }
    });
}

/// Anybody can send a SYN with the addresses and ports of a connection: what has gone stays
/// gone, what is here stays here, and nobody answers while a question is open.
#[test]
fn a_syn_ends_nothing() {
    on_bench(|bench| {
        for v6 in [false, true] {
            place(bench, Mate::Open(mac(Host::B)));
            let syn = to_service(PORT, v6, IRS.wrapping_add(99), 0, TcpFlags::SYN, b"");
            bench.connect(PORT, v6);
            let question = ask(bench, v6);
            bench.expect(Hook::Tap, "asked", &syn, DROP, "syn_too_early");
            bench.put(Hook::Tap, 0, &answer(&question, ACCEPTED));
            bench.expect(Hook::Tap, "gone", &syn, REDIRECT, "sent_on");
            let next = to_service(PORT, v6, CLIENT + 30, SERVICE + 9, ACK, b"");
            bench.expect(Hook::Tap, "still gone", &next, REDIRECT, "sent_on");
            // Who has it no more sends it back, and who can't be asked has nothing to say: our
            // kernel answers. That ends nothing either.
            bench.expect(Hook::Tap, "back", &tapped(syn.clone()), NEXT, "syn");
            bench.expect(Hook::Tap, "still gone", &next, REDIRECT, "sent_on");
            place(bench, Mate::Closed(mac(Host::B)));
            bench.expect(Hook::Tap, "b is not there", &syn, NEXT, "syn");
            bench.expect(Hook::Tap, "still gone", &next, REDIRECT, "sent_on");
            let both = TcpFlags::SYN.with(ACK);
            let begun = IRS.wrapping_add(100);
            let syn_ack = from_service(PORT, v6, ISS, begun, both, b"");
            bench.expect(Hook::Gate, "SYN-ACK", &syn_ack, NEXT, "syn_ack");
            bench.expect(Hook::Tap, "still gone", &next, REDIRECT, "sent_on");
            let guessed = to_service(PORT, v6, begun, SERVICE + 1, ACK, b"");
            bench.expect(Hook::Tap, "guessed", &guessed, REDIRECT, "sent_on");
            // Who completes the handshake has heard the answer.
            let third = to_service(PORT, v6, begun, SERVICE, ACK, b"");
            bench.expect(Hook::Tap, "third", &third, NEXT, "handshake_done");
            assert_eq!(bench.flow().id.irs.0, IRS.wrapping_add(99));
            bench.expect(Hook::Tap, "it is here", &third, NEXT, "client_segment");
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
        }
    });
}

/// What was refused stays refused: the same question may come once more.
#[test]
fn a_syn_forgets_no_refusal() {
    on_bench(|bench| {
        for v6 in [false, true] {
            place(bench, Mate::Open(mac(Host::B)));
            let slip = Slip {
                kind: ASK,
                number: 5,
                to: 0,
                from: 0,
            };
            let question = with_slip(Host::B, request(v6), slip);
            let no = "no_listener";
            bench.expect(Hook::Tap, "question", &question, REDIRECT, no);
            let listener = TcpListener::bind(if v6 { "[::]:80" } else { "0.0.0.0:80" });
            let _listener = listener.expect("the port is free");
            let syn = to_service(PORT, v6, IRS.wrapping_add(99), 0, TcpFlags::SYN, b"");
            bench.expect(Hook::Tap, "SYN", &syn, NEXT, "syn");
            bench.expect(Hook::Tap, "again", &question, REDIRECT, no);
        }
    });
}

/// A question whose connection has no socket here any more goes on without one: it does not
/// keep the four-tuple for as long as whom it was put to lives.
#[test]
fn a_question_of_nothing_is_none() {
    on_bench(|bench| {
        for v6 in [false, true] {
            place(bench, Mate::Open(mac(Host::B)));
            bench.connect(PORT, v6);
            ask(bench, v6);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            let syn = to_service(PORT, v6, IRS.wrapping_add(99), 0, TcpFlags::SYN, b"");
            let end = Instant::now() + DEADLINE;
            while bench.pass(Hook::Tap, &syn).1 == ["syn_too_early"] {
                assert!(Instant::now() < end, "it is dropped for ever");
            }
            bench.expect(Hook::Tap, "to b", &syn, REDIRECT, "sent_on");
        }
    });
}

/// The number of the last handoff outlives such a SYN where the connection is, too.
#[test]
fn a_syn_leaves_what_is_here_its_number() {
    on_bench(|bench| {
        place(bench, Mate::Open(mac(Host::B)));
        for v6 in [false, true] {
            bench.connect(PORT, v6);
            let question = ask(bench, v6);
            bench.put(Hook::Tap, 0, &answer(&question, REFUSED));
            let syn = to_service(PORT, v6, IRS.wrapping_add(99), 0, TcpFlags::SYN, b"");
            bench.expect(Hook::Tap, "SYN", &syn, NEXT, "syn");
            let late = put_by_b(&question, 7);
            bench.expect(Hook::Tap, "put to us", &late, NEXT, "came_before");
        }
    });
}

/// A slip counts in a frame of its own EtherType only, and from servers only. One of the
/// version before is refused as it came.
#[test]
fn a_slip_comes_under_its_own_ether_type() {
    on_bench(|bench| {
        place(bench, Mate::Open(mac(Host::B)));
        for v6 in [false, true] {
            bench.connect(PORT, v6);
            let question = put_by_b(&ask(bench, v6), 5);
            let ip_type = request(v6)[12..14].to_vec();
            let mut forged = question.clone();
            forged[6..12].copy_from_slice(&mac(Host::Client).0);
            bench.expect(Hook::Tap, "the client", &forged, DROP, "slip_refused");
            let mut no_packet = question.clone();
            no_packet[14] = 0;
            bench.expect(Hook::Tap, "no packet", &no_packet, DROP, "slip_refused");
            bench.expect(Hook::Tap, "b", &question, REDIRECT, "slip_heard");
            let mut trailing = question.clone();
            trailing[12..14].copy_from_slice(&ip_type);
            let (verdict, reasons) = bench.pass(Hook::Tap, &trailing);
            assert!(
                !reasons.iter().any(|it| it == "slip_heard"),
                "{verdict} {reasons:?}"
            );
            let slip = trailing.len() - SLIP;
            trailing[slip + 4] = 1;
            let refused = bench.put(Hook::Tap, 0, &trailing);
            assert_eq!(refused.verdict, REDIRECT);
            assert_eq!(refused.frame[12..14], ip_type, "as it came");
            assert_eq!(refused.frame[slip + 5], REFUSED);
        }
    });
}

/// It has the request as if it had never asked, and does not ask twice for it.
#[test]
fn who_is_refused_serves_itself() {
    on_bench(|bench| {
        place(bench, Mate::Open(mac(Host::B)));
        for v6 in [false, true] {
            bench.connect(PORT, v6);
            let question = ask(bench, v6);
            let no = answer(&question, REFUSED);
            let (verdict, reasons) = bench.pass(Hook::Tap, &no);
            assert_eq!(verdict, NEXT, "{reasons:?}");
            for reason in ["refused", "client_segment"] {
                assert!(reasons.iter().any(|it| it == reason), "{reasons:?}");
            }
            bench.expect(Hook::Tap, "again", &request(v6), NEXT, "client_segment");
            bench.expect(
                Hook::Tap,
                "late",
                &answer(&question, ACCEPTED),
                DROP,
                "stale_slip",
            );
            let own = from_service(PORT, v6, SERVICE, CLIENT + 30, ACK, b"");
            bench.expect(Hook::Gate, "our kernel", &own, NEXT, "spoken");
            // It is here, whoever is mistaken: a refusal would give it two servers.
            let late = put_by_b(&question, 7);
            bench.expect(Hook::Tap, "put to us", &late, NEXT, "came_before");
        }
    });
}

/// An answer is b's or none: the client's word does not count, nor one about another request.
#[test]
fn nobody_else_answers() {
    on_bench(|bench| {
        place(bench, Mate::Open(mac(Host::B)));
        bench.connect(PORT, false);
        let mut forged = answer(&ask(bench, false), ACCEPTED);
        forged[6..12].copy_from_slice(&mac(Host::Client).0);
        bench.expect(Hook::Tap, "the client", &forged, DROP, "slip_refused");
        bench
            .datapath
            .requests
            .placing
            .set_mate(SHARE, NODES[2], Mate::Open(mac(Host::C)))
            .expect("there is room");
        forged[6..12].copy_from_slice(&mac(Host::C).0);
        bench.expect(Hook::Tap, "c", &forged, DROP, "stale_slip");
        let mut other = answer(&ask(bench, false), ACCEPTED);
        let number = other.len() - SLIP + 11;
        other[number] = 9;
        bench.expect(Hook::Tap, "another number", &other, DROP, "stale_slip");
    });
}

/// Whoever is asked and can't refuses for good: the question is never answered otherwise.
#[test]
fn a_refusal_is_for_good() {
    on_bench(|bench| {
        place(bench, Mate::Open(mac(Host::B)));
        for v6 in [false, true] {
            bench.connect(PORT, v6);
            let question = put_by_b(&ask(bench, v6), 5);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            bench.expect(
                Hook::Tap,
                "nobody listens",
                &question,
                REDIRECT,
                "no_listener",
            );
            let listener = TcpListener::bind(if v6 { "[::]:80" } else { "0.0.0.0:80" });
            let _listener = listener.expect("the port is free");
            bench.expect(Hook::Tap, "again", &question, REDIRECT, "no_listener");
            let old = put_by_b(&question, 4);
            bench.expect(Hook::Tap, "an older one", &old, DROP, "stale_slip");
            let sent = bench.put(Hook::Tap, 0, &question).frame;
            assert_eq!(sent[12..14], SLIP_TYPE, "as it came");
            assert_eq!(sent[..6], mac(Host::B).0);
            assert_eq!(sent[sent.len() - SLIP + 5], REFUSED);
            // The kernel makes no socket of a frame that is only tried on a hook.
            let next = put_by_b(&question, 6);
            let reason = "materialise_refused";
            bench.expect(Hook::Tap, "another question", &next, REDIRECT, reason);
        }
    });
}

/// Reasons for which nobody is taken, whatever is asked.
#[test]
fn who_may_not_takes_nobody() {
    on_bench(|bench| {
        place(bench, Mate::Open(mac(Host::B)));
        bench.connect(PORT, false);
        let question = put_by_b(&ask(bench, false), 5);
        bench.order(godwit_bpf::Order::Forget).expect("it is there");
        let mut other = question.clone();
        let slip = other.len() - SLIP;
        other[slip + 4] = 9;
        bench.expect(Hook::Tap, "version", &other, REDIRECT, "other_slip");
        place(bench, Mate::Open(mac(Host::B)));
        bench.play(Role::None);
        bench.expect(
            Hook::Tap,
            "no owner",
            &put_by_b(&question, 6),
            REDIRECT,
            "not_owner",
        );
        bench.own(Moves::Home);
        // Of that one a question is open.
        let plain = tapped(to_service(8, false, CLIENT, SERVICE, DATA, GET));
        bench.expect(Hook::Tap, "no slip", &plain, DROP, "no_slip");
    });
}

/// The connection goes on here, unless its client has heard what we have not said.
#[test]
fn who_is_dead_gives_back_what_it_was_asked_for() {
    on_bench(|bench| {
        for v6 in [false, true] {
            ask_and_die(bench, v6);
            let (verdict, reasons) = bench.pass(Hook::Tap, &request(v6));
            assert_eq!(verdict, NEXT);
            for reason in ["reclaimed", "client_segment"] {
                assert!(reasons.iter().any(|it| it == reason), "{reasons:?}");
            }
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            ask_and_die(bench, v6);
            let heard = to_service(PORT, v6, CLIENT + 30, SERVICE + 5, ACK, b"");
            // Without ACK that number says nothing.
            let bare = to_service(PORT, v6, IRS, SERVICE + 5, TcpFlags::SYN, b"");
            bench.expect(Hook::Tap, "its SYN", &bare, NEXT, "reclaimed");
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            ask_and_die(bench, v6);
            for _ in 0..2 {
                bench.expect(Hook::Tap, "heard it", &heard, NEXT, "mate_gone");
            }
        }
    });
}
