//! Time as the core sees it: an argument, never a call.

use std::fmt;
use std::time::Duration;

/// A moment, in nanoseconds of CLOCK_BOOTTIME.
///
/// The clock is the one of `bpf_ktime_get_boot_ns`, so that times from the data
/// path and timers of the core compare directly. Arithmetic saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MonoTime(pub u64);

impl MonoTime {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// Takes nanoseconds since the start of the clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start of the clock.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `later` after this one, or the end of time.
    #[must_use]
    pub fn saturating_add(self, later: Duration) -> Self {
        let nanos = u64::try_from(later.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// The moment `earlier` before this one, or the start of the clock.
    #[must_use]
    pub fn saturating_sub(self, earlier: Duration) -> Self {
        let nanos = u64::try_from(earlier.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }

    /// How long ago `earlier` was; zero if it is not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for MonoTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND: u64 = 1_000_000_000;
        write!(f, "{}.{:09}", self.0 / SECOND, self.0 % SECOND)
    }
}

/// The earliest of several deadlines.
pub(crate) fn earliest(deadlines: impl IntoIterator<Item = Option<MonoTime>>) -> Option<MonoTime> {
    deadlines.into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let end = MonoTime(u64::MAX);
        assert_eq!(end.saturating_add(Duration::from_nanos(1)), end);
        assert_eq!(MonoTime(3).saturating_add(Duration::MAX), end);
        assert_eq!(MonoTime(3).saturating_sub(Duration::MAX), MonoTime::ZERO);
        assert_eq!(MonoTime(3).since(MonoTime(5)), Duration::ZERO);
        assert_eq!(MonoTime(5).since(MonoTime(3)), Duration::from_nanos(2));
    }

    #[test]
    fn moments_print_as_seconds() {
        assert_eq!(MonoTime(12_000_000_345).to_string(), "12.000000345");
    }
}
