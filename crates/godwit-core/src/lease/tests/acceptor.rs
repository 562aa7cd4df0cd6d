//! What a voter promises, accepts and refuses.

use super::*;

/// An acceptor whose quarantine is over.
fn acceptor() -> Acceptor {
    Acceptor::new(terms(), [(SHARE, false)], MonoTime::ZERO)
}

/// The start of all tables: quarantine has ended long ago.
const T0: u64 = 1_000;

fn hear(acceptor: &mut Acceptor, from: &str, message: LeaseMessage, at: u64) -> LeaseMessage {
    silent(acceptor, from, message, at).expect("an answer")
}

fn silent(
    acceptor: &mut Acceptor,
    from: &str,
    message: LeaseMessage,
    at: u64,
) -> Option<LeaseMessage> {
    let speaker = Speaker {
        node: name(from),
        incarnation: 1,
    };
    acceptor.handle_message(speaker, &message, ms(at));
    let (to, answer) = acceptor.poll_answer()?;
    assert_eq!((to, acceptor.poll_answer()), (name(from), None));
    Some(answer)
}

fn prepare(epoch: u64) -> LeaseMessage {
    LeaseMessage::Prepare {
        share: SHARE,
        epoch: Epoch(epoch),
        void: Epoch::NONE,
    }
}

fn propose(holder: &str, epoch: u64, number: u64, standing: Standing) -> LeaseMessage {
    LeaseMessage::Propose {
        share: SHARE,
        lease: lease(holder, epoch, number),
        standing,
        void: Epoch::NONE,
    }
}

fn release(epoch: u64, number: u64) -> LeaseMessage {
    LeaseMessage::Release {
        share: SHARE,
        epoch: Epoch(epoch),
        number,
    }
}

/// `node` asks for a promise and is accepted.
fn elect(acceptor: &mut Acceptor, node: &str, epoch: u64, at: u64) {
    hear(acceptor, node, prepare(epoch), at);
    let first = propose(node, epoch, 1, Standing::Elected);
    let answer = hear(acceptor, node, first, at);
    assert_eq!(answer, accepted(Epoch(epoch), 1));
}

/// `a` holds the share under epoch 10, and was heard at `T0`.
fn leased() -> Acceptor {
    let mut acceptor = acceptor();
    let renewal = propose("a", 10, 1, Standing::Unbroken);
    assert_eq!(
        hear(&mut acceptor, "a", renewal, T0),
        accepted(Epoch(10), 1)
    );
    acceptor
}

#[test]
fn a_lease_in_force_keeps_everybody_else_out() {
    let mut acceptor = leased();
    let held = |epoch, number, left| refused(Epoch(epoch), number, Refusal::Held, (10, "a"), left);
    assert_eq!(
        hear(&mut acceptor, "b", prepare(11), T0 + 59),
        held(11, 0, 1)
    );
    for standing in Standing::ALL {
        let other = propose("b", 11, 1, *standing);
        assert_eq!(hear(&mut acceptor, "b", other, T0 + 59), held(11, 1, 1));
    }
    let last = lease("a", 10, 1);
    let over = hear(&mut acceptor, "b", prepare(11), T0 + 60);
    assert_eq!(over, promise(Epoch(11), Some(last)), "and it is remembered");
}

#[test]
fn a_renewal_starts_the_timer_again_and_a_repetition_does_not() {
    let mut acceptor = leased();
    let renewal = || propose("a", 10, 5, Standing::Unbroken);
    assert_eq!(
        hear(&mut acceptor, "a", renewal(), T0 + 10),
        accepted(Epoch(10), 5)
    );
    assert_eq!(
        hear(&mut acceptor, "a", renewal(), T0 + 50),
        accepted(Epoch(10), 5)
    );
    let overtaken = propose("a", 10, 4, Standing::Unbroken);
    assert_eq!(silent(&mut acceptor, "a", overtaken, T0 + 50), None);
    let view = acceptor.view(SHARE).expect("known");
    assert_eq!((view.lease.number, view.expires), (5, ms(T0 + 70)));
    assert!(view.is_in_force(ms(T0 + 69)) && !view.is_in_force(ms(T0 + 70)));
}

