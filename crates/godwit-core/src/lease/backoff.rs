//! How long a candidate waits after a round that came to nothing.

use std::time::Duration;

/// Beyond so many rounds a longer wait no longer helps: two candidates that
/// meet again have by then drawn from four times a renewal.
const MOST: u32 = 4;

/// Waits that differ between nodes, and are the same for the same seed.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    random: u64,
    attempts: u32,
}

impl Backoff {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            random: seed,
            attempts: 0,
        }
    }

    /// The next wait: longer after each round, on average by half a `step`.
    pub(super) fn next(&mut self, step: Duration) -> Duration {
        self.attempts = (self.attempts + 1).min(MOST);
        let longest = step.saturating_mul(self.attempts).as_nanos();
        let drawn = (u128::from(self.draw()) * longest) >> 64;
        Duration::from_nanos(u64::try_from(drawn).unwrap_or(u64::MAX))
    }

    pub(super) const fn reset(&mut self) {
        self.attempts = 0;
    }

    /// SplitMix64 (Steele, Lea, Flood, 2014).
    const fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    #[test]
    fn waits_grow_up_to_a_bound_and_repeat_with_the_seed() {
        let waits = |seed| {
            let mut backoff = Backoff::new(seed);
            (0..100).map(|_| backoff.next(STEP)).collect::<Vec<_>>()
        };
        let first = waits(7);
        assert_eq!(first, waits(7));
        assert_ne!(first, waits(8));
        assert!(first[0] <= STEP);
        assert!(first.iter().all(|wait| *wait <= MOST * STEP));
        assert!(first.iter().any(|wait| *wait > 3 * STEP));
    }

    #[test]
    fn a_reset_starts_with_short_waits() {
        let mut backoff = Backoff::new(1);
        for _ in 0..50 {
            backoff.next(STEP);
            backoff.reset();
            assert!(backoff.next(STEP) <= STEP);
            backoff.reset();
        }
    }
}
