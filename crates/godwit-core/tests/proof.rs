//! Standbys that prove, or fail to, that twins are born there.

mod common;

use common::{A, B, CANARY_MS, SHARE, World, flow};
use godwit_core::fitness::{Consequence, FactId};
use godwit_core::node::ShareNews;
use godwit_core::share::State;
use godwit_core::{FlowEventKind, Proof};
use godwit_wire::LeaveReason;

/// `a` owns, `b` is in sync and proves itself along two paths.
fn proving() -> World {
    let mut world = World::dark();
    world.paths = 2;
    world.boot(A);
    world.boot(B);
    world.run(3000);
    assert_eq!(world.state(A), State::Owner);
    assert!(world.is_in_sync(A, B));
    world
}

/// Something around `b` is wrong, or right.
fn fact(world: &mut World, wrong: Option<Consequence>) {
    let name = "tcp_syncookies".to_owned();
    let id = FactId { name, share: None };
    world.input(B, |node, now| node.handle_fact(id, wrong, now));
}

fn reasons(world: &World) -> Vec<LeaveReason> {
    let left = world.share_news(A, |news| matches!(news, ShareNews::StandbyLeft { .. }));
    let reason = |news| {
        if let ShareNews::StandbyLeft { reason, .. } = news {
            Some(reason)
        } else {
            None
        }
    };
    left.into_iter().filter_map(reason).collect()
}

/// Whichever path fails, and whichever leg: out within two seconds, with the reason,
/// and back when it is proved again.
#[test]
fn a_standby_that_can_bear_no_twins_leaves_and_comes_back() {
    for (failing, reason) in [
        (Proof::NotBorn, LeaveReason::NotBorn),
        (Proof::NotHeard, LeaveReason::NotHeard),
    ] {
        for path in [0, 1] {
            let mut world = proving();
            world.forget_log();
            world.canaries[path] = failing;
            world.run(3 * CANARY_MS);
            assert!(
                world.is_in_sync(A, B),
                "a lost canary or three are no proof"
            );
            world.run(2000 - 3 * CANARY_MS);
            assert!(!world.is_in_sync(A, B));
            assert_eq!(reasons(&world), [reason]);
            let node = world.sides[A].node.as_ref().expect("it runs");
            let status = node.share_status().next().expect("one share");
            let unproved: Vec<_> = status.unproved.iter().map(|(_, why)| *why).collect();
            assert_eq!(unproved, [reason], "status says so");
            world.run(20_000);
            assert!(!world.is_in_sync(A, B), "not even for a moment");
            assert_eq!(reasons(&world), [reason], "it never came back");
            world.canaries[path] = Proof::Born;
            world.run(2000);
            assert!(world.is_in_sync(A, B));
            let node = world.sides[A].node.as_ref().expect("it runs");
            let status = node.share_status().next().expect("one share");
            assert_eq!(status.unproved, [], "and takes it back");
        }
    }
}

/// Nobody is admitted who has not proved it: no connection is gated for such a standby.
#[test]
fn a_standby_that_never_bore_a_twin_never_joins() {
    let mut world = World::dark();
    world.paths = 2;
    world.canaries[1] = Proof::NotBorn;
    world.boot(A);
    world.boot(B);
    world.run(10_000);
    assert_eq!(world.owners(), [A]);
    assert!(!world.is_in_sync(A, B));
    assert_eq!(reasons(&world), []);
    world.canaries[1] = Proof::Born;
    world.run(1500);
    assert!(world.is_in_sync(A, B));
}

/// Now and then a canary is lost on the way, as any frame may be.
#[test]
fn canaries_that_are_lost_now_and_then_change_nothing() {
    let mut world = proving();
    world.forget_log();
    for _ in 0..20 {
        world.canaries = [Proof::NotHeard; 2];
        world.run(3 * CANARY_MS);
        world.canaries = [Proof::Born; 2];
        world.run(CANARY_MS);
    }
    assert!(world.is_in_sync(A, B));
    assert_eq!(reasons(&world), []);
}

