//! A host's clock: wrong by a rate that may change, and it may stand still.

use godwit_core::MonoTime;

const MILLION: u64 = 1_000_000;

/// CLOCK_BOOTTIME of one host, as a function of true time.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    /// A moment in true time, and what the clock showed then.
    at_ns: u64,
    shown_ns: u64,
    /// How fast it runs; 1 000 000 is right.
    rate: u64,
    stopped: bool,
}

impl Clock {
    /// A clock that shows `shown_ns` at `now_ns` and is wrong by `ppm`.
    pub(crate) const fn new(now_ns: u64, shown_ns: u64, ppm: i64) -> Self {
        Self {
            at_ns: now_ns,
            shown_ns,
            rate: MILLION.wrapping_add_signed(ppm),
            stopped: false,
        }
    }

    pub(crate) const fn read(&self, now_ns: u64) -> MonoTime {
        if self.stopped {
            return MonoTime(self.shown_ns);
        }
        let passed = now_ns - self.at_ns;
        MonoTime(self.shown_ns + passed * self.rate / MILLION)
    }

    /// The first moment in true time at which it shows `shown`, or the start of
    /// its present rate if that has passed.
    pub(crate) const fn reaches(&self, shown: MonoTime) -> u64 {
        let passed = shown.0.saturating_sub(self.shown_ns);
        // A deadline at the end of time never comes.
        if passed > u64::MAX / MILLION / 2 {
            return u64::MAX;
        }
        self.at_ns + (passed * MILLION).div_ceil(self.rate)
    }

    pub(crate) const fn retune(&mut self, now_ns: u64, ppm: i64) {
        self.shown_ns = self.read(now_ns).0;
        self.at_ns = now_ns;
        self.rate = MILLION.wrapping_add_signed(ppm);
    }

    pub(crate) const fn stop(&mut self, now_ns: u64) {
        self.shown_ns = self.read(now_ns).0;
        self.stopped = true;
    }

    /// Goes on from where it stopped: it is behind from now on.
    pub(crate) const fn go_on(&mut self, now_ns: u64) {
        self.at_ns = now_ns;
        self.stopped = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_reached_when_the_clock_shows_it_and_not_before() {
        for ppm in [-10_000, 0, 7, 10_000] {
            let clock = Clock::new(1_000, 5, ppm);
            for shown in [5, 6, 1_000, 123_456_789] {
                let at = clock.reaches(MonoTime(shown));
                assert!(clock.read(at).0 >= shown);
                assert!(at == 1_000 || clock.read(at - 1).0 < shown);
            }
        }
    }

    #[test]
    fn a_clock_that_stood_still_is_behind() {
        let mut clock = Clock::new(0, 0, 0);
        clock.stop(10);
        assert_eq!(clock.read(500), MonoTime(10));
        clock.go_on(500);
        assert_eq!(clock.read(501), MonoTime(11));
        assert_eq!(clock.reaches(MonoTime(12)), 502);
    }

    #[test]
    fn another_rate_does_not_make_it_jump() {
        let mut clock = Clock::new(0, 0, 10_000);
        clock.retune(1_000_000, -10_000);
        assert_eq!(clock.read(1_000_000), MonoTime(1_010_000));
        assert_eq!(clock.read(2_000_000), MonoTime(2_000_000));
    }
}
