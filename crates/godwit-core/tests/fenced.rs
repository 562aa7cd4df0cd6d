//! Whole nodes with leases through failures: one voice, nobody without the
//! bytes, and in which order the data path is asked.

#[path = "fenced/mod.rs"]
mod fenced;

use std::time::Duration;

use fenced::{A, B, SHARE, W, World};
use godwit_core::node::ShareNews;
use godwit_core::share::{Reason, State};
use godwit_core::{
    Action, Command, EndReason, Fencing, FlowEventKind, Power, ShareAction, StonithFault,
};
use godwit_wire::{Generation, GoodbyeReason, Role};

fn lease() -> World {
    World::in_sync(Fencing::Lease, 3)
}

#[test]
fn the_primary_is_granted_the_share_and_the_backup_gets_in_sync() {
    let mut world = World::booted(Fencing::Lease, 3);
    world.run(100);
    assert_eq!(world.speakers(), [A], "well before the grace is over");
    assert!(world.is_in_sync(A, B));
    assert_eq!(world.takeovers, 0);
    world.run(10_000);
    assert_eq!(world.speakers(), [A]);
    let lapses = world.share_news(A, |news| matches!(news, ShareNews::LeaseLapsed));
    assert!(lapses.is_empty());
}

/// All want the share before the voters may vote, and the primary is not the first to hear
/// that they may.
#[test]
fn the_primary_is_granted_the_share_after_a_silence_of_the_voters() {
    // Half milliseconds one way; four ways are less than half a lease.
    for delay in 1..=13 {
        for (fencing, nodes) in [(Fencing::Lease, 3), (Fencing::Stonith, 2)] {
            let mut world = World::dark(fencing, nodes);
            world.delay = delay;
            for side in 0..nodes {
                let until = world.now(side).saturating_add(Duration::from_secs(4));
                world.keep_quiet(side, until);
                world.boot(side);
            }
            world.run(8_000);
            assert_eq!(world.speakers(), [A], "{fencing:?}, {delay}");
        }
    }
}

#[test]
fn the_data_path_is_told_of_each_renewal_and_of_its_residence() {
    let mut world = lease();
    world.run(200);
    let renewals = world.sides[A].actions.iter();
    let renewals =
        renewals.filter(|action| matches!(action, Action::Share(_, ShareAction::SetExpiry { .. })));
    assert!(renewals.count() >= 19);
    let expiry = world.sides[A].entry.expiry.expect("a lease that ends");
    let left = expiry.since(world.now(A)).as_millis();
    assert!((40..58).contains(&left), "{left} ms");
}

#[test]
fn a_dark_owner_is_taken_over_when_its_lease_ends() {
    for start in 0..20 {
        let mut world = lease();
        world.run(start);
        world.crash(A);
        let mut dark = 0;
        while world.speakers().is_empty() {
            world.run(1);
            dark += 1;
        }
        assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
        assert!((45..=66).contains(&dark), "{dark} ms");
        let started = |news: &ShareNews| matches!(news, ShareNews::TakeoverStarted { .. });
        let [ShareNews::TakeoverStarted { reason, .. }] = world.share_news(B, started)[..] else {
            panic!("one takeover");
        };
        assert_eq!(reason, Reason::OwnerFailed);
    }
}

#[test]
fn a_takeover_writes_the_map_then_announces_then_revives() {
    let mut world = lease();
    world.crash(A);
    world.run(70);
    let actions = world.local_actions(B);
    let [
        Action::Share(
            _,
            ShareAction::Set {
                role: Role::Owner,
                generation: Generation::NONE,
                expiry: Some(_),
                ..
            },
        ),
        Action::Share(_, ShareAction::Announce),
        Action::Share(_, ShareAction::Revive { attempt: 0 }),
        ..,
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
}

#[test]
fn a_dark_standby_leaves_when_a_majority_knows() {
    let mut world = lease();
    world.crash(B);
    world.run(45);
    let actions = world.local_actions(A);
    let [
        Action::Share(
            _,
            ShareAction::Set {
                role: Role::Owner,
                generation: Generation::NONE,
                expiry: Some(_),
                ..
            },
        ),
        Action::Share(
            SHARE,
            ShareAction::ReleaseGate {
                generation: Generation(1),
            },
        ),
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
}

#[test]
fn gates_stay_shut_while_no_majority_knows() {
    let mut world = lease();
    world.isolate(A);
    world.flow_event(A, 1, FlowEventKind::Stalled);
    world.run(40);
    assert_eq!(world.local_actions(A), [], "the standby may take over");
    world.run(2_000);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    world.cuts.clear();
    world.run(2_000);
    assert!(world.is_in_sync(B, A));
    let actions = world.local_actions(A);
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::Share(_, ShareAction::ReleaseGate { .. })))
    );
}