/// Nothing is asked of a peer that can't be reached, or by a node that does not own.
#[test]
fn canaries_are_sent_while_they_can_be_answered() {
    let mut world = proving();
    let before = world.canaries_sent;
    world.run(10 * CANARY_MS);
    assert_eq!(world.canaries_sent - before, 20, "two paths, one side");
    world.crash(B);
    world.run(100);
    let before = world.canaries_sent;
    world.run(3000);
    assert_eq!(world.canaries_sent, before);
}

/// While a standby is out of the set nothing is asked of it: what it had proved says nothing
/// of the time when it comes back.
#[test]
fn a_standby_that_left_for_something_else_proves_itself_anew() {
    let mut world = proving();
    world.forget_log();
    fact(&mut world, Some(Consequence::NoTwins));
    world.run(3000);
    assert!(!world.is_in_sync(A, B));
    world.canaries[1] = Proof::NotBorn;
    fact(&mut world, None);
    world.run(5000);
    assert!(!world.is_in_sync(A, B));
    assert_eq!(reasons(&world), [LeaveReason::Unfit], "it never came back");
    world.canaries[1] = Proof::Born;
    world.run(1500);
    assert!(world.is_in_sync(A, B));
}

/// Who takes over begins anew, and so does who is handed the share.
#[test]
fn a_share_that_moves_is_proved_the_other_way() {
    let mut world = proving();
    world.ask_move(A, false);
    world.run(100);
    assert_eq!(world.owners(), [B]);
    assert!(world.is_in_sync(B, A));
    world.canaries[0] = Proof::NotBorn;
    world.run(2000);
    assert!(!world.is_in_sync(B, A));
}

/// Canaries are born at the agent's own listener: a program on the server's control group may
/// drop what that one lets pass.
#[test]
fn a_standby_at_which_no_connection_gets_a_twin_leaves() {
    let mut world = proving();
    world.forget_log();
    let count = |world: &mut World, protected| {
        world.input(A, |node, now| {
            node.handle_protected_count(SHARE, protected, now)
        });
    };
    for port in 1..=10 {
        world.flow_event(A, port, FlowEventKind::NotConfirmed);
        world.run(100);
        count(&mut world, 1);
    }
    world.run(100);
    assert_eq!(reasons(&world), [], "others get theirs");
    for port in 11..=12 {
        world.flow_event(A, port, FlowEventKind::NotConfirmed);
        world.run(600);
        count(&mut world, 0);
    }
    world.run(100);
    assert_eq!(reasons(&world), [], "two prove nothing");
    world.flow_event(A, 13, FlowEventKind::NotConfirmed);
    world.run(100);
    count(&mut world, 0);
    world.run(100);
    assert_eq!(reasons(&world), [LeaveReason::NotBorn]);
    assert!(!world.is_in_sync(A, B));
    world.run(2500);
    assert!(world.is_in_sync(A, B), "it may be right again");
}

/// Not confirmed again and again: one client, or such as can have no twin anywhere. The
/// standby left for all.
#[test]
fn odd_connections_take_no_standby_from_others() {
    let mut world = proving();
    world.forget_log();
    let count = |world: &mut World| {
        world.input(A, |node, now| node.handle_protected_count(SHARE, 0, now));
    };
    for _ in 0..10 {
        world.flow_event(A, 1, FlowEventKind::NotConfirmed);
        world.run(200);
        count(&mut world);
    }
    for port in 2..10 {
        world.flow_event(A, port, FlowEventKind::NotConfirmed);
        world.input(A, |node, now| node.handle_odd_flow(SHARE, flow(port), now));
        world.run(200);
        count(&mut world);
    }
    assert_eq!(reasons(&world), []);
    assert!(world.is_in_sync(A, B));
}
