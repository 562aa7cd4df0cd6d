//! Server processes that die: who takes over, who must not, and when the
//! clients are told.

mod common;

use common::{A, B, HOLD_MS, SHARE, World};
use godwit_core::node::ShareNews;
use godwit_core::share::Reason;
use godwit_core::{
    Action, EndReason, FlowCheck, Listening, MoveAction, PeerAction, Registration, ShareAction,
};
use godwit_wire::{Generation, LeaveReason, Role};

/// Positions of some actions in the log of a side.
fn position(world: &World, side: usize, wanted: impl Fn(&Action) -> bool) -> Option<usize> {
    world.sides[side].actions.iter().position(wanted)
}

fn left(world: &World, side: usize) -> Vec<LeaveReason> {
    let news = world.share_news(side, |news| matches!(news, ShareNews::StandbyLeft { .. }));
    let reason = |news| match news {
        ShareNews::StandbyLeft { reason, .. } => Some(reason),
        ShareNews::RoleChanged { .. }
        | ShareNews::TakeoverStarted { .. }
        | ShareNews::ClaimDisputed { .. }
        | ShareNews::ShareReleased { .. }
        | ShareNews::NoTaker
        | ShareNews::TakeoverDeclined { .. }
        | ShareNews::StandbyJoined { .. }
        | ShareNews::Moved { .. }
        | ShareNews::MoveRefused { .. }
        | ShareNews::StandbyHeldOff { .. }
        | ShareNews::NoQuorum
        | ShareNews::QuorumBack
        | ShareNews::LeaseLapsed
        | ShareNews::LeaseRegained { .. } => None,
    };
    news.into_iter().filter_map(reason).collect()
}

fn no_taker(world: &World, side: usize) -> usize {
    let news = world.share_news(side, |news| *news == ShareNews::NoTaker);
    news.len()
}

/// An owner that is silent, and whose standby takes over, within a message.
#[test]
fn a_server_that_dies_is_taken_over_within_a_message() {
    for (kept, listener_lost) in [(3, true), (0, true), (3, false)] {
        let mut world = World::in_sync();
        world.forget_log();
        world.server_exit(A, kept, listener_lost);
        assert_eq!(world.owners(), [A], "the standby has not heard of it");
        let silence = position(&world, A, |action| {
            matches!(action, Action::Share(_, ShareAction::Silence))
        });
        let said = position(&world, A, |action| {
            matches!(action, Action::Peer(_, PeerAction::Send(_)))
        });
        assert!(
            silence.is_some() && silence < said,
            "silent before it is free"
        );
        world.run(2);
        let [ShareNews::TakeoverStarted { reason, .. }] = world.takeovers(B)[..] else {
            panic!("{:?}", world.takeovers(B));
        };
        assert_eq!(reason, Reason::OwnerServerLost);
        world.run(2);
        assert_eq!(world.owners(), [B]);
        let ended = position(&world, A, |action| {
            matches!(
                action,
                Action::Share(
                    _,
                    ShareAction::EndFlows {
                        reason: EndReason::Superseded
                    }
                )
            )
        });
        assert!(ended.is_some(), "its sockets end");
        world.run(2 * HOLD_MS);
        assert_eq!(no_taker(&world, A), 0, "there was one");
        // It stands by again when something listens, and not before.
        if listener_lost {
            world.run(5000);
            assert!(!world.is_in_sync(B, A));
            world.listening(A, true);
        }
        world.run(2000);
        assert!(world.is_in_sync(B, A));
    }
}

#[test]
fn a_process_that_has_nothing_to_save_is_nobodys_business() {
    let mut world = World::in_sync();
    world.forget_log();
    world.server_exit(A, 0, false);
    world.run(1000);
    assert_eq!(world.owners(), [A]);
    assert!(world.is_in_sync(A, B));
    assert_eq!(world.local_actions(A), []);
}

/// A client that makes its process fail each second, on both nodes, is nobody else's
/// business: no share is free, the standby stays, and it takes over at once when the
/// server itself dies.
#[test]
fn a_process_that_fails_with_its_one_connection_concerns_no_other() {
    let mut world = World::in_sync();
    world.forget_log();
    for _ in 0..60 {
        world.connection_exit(B);
        world.connection_exit(A);
        world.run(1000);
        assert_eq!(world.owners(), [A]);
        assert!(world.is_in_sync(A, B));
    }
    for side in [A, B] {
        assert_eq!(world.local_actions(side), []);
    }
    world.connection_exit(B);
    world.server_exit(A, 1, true);
    world.run(4);
    assert_eq!(world.owners(), [B], "the standby does not decline");
}