#[test]
fn whoever_lost_the_share_ends_its_sockets_in_silence_and_stands_by() {
    let mut world = lease();
    world.isolate(A);
    world.run(300);
    assert_eq!(world.state(A), State::Owner, "nobody has told it");
    assert_eq!(world.local_actions(A), [], "and it hopes");
    world.cuts.clear();
    world.run(20);
    let actions = world.local_actions(A);
    let [
        Action::Share(
            _,
            ShareAction::Set {
                role: Role::None, ..
            },
        ),
        Action::Share(
            _,
            ShareAction::EndFlows {
                reason: EndReason::Superseded,
            },
        ),
        ..,
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
    world.run(1_000);
    assert!(world.is_in_sync(B, A));
}

#[test]
fn an_owner_that_nobody_replaced_goes_on() {
    let mut world = lease();
    world.isolate(A);
    world.isolate(B);
    world.run(500);
    assert!(world.speakers().is_empty());
    let epoch = world.sides[A].entry.epoch;
    // The standby stays away, so that the owner can only go on.
    world.cuts.retain(|(from, to)| *from == B || *to == B);
    world.run(30);
    assert_eq!(
        (world.speakers(), world.sides[A].entry.epoch),
        (vec![A], epoch)
    );
    let regained = |news: &ShareNews| matches!(news, ShareNews::LeaseRegained { .. });
    assert_eq!(world.share_news(A, regained).len(), 1);
}

/// No voter remembers who owned: the connections have no owner any more, and whoever begins
/// the share tells their clients so.
#[test]
fn an_owner_that_nobody_remembers_ends_what_nobody_owns() {
    let mut world = lease();
    for side in [B, W] {
        world.crash(side);
    }
    world.run(300);
    assert_eq!(world.local_actions(A), [], "it hopes");
    for side in [B, W] {
        world.boot(side);
    }
    world.run(1_500);
    let actions = world.local_actions(A);
    let ended = actions.iter().find_map(|action| {
        let Action::Share(_, ShareAction::EndFlows { reason }) = action else {
            return None;
        };
        Some(*reason)
    });
    assert_eq!(ended, Some(EndReason::NobodyOwns), "{actions:?}");
    world.run(5_000);
    assert_eq!(world.speakers().len(), 1, "somebody begins anew");
    assert_eq!(world.takeovers, 0);
}

#[test]
fn a_standby_that_left_and_does_not_know_begins_anew() {
    let mut world = lease();
    world.cuts.extend([(A, B), (B, A)]);
    world.run(200);
    assert_eq!(world.speakers(), [A], "the witness hears it");
    assert!(
        matches!(world.state(B), State::Shadow { .. }),
        "and was not told"
    );
    world.crash(A);
    world.run(900);
    assert!(world.speakers().is_empty(), "the owner might come back");
    world.run(200);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 0));
    let actions = world.local_actions(B);
    let [
        Action::Share(
            _,
            ShareAction::Set {
                role: Role::None, ..
            },
        ),
        Action::Share(
            _,
            ShareAction::EndFlows {
                reason: EndReason::NobodyOwns,
            },
        ),
        Action::Share(
            _,
            ShareAction::Set {
                role: Role::Owner, ..
            },
        ),
        ..,
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
}

#[test]
fn a_healthy_owner_is_not_disturbed_by_a_standby_that_does_not_hear_it() {
    let mut world = lease();
    world.cuts.insert((A, B));
    world.run(3_000);
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    let lapses = world.share_news(A, |news| matches!(news, ShareNews::LeaseLapsed));
    assert!(lapses.is_empty());
}

#[test]
fn a_lapsed_owner_that_is_heard_is_replaced_all_the_same() {
    let mut world = lease();
    world.cuts.extend([(W, A), (B, A)]);
    world.run(150);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
}

#[test]
fn a_released_share_is_taken_over_at_once() {
    let mut world = lease();
    world.input(A, |node, now| {
        node.handle_command(Command::Release(SHARE), now)
    });
    assert!(world.speakers().is_empty());
    world.run(5);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
}

/// The next agent took an endless lease for one in force, although it had been
/// given back: there were two voices.
#[test]
fn an_endless_lease_that_was_given_back_does_not_come_back_with_the_agent() {
    let mut world = World::in_sync(Fencing::Stonith, 3);
    world.input(A, |node, now| {
        node.handle_command(Command::Release(SHARE), now)
    });
    world.run(3);
    world.kill_agent(A);
    world.cuts.extend([(A, B), (B, A)]);
    world.run(300);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    world.resume(A);
    world.run(10);
    assert_eq!(world.speakers(), [B]);
}

