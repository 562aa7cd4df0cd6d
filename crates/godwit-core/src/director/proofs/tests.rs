use super::*;

const A: BackendId = BackendId(0);
const B: BackendId = BackendId(1);
const C: BackendId = BackendId(2);
const ALL: [BackendId; 3] = [A, B, C];

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn mac(id: BackendId) -> MacAddr {
    let [high, low] = id.0.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

/// Three that can be asked.
fn proofs() -> Proofs {
    let mut it = Proofs::new(ALL.len());
    for id in ALL {
        it.handle_asking(id, Asking::At(mac(id)), 7, at(0));
    }
    it
}

/// Steps of 10 ms; who is not `deaf` answers at once. Says when somebody began to yield.
fn run(it: &mut Proofs, deaf: &[BackendId], (from, to): (u64, u64)) -> Option<u64> {
    let mut first = None;
    for ms in (from..to).step_by(10) {
        for (id, place, number) in it.handle_timeout(at(ms)) {
            assert_eq!(place, mac(id));
            if !deaf.contains(&id) {
                it.handle_answer(id, number, at(ms));
            }
        }
        if ALL.iter().any(|id| it.yields(*id)) {
            first = first.or(Some(ms));
        }
    }
    first
}

fn unproved(it: &Proofs, ms: u64) -> Vec<BackendId> {
    let all = ALL.into_iter();
    all.filter(|id| it.is_unproved(*id, at(ms))).collect()
}

fn yielding(it: &Proofs) -> Vec<BackendId> {
    ALL.into_iter().filter(|id| it.yields(*id)).collect()
}

#[test]
fn who_answers_is_proved_and_who_does_not_yields_within_a_second() {
    let mut it = proofs();
    assert_eq!(run(&mut it, &[], (0, 3000)), None);
    assert_eq!(unproved(&it, 3000), []);
    let since = run(&mut it, &[B], (3000, 6000));
    assert!(since.is_some_and(|ms| ms < 3750), "{since:?}");
    assert_eq!((unproved(&it, 6000), yielding(&it)), (vec![B], vec![B]));
    // The first answer takes it back.
    run(&mut it, &[], (6000, 7100));
    assert_eq!((unproved(&it, 7100), yielding(&it)), (vec![], vec![]));
}

/// All are asked at once when the first one fails, so none yields in between.
#[test]
fn nobody_yields_if_nobody_answers() {
    for turn in 0..10 {
        let mut it = Proofs::new(ALL.len());
        for (id, ms) in ALL.into_iter().zip([0, 170, 330]) {
            it.handle_asking(id, Asking::At(mac(id)), 7, at(0));
            run(&mut it, &[], (ms, ms + 160));
        }
        let from = 500 + turn * 50;
        run(&mut it, &[], (490, from));
        assert_eq!(run(&mut it, &ALL, (from, 5000)), None, "{from}");
        assert_eq!(unproved(&it, 5000), ALL);
    }
}

/// The last one that has answered is lost, too: clients are better served than refused.
#[test]
fn nobody_yields_any_more_once_the_last_one_is_lost() {
    let mut it = proofs();
    run(&mut it, &[], (0, 1000));
    run(&mut it, &[A, B], (1000, 2000));
    assert_eq!(yielding(&it), [A, B]);
    // Two questions without an answer change nothing.
    let is_failing = |it: &Proofs| it.0[2].as_ref().is_some_and(|it| it.path.is_failing());
    let mut ms = 2000;
    while !is_failing(&it) {
        run(&mut it, &ALL, (ms, ms + 10));
        ms += 10;
    }
    assert_eq!(yielding(&it), [A, B]);
    run(&mut it, &[A, B], (ms, ms + 60));
    assert!(!is_failing(&it), "it has answered");
    run(&mut it, &ALL, (ms + 60, 4000));
    assert_eq!((unproved(&it, 4000), yielding(&it)), (ALL.to_vec(), vec![]));
    // The first one that answers again is enough.
    run(&mut it, &[A, B], (4000, 5100));
    assert_eq!(
        (unproved(&it, 5100), yielding(&it)),
        (vec![A, B], vec![A, B])
    );
}

#[test]
fn one_that_has_just_been_found_has_a_moment() {
    let mut it = proofs();
    run(&mut it, &[], (0, 1000));
    it.handle_asking(B, Asking::Never, 7, at(1000));
    it.handle_asking(B, Asking::At(mac(B)), 7, at(1000));
    run(&mut it, &[B], (1000, 1290));
    assert_eq!(unproved(&it, 1290), []);
    run(&mut it, &[B], (1290, 1400));
    assert_eq!((unproved(&it, 1400), yielding(&it)), (vec![B], vec![B]));
    // Elsewhere on the link, too.
    it.handle_asking(B, Asking::At(mac(C)), 7, at(1400));
    assert_eq!(unproved(&it, 1400), []);
}

#[test]
fn who_cannot_be_asked_is_not_doubted() {
    let mut it = proofs();
    run(&mut it, &[], (0, 1000));
    it.handle_asking(B, Asking::Never, 7, at(1000));
    assert_eq!(run(&mut it, &[B], (1000, 3000)), None);
    assert!(it.is_proved(A) && !it.is_proved(B) && unproved(&it, 3000).is_empty());
    it.handle_change();
    assert_eq!(it.poll_timeout(), None);
    assert_eq!(it.handle_timeout(at(3000)), []);
}

/// While keys are agreed on anew nobody is asked, and what is known stays.
#[test]
fn new_keys_change_nothing() {
    let mut it = proofs();
    run(&mut it, &[B], (0, 1000));
    assert_eq!(yielding(&it), [B]);
    for id in ALL {
        it.handle_asking(id, Asking::NotNow, 7, at(1000));
    }
    assert_eq!(it.poll_timeout(), None);
    assert_eq!(it.handle_timeout(at(3000)), []);
    assert_eq!(yielding(&it), [B]);
    for id in ALL {
        it.handle_asking(id, Asking::At(mac(id)), 7, at(3000));
    }
    run(&mut it, &[], (3000, 3100));
    assert_eq!(yielding(&it), []);
}

#[test]
fn only_the_answer_to_the_last_question_counts() {
    let mut it = proofs();
    run(&mut it, &ALL, (0, 20));
    let asked = it.handle_timeout(at(60));
    let (id, _, number) = *asked.first().expect("the second one is due");
    it.handle_answer(id, number.wrapping_sub(1), at(60));
    assert!(it.is_waiting(id));
    run(&mut it, &[], (60, 60));
    assert_eq!(unproved(&it, 400), ALL);
    it.handle_answer(id, number, at(70));
    assert_eq!(unproved(&it, 400), [B, C]);
    assert!(!it.is_waiting(id));
}

/// What the heartbeats say of one is not said of another.
#[test]
fn a_word_is_of_one_back_end() {
    let name = |name| NodeName::new(name).expect("a name");
    assert_ne!(super::unproved(name("a")), super::unproved(name("b")));
}

/// What one director tells others of all its back-ends together.
#[test]
fn one_answer_is_enough_and_none_is_known_before_each_should_have_come() {
    let mut it = proofs();
    assert_eq!(it.is_answered(at(0)), None, "none can be there yet");
    run(&mut it, &[A, B], (0, 1000));
    assert_eq!(it.is_answered(at(1000)), Some(true), "C answers");
    run(&mut it, &ALL, (1000, 2000));
    assert_eq!(it.is_answered(at(2000)), Some(false));
    for id in ALL {
        it.handle_asking(id, Asking::NotNow, 7, at(2000));
    }
    assert_eq!(it.is_answered(at(2000)), None, "nobody is asked");
}
