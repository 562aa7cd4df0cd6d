//! As `fenced_reorder`, without a fence: nobody votes, so nobody remembers who stood by for
//! whom. An agent that starts finds that on the link.

#[path = "fenced/mod.rs"]
mod fenced;
#[path = "fenced/reorder.rs"]
mod reorder;

use fenced::{A, B, W, World};
use godwit_core::Fencing;
use godwit_wire::Role;
use reorder::ORDERS;

/// More than an announced restart may take: who has no link to the next agent waits so long.
const RESTART_MS: u64 = 11_000;

fn ring() -> World {
    reorder::ring(Fencing::None)
}

#[test]
fn an_owner_keeps_its_share_and_the_new_first_backup_gets_in_sync() {
    reorder::takes_another_backup(Fencing::None);
}

/// From then on clients are told of what it lacks. It could not be told before there was a
/// link, and the owner's death in that time cost them bytes.
#[test]
fn who_was_in_sync_hears_that_it_is_not_before_more_is_let_out() {
    let mut world = ring();
    world.reload(A, W);
    let mut late = 0;
    for _ in 0..400 {
        let opened = world.sides[A].entry.generation.is_none();
        late += u32::from(opened && world.sides[B].entry.role == Role::Shadow);
        world.step();
    }
    assert!(world.sides[A].entry.generation.is_none(), "it has left");
    assert_eq!(world.sides[B].entry.role, Role::None);
    assert!(late <= 1, "its word takes half a millisecond: {late}");
}

/// The same where its link comes late: until then it goes on as before.
#[test]
fn a_standby_without_a_link_keeps_its_twins() {
    let mut world = ring();
    world.reload(A, W);
    for _ in 0..40 {
        world.drop_links(A);
        world.step();
    }
    assert!(!world.sides[A].entry.generation.is_none());
    assert_eq!(world.sides[B].entry.role, Role::Shadow);
    world.crash(A);
    world.run(RESTART_MS);
    assert_eq!(world.speakers(), [B], "it has all bytes");
}

/// The price of no fence: nodes whose files name other standbys do not listen to each other
/// (`scrutiny.rs`: a stranger's key is worth nothing). That ends with the last file.
#[test]
fn while_files_differ_an_owner_that_dies_may_have_two_heirs() {
    let mut world = ring();
    world.reload(A, W);
    world.reload(W, W);
    world.voices = 2;
    world.crash(A);
    world.run(200);
    assert_eq!(world.speakers(), [B, W]);
    world.run(5_000);
    assert_eq!(world.speakers(), [B, W], "for as long as the files differ");
    world.reload(B, W);
    world.voices = 1;
    world.run(5_000);
    assert_eq!(world.speakers(), [W]);
    world.boot(A);
    world.reload(A, W);
    world.run(5_000);
    assert!(world.is_in_sync(W, A));
}

/// With all files changed there is one, whenever the owner dies.
#[test]
fn the_owner_may_die_at_any_moment_behind_it() {
    for order in ORDERS {
        for phase in (0..300).step_by(7) {
            let mut world = ring();
            for side in order {
                world.reload(side, W);
            }
            world.run(phase);
            world.crash(A);
            world.run(RESTART_MS);
            assert_eq!(world.speakers(), [W], "{order:?} after {phase} ms");
        }
    }
}
