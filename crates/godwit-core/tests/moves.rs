//! Planned moves of a share between two nodes without a fence: who may speak at
//! every step, whatever fails there.

mod common;

use common::{A, B, World, name};
use godwit_core::share::{Reason, State};
use godwit_core::{Action, EndReason, FlowCheck, MoveAction, MoveError, ShareAction};
use godwit_wire::{MoveRefusal, Role};

/// Recognises an action.
type Is = fn(&Action) -> bool;

/// Whether sockets of a side were ended that a connection may live in.
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

/// There and back again, many times: one owner after the other, and the other
/// one is its standby at once, with the same flows.
#[test]
fn owner_and_standby_change_places() {
    let mut world = World::in_sync();
    let generation = world.sides[A].entry.generation;
    let mut owner = A;
    for turn in 0..20 {
        world.forget_log();
        let epoch = world.sides[owner].entry.epoch;
        world.ask_move(owner, false);
        for _ in 0..8 {
            world.step();
            assert!(world.owners().len() <= 1, "one voice, turn {turn}");
        }
        let (from, to) = (owner, 1 - owner);
        assert!(world.is_in_sync(to, from), "turn {turn}");
        assert!(world.sides[to].entry.epoch > epoch);
        assert_eq!(world.sides[to].entry.generation, generation);
        assert_eq!(world.moves(from), [Ok(name(to))]);
        for side in [A, B] {
            assert!(!lost_sockets(&world, side), "no socket is ended");
            assert_eq!(world.takeovers(side), [], "it is no takeover");
        }
        owner = to;
    }
    world.run(3000);
    assert_eq!(world.owners(), [owner], "and so it stays");
    assert!(world.is_in_sync(owner, 1 - owner));
}

/// The old owner falls silent, then it says so; the new one speaks after that,
/// and the addresses are announced before its twins go on.
#[test]
fn every_step_is_in_its_place() {
    let mut world = World::in_sync();
    world.forget_log();
    world.ask_move(A, true);
    world.run(10);
    let order = |side: usize| {
        let step = |action: &Action| {
            if let Action::Share(_, ShareAction::Set { role, .. }) = action {
                return Some(role.as_str());
            }
            let steps: [(&str, Is); 5] = [
                ("check", |a| {
                    matches!(a, Action::Move(_, MoveAction::CheckFlows { .. }))
                }),
                ("reset", |a| {
                    matches!(a, Action::Move(_, MoveAction::ResetUnprotected))
                }),
                ("hand over", |a| {
                    matches!(a, Action::Move(_, MoveAction::HandOver))
                }),
                ("announce", |a| {
                    matches!(a, Action::Share(_, ShareAction::Announce))
                }),
                ("resume", |a| {
                    matches!(a, Action::Move(_, MoveAction::Resume))
                }),
            ];
            let found = steps.iter().find(|(_, is)| is(action));
            found.map(|(name, _)| *name)
        };
        let steps = world.sides[side].actions.iter().filter_map(step);
        steps.collect::<Vec<_>>()
    };
    assert_eq!(order(A)[..4], ["check", "reset", "shadow", "hand over"]);
    assert_eq!(order(B)[..3], ["owner", "announce", "resume"]);
}

/// Whoever dies at whichever step: the other one has the share in the end, and
/// it has kept its sockets if it held whole twins.
#[test]
fn either_node_may_go_dark_at_every_step() {
    for dies in [A, B] {
        for step in 0..12 {
            let mut world = World::in_sync();
            world.forget_log();
            world.ask_move(A, false);
            world.run(step);
            world.crash(dies);
            for _ in 0..500 {
                world.step();
                assert!(world.owners().len() <= 1, "{dies} dies at {step} ms");
            }
            let survivor = 1 - dies;
            assert_eq!(world.owners(), [survivor], "{dies} dies at {step} ms");
            assert!(!lost_sockets(&world, survivor), "{dies} dies at {step} ms");
        }
    }
}

/// Before the release only the owner may resume, after it only the target.
#[test]
fn a_cut_at_every_step_leaves_one_to_go_on() {
    for step in 0..12 {
        for length in [1, 3, 8, 20] {
            let mut world = World::in_sync();
            world.forget_log();
            world.ask_move(A, false);
            world.run(step);
            world.cable = false;
            for _ in 0..length {
                world.step();
                assert!(world.owners().len() <= 1, "cut at {step} for {length} ms");
            }
            world.cable = true;
            world.run(600);
            let [owner] = world.owners()[..] else {
                panic!("{:?}: cut at {step} for {length} ms", world.owners());
            };
            assert!(!lost_sockets(&world, owner), "cut at {step} for {length}");
            assert_eq!(world.moves(A).len(), 1, "whoever asked is told");
        }
    }
}

