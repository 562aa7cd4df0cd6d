//! What a candidate and a holder say and conclude.

use super::*;
use crate::share::Ballot;

mod power;

const A: &str = "a";

fn config(endless: bool, voters: &[&str]) -> ProposerConfig {
    ProposerConfig {
        share: SHARE,
        node: name(A),
        voters: voters.iter().map(|voter| name(voter)).collect(),
        others: vec![name("b")],
        ballot: Ballot::new(1, 0, 2),
        endless,
        terms: terms(),
        seed: 7,
    }
}

fn candidacy(held: Option<(u64, u32)>) -> Candidacy {
    Candidacy {
        above: Epoch::NONE,
        held: held.map(|(epoch, generation)| (Epoch(epoch), Generation(generation))),
        unvoted: false,
        kept: None,
        void: None,
        stagger: Duration::ZERO,
        yields: Duration::ZERO,
        fresh_after: ms(500),
        owner_has: Duration::from_millis(300),
        fence_after: MonoTime::ZERO,
    }
}

fn messages(proposer: &mut Proposer) -> Vec<LeaseMessage> {
    std::iter::from_fn(|| proposer.poll_message()).collect()
}

fn events(proposer: &mut Proposer) -> Vec<LeaseEvent> {
    std::iter::from_fn(|| proposer.poll_event()).collect()
}

/// Stands for the share and asks for promises at 100 ms.
fn candidate(endless: bool, voters: &[&str], held: Option<(u64, u32)>) -> (Proposer, Epoch) {
    let mut proposer = Proposer::new(config(endless, voters));
    proposer.handle_candidacy(candidacy(held), ms(100));
    proposer.handle_timeout(ms(100));
    let [LeaseMessage::Prepare { epoch, .. }] = messages(&mut proposer)[..] else {
        panic!("asks for promises");
    };
    (proposer, epoch)
}

fn number(proposer: &mut Proposer) -> (u64, Standing, Lease) {
    let said = messages(proposer);
    let [
        LeaseMessage::Propose {
            lease, standing, ..
        },
    ] = &said[..]
    else {
        panic!("{said:?}");
    };
    (lease.number, *standing, lease.clone())
}

/// Holds the lease, granted at 102 ms on a proposal of 101 ms.
fn holder() -> (Proposer, Epoch) {
    let (mut proposer, epoch) = candidate(false, &["a", "b", "w"], None);
    for voter in ["a", "w"] {
        proposer.handle_message(name(voter), &promise(epoch, None), ms(101));
    }
    let (number, standing, lease) = number(&mut proposer);
    assert_eq!((standing, lease.in_sync), (Standing::Elected, vec![]));
    for voter in ["a", "b"] {
        proposer.handle_message(name(voter), &accepted(epoch, number), ms(102));
    }
    let granted = LeaseEvent::Granted {
        epoch,
        member: false,
    };
    assert_eq!(events(&mut proposer)[0], granted);
    (proposer, epoch)
}

#[test]
fn the_lease_counts_from_before_the_request_and_loses_the_drift_twice() {
    let (proposer, _) = holder();
    let end = MonoTime(ms(101).0 + 60_000_000 * 998 / 1000);
    assert_eq!(proposer.expiry(), Some(end));
    assert!(proposer.is_in_force(MonoTime(end.0 - 1)) && !proposer.is_in_force(end));
}

