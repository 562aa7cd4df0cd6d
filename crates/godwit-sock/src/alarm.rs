//! System calls that wait for ever, and of which the calling thread is to come back.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal};
use nix::sys::signal::{SigmaskHow, sigaction, sigprocmask};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;

/// Nobody else in these programs uses it.
const SIGNAL: Signal = Signal::SIGALRM;

/// Until it is dropped, a system call of the calling thread that waits fails with EINTR
/// after a while: each time, for the thread may not have been in it yet.
#[derive(Debug)]
pub(crate) struct Alarm {
    _timer: Timer,
}

impl Alarm {
    /// # Errors
    /// If there is no timer to be had (RLIMIT_SIGPENDING).
    pub(crate) fn every(interval: Duration) -> io::Result<Self> {
        static HANDLED: OnceLock<Result<(), Errno>> = OnceLock::new();
        (*HANDLED.get_or_init(handle))?;
        let mut mask = SigSet::empty();
        mask.add(SIGNAL);
        sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&mask), None)?;
        let notify = SigevNotify::SigevThreadId {
            signal: SIGNAL,
            thread_id: gettid().as_raw(),
            si_value: 0,
        };
        let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify))?;
        let expiration = Expiration::Interval(TimeSpec::from_duration(interval));
        timer.set(expiration, TimerSetTimeFlags::empty())?;
        Ok(Self { _timer: timer })
    }
}

/// Without a handler the signal would end the process; with SA_RESTART the call would go
/// on.
fn handle() -> Result<(), Errno> {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = SigHandler::Handler(nothing);
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(SIGNAL, &action) }.map(drop)
}
