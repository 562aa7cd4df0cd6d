//! A running flow and a standby that came later: who says what, and that no
//! gate opens while a twin may be served that lacks something.

mod common;

use common::{A, B, SHARE, World, flow};
use godwit_core::node::FlowNews;
use godwit_core::rejoin::{Candidate, Past};
use godwit_core::{Action, FlowAction, FlowEventKind, RejoinAction};
use godwit_wire::{Epoch, FlowRecord, MacAddr, Negotiated, Restore, SeqNumber, UnprotectedReason};

fn restore() -> Box<Restore> {
    Box::new(Restore {
        record: FlowRecord {
            id: flow(1),
            iss: SeqNumber(100),
            mss: 1460,
            snd_wscale: 7,
            rcv_wscale: 7,
            negotiated: Negotiated::default(),
            ts_off: 0,
            snd_una: SeqNumber(101),
            snd_nxt: SeqNumber(101),
            rcv_nxt: SeqNumber(1),
            epoch: Epoch::new(1, 1),
        },
        base: SeqNumber(1),
        base_ack: SeqNumber(101),
        snd_edge: SeqNumber(1000),
        ts_val: 0,
        owner_ts: 0,
        rtt_us: 100,
        syn_ack_mss: 1460,
        client_mac: MacAddr::ZERO,
        fin: false,
        input: b"get".to_vec(),
    })
}

/// The owner has a flow that no standby knows, and has told b of it.
fn told() -> World {
    let mut world = World::in_sync();
    world.forget_log();
    let candidate = Candidate {
        flow: flow(1),
        past: Past::None,
    };
    world.input(A, |node, now| {
        node.handle_candidates(SHARE, &[candidate], now)
    });
    let begun = world.local_actions(A);
    assert!(
        matches!(begun[..], [Action::Rejoin(_, RejoinAction::Begin { .. })]),
        "{begun:?}"
    );
    world.input(A, |node, now| {
        node.handle_restore(SHARE, flow(1), Some(restore()), now)
    });
    world.run(3);
    let restored = world.local_actions(B);
    assert!(
        matches!(
            restored[..],
            [Action::Rejoin(_, RejoinAction::Restore { .. })]
        ),
        "{restored:?}"
    );
    world
}

/// b was asked to serve the twin, which has everything, and says yes.
fn admitted() -> World {
    let mut world = told();
    world.flow_event(A, 1, FlowEventKind::Rejoined);
    world.flow_event(A, 1, FlowEventKind::Whole);
    world.run(3);
    let admit = Action::Rejoin(SHARE, RejoinAction::Admit { flow: flow(1) });
    assert_eq!(world.local_actions(B).last(), Some(&admit));
    assert!(!protects(&world), "not before b says so");
    world.input(B, |node, now| {
        node.handle_twin_admitted(SHARE, flow(1), now)
    });
    world.run(3);
    assert!(protects(&world));
    world
}

fn protects(world: &World) -> bool {
    let protect =
        |action: &Action| matches!(action, Action::Rejoin(_, RejoinAction::Protect { .. }));
    world.local_actions(A).iter().any(protect)
}

#[test]
fn a_running_flow_is_protected_when_both_say_so() {
    let mut world = admitted();
    world.input(A, |node, now| {
        node.handle_flow_protected(SHARE, flow(1), true, now)
    });
    let news = world.flow_news(A);
    assert!(
        matches!(news[..], [FlowNews::ProtectedAgain { .. }]),
        "{news:?}"
    );
    world.run(3000);
    assert!(world.is_in_sync(A, B));
    assert_eq!(world.flow_news(A).len(), 1);
}

#[test]
fn a_twin_that_does_not_come_about_is_given_up_without_a_word() {
    let mut world = told();
    world.run(600);
    let reason = UnprotectedReason::NotConfirmed;
    let given_up = Action::Flow(
        SHARE,
        FlowAction::Ungate {
            flow: flow(1),
            reason,
        },
    );
    assert_eq!(world.local_actions(A).last(), Some(&given_up));
    assert!(world.is_in_sync(A, B), "the others stay protected");
}

/// The data path says that the flow changed meanwhile: b would serve the twin,
/// and must mark it before the flow goes on.
#[test]
fn a_twin_that_was_admitted_in_vain_is_marked_before_the_gate_opens() {
    let mut world = admitted();
    world.input(A, |node, now| {
        node.handle_flow_protected(SHARE, flow(1), false, now)
    });
    world.run(3);
    assert!(world.sides[B].marked.contains(&flow(1)));
    let news = world.flow_news(A);
    assert!(matches!(news[..], [FlowNews::Demoted { .. }]), "{news:?}");
}

#[test]
fn a_standby_that_does_not_say_whether_it_serves_has_to_mark_the_twin() {
    let mut world = told();
    world.flow_event(A, 1, FlowEventKind::Rejoined);
    world.flow_event(A, 1, FlowEventKind::Whole);
    world.run(700);
    assert!(world.sides[B].marked.contains(&flow(1)));
    assert!(!protects(&world));
    assert!(world.is_in_sync(A, B));
}

/// An owner that was stopped hears of both at once: that its client waits, and that the new
/// twin has all. What is asked last of the standby holds.
#[test]
fn a_twin_that_has_all_is_not_admitted_while_the_standby_marks_it() {
    let mut world = told();
    world.flow_event(A, 1, FlowEventKind::Rejoined);
    world.flow_event(A, 1, FlowEventKind::Stalled);
    world.flow_event(A, 1, FlowEventKind::Whole);
    world.run(700);
    let admits = |action: &Action| matches!(action, Action::Rejoin(_, RejoinAction::Admit { .. }));
    assert!(!world.local_actions(B).iter().any(admits));
    assert!(world.sides[B].marked.contains(&flow(1)));
    let ungated = Action::Flow(
        SHARE,
        FlowAction::Ungate {
            flow: flow(1),
            reason: UnprotectedReason::Lagging,
        },
    );
    assert!(world.local_actions(A).contains(&ungated));
    assert!(!protects(&world));
}

#[test]
fn a_standby_that_leaves_takes_its_half_made_twins_along() {
    let mut world = told();
    world.crash(B);
    world.run(100);
    world.forget_log();
    world.flow_event(A, 1, FlowEventKind::Whole);
    world.run(1000);
    assert!(!protects(&world));
}