#[test]
fn renewals_of_a_holder_are_due_every_sixth_of_a_term() {
    let (mut proposer, _) = holder();
    for at in [111, 121, 131, 141, 151] {
        assert_eq!(proposer.poll_timeout(), Some(ms(at)));
        proposer.handle_timeout(ms(at));
        let (_, standing, _) = number(&mut proposer);
        assert_eq!(standing, Standing::Unbroken);
    }
    assert_eq!(proposer.poll_timeout(), proposer.expiry());
    proposer.handle_timeout(ms(161));
    assert_eq!(events(&mut proposer), [LeaseEvent::Lapsed]);
    let (asked, standing, _) = number(&mut proposer);
    assert_eq!(standing, Standing::Asking);
    let epoch = Epoch::new(1, 1);
    for voter in ["a", "w"] {
        proposer.handle_message(name(voter), &accepted(epoch, asked), ms(162));
    }
    assert_eq!(events(&mut proposer), [], "nothing is held yet");
    let (last, standing, _) = number(&mut proposer);
    assert_eq!(standing, Standing::Lapsed);
    for voter in ["a", "w"] {
        proposer.handle_message(name(voter), &accepted(epoch, last), ms(163));
    }
    assert_eq!(
        events(&mut proposer),
        [LeaseEvent::Regained, LeaseEvent::Moved]
    );
}

#[test]
fn one_voter_is_not_enough_and_a_stranger_is_none() {
    let (mut proposer, epoch) = candidate(false, &["a", "b", "w"], None);
    for node in ["a", "x", "a"] {
        proposer.handle_message(name(node), &promise(epoch, None), ms(101));
    }
    assert_eq!(messages(&mut proposer), []);
    let earlier = promise(Epoch(epoch.0 - 1), None);
    proposer.handle_message(name("b"), &earlier, ms(101));
    assert_eq!(messages(&mut proposer), [], "of another round");
    proposer.handle_message(name("b"), &promise(epoch, None), ms(140));
    assert_eq!(messages(&mut proposer), [], "too late");
}

/// What `a` and `w` report of the last lease, and whether `a`, which holds the
/// twins of (10, 4), may serve them.
#[test]
fn only_a_standby_that_a_majority_knows_to_be_in_sync_takes_over() {
    let of = |holder, epoch, number, set: &[(&str, u32)]| {
        let in_sync = set.iter().map(|(node, generation)| stay(node, *generation));
        Some(Lease {
            in_sync: in_sync.collect(),
            ..lease(holder, epoch, number)
        })
    };
    let in_sync = |number| of("b", 10, number, &[("a", 4)]);
    let table = [
        ((in_sync(7), in_sync(7)), true),
        ((in_sync(7), in_sync(5)), true),
        ((in_sync(7), of("b", 10, 8, &[])), false), // removed
        ((in_sync(7), of("b", 10, 5, &[])), true),  // joined
        ((in_sync(7), None), false),                // forgotten
        ((None, in_sync(7)), false),
        ((in_sync(7), of("c", 11, 1, &[])), false), // another owner
        ((in_sync(7), of("b", 10, 8, &[("a", 5)])), false), // another stay
    ];
    for ((own, witness), member) in table {
        let (mut proposer, epoch) = candidate(false, &["a", "b", "w"], Some((10, 4)));
        proposer.handle_message(name("a"), &promise(epoch, own.clone()), ms(101));
        proposer.handle_message(name("w"), &promise(epoch, witness.clone()), ms(101));
        // It may wait for what the third voter knows.
        proposer.handle_timeout(ms(110));
        if !member {
            assert_eq!(
                proposer.poll_timeout(),
                Some(ms(410)),
                "{own:?} and {witness:?}"
            );
            continue;
        }
        let (number, ..) = number_of_proposal(&mut proposer);
        for voter in ["a", "w"] {
            proposer.handle_message(name(voter), &accepted(epoch, number), ms(111));
        }
        let granted = LeaseEvent::Granted { epoch, member };
        assert_eq!(events(&mut proposer)[0], granted, "{own:?} and {witness:?}");
    }
}

