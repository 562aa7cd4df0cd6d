//! A share that is new to the cluster and comes into the files of nodes one after the other:
//! it goes to its primary when that has it, although it does not go back there by itself.

#[path = "fenced/mod.rs"]
mod fenced;

use fenced::{A, B, SHARE, W, World, name};
use godwit_core::node::MoveAction;
use godwit_core::node::ShareNews;
use godwit_core::{Action, Command, Fencing, FlowCheck, MoveCause, MoveError};

/// `b` has it in its file, and has begun; `a` runs and has not.
fn begun(fencing: Fencing, nodes: usize) -> World {
    let mut world = World::without(fencing, nodes);
    // A majority of the voters has to know it.
    for side in (0..nodes).rev().filter(|side| *side != A) {
        world.add(side);
    }
    world.run(4_000);
    assert_eq!(world.speakers(), [B]);
    world.forget_log();
    world
}

/// Why the owner has asked for moves.
fn causes(world: &World, side: usize) -> Vec<MoveCause> {
    let asked = world.sides[side].actions.iter();
    let causes = asked.filter_map(|action| {
        let Action::Move(_, MoveAction::Ask { wish }) = action else {
            return None;
        };
        Some(wish.cause)
    });
    causes.collect()
}

fn moves(world: &World, side: usize) -> Vec<ShareNews> {
    world.share_news(side, |news| matches!(news, ShareNews::Moved { .. }))
}

fn refusals(world: &World, side: usize) -> usize {
    world
        .share_news(side, |news| matches!(news, ShareNews::MoveRefused { .. }))
        .len()
}

#[test]
fn a_share_goes_to_its_primary_as_soon_as_that_has_it_too() {
    for (fencing, nodes) in [(Fencing::Lease, 3), (Fencing::None, 2)] {
        let mut world = begun(fencing, nodes);
        world.run(2_000);
        assert_eq!(causes(&world, B), [], "nobody else has it");
        world.add(A);
        world.run(500);
        assert_eq!(world.speakers(), [A], "{fencing:?}");
        assert!(world.is_in_sync(A, B), "{fencing:?}: a move, so both are");
        assert_eq!(causes(&world, B), [MoveCause::FirstHome]);
        assert_eq!(moves(&world, B), [ShareNews::Moved { to: name(A) }]);
        assert_eq!(refusals(&world, B), 0);
    }
}

/// Its file is changed again meanwhile: the next life in the same process knows.
#[test]
fn the_owner_may_take_another_file_before_that() {
    let mut world = begun(Fencing::Lease, 3);
    for _ in 0..2 {
        world.reload(B, B);
        world.run(300);
    }
    assert_eq!(world.speakers(), [B]);
    world.add(A);
    world.run(500);
    assert!(world.is_in_sync(A, B));
    assert_eq!(refusals(&world, B), 0);
}

#[test]
fn a_move_that_connections_are_in_the_way_of_is_tried_again_with_growing_pauses() {
    let mut world = begun(Fencing::Lease, 3);
    world.flow_check.unprotected = 1;
    world.add(A);
    world.run(16_000);
    assert_eq!(world.speakers(), [B]);
    let error = MoveError::Unprotected { flows: 1 };
    let said = world.share_news(B, |news| matches!(news, ShareNews::MoveRefused { .. }));
    assert_eq!(
        said,
        [ShareNews::MoveRefused { error }; 5],
        "0, 1, 3, 7, 15 s"
    );
    // The owner's agent begins another life meanwhile.
    world.reload(B, B);
    world.flow_check = FlowCheck::default();
    world.run(2_500);
    assert!(world.is_in_sync(A, B));
}

/// From then on it has had a home.
#[test]
fn it_goes_there_once() {
    let mut world = begun(Fencing::Lease, 3);
    world.add(A);
    world.run(500);
    assert!(world.is_in_sync(A, B));
    world.crash(A);
    world.run(500);
    assert_eq!(world.speakers(), [B]);
    world.forget_log();
    world.boot(A);
    world.run(20_000);
    assert!(world.is_in_sync(B, A), "a takeover is another matter");
    assert_eq!(causes(&world, B), []);
}

/// Who moves a share wants it where it goes.
#[test]
fn what_somebody_has_moved_stays() {
    let mut world = begun(Fencing::Lease, 3);
    world.flow_check.unprotected = 1;
    world.add(A);
    world.run(500);
    world.flow_check = FlowCheck::default();
    let moved = |world: &mut World, from: usize, to: usize| {
        let (share, to, force) = (SHARE, name(to), false);
        world.input(from, |node, now| {
            node.handle_command(Command::Move { share, to, force }, now);
        });
        world.run(400);
    };
    moved(&mut world, B, A);
    assert!(world.is_in_sync(A, B));
    moved(&mut world, A, B);
    assert!(world.is_in_sync(B, A));
    world.forget_log();
    world.run(10_000);
    assert!(world.is_in_sync(B, A));
    assert_eq!(causes(&world, B), []);
}

/// Nobody knows whether a primary that is not heard has it: it may have failed.
#[test]
fn a_share_that_began_while_its_primary_was_not_heard_stays() {
    let mut world = World::dark(Fencing::Lease, 3);
    world.boot(B);
    world.boot(W);
    world.run(4_000);
    assert_eq!(world.speakers(), [B]);
    world.boot(A);
    world.run(10_000);
    assert!(world.is_in_sync(B, A));
    assert_eq!(causes(&world, B), []);
}