/// A poisonous request must not sweep the cluster, whichever server it kills
/// first; and clients are told at once.
#[test]
fn servers_that_die_together_are_not_taken_over() {
    for listener_lost in [true, false] {
        for first in [A, B] {
            for apart in [0, 1, 2, 5, 50, 900] {
                let mut world = World::in_sync();
                world.forget_log();
                world.server_exit(first, 1, listener_lost);
                if first == A && apart > 0 {
                    // Later, B would own already: then its clients see its end.
                    continue;
                }
                world.run(apart);
                world.server_exit(1 - first, 1, listener_lost);
                world.run(5);
                assert_eq!(world.takeovers(B), [], "{first} first, {apart} ms apart");
                assert_eq!(world.owners(), [A]);
                assert_eq!(no_taker(&world, A), 1, "{first} first, {apart} ms apart");
                let reopened = position(&world, A, |a| {
                    matches!(a, Action::Share(_, ShareAction::Reopen))
                });
                assert!(reopened.is_some(), "clients are told");
            }
        }
    }
}

#[test]
fn a_server_that_died_long_ago_is_no_reason_to_decline() {
    let mut world = World::in_sync();
    world.server_exit(B, 1, false);
    world.run(1001);
    world.server_exit(A, 1, false);
    world.run(4);
    assert_eq!(world.owners(), [B]);
}

/// The standby has heard that it may, and does nothing.
#[test]
fn a_share_that_nobody_takes_is_reopened_after_the_hold() {
    let mut world = World::in_sync();
    world.forget_log();
    world.sides[B].stopped = true;
    world.server_exit(A, 1, true);
    world.run(29);
    assert_eq!(no_taker(&world, A), 0);
    world.run(HOLD_MS);
    assert_eq!(no_taker(&world, A), 1);
    let silence = position(&world, A, |action| {
        matches!(action, Action::Share(_, ShareAction::Silence))
    });
    let reopen = position(&world, A, |action| {
        matches!(action, Action::Share(_, ShareAction::Reopen))
    });
    let ungated = position(&world, A, |action| {
        matches!(
            action,
            Action::Share(
                _,
                ShareAction::Set {
                    generation: Generation::NONE,
                    ..
                }
            )
        )
    });
    assert!(
        silence < ungated && ungated < reopen,
        "first the standby is out"
    );
    assert_eq!(world.owners(), [A]);
}

/// Nobody could take over: there is nothing to wait for.
#[test]
fn without_a_standby_clients_are_told_at_once() {
    let mut world = World::in_sync();
    world.crash(B);
    world.run(100);
    world.forget_log();
    world.server_exit(A, 1, true);
    let actions = world.local_actions(A);
    assert!(
        matches!(actions[..], [Action::Share(_, ShareAction::Reopen)]),
        "{actions:?}"
    );
}

/// The twins of a dead server leave protection now.
#[test]
fn a_standby_whose_listener_is_gone_leaves_the_set_until_it_is_back() {
    for by_exit in [true, false] {
        let mut world = World::in_sync();
        world.forget_log();
        if by_exit {
            world.server_exit(B, 0, true);
        } else {
            world.listening(B, false);
        }
        assert_eq!(
            world.sides[B].entry.role,
            Role::None,
            "its twins end silently"
        );
        world.run(3);
        assert_eq!(left(&world, A), [LeaveReason::ServerLost]);
        // A new link changes nothing about it.
        world.drop_link();
        world.run(2000);
        assert!(!world.is_in_sync(A, B));
        assert!(world.sides[A].entry.generation.is_none());
        world.listening(B, true);
        world.run(1200);
        assert!(world.is_in_sync(A, B));
    }
}

#[test]
fn a_standby_that_never_listened_never_joins() {
    let mut world = World::booted();
    world.listening(B, false);
    world.run(3000);
    assert_eq!(world.owners(), [A]);
    assert!(!world.is_in_sync(A, B));
    world.listening(B, true);
    world.run(50);
    assert!(world.is_in_sync(A, B));
}

/// A server that was stopped in order, or whose death nobody saw: the standby serves
/// what is new, and connections that it holds.
#[test]
fn an_owner_without_a_server_hands_over_to_a_standby_that_has_one() {
    let mut world = World::in_sync();
    world.run(10_000);
    world.listening(A, false);
    world.run(39);
    assert_eq!(world.owners(), [A], "a listener may be opened anew");
    world.run(11);
    assert_eq!(world.owners(), [B]);
    assert_eq!(world.moves(A), [Ok(common::name(B))]);
    world.run(5000);
    assert_eq!(world.owners(), [B], "and there it stays");
    assert!(!world.is_in_sync(B, A), "without a server nobody stands by");
}