/// The link is lost with all that was under way on it; heartbeats still pass.
/// The claim is in them, so the move goes on.
#[test]
fn a_lost_link_does_not_stop_a_move_that_was_let_go() {
    for step in 0..12 {
        let mut world = World::in_sync();
        world.forget_log();
        world.ask_move(A, false);
        world.run(step);
        let released = world.sides[A].entry.role == Role::Shadow;
        world.drop_link();
        world.run(1000);
        let owner = if released { B } else { A };
        assert_eq!(world.owners(), [owner], "at {step} ms");
        assert!(world.is_in_sync(owner, 1 - owner), "at {step} ms");
    }
}

/// An agent that is killed and comes back goes on where its maps are.
#[test]
fn an_agent_may_be_killed_at_every_step() {
    for dies in [A, B] {
        for step in 0..8 {
            let mut world = World::in_sync();
            world.ask_move(A, false);
            world.run(step);
            world.kill_agent(dies);
            world.run(3);
            world.resume(dies);
            world.run(6000);
            let [owner] = world.owners()[..] else {
                panic!("{:?}: {dies} at {step} ms", world.owners());
            };
            assert!(world.is_in_sync(owner, 1 - owner), "{dies} at {step} ms");
        }
    }
}

#[test]
fn a_move_that_would_lose_flows_is_refused_unless_it_is_forced() {
    let lost = FlowCheck {
        unprotected: 2,
        ..FlowCheck::default()
    };
    let slow = FlowCheck {
        confirming: 3,
        ..FlowCheck::default()
    };
    for (check, flows) in [(lost, 2), (slow, 3)] {
        let mut world = World::in_sync();
        world.check = check;
        world.ask_move(A, false);
        world.run(1000);
        assert_eq!(world.moves(A), [Err(MoveError::Unprotected { flows })]);
        assert!(world.is_in_sync(A, B));
        world.ask_move(A, true);
        world.run(1000);
        assert_eq!(world.moves(A)[1..], [Ok(name(B))]);
        assert!(world.is_in_sync(B, A));
    }
}

/// An address is in one place: what shares it stays, too, even if it is forced.
#[test]
fn a_share_stays_with_its_mates() {
    for force in [false, true] {
        let mut world = World::in_sync();
        world.check.mate_stays = true;
        world.ask_move(A, force);
        world.run(1000);
        assert_eq!(world.moves(A), [Err(MoveError::Mate)]);
        assert!(world.is_in_sync(A, B));
    }
}

/// Flows that are about to be protected are waited for.
#[test]
fn a_move_waits_for_new_flows() {
    let mut world = World::in_sync();
    world.check.confirming = 1;
    world.ask_move(A, false);
    world.run(50);
    assert_eq!(world.owners(), [A]);
    world.check.confirming = 0;
    world.run(20);
    assert_eq!(world.moves(A), [Ok(name(B))]);
}

#[test]
fn every_refusal_has_its_reason() {
    let refused = |prepare: &dyn Fn(&mut World), side: usize| {
        let mut world = World::in_sync();
        prepare(&mut world);
        world.forget_log();
        world.ask_move(side, true);
        world.run(700);
        let moves = world.moves(side);
        moves.first().copied().expect("an answer").unwrap_err()
    };
    let nothing = |_: &mut World| {};
    let a = Some(name(A));
    assert_eq!(refused(&nothing, B), MoveError::NotOwner { owner: a });
    let no_server = |world: &mut World| {
        world.listening(B, false);
        world.run(5);
    };
    assert_eq!(refused(&no_server, A), MoveError::NotInSync);
    let down = |world: &mut World| {
        world.crash(B);
        world.run(200);
    };
    assert_eq!(refused(&down, A), MoveError::TargetDown);
    let silent = |world: &mut World| world.sides[B].stopped = true;
    let reason = refused(&silent, A);
    assert!(
        [MoveError::NotInSync, MoveError::TargetDown].contains(&reason),
        "{reason:?}: its heartbeats stop before it is given up"
    );
    let died = |world: &mut World| world.server_exit(B, 0, false);
    assert_eq!(
        refused(&died, A),
        MoveError::Target(MoveRefusal::ServerDied)
    );
    let twice = |world: &mut World| {
        world.check.confirming = 1;
        world.ask_move(A, false);
        world.run(5);
    };
    assert_eq!(refused(&twice, A), MoveError::AlreadyMoving);
}

/// The target's server dies when the owner has let go already: the target says
/// that it will not, and the owner takes the share back.
#[test]
fn a_target_that_can_not_after_all_gives_it_back() {
    let mut world = World::in_sync();
    world.forget_log();
    world.ask_move(A, false);
    while world.sides[A].entry.role == Role::Owner {
        world.step();
    }
    world.server_exit(B, 0, true);
    world.run(50);
    assert_eq!(world.owners(), [A]);
    assert!(!lost_sockets(&world, A));
    assert_eq!(world.moves(A), [Err(MoveError::Interrupted)]);
    assert_eq!(world.state(A), State::Owner);
    let [taken] = &world.takeovers(A)[..] else {
        panic!("{:?}", world.takeovers(A));
    };
    let text = format!("{taken:?}");
    assert!(text.contains(&format!("{:?}", Reason::MovedBack)), "{text}");
}
