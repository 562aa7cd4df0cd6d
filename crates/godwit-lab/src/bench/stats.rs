//! Percentiles, and when there are enough runs to name one.

use std::time::Duration;

/// Fewest runs from which the 99th percentile can be known.
const RUNS_FOR_P99: usize = 200;

/// Values of one quantity, one per run.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<f64>);

impl FromIterator<f64> for Samples {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Samples {
    pub(super) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(super) fn push_ms(&mut self, span: Duration) {
        self.push(span.as_secs_f64() * 1e3);
    }

    /// How many there are.
    pub(super) fn runs(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// The middle value; the mean of two for an even number.
    pub(super) fn p50(&self) -> Option<f64> {
        let sorted = self.sorted();
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get((sorted.len() - 1) / 2)?;
        Some(f64::midpoint(lower, upper))
    }

    /// The smallest value that 99 of 100 do not exceed, if there are enough runs.
    pub(super) fn p99(&self) -> Option<f64> {
        let sorted = self.sorted();
        let rank = (sorted.len() * 99).div_ceil(100);
        let known = sorted.len() >= RUNS_FOR_P99;
        known.then(|| sorted.get(rank - 1).copied()).flatten()
    }

    /// All of them together.
    pub(super) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// The largest value.
    pub(super) fn max(&self) -> Option<f64> {
        self.sorted().last().copied()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl Iterator<Item = u32>) -> Samples {
        Samples(values.map(f64::from).collect())
    }

    #[test]
    fn the_middle_of_an_even_number_is_between_two() {
        assert_eq!(samples([4, 1, 3, 2].into_iter()).p50(), Some(2.5));
        assert_eq!(samples([9, 1, 5].into_iter()).p50(), Some(5.0));
        assert_eq!(Samples::default().p50(), None);
    }

    #[test]
    fn a_99th_percentile_needs_200_runs() {
        assert_eq!(samples(1..=199).p99(), None);
        assert_eq!(samples(1..=200).p99(), Some(198.0));
    }
}
