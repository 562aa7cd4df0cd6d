//! Numbers that are the same for the same seed, on every machine.

/// SplitMix64 (Steele, Lea, Flood, 2014): small, fast, good enough for faults.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `bound`, without `bound`; 0 if that is 0.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        let wide = self.draw() as u128 * bound as u128;
        (wide >> 64) as u64
    }

    /// From `low` to `high`, both included.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// As [`Random::between`], but small ones are as likely as large ones: each
    /// order of magnitude gets its share.
    pub(crate) const fn spread(&mut self, low: u64, high: u64) -> u64 {
        let mut top = high;
        while top > low.saturating_mul(4) && self.below(2) == 0 {
            top /= 4;
        }
        self.between(low, top)
    }

    pub(crate) const fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let index = self.below(of.len() as u64);
        of[usize::try_from(index).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_with_the_seed_and_stay_in_bounds() {
        let drawn = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.between(3, 9)).collect::<Vec<_>>()
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
        assert!(drawn(7).iter().all(|one| (3..=9).contains(one)));
        assert!(drawn(7).contains(&3) && drawn(7).contains(&9));
    }

    #[test]
    fn a_spread_reaches_both_ends() {
        let mut random = Random::new(1);
        let all: Vec<_> = (0..10_000).map(|_| random.spread(10, 10_000)).collect();
        assert!(all.iter().all(|one| (10..=10_000).contains(one)));
        assert!(all.iter().any(|one| *one < 30) && all.iter().any(|one| *one > 8_000));
    }
}
