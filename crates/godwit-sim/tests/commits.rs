//! Snapshots that servers commit: many histories, and what agents or standbys fail to do is
//! missed. Wants `--profile sim`.

use godwit_sim::commits::{Fault, run};

#[test]
fn many_commits_are_never_gone_back_behind() {
    let sums = run(1, 300, None).unwrap_or_else(|wrong| panic!("{wrong:?}"));
    assert!(sums.safe > 5_000 && sums.refused > 500, "{sums}");
    assert!(sums.goes_on > 200, "{sums}");
    println!("{sums}");
}

#[test]
fn what_agents_fail_to_do_is_missed() {
    let survives = |fault: &Fault| run(1, 2_000, Some(*fault)).is_ok();
    let survivors: Vec<_> = Fault::ALL.into_iter().filter(survives).collect();
    assert!(survivors.is_empty(), "{survivors:?}");
}