#[test]
fn a_released_share_that_nobody_takes_is_taken_back() {
    let mut world = lease();
    world.crash(B);
    world.run(100);
    world.input(A, |node, now| {
        node.handle_command(Command::Release(SHARE), now)
    });
    world.run(115);
    assert!(world.speakers().is_empty());
    world.run(20);
    assert_eq!(world.speakers(), [A]);
}

fn reopened(world: &World, side: usize) -> bool {
    let actions = world.local_actions(side);
    actions
        .iter()
        .any(|action| matches!(action, Action::Share(_, ShareAction::Reopen)))
}

#[test]
fn a_dead_server_is_a_takeover_at_once() {
    let mut world = lease();
    world.server_exit(A, true);
    assert!(world.speakers().is_empty());
    world.run(5);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    assert!(!reopened(&world, A));
}

#[test]
fn a_request_that_kills_both_servers_does_not_move_the_share() {
    let mut world = lease();
    world.server_exit(B, false);
    world.run(50);
    world.server_exit(A, false);
    world.run(10);
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    assert!(reopened(&world, A), "and clients hear of it at once");
    world.run(200);
    assert_eq!(world.speakers(), [A]);
}

#[test]
fn clients_hear_of_a_dead_server_when_no_standby_can_take_over_any_more() {
    let mut world = lease();
    world.sides[B].stopped = true;
    world.server_exit(A, true);
    world.run(115);
    assert!(!reopened(&world, A) && world.speakers().is_empty());
    world.run(25);
    assert!(reopened(&world, A), "the standby is out");
    assert_eq!(world.speakers(), [A]);
}

#[test]
fn a_shutdown_is_a_takeover_at_once() {
    let mut world = lease();
    world.goodbye(A, GoodbyeReason::Shutdown);
    world.run(4);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
}

#[test]
fn a_planned_restart_loses_neither_traffic_nor_protection() {
    let mut world = lease();
    let restart = GoodbyeReason::Restart;
    let prepared = |world: &World| {
        let node = world.sides[A].node.as_ref().expect("runs");
        node.is_prepared(restart, world.now(A))
    };
    assert!(!prepared(&world));
    world.input(A, |node, now| {
        node.handle_command(Command::Prepare(restart), now)
    });
    world.run(3);
    assert!(prepared(&world));
    let before = world.sides[A].entry;
    world.goodbye(A, restart);
    for _ in 0..200 {
        world.run(1);
        assert_eq!(world.speakers(), [A]);
    }
    world.resume(A);
    for _ in 0..2_000 {
        world.run(1);
        assert_eq!(world.speakers(), [A]);
    }
    assert!(world.is_in_sync(A, B));
    let after = world.sides[A].entry;
    assert_eq!(
        (after.epoch, after.generation),
        (before.epoch, before.generation)
    );
    let left = after.expiry.expect("ends").since(world.now(A)).as_millis();
    assert!(left < 60, "an ordinary lease again: {left} ms");
}

#[test]
fn an_agent_that_dies_is_a_takeover() {
    let mut world = lease();
    world.kill_agent(A);
    world.run(80);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    world.resume(A);
    world.run(2_000);
    assert!(world.is_in_sync(B, A));
}

#[test]
fn an_agent_that_comes_back_in_time_goes_on() {
    let mut world = lease();
    world.kill_agent(A);
    world.run(10);
    world.resume(A);
    world.run(2_000);
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    assert!(world.is_in_sync(A, B));
}

#[test]
fn a_stopped_owner_that_wakes_up_says_nothing_also_after_the_new_owner_died() {
    let mut world = lease();
    world.sides[A].stopped = true;
    world.run(5_000);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    world.crash(B);
    world.run(5_000);
    world.forget_log();
    world.sides[A].stopped = false;
    world.run(2_000);
    let actions = world.local_actions(A);
    let first_end = actions
        .iter()
        .position(|action| matches!(action, Action::Share(_, ShareAction::EndFlows { .. })));
    let first_voice = actions.iter().position(|action| {
        matches!(
            action,
            Action::Share(
                _,
                ShareAction::Set {
                    role: Role::Owner,
                    ..
                }
            )
        )
    });
    assert_eq!(world.speakers(), [A]);
    assert!(
        first_end.is_some() && first_end < first_voice,
        "{actions:?}"
    );
}

