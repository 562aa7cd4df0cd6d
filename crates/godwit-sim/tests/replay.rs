//! A seed is a history, on every machine and each time.

use godwit_sim::history;

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 1..6 {
        let one = history(seed, None, false);
        let two = history(seed, None, false);
        assert_eq!(one.violation, None, "seed {seed}");
        assert_eq!(format!("{:?}", one.tally), format!("{:?}", two.tally));
        assert!(one.tally.faults > 0 && one.tally.completed > 0);
    }
}
