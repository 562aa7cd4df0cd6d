//! Leases under everything that a network and hosts can do: one voice at a
//! time, no owner without the bytes, and an owner soon after all is well again.

#[path = "histories/mod.rs"]
mod histories;
#[path = "leases/mod.rs"]
mod leases;

use std::time::Duration;

use godwit_core::lease::Terms;
use histories::histories;
use leases::{Clock, Cluster, MS, Network};
use proptest::prelude::*;

/// Clocks are exaggerated, so that a missing margin shows.
const TERMS: Terms = Terms {
    term: Duration::from_millis(60),
    long_term: Duration::from_millis(90),
    drift_ppm: 40_000,
    egress_residence: Duration::ZERO,
};

/// The slowest, the fastest and one between, which have nothing in common.
fn clocks(count: usize) -> Vec<Clock> {
    let ppm = [-40_000, 40_000, 0, 20_000, -20_000];
    let clock = |(index, ppm): (usize, &i64)| Clock {
        offset: 7_777 * MS * index as u64,
        ppm: *ppm,
    };
    ppm.iter().enumerate().take(count).map(clock).collect()
}

fn cluster(voters: usize, seed: u64) -> Cluster {
    Cluster::new(&clocks(voters), voters.min(3), TERMS, seed)
}

#[test]
fn one_candidate_is_elected_in_two_rounds_and_keeps_the_lease() {
    let mut cluster = Cluster::new(&clocks(3), 1, TERMS, 1);
    cluster.run_ms(3);
    assert_eq!(cluster.speakers(), [0]);
    cluster.run_ms(10_000);
    assert_eq!((cluster.speakers(), cluster.grants), (vec![0], 1));
}

#[test]
fn a_single_voter_elects_itself_at_once() {
    let mut cluster = Cluster::new(&clocks(1), 1, TERMS, 1);
    cluster.run_ms(1);
    assert_eq!(cluster.speakers(), [0]);
}

#[test]
fn any_three_renewals_in_a_row_may_be_lost() {
    let mut cluster = cluster(3, 2);
    cluster.run_ms(200);
    let [owner] = cluster.speakers()[..] else {
        panic!("one owner");
    };
    for _ in 0..50 {
        for other in 0..3 {
            cluster.cuts.insert((owner, other));
        }
        cluster.run_ms(30);
        cluster.cuts.clear();
        cluster.run_ms(13);
        assert_eq!(cluster.speakers(), [owner]);
    }
    assert_eq!(cluster.grants, 1);
}

#[test]
fn a_dark_owner_is_followed_within_two_terms() {
    for seed in 0..50 {
        let mut cluster = cluster(3, seed);
        cluster.run_ms(500 + seed % 13);
        let [owner] = cluster.speakers()[..] else {
            panic!("one owner");
        };
        cluster.members[owner].stands = false;
        cluster.reboot(owner);
        cluster.run_ms(120);
        assert_eq!(cluster.speakers().len(), 1, "seed {seed}");
    }
}

#[test]
fn a_standby_in_sync_takes_over_and_one_that_left_does_not() {
    for removed in [false, true] {
        let mut cluster = Cluster::new(&clocks(3), 2, TERMS, 5);
        cluster.members[1].stands = false;
        cluster.run_ms(100);
        assert_eq!(cluster.speakers(), [0]);
        cluster.admit(1);
        cluster.run_ms(50);
        if removed {
            // It hears nothing of that.
            cluster.cuts.extend([(0, 1), (1, 0)]);
            cluster.dismiss();
            cluster.run_ms(50);
        }
        cluster.members[0].stands = false;
        cluster.reboot(0);
        cluster.members[1].stands = true;
        cluster.attend(1);
        cluster.run_ms(500);
        assert_eq!(cluster.speakers(), [1]);
        assert_eq!(cluster.takeovers, u32::from(!removed));
    }
}

#[test]
fn a_holder_goes_on_after_a_short_isolation() {
    let mut cluster = Cluster::new(&clocks(3), 1, TERMS, 5);
    cluster.run_ms(100);
    for (from, to) in [(0, 1), (0, 2)] {
        cluster.cuts.insert((from, to));
    }
    cluster.run_ms(5_000);
    assert!(cluster.speakers().is_empty());
    cluster.cuts.clear();
    cluster.run_ms(20);
    assert_eq!(cluster.speakers(), [0]);
    assert_eq!((cluster.grants, cluster.regains), (1, 1));
}

/// Owner and standby in sync, and a witness; only the owner stands.
fn pair() -> Cluster {
    let mut cluster = Cluster::new(&clocks(3), 2, TERMS, 9);
    cluster.members[1].stands = false;
    cluster.run_ms(100);
    cluster.admit(1);
    cluster.run_ms(50);
    assert_eq!(cluster.speakers(), [0]);
    cluster
}

/// The owner has the slowest clock, and its voters forget as early as they may.
#[test]
fn a_slow_owner_is_silent_before_fast_voters_forget_it() {
    for seed in 0..20 {
        let mut clocks = clocks(3);
        clocks[2].ppm = 40_000;
        let mut cluster = Cluster::new(&clocks, 2, TERMS, seed);
        cluster.network.delay_max = cluster.network.delay_min + 1;
        cluster.members[1].stands = false;
        cluster.run_ms(100 + seed);
        for to in [1, 2] {
            cluster.cuts.insert((0, to));
        }
        cluster.members[1].stands = true;
        cluster.members[1].impatient = true;
        cluster.run_ms(100);
        assert_eq!((cluster.speakers(), cluster.grants), (vec![1], 2));
    }
}

