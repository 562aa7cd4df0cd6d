//! Nodes whose files differ in `fencing`, as they do while it is changed on one after the other.
//!
//! At no time two may speak: [`World::step`] looks.

#[path = "fenced/mod.rs"]
mod fenced;

use fenced::{A, B, File, SHARE, W, World};
use godwit_core::node::ShareNews;
use godwit_core::share::State;
use godwit_core::{Command, Fencing};

const ORDERS: [[usize; 3]; 6] = [
    [A, B, W],
    [A, W, B],
    [B, A, W],
    [B, W, A],
    [W, A, B],
    [W, B, A],
];

/// `a` owns and `b` is in sync, by files that are alike.
fn running(file: Option<File>) -> World {
    let mut world = World::dark(Fencing::Lease, 3);
    world.keeps = true;
    for side in [A, B, W] {
        world.sides[side].file = file;
        world.boot(side);
    }
    world.run(3_000);
    assert!(world.is_in_sync(A, B));
    world.forget_log();
    world
}

/// As [`running`] with leases, and then the owner takes a file without, and its last lease ends.
fn owner_first() -> World {
    let mut world = running(None);
    world.take_file(A, Some(File::Unfenced));
    world.run(1_000);
    assert_goes_on(&world, "the owner has another file");
    world
}

/// Who begins to own without twins, or gives up what it has.
fn loses(news: &ShareNews) -> bool {
    let ShareNews::RoleChanged { prev, state, .. } = news else {
        return false;
    };
    let has = |state: State| matches!(state, State::Shadow { .. } | State::Owner);
    match state {
        State::Owner => !has(*prev),
        State::Starting { .. } | State::Standby { .. } => *prev == State::Owner,
        State::Shadow { .. } | State::Quitting => false,
    }
}

/// `a` owns as it did, and nobody has lost anything.
fn assert_goes_on(world: &World, what: &str) {
    for side in [A, B] {
        assert_eq!(world.share_news(side, loses), [], "{what}");
    }
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 0), "{what}");
    assert!(world.is_in_sync(A, B), "{what}");
}

#[test]
fn a_fence_comes_and_goes_in_any_order() {
    for (before, after) in [(None, Some(File::Unfenced)), (Some(File::Unfenced), None)] {
        for order in ORDERS {
            for ms in [30, 1_000] {
                let mut world = running(before);
                for side in order {
                    world.take_file(side, after);
                    world.run(ms);
                }
                world.run(2_000);
                let what = format!("from {before:?} to {after:?}, {order:?}, {ms} ms apart");
                assert_goes_on(&world, &what);
            }
        }
    }
}

/// The last lease that voters have is over for long then. They do not know of the stay that
/// began since.
#[test]
fn a_standby_that_joined_an_owner_without_a_fence_anew_takes_over_when_that_one_dies() {
    let mut world = owner_first();
    let before = world.sides[B].entry.generation;
    world.sides[B].stopped = true;
    world.run(60);
    world.sides[B].stopped = false;
    world.run(2_000);
    assert_goes_on(&world, "the standby was stopped");
    assert!(before < world.sides[B].entry.generation, "it joined anew");
    world.crash(A);
    world.run(400);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    assert_eq!(world.share_news(B, loses), []);
}

/// It finds a lease that is over, and hears the witness first.
#[test]
fn a_standby_that_is_started_anew_hears_the_owner_before_it_stands() {
    let mut world = owner_first();
    world.kill_agent(B);
    world.run(20);
    world.resume(B);
    world.cuts.extend([(A, B), (B, A)]);
    world.run(100);
    world.cuts.clear();
    world.run(2_000);
    assert_goes_on(&world, "the standby was killed");
}

/// Its own file lets the owner speak whatever the others hear.
#[test]
fn an_owner_without_a_fence_is_not_taken_over_while_the_witness_hears_it() {
    let mut world = owner_first();
    world.cuts.extend([(A, B), (B, A)]);
    world.run(2_000);
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    world.cuts.clear();
    world.run(2_000);
    assert_goes_on(&world, "the link between the servers was cut");
}

#[test]
fn an_owner_without_a_fence_can_hand_over() {
    let mut world = owner_first();
    let to = fenced::name(B);
    world.input(A, |node, now| {
        let command = Command::Move {
            share: SHARE,
            to,
            force: false,
        };
        node.handle_command(command, now);
    });
    world.run(2_000);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    assert_eq!(world.share_news(B, loses), []);
    assert!(world.is_in_sync(B, A));
}

/// Its file says something else about other matters: it proposes leases, so their end counts.
#[test]
fn an_owner_with_leases_is_followed_whatever_else_its_file_says() {
    let mut world = running(None);
    world.take_file(A, Some(File::Reworded));
    world.run(1_000);
    assert_goes_on(&world, "the owner has another file");
    world.cuts.extend([(B, A), (W, A)]);
    world.run(1_000);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
}
