//! Connections that go with their requests: many histories, and each rule is missed where it
//! is broken. Wants `--profile sim`.

use godwit_sim::requests::{Rule, run};

#[test]
fn many_histories_are_right() {
    let sums = run(1, 5_000, None).unwrap_or_else(|wrong| {
        let story = wrong.story.join("\n");
        panic!("seed {}:\n{story}", wrong.seed)
    });
    assert!(sums.handoffs > 2_500 && sums.takeovers > 500, "{sums}");
    assert!(sums.refusals > 2_500, "{sums}");
    println!("{sums}");
}

#[test]
fn each_rule_is_missed_where_it_is_broken() {
    let mut survivors = Vec::new();
    for rule in Rule::ALL {
        match run(1, 150_000, Some(rule)) {
            Ok(sums) => survivors.push((rule, sums.handoffs)),
            Err(wrong) => println!("{rule:?}: seed {}, {:?}", wrong.seed, wrong.story.last()),
        }
    }
    assert!(survivors.is_empty(), "{survivors:?}");
}