#[test]
fn a_promise_keeps_lesser_epochs_out_for_a_round_and_a_term() {
    let mut acceptor = acceptor();
    assert_eq!(
        hear(&mut acceptor, "b", prepare(20), T0),
        promise(Epoch(20), None)
    );
    assert_eq!(
        hear(&mut acceptor, "b", prepare(20), T0 + 1),
        promise(Epoch(20), None),
        "asked again"
    );
    let kept =
        |epoch, number, left| refused(Epoch(epoch), number, Refusal::Promised, (20, "b"), left);
    assert_eq!(
        hear(&mut acceptor, "a", prepare(20), T0 + 1),
        kept(20, 0, 90)
    );
    for standing in Standing::ALL {
        let lesser = propose("a", 19, 1, *standing);
        assert_eq!(hear(&mut acceptor, "a", lesser, T0 + 90), kept(19, 1, 1));
    }
    assert_eq!(
        hear(&mut acceptor, "c", prepare(21), T0 + 2),
        promise(Epoch(21), None)
    );
    let late = propose("a", 19, 1, Standing::Unbroken);
    assert_eq!(
        hear(&mut acceptor, "a", late, T0 + 93),
        accepted(Epoch(19), 1)
    );
}

#[test]
fn what_was_promised_to_ourselves_can_be_given_up() {
    let mut acceptor = acceptor();
    hear(&mut acceptor, "b", prepare(20), T0);
    let holder = || propose("a", 19, 1, Standing::Unbroken);
    let kept = refused(Epoch(19), 1, Refusal::Promised, (20, "b"), 90);
    acceptor.handle_given_up(SHARE, name("c"));
    assert_eq!(hear(&mut acceptor, "a", holder(), T0), kept, "another's");
    acceptor.handle_given_up(SHARE, name("b"));
    assert_eq!(
        hear(&mut acceptor, "a", holder(), T0),
        accepted(Epoch(19), 1)
    );
}

#[test]
fn what_it_has_voted_for_binds_the_next_life_and_no_longer() {
    assert_eq!(acceptor().bound_until(name("w"), ms(T0)), ms(0), "nothing");
    let mut voter = leased();
    assert_eq!(
        voter.bound_until(name("w"), ms(T0)),
        ms(T0 + 60),
        "its lease"
    );
    hear(&mut voter, "a", prepare(11), T0);
    assert_eq!(
        voter.bound_until(name("w"), ms(T0)),
        ms(T0 + 90),
        "its promise"
    );
    let mut voter = leased();
    assert_eq!(silent(&mut voter, "a", release(10, 2), T0), None);
    assert_eq!(
        voter.bound_until(name("w"), ms(T0)),
        ms(0),
        "it was given back"
    );
    // A lease without an end, and a life that began in the middle of a quarantine.
    let endless = Lease {
        term_ns: Lease::ENDLESS,
        ..lease("a", 10, 1)
    };
    let mut voter = Acceptor::new(terms(), [(SHARE, true)], ms(T0 + 7));
    assert_eq!(voter.bound_until(name("w"), ms(T0)), ms(T0 + 7));
    let proposed = LeaseMessage::Propose {
        share: SHARE,
        lease: endless,
        standing: Standing::Unbroken,
        void: Epoch::NONE,
    };
    hear(&mut voter, "a", proposed, T0 + 7);
    assert_eq!(voter.bound_until(name("w"), ms(T0 + 7)), ms(T0 + 237));
    // What its own node holds is in the data path for the next life to find.
    let mut holder = leased();
    assert_eq!(
        holder.bound_until(name("a"), ms(T0)),
        ms(0),
        "its own lease"
    );
    hear(&mut holder, "a", prepare(11), T0);
    assert_eq!(
        holder.bound_until(name("a"), ms(T0)),
        ms(T0 + 90),
        "a promise"
    );
}