#[test]
fn a_listener_that_is_opened_anew_was_never_missing() {
    let mut world = World::in_sync();
    world.run(10_000);
    world.listening(A, false);
    world.run(30);
    world.listening(A, true);
    world.run(5000);
    assert_eq!(world.owners(), [A]);
    assert_eq!(world.moves(A), []);
}

/// An owner that serves some of its addresses serves on; a standby that does is none.
#[test]
fn a_standby_that_listens_at_some_addresses_only_is_not_in_sync() {
    let mut world = World::in_sync();
    world.run(10_000);
    world.listens(A, Listening::Partly);
    world.run(1000);
    assert_eq!(world.owners(), [A]);
    world.listens(A, Listening::All);
    world.listens(B, Listening::Partly);
    world.run(10);
    assert!(!world.is_in_sync(A, B));
    assert_eq!(left(&world, A), [LeaveReason::ServerLost]);
    world.listens(A, Listening::Nowhere);
    world.run(5000);
    assert_eq!(world.owners(), [A], "nobody could serve all of it");
    world.listens(B, Listening::All);
    world.run(2000);
    assert_eq!(world.owners(), [B]);
}

/// Connections without a twin have three seconds to end.
#[test]
fn a_connection_without_a_twin_does_not_keep_new_clients_away() {
    let mut world = World::in_sync();
    world.run(10_000);
    world.check = FlowCheck {
        unprotected: 1,
        ..FlowCheck::default()
    };
    world.listening(A, false);
    world.run(2900);
    assert_eq!(world.owners(), [A]);
    let tries = world.moves(A).len();
    assert!((3..8).contains(&tries), "{tries} tries, with a back-off");
    world.run(2100);
    assert_eq!(world.owners(), [B]);
    let reset = position(&world, A, |action| {
        matches!(action, Action::Move(_, MoveAction::ResetUnprotected))
    });
    assert!(reset.is_some(), "their clients are told");
}

/// Two servers that come and go toss the share to and fro, but not often.
#[test]
fn a_new_owner_waits_longer_for_its_server() {
    let mut world = World::in_sync();
    world.run(10_000);
    world.listening(A, false);
    world.run(100);
    world.listening(A, true);
    world.run(1500);
    assert_eq!(world.owners(), [B]);
    assert!(world.is_in_sync(B, A));
    world.listening(B, false);
    world.run(1900);
    assert_eq!(world.owners(), [B]);
    world.run(200);
    assert_eq!(world.owners(), [A]);
}

fn register(world: &mut World, side: usize, registration: Registration) {
    world.input(side, |node, now| {
        node.handle_registration(SHARE, registration, now);
    });
}

/// Twins that wait for a server, and none that could take them has registered, here or
/// there: nothing is protected before one has, and the owner goes on serving.
#[test]
fn nothing_is_protected_without_registered_servers() {
    for side in [A, B] {
        let mut world = World::in_sync();
        world.forget_log();
        register(&mut world, side, Registration::Awaited);
        world.run(2000);
        assert!(
            world.is_in_sync(A, B),
            "{side}: an agent may have restarted"
        );
        register(&mut world, side, Registration::Missing);
        world.run(2000);
        assert!(!world.is_in_sync(A, B), "{side}");
        assert_eq!(left(&world, A), [LeaveReason::ServerLost], "{side}");
        assert_eq!(world.owners(), [A], "{side}");
        register(&mut world, side, Registration::Awaited);
        world.run(2000);
        assert!(!world.is_in_sync(A, B), "{side}: hope is no proof");
        register(&mut world, side, Registration::Complete);
        world.run(3000);
        assert!(world.is_in_sync(A, B), "{side}");
    }
}

/// What has no registered servers from the start is never protected, not for a moment.
#[test]
fn no_standby_joins_before_servers_have_registered() {
    for side in [A, B] {
        let mut world = World::dark();
        for side in [A, B] {
            world.boot(side);
        }
        register(&mut world, side, Registration::Awaited);
        world.run(5000);
        let joined = |news: &ShareNews| matches!(news, ShareNews::StandbyJoined { .. });
        assert_eq!(world.share_news(A, joined), [], "{side}");
        register(&mut world, side, Registration::Complete);
        world.run(5000);
        assert!(world.is_in_sync(A, B), "{side}");
    }
}
