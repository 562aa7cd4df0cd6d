//! Crashes, cuts and restarts at any time and in any order.
//!
//! The harness asserts after each action what must always hold: no two owners
//! under one epoch, generations that only grow, gates that open only for flows
//! that nobody else will serve. The tests here drive it through many histories
//! and check that the pair recovers once the faults are over.

mod common;
#[path = "histories/mod.rs"]
mod histories;

use common::{A, B, World};
use godwit_core::FlowEventKind;
use godwit_wire::GoodbyeReason;
use histories::histories;
use proptest::prelude::*;

/// Long enough for every deadline: announced restart, cold start, rejoin.
const RECOVERY_MS: u64 = 16_000;

/// How long it must then stay so.
const STABLE_MS: u64 = 1_500;

/// Everything works again: one owner, the other one in sync.
fn check_recovered(world: &mut World) {
    world.cable = true;
    world.beats_pass = [true; 2];
    for side in [A, B] {
        world.sides[side].stopped = false;
        if world.sides[side].node.is_none() {
            world.boot(side);
        }
        world.listening(side, true);
    }
    let mut stable = 0;
    for _ in 0..RECOVERY_MS {
        world.step();
        stable = if is_whole(world) { stable + 1 } else { 0 };
        if stable == STABLE_MS {
            return;
        }
    }
    panic!(
        "owners {:?}, {:?} {:?}",
        world.owners(),
        world.sides[A].entry,
        world.sides[B].entry
    );
}

fn is_whole(world: &World) -> bool {
    match world.owners()[..] {
        [owner] => world.is_in_sync(owner, 1 - owner),
        _ => false,
    }
}

#[test]
fn either_machine_may_go_dark_during_start_up() {
    for side in [A, B] {
        for step in (0..120).step_by(2) {
            let mut world = World::booted();
            world.run(step);
            world.crash(side);
            world.run(4000);
            assert_eq!(world.owners(), [1 - side], "{side} went dark at {step} ms");
            assert!(world.takeovers(1 - side).len() <= 1);
            check_recovered(&mut world);
            assert_eq!(world.owners(), [1 - side], "failback is manual");
        }
    }
}

#[test]
fn the_next_owner_may_go_dark_during_a_takeover() {
    for step in (0..120).step_by(2) {
        let mut world = World::in_sync();
        world.crash(A);
        world.run(step);
        world.boot(A);
        world.run(step);
        world.crash(B);
        check_recovered(&mut world);
    }
}

#[test]
fn the_network_may_be_cut_at_any_time() {
    for step in (0..60).step_by(3) {
        for length in [1, 7, 25, 33, 60, 500] {
            let mut world = World::booted();
            world.run(step);
            world.cable = false;
            world.run(length);
            world.cable = true;
            world.run(200);
            assert!(
                world.owners().len() <= 1,
                "cut at {step} ms for {length} ms"
            );
            check_recovered(&mut world);
        }
    }
}

#[test]
fn heartbeats_may_be_lost_in_one_direction() {
    for side in [A, B] {
        let mut world = World::in_sync();
        world.beats_pass[side] = false;
        world.run(5000);
        assert_eq!(world.owners().len(), 1, "the link still tells who owns");
        check_recovered(&mut world);
    }
}

#[test]
fn a_twin_may_close_while_its_owner_has_just_handed_over() {
    for between in 0..12 {
        let mut world = World::booted();
        world.run(12);
        world.crash(A);
        world.boot(A);
        world.run(11);
        world.ask_move(B, false);
        world.run(between);
        world.flow_event(B, 1, FlowEventKind::TwinClosed);
        check_recovered(&mut world);
        assert_eq!(world.owners(), [A], "moved after {between} ms");
    }
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Crash(usize),
    Boot(usize),
    KillAgent(usize),
    Resume(usize),
    Goodbye(usize, GoodbyeReason),
    Cable(bool),
    Beats(usize, bool),
    Stop(usize, bool),
    DropLink,
    Flow(usize, u16, FlowEventKind),
    ServerExit(usize, u32, bool),
    Listening(usize, bool),
    Move(usize, bool, u32),
}

fn apply(world: &mut World, op: Op) {
    match op {
        Op::Crash(side) => world.crash(side),
        Op::Boot(side) => {
            world.crash(side);
            world.boot(side);
        }
        Op::KillAgent(side) => world.kill_agent(side),
        Op::Resume(side) => {
            if world.sides[side].node.is_none() {
                world.resume(side);
            }
        }
        Op::Goodbye(side, reason) => {
            if !world.sides[side].stopped {
                world.goodbye(side, reason);
            }
        }
        Op::Cable(works) => world.cable = works,
        Op::Beats(side, pass) => world.beats_pass[side] = pass,
        Op::Stop(side, stop) => world.sides[side].stopped = stop,
        Op::DropLink => world.drop_link(),
        Op::Flow(side, port, kind) => world.flow_event(side, port, kind),
        Op::ServerExit(side, kept, listener_lost) => world.server_exit(side, kept, listener_lost),
        Op::Listening(side, listening) => world.listening(side, listening),
        Op::Move(side, force, unprotected) => {
            world.check.unprotected = unprotected;
            world.ask_move(side, force);
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    use FlowEventKind::{Confirmed, Ended, NotConfirmed, Stalled, TwinClosed, Unconfirmed};
    let side = || prop_oneof![Just(A), Just(B)];
    let kind = prop_oneof![
        Just(Unconfirmed),
        Just(NotConfirmed),
        Just(Stalled),
        Just(TwinClosed),
        Just(Ended),
        Just(Confirmed),
    ];
    let reason = prop_oneof![Just(GoodbyeReason::Restart), Just(GoodbyeReason::Shutdown)];
    prop_oneof![
        1 => side().prop_map(Op::Crash),
        1 => side().prop_map(Op::Boot),
        1 => side().prop_map(Op::KillAgent),
        1 => side().prop_map(Op::Resume),
        1 => (side(), reason).prop_map(|(side, reason)| Op::Goodbye(side, reason)),
        1 => any::<bool>().prop_map(Op::Cable),
        1 => (side(), any::<bool>()).prop_map(|(side, pass)| Op::Beats(side, pass)),
        1 => (side(), any::<bool>()).prop_map(|(side, stop)| Op::Stop(side, stop)),
        1 => Just(Op::DropLink),
        1 => (side(), 0..3u32, any::<bool>())
            .prop_map(|(side, kept, lost)| Op::ServerExit(side, kept, lost)),
        1 => (side(), any::<bool>()).prop_map(|(side, listens)| Op::Listening(side, listens)),
        3 => (side(), any::<bool>(), 0..2u32)
            .prop_map(|(side, force, lost)| Op::Move(side, force, lost)),
        4 => (side(), 1..5u16, kind).prop_map(|(side, port, kind)| Op::Flow(side, port, kind)),
    ]
}

proptest! {
    #![proptest_config(histories(64))]

    #[test]
    fn any_history_keeps_the_invariants_and_recovers(
        history in proptest::collection::vec((op(), 0..80u64), 1..40),
    ) {
        let mut world = World::booted();
        for (op, ms) in history {
            apply(&mut world, op);
            world.run(ms);
        }
        check_recovered(&mut world);
    }
}