#[test]
fn after_a_restart_nothing_is_said_for_the_longest_lease_and_a_round() {
    let mut acceptor = Acceptor::new(terms(), [(SHARE, false)], ms(T0 + 230));
    assert_eq!(acceptor.quiet_until(), ms(T0 + 230));
    let quiet =
        |epoch, number, left| refused(Epoch(epoch), number, Refusal::Quarantine, (0, ""), left);
    assert_eq!(
        hear(&mut acceptor, "b", prepare(9), T0 + 229),
        quiet(9, 0, 1)
    );
    let renewal = propose("a", 8, 7, Standing::Unbroken);
    assert_eq!(hear(&mut acceptor, "a", renewal, T0), quiet(8, 7, 230));
    assert!(acceptor.view(SHARE).is_none());
    assert_eq!(
        hear(&mut acceptor, "b", prepare(9), T0 + 230),
        promise(Epoch(9), None)
    );
}

#[test]
fn a_holder_whose_lease_has_ended_must_be_the_last_that_is_remembered() {
    // (who was the last to hold, under which epoch, the answer to `a` under 10)
    let superseded = |epoch, holder| Some((Refusal::Superseded, (epoch, holder)));
    let table = [
        (None, Some((Refusal::Forgotten, (0, "")))),
        (Some(("a", 10)), None),
        (Some(("b", 11)), superseded(11, "b")),
        (Some(("b", 9)), superseded(9, "b")),
        (Some(("a", 9)), superseded(9, "a")),
    ];
    for (last, refusal) in table {
        let mut acceptor = acceptor();
        if let Some((holder, epoch)) = last {
            let before = propose(holder, epoch, 1, Standing::Unbroken);
            hear(&mut acceptor, holder, before, T0);
        }
        let answer = hear(
            &mut acceptor,
            "a",
            propose("a", 10, 5, Standing::Lapsed),
            T0 + 60,
        );
        let expected = match refusal {
            Some((refusal, by)) => refused(Epoch(10), 5, refusal, by, 0),
            None => accepted(Epoch(10), 5),
        };
        assert_eq!(answer, expected, "after {last:?}");
    }
}

#[test]
fn asking_is_answered_and_changes_nothing() {
    let mut acceptor = leased();
    let asks = propose("a", 10, 7, Standing::Asking);
    assert_eq!(
        hear(&mut acceptor, "a", asks, T0 + 60),
        accepted(Epoch(10), 7)
    );
    let view = acceptor.view(SHARE).expect("known");
    assert_eq!((view.lease.number, view.expires), (1, ms(T0 + 60)));
}

#[test]
fn a_promise_of_this_life_is_memory_enough() {
    let mut acceptor = acceptor();
    hear(&mut acceptor, "a", prepare(10), T0);
    let lapsed = propose("a", 10, 5, Standing::Lapsed);
    assert_eq!(
        hear(&mut acceptor, "a", lapsed, T0 + 500),
        accepted(Epoch(10), 5)
    );
}

#[test]
fn a_holder_in_force_overrules_what_came_to_nothing() {
    let mut acceptor = acceptor();
    let holder = |ms: u64| propose("a", 10, ms * 1_000_000, Standing::Unbroken);
    hear(&mut acceptor, "a", holder(3), T0 - 60);
    elect(&mut acceptor, "b", 11, T0);
    let held = refused(Epoch(10), 122_000_000, Refusal::Held, (11, "b"), 1);
    let early = hear(&mut acceptor, "a", holder(122), T0 + 59);
    assert_eq!(early, held, "not yet");
    let promised = refused(Epoch(10), 152_000_000, Refusal::Promised, (11, "b"), 1);
    let early = hear(&mut acceptor, "a", holder(152), T0 + 89);
    assert_eq!(early, promised, "nor while b may come back to it");
    assert_eq!(
        hear(&mut acceptor, "a", holder(153), T0 + 90),
        accepted(Epoch(10), 153_000_000)
    );
}

