//! The clock of day, and times in which this host slept.
//!
//! Leases and heartbeats go by CLOCK_BOOTTIME, which nobody sets. Certificates, times of
//! events and the incarnation of the next agent go by the clock of day: a step of it is
//! said, and certificates are judged anew.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_core::fitness::Consequence;
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{
    ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags,
};
use nix::time::{ClockId, clock_gettime};

use super::watch::Source;
use crate::clock;
use crate::facts::{Look, Wrong};

/// Two clocks are read.
const PERIOD: Duration = Duration::from_secs(1);

/// How long a step or a sleep is said.
const SAID: Duration = Duration::from_secs(60);

/// Smaller steps are what ntpd does all day.
const SMALL: i128 = 500_000_000;

/// A host that slept for less than this was only busy.
const NAP: i128 = 100_000_000;

/// Far away: the timer is there to be cancelled when the clock is set.
const FAR: i64 = i32::MAX as i64 * 2;

/// Readings of three clocks, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Clocks {
    day: i128,
    boot: i128,
    running: i128,
}

/// What happened to the clocks, and when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct History {
    last: Option<Clocks>,
    step: Option<(MonoTime, i128)>,
    sleep: Option<(MonoTime, i128)>,
}

pub(super) struct Clock {
    timer: TimerFd,
    history: History,
}

impl Clock {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(TimerClock::CLOCK_REALTIME, flags)?;
        let mut this = Self {
            timer,
            history: History::default(),
        };
        this.arm();
        Ok(this)
    }

    fn arm(&mut self) {
        let flags =
            TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        let far = Expiration::OneShot(TimeSpec::new(FAR, 0));
        if let Err(error) = self.timer.set(far, flags) {
            tracing::debug!(%error, "steps of the clock are noticed within a second");
        }
    }
}

impl Clocks {
    fn read() -> Self {
        let nanos = |id| {
            let time = clock_gettime(id).unwrap_or_else(|_| TimeSpec::new(0, 0));
            i128::from(time.tv_sec()) * 1_000_000_000 + i128::from(time.tv_nsec())
        };
        Self {
            running: nanos(ClockId::CLOCK_MONOTONIC),
            boot: nanos(ClockId::CLOCK_BOOTTIME),
            day: nanos(ClockId::CLOCK_REALTIME),
        }
    }
}

impl History {
    fn note(&mut self, clocks: Clocks, now: MonoTime) {
        if let Some(last) = self.last {
            let boot = clocks.boot - last.boot;
            let step = clocks.day - last.day - boot;
            let sleep = boot - (clocks.running - last.running);
            if step.abs() >= SMALL {
                self.step = Some((now, step));
            }
            if sleep >= NAP {
                self.sleep = Some((now, sleep));
            }
        }
        self.last = Some(clocks);
        let old = |said: &(MonoTime, i128)| now.since(said.0) < SAID;
        self.step = self.step.filter(old);
        self.sleep = self.sleep.filter(old);
    }

    fn wrong(&self) -> Vec<Wrong> {
        let seconds = |nanos: i128| nanos as f64 / 1e9;
        let step = self.step.map(|(_, step)| Wrong {
            name: "clock_step".into(),
            share: None,
            consequence: Consequence::Say,
            found: format!("the clock of day was set by {:+.1} s", seconds(step)),
            advice: "compare times of events with care; let chronyd or ntpd slew the clock".into(),
        });
        let sleep = self.sleep.map(|(_, sleep)| Wrong {
            name: "suspended".into(),
            share: None,
            consequence: Consequence::Say,
            found: format!("this host was suspended for {:.1} s", seconds(sleep)),
            advice: "never suspend a server: its leases end meanwhile".into(),
        });
        step.into_iter().chain(sleep).collect()
    }
}

impl Source for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.timer.as_fd())
    }

    fn take_events(&mut self) -> bool {
        // ECANCELED: the clock was set.
        if self.timer.wait() == Err(Errno::EAGAIN) {
            return false;
        }
        self.arm();
        true
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn look(&mut self) -> Look {
        self.history.note(Clocks::read(), clock::now());
        Look {
            source: "clock",
            watched: vec!["clock_step".into(), "suspended".into()],
            wrong: self.history.wrong(),
            days_left: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    /// Clocks `seconds` after the boot, with a day that is off and after a sleep.
    fn clocks(seconds: i128, off: i128, slept: i128) -> Clocks {
        Clocks {
            day: (1_000_000 + seconds + off) * SECOND,
            boot: seconds * SECOND,
            running: (seconds - slept) * SECOND,
        }
    }

    fn said(history: &History) -> Vec<String> {
        let wrong = history.wrong().into_iter();
        wrong
            .map(|wrong| format!("{}: {}", wrong.name, wrong.found))
            .collect()
    }

    fn at(seconds: u64) -> MonoTime {
        MonoTime(seconds * 1_000_000_000)
    }

    #[test]
    fn steps_and_sleeps_are_said_for_a_minute() {
        let mut history = History::default();
        history.note(clocks(10, 0, 0), at(10));
        history.note(clocks(11, 0, 0), at(11));
        assert_eq!(said(&history), Vec::<String>::new());
        history.note(clocks(12, -3600, 0), at(12));
        let step = "clock_step: the clock of day was set by -3600.0 s";
        assert_eq!(said(&history), [step]);
        history.note(clocks(42, -3600, 29), at(42));
        let sleep = "suspended: this host was suspended for 29.0 s";
        assert_eq!(said(&history), [step, sleep]);
        history.note(clocks(72, -3600, 29), at(72));
        assert_eq!(said(&history), [sleep]);
        history.note(clocks(102, -3600, 29), at(102));
        assert_eq!(said(&history), Vec::<String>::new());
    }

    #[test]
    fn what_ntpd_does_is_no_step() {
        let mut history = History::default();
        history.note(clocks(10, 0, 0), at(10));
        let mut slewed = clocks(11, 0, 0);
        slewed.day += SMALL - 1;
        history.note(slewed, at(11));
        assert_eq!(said(&history), Vec::<String>::new());
    }

    #[test]
    fn this_machine_has_the_clocks() {
        let mut source = Clock::new().expect("a timer");
        assert_eq!(source.look().wrong, []);
        assert!(!source.take_events(), "nobody has set the clock");
        assert_eq!(source.look().wrong, []);
    }
}