/// Voters know of an earlier stay, or of none. They would know of a later owner.
#[test]
fn twins_of_an_owner_without_leases_go_on_unless_another_owned_since() {
    let table = [
        (None, true),
        (Some(lease("b", 10, 7)), true),
        (Some(lease("c", 9, 7)), true),
        (Some(lease("c", 11, 7)), false),
    ];
    for (last, member) in table {
        let mut proposer = Proposer::new(config(false, &["a", "b", "w"]));
        let unvoted = Candidacy {
            unvoted: true,
            ..candidacy(Some((10, 4)))
        };
        proposer.handle_candidacy(unvoted, ms(100));
        proposer.handle_timeout(ms(100));
        let [LeaseMessage::Prepare { epoch, .. }] = messages(&mut proposer)[..] else {
            panic!("asks for promises");
        };
        proposer.handle_message(name("a"), &promise(epoch, None), ms(101));
        proposer.handle_message(name("w"), &promise(epoch, last.clone()), ms(101));
        let said = messages(&mut proposer);
        let proposes = matches!(said[..], [LeaseMessage::Propose { .. }]);
        assert_eq!(proposes, member, "{last:?}");
    }
}

/// A voter stood still for longer than a round when it was to accept, and the whole
/// attempt was in vain. Nobody spoke under it: the twins are as good as before.
#[test]
fn an_attempt_that_came_to_nothing_costs_no_connection() {
    let last = |epoch, set: &[(&str, u32)]| {
        let in_sync = set.iter().map(|(node, generation)| stay(node, *generation));
        Some(Lease {
            in_sync: in_sync.collect(),
            ..lease("b", epoch, 7)
        })
    };
    let none = Lease {
        number: 9,
        ..last(10, &[]).expect("one")
    };
    // Who is asked again, and remembers: the first attempt, of which `b` heard late; or
    // that there was none; that the set changed; that another has owned since.
    let table = [
        ("w", None, true),
        ("b", None, true),
        ("w", Some(last(10, &[("a", 4)])), true),
        ("w", Some(Some(none)), false),
        ("w", Some(last(12, &[])), false),
    ];
    for (voter, second, member) in table {
        let (mut proposer, first) = candidate(false, &["a", "b", "w"], Some((10, 4)));
        for voter in ["a", "w"] {
            let report = promise(first, last(10, &[("a", 4)]));
            proposer.handle_message(name(voter), &report, ms(101));
        }
        let (number, _) = number_of_proposal(&mut proposer);
        let late = promise(first, last(10, &[("a", 4)]));
        proposer.handle_message(name("b"), &late, ms(102));
        proposer.handle_message(name("a"), &accepted(first, number), ms(102));
        let mut at = 103;
        let next = loop {
            proposer.handle_timeout(ms(at));
            let said = messages(&mut proposer);
            let asked = said.iter().find_map(|message| {
                if let LeaseMessage::Prepare { epoch, .. } = message {
                    return Some(*epoch).filter(|epoch| *epoch > first);
                }
                None
            });
            match asked {
                Some(epoch) => break epoch,
                None => at += 1,
            }
        };
        let ours = Some(lease("a", first.0, number));
        proposer.handle_message(name("a"), &promise(next, ours.clone()), ms(at));
        let report = second.clone().unwrap_or(ours);
        proposer.handle_message(name(voter), &promise(next, report), ms(at));
        let stands = messages(&mut proposer);
        let stands = stands
            .iter()
            .any(|m| matches!(m, LeaseMessage::Propose { .. }));
        assert_eq!(stands, member, "{second:?}");
    }
}

/// The proposal among repeated requests for promises.
fn number_of_proposal(proposer: &mut Proposer) -> (u64, Standing) {
    let said = messages(proposer);
    let proposal = said.iter().find_map(|message| {
        if let LeaseMessage::Propose {
            lease, standing, ..
        } = message
        {
            return Some((lease.number, *standing));
        }
        None
    });
    proposal.expect("proposes")
}

#[test]
fn whoever_lacks_the_bytes_waits_for_those_that_have_them() {
    let (mut proposer, epoch) = candidate(false, &["a", "b", "w"], None);
    let last = Lease {
        in_sync: vec![stay("b", 4)],
        ..lease("c", 10, 1)
    };
    for voter in ["a", "w"] {
        let report = promise(epoch, Some(last.clone()));
        proposer.handle_message(name(voter), &report, ms(101));
    }
    assert_eq!(messages(&mut proposer), []);
    assert_eq!(proposer.poll_timeout(), Some(ms(500)), "fresh_after");
}

