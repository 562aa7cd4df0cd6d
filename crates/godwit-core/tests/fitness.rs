//! Facts that are wrong on a node: who stands by, who hands over, and how that ends.

mod common;

use common::{A, B, World};
use godwit_core::fitness::{Consequence, FactId};
use godwit_core::node::ShareNews;
use godwit_core::share::State;
use godwit_core::{FlowCheck, MoveError};
use godwit_wire::{LeaveReason, MoveRefusal, Role};

/// A fact of the whole node `side`, wrong with that consequence or right.
fn fact(world: &mut World, side: usize, wrong: Option<Consequence>) {
    let name = "tcp_syncookies".to_owned();
    let id = FactId { name, share: None };
    world.input(side, |node, now| node.handle_fact(id, wrong, now));
}

fn left(world: &World, side: usize) -> Vec<LeaveReason> {
    let news = world.share_news(side, |news| matches!(news, ShareNews::StandbyLeft { .. }));
    let reason = |news| {
        if let ShareNews::StandbyLeft { reason, .. } = news {
            Some(reason)
        } else {
            None
        }
    };
    news.into_iter().filter_map(reason).collect()
}

/// What is wrong where, who owns a second later, and who is in sync with it.
#[test]
fn each_part_does_what_its_fitness_says() {
    let table = [
        (A, Consequence::Say, A, true),
        (B, Consequence::Say, A, true),
        // Where some clients are not reached the others still are.
        (A, Consequence::HandOver, B, true),
        (B, Consequence::HandOver, A, true),
        (A, Consequence::NoMoves, A, true),
        (B, Consequence::NoMoves, A, true),
        (A, Consequence::NoServer, A, true),
        (B, Consequence::NoServer, A, true),
        (A, Consequence::NoTwins, A, true),
        (B, Consequence::NoTwins, A, false),
        // The old owner does not stand by either.
        (A, Consequence::NoService, B, false),
        (B, Consequence::NoService, A, false),
    ];
    for (side, consequence, owner, in_sync) in table {
        let mut world = World::in_sync();
        world.forget_log();
        fact(&mut world, side, Some(consequence));
        world.run(1000);
        let case = format!("side {side}, {consequence:?}");
        assert_eq!(world.owners(), [owner], "{case}");
        assert_eq!(world.is_in_sync(owner, 1 - owner), in_sync, "{case}");
        assert_eq!(world.takeovers(owner), [], "{case}: nothing has failed");
        fact(&mut world, side, None);
        world.run(2500);
        assert_eq!(world.owners(), [owner], "{case}, and right again");
        assert!(
            world.is_in_sync(owner, 1 - owner),
            "{case}, and right again"
        );
    }
}

#[test]
fn an_unfit_standby_leaves_within_a_message_and_says_why() {
    let mut world = World::in_sync();
    world.forget_log();
    fact(&mut world, B, Some(Consequence::NoTwins));
    assert_eq!(
        world.sides[B].entry.role,
        Role::None,
        "its twins end silently"
    );
    world.run(3);
    assert_eq!(left(&world, A), [LeaveReason::Unfit]);
    assert!(world.sides[A].entry.generation.is_none());
    // A new link changes nothing about it.
    world.drop_link();
    world.run(3000);
    assert!(!world.is_in_sync(A, B));
    fact(&mut world, B, None);
    world.run(1200);
    assert!(world.is_in_sync(A, B));
}

/// It was ready to take the share over, and nobody says that it is not to.
#[test]
fn a_standby_leaves_after_a_move_that_was_called_off() {
    let mut world = World::in_sync();
    world.check.unprotected = 1;
    world.ask_move(A, false);
    world.run(100);
    assert_eq!(world.moves(A), [Err(MoveError::Unprotected { flows: 1 })]);
    world.forget_log();
    fact(&mut world, B, Some(Consequence::NoTwins));
    world.run(2000);
    assert_eq!(left(&world, A), [LeaveReason::Unfit]);
    assert!(!world.is_in_sync(A, B));
}

#[test]
fn a_node_that_was_never_fit_never_joins() {
    let mut world = World::booted();
    fact(&mut world, B, Some(Consequence::NoTwins));
    world.run(3000);
    assert_eq!(world.owners(), [A]);
    assert!(!world.is_in_sync(A, B));
    fact(&mut world, B, None);
    world.run(50);
    assert!(world.is_in_sync(A, B));
}

/// A poor owner is better than none.
#[test]
fn an_unfit_primary_begins_as_usual() {
    let mut world = World::booted();
    world.crash(B);
    fact(&mut world, A, Some(Consequence::NoService));
    world.run(4000);
    assert_eq!(world.owners(), [A]);
}

/// Its twins may be all that is left.
#[test]
fn an_unfit_standby_takes_over_from_an_owner_that_is_gone() {
    let mut world = World::in_sync();
    world.forget_log();
    world.drop_link();
    fact(&mut world, B, Some(Consequence::NoTwins));
    assert!(matches!(world.state(B), State::Shadow { .. }));
    world.crash(A);
    world.run(1000);
    assert_eq!(world.owners(), [B]);
    let [ShareNews::TakeoverStarted { generation, .. }] = world.takeovers(B)[..] else {
        panic!("{:?}", world.takeovers(B));
    };
    assert!(!generation.is_none(), "with its twins");
}