#[test]
fn an_epoch_that_was_leased_is_not_promised_again() {
    let mut acceptor = leased();
    for epoch in [9, 10] {
        let answer = hear(&mut acceptor, "b", prepare(epoch), T0 + 60);
        let superseded = refused(Epoch(epoch), 0, Refusal::Superseded, (10, "a"), 0);
        assert_eq!(answer, superseded);
        let elected = propose("b", epoch - 1, 9, Standing::Elected);
        let answer = hear(&mut acceptor, "b", elected, T0 + 60);
        let superseded = refused(Epoch(epoch - 1), 9, Refusal::Superseded, (10, "a"), 0);
        assert_eq!(answer, superseded);
    }
}

#[test]
fn a_lease_given_back_is_free_at_once_but_remembered() {
    let mut acceptor = leased();
    assert_eq!(silent(&mut acceptor, "b", release(10, 2), T0 + 1), None);
    assert_eq!(silent(&mut acceptor, "a", release(9, 2), T0 + 1), None);
    assert_eq!(silent(&mut acceptor, "a", release(10, 1), T0 + 1), None);
    assert!(
        acceptor.view(SHARE).expect("known").is_in_force(ms(T0 + 1)),
        "none fits"
    );

    assert_eq!(silent(&mut acceptor, "a", release(10, 9), T0 + 1), None);
    let overtaken = propose("a", 10, 8, Standing::Unbroken);
    assert_eq!(silent(&mut acceptor, "a", overtaken, T0 + 2), None);
    let LeaseMessage::Promise {
        last: Some(report), ..
    } = hear(&mut acceptor, "b", prepare(11), T0 + 2)
    else {
        panic!("no promise");
    };
    assert!(report.released && report.lease.epoch == Epoch(10));
    // Or who missed a change of the in-sync set had the last word on it.
    assert_eq!(report.lease.number, 1, "what was accepted, not the release");
}

/// It was sent before its host was stopped, and had the voter forget who had
/// owned since: the first owner had its lease back, and its old sockets spoke.
#[test]
fn a_proposal_that_comes_late_overrules_nothing() {
    let mut acceptor = leased();
    elect(&mut acceptor, "b", 11, T0 + 60);
    let late = propose("a", 10, 2, Standing::Unbroken);
    let superseded = refused(Epoch(10), 2, Refusal::Superseded, (11, "b"), 0);
    assert_eq!(hear(&mut acceptor, "a", late, T0 + 150), superseded);
    let number = 150_000_000;
    let fresh = propose("a", 10, number, Standing::Unbroken);
    assert_eq!(
        hear(&mut acceptor, "a", fresh, T0 + 151),
        accepted(Epoch(10), number)
    );
}

/// Two in a row were held up, and the voter was restarted: the second took as long
/// as the first, which says nothing of either.
#[test]
fn what_is_heard_first_behind_another_lease_overrules_nothing() {
    for listened in [false, true] {
        // Quarantine has begun just now.
        let mut acceptor = Acceptor::new(terms(), [(SHARE, false)], ms(T0 + 230));
        let holder = |ms: u64| propose("a", 10, ms * 1_000_000, Standing::Unbroken);
        let over = T0 + 231;
        if listened {
            let quiet = hear(&mut acceptor, "a", holder(100), T0 + 100);
            let wanted = refused(Epoch(10), 100_000_000, Refusal::Quarantine, (0, ""), 130);
            assert_eq!(quiet, wanted);
        }
        let other = propose("b", 11, 1, Standing::Unbroken);
        assert_eq!(
            hear(&mut acceptor, "b", other, over),
            accepted(Epoch(11), 1)
        );
        let superseded = |number| refused(Epoch(10), number, Refusal::Superseded, (11, "b"), 0);
        for number in [140, 150] {
            let late = hear(&mut acceptor, "a", holder(number), over + 60 + number - 140);
            assert_eq!(late, superseded(number * 1_000_000), "{listened}");
        }
        // A holder that was heard in the quarantine is in time, or is not.
        let number = 100 + over + 100 - (T0 + 100);
        let fresh = hear(&mut acceptor, "a", holder(number), over + 101);
        let number = number * 1_000_000;
        if listened {
            assert_eq!(fresh, accepted(Epoch(10), number));
        } else {
            assert_eq!(fresh, superseded(number));
        }
    }
}

