//! What is cut from what, and who serves then: each row of `docs/partitions.md`
//! is a row here. That nobody speaks beside another one is asserted at every
//! step by the harness.

#[path = "fenced/mod.rs"]
mod fenced;

use fenced::{A, B, SHARE, W, World};
use godwit_core::node::ShareNews;
use godwit_core::{Command, Fencing};

/// One row: what is cut, what follows, what is so when it has been mended.
struct Row {
    /// As in the table.
    name: &'static str,
    /// Nothing gets through from the first to the second.
    cuts: &'static [(usize, usize)],
    /// Who speaks while it is cut, after a second.
    speaks: Option<usize>,
    /// Whether the other server is in sync meanwhile.
    protected: bool,
    /// How often connections were taken over in the end.
    moved: Moved,
    /// Whether b can have the witness promise itself rounds that it never wins:
    /// if the owner gives up or lapses too, nobody serves until it is mended.
    trap: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Never,
    /// While it was cut.
    Once,
    /// When it was mended, if the standby asked the voters first.
    AtMostOnce,
}

const BOTH_WAYS_AB: &[(usize, usize)] = &[(A, B), (B, A)];

const ROWS: &[Row] = &[
    Row {
        name: "a and b, both ways",
        cuts: BOTH_WAYS_AB,
        speaks: Some(A),
        protected: false,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "b does not hear a",
        cuts: &[(A, B)],
        speaks: Some(A),
        protected: true,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "a does not hear b",
        cuts: &[(B, A)],
        speaks: Some(A),
        protected: false,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "a and the witness",
        cuts: &[(A, W), (W, A)],
        speaks: Some(A),
        protected: true,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "the witness does not hear a",
        cuts: &[(A, W)],
        speaks: Some(A),
        protected: true,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "a does not hear the witness",
        cuts: &[(W, A)],
        speaks: Some(A),
        protected: true,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "b and the witness",
        cuts: &[(B, W), (W, B)],
        speaks: Some(A),
        protected: true,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "the witness does not hear b",
        cuts: &[(B, W)],
        speaks: Some(A),
        protected: true,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "b does not hear the witness",
        cuts: &[(W, B)],
        speaks: Some(A),
        protected: true,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "the witness from all",
        cuts: &[(A, W), (W, A), (B, W), (W, B)],
        speaks: Some(A),
        protected: true,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "a from all",
        cuts: &[(A, B), (B, A), (A, W), (W, A)],
        speaks: Some(B),
        protected: false,
        moved: Moved::Once,
        trap: false,
    },
    Row {
        name: "nobody hears a",
        cuts: &[(A, B), (A, W)],
        speaks: Some(B),
        protected: false,
        moved: Moved::Once,
        trap: false,
    },
    Row {
        name: "a hears nobody",
        cuts: &[(B, A), (W, A)],
        speaks: Some(B),
        protected: false,
        moved: Moved::Once,
        trap: false,
    },
    Row {
        name: "b from all",
        cuts: &[(A, B), (B, A), (B, W), (W, B)],
        speaks: Some(A),
        protected: false,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "nobody hears b",
        cuts: &[(B, A), (B, W)],
        speaks: Some(A),
        protected: false,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "b hears nobody",
        cuts: &[(A, B), (W, B)],
        speaks: Some(A),
        protected: true,
        moved: Moved::Never,
        trap: false,
    },
    Row {
        name: "a does not hear b, nor b the witness",
        cuts: &[(B, A), (W, B)],
        speaks: Some(A),
        protected: false,
        moved: Moved::Never,
        trap: true,
    },
    Row {
        name: "all from all",
        cuts: &[(A, B), (B, A), (A, W), (W, A), (B, W), (W, B)],
        speaks: None,
        protected: false,
        moved: Moved::AtMostOnce,
        trap: false,
    },
];

fn cut(row: &Row) -> World {
    let mut world = World::in_sync(Fencing::Lease, 3);
    world.cuts.extend(row.cuts);
    world.run(1_000);
    world
}

