//! Questions that get no answer, and what agents settle about them (`gw_settle.h`).

use std::net::TcpListener;
use std::time::{Duration, Instant};

use godwit_bpf::{Hook, MARK_SETTLED, Mate, Record, Said, Settlement, TransferEntry, Unanswered};
use godwit_lab::host::Host;
use godwit_wire::{FlowId, TcpFlags};

use crate::bench::{Bench, DROP, NEXT, NODES, REDIRECT, SHARE, flow_id, on_bench, to_service};
use crate::ring::{
    self, BY_WAY, CLIENT, SERVICE, Slip, WARD, ack, from, listen, on_ring, tap_handshake, with_slip,
};
use crate::transfer::{ACCEPTED, PORT, REFUSED, answer, ask, mac, place, put_by_b, request};

const DEADLINE: Duration = Duration::from_secs(5);

/// What the data path reports of the open question.
fn unanswered(bench: &Bench) -> Unanswered {
    let until = Instant::now() + DEADLINE;
    while Instant::now() < until {
        for record in bench.events.wait(Duration::from_millis(10)) {
            if let Record::Unanswered(question) = record {
                return question;
            }
        }
    }
    panic!("no question was reported");
}

fn open(bench: &Bench, v6: bool) -> Vec<u8> {
    place(bench, Mate::Open(mac(Host::B)));
    bench.connect(PORT, v6);
    ask(bench, v6)
}

/// The agent hears of it and has its request, which it puts in as the refusal that did not come.
#[test]
fn a_question_without_an_answer_is_reported_and_taken_back() {
    for v6 in [false, true] {
        on_bench(|bench| {
            open(bench, v6);
            let question = unanswered(bench);
            assert_eq!(
                (question.share, question.node, question.number),
                (SHARE, NODES[1], 1)
            );
            assert_eq!(question.flow, flow_id(PORT, v6));
            let kept = bench.datapath.requests.questions.get(&question);
            let kept = kept.expect("it can be read").expect("it is kept");
            assert!(!kept.by_way);
            let refusal = kept.answer(mac(Host::A), Said::Refused);
            assert_eq!(refusal[14..request(v6).len()], request(v6)[14..]);
            let turned = bench.put(Hook::Gate, MARK_SETTLED, &refusal);
            assert_eq!(turned.verdict, REDIRECT);
            let (verdict, reasons) = bench.pass_marked(Hook::Tap, MARK_SETTLED, &turned.frame);
            assert_eq!(verdict, NEXT, "{reasons:?}");
            for reason in ["refused", "client_segment"] {
                assert!(reasons.iter().any(|it| it == reason), "{reasons:?}");
            }
            bench.expect(Hook::Tap, "again", &request(v6), NEXT, "client_segment");
        });
    }
}

/// The same, if it was accepted.
#[test]
fn a_question_that_was_accepted_is_let_go() {
    on_bench(|bench| {
        open(bench, false);
        let question = unanswered(bench);
        // Reminders go on while it is open.
        assert_eq!(unanswered(bench), question);
        let kept = bench.datapath.requests.questions.get(&question);
        let kept = kept.expect("it can be read").expect("it is kept");
        let yes = kept.answer(mac(Host::A), Said::Accepted);
        let (verdict, reasons) = bench.pass_marked(Hook::Tap, MARK_SETTLED, &yes);
        assert_eq!(verdict, NEXT, "{reasons:?}");
        assert!(reasons.iter().any(|it| it == "accepted"), "{reasons:?}");
        let later = Unanswered::new(SHARE, question.flow, 2);
        let kept = bench.datapath.requests.questions.get(&later);
        assert_eq!(kept.expect("it can be read"), None, "another number");
    });
}

