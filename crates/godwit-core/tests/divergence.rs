//! Twins that do not keep step: given up, reported or waited for.

mod common;

use common::{A, B, SHARE, World, flow};
use godwit_core::node::FlowNews;
use godwit_core::{Action, FlowAction, FlowEventKind, FlowPolicy, TwinAction};
use godwit_wire::{OutputEntry, Said, SeqNumber, UnprotectedReason};

const LENGTH: UnprotectedReason = UnprotectedReason::DivergedLength;

fn said(port: u16) -> OutputEntry {
    OutputEntry {
        flow: flow(port),
        said: Said::Length {
            rcv_nxt: SeqNumber(10),
            end: SeqNumber(20),
        },
    }
}

fn diverge(world: &mut World, side: usize, port: u16) {
    world.input(side, |node, now| {
        node.handle_divergence(SHARE, flow(port), LENGTH, now);
    });
}

#[test]
fn a_standby_is_told_what_its_owner_has_said() {
    let mut world = World::in_sync();
    world.forget_log();
    let entries: Vec<_> = (0..600).map(said).collect();
    world.input(A, |node, now| node.handle_output(SHARE, &entries, now));
    world.run(3);
    let compared: Vec<_> = world.sides[B].actions.iter().collect();
    assert_eq!(compared.len(), 600, "two messages");
    let last = Action::Twin(SHARE, TwinAction::Compare { entry: said(599) });
    assert_eq!(compared.last(), Some(&&last));
    world.forget_log();
    world.input(B, |node, now| node.handle_output(SHARE, &entries, now));
    world.run(3);
    assert!(world.sides[A].actions.is_empty(), "a standby has no say");
}

/// First the mark, then the word: the owner lets the flow go on it, and the
/// others stay protected.
#[test]
fn a_twin_that_diverges_is_given_up_before_its_owner_hears_of_it() {
    let mut world = World::in_sync();
    world.forget_log();
    diverge(&mut world, B, 1);
    let marked = Action::Twin(
        SHARE,
        TwinAction::MarkDemoted {
            flow: flow(1),
            reason: LENGTH,
        },
    );
    assert_eq!(world.sides[B].actions.first(), Some(&marked));
    assert!(world.local_actions(A).is_empty(), "not before it is told");
    world.run(3);
    let ungated = Action::Flow(
        SHARE,
        FlowAction::Ungate {
            flow: flow(1),
            reason: LENGTH,
        },
    );
    assert_eq!(world.local_actions(A), [ungated]);
    assert!(world.is_in_sync(A, B));
    let news = FlowNews::Diverged {
        reason: LENGTH,
        demoted: true,
    };
    assert_eq!(world.flow_news(B), [news]);
    assert_eq!(world.flow_news(A), [FlowNews::Demoted { reason: LENGTH }]);
}

#[test]
fn a_divergence_may_be_reported_only() {
    let mut world = World::in_sync_with(FlowPolicy {
        report_divergence: true,
        ..FlowPolicy::default()
    });
    world.forget_log();
    diverge(&mut world, B, 1);
    diverge(&mut world, A, 2);
    world.run(3);
    let news = FlowNews::Diverged {
        reason: LENGTH,
        demoted: false,
    };
    assert_eq!(world.flow_news(B), [news]);
    assert!(world.sides[B].marked.is_empty());
    assert!(world.local_actions(A).is_empty() && world.flow_news(A).is_empty());
}

/// People hear of it once per connection, however often it stalls.
#[test]
fn a_client_may_wait_for_a_twin_that_lags() {
    let mut world = World::in_sync_with(FlowPolicy {
        wait_for_lagging: true,
        ..FlowPolicy::default()
    });
    world.forget_log();
    for _ in 0..3 {
        world.flow_event(A, 1, FlowEventKind::Stalled);
        world.run(30);
    }
    assert_eq!(world.flow_news(A), [FlowNews::Waiting]);
    assert!(world.local_actions(A).is_empty() && world.sides[B].marked.is_empty());
    world.flow_event(A, 1, FlowEventKind::Ended);
    world.flow_event(A, 1, FlowEventKind::Stalled);
    assert_eq!(world.flow_news(A).len(), 2, "another connection");
    // Who has no twin at all is not waited for.
    world.flow_event(A, 2, FlowEventKind::NotConfirmed);
    world.run(3);
    assert_eq!(world.local_actions(A).len(), 1);
}
