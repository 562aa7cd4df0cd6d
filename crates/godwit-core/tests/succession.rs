//! A standby in sync whom nobody could elect: it is said, and it is true.

#[path = "fenced/mod.rs"]
mod fenced;

use fenced::{A, B, W, World};
use godwit_core::Fencing;
use godwit_core::node::ShareNews;

fn is_doubtful(world: &World, owner: usize) -> bool {
    let node = world.sides[owner].node.as_ref().expect("runs");
    node.share_status().next().expect("one share").no_quorum
}

fn told(world: &World, owner: usize) -> Vec<ShareNews> {
    world.share_news(owner, |news| {
        matches!(news, ShareNews::NoQuorum | ShareNews::QuorumBack)
    })
}

#[test]
fn a_cluster_that_starts_says_nothing_of_it() {
    for (fencing, nodes) in [(Fencing::Lease, 3), (Fencing::Stonith, 2)] {
        let mut world = World::booted(fencing, nodes);
        world.run(3_000);
        assert!(world.is_in_sync(A, B));
        assert!(!is_doubtful(&world, A), "{fencing:?}");
        assert_eq!(told(&world, A), [], "{fencing:?}");
    }
}

/// It is in sync long before it votes.
#[test]
fn a_standby_whose_agent_was_restarted_can_not_be_elected_for_a_while() {
    for dies_early in [true, false] {
        let mut world = World::in_sync(Fencing::Lease, 3);
        world.kill_agent(B);
        world.resume(B);
        for _ in 0..3_000 {
            if world.is_in_sync(A, B) && is_doubtful(&world, A) {
                break;
            }
            world.step();
        }
        assert!(world.is_in_sync(A, B) && is_doubtful(&world, A));
        if dies_early {
            world.crash(A);
            world.run(200);
            assert!(world.speakers().is_empty(), "true enough");
            continue;
        }
        world.run(500);
        assert!(!is_doubtful(&world, A));
        world.crash(A);
        world.run(100);
        assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    }
}

#[test]
fn a_witness_that_is_gone_or_was_restarted_is_missed() {
    let mut world = World::in_sync(Fencing::Lease, 3);
    world.crash(W);
    world.run(500);
    assert!(!is_doubtful(&world, A), "answers may be lost");
    world.run(700);
    assert!(is_doubtful(&world, A) && world.is_in_sync(A, B));
    assert_eq!(told(&world, A), [ShareNews::NoQuorum]);
    assert!(!is_doubtful(&world, B), "it is the owner's to know");
    // Its host was not dark for as long as its agent says nothing.
    world.boot(W);
    world.run(3_000);
    assert!(!is_doubtful(&world, A));
    let both = [ShareNews::NoQuorum, ShareNews::QuorumBack];
    assert_eq!(told(&world, A), both);
    // One that is back before it was missed says itself that it does not vote.
    world.kill_agent(W);
    world.boot(W);
    world.run(200);
    assert!(is_doubtful(&world, A));
    world.run(500);
    assert!(!is_doubtful(&world, A));
}

/// Whoever has lost the share has no standby to be doubtful about.
#[test]
fn an_owner_that_was_replaced_says_nothing_any_more() {
    let mut world = World::in_sync(Fencing::Lease, 3);
    world.cuts.extend([(W, A), (A, W)]);
    world.run(1_500);
    assert!(is_doubtful(&world, A));
    world.cuts.clear();
    world.isolate(A);
    world.run(200);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    world.cuts.clear();
    world.run(3_000);
    assert!(world.is_in_sync(B, A));
    assert!(!is_doubtful(&world, A) && !is_doubtful(&world, B));
}

/// Of two, the standby alone decides.
#[test]
fn with_stonith_a_restarted_standby_is_missed_too() {
    let mut world = World::in_sync(Fencing::Stonith, 2);
    world.kill_agent(B);
    world.resume(B);
    world.run(150);
    assert!(is_doubtful(&world, A));
    world.run(1_000);
    assert!(world.is_in_sync(A, B) && !is_doubtful(&world, A));
}
