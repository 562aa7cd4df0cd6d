//! A seed is a history, on every machine and each time.

use godwit_sim::{Mutant, history};

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

/// What is found is found again.
#[test]
fn the_same_seed_is_the_same_violation() {
    for mutant in [Mutant::BlindCanary, Mutant::NoFacts] {
        let run = |seed| history(seed, Some(mutant), false).violation;
        let found = (1..100).find_map(|seed| Some((seed, run(seed)?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{mutant:?} survives"));
        assert_eq!(run(seed), Some(violation), "{mutant:?}, seed {seed}");
    }
}
