//! Agents that are killed, and what they have voted for is not lost with them.

#[path = "fenced/mod.rs"]
mod fenced;

use fenced::{A, B, SHARE, W, World};
use godwit_core::Fencing;
use godwit_core::node::ShareNews;
use godwit_core::share::Reason;
use godwit_wire::Epoch;

fn keeping(fencing: Fencing, nodes: usize) -> World {
    let mut world = World::dark(fencing, nodes);
    world.keeps = true;
    for side in 0..nodes {
        world.boot(side);
    }
    world.run(3_000);
    assert!(world.is_in_sync(A, B));
    world.forget_log();
    world
}

fn epoch(world: &World, side: usize) -> Epoch {
    let node = world.sides[side].node.as_ref().expect("runs");
    let share = node.share_status().find(|share| share.id == SHARE);
    share.expect("it has one").epoch
}

/// The agents of `killed` die at one time, and run again after so many milliseconds.
fn kill(world: &mut World, killed: &[usize], ms: u64) {
    for side in killed {
        world.kill_agent(*side);
    }
    world.run(ms);
    for side in killed {
        world.resume(*side);
    }
}

#[test]
fn agents_that_are_killed_together_cost_a_pause_and_no_connection() {
    for killed in [&[B, W][..], &[A, W], &[A, B], &[A, B, W]] {
        for ms in [1, 20, 100, 900] {
            let mut world = keeping(Fencing::Lease, 3);
            kill(&mut world, killed, ms);
            world.run(400);
            // Whoever asks first; the other one has twins of all.
            let owner = *world.speakers().first().expect("somebody speaks");
            let anew = |news: &ShareNews| {
                let ShareNews::RoleChanged { reason, .. } = news else {
                    return false;
                };
                matches!(reason, Reason::ColdStart)
            };
            for side in [A, B] {
                assert_eq!(world.share_news(side, anew), [], "{killed:?} for {ms} ms");
            }
            world.run(3_000);
            assert_eq!(world.speakers(), [owner], "{killed:?} for {ms} ms");
            assert!(world.is_in_sync(owner, 1 - owner), "{killed:?} for {ms} ms");
        }
    }
}

/// One that had forgotten keeps quiet for a while, in which nobody would be elected.
#[test]
fn a_standby_whose_agent_was_killed_can_be_elected_at_once() {
    let mut world = keeping(Fencing::Lease, 3);
    kill(&mut world, &[B], 20);
    for _ in 0..3_000 {
        if world.is_in_sync(A, B) {
            break;
        }
        world.step();
    }
    assert!(world.is_in_sync(A, B));
    world.crash(A);
    world.run(200);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
}

#[test]
fn with_stonith_killed_agents_go_on_as_well() {
    let mut world = keeping(Fencing::Stonith, 3);
    let before = epoch(&world, A);
    kill(&mut world, &[A, B, W], 20);
    world.run(3_000);
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    assert_eq!(epoch(&world, A), before);
}