/// Who was asked and is told so by the asker's agent never accepts that question any more; a
/// later one is a question like any other.
#[test]
fn what_was_ruled_out_is_never_accepted() {
    on_bench(|bench| {
        for v6 in [false, true] {
            let question = put_by_b(&open(bench, v6), 5);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            let listener = TcpListener::bind(if v6 { "[::]:80" } else { "0.0.0.0:80" });
            let _listener = listener.expect("the port is free");
            let settle = |number| bench.datapath.orders.settle(flow_id(PORT, v6), number);
            // Our own question, of number 1, was another one.
            assert_eq!(settle(5).expect("it runs"), Settlement::Never);
            for _ in 0..2 {
                bench.expect(Hook::Tap, "late", &question, REDIRECT, "ruled_out");
            }
            assert_eq!(settle(5).expect("it runs"), Settlement::Never, "again");
            let next = put_by_b(&question, 6);
            let reason = "materialise_refused";
            bench.expect(Hook::Tap, "another question", &next, REDIRECT, reason);
        }
    });
}

/// What is here, or was and has gone on, is not denied.
#[test]
fn who_has_it_says_so() {
    on_bench(|bench| {
        for v6 in [false, true] {
            let settle = |number| {
                let said = bench.datapath.orders.settle(flow_id(PORT, v6), number);
                said.expect("it runs")
            };
            assert_eq!(settle(1), Settlement::Never, "nothing is known of it");
            let question = open(bench, v6);
            bench.put(Hook::Tap, 0, &answer(&question, REFUSED));
            assert_eq!(settle(9), Settlement::Has);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            bench.put(Hook::Tap, 0, &answer(&open(bench, v6), ACCEPTED));
            let said = [0, 1, 2].map(settle);
            assert_eq!(
                said,
                [Settlement::Has, Settlement::Has, Settlement::Never],
                "accepted by b, under the number 1"
            );
        }
    });
}

fn entry(bench: &Bench, flow: FlowId) -> Option<TransferEntry> {
    let entry = bench.datapath.requests.transfers.get(flow);
    entry.expect("it can be read")
}

/// What the agent says of its open question, without a copy of the request.
fn said(bench: &Bench, v6: bool, said: Said) -> (i32, Vec<String>) {
    let flow = flow_id(PORT, v6);
    let entry = entry(bench, flow).expect("it is known");
    assert!(entry.asks(1) && !entry.asks(2), "{entry:?}");
    let frame = entry.answer(mac(Host::A), flow, said).expect("one family");
    let turned = bench.put(Hook::Gate, MARK_SETTLED, &frame);
    assert_eq!(turned.verdict, REDIRECT);
    bench.pass_marked(Hook::Tap, MARK_SETTLED, &turned.frame)
}

/// An earlier owner of the share has the copy, so the client says its request again.
#[test]
fn a_question_is_settled_without_a_copy_of_its_request() {
    for v6 in [false, true] {
        for (answer, verdict, reason) in [
            (Said::Accepted, NEXT, "accepted"),
            (Said::Refused, DROP, "refused"),
            (Said::Lapsed, DROP, "lapsed"),
        ] {
            on_bench(|bench| {
                open(bench, v6);
                let (got, reasons) = said(bench, v6, answer);
                assert_eq!(got, verdict, "{answer:?} {reasons:?}");
                assert!(reasons.iter().any(|it| it == reason), "{reasons:?}");
                let (verdict, reason) = match answer {
                    Said::Accepted => (REDIRECT, "sent_on"),
                    Said::Refused => (NEXT, "client_segment"),
                    Said::Lapsed => (NEXT, "reclaimed"),
                };
                bench.expect(Hook::Tap, "again", &request(v6), verdict, reason);
            });
        }
    }
}

/// b has started anew, and may have forgotten that it had accepted: what the client has heard
/// tells. Only the agent says so, and while it is so it hears no more of it.
#[test]
fn what_nobody_remembers_the_client_settles() {
    for v6 in [false, true] {
        on_bench(|bench| {
            let question = open(bench, v6);
            let forged = answer(&question, 6);
            bench.expect(Hook::Tap, "b says so", &forged, DROP, "other_slip");
            unanswered(bench);
            assert_eq!(said(bench, v6, Said::Lapsed).0, DROP);
            bench.events.wait(Duration::from_millis(10));
            let heard = bench.events.wait(Duration::from_millis(200));
            assert!(heard.is_empty(), "{heard:?}");
            let more = to_service(
                PORT,
                v6,
                CLIENT.wrapping_add(20),
                SERVICE + 100,
                TcpFlags::ACK,
                b"",
            );
            bench.expect(Hook::Tap, "it has b's reply", &more, NEXT, "accepted");
            bench.expect(Hook::Tap, "and more", &more, REDIRECT, "sent_on");
        });
    }
}

