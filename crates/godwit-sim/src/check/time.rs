//! True time in steps, and clocks that are wrong.

use godwit_core::MonoTime;

/// A time beyond this age is not told from an older one, in nanoseconds. More
/// than anything in the core looks back: the longest is a term, and twice that
/// for the consent of a majority.
pub(super) const LONG_AGO: i64 = 4_000_000_000;

/// One term, in nanoseconds.
pub(super) const TERM_NS: u64 = 1_200_000_000;

/// Steps of true time in a term, at least. Fewer would not do: an owner that has
/// not heard a majority for a third of a term changes nothing.
pub(super) const LEAST_TICKS: u32 = 3;

/// By how much clocks are wrong at most, in parts per million.
pub(super) const DRIFT_PPM: u32 = 50_000;

/// What agents are told if clocks are right; the usual setting.
pub(super) const NO_DRIFT_PPM: u32 = 1_000;

const NODES: usize = 3;

/// Clocks of one boot of one machine tell times that no other clock ever tells:
/// whatever is printed, it is known whose time it is.
const FRAME: u32 = 50;

/// The clocks of all machines.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    ticks: u64,
    /// Nanoseconds of a step.
    tick_ns: u64,
    /// Nanoseconds that each clock goes on by in a step.
    rates: [u64; NODES],
    /// How often each machine was booted.
    boots: [u64; NODES],
}

impl Times {
    /// Clocks that are wrong by so many parts per million, and how many steps
    /// there are in a term.
    pub(super) fn new(drift_ppm: [i64; NODES], ticks: u32) -> Self {
        let tick_ns = TERM_NS / u64::from(ticks.max(LEAST_TICKS));
        let rate = |ppm: i64| {
            let more = tick_ns.cast_signed() / 1_000_000 * ppm;
            tick_ns.saturating_add_signed(more)
        };
        Self {
            ticks: 0,
            tick_ns,
            rates: drift_ppm.map(rate),
            boots: [0; NODES],
        }
    }

    /// Whether a number is a time.
    pub(super) const fn is_time(number: u64) -> bool {
        number >> FRAME > 0 && number >> FRAME < 64
    }

    pub(super) const fn pass(&mut self) {
        self.ticks += 1;
    }

    pub(super) const fn ticks(&self) -> u64 {
        self.ticks
    }

    /// A machine is switched on again.
    pub(super) const fn boot(&mut self, node: usize) {
        self.boots[node] += 1;
    }

    pub(super) const fn boots(&self, node: usize) -> u64 {
        self.boots[node]
    }

    pub(super) const fn now(&self, node: usize) -> MonoTime {
        let frame = 1 + node as u64 + NODES as u64 * self.boots[node];
        MonoTime((frame << FRAME) + self.ticks * self.rates[node])
    }

    /// How long ago it was in true time, in nanoseconds; negative: it is to come.
    pub(super) fn age(&self, time: u64) -> i64 {
        let frame = time >> FRAME;
        let node = usize::try_from((frame - 1) % NODES as u64).unwrap_or(0);
        let rate = self.rates[node].cast_signed();
        let now = (frame << FRAME) + self.ticks * self.rates[node];
        let past = now.cast_signed() - time.cast_signed();
        let tick = self.tick_ns.cast_signed();
        if rate == tick {
            return past;
        }
        let (steps, rest) = (past.div_euclid(rate), past.rem_euclid(rate));
        steps * tick + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_true_time() {
        let mut times = Times::new([-50_000, 50_000, 0], 3);
        let then = [0, 1, 2].map(|node| times.now(node).0);
        for _ in 0..7 {
            times.pass();
        }
        assert_eq!(then.map(|time| times.age(time)), [7 * 400_000_000; 3]);
        assert!(times.now(0).0 - then[0] < times.now(1).0 - then[1]);
    }

    #[test]
    fn a_boot_begins_a_clock_of_its_own() {
        let mut times = Times::new([0; 3], 3);
        let before = times.now(1);
        times.boot(1);
        assert_ne!(times.now(1), before);
        assert_eq!(times.age(times.now(1).0), 0);
        assert!(Times::is_time(before.0) && !Times::is_time(u64::MAX) && !Times::is_time(7));
    }
}
