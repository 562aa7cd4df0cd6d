//! When a new owner tells the link that the service address is here.
//!
//! One gratuitous ARP or neighbour advertisement can be lost, and a switch may
//! still be learning, so it is repeated with growing gaps. RFC 5944 §4.6 and
//! RFC 4861 §7.2.6 both leave number and spacing to the sender.

use std::time::Duration;

use crate::MonoTime;

/// Offsets from the change of owner, in milliseconds. Most losses are of the
/// first one, and a port that comes up late needs one after a second or two.
const OFFSETS_MS: [u64; 6] = [0, 20, 100, 500, 1000, 2000];

/// Repetition of the announcements after one change of owner.
#[derive(Debug, Clone)]
pub struct AnnounceSchedule {
    start: MonoTime,
    sent: usize,
}

impl AnnounceSchedule {
    /// Starts with an announcement that is due at once.
    pub const fn new(now: MonoTime) -> Self {
        Self {
            start: now,
            sent: 0,
        }
    }

    /// When the next one is due; `None` after the last.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        OFFSETS_MS
            .get(self.sent)
            .map(|offset| self.start.saturating_add(Duration::from_millis(*offset)))
    }

    /// Whether to announce now. Several that were missed become one.
    pub fn handle_timeout(&mut self, now: MonoTime) -> bool {
        let before = self.sent;
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.sent += 1;
        }
        self.sent > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> MonoTime {
        MonoTime(ms * 1_000_000)
    }

    #[test]
    fn announcements_are_repeated_six_times() {
        let mut schedule = AnnounceSchedule::new(ms(7));
        let mut sent = Vec::new();
        while let Some(due) = schedule.poll_timeout() {
            assert!(schedule.handle_timeout(due) && !schedule.handle_timeout(due));
            sent.push(due.since(ms(7)).as_millis());
        }
        assert_eq!(sent, [0, 20, 100, 500, 1000, 2000]);
    }

    #[test]
    fn missed_announcements_become_one() {
        let mut schedule = AnnounceSchedule::new(ms(0));
        assert!(schedule.handle_timeout(ms(300)));
        assert!(!schedule.handle_timeout(ms(300)));
        assert_eq!(schedule.poll_timeout(), Some(ms(500)));
    }
}
