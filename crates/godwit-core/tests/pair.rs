//! Two nodes through failures: who owns, who is in sync, and in which order.

mod common;

use std::time::Duration;

use common::{A, B, PEER, SHARE, World, flow};
use godwit_core::node::{FlowNews, PeerNews, ShareNews};
use godwit_core::share::{Reason, State};
use godwit_core::{Action, EndReason, FlowAction, FlowEventKind, ShareAction, TwinAction};
use godwit_wire::{
    DigestEntry, Generation, GoodbyeReason, LeaveReason, PeerMessage, Role, SeqNumber,
    UnprotectedReason,
};

#[test]
fn the_primary_owns_and_the_backup_gets_in_sync() {
    let mut world = World::booted();
    world.run(100);
    assert_eq!(world.owners(), [A], "well before the grace is over");
    assert!(world.is_in_sync(A, B));
    assert_eq!(world.sides[A].entry.generation, Generation(1));
    assert!(world.takeovers(A).is_empty() && world.takeovers(B).is_empty());
}

#[test]
fn a_dark_owner_is_taken_over_once_within_the_detection_time() {
    let mut world = World::in_sync();
    world.forget_log();
    world.crash(A);
    world.run(40);
    assert_eq!(world.owners(), [B]);
    world.run(5000);
    let [takeover] = world.takeovers(B)[..] else {
        panic!("one takeover: {:?}", world.takeovers(B));
    };
    let ShareNews::TakeoverStarted {
        detection,
        reason,
        generation,
        ..
    } = takeover
    else {
        panic!("{takeover:?}");
    };
    assert_eq!(reason, Reason::OwnerFailed);
    assert_eq!(generation, Generation(1));
    assert!(detection <= Duration::from_millis(33), "{detection:?}");
}

