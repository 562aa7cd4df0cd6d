//! Locks outlive a thread that has died with one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The data behind these locks is valid after any panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
