//! When a standby says to a twin again what that has not taken.

use std::time::Duration;

use crate::MonoTime;

/// Between the first two times; and so often a twin is looked at.
pub const FIRST_PAUSE: Duration = Duration::from_millis(4);

/// What can't succeed, such as a twin that is never born because a rule of a firewall
/// drops what makes it, is tried no more often.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Says when. As long as a twin takes something each time, at once; else after a pause
/// that doubles from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace<P> {
    /// How far the twin was.
    at: P,
    pause: Duration,
    due: MonoTime,
}

impl<P: PartialEq> Pace<P> {
    /// It has just been said, to a twin that was that far.
    pub fn new(at: P, now: MonoTime) -> Self {
        Self {
            at,
            pause: FIRST_PAUSE,
            due: now.saturating_add(FIRST_PAUSE),
        }
    }

    /// Whether to say it again now, to a twin that is that far; if so, it has been said.
    pub fn is_due(&mut self, at: P, now: MonoTime) -> bool {
        if at != self.at {
            *self = Self::new(at, now);
            return true;
        }
        if now < self.due {
            return false;
        }
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.due = now.saturating_add(self.pause);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds at which it is said to a twin that is `at(millisecond)` far.
    fn said(at: impl Fn(u64) -> u64, until: u64) -> Vec<u64> {
        let time = |millis| MonoTime::ZERO.saturating_add(Duration::from_millis(millis));
        let mut pace = Pace::new(at(0), time(0));
        let looks = (0..until).step_by(4);
        looks
            .filter(|now| pace.is_due(at(*now), time(*now)))
            .collect()
    }

    #[test]
    fn who_takes_nothing_is_asked_ever_more_seldom() {
        let times = said(|_| 0, 5000);
        assert_eq!(times[..5], [4, 12, 28, 60, 124]);
        assert!(times.len() <= 12, "{times:?}");
        let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(pauses.max() <= Some(1000), "{times:?}");
    }

    #[test]
    fn who_takes_something_has_the_next_at_once() {
        assert_eq!(said(|now| now, 40), [4, 8, 12, 16, 20, 24, 28, 32, 36]);
        // After a second of nothing, too; and then it is patient anew.
        let times = said(|now| now / 1200, 1240);
        assert_eq!(times[times.len() - 4..], [1200, 1204, 1212, 1228]);
    }
}