/// Its server is stopped, say: clients would be served by nobody, or some by nobody.
#[test]
fn who_does_not_serve_all_refuses_planned_moves_and_takes_over() {
    for consequence in [Consequence::NoMoves, Consequence::NoServer] {
        let mut world = World::in_sync();
        fact(&mut world, B, Some(consequence));
        world.ask_move(A, false);
        world.run(100);
        assert_eq!(
            world.moves(A),
            [Err(MoveError::Target(MoveRefusal::NoServer))]
        );
        assert!(world.is_in_sync(A, B));
        world.crash(A);
        world.run(1000);
        assert_eq!(world.owners(), [B]);
    }
}

/// Its machine lives, and its manager starts another: clients had better come again than
/// wait for a server that is stopped.
#[test]
fn what_a_server_dies_with_is_not_taken_over_where_nobody_is_served() {
    for (consequence, owner) in [
        (Consequence::NoMoves, B),
        (Consequence::NoServer, A),
        (Consequence::HandOver, B),
    ] {
        let mut world = World::in_sync();
        fact(&mut world, B, Some(consequence));
        world.run(2000);
        world.forget_log();
        world.server_exit(A, 3, true);
        world.run(10);
        assert_eq!(world.owners(), [owner], "{consequence:?}");
        let declined = ShareNews::TakeoverDeclined {
            reason: MoveRefusal::NoServer,
        };
        let said = world.share_news(B, |news| matches!(news, ShareNews::TakeoverDeclined { .. }));
        let no_taker = world.share_news(A, |news| *news == ShareNews::NoTaker);
        if owner == A {
            assert_eq!(said, [declined]);
            assert_eq!(no_taker.len(), 1, "clients see the end at once");
        } else {
            assert!(said.is_empty() && no_taker.is_empty());
        }
        world.listening(A, true);
        fact(&mut world, B, None);
        world.run(3000);
        assert_eq!(world.owners(), [owner], "{consequence:?}");
        assert!(world.is_in_sync(owner, 1 - owner), "{consequence:?}");
    }
}

/// The server is not started again where it died, and goes on where it was stopped.
#[test]
fn a_share_goes_to_a_server_that_goes_on() {
    let mut world = World::in_sync();
    fact(&mut world, B, Some(Consequence::NoServer));
    world.run(10_000);
    world.server_exit(A, 3, true);
    world.run(5000);
    assert_eq!(world.owners(), [A]);
    assert!(
        world.is_in_sync(A, B),
        "it stands by, for the machine may die"
    );
    fact(&mut world, B, None);
    world.run(31_000);
    assert_eq!(world.owners(), [B]);
}

/// Clients of both wait for the same, such as a router that both have lost.
#[test]
fn where_neither_reaches_all_clients_nothing_goes_to_and_fro() {
    let mut world = World::in_sync();
    fact(&mut world, B, Some(Consequence::HandOver));
    fact(&mut world, A, Some(Consequence::HandOver));
    world.run(20_000);
    assert_eq!(world.owners(), [A]);
    assert!(world.is_in_sync(A, B), "it may be all that is left");
    fact(&mut world, B, None);
    world.run(31_000);
    assert_eq!(world.owners(), [B]);
}

/// What can't move is not reset for it: the attempts get rarer.
#[test]
fn an_owner_that_can_not_hand_over_tries_again_with_growing_pauses() {
    let mut world = World::in_sync();
    world.check = FlowCheck {
        unprotected: 1,
        ..world.check
    };
    fact(&mut world, A, Some(Consequence::HandOver));
    world.run(10_000);
    assert_eq!(world.owners(), [A]);
    let refused = world.moves(A);
    let count = refused.len();
    assert!((3..=4).contains(&count), "0, 1, 3, 7 s: {count}");
    for outcome in refused {
        assert_eq!(outcome, Err(MoveError::Unprotected { flows: 1 }));
    }
    assert!(world.is_in_sync(A, B), "the standby stays");
    world.check.unprotected = 0;
    world.run(10_000);
    assert_eq!(world.owners(), [B]);
}

/// What can't move would keep every client from being served, while nobody serves it either.
#[test]
fn an_owner_that_serves_nobody_resets_at_last_what_can_not_move() {
    let mut world = World::in_sync();
    world.check.unprotected = 1;
    fact(&mut world, A, Some(Consequence::NoService));
    world.run(2900);
    assert_eq!(world.owners(), [A]);
    let refused = world.moves(A);
    assert_eq!(refused, [Err(MoveError::Unprotected { flows: 1 }); 2]);
    world.run(200);
    assert_eq!(world.owners(), [B]);
}

#[test]
fn where_both_are_unfit_nothing_goes_to_and_fro() {
    let mut world = World::in_sync();
    fact(&mut world, B, Some(Consequence::NoTwins));
    world.run(100);
    fact(&mut world, A, Some(Consequence::NoService));
    world.run(20_000);
    assert_eq!(world.owners(), [A]);
    assert_eq!(world.moves(A), []);
    let fitness = |world: &World, side: usize| {
        let node = world.sides[side].node.as_ref().expect("it runs");
        node.fitness(common::SHARE)
    };
    assert!(!fitness(&world, A).stays && !fitness(&world, A).stands_by);
    assert!(fitness(&world, B).stays && !fitness(&world, B).stands_by);
}

/// Each stay that ends costs connections their protection.
#[test]
fn a_fact_that_comes_and_goes_costs_one_stay_a_second_at_most() {
    let mut world = World::in_sync();
    world.forget_log();
    for _ in 0..150 {
        fact(&mut world, B, Some(Consequence::NoTwins));
        world.run(100);
        fact(&mut world, B, None);
        world.run(100);
    }
    let stays = left(&world, A).len();
    assert!(stays <= 30, "{stays} stays in 30 s");
}
