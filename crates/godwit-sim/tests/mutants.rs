//! The simulator can fail: whatever mechanism is taken away is missed, within
//! seconds. Wants `--profile sim`.

use std::time::Duration;

use godwit_sim::{Limits, Mutant};

/// Far above what any takes here, for machines that are slow.
const PATIENCE: Duration = Duration::from_secs(120);

fn finds(mutant: Mutant) -> String {
    let limits = Limits {
        seed: 1,
        faults: u64::MAX,
        time: PATIENCE,
        violations: 1,
        threads: 1,
        mutant: Some(mutant),
    };
    let (tally, wrong) = godwit_sim::run(&limits);
    let found = wrong.first().and_then(|outcome| outcome.violation.clone());
    found.unwrap_or_else(|| panic!("{mutant:?} survives {} faults", tally.faults))
}

#[test]
fn an_owner_that_ignores_the_end_of_its_lease_is_a_second_voice() {
    let found = finds(Mutant::NoFence);
    assert!(
        found.contains("two voices") || found.contains("speaks for"),
        "{found}"
    );
}

#[test]
fn a_gate_that_stands_open_acknowledges_what_the_standby_lacks() {
    assert!(finds(Mutant::NoGate).contains("lets"));
}

#[test]
fn gates_that_open_before_a_majority_knows_lose_bytes() {
    finds(Mutant::NoWait);
}

#[test]
fn clocks_that_are_wrong_are_noticed_by_those_who_think_them_right() {
    finds(Mutant::NoDrift);
}

#[test]
fn what_is_left_in_queues_is_a_second_voice() {
    finds(Mutant::NoResidence);
}

#[test]
fn flows_that_were_let_go_must_not_be_served() {
    finds(Mutant::NoMark);
}

#[test]
fn leases_do_not_help_a_host_whose_clock_stops() {
    finds(Mutant::StoppedClock);
}

#[test]
fn a_fence_that_opens_before_the_role_is_gone_is_a_second_voice() {
    finds(Mutant::FenceFirst);
}

#[test]
fn twins_that_are_born_late_must_not_be_served() {
    finds(Mutant::NoUnborn);
}

#[test]
fn an_owner_that_speaks_after_it_has_handed_over_is_a_second_voice() {
    finds(Mutant::NoSilence);
}

#[test]
fn a_target_that_owns_before_it_is_handed_the_share_is_a_second_voice() {
    finds(Mutant::EarlyCommit);
}

#[test]
fn new_twins_must_catch_up_before_they_are_served() {
    finds(Mutant::NoCatchUp);
}

#[test]
fn twins_of_an_earlier_stay_must_not_be_served() {
    finds(Mutant::NoEnd);
}

#[test]
fn what_was_decided_of_a_connection_that_moves_outlives_the_agent() {
    finds(Mutant::NoNote);
}

#[test]
fn a_canary_that_is_always_born_proves_nothing() {
    assert!(finds(Mutant::BlindCanary).contains("no twin was born"));
}

#[test]
fn a_node_that_does_not_see_what_is_wrong_stays_in_sync() {
    assert!(finds(Mutant::NoFacts).contains("unfit"));
}

#[test]
fn votes_that_outlive_an_agent_are_its_last_ones() {
    finds(Mutant::StaleVotes);
}

#[test]
fn a_share_begins_where_its_address_is_only_if_that_is_known() {
    assert!(finds(Mutant::NoHomes).contains("of its address is elsewhere"));
}
