//! Waiting for a condition, with a deadline.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// What any single wait of a test may take; far above what it should.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A client's silence above this means that some retransmission timer of a
/// second had to run out. Tests do not measure more finely: benchmarks do.
pub const STALL_LIMIT: Duration = Duration::from_millis(1500);

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
///
/// # Errors
/// Fails after [`DEADLINE`], or as the condition does.
pub fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    until_some(what, || Ok(condition()?.then_some(())))
}

/// Waits until `look` finds something.
///
/// # Errors
/// Fails after [`DEADLINE`], or as `look` does.
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(Instant::now() < end, "waited {DEADLINE:?} for {what}");
        thread::sleep(POLL);
    }
}