/// The standby left the set while it heard nothing, and the only other voter
/// that knew has forgotten.
#[test]
fn a_voter_that_has_forgotten_vouches_for_nobody() {
    let mut cluster = pair();
    cluster.cuts.extend([(0, 1), (1, 0)]);
    cluster.dismiss();
    cluster.run_ms(50);
    cluster.members[0].stands = false;
    cluster.reboot(0);
    cluster.restart_agent(2);
    cluster.members[1].stands = true;
    cluster.run_ms(1_000);
    assert_eq!((cluster.speakers(), cluster.takeovers), (vec![1], 0));
}

/// A restarted voter that has heard from the owner since is as good as before.
#[test]
fn a_voter_that_was_taught_again_vouches_for_the_standby() {
    let mut cluster = pair();
    cluster.restart_agent(2);
    cluster.run_ms(200);
    cluster.members[0].stands = false;
    cluster.reboot(0);
    cluster.members[1].stands = true;
    cluster.run_ms(200);
    assert_eq!((cluster.speakers(), cluster.takeovers), (vec![1], 1));
}

/// Another node owned while the first was cut off, and all who knew are gone.
#[test]
fn a_holder_does_not_go_on_where_nobody_remembers() {
    let mut cluster = pair();
    for other in [1, 2] {
        cluster.cuts.extend([(0, other), (other, 0)]);
    }
    cluster.members[1].stands = true;
    cluster.run_ms(300);
    assert_eq!(cluster.speakers(), [1]);
    cluster.members[1].stands = false;
    cluster.reboot(1);
    cluster.pause(1, true);
    cluster.restart_agent(2);
    cluster.run_ms(200);
    cluster.cuts.clear();
    cluster.run_ms(1_000);
    assert_eq!((cluster.speakers(), cluster.regains), (vec![0], 0));
    assert_eq!(cluster.grants, 3, "it begins anew");
}

#[test]
fn a_lease_given_back_is_taken_over_in_two_rounds() {
    let mut cluster = pair();
    cluster.members[1].stands = true;
    cluster.members[1].impatient = true;
    cluster.run_ms(40);
    cluster.release(0);
    cluster.run_ms(1);
    cluster.vacate(1);
    cluster.run_ms(3);
    assert_eq!((cluster.speakers(), cluster.takeovers), (vec![1], 1));
}

/// The harness notices what it is there to notice.
#[test]
#[should_panic(expected = "two voices")]
fn voters_that_vote_at_once_after_a_restart_are_caught() {
    let mut cluster = pair();
    cluster.forgetful = true;
    cluster.cuts.extend([(0, 1), (0, 2)]);
    cluster.members[1].stands = true;
    cluster.restart_agent(1);
    cluster.restart_agent(2);
    cluster.run_ms(60);
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Run(u64),
    Reboot(usize),
    RestartAgent(usize),
    Pause(usize, bool),
    Cut(usize, usize),
    Mend,
    Admit(usize),
    Dismiss,
    Stand(usize, bool),
    Network(Network),
}

fn op(voters: usize) -> impl Strategy<Value = Op> {
    let node = move || 0..voters;
    prop_oneof![
        6 => (0..70u64).prop_map(Op::Run),
        1 => node().prop_map(Op::Reboot),
        2 => node().prop_map(Op::RestartAgent),
        2 => (node(), any::<bool>()).prop_map(|(node, paused)| Op::Pause(node, paused)),
        2 => (node(), node()).prop_map(|(from, to)| Op::Cut(from, to)),
        1 => Just(Op::Mend),
        3 => node().prop_map(Op::Admit),
        1 => Just(Op::Dismiss),
        1 => (node(), any::<bool>()).prop_map(|(node, stands)| Op::Stand(node, stands)),
        1 => prop_oneof![Just(Network::GOOD), Just(Network::BAD)].prop_map(Op::Network),
    ]
}

fn apply(cluster: &mut Cluster, op: Op) {
    match op {
        Op::Run(ms) => cluster.run_ms(ms),
        Op::Reboot(node) => cluster.reboot(node),
        Op::RestartAgent(node) => cluster.restart_agent(node),
        Op::Pause(node, paused) => cluster.pause(node, paused),
        Op::Cut(from, to) => {
            cluster.cuts.insert((from, to));
        }
        Op::Mend => cluster.cuts.clear(),
        Op::Admit(node) => cluster.admit(node),
        Op::Dismiss => cluster.dismiss(),
        Op::Stand(node, stands) => cluster.members[node].stands = stands,
        Op::Network(network) => cluster.network = network,
    }
}

/// All quarantines are over after this.
const QUARANTINE_MS: u64 = 130;

fn history(voters: usize) -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(op(voters), 1..60)
}

fn check(voters: usize, seed: u64, history: &[Op]) {
    let mut cluster = cluster(voters, seed);
    cluster.network = Network::BAD;
    for op in history {
        apply(&mut cluster, *op);
    }
    for member in &mut cluster.members {
        member.stands = true;
    }
    cluster.network = Network::BAD;
    cluster.run_ms(QUARANTINE_MS);
    cluster.heal();
    cluster.run_ms(120);
    assert_eq!(cluster.speakers().len(), 1, "no owner within two terms");
    let grants = cluster.grants;
    cluster.run_ms(1_000);
    assert_eq!(cluster.grants, grants, "it stays");
}

proptest! {
    #![proptest_config(histories(32))]

    #[test]
    fn three_voters(seed in any::<u64>(), history in history(3)) {
        check(3, seed, &history);
    }

    #[test]
    fn five_voters(seed in any::<u64>(), history in history(5)) {
        check(5, seed, &history);
    }
}