#[test]
fn with_leases_and_a_witness_each_row_is_as_the_table_says() {
    for row in ROWS {
        let mut world = cut(row);
        let name = row.name;
        assert_eq!(world.speakers().first().copied(), row.speaks, "{name}");
        let protected = row
            .speaks
            .is_some_and(|owner| world.is_in_sync(owner, 1 - owner));
        assert_eq!(protected, row.protected, "{name}");
        let least = u32::from(row.moved == Moved::Once);
        assert_eq!(world.takeovers, least, "{name}");
        world.cuts.clear();
        world.run(3_000);
        let most = u32::from(row.moved != Moved::Never);
        assert!((least..=most).contains(&world.takeovers), "{name}, mended");
        // Of its connections none is lost, whoever has them now.
        let owner = if world.takeovers == 1 { B } else { A };
        assert_eq!(world.speakers(), [owner], "{name}, mended");
        assert!(world.is_in_sync(owner, 1 - owner), "{name}, mended");
    }
}

/// A row is no trap: what would be a takeover without the cut is one with it, if
/// a majority is left that knows who is in sync.
#[test]
fn a_dark_owner_is_followed_in_every_row_that_leaves_a_majority() {
    for row in ROWS.iter().filter(|row| row.speaks == Some(A)) {
        let mut world = cut(row);
        let majority = !world.cuts.contains(&(B, W)) && !world.cuts.contains(&(W, B));
        world.crash(A);
        world.run(1_000);
        // Whoever begins anew waits for three seconds for those who need not.
        let owner = world.speakers().first().copied();
        if !majority {
            assert_eq!(owner, None, "{}", row.name);
        } else if row.protected {
            assert_eq!((owner, world.takeovers), (Some(B), 1), "{}", row.name);
        } else {
            world.run(4_000);
            let now = (world.speakers(), world.takeovers);
            assert_eq!(now, (vec![B], 0), "{}: without the bytes", row.name);
        }
    }
}

/// Links that come and go, each time for long enough to be noticed: whoever owns
/// keeps its lease, or is followed once; nothing goes to and fro.
#[test]
fn a_flapping_link_moves_nothing_to_and_fro() {
    for (one, two) in [(A, B), (A, W), (B, W)] {
        for half in [40, 100, 700] {
            let mut world = World::in_sync(Fencing::Lease, 3);
            for _ in 0..20 {
                world.cuts.extend([(one, two), (two, one)]);
                world.run(half);
                world.cuts.clear();
                world.run(half);
                assert_eq!(world.speakers(), [A], "{one} {two} {half}");
            }
            assert_eq!(world.takeovers, 0, "{one} {two} {half}");
            world.run(2_000);
            assert!(world.is_in_sync(A, B), "{one} {two} {half}");
        }
    }
}

fn damped(flap_limit: u32) -> World {
    let mut world = World::dark(Fencing::Lease, 3);
    world.flap_limit = flap_limit;
    for side in [A, B, W] {
        world.boot(side);
    }
    world.run(3_000);
    assert!(world.is_in_sync(A, B));
    world
}

fn holds(world: &World, side: usize) -> Vec<u64> {
    let news = world.share_news(side, |news| {
        matches!(news, ShareNews::StandbyHeldOff { .. })
    });
    let mut holds = Vec::new();
    for news in news {
        if let ShareNews::StandbyHeldOff { hold, .. } = news {
            holds.push(hold.as_secs());
        }
    }
    holds
}

#[test]
fn a_standby_that_comes_and_goes_is_held_off_for_longer_each_time() {
    let mut world = damped(3);
    let flap = |world: &mut World| {
        world.cuts.extend(BOTH_WAYS_AB);
        world.run(100);
        world.cuts.clear();
        world.run(1_400);
    };
    for round in 0..2 {
        flap(&mut world);
        assert!(world.is_in_sync(A, B), "{round}");
    }
    for (round, hold) in [5, 10, 20].into_iter().enumerate() {
        flap(&mut world);
        assert_eq!(holds(&world, A).get(round), Some(&hold));
        world.run((hold - 2) * 1_000);
        assert!(!world.is_in_sync(A, B), "{hold} s");
        world.run(1_000);
        assert!(world.is_in_sync(A, B), "{hold} s");
        assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    }
    // A quiet minute, and all is forgotten.
    world.run(60_000);
    flap(&mut world);
    assert!(world.is_in_sync(A, B));
    assert_eq!(holds(&world, A).len(), 3);
}

