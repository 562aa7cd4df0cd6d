//! Agents that are killed, and what they have voted for is not lost with them.

#[path = "fenced/mod.rs"]
mod fenced;

use fenced::{A, B, SHARE, W, World};
use godwit_core::Fencing;
use godwit_core::node::ShareNews;
use godwit_core::share::{Reason, State};
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

/// Who begins to own without the twins of whoever owned before.
fn begins_anew(news: &ShareNews) -> bool {
    let ShareNews::RoleChanged { prev, state, .. } = news else {
        return false;
    };
    *state == State::Owner && !matches!(prev, State::Shadow { .. } | State::Owner)
}

/// A ring of three, seen from one of its shares: `a` owns it, `b` has its twins, `w` votes.
/// An agent is killed and started again 200 ms later, and then the next one, at whatever
/// phase of what the others do about it.
///
/// What goes wrong else: `a` is killed, and `b` takes over with the vote of `w`. `a` is back
/// and `b` is killed; `b` is back and `w` is killed. Now `b` owns, and of the two that answer
/// `a` knows of nothing later than its own lease. `w` will, 200 ms later.
#[test]
fn agents_that_are_killed_one_after_the_other_cost_no_connection() {
    let orders = [
        [A, B, W],
        [A, W, B],
        [B, A, W],
        [B, W, A],
        [W, A, B],
        [W, B, A],
    ];
    for order in orders {
        for (ms, phases) in [(100, 0..40), (200, 0..120), (500, 0..40)] {
            for phase in phases.step_by(3) {
                let what = format!("{order:?} for {ms} ms, {phase} ms apart");
                let mut world = keeping(Fencing::Lease, 3);
                for side in order {
                    kill(&mut world, &[side], ms);
                    world.run(phase);
                }
                world.run(2_500);
                for side in [A, B] {
                    assert_eq!(world.share_news(side, begins_anew), [], "{what}");
                }
                let [owner] = world.speakers()[..] else {
                    panic!("{what}: {:?}", world.speakers());
                };
                assert!(world.is_in_sync(owner, 1 - owner), "{what}");
            }
        }
    }
}