#[test]
fn without_the_witness_two_servers_go_on_and_one_stops() {
    let mut world = lease();
    world.crash(W);
    world.run(1_000);
    assert_eq!(world.speakers(), [A]);
    assert!(world.is_in_sync(A, B));
    world.crash(A);
    world.run(5_000);
    assert!(world.speakers().is_empty(), "one of three is no majority");
    world.boot(W);
    // The witness has forgotten who was in sync, so the owner is waited for.
    world.run(2_000);
    assert_eq!(world.speakers(), [B]);
}

#[test]
fn a_third_of_all_lease_datagrams_may_be_lost() {
    let mut world = lease();
    world.loss = 33;
    world.run(10_000);
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    assert!(world.is_in_sync(A, B));
}

/// A handshake that was mirrored in the last generation must have arrived, and be gone.
#[test]
fn a_new_stay_begins_when_the_tap_has_run_dry() {
    let mut world = lease();
    let first = world.sides[A].entry.generation;
    world.server_exit(B, true);
    world.input(B, |node, now| node.handle_listening(SHARE, true, now));
    while world.sides[A].entry.generation == first {
        world.step();
    }
    let mut dry = 0;
    while world.sides[B].entry.role != Role::Shadow {
        world.step();
        dry += 1;
        assert!(dry < 400, "half milliseconds");
    }
    // 50 ms and what may sit in queues, less a clock's hundredth.
    assert!(dry >= 102, "{dry} half milliseconds");
    assert!(world.sides[B].entry.generation > first);
}

#[test]
fn of_two_servers_the_dead_one_is_powered_off_before_the_other_takes_over() {
    let mut world = World::in_sync(Fencing::Stonith, 2);
    assert_eq!(world.sides[A].entry.expiry, None);
    world.sides[A].stopped = true;
    world.run(100);
    assert_eq!(world.speakers(), [A], "it only seems dead");
    world.run(150);
    assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
    world.boot(A);
    world.run(2_000);
    assert!(world.is_in_sync(B, A));
}

/// A command that fails has powered nothing off, however often.
#[test]
fn of_two_servers_one_that_can_not_be_powered_off_is_not_taken_over_from() {
    for fault in [StonithFault::CommandFailed, StonithFault::TimedOut] {
        let mut world = World::in_sync(Fencing::Stonith, 2);
        world.power.switch = Err(fault);
        world.sides[A].stopped = true;
        world.run(3_500);
        assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
        assert!(
            (3..=4).contains(&world.power.switched),
            "{}",
            world.power.switched
        );
        assert_eq!(world.power(B, A).1, Some(fault));
        world.power.switch = Ok(());
        world.run(1_500);
        assert_eq!((world.speakers(), world.takeovers), (vec![B], 1));
        assert_eq!(world.power(B, A), (Power::Off, None));
        world.boot(A);
        world.run(2_000);
        assert!(world.is_in_sync(B, A));
        assert_eq!(world.power(B, A), (Power::Unknown, None));
    }
}

/// It was only cut off: who is heard again needs no power switch.
#[test]
fn a_server_that_is_heard_again_is_no_longer_to_be_powered_off() {
    let mut world = World::in_sync(Fencing::Stonith, 2);
    world.power.switch = Err(StonithFault::CommandFailed);
    world.cuts.extend([(A, B), (B, A)]);
    world.run(500);
    assert!(world.power(B, A).1.is_some());
    world.cuts.clear();
    world.run(3_000);
    assert_eq!(world.power(B, A), (Power::Unknown, None));
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    assert!(world.is_in_sync(A, B));
    let asked = world.power.switched;
    world.run(3_000);
    assert_eq!(world.power.switched, asked);
}

#[test]
fn of_two_servers_that_do_not_hear_each_other_one_is_powered_off() {
    let mut world = World::in_sync(Fencing::Stonith, 2);
    world.cuts.extend([(A, B), (B, A)]);
    world.run(1_000);
    assert_eq!(world.speakers().len(), 1);
    let alive = world.sides.iter().filter(|side| side.node.is_some());
    assert_eq!(alive.count(), 1);
}

#[test]
fn of_two_servers_a_dead_standby_is_powered_off_before_gates_open() {
    let mut world = World::in_sync(Fencing::Stonith, 2);
    world.sides[B].stopped = true;
    world.run(120);
    let opened = |world: &World| {
        let actions = world.local_actions(A);
        actions
            .iter()
            .any(|action| matches!(action, Action::Share(_, ShareAction::ReleaseGate { .. })))
    };
    assert!(!opened(&world));
    world.run(300);
    assert!(opened(&world));
    assert_eq!(world.speakers(), [A]);
    world.boot(B);
    world.run(2_000);
    assert!(world.is_in_sync(A, B));
}
