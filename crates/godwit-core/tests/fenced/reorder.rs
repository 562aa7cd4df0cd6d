//! What tests of a ring share whose backups are edited in another order.

use godwit_core::Fencing;
use godwit_core::node::ShareNews;
use godwit_core::share::State;

use super::fenced::{A, B, W, World};

/// In which nodes take their files.
pub(crate) const ORDERS: [[usize; 3]; 6] = [
    [A, B, W],
    [A, W, B],
    [B, A, W],
    [B, W, A],
    [W, A, B],
    [W, B, A],
];

/// Who stands by for whom is voted for, or without a fence found on the link.
pub(crate) fn ring(fencing: Fencing) -> World {
    let mut world = World::dark(fencing, 3);
    world.keeps = fencing != Fencing::None;
    world.finds = fencing == Fencing::None;
    for side in 0..3 {
        world.boot(side);
    }
    world.run(3_000);
    assert!(world.is_in_sync(A, B));
    world.forget_log();
    world
}

fn loses_its_part(news: &ShareNews) -> bool {
    let ShareNews::RoleChanged { prev, state, .. } = news else {
        return false;
    };
    *prev == State::Owner && *state != State::Quitting
}

pub(crate) fn begins_anew(news: &ShareNews) -> bool {
    let ShareNews::RoleChanged { prev, state, .. } = news else {
        return false;
    };
    *state == State::Owner && !matches!(prev, State::Shadow { .. } | State::Owner)
}

/// The owner keeps its share, the new first backup gets in sync with it, and goes on when it
/// dies, in whatever order and how quickly nodes take their files.
pub(crate) fn takes_another_backup(fencing: Fencing) {
    for order in ORDERS {
        for gap in [0, 1, 4, 10, 40, 300, 2_000] {
            let what = format!("{order:?}, {gap} ms apart");
            let mut world = ring(fencing);
            let epoch = world.sides[A].entry.epoch;
            for side in order {
                world.reload(side, W);
                world.run(gap);
            }
            world.run(5_000);
            assert_eq!(world.speakers(), [A], "{what}");
            assert_eq!(world.sides[A].entry.epoch, epoch, "{what}");
            assert_eq!(world.share_news(A, loses_its_part), [], "{what}");
            assert!(world.is_in_sync(A, W), "{what}: {:?}", world.sides[W].entry);
            world.crash(A);
            world.run(1_000);
            assert_eq!(world.speakers(), [W], "{what}");
            assert_eq!(world.share_news(W, begins_anew), [], "{what}");
        }
    }
}