/// A share moves with its twins while a question of c's is open, and the client says nothing more.
#[test]
fn who_takes_a_share_over_settles_its_questions() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        tap_handshake(bench, v6);
        let question = with_slip(Host::C, ring::request(v6), BY_WAY);
        bench.expect(Hook::Tap, "to b", &question, REDIRECT, "relayed");
        bench.take_ward_over(WARD, Host::C);
        let open = unanswered(bench);
        assert_eq!((open.share, open.node, open.number), (WARD, NODES[1], 1));
        assert!(open.put_ns > 0);
        let kept = bench.datapath.requests.questions.get(&open);
        assert_eq!(kept.expect("it can be read"), None, "c has it");
        let (verdict, reasons) = said(bench, v6, Said::Accepted);
        assert_eq!(verdict, NEXT, "{reasons:?}");
    });
}

/// `GW_TRANSFER_GONE`.
const GONE: u32 = 3;

/// What is known here of the connection: its place, its number, and where it has gone.
fn known(bench: &Bench, v6: bool) -> Option<(u32, u32, godwit_wire::MacAddr)> {
    entry(bench, flow_id(PORT, v6)).map(|it| (it.state, it.number, it.to))
}

/// This server's share is about to move to b, and a connection of it has gone to c.
#[test]
fn who_gets_a_share_is_told_what_has_gone_on_from_it() {
    on_ring(|bench, v6| {
        bench.connect(PORT, v6);
        let question = bench.put(Hook::Tap, 0, &ring::request(v6)).frame;
        let yes = from(Host::C, answer(&question, ACCEPTED));
        bench.expect(Hook::Tap, "c has it", &yes, NEXT, "accepted");
        let flow = flow_id(PORT, v6);
        let entry = entry(bench, flow).expect("it is known");
        assert!(entry.has_gone(), "{entry:?}");
        let frame = entry.bequest(mac(Host::A), mac(Host::B), flow, 0);
        let frame = frame.expect("of one family");
        let forged = with_slip(
            Host::B,
            ack(v6),
            Slip {
                kind: 7,
                number: 1,
                to: 0,
                from: 0,
            },
        );
        bench.expect(Hook::Tap, "b says so", &forged, DROP, "other_slip");
        let turned = bench.put(Hook::Gate, MARK_SETTLED, &frame);
        assert_eq!(turned.verdict, REDIRECT);
        let (verdict, reasons) = bench.pass_marked(Hook::Tap, MARK_SETTLED, &turned.frame);
        assert_eq!(verdict, REDIRECT, "{reasons:?}");
        assert!(reasons.iter().any(|it| it == "bequeathed"), "{reasons:?}");
        let told = bench.put(Hook::Tap, MARK_SETTLED, &turned.frame).frame;
        assert_eq!(told[..6], mac(Host::B).0);
        assert_eq!(told[12..14], crate::bench::SLIP_TYPE);
        let slip = &told[told.len() - 52..];
        assert_eq!((slip[5], slip[11]), (ACCEPTED, 1));
        let ids = [NODES[2], NODES[0]].map(u32::to_be_bytes).concat();
        assert_eq!(slip[28..36], ids);
    });
}

/// The same at who gets it. What it believed to be at c itself it does not believe any more.
#[test]
fn a_standby_hears_what_has_gone_on_from_its_ward() {
    on_ring(|bench, v6| {
        let told = |number, to| {
            let slip = Slip {
                kind: ACCEPTED,
                number,
                to,
                from: 3,
            };
            let frame = with_slip(Host::C, ack(v6), slip);
            bench.expect(Hook::Tap, "told", &frame, REDIRECT, "relayed");
            known(bench, v6)
        };
        assert_eq!(known(bench, v6), None);
        let (b, c) = (mac(Host::B), mac(Host::C));
        assert_eq!(told(4, 3), Some((GONE, 4, c)));
        assert_eq!(told(2, 2), Some((GONE, 4, b)), "c knows better");
        assert_eq!(told(3, 3), Some((GONE, 4, b)), "a late copy");
    });
}
