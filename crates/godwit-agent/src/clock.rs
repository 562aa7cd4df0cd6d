//! The clock of everything that is timed: CLOCK_BOOTTIME, as in the data path:
//! a lease goes on to run out while the host sleeps.

use std::time::Duration;

use godwit_core::MonoTime;
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

/// The present moment.
pub fn now() -> MonoTime {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has it");
    MonoTime::ZERO.saturating_add(Duration::from(time))
}

/// The clock of day, in seconds since 1970; 0 if 32 bits do not hold them.
pub(crate) fn day() -> u32 {
    let time = clock_gettime(ClockId::CLOCK_REALTIME).expect("Linux has it");
    u32::try_from(time.tv_sec()).unwrap_or(0)
}

/// Sleeps until a moment, however often a signal interrupts.
pub(crate) fn sleep_until(moment: MonoTime) {
    let time = TimeSpec::from_duration(moment.since(MonoTime::ZERO));
    let flags = ClockNanosleepFlags::TIMER_ABSTIME;
    while clock_nanosleep(ClockId::CLOCK_BOOTTIME, flags, &time) == Err(Errno::EINTR) {}
}

/// Milliseconds for people and programs alike: three digits after the point.
pub(crate) fn ms(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

/// Whole milliseconds.
pub(crate) fn whole_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
