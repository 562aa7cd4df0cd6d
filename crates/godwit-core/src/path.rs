//! Whether the link to another server carries what servers send each other, or that to a back-end
//! what its director sends ([`Proofs`](crate::director::Proofs)).
//!
//! Frames with an EtherType of Godwit's own cross any switch that forwards frames, and yet one may
//! filter them, or cut long ones. So nothing is handed to a server before a probe of
//! full size has gone there and come back, and nothing more when probes stay away.
//!
//! ```text
//!             an answer                      a probe each half second
//!  Unproved ─────────────► Proved ──┐
//!     ▲   a probe each 50 ms,       │ four probes without an answer, 50 ms apart,
//!     │   later each second         │ or the link has changed
//!     └─────────────────────────────┘
//! ```

use std::time::Duration;

use crate::MonoTime;

/// How often a path that is proved is proved again.
const PERIOD: Duration = Duration::from_millis(500);

/// How seldom one that is not, in the end.
const SELDOM: Duration = Duration::from_secs(1);

/// How long an answer may take before the next probe.
const PATIENCE: Duration = Duration::from_millis(50);

/// Probes without an answer after which a path is not proved any more.
const MOST_LOST: u32 = 4;

/// The path to one server, there and back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    state: State,
    /// Number of the last probe.
    number: u32,
    /// When the next one is due.
    due: MonoTime,
    /// Probes since the last answer.
    lost: u32,
    /// Since when it has been as it is.
    since: MonoTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unproved,
    Proved,
}

impl Path {
    /// A path of which nothing is known. Numbers of probes follow `number`, so that an answer
    /// to an earlier agent's probe is none to this one's.
    pub const fn new(number: u32, now: MonoTime) -> Self {
        Self {
            state: State::Unproved,
            number,
            due: now,
            lost: 0,
            since: now,
        }
    }

    /// Whether it may be used.
    pub const fn is_proved(&self) -> bool {
        matches!(self.state, State::Proved)
    }

    /// Whether it may be used, and no more than the last probe has no answer yet.
    pub const fn is_sound(&self) -> bool {
        self.is_proved() && self.lost <= 1
    }

    /// Whether it may be used, and is about to be lost.
    pub const fn is_failing(&self) -> bool {
        self.is_proved() && self.lost > 1
    }

    /// For how long it has not been proved.
    pub fn unproved_for(&self, now: MonoTime) -> Option<Duration> {
        (!self.is_proved()).then(|| now.since(self.since))
    }

    /// The last answer that has come, to the probe of that number.
    pub fn handle_answer(&mut self, number: u32, now: MonoTime) {
        if number != self.number || self.lost == 0 {
            return;
        }
        self.lost = 0;
        self.due = now.saturating_add(PERIOD);
        if self.state != State::Proved {
            self.state = State::Proved;
            self.since = now;
        }
    }

    /// The link is another one: a card, its address, or the peer's.
    pub fn handle_change(&mut self, now: MonoTime) {
        *self = Self::new(self.number, now);
    }

    /// Whether the last probe has no answer yet.
    pub const fn is_waiting(&self) -> bool {
        self.lost > 0
    }

    /// Another path is about to be lost: whether this one is, too, is to be known as soon.
    pub fn hurry(&mut self, now: MonoTime) {
        if self.is_proved() && self.lost == 0 {
            self.due = self.due.min(now);
        }
    }

    /// When [`poll_probe`](Self::poll_probe) has the next one.
    pub const fn poll_timeout(&self) -> MonoTime {
        self.due
    }

    /// The number of the probe that is to be sent now, if one is.
    pub fn poll_probe(&mut self, now: MonoTime) -> Option<u32> {
        if now < self.due {
            return None;
        }
        if self.lost >= MOST_LOST && self.state == State::Proved {
            self.state = State::Unproved;
            self.since = now;
        }
        self.number = self.number.wrapping_add(1);
        self.lost = self.lost.saturating_add(1);
        let pause = if self.lost > 2 * MOST_LOST {
            SELDOM
        } else {
            PATIENCE
        };
        self.due = now.saturating_add(pause);
        Some(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime::ZERO.saturating_add(Duration::from_millis(ms))
    }

    /// Runs a path in steps of 10 ms; a probe is answered at once if `carries`.
    fn run(path: &mut Path, from: u64, to: u64, carries: bool) -> u32 {
        let mut probes = 0;
        for ms in (from..to).step_by(10) {
            if let Some(number) = path.poll_probe(at(ms)) {
                probes += 1;
                if carries {
                    path.handle_answer(number, at(ms));
                }
            }
        }
        probes
    }

    #[test]
    fn a_path_is_proved_by_an_answer_and_then_twice_a_second() {
        let mut path = Path::new(7, at(0));
        assert!(!path.is_proved());
        assert_eq!(run(&mut path, 0, 3000, true), 6);
        assert!(path.is_proved());
        assert_eq!(path.unproved_for(at(3000)), None);
    }

    #[test]
    fn a_path_that_carries_nothing_any_more_is_unproved_within_three_quarters_of_a_second() {
        let mut path = Path::new(7, at(0));
        run(&mut path, 0, 1000, true);
        run(&mut path, 1000, 1150, false);
        assert!(path.is_proved(), "a few were lost");
        run(&mut path, 1150, 1250, false);
        assert!(!path.is_proved());
        assert_eq!(
            path.unproved_for(at(1300)),
            Some(Duration::from_millis(100))
        );
        // Seldom from then on, and taken back with the first answer.
        let probes = run(&mut path, 1250, 11_250, false);
        assert!((9..20).contains(&probes), "{probes} probes in ten seconds");
        run(&mut path, 11_250, 12_500, true);
        assert!(path.is_proved());
    }

    #[test]
    fn only_the_answer_to_the_last_probe_counts() {
        let mut path = Path::new(7, at(0));
        path.handle_answer(7, at(0));
        assert!(!path.is_proved(), "nothing was sent");
        let first = path.poll_probe(at(0)).expect("due");
        let second = path.poll_probe(at(60)).expect("due");
        path.handle_answer(first, at(60));
        assert!(!path.is_proved(), "an earlier one");
        path.handle_answer(second, at(60));
        assert!(path.is_proved());
    }

    #[test]
    fn another_link_is_proved_anew() {
        let mut path = Path::new(7, at(0));
        run(&mut path, 0, 100, true);
        path.handle_change(at(100));
        assert!(!path.is_proved());
        assert!(path.poll_probe(at(100)).is_some(), "at once");
    }
}
