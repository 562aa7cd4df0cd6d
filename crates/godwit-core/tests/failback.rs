//! Shares that go back to their primary by themselves: when, and when not.

#[path = "fenced/mod.rs"]
mod fenced;

use std::time::Duration;

use fenced::{A, B, SHARE, W, World, name};
use godwit_core::node::{FailbackStatus, ShareNews};
use godwit_core::{Command, Fencing, FlowCheck, MoveError};

/// How long the primary has to be in sync.
const AFTER_MS: u64 = 4_000;

fn world() -> World {
    let mut world = World::dark(Fencing::Lease, 3);
    world.failback = Some(Duration::from_millis(AFTER_MS));
    for side in [A, B, W] {
        world.boot(side);
    }
    world.run(3_000);
    assert!(world.is_in_sync(A, B));
    world
}

/// The primary has failed and come back: how long until it is in sync.
fn returned() -> World {
    let mut world = world();
    world.crash(A);
    world.run(200);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    world.boot(A);
    join(&mut world);
    world
}

fn join(world: &mut World) {
    for _ in 0..3_000 {
        if world.is_in_sync(B, A) {
            return;
        }
        world.run(1);
    }
    panic!("not in sync");
}

/// What the owner says of the way home.
fn status(world: &mut World) -> Option<FailbackStatus> {
    let mut said = None;
    world.input(B, |node, _| {
        said = node.share_status().next().expect("one share").failback;
    });
    said
}

fn refusals(world: &World) -> Vec<ShareNews> {
    world.share_news(B, |news| matches!(news, ShareNews::MoveRefused { .. }))
}

#[test]
fn a_primary_that_has_been_in_sync_for_long_enough_owns_again() {
    let mut world = returned();
    world.forget_log();
    // Clocks are wrong by a hundredth here.
    world.run(AFTER_MS - 100);
    assert_eq!(world.speakers(), [B], "not yet");
    world.run(200);
    assert!(world.is_in_sync(A, B), "a move, so both are in sync");
    let moved = world.share_news(B, |news| matches!(news, ShareNews::Moved { .. }));
    assert_eq!(moved, [ShareNews::Moved { to: name(A) }]);
    world.run(3 * AFTER_MS);
    assert!(world.is_in_sync(A, B), "and there it stays");
}

/// What comes and goes is not moved to, nor a standby that is held off.
#[test]
fn a_stay_that_ends_counts_for_nothing() {
    let mut world = returned();
    for _ in 0..4 {
        world.run(AFTER_MS - 500);
        world.cuts.extend([(A, B), (B, A)]);
        world.run(300);
        world.cuts.clear();
        join(&mut world);
        assert_eq!(world.speakers(), [B]);
    }
    world.run(AFTER_MS - 100);
    assert_eq!(world.speakers(), [B]);
    world.run(200);
    assert_eq!(world.speakers(), [A]);
}

#[test]
fn nothing_moves_while_connections_would_be_lost() {
    let mut world = returned();
    world.flow_check.unprotected = 1;
    world.run(2 * AFTER_MS + 500);
    assert_eq!(world.speakers(), [B]);
    let error = MoveError::Unprotected { flows: 1 };
    assert_eq!(refusals(&world), [ShareNews::MoveRefused { error }; 2]);
    let said = status(&mut world).expect("it says why it is not home");
    assert_eq!((said.to, said.refused), (name(A), error));
    world.flow_check = FlowCheck::default();
    world.run(AFTER_MS);
    assert!(world.is_in_sync(A, B));
    assert_eq!(status(&mut world), None);
}

/// Who moves a share wants it where it goes.
#[test]
fn what_was_moved_away_stays_until_the_primary_has_been_away() {
    let mut world = world();
    world.input(A, |node, now| {
        let (share, to, force) = (SHARE, name(B), false);
        node.handle_command(Command::Move { share, to, force }, now);
    });
    world.run(4 * AFTER_MS);
    assert!(world.is_in_sync(B, A));
    world.boot(A);
    world.run(500);
    join(&mut world);
    world.run(AFTER_MS + 100);
    assert!(world.is_in_sync(A, B));
}

/// The agent of the owner has forgotten since when the primary is in sync.
#[test]
fn after_a_restart_of_the_owners_agent_the_time_begins_anew() {
    let mut world = returned();
    world.run(AFTER_MS / 2);
    world.goodbye(B, godwit_wire::GoodbyeReason::Restart);
    world.resume(B);
    world.run(AFTER_MS - 200);
    assert!(world.is_in_sync(B, A));
    world.run(400);
    assert!(world.is_in_sync(A, B));
}

#[test]
fn without_it_nothing_moves() {
    let mut world = World::in_sync(Fencing::Lease, 3);
    world.crash(A);
    world.run(200);
    world.boot(A);
    world.run(10 * AFTER_MS);
    assert!(world.is_in_sync(B, A));
}