/// It told the voters that the old owner was in sync, and could not take it in for
/// ever after: nothing was left to be agreed upon.
#[test]
fn who_is_handed_a_share_without_its_twins_has_nobody_in_sync() {
    for twins in [true, false] {
        let (mut proposer, epoch) = candidate(false, &["a", "b", "w"], Some((10, 4)));
        proposer.handle_stay(Some(stay("b", 4)));
        let set = if twins {
            vec![stay("a", 4)]
        } else {
            Vec::new()
        };
        let last = Some(Report {
            lease: Lease {
                in_sync: set,
                ..lease("b", 10, 1)
            },
            released: true,
        });
        for voter in ["a", "b", "w"] {
            let last = last.clone();
            let share = SHARE;
            let report = LeaseMessage::Promise { share, epoch, last };
            proposer.handle_message(name(voter), &report, ms(101));
        }
        let (_, _, lease) = number(&mut proposer);
        let expected: Vec<_> = twins.then(|| stay("b", 4)).into_iter().collect();
        assert_eq!(lease.in_sync, expected);
    }
}

#[test]
fn an_owner_that_lapsed_alone_is_waited_for_unless_it_gave_up() {
    for (released, wait) in [(false, Some(ms(401))), (true, None)] {
        let (mut proposer, epoch) = candidate(false, &["a", "b", "w"], None);
        for voter in ["a", "w"] {
            let last = Some(Report {
                lease: lease("b", 10, 1),
                released,
            });
            let report = LeaseMessage::Promise {
                share: SHARE,
                epoch,
                last,
            };
            proposer.handle_message(name(voter), &report, ms(101));
        }
        assert_eq!(messages(&mut proposer).is_empty(), wait.is_some());
        let Some(wait) = wait else { continue };
        assert_eq!(proposer.poll_timeout(), Some(wait), "owner_has");
        proposer.handle_timeout(wait);
        assert!(matches!(
            messages(&mut proposer)[..],
            [LeaseMessage::Prepare { .. }]
        ));
    }
}

#[test]
fn a_candidate_tries_again_when_the_leases_in_its_way_end() {
    let (mut proposer, epoch) = candidate(false, &["a", "b", "w"], None);
    let held = |left| refused(epoch, 0, Refusal::Held, (10, "c"), left);
    proposer.handle_message(name("a"), &held(20), ms(101));
    assert_eq!(proposer.poll_timeout(), Some(ms(110)), "one may be wrong");
    proposer.handle_message(name("w"), &held(30), ms(101));
    assert_eq!(proposer.poll_timeout(), Some(ms(131)), "both are needed");
    proposer.handle_timeout(ms(131));
    let [LeaseMessage::Prepare { epoch: next, .. }] = messages(&mut proposer)[..] else {
        panic!("asks again");
    };
    assert!(next > epoch && next > Epoch(10));
}

#[test]
fn a_round_that_comes_to_nothing_gives_back_what_it_got() {
    let (mut proposer, epoch) = candidate(false, &["a", "b", "w"], None);
    for voter in ["a", "w"] {
        proposer.handle_message(name(voter), &promise(epoch, None), ms(101));
    }
    let (number, ..) = number(&mut proposer);
    proposer.handle_message(name("a"), &accepted(epoch, number), ms(102));
    let taken = refused(epoch, number, Refusal::Promised, (99, "b"), 50);
    proposer.handle_message(name("b"), &taken, ms(103));
    proposer.handle_message(name("w"), &taken, ms(103));
    let said = messages(&mut proposer);
    let [LeaseMessage::Release { epoch: given, .. }] = said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(given, epoch);
    assert!(proposer.poll_timeout() > Some(ms(103)), "and tries again");
}