#[test]
fn a_takeover_writes_the_map_then_announces_then_revives() {
    let mut world = World::in_sync();
    world.crash(A);
    world.forget_log();
    world.run(38);
    let actions = world.local_actions(B);
    let [
        Action::Share(
            _,
            ShareAction::Set {
                role: Role::Owner,
                generation: Generation::NONE,
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
    world.run(30_000);
    let count = |wanted: fn(&Action) -> bool| {
        let actions = world.local_actions(B);
        actions.into_iter().filter(wanted).count()
    };
    assert_eq!(
        count(|action| matches!(action, Action::Share(_, ShareAction::Announce))),
        6
    );
    assert!(count(|action| matches!(action, Action::Share(_, ShareAction::Revive { .. }))) > 30);
}

/// Its predecessor may have died in the middle of a takeover.
#[test]
fn an_agent_that_resumes_an_owner_announces_and_revives_once() {
    let mut world = World::in_sync();
    world.crash(A);
    world.run(38);
    assert_eq!(world.owners(), [B]);
    world.kill_agent(B);
    world.forget_log();
    world.resume(B);
    world.run(5000);
    let actions = world.local_actions(B);
    let [
        Action::Share(_, ShareAction::Set { .. }),
        Action::Share(_, ShareAction::Announce),
        Action::Share(_, ShareAction::Revive { attempt: 0 }),
        rest @ ..,
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
    let announces = |action: &Action| matches!(action, Action::Share(_, ShareAction::Announce));
    assert!(rest.iter().all(announces), "{rest:?}");
    assert_eq!(world.owners(), [B]);
}

#[test]
fn an_owner_that_returns_becomes_the_standby() {
    let mut world = World::in_sync();
    world.crash(A);
    world.run(1000);
    let before = world.sides[B].entry.epoch;
    world.boot(A);
    world.run(1000);
    assert_eq!(world.owners(), [B], "failback is manual");
    assert!(world.is_in_sync(B, A));
    assert!(world.sides[B].entry.generation > Generation(1));
    assert_eq!(world.sides[B].entry.epoch, before);
}

#[test]
fn ownership_goes_back_and_forth() {
    let mut world = World::in_sync();
    let mut owner = A;
    for _ in 0..6 {
        let epoch = world.sides[owner].entry.epoch;
        world.crash(owner);
        world.run(200);
        let next = 1 - owner;
        assert_eq!(world.owners(), [next]);
        assert!(world.sides[next].entry.epoch > epoch);
        world.boot(owner);
        world.run(1000);
        assert!(world.is_in_sync(next, owner));
        owner = next;
    }
}

#[test]
fn a_dark_standby_leaves_and_the_gates_open_after_the_map_is_written() {
    let mut world = World::in_sync();
    world.forget_log();
    world.crash(B);
    world.run(40);
    let actions = world.local_actions(A);
    let [
        Action::Share(
            _,
            ShareAction::Set {
                role: Role::Owner,
                generation: Generation::NONE,
                peer: None,
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
    assert!(world.takeovers(A).is_empty(), "an owner takes nothing over");

    world.boot(B);
    world.run(2000);
    assert!(world.is_in_sync(A, B));
    assert!(world.sides[A].entry.generation > Generation(1));
}

#[test]
fn a_standby_is_ready_before_the_first_flow_is_gated() {
    let mut world = World::booted();
    for _ in 0..1000 {
        world.step();
        let gated = !world.sides[A].entry.generation.is_none();
        let ready = world.sides[B].entry.generation == world.sides[A].entry.generation;
        assert!(!gated || ready, "at {}", world.now);
    }
}

#[test]
fn a_demoted_flow_is_let_go_only_after_the_standby_has_marked_it() {
    let mut world = World::in_sync();
    world.forget_log();
    world.flow_event(A, 1, FlowEventKind::Stalled);
    assert!(
        world.local_actions(A).is_empty(),
        "not before it is confirmed"
    );
    world.run(3);
    let marked = Action::Twin(
        SHARE,
        TwinAction::MarkDemoted {
            flow: flow(1),
            reason: UnprotectedReason::Lagging,
        },
    );
    assert_eq!(
        world.sides[B].actions.first(),
        Some(&marked),
        "first the mark, then the word"
    );
    let ungated = Action::Flow(
        SHARE,
        FlowAction::Ungate {
            flow: flow(1),
            reason: UnprotectedReason::Lagging,
        },
    );
    assert_eq!(world.local_actions(A), [ungated]);
    let reason = UnprotectedReason::Lagging;
    assert_eq!(world.flow_news(A), [FlowNews::Demoted { reason }]);
    assert_eq!(world.flow_news(B), [FlowNews::GivenUp { reason }]);
    assert!(world.is_in_sync(A, B), "the others stay protected");
}

/// Its server hears of it when the standby has marked it, and not before.
#[test]
fn a_flow_whose_commit_failed_is_served_by_nobody() {
    let mut world = World::in_sync();
    world.forget_log();
    assert!(world.commit_fails(A, 1), "the standby might serve it");
    assert!(world.local_actions(A).is_empty());
    world.run(3);
    let reason = UnprotectedReason::CommitFailed;
    let (share, flow) = (SHARE, flow(1));
    let marked = Action::Twin(share, TwinAction::MarkDemoted { flow, reason });
    assert_eq!(world.sides[B].actions.first(), Some(&marked));
    let ungated = Action::Flow(share, FlowAction::Ungate { flow, reason });
    assert_eq!(world.local_actions(A), [ungated]);
    assert!(!world.commit_fails(A, 1), "it knows");
    assert!(!world.commit_fails(B, 1), "a standby serves nobody");
}

#[test]
fn a_standby_that_does_not_confirm_leaves_the_set() {
    let mut world = World::in_sync();
    world.forget_log();
    world.words_pass = false;
    world.flow_event(A, 1, FlowEventKind::NotConfirmed);
    world.run(501);
    let left = world.share_news(A, |news| matches!(news, ShareNews::StandbyLeft { .. }));
    let [
        ShareNews::StandbyLeft {
            reason: LeaveReason::DemoteUnconfirmed,
            ..
        },
    ] = left[..]
    else {
        panic!("{left:?}");
    };
    assert!(
        !world
            .local_actions(A)
            .iter()
            .any(|action| matches!(action, Action::Flow(_, FlowAction::Ungate { .. }))),
        "all gates open at once instead"
    );
}

/// One that has thousands of flows to look after, say. Only this one's client
/// waits, and nobody loses protection.
#[test]
fn a_standby_that_confirms_late_stays_in_the_set() {
    let mut world = World::in_sync();
    world.forget_log();
    world.words_pass = false;
    world.flow_event(A, 1, FlowEventKind::NotConfirmed);
    world.run(400);
    assert!(
        world.local_actions(A).is_empty(),
        "nothing is let out that the twin may lack"
    );
    world.words_pass = true;
    world.run(3);
    let ungated = Action::Flow(
        SHARE,
        FlowAction::Ungate {
            flow: flow(1),
            reason: UnprotectedReason::NotConfirmed,
        },
    );
    assert_eq!(world.local_actions(A), [ungated]);
    assert!(world.is_in_sync(A, B));
}

#[test]
fn an_unconfirmed_flow_has_its_handshake_sent_again() {
    let mut world = World::in_sync();
    world.forget_log();
    world.flow_event(A, 1, FlowEventKind::Unconfirmed);
    world.run(7);
    world.flow_event(A, 1, FlowEventKind::Confirmed);
    world.run(50);
    let resent = world.local_actions(A);
    assert_eq!(resent.len(), 2, "{resent:?}");
    assert!(world.flow_news(A).is_empty(), "nothing to tell people");
}

/// Reports are lost when the data path has no room for them. The owner's agent asks
/// which flows are watched over, and says itself which of them are over.
#[test]
fn a_lost_end_is_made_up_for() {
    let mut world = World::in_sync();
    world.flow_event(A, 1, FlowEventKind::Unconfirmed);
    world.flow_event(A, 2, FlowEventKind::Unconfirmed);
    let watched = |world: &World| {
        let node = world.sides[A].node.as_ref().expect("runs");
        node.supervised_flows().collect::<Vec<_>>()
    };
    let lost = watched(&world);
    assert_eq!(lost.len(), 2);
    assert!(lost.iter().all(|event| event.kind == FlowEventKind::Ended));
    for event in &lost[..1] {
        world.input(A, |node, now| node.handle_flow_event(*event, now));
    }
    assert_eq!(watched(&world), lost[1..]);
    // It may be reported after all.
    world.input(A, |node, now| node.handle_flow_event(lost[0], now));
    assert_eq!(watched(&world), lost[1..]);
    assert!(world.is_in_sync(A, B));
}

#[test]
fn a_twin_that_closes_is_not_served_and_its_flow_is_let_go() {
    let mut world = World::in_sync();
    world.forget_log();
    world.flow_event(B, 1, FlowEventKind::TwinClosed);
    world.flow_event(B, 2, FlowEventKind::MaterialiseFailed);
    world.run(3);
    assert!(world.sides[B].marked.contains(&flow(1)));
    let reason = UnprotectedReason::TwinClosed;
    assert_eq!(world.flow_news(A), [FlowNews::Demoted { reason }]);
    assert_eq!(
        world.flow_news(B),
        [FlowNews::TwinClosed, FlowNews::MaterialiseFailed]
    );
}

#[test]
fn a_digest_moves_and_ends_twins() {
    let mut world = World::in_sync();
    world.forget_log();
    let entry = |port, ended| DigestEntry {
        flow: flow(port),
        snd_una: SeqNumber(9),
        snd_nxt: SeqNumber(10),
        rcv_nxt: SeqNumber(11),
        ended,
    };
    let changes = [entry(1, false), entry(2, true)];
    world.input(A, |node, now| node.handle_changes(SHARE, &changes, now));
    world.run(2);
    let expected = [
        Action::Twin(
            SHARE,
            TwinAction::Poke {
                flow: flow(1),
                snd_una: SeqNumber(9),
            },
        ),
        Action::Twin(
            SHARE,
            TwinAction::End {
                flow: flow(2),
                reason: EndReason::EndedAtOwner,
            },
        ),
    ];
    assert_eq!(world.local_actions(B), expected);
}

#[test]
fn a_digest_waits_for_a_link() {
    let mut world = World::in_sync();
    world.drop_link();
    world.forget_log();
    let entry = |snd_una| DigestEntry {
        flow: flow(1),
        snd_una: SeqNumber(snd_una),
        snd_nxt: SeqNumber(10),
        rcv_nxt: SeqNumber(11),
        ended: false,
    };
    for snd_una in [8, 9] {
        let changes = [entry(snd_una)];
        world.input(A, |node, now| node.handle_changes(SHARE, &changes, now));
    }
    world.run(100);
    let latest = Action::Twin(
        SHARE,
        TwinAction::Poke {
            flow: flow(1),
            snd_una: SeqNumber(9),
        },
    );
    assert_eq!(world.local_actions(B), [latest]);
}

#[test]
fn a_broken_link_alone_changes_nothing() {
    let mut world = World::in_sync();
    world.forget_log();
    world.drop_link();
    world.run(1000);
    assert!(world.is_in_sync(A, B));
    assert_eq!(world.sides[A].entry.generation, Generation(1));
    assert!(world.local_actions(A).is_empty() && world.local_actions(B).is_empty());
}

#[test]
fn a_planned_restart_of_either_agent_changes_nothing() {
    for side in [A, B] {
        let mut world = World::in_sync();
        let before = [world.sides[A].entry, world.sides[B].entry];
        world.goodbye(side, GoodbyeReason::Restart);
        world.run(5000);
        assert_eq!([world.sides[A].entry, world.sides[B].entry], before);
        world.resume(side);
        world.run(5000);
        assert_eq!([world.sides[A].entry, world.sides[B].entry], before);
        assert!(world.takeovers(B).is_empty());
        let goodbye = PeerNews::Goodbye {
            reason: GoodbyeReason::Restart,
        };
        assert!(world.peer_news(1 - side).contains(&goodbye));
    }
}

#[test]
fn a_restart_that_takes_too_long_is_a_failure() {
    let mut world = World::in_sync();
    world.goodbye(A, GoodbyeReason::Restart);
    world.run(9_900);
    assert!(world.takeovers(B).is_empty());
    world.run(200);
    assert_eq!(world.takeovers(B).len(), 1);
}

#[test]
fn an_owner_that_shuts_down_is_silent_before_it_is_taken_over() {
    let mut world = World::in_sync();
    world.goodbye(A, GoodbyeReason::Shutdown);
    assert_eq!(world.owners(), [B], "within a message's time");
    assert_eq!(world.sides[A].entry.role, Role::None);
    let [ShareNews::TakeoverStarted { reason, .. }] = world.takeovers(B)[..] else {
        panic!("{:?}", world.takeovers(B));
    };
    assert_eq!(reason, Reason::OwnerShutdown);
}

#[test]
fn an_owner_that_detaches_keeps_its_connections() {
    let mut world = World::in_sync();
    world.forget_log();
    world.goodbye(A, GoodbyeReason::Detach);
    world.run(10_000);
    assert!(world.takeovers(B).is_empty());
    assert_eq!(world.state(B), State::Standby { owner: None });
    let released = Action::Share(
        SHARE,
        ShareAction::ReleaseGate {
            generation: Generation(1),
        },
    );
    assert!(world.local_actions(A).contains(&released));
    assert!(
        world
            .local_actions(B)
            .iter()
            .any(|action| matches!(action, Action::Share(_, ShareAction::EndFlows { .. })))
    );

    world.boot(A);
    world.run(2000);
    assert!(world.is_in_sync(A, B), "and may come back");
}

#[test]
fn a_standby_that_detaches_ends_its_twins_silently() {
    let mut world = World::in_sync();
    world.forget_log();
    world.goodbye(B, GoodbyeReason::Detach);
    let ended = Action::Share(
        SHARE,
        ShareAction::EndFlows {
            reason: EndReason::Quit,
        },
    );
    assert!(world.local_actions(B).contains(&ended));
    assert!(world.sides[A].entry.generation.is_none());
    let left = world.share_news(A, |news| matches!(news, ShareNews::StandbyLeft { .. }));
    assert_eq!(left.len(), 1);
}

#[test]
fn an_owner_that_forgot_its_connections_is_taken_over_at_once() {
    let mut world = World::in_sync();
    world.crash(A);
    world.boot(A); // faster than the detector
    world.run(200);
    assert_eq!(
        world.owners(),
        [B],
        "only the twins still have the connections"
    );
    world.run(1000);
    assert!(world.is_in_sync(B, A));
}

#[test]
fn a_backup_alone_claims_after_three_seconds() {
    let mut world = World::dark();
    world.boot(B);
    world.run(2990);
    assert!(world.owners().is_empty());
    world.run(20);
    assert_eq!(world.owners(), [B]);
    assert!(
        world.takeovers(B).is_empty(),
        "there was nothing to take over"
    );
    world.boot(A);
    world.run(1000);
    assert!(world.is_in_sync(B, A));
}

#[test]
fn two_owners_become_one_when_they_meet() {
    let mut world = World::in_sync();
    world.cable = false;
    world.run(1000);
    assert_eq!(world.owners(), [A, B], "without a fence a cut makes two");
    world.forget_log();
    world.cable = true;
    world.run(20);
    assert_eq!(world.owners(), [B], "the greater epoch wins");
    let [ShareNews::RoleChanged { reason, .. }] = world.share_news(A, |news| {
        matches!(
            news,
            ShareNews::RoleChanged {
                prev: State::Owner,
                ..
            }
        )
    })[..] else {
        panic!("{:?}", world.sides[A].events);
    };
    assert_eq!(reason, Reason::Superseded);
    let ended = Action::Share(
        SHARE,
        ShareAction::EndFlows {
            reason: EndReason::Superseded,
        },
    );
    assert!(world.local_actions(A).contains(&ended));
    world.run(3000);
    assert!(world.is_in_sync(B, A));
}

#[test]
fn a_stopped_standby_does_not_claim_when_it_wakes() {
    let mut world = World::in_sync();
    world.sides[B].stopped = true;
    world.run(30_000);
    assert!(world.sides[A].entry.generation.is_none());
    world.sides[B].stopped = false;
    world.run(3000);
    assert_eq!(world.owners(), [A]);
    assert!(world.takeovers(B).is_empty());
    assert!(world.is_in_sync(A, B));
}

/// Their host stood still, say. Twice in a second cost all connections: a standby
/// that is back in sync since a moment ago has no twins of those that run.
#[test]
fn two_nodes_that_stand_still_together_go_on_as_before() {
    let mut world = World::in_sync();
    world.forget_log();
    for still in [45, 50, 60, 200] {
        for side in [A, B] {
            world.sides[side].stopped = true;
        }
        world.run(still);
        for side in [A, B] {
            world.sides[side].stopped = false;
        }
        world.run(300);
        assert_eq!(world.owners(), [A], "{still} ms");
        assert!(world.is_in_sync(A, B), "{still} ms");
        assert!(world.takeovers(B).is_empty(), "{still} ms");
    }
    let left = world.share_news(A, |news| matches!(news, ShareNews::StandbyLeft { .. }));
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_peer_with_another_configuration_is_reported_and_worked_with() {
    let mut world = World::booted();
    let mut other = common::config(A, 1, None);
    other.config_digest = [9; 32];
    world.sides[A].node = Some(godwit_core::Node::new(&other, world.now));
    world.run(1000);
    assert!(world.peer_news(B).contains(&PeerNews::ConfigDiffers));
    assert!(world.is_in_sync(A, B));
}

#[test]
fn whoever_speaks_before_hello_is_ignored() {
    let mut world = World::dark();
    world.boot(A);
    let message = godwit_wire::Message::Peer(PeerMessage::Goodbye {
        reason: GoodbyeReason::Shutdown,
    });
    world.input(A, |node, now| {
        node.handle_link(PEER, godwit_core::Link::Up, now);
        node.handle_message(PEER, &message, now);
    });
    let what = "spoke before its hello";
    assert!(world.peer_news(A).contains(&PeerNews::Misbehaved { what }));
}
