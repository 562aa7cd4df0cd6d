//! Planned moves of a share that is owned by a lease: handed over with it, one
//! voice at every step, and whoever is left goes on with every connection.

#[path = "fenced/mod.rs"]
mod fenced;

use fenced::{A, B, SHARE, W, World, name};
use godwit_core::{Action, Command, EndReason, Fencing, ShareAction};
use proptest::prelude::*;

fn ask(world: &mut World, side: usize) {
    let (to, force) = (name(1 - side), false);
    world.input(side, |node, now| {
        let share = SHARE;
        node.handle_command(Command::Move { share, to, force }, now);
    });
}

fn lost_sockets(world: &World, side: usize) -> bool {
    let lost = |action: &Action| {
        matches!(
            action,
            Action::Share(
                _,
                ShareAction::EndFlows {
                    reason: EndReason::Superseded | EndReason::NotInSync
                }
            )
        )
    };
    world.sides[side].actions.iter().any(lost)
}

/// Steps until somebody speaks again, half milliseconds.
fn silence(world: &mut World) -> u64 {
    let mut steps = 0;
    while world.speakers().is_empty() {
        world.step();
        steps += 1;
        assert!(steps < 4000, "nobody speaks");
    }
    steps
}

#[test]
fn a_lease_is_handed_over_with_the_share() {
    for (fencing, nodes) in [
        (Fencing::Lease, 3),
        (Fencing::Stonith, 2),
        (Fencing::Stonith, 3),
    ] {
        let mut world = World::in_sync(fencing, nodes);
        let generation = world.sides[A].entry.generation;
        let mut owner = A;
        for turn in 0..20 {
            world.forget_log();
            ask(&mut world, owner);
            while world.speakers() == [owner] {
                world.step();
            }
            let silent = silence(&mut world);
            assert!(
                silent <= 10,
                "{fencing:?} {turn}: {silent} half milliseconds"
            );
            assert_eq!(
                world.speakers(),
                [1 - owner],
                "{fencing:?} {turn} {:?} {:?} {:?}",
                world.sides[A].events,
                world.sides[B].events,
                world.local_actions(owner)
            );
            world.run(10);
            owner = 1 - owner;
            assert!(world.is_in_sync(owner, 1 - owner), "{fencing:?} {turn}");
            assert_eq!(world.sides[owner].entry.generation, generation);
            assert!(!lost_sockets(&world, A) && !lost_sockets(&world, B));
        }
        world.run(3000);
        assert_eq!(world.speakers(), [owner], "and so it stays");
    }
}

#[test]
fn either_node_may_go_dark_at_every_step() {
    for dies in [A, B] {
        for step in 0..30 {
            let mut world = World::in_sync(Fencing::Lease, 3);
            ask(&mut world, A);
            for _ in 0..step {
                world.step();
            }
            world.forget_log();
            world.crash(dies);
            for _ in 0..600 {
                world.step();
                assert!(world.speakers().len() <= 1, "{dies} dies at step {step}");
            }
            let survivor = 1 - dies;
            assert_eq!(world.speakers(), [survivor], "{dies} dies at step {step}");
            assert!(
                !lost_sockets(&world, survivor),
                "{dies} dies at step {step}"
            );
        }
    }
}

/// Without the witness the two are still a majority, as long as both live.
#[test]
fn the_witness_may_be_gone() {
    let mut world = World::in_sync(Fencing::Lease, 3);
    world.crash(W);
    world.run(100);
    ask(&mut world, A);
    world.run(20);
    assert_eq!(world.speakers(), [B]);
    assert!(world.is_in_sync(B, A));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Datagrams are lost, links break, and one of the servers dies somewhere.
    #[test]
    fn moves_over_a_bad_network_keep_the_invariants(
        loss in 0..40_u64,
        moves in proptest::collection::vec((0..2_usize, 0..60_u64, any::<bool>()), 1..12),
        dies in proptest::option::of((0..2_usize, 0..40_u64)),
    ) {
        let mut world = World::in_sync(Fencing::Lease, 3);
        world.loss = loss;
        for (side, steps, drops) in moves {
            ask(&mut world, side);
            for _ in 0..steps {
                world.step();
                prop_assert!(world.speakers().len() <= 1);
            }
            if drops {
                world.drop_links(side);
            }
        }
        if let Some((side, steps)) = dies {
            ask(&mut world, A);
            ask(&mut world, B);
            for _ in 0..steps {
                world.step();
                prop_assert!(world.speakers().len() <= 1);
            }
            world.crash(side);
        }
        world.loss = 0;
        for _ in 0..12_000 {
            world.step();
            prop_assert!(world.speakers().len() <= 1);
        }
        prop_assert_eq!(world.speakers().len(), 1);
    }
}
