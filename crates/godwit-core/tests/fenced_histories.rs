//! Random histories of whole nodes with leases, and those that found something:
//! the invariants hold at every step, and all is well when nothing fails any more.

#[path = "fenced/mod.rs"]
mod fenced;
#[path = "histories/mod.rs"]
mod histories;

use fenced::{A, B, SHARE, W, World};
use godwit_core::{Command, Fencing, FlowEventKind};
use godwit_wire::GoodbyeReason;
use histories::histories;
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
enum Op {
    Crash(usize),
    Boot(usize),
    KillAgent(usize),
    Resume(usize),
    Goodbye(usize, GoodbyeReason),
    Prepare(usize),
    Release(usize),
    Cut(usize, usize),
    Mend,
    Stop(usize, bool),
    DropLinks(usize),
    Loss(u64),
    Flow(usize, u16, FlowEventKind),
    ServerExit(usize, bool),
    Listening(usize),
}

fn apply(world: &mut World, op: Op) {
    let nodes = world.sides.len();
    let restart = GoodbyeReason::Restart;
    match op {
        Op::Crash(side) => world.crash(side % nodes),
        Op::Boot(side) => world.boot(side % nodes),
        Op::KillAgent(side) => world.kill_agent(side % nodes),
        Op::Resume(side) => {
            if world.sides[side % nodes].node.is_none() {
                world.resume(side % nodes);
            }
        }
        Op::Goodbye(side, reason) => {
            if !world.sides[side % nodes].stopped {
                world.goodbye(side % nodes, reason);
            }
        }
        Op::Prepare(side) => world.input(side % nodes, |node, now| {
            node.handle_command(Command::Prepare(restart), now);
        }),
        Op::Release(side) => world.input(side % nodes, |node, now| {
            node.handle_command(Command::Release(SHARE), now);
        }),
        Op::Cut(from, to) => {
            world.cuts.insert((from % nodes, to % nodes));
        }
        Op::Mend => world.cuts.clear(),
        Op::Stop(side, stop) => world.sides[side % nodes].stopped = stop,
        Op::DropLinks(side) => world.drop_links(side % nodes),
        Op::Loss(percent) => world.loss = percent,
        Op::Flow(side, port, kind) => world.flow_event(side % nodes, port, kind),
        Op::ServerExit(side, listener) => world.server_exit(side % nodes, listener),
        Op::Listening(side) => world.input(side % nodes, |node, now| {
            node.handle_listening(SHARE, true, now);
        }),
    }
}

fn op() -> impl Strategy<Value = Op> {
    use FlowEventKind::{Ended, NotConfirmed, Stalled, TwinClosed, Unconfirmed};
    let side = || 0..3_usize;
    let kind =
        proptest::sample::select(vec![Unconfirmed, NotConfirmed, Stalled, TwinClosed, Ended]);
    let reason = prop_oneof![Just(GoodbyeReason::Restart), Just(GoodbyeReason::Shutdown)];
    prop_oneof![
        1 => side().prop_map(Op::Crash),
        2 => side().prop_map(Op::Boot),
        1 => side().prop_map(Op::KillAgent),
        1 => side().prop_map(Op::Resume),
        1 => (side(), reason).prop_map(|(side, reason)| Op::Goodbye(side, reason)),
        1 => side().prop_map(Op::Prepare),
        1 => side().prop_map(Op::Release),
        3 => (side(), side()).prop_map(|(from, to)| Op::Cut(from, to)),
        2 => Just(Op::Mend),
        2 => (side(), any::<bool>()).prop_map(|(side, stop)| Op::Stop(side, stop)),
        1 => side().prop_map(Op::DropLinks),
        1 => (0..40_u64).prop_map(Op::Loss),
        2 => (side(), any::<bool>()).prop_map(|(side, lost)| Op::ServerExit(side, lost)),
        1 => side().prop_map(Op::Listening),
        2 => (side(), 1..5_u16, kind).prop_map(|(side, port, kind)| Op::Flow(side, port, kind)),
    ]
}

/// Everything works again: one owner, the other server in sync.
fn check_recovered(world: &mut World) {
    world.cuts.clear();
    world.loss = 0;
    for side in 0..world.sides.len() {
        world.sides[side].stopped = false;
        if world.sides[side].node.is_none() {
            world.boot(side);
        }
        apply(world, Op::Listening(side));
    }
    let mut stable = 0;
    for _ in 0..16_000 {
        world.run(1);
        // Powered off by a command that was under way.
        for side in 0..world.sides.len() {
            if world.sides[side].node.is_none() {
                world.boot(side);
            }
        }
        let whole = match world.speakers()[..] {
            [owner] => world.is_in_sync(owner, 1 - owner),
            _ => false,
        };
        stable = if whole { stable + 1 } else { 0 };
        if stable == 1_000 {
            return;
        }
    }
    panic!("{:?}", [world.state(A), world.state(B)]);
}

/// Its acceptor knew the owner's lease as given back, then promised itself one
/// round after the other, so that it never heard of the lease that went on.
#[test]
fn a_standby_that_missed_that_its_owner_goes_on_sees_it_again() {
    let mut world = World::booted(Fencing::Stonith, 3);
    world.run(76);
    world.sides[B].stopped = true;
    world.run(1);
    apply(&mut world, Op::Release(A));
    world.run(120);
    world.crash(W);
    check_recovered(&mut world);
}

/// The same, with an acceptor that had restarted and knew nothing.
#[test]
fn a_standby_that_knows_of_no_lease_believes_an_owner_that_it_hears() {
    let mut world = World::booted(Fencing::Stonith, 2);
    world.run(13);
    world.server_exit(A, true);
    world.run(2);
    world.boot(A);
    world.run(246);
    world.sides[B].stopped = true;
    world.run(29);
    check_recovered(&mut world);
}

fn history() -> impl Strategy<Value = Vec<(Op, u64)>> {
    proptest::collection::vec((op(), 0..120_u64), 1..40)
}

proptest! {
    #![proptest_config(histories(24))]

    #[test]
    fn any_history_with_leases_keeps_the_invariants_and_recovers(
        history in history(),
        keeps in any::<bool>(),
    ) {
        let mut world = World::booted(Fencing::Lease, 3);
        world.keeps = keeps;
        for (op, ms) in history {
            apply(&mut world, op);
            world.run(ms);
        }
        check_recovered(&mut world);
    }

    #[test]
    fn any_history_with_stonith_and_a_witness_keeps_the_invariants(
        history in history(),
        keeps in any::<bool>(),
    ) {
        let mut world = World::booted(Fencing::Stonith, 3);
        world.keeps = keeps;
        for (op, ms) in history {
            apply(&mut world, op);
            world.run(ms);
        }
        check_recovered(&mut world);
    }

    #[test]
    fn any_history_with_stonith_keeps_the_invariants_and_recovers(
        history in history(),
        keeps in any::<bool>(),
    ) {
        let mut world = World::booted(Fencing::Stonith, 2);
        world.keeps = keeps;
        for (op, ms) in history {
            apply(&mut world, op);
            world.run(ms);
        }
        check_recovered(&mut world);
    }
}
