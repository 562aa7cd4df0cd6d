//! The exhaustive search can fail: whatever mechanism is taken away is missed.
//! What it finds with none missing is printed by `make sim`. Wants
//! `--profile sim`.

use godwit_sim::check::{Bounds, Flaw, exhaust};

const LEAST: Bounds = Bounds {
    faults: 1,
    moves: 0,
    ticks: 3,
    outages: Vec::new(),
    between: false,
    boot: false,
    away: false,
    drift: false,
    flaw: None,
    threads: 2,
};

fn finds(flaw: Flaw, bounds: Bounds) -> String {
    finds_with(vec![4], flaw, bounds)
}

fn finds_with(outages: Vec<u8>, flaw: Flaw, bounds: Bounds) -> String {
    let bounds = Bounds {
        outages,
        flaw: Some(flaw),
        ..bounds
    };
    let verdict = exhaust(&bounds);
    let story = verdict.violation.unwrap_or_default();
    let end = story.last().cloned();
    end.unwrap_or_else(|| panic!("{flaw:?} survives {} states", verdict.states))
}

#[test]
fn nothing_is_wrong_with_one_fault_and_one_move() {
    let bounds = Bounds {
        moves: 1,
        outages: vec![4],
        ..LEAST
    };
    let verdict = exhaust(&bounds);
    assert_eq!(verdict.violation, None);
    assert!(verdict.states > 50_000, "{}", verdict.states);
}

#[test]
fn an_owner_that_ignores_the_end_of_its_lease_is_a_second_voice() {
    assert!(finds(Flaw::NoFence, LEAST).contains("two voices"));
}

#[test]
fn a_standby_that_is_let_go_before_a_majority_knows_takes_over() {
    let bounds = Bounds { faults: 2, ..LEAST };
    assert!(finds(Flaw::NoWait, bounds).contains("had left"));
}

#[test]
fn a_standby_that_is_taken_in_before_a_majority_knows_does_not_take_over() {
    let bounds = Bounds {
        boot: true,
        ..LEAST
    };
    assert!(finds(Flaw::EarlyJoin, bounds).contains("goes on without"));
}

#[test]
fn voters_that_do_not_wait_for_the_end_of_a_lease_elect_a_second_owner() {
    assert!(finds(Flaw::NoTerm, LEAST).contains("two voices"));
}

#[test]
fn voters_that_have_forgotten_their_promise_and_vote_at_once_elect_a_second_owner() {
    let bounds = Bounds {
        faults: 2,
        away: true,
        ..LEAST
    };
    let end = finds_with(vec![0, 4], Flaw::NoQuarantine, bounds);
    assert!(end.contains("two voices"), "{end}");
}

#[test]
fn clocks_that_are_wrong_are_noticed_by_those_who_think_them_right() {
    let bounds = Bounds {
        drift: true,
        ..LEAST
    };
    assert!(finds(Flaw::NoDrift, bounds).contains("two voices"));
}

#[test]
fn an_owner_that_speaks_after_it_has_handed_over_is_a_second_voice() {
    let bounds = Bounds { moves: 1, ..LEAST };
    assert!(finds(Flaw::NoSilence, bounds).contains("two voices"));
}

#[test]
fn a_target_that_owns_before_it_is_handed_the_share_is_a_second_voice() {
    let bounds = Bounds { moves: 1, ..LEAST };
    assert!(finds(Flaw::EarlyCommit, bounds).contains("two voices"));
}