#[test]
fn leases_too_long_to_be_remembered_are_refused() {
    for (endless, term_ns, fits) in [
        (false, 200_000_000, true),
        (false, 200_000_001, false),
        (false, Lease::ENDLESS, false),
        (true, Lease::ENDLESS, true),
        (true, 60_000_000, false),
    ] {
        let mut acceptor = Acceptor::new(terms(), [(SHARE, endless)], MonoTime::ZERO);
        let mut long = lease("a", 10, 1);
        long.term_ns = term_ns;
        let message = LeaseMessage::Propose {
            share: SHARE,
            lease: long,
            standing: Standing::Unbroken,
            void: Epoch::NONE,
        };
        let expected = if fits {
            accepted(Epoch(10), 1)
        } else {
            refused(Epoch(10), 1, Refusal::TooLong, (0, ""), 0)
        };
        assert_eq!(hear(&mut acceptor, "a", message, T0), expected, "{term_ns}");
    }
}

#[test]
fn the_lease_of_a_node_without_power_is_void_and_no_other_is() {
    let mut acceptor = leased();
    let ask = |void| LeaseMessage::Prepare {
        share: SHARE,
        epoch: Epoch(11),
        void: Epoch(void),
    };
    let held = refused(Epoch(11), 0, Refusal::Held, (10, "a"), 60);
    assert_eq!(hear(&mut acceptor, "b", ask(9), T0), held);
    let last = lease("a", 10, 1);
    assert_eq!(
        hear(&mut acceptor, "b", ask(10), T0),
        promise(Epoch(11), Some(last))
    );
}

#[test]
fn what_the_data_path_remembers_is_kept_from_others() {
    let mut acceptor = acceptor();
    acceptor.handle_inherited(SHARE, lease("a", 10, 0), ms(T0 + 5));
    let held = refused(Epoch(11), 0, Refusal::Held, (10, "a"), 5);
    assert_eq!(hear(&mut acceptor, "b", prepare(11), T0), held);
    assert!(acceptor.view(SHARE).is_none());
    let lapsed = propose("a", 10, 1, Standing::Lapsed);
    let forgotten = refused(Epoch(10), 1, Refusal::Forgotten, (0, ""), 0);
    assert_eq!(
        hear(&mut acceptor, "a", lapsed, T0),
        forgotten,
        "it says no more"
    );
    let renewal = propose("a", 10, 1, Standing::Unbroken);
    assert_eq!(
        hear(&mut acceptor, "a", renewal, T0),
        accepted(Epoch(10), 1)
    );
}

#[test]
fn strangers_and_answers_are_ignored() {
    let mut acceptor = acceptor();
    let forged = propose("a", 10, 1, Standing::Elected);
    assert_eq!(silent(&mut acceptor, "b", forged, T0), None, "not its own");
    let unknown = LeaseMessage::Prepare {
        share: ShareId(9),
        epoch: Epoch(1),
        void: Epoch::NONE,
    };
    assert_eq!(silent(&mut acceptor, "b", unknown, T0), None);
    assert_eq!(silent(&mut acceptor, "b", accepted(Epoch(1), 1), T0), None);
    assert_eq!(
        silent(&mut acceptor, "b", promise(Epoch(1), None), T0),
        None
    );
}