/// Whoever owns is cut off, again and again: connections move three times, then
/// stay where they are, and the share is served whenever it can be.
#[test]
fn a_share_does_not_go_to_and_fro_for_ever() {
    let mut world = damped(3);
    for round in 0..8 {
        let owner = world.speakers()[0];
        world.isolate(owner);
        world.run(300);
        world.cuts.clear();
        world.run(1_500);
        assert_eq!(world.speakers().len(), 1, "{round}");
        assert!(world.takeovers <= 3, "{round}");
    }
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 3));
    assert!(!holds(&world, B).is_empty());
    world.run(62_000);
    assert!(world.is_in_sync(B, A), "when it has been quiet");
    world.crash(B);
    world.run(100);
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 4));
}

/// Servers that crash move the share as often as they like: nothing is lost.
#[test]
fn server_processes_that_die_are_not_counted() {
    let mut world = damped(2);
    for round in 0..6 {
        let owner = world.speakers()[0];
        world.server_exit(owner, true);
        world.run(50);
        assert_eq!(world.speakers(), [1 - owner], "{round}");
        world.input(owner, |node, now| node.handle_listening(SHARE, true, now));
        world.run(2_000);
        assert!(world.is_in_sync(1 - owner, owner), "{round}");
    }
    assert!(holds(&world, A).is_empty() && holds(&world, B).is_empty());
}

/// The standby is lost and comes back, with its memory or without.
#[test]
fn a_standby_that_returns_is_in_sync_again() {
    let mut world = World::in_sync(Fencing::Lease, 3);
    let left = |news: &ShareNews| matches!(news, ShareNews::StandbyLeft { .. });
    for (round, resume) in [true, false].into_iter().enumerate() {
        world.kill_agent(B);
        world.run(200);
        assert_eq!(world.share_news(A, left).len(), round + 1);
        assert_eq!(world.speakers(), [A]);
        if resume {
            world.resume(B);
        } else {
            world.boot(B);
        }
        world.run(3_000);
        assert!(world.is_in_sync(A, B));
        assert_eq!(world.speakers(), [A]);
    }
    world.crash(A);
    world.run(100);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
}

/// Two servers with stonith: of two that don't hear each other, in whatever way,
/// one is off in the end, and the other one serves.
#[test]
fn with_stonith_whoever_is_not_heard_is_powered_off() {
    for cuts in [BOTH_WAYS_AB, &[(A, B)], &[(B, A)]] {
        let mut world = World::in_sync(Fencing::Stonith, 2);
        world.cuts.extend(cuts);
        world.run(1_500);
        let alive: Vec<_> = [A, B]
            .into_iter()
            .filter(|side| world.sides[*side].node.is_some())
            .collect();
        assert_eq!(world.speakers(), alive, "{cuts:?}");
        assert_eq!(alive.len(), 1, "{cuts:?}");
        let dead = 1 - alive[0];
        world.cuts.clear();
        world.boot(dead);
        world.run(3_000);
        assert!(world.is_in_sync(alive[0], dead), "{cuts:?}");
    }
}

/// A share that its owner gives up is taken over or taken back, also where the
/// standby can ask voters and does not hear their answers.
#[test]
fn a_share_that_is_given_back_is_served_by_somebody_in_every_row() {
    for row in ROWS.iter().filter(|row| row.speaks == Some(A)) {
        let mut world = cut(row);
        world.input(A, |node, now| {
            node.handle_command(Command::Release(SHARE), now);
        });
        world.run(6_000);
        let served = usize::from(!row.trap);
        assert_eq!(world.speakers().len(), served, "{}", row.name);
        world.cuts.clear();
        world.run(6_000);
        assert_eq!(world.speakers().len(), 1, "{}, mended", row.name);
        let owner = world.speakers()[0];
        assert!(world.is_in_sync(owner, 1 - owner), "{}, mended", row.name);
    }
}
