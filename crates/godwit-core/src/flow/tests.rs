//! All (state, input) pairs, deadlines, and the bound.

use godwit_wire::{FlowKey, SeqNumber};

use super::*;

fn ms(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

fn flow(port: u16) -> FlowId {
    FlowId {
        key: FlowKey {
            client: ([10, 9, 0, 10], port).into_endpoint(),
            service: ([10, 9, 0, 100], 80).into_endpoint(),
        },
        irs: SeqNumber(1),
    }
}

trait IntoEndpoint {
    fn into_endpoint(self) -> godwit_wire::Endpoint;
}

impl IntoEndpoint for ([u8; 4], u16) {
    fn into_endpoint(self) -> godwit_wire::Endpoint {
        std::net::SocketAddr::from(self).into()
    }
}

const CONFIRMING: State = State::Confirming {
    resent: 1,
    since: MonoTime(0),
};
const DEMOTING: State = State::Demoting {
    reason: UnprotectedReason::Lagging,
    since: MonoTime(0),
};
const DEMOTED: State = State::Demoted(UnprotectedReason::Lagging);

fn table_in(state: Option<State>) -> Supervision {
    let mut table = Supervision::default();
    match state {
        None => {}
        Some(State::Confirming { .. }) => table.handle_report(flow(1), Report::Unconfirmed, ms(0)),
        Some(State::Demoting { .. }) => table.handle_report(flow(1), Report::Stalled, ms(0)),
        Some(State::Demoted(_)) => {
            table.handle_report(flow(1), Report::Stalled, ms(0));
            table.handle_demoted(flow(1));
        }
    }
    assert_eq!(table.state(&flow(1)), state);
    orders(&mut table);
    table
}

fn orders(table: &mut Supervision) -> Vec<Order> {
    std::iter::from_fn(|| table.poll_order()).collect()
}

#[derive(Debug, Clone, Copy)]
enum Input {
    Report(Report),
    DemotedByStandby,
    TwinClosed,
}

/// Applies each input at one millisecond to a flow in `before`, and compares
/// the state after it and the order that comes out.
fn check(before: Option<State>, row: [(Option<State>, Option<Order>); 8]) {
    use Input::{DemotedByStandby, Report as Says, TwinClosed};
    let inputs = [
        Says(Report::Unconfirmed),
        Says(Report::NotConfirmed),
        Says(Report::Stalled),
        Says(Report::CommitFailed),
        Says(Report::Confirmed),
        Says(Report::Ended),
        DemotedByStandby,
        TwinClosed,
    ];
    for (input, (after, order)) in inputs.into_iter().zip(row) {
        let mut table = table_in(before);
        match input {
            Says(report) => table.handle_report(flow(1), report, ms(1)),
            DemotedByStandby => table.handle_demoted(flow(1)),
            TwinClosed => table.handle_twin_closed(flow(1), UnprotectedReason::TwinClosed),
        }
        assert_eq!(table.state(&flow(1)), after, "{before:?} and {input:?}");
        let expected: Vec<_> = order.into_iter().collect();
        assert_eq!(orders(&mut table), expected, "{before:?} and {input:?}");
    }
}

fn demoting(reason: UnprotectedReason) -> (Option<State>, Option<Order>) {
    let state = State::Demoting {
        reason,
        since: ms(1),
    };
    (Some(state), Some(Order::AskDemotion(flow(1), reason)))
}

fn let_go(reason: UnprotectedReason) -> (Option<State>, Option<Order>) {
    (
        Some(State::Demoted(reason)),
        Some(Order::Ungate(flow(1), reason)),
    )
}

#[test]
fn a_flow_that_is_fine() {
    let confirming = State::Confirming {
        resent: 1,
        since: ms(1),
    };
    check(
        None,
        [
            (Some(confirming), Some(Order::ResendHandshake(flow(1)))),
            demoting(UnprotectedReason::NotConfirmed),
            demoting(UnprotectedReason::Lagging),
            demoting(UnprotectedReason::CommitFailed),
            (None, None),
            (None, None),
            (None, None),
            let_go(UnprotectedReason::TwinClosed),
        ],
    );
}

#[test]
fn confirming() {
    let stays = (Some(CONFIRMING), None);
    check(
        Some(CONFIRMING),
        [
            stays,
            demoting(UnprotectedReason::NotConfirmed),
            demoting(UnprotectedReason::Lagging),
            demoting(UnprotectedReason::CommitFailed),
            (None, None),
            (None, None),
            stays,
            let_go(UnprotectedReason::TwinClosed),
        ],
    );
}

#[test]
fn demoting_has_no_way_back() {
    let stays = (Some(DEMOTING), None);
    let done = let_go(UnprotectedReason::Lagging);
    check(
        Some(DEMOTING),
        [stays, stays, stays, stays, stays, (None, None), done, done],
    );
}

#[test]
fn demoted() {
    let stays = (Some(DEMOTED), None);
    check(
        Some(DEMOTED),
        [
            stays,
            stays,
            stays,
            stays,
            stays,
            (None, None),
            stays,
            stays,
        ],
    );
}

#[test]
fn the_handshake_is_sent_again_at_5_10_and_20_ms_and_then_no_more() {
    let mut table = Supervision::default();
    table.handle_report(flow(1), Report::Unconfirmed, ms(5));
    let mut sent = vec![(5, orders(&mut table))];
    while let Some(due) = table.poll_timeout().filter(|due| *due < ms(100)) {
        table.handle_timeout(due);
        sent.push((due.as_nanos() / 1_000_000, orders(&mut table)));
    }
    let resend = vec![Order::ResendHandshake(flow(1))];
    assert_eq!(
        sent,
        [(5, resend.clone()), (10, resend.clone()), (20, resend)]
    );
}

#[test]
fn an_unconfirmed_flow_is_demoted_even_if_the_report_is_lost() {
    let mut table = Supervision::default();
    table.handle_report(flow(1), Report::Unconfirmed, ms(5));
    for now in [10, 20, 100] {
        table.handle_timeout(ms(now));
    }
    let ask = Order::AskDemotion(flow(1), UnprotectedReason::NotConfirmed);
    assert_eq!(orders(&mut table).last(), Some(&ask));
}

#[test]
fn late_timeouts_send_the_handshake_once() {
    let mut table = Supervision::default();
    table.handle_report(flow(1), Report::Unconfirmed, ms(5));
    orders(&mut table);
    table.handle_timeout(ms(60));
    table.handle_timeout(ms(60));
    assert_eq!(orders(&mut table), [Order::ResendHandshake(flow(1))]);
}

#[test]
fn a_demotion_that_is_not_confirmed_costs_the_whole_standby() {
    let mut table = Supervision::default();
    table.handle_report(flow(1), Report::NotConfirmed, ms(0));
    assert_eq!(table.poll_timeout(), Some(ms(500)));
    orders(&mut table);
    table.handle_timeout(ms(499));
    assert_eq!(orders(&mut table), []);
    table.handle_timeout(ms(500));
    assert_eq!(
        orders(&mut table),
        [Order::GiveUp(LeaveReason::DemoteUnconfirmed)]
    );
}

#[test]
fn a_confirmed_demotion_has_no_deadline() {
    let mut table = Supervision::default();
    table.handle_report(flow(1), Report::Stalled, ms(0));
    table.handle_demoted(flow(1));
    assert_eq!(table.poll_timeout(), None);
    let counts = Counts {
        demoted: 1,
        ..Counts::default()
    };
    assert_eq!(table.counts(), counts);
}

#[test]
fn a_full_table_takes_no_more_and_costs_nobody_anything() {
    let mut table = Supervision::new(Limits {
        flows: 2,
        demoted: 2,
    });
    for port in 1..=3 {
        table.handle_report(flow(port), Report::NotConfirmed, ms(0));
    }
    assert_eq!(orders(&mut table).len(), 2, "of two it is asked");
    assert_eq!(table.state(&flow(3)), None);
    table.handle_report(flow(1), Report::Ended, ms(0));
    table.handle_report(flow(3), Report::NotConfirmed, ms(1));
    assert!(table.state(&flow(3)).is_some(), "reported again");
}

/// Anybody can have as many connections as he likes of which no twin is born, or whose twin
/// does otherwise: none of that is a reason to give up the standby of all others.
#[test]
fn seventy_thousand_bare_flows_cost_the_others_nothing() {
    let mut table = Supervision::default();
    let flows = (0..70_000_u32).map(|number| FlowId {
        irs: SeqNumber(number),
        ..flow(1)
    });
    for flow in flows.clone() {
        table.handle_report(flow, Report::NotConfirmed, ms(0));
        table.handle_demoted(flow);
    }
    let orders = orders(&mut table);
    let given_up = |order: &&Order| matches!(order, Order::GiveUp(_));
    assert_eq!(orders.iter().find(given_up), None);
    let let_go = |order: &&Order| matches!(order, Order::Ungate(..));
    assert_eq!(orders.iter().filter(let_go).count(), 70_000);
    assert_eq!(table.counts().demoted, MAX_DEMOTED);
    let oldest = flows.clone().next().expect("there are many");
    assert_eq!(table.state(&oldest), None, "the standby knows it");
    // Its end is no news, and neither is that of one that is remembered.
    for flow in flows {
        table.handle_report(flow, Report::Ended, ms(1));
    }
    assert_eq!(table.flows().count(), 0);
}

#[test]
fn an_end_that_was_not_reported_can_be_made_up_for() {
    let mut table = Supervision::default();
    table.handle_report(flow(1), Report::Stalled, ms(0));
    table.handle_demoted(flow(1));
    table.handle_report(flow(2), Report::NotConfirmed, ms(0));
    table.handle_report(flow(3), Report::Unconfirmed, ms(0));
    let named: Vec<_> = table.flows().collect();
    assert_eq!(named, [flow(1), flow(2), flow(3)]);
    for flow in named {
        table.handle_report(flow, Report::Ended, ms(1));
    }
    assert_eq!(table.flows().count(), 0);
    assert_eq!(table.poll_timeout(), None);
}

#[test]
fn clearing_forgets_flows_deadlines_and_orders() {
    let mut table = Supervision::default();
    table.handle_report(flow(1), Report::NotConfirmed, ms(0));
    table.handle_report(flow(2), Report::Unconfirmed, ms(0));
    table.clear();
    assert_eq!(table.poll_timeout(), None);
    assert_eq!(table.poll_order(), None);
    assert_eq!(table.counts(), Counts::default());
}
