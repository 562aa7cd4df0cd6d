//! The list of backups is edited in another order while the share is at home: in a ring of
//! three another node is to stand by. Each node takes its file in order.

#[path = "fenced/mod.rs"]
mod fenced;
#[path = "fenced/reorder.rs"]
mod reorder;

use fenced::{A, B, SHARE, W, World, name};
use godwit_core::node::ShareNews;
use godwit_core::{Command, Fencing};
use godwit_wire::Role;
use reorder::begins_anew;

fn ring() -> World {
    reorder::ring(Fencing::Lease)
}

#[test]
fn an_owner_keeps_its_share_and_the_new_first_backup_gets_in_sync() {
    reorder::takes_another_backup(Fencing::Lease);
}

/// Whom the owner takes for its standby before the first word of it is the one that has its
/// twins: with another one in the set, clients would wait for answers of nobody.
#[test]
fn who_was_in_sync_leaves_the_set_before_another_one_joins_it() {
    let mut world = ring();
    world.reload(A, W);
    let left = |news: &ShareNews| matches!(news, ShareNews::StandbyLeft { .. });
    for _ in 0..40 {
        assert!(!world.is_in_sync(A, W), "it has no twins");
        world.step();
    }
    let [ShareNews::StandbyLeft { peer, .. }] = world.share_news(A, left)[..] else {
        panic!("{:?}", world.share_news(A, left));
    };
    assert_eq!(peer, name(B));
    assert!(world.sides[A].entry.generation.is_none());
    world.run(100);
    assert_eq!(
        world.sides[B].entry.role,
        Role::None,
        "its twins have ended"
    );
}

/// The word that it has left is lost with a link: it hears it when it says what it has.
#[test]
fn who_was_in_sync_hears_that_it_is_not_any_more() {
    let mut world = ring();
    world.cuts.insert((A, B));
    world.reload(A, W);
    for _ in 0..100 {
        if world.sides[A].entry.generation.is_none() {
            break;
        }
        world.step();
    }
    assert!(world.sides[A].entry.generation.is_none(), "it has left");
    assert_eq!(world.sides[B].entry.role, Role::Shadow, "and does not know");
    world.cuts.clear();
    world.run(300);
    assert_eq!(world.sides[B].entry.role, Role::None);
    assert_eq!(world.speakers(), [A]);
}

/// The owner dies at any moment of it: whoever has its twins goes on, and in the end somebody
/// serves.
#[test]
fn the_owner_may_die_at_any_moment_of_it() {
    for order in [[A, B, W], [W, A, B], [B, W, A]] {
        for phase in (0..400).step_by(9) {
            let mut world = ring();
            let since = world.elapsed();
            for side in order {
                if world.elapsed() - since < phase {
                    world.reload(side, W);
                }
            }
            world.run(phase.saturating_sub(world.elapsed() - since));
            let standby = [B, W].into_iter().find(|it| world.is_in_sync(A, *it));
            world.crash(A);
            for side in order {
                if world.sides[side].backup != W && side != A {
                    world.reload(side, W);
                }
            }
            world.run(6_000);
            let what = format!("{order:?} after {phase} ms, {standby:?} was in sync");
            let speakers = world.speakers();
            assert_eq!(speakers.len(), 1, "{what}");
            if standby == Some(W) {
                assert_eq!(world.share_news(W, begins_anew), [], "{what}");
            }
        }
    }
}

/// The share is handed to the new first backup at any moment: as soon as that can be, and
/// never in vain.
#[test]
fn the_share_may_be_handed_over_at_any_moment_of_it() {
    for order in [[A, B, W], [W, A, B], [B, W, A]] {
        for phase in (0..200).step_by(7) {
            let mut world = ring();
            for side in order {
                world.reload(side, W);
            }
            world.run(phase);
            let to = name(W);
            let (share, force) = (SHARE, false);
            world.input(A, |node, now| {
                node.handle_command(Command::Move { share, to, force }, now);
            });
            world.run(5_000);
            let what = format!("{order:?} after {phase} ms");
            let [owner] = world.speakers()[..] else {
                panic!("{what}: {:?}", world.speakers());
            };
            assert!(world.is_in_sync(owner, A + W - owner), "{what}");
            for side in [A, W] {
                assert_eq!(world.share_news(side, begins_anew), [], "{what}");
            }
        }
    }
}