#[test]
fn a_change_of_the_set_is_agreed_when_a_majority_has_it() {
    let (mut proposer, epoch) = holder();
    let revision = proposer.handle_in_sync(vec![stay("b", 1)], ms(105));
    assert_eq!(
        proposer.handle_in_sync(vec![stay("b", 1)], ms(105)),
        revision
    );
    assert_eq!(proposer.poll_timeout(), Some(ms(105)), "at once");
    proposer.handle_timeout(ms(105));
    let (number, _, lease) = number(&mut proposer);
    assert_eq!(lease.in_sync, [stay("b", 1)]);
    proposer.handle_message(name("a"), &accepted(epoch, number), ms(106));
    assert_eq!(events(&mut proposer), []);
    proposer.handle_message(name("w"), &accepted(epoch, number), ms(106));
    let expected = [LeaseEvent::Moved, LeaseEvent::Agreed { revision }];
    assert_eq!(events(&mut proposer), expected);
}

#[test]
fn a_change_of_the_set_that_was_taken_back_is_not_agreed_by_a_late_answer() {
    let (mut proposer, epoch) = holder();
    let revision = proposer.handle_in_sync(vec![stay("b", 1)], ms(105));
    proposer.handle_timeout(ms(105));
    let (changed, _, lease) = number(&mut proposer);
    assert_eq!(lease.in_sync, [stay("b", 1)]);
    // Nobody is heard: from here on it proposes the set that was agreed upon.
    for at in [115, 125] {
        proposer.handle_timeout(ms(at));
    }
    let said = messages(&mut proposer);
    let [_, LeaseMessage::Propose { lease, .. }] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(lease.in_sync, []);

    // Who says now that it accepted the change may have accepted that as well.
    for voter in ["a", "w"] {
        proposer.handle_message(name(voter), &accepted(epoch, changed), ms(126));
    }
    assert_eq!(events(&mut proposer), [LeaseEvent::Moved]);
    assert_eq!(proposer.poll_timeout(), Some(ms(126)), "asked for anew");
    proposer.handle_timeout(ms(126));
    let (again, _, lease) = number(&mut proposer);
    assert_eq!(lease.in_sync, [stay("b", 1)]);
    for voter in ["a", "w"] {
        proposer.handle_message(name(voter), &accepted(epoch, again), ms(127));
    }
    let expected = [LeaseEvent::Moved, LeaseEvent::Agreed { revision }];
    assert_eq!(events(&mut proposer), expected);
}

/// A holder that lost its lease at 161 ms.
fn lapsed() -> (Proposer, Epoch, u64) {
    let (mut proposer, epoch) = holder();
    proposer.handle_timeout(ms(161));
    events(&mut proposer);
    let (number, ..) = number_of_proposal(&mut proposer);
    (proposer, epoch, number)
}

#[test]
fn a_lapsed_lease_is_lost_when_a_majority_knows_better() {
    let (mut proposer, epoch, number) = lapsed();
    let taken = refused(epoch, number, Refusal::Promised, (99, "b"), 50);
    for voter in ["b", "w"] {
        proposer.handle_message(name(voter), &taken, ms(162));
    }
    assert_eq!(events(&mut proposer), [], "that candidate may yet fail");
    // The new owner has accepted its own lease, even if it is dead by now.
    let later = epoch.0 + 1;
    let owned = refused(epoch, number, Refusal::Superseded, (later, "b"), 0);
    proposer.handle_message(name("w"), &owned, ms(163));
    let to = Some((Epoch(later), name("b")));
    assert_eq!(events(&mut proposer), [LeaseEvent::Lost { to }]);
    assert!(proposer.is_idle());
}

