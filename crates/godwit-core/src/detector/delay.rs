//! How long a peer's words were on their way.
//!
//! Whoever is on the way between two nodes can hold everything up instead of dropping it:
//! what a dead node has said then goes on to arrive, authentic and in order. So each
//! heartbeat says when it was sent, and one that took much longer than the quickest is
//! taken for silence.
//!
//! The two clocks have nothing in common but their rate, and that not quite. Only the
//! difference between receiving and sending is compared, with the least that there was in
//! this life of the peer; and that grows by as much as the clocks may drift apart
//! ([`Terms::drift_ppm`](crate::lease::Terms), by either). So it never falls behind for
//! good, over weeks either; and who delays more and more gains 2 ms in each second.
//!
//! A clock that stood still (of a virtual machine that was paused) is behind from then on: all
//! that its host says would seem late for ever. Such a host was silent, so the peer has
//! failed; what is heard after a failure is a new measure. Clocks of day are not looked at.

use std::time::Duration;

use crate::MonoTime;

/// What queues on the way may hold on an ordinary day: 10 MB in a switch's port take 80 ms
/// at 1 Gbit/s.
const SLACK: Duration = Duration::from_millis(100);

/// Judges delays of one peer.
#[derive(Debug, Clone)]
pub(super) struct Delay {
    limit: Duration,
    drift_ppm: u32,
    quickest: Option<Quickest>,
}

#[derive(Debug, Clone, Copy)]
struct Quickest {
    incarnation: u64,
    /// Nanoseconds from sending, by the sender's clock, to receiving, by ours.
    took: i128,
    at: MonoTime,
}

impl Delay {
    /// `patience`: how long the peer may be silent.
    pub(super) const fn new(patience: Duration, drift_ppm: u32) -> Self {
        Self {
            limit: patience.saturating_add(SLACK),
            drift_ppm,
            quickest: None,
        }
    }

    /// Whether what was sent at `sent` is late now. What is heard before any heartbeat is not.
    pub(super) fn is_late(&self, incarnation: u64, sent: MonoTime, now: MonoTime) -> bool {
        self.least(incarnation, now).is_some_and(|least| {
            let limit = i128::try_from(self.limit.as_nanos()).unwrap_or(i128::MAX);
            took(sent, now) > least.saturating_add(limit)
        })
    }

    /// A heartbeat that was not late has arrived.
    pub(super) fn note(&mut self, incarnation: u64, sent: MonoTime, now: MonoTime) {
        let took = took(sent, now);
        if self
            .least(incarnation, now)
            .is_none_or(|least| took <= least)
        {
            self.quickest = Some(Quickest {
                incarnation,
                took,
                at: now,
            });
        }
    }

    /// The peer has failed.
    pub(super) const fn forget(&mut self) {
        self.quickest = None;
    }

    /// The least that a heartbeat of that life could take now.
    fn least(&self, incarnation: u64, now: MonoTime) -> Option<i128> {
        let known = self.quickest?;
        let since = i128::try_from(now.since(known.at).as_nanos()).unwrap_or(i128::MAX);
        let apart = since.saturating_mul(i128::from(self.drift_ppm) * 2) / 1_000_000;
        (known.incarnation == incarnation).then(|| known.took.saturating_add(apart))
    }
}

fn took(sent: MonoTime, now: MonoTime) -> i128 {
    i128::from(now.as_nanos()) - i128::from(sent.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: u64 = 7;
    const SECOND: u64 = 1_000_000_000;

    fn delay() -> Delay {
        Delay::new(Duration::from_millis(32), 1000)
    }

    fn ms(ms: u64) -> MonoTime {
        MonoTime(ms * 1_000_000)
    }

    /// The sender's clock shows less than ours, or more.
    fn hear(delay: &mut Delay, sent: u64, at: u64) -> bool {
        let late = delay.is_late(LIFE, ms(sent), ms(at));
        if !late {
            delay.note(LIFE, ms(sent), ms(at));
        }
        !late
    }

    #[test]
    fn what_took_much_longer_than_the_quickest_is_late() {
        for (sent, at) in [(0, 90_000), (90_000, 0)] {
            let mut delay = delay();
            assert!(
                hear(&mut delay, sent + 3, at + 5),
                "nothing to compare with"
            );
            assert!(hear(&mut delay, sent + 10, at + 11), "the quickest");
            assert!(hear(&mut delay, sent + 20, at + 153));
            assert!(!hear(&mut delay, sent + 20, at + 154));
            assert!(
                hear(&mut delay, sent + 150, at + 154),
                "the next one is not"
            );
        }
    }

    #[test]
    fn a_new_life_and_one_that_had_failed_are_a_new_measure() {
        let mut delay = delay();
        assert!(hear(&mut delay, 1000, 1000));
        assert!(!hear(&mut delay, 1010, 1500));
        assert!(!delay.is_late(LIFE + 1, ms(5), ms(1500)));
        delay.forget();
        assert!(hear(&mut delay, 1010, 1500));
        assert!(hear(&mut delay, 1020, 1630) && !hear(&mut delay, 1030, 1653));
    }

    /// Two clocks of which one is fast and one slow, as far as that is allowed: for four
    /// weeks nothing is late, and after that it can be still.
    #[test]
    fn clocks_that_drift_apart_make_nothing_late() {
        for fast in [998_001_u64, 1_002_001] {
            let mut delay = delay();
            let shows = |second: u64| MonoTime(second * SECOND / 1_000_000 * fast);
            for second in (0..28 * 86_400).step_by(7) {
                let (sent, now) = (MonoTime(second * SECOND), shows(second));
                assert!(!delay.is_late(LIFE, sent, now), "{second}");
                delay.note(LIFE, sent, now);
            }
            let end = 28 * 86_400;
            let late = shows(end).saturating_add(Duration::from_millis(200));
            assert!(delay.is_late(LIFE, MonoTime(end * SECOND), late));
        }
    }

    /// Who holds up a little more each time is found out, or gains next to nothing.
    #[test]
    fn a_queue_that_grows_slowly_is_noticed() {
        let mut delay = delay();
        let mut at = 0;
        let mut last = 0;
        for beat in 0..1000 {
            // Each arrives 11 ms after the one before instead of 10.
            at = beat * 11;
            if !hear(&mut delay, beat * 10, at) {
                break;
            }
            last = at - beat * 10;
        }
        assert!((132..=140).contains(&last), "{last} ms behind at {at}");
    }
}
