//! Waiting for what the kernel does beside a test, with a deadline.

use std::thread;
use std::time::{Duration, Instant};

/// What any single wait may take; far above what it should.
const PATIENCE: Duration = Duration::from_secs(6);

/// Waits until `is_done`; fails with `what` there is instead.
pub(crate) fn until(mut is_done: impl FnMut() -> bool, what: impl Fn() -> String) {
    let end = Instant::now() + PATIENCE;
    while !is_done() {
        assert!(Instant::now() < end, "{}", what());
        thread::sleep(Duration::from_millis(1));
    }
}
