//! A clock of day that was days ahead when an agent was started, or is.

#[path = "fenced/mod.rs"]
mod fenced;

use fenced::{A, B, W, World};
use godwit_core::node::ShareNews;
use godwit_core::{Birth, Fencing, FlowEventKind};
use godwit_wire::LeaveReason;

const DAY: u32 = 24 * 3600;

/// What the clock of day says where it is right.
const NOW: u32 = 1_010;

/// The agent of `b` was started two days ahead of all others.
fn ahead() -> World {
    let mut world = World::dark(Fencing::Lease, 3);
    world.sides[B].ahead = 2 * DAY;
    for side in [A, B, W] {
        world.boot(side);
    }
    world
}

fn birth(world: &World, side: usize) -> Birth {
    world.sides[side].node.as_ref().expect("runs").birth()
}

/// The clocks of day, as the agents hear of them now and then.
fn day(world: &mut World, side: usize, seconds: u32) {
    world.input(side, |node, now| node.handle_day(seconds, now));
}

fn wants_another_life(world: &mut World, side: usize) -> bool {
    let mut wants = false;
    world.input(side, |node, now| wants = node.is_reborn_by_now(now));
    wants
}

#[test]
fn who_would_be_granted_nothing_is_not_taken_for_in_sync_and_is_told_why() {
    let mut world = ahead();
    world.run(5_000);
    assert_eq!(world.speakers(), [A]);
    assert!(!world.is_in_sync(A, B), "nobody would vote for it");
    assert_eq!(birth(&world, B), Birth::Doubted, "its own clock agrees");
    assert_eq!(birth(&world, A), Birth::Near);
    let owner = world.sides[A].node.as_ref().expect("runs");
    assert_eq!(owner.peers_ahead().collect::<Vec<_>>(), [fenced::name(B)]);
    assert!(!owner.is_behind(), "of two peers only one is ahead");
    assert!(!wants_another_life(&mut world, B), "of the same time");
}

#[test]
fn another_life_begins_when_the_clock_is_set_and_nothing_has_happened_for_a_while() {
    let mut world = ahead();
    world.run(5_000);
    day(&mut world, B, NOW);
    let Birth::Ahead(by) = birth(&world, B) else {
        panic!("{:?}", birth(&world, B));
    };
    assert!(by.as_secs().abs_diff(u64::from(2 * DAY)) < 60, "{by:?}");
    assert!(!wants_another_life(&mut world, B));
    world.run(9_000);
    assert!(!wants_another_life(&mut world, B));
    // Something happens.
    world.crash(A);
    world.run(200);
    world.boot(A);
    world.run(5_000);
    assert!(!wants_another_life(&mut world, B));
    for _ in 0..11 {
        world.run(1_000);
        if wants_another_life(&mut world, B) {
            break;
        }
    }
    assert!(wants_another_life(&mut world, B));
    world.sides[B].ahead = 0;
    world.kill_agent(B);
    world.keep_quiet(B, godwit_core::MonoTime::ZERO);
    world.resume(B);
    world.run(5_000);
    assert_eq!(birth(&world, B), Birth::Near);
    let owner = *world.speakers().first().expect("somebody owns");
    assert!(world.is_in_sync(owner, 1 - owner));
}

/// Its agent was started long before, and the clock of the owner was set since.
#[test]
fn a_standby_whose_start_turns_out_to_be_ahead_leaves_the_set() {
    let mut world = ahead();
    // For a while the owner's clock is as wrong.
    day(&mut world, A, NOW + 2 * DAY);
    world.run(5_000);
    assert!(world.is_in_sync(A, B));
    world.kill_agent(A);
    world.forget_log();
    world.resume(A);
    world.run(3_000);
    let left = |news: &ShareNews| matches!(news, ShareNews::StandbyLeft { reason, .. } if *reason == LeaveReason::Unfit);
    assert_eq!(world.share_news(A, left).len(), 1);
    assert!(!world.is_in_sync(A, B));
    world.flow_event(A, 7, FlowEventKind::Ended);
}

/// Where most others seem to be ahead, it is this node's clock that is behind.
#[test]
fn a_clock_that_is_behind_condemns_nobody() {
    let mut world = World::dark(Fencing::Lease, 3);
    for side in [B, W] {
        world.sides[side].ahead = 2 * DAY;
    }
    for side in [A, B, W] {
        world.boot(side);
    }
    world.run(2_000);
    let node = world.sides[A].node.as_ref().expect("runs");
    assert!(node.is_behind());
    assert_eq!(node.peers_ahead().count(), 2);
    day(&mut world, A, NOW + 2 * DAY);
    let node = world.sides[A].node.as_ref().expect("runs");
    assert!(!node.is_behind(), "it has been set");
    world.run(5_000);
    assert_eq!(world.speakers().len(), 1);
    assert!(world.is_in_sync(A, B) || world.is_in_sync(B, A));
}

/// A clock that is set back by mistake makes nobody begin another life, of that time.
#[test]
fn a_clock_that_peers_contradict_condemns_nobody() {
    let mut world = World::dark(Fencing::Lease, 3);
    for side in [A, B, W] {
        world.sides[side].ahead = 10 * DAY;
        world.boot(side);
    }
    world.run(5_000);
    assert!(world.is_in_sync(A, B));
    for _ in 0..15 {
        for side in [A, B] {
            day(&mut world, side, NOW);
            assert_eq!(birth(&world, side), Birth::Near);
            assert!(!wants_another_life(&mut world, side));
            assert!(world.sides[side].node.as_ref().expect("runs").is_behind());
        }
        world.run(1_000);
    }
    assert!(world.is_in_sync(A, B));
}