/// What a candidate knows of this voter from its promise is all there is to know.
#[test]
fn between_a_promise_and_the_first_lease_nothing_is_accepted() {
    let mut acceptor = leased();
    hear(&mut acceptor, "b", prepare(11), T0 + 60);
    let holder = |ms: u64| propose("a", 10, ms * 1_000_000, Standing::Unbroken);
    let answer = hear(&mut acceptor, "a", holder(150), T0 + 149);
    assert_eq!(
        answer,
        refused(Epoch(10), 150_000_000, Refusal::Promised, (11, "b"), 1)
    );
    // The promise is over: the holder may have changed the set meanwhile.
    let first = propose("b", 11, 1, Standing::Elected);
    let superseded = refused(Epoch(11), 1, Refusal::Superseded, (10, "a"), 0);
    assert_eq!(hear(&mut acceptor, "b", first, T0 + 150), superseded);
    // Nor behind a lease of a greater epoch, which needs no promise to be renewed.
    let mut acceptor = leased();
    hear(&mut acceptor, "b", prepare(11), T0 + 60);
    let other = propose("a", 12, 1, Standing::Unbroken);
    hear(&mut acceptor, "a", other, T0 + 60);
    silent(&mut acceptor, "a", release(12, 2), T0 + 61);
    let first = propose("b", 11, 1, Standing::Elected);
    let superseded = refused(Epoch(11), 1, Refusal::Superseded, (12, "a"), 0);
    assert_eq!(hear(&mut acceptor, "b", first, T0 + 62), superseded);
    // Nor does a voter accept it that was restarted since, and promised nothing.
    let mut restarted = self::acceptor();
    let first = propose("b", 11, 1, Standing::Elected);
    assert!(matches!(
        hear(&mut restarted, "b", first, T0 + 80),
        LeaseMessage::Refused {
            refusal: Refusal::Forgotten,
            ..
        }
    ));
    // And it is not given again, to a request that was under way for long.
    let mut acceptor = leased();
    hear(&mut acceptor, "b", prepare(11), T0 + 60);
    let refused = refused(Epoch(11), 0, Refusal::Promised, (11, "b"), 0);
    assert_eq!(hear(&mut acceptor, "b", prepare(11), T0 + 151), refused);
    let next = hear(&mut acceptor, "b", prepare(12), T0 + 151);
    assert!(matches!(next, LeaseMessage::Promise { .. }), "{next:?}");
}

/// That a lease was given back is kept before the data path falls silent. If the agent is
/// killed in between, the next one finds the lease there.
#[test]
fn a_lease_that_the_data_path_has_yet_outweighs_a_release_that_was_kept() {
    let mut acceptor = leased();
    silent(&mut acceptor, "a", release(10, 2), T0 + 10);
    let text = acceptor.take_news().expect("it has voted");
    assert_eq!(acceptor.take_news(), None, "once");
    let memory = || Acceptor::of_text(&text, terms()).expect("it is whole");
    for found in [false, true] {
        let mut next = self::acceptor();
        if found {
            next.handle_inherited(SHARE, lease("a", 10, 1), ms(T0 + 100));
        }
        next.remember(memory());
        let answer = hear(&mut next, "b", prepare(11), T0 + 20);
        let promised = matches!(answer, LeaseMessage::Promise { .. });
        assert_eq!(promised, !found, "{answer:?}");
    }
}

#[test]
fn what_changes_no_vote_is_no_news() {
    let mut acceptor = leased();
    assert!(acceptor.take_news().is_some());
    hear(&mut acceptor, "b", prepare(11), T0 + 10);
    assert_eq!(acceptor.take_news(), None, "refused");
    let renewed = propose("a", 10, 2, Standing::Unbroken);
    hear(&mut acceptor, "a", renewed, T0 + 20);
    assert!(acceptor.take_news().is_some());
}
