//! When a new owner asks silent clients where they stand.
//!
//! After a takeover the client may wait for an acknowledgement, or not know
//! that anything happened. Each busy flow gets an ACK and a one-byte probe; the
//! attempts here pace the rounds for flows that have not been heard since. The
//! first five are close together because a loss then costs stall; afterwards
//! the gap doubles, as any retransmission must (RFC 9293 §3.8.1).

use std::time::Duration;

use crate::MonoTime;

/// Gap between the first rounds: about what one lost round may add to a stall.
const FIRST_GAP: Duration = Duration::from_millis(4);
const FIRST_ROUNDS: u32 = 5;
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// A client that has not answered by then has to speak first.
const LONGEST: Duration = Duration::from_secs(30);

/// Rounds of probes after one takeover.
#[derive(Debug, Clone)]
pub struct ProbeSchedule {
    end: MonoTime,
    next: Option<MonoTime>,
    attempt: u32,
    gap: Duration,
}

impl ProbeSchedule {
    /// Starts with a round that is due at once.
    pub fn new(now: MonoTime) -> Self {
        Self {
            end: now.saturating_add(LONGEST),
            next: Some(now),
            attempt: 0,
            gap: FIRST_GAP,
        }
    }

    /// One round, which is due at once.
    pub fn once(now: MonoTime) -> Self {
        Self {
            end: now,
            ..Self::new(now)
        }
    }

    /// When the next round is due; `None` after the last.
    pub const fn poll_timeout(&self) -> Option<MonoTime> {
        self.next
    }

    /// The number of the round that is due, from 0. Missed rounds are not made up for.
    pub fn handle_timeout(&mut self, now: MonoTime) -> Option<u32> {
        self.next.filter(|due| *due <= now)?;
        let attempt = self.attempt;
        self.attempt += 1;
        if self.attempt >= FIRST_ROUNDS {
            self.gap = (self.gap * 2).min(LONGEST_GAP);
        }
        self.next = Some(now.saturating_add(self.gap)).filter(|due| *due <= self.end);
        Some(attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> MonoTime {
        MonoTime(ms * 1_000_000)
    }

    #[test]
    fn five_close_rounds_then_doubling_up_to_a_second() {
        let mut schedule = ProbeSchedule::new(ms(100));
        let mut rounds = Vec::new();
        while let Some(due) = schedule.poll_timeout() {
            let number = schedule.handle_timeout(due).expect("due");
            assert_eq!(number as usize, rounds.len());
            assert_eq!(schedule.handle_timeout(due), None);
            rounds.push(due.since(ms(100)).as_millis());
        }
        assert_eq!(rounds[..9], [0, 4, 8, 12, 16, 24, 40, 72, 136]);
        let gaps: Vec<_> = rounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.is_sorted() && gaps.last() == Some(&1000));
        assert!(
            rounds
                .last()
                .is_some_and(|last| (29_000..=30_000).contains(last))
        );
    }

    #[test]
    fn one_round_is_one() {
        let mut schedule = ProbeSchedule::once(ms(100));
        assert_eq!(schedule.handle_timeout(ms(99)), None);
        assert_eq!(schedule.handle_timeout(ms(130)), Some(0));
        assert_eq!(schedule.poll_timeout(), None);
    }

    #[test]
    fn missed_rounds_are_not_made_up_for() {
        let mut schedule = ProbeSchedule::new(ms(0));
        assert_eq!(schedule.handle_timeout(ms(50)), Some(0));
        assert_eq!(schedule.handle_timeout(ms(50)), None);
        assert_eq!(schedule.poll_timeout(), Some(ms(54)));
    }
}
