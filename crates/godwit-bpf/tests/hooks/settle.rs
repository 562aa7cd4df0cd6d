//! Questions that get no answer, and what agents settle about them (`gw_settle.h`).

use std::net::TcpListener;
use std::time::{Duration, Instant};

use godwit_bpf::{Hook, MARK_SETTLED, Mate, Record, Settlement, Unanswered};
use godwit_lab::host::Host;

use crate::bench::{Bench, NEXT, NODES, REDIRECT, SHARE, flow_id, on_bench};
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
            let refusal = kept.answer(mac(Host::A), false);
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
        let yes = kept.answer(mac(Host::A), true);
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
                [Settlement::Has, Settlement::Later, Settlement::Never]
            );
        }
    });
}