/// When a lapsed holder gives up whom `a` says yes to, and `w` no; and what it says then.
fn given_up(refusal: Refusal, by: impl Fn(Epoch) -> (u64, &'static str)) -> (u64, LeaseEvent) {
    let (mut proposer, epoch, _) = lapsed();
    for at in (171..2000).step_by(10) {
        proposer.handle_timeout(ms(at));
        if proposer.is_idle() {
            let [event] = &events(&mut proposer)[..] else {
                panic!("one event");
            };
            return (at - 161, event.clone());
        }
        let (number, ..) = number_of_proposal(&mut proposer);
        proposer.handle_message(name("a"), &accepted(epoch, number), ms(at));
        let no = refused(epoch, number, refusal, by(epoch), 0);
        proposer.handle_message(name("w"), &no, ms(at));
    }
    panic!("hopes for ever");
}

#[test]
fn a_lapsed_lease_is_given_up_when_a_majority_answers_in_vain() {
    let (after, event) = given_up(Refusal::Held, |epoch| (epoch.0 + 1, "w"));
    assert!((60..80).contains(&after), "{after}");
    assert!(
        matches!(event, LeaseEvent::Lost { to: Some(_) }),
        "{event:?}"
    );
}

/// A voter that knows of no later lease is behind: one that is not may be about to come back.
#[test]
fn a_lapsed_holder_waits_for_a_voter_that_remembers_it() {
    let (after, event) = given_up(Refusal::Forgotten, |_| (0, ""));
    assert!((1000..1020).contains(&after), "{after}");
    assert_eq!(event, LeaseEvent::Lost { to: None });
    let (after, event) = given_up(Refusal::Superseded, |epoch| (epoch.0 - 1, "a"));
    assert!((1000..1020).contains(&after), "{after}");
    assert_eq!(event, LeaseEvent::Lost { to: None });
}

/// Voters that stand still for a while say yes too late, again and again: nobody else has
/// the share, and connections are not ended for that.
#[test]
fn slow_voters_do_not_cost_a_lapsed_holder_its_connections() {
    let (mut proposer, epoch, first) = lapsed();
    let mut asked = vec![first];
    for at in (171..1000).step_by(10) {
        proposer.handle_timeout(ms(at));
        let (number, ..) = number_of_proposal(&mut proposer);
        asked.push(number);
        // 70 ms old: what it asked for is over.
        let Some(late) = asked.len().checked_sub(8).map(|index| asked[index]) else {
            continue;
        };
        for voter in ["a", "w"] {
            proposer.handle_message(name(voter), &accepted(epoch, late), ms(at));
        }
        assert!(proposer.has_lapsed() && events(&mut proposer).is_empty());
    }
    proposer.handle_timeout(ms(1001));
    for expected in [Standing::Asking, Standing::Lapsed] {
        let (number, standing) = number_of_proposal(&mut proposer);
        assert_eq!(standing, expected);
        for voter in ["a", "w"] {
            proposer.handle_message(name(voter), &accepted(epoch, number), ms(1002));
        }
    }
    assert_eq!(events(&mut proposer)[0], LeaseEvent::Regained);
}

#[test]
fn without_answers_a_lapsed_holder_keeps_hoping() {
    let (mut proposer, ..) = lapsed();
    for at in (171..5000).step_by(10) {
        proposer.handle_timeout(ms(at));
    }
    assert!(proposer.has_lapsed() && events(&mut proposer).is_empty());
}

#[test]
fn a_release_is_repeated_and_the_share_wanted_back_after_two_terms() {
    let (mut proposer, epoch) = holder();
    proposer.handle_release(ms(110));
    assert_eq!(events(&mut proposer), [LeaseEvent::Lapsed]);
    assert!(!proposer.is_in_force(ms(110)));
    let mut releases = 0;
    for at in (110..230).step_by(10) {
        proposer.handle_timeout(ms(at));
        let said = messages(&mut proposer);
        let [LeaseMessage::Release { .. }] = said[..] else {
            panic!("{said:?} at {at}");
        };
        releases += 1;
    }
    assert_eq!(releases, 12);
    proposer.handle_timeout(ms(230));
    for expected in [Standing::Asking, Standing::Lapsed] {
        let (number, standing) = number_of_proposal(&mut proposer);
        assert_eq!(standing, expected);
        for voter in ["a", "w"] {
            proposer.handle_message(name(voter), &accepted(epoch, number), ms(231));
        }
    }
    assert_eq!(events(&mut proposer)[0], LeaseEvent::Regained);
}

#[test]
fn a_share_that_was_given_back_can_be_asked_for_at_once() {
    let (mut proposer, _) = holder();
    proposer.handle_release(ms(110));
    proposer.handle_timeout(ms(110));
    messages(&mut proposer);
    proposer.handle_reclaim(ms(112));
    assert_eq!(proposer.poll_timeout(), Some(ms(112)));
    proposer.handle_timeout(ms(112));
    let (_, standing) = number_of_proposal(&mut proposer);
    assert_eq!(standing, Standing::Asking);
}

#[test]
fn a_long_lease_bridges_a_restart() {
    let (mut proposer, epoch) = holder();
    assert!(!proposer.is_prolonged(ms(105)));
    proposer.handle_prolongation(ms(105));
    proposer.handle_timeout(ms(105));
    let (long, ..) = number_of_proposal(&mut proposer);
    for voter in ["b", "w"] {
        proposer.handle_message(name(voter), &accepted(epoch, long), ms(106));
    }
    assert!(proposer.is_prolonged(ms(106)));
    let expiry = proposer.expiry().expect("a lease");
    assert_eq!(expiry, MonoTime(ms(105).0 + 200_000_000 * 998 / 1000));

    let set = vec![stay("b", 3)];
    let config = config(false, &["a", "b", "w"]);
    let mut next = Proposer::resume(config, epoch, expiry, set.clone(), ms(150));
    next.handle_timeout(ms(150));
    let (first, standing, lease) = number(&mut next);
    assert_eq!((standing, &lease.in_sync), (Standing::Unbroken, &set));
    let left = terms().own(Duration::from_nanos(lease.term_ns));
    assert!(ms(150).saturating_add(left) >= expiry, "not given up yet");
    assert_eq!(next.expiry(), Some(expiry));
    for voter in ["b", "w"] {
        next.handle_message(name(voter), &accepted(epoch, first), ms(151));
    }
    next.handle_timeout(ms(160));
    let (.., lease) = number(&mut next);
    assert_eq!(lease.term_ns, 60_000_000);
    let short = MonoTime(ms(160).0 + 60_000_000 * 998 / 1000);
    assert_eq!(next.expiry(), Some(short), "voters count from here now");
}

#[test]
fn a_candidate_that_hears_a_holder_gives_its_round_up() {
    let (mut waiting, epoch) = candidate(false, &["a", "b", "w"], None);
    assert!(waiting.handle_holder_heard() && waiting.is_idle());
    assert!(!waiting.handle_holder_heard());
    let (mut proposing, _) = candidate(false, &["a", "b", "w"], None);
    for voter in ["a", "w"] {
        proposing.handle_message(name(voter), &promise(epoch, None), ms(101));
    }
    assert!(
        !proposing.handle_holder_heard(),
        "a majority knows of no holder"
    );
    let (mut holder, _) = holder();
    assert!(!holder.handle_holder_heard());
}

#[test]
fn an_epoch_is_above_every_one_heard_of() {
    let mut proposer = Proposer::new(config(false, &["a", "b", "w"]));
    let candidacy = Candidacy {
        above: Epoch::new(5, 5),
        ..candidacy(None)
    };
    proposer.handle_candidacy(candidacy, ms(100));
    proposer.handle_timeout(ms(100));
    let [LeaseMessage::Prepare { epoch, .. }] = messages(&mut proposer)[..] else {
        panic!("asks for promises");
    };
    assert!(epoch > Epoch::new(5, 5));
}

#[test]
fn a_withdrawn_candidate_is_silent() {
    let (mut proposer, epoch) = candidate(false, &["a", "b", "w"], None);
    proposer.handle_withdrawal(ms(101));
    for voter in ["a", "w"] {
        proposer.handle_message(name(voter), &promise(epoch, None), ms(101));
    }
    assert_eq!(
        (messages(&mut proposer), proposer.poll_timeout()),
        (vec![], None)
    );
}
