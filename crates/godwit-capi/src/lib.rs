//! `libgodwit`, the C interface of `godwit-app`: `include/godwit.h` is its
//! documentation, and a test compares the two.
//!
//! Each function checks its pointers, calls the Rust one, and turns the outcome
//! into a number. No panic leaves: it is `GW_PANIC`.

mod result;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::fd::IntoRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use godwit_app::raw::{self, Flags};
use godwit_app::{Error, MAX_SNAPSHOT, Options, Progress};

use result::GwResult;

/// `struct gw_options`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GwOptions {
    size: usize,
    flags: c_uint,
}

/// `struct gw_accepted`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GwAccepted {
    size: usize,
    flags: c_uint,
    fd: c_int,
    migrated: c_int,
    snapshot_size: usize,
}

const LISTEN_STATELESS: c_uint = 1;
const ACCEPT_NONBLOCK: c_uint = 1;
const ACCEPT_CLOEXEC: c_uint = 2;
const EXPORT_COMMIT: c_uint = 1;

/// Runs the body of a function that C calls.
fn boundary<T: From<i8>>(body: impl FnOnce() -> Result<T, GwResult>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(GwResult::Panic));
    outcome.unwrap_or_else(|result| T::from(result as i8))
}

/// See `godwit.h`.
///
/// # Safety
/// `options` is NULL or points to a `struct gw_options` of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_listen(listen_fd: c_int, options: *const GwOptions) -> c_int {
    boundary(|| {
        let mut wanted = Options::default();
        if !options.is_null() {
            // SAFETY: the size comes first, and says how much of the rest is there.
            let size = unsafe { (*options).size };
            if size < size_of::<GwOptions>() {
                return Err(GwResult::BadSize);
            }
            // SAFETY: it is that large.
            let flags = unsafe { (*options).flags };
            if flags & !LISTEN_STATELESS != 0 {
                return Err(GwResult::Unsupported);
            }
            wanted.stateless = flags & LISTEN_STATELESS != 0;
        }
        raw::listen(listen_fd, wanted)?;
        Ok(0)
    })
}

/// See `godwit.h`.
///
/// # Safety
/// `accepted` is NULL or points to a `struct gw_accepted` of the size that it says,
/// which nothing else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_accept(listen_fd: c_int, accepted: *mut GwAccepted) -> c_int {
    boundary(|| {
        if accepted.is_null() {
            return Err(GwResult::NullParameter);
        }
        // SAFETY: the size comes first, and says how much of the rest is there.
        let size = unsafe { (*accepted).size };
        if size < size_of::<GwAccepted>() {
            return Err(GwResult::BadSize);
        }
        // SAFETY: it is that large, and the caller has set its flags. What follows them may
        // never have been written, so there is no reference to the whole.
        let flags = unsafe { (*accepted).flags };
        if flags & !(ACCEPT_NONBLOCK | ACCEPT_CLOEXEC) != 0 {
            return Err(GwResult::Unsupported);
        }
        let flags = Flags {
            close_on_exec: flags & ACCEPT_CLOEXEC != 0,
            nonblocking: flags & ACCEPT_NONBLOCK != 0,
        };
        let guest = raw::accept(listen_fd, flags)?;
        let (migrated, snapshot) = (guest.migrated.into(), guest.snapshot);
        // SAFETY: it is that large, and the caller's alone.
        unsafe { (*accepted).migrated = migrated };
        // SAFETY: as above.
        unsafe { (*accepted).snapshot_size = snapshot };
        // SAFETY: as above.
        unsafe { (*accepted).fd = guest.socket.into_raw_fd() };
        Ok(0)
    })
}

/// See `godwit.h`.
///
/// # Safety
/// `snapshot` points to `size` bytes, or is NULL and `size` 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_export_state(
    fd: c_int,
    snapshot: *const c_void,
    size: usize,
    flags: c_uint,
) -> c_int {
    boundary(|| {
        if flags & !EXPORT_COMMIT != 0 {
            return Err(GwResult::Unsupported);
        }
        let most = match flags & EXPORT_COMMIT {
            0 => MAX_SNAPSHOT as usize,
            // What is too large leaves a connection unprotected: it is no mistake
            // that nothing comes of.
            _ => isize::MAX.cast_unsigned(),
        };
        if size > most {
            return Err(GwResult::TooLarge);
        }
        // SAFETY: as this function's.
        let bytes = unsafe { bytes(snapshot, size)? };
        match flags & EXPORT_COMMIT {
            0 => raw::export_state(fd, bytes)?,
            _ => raw::commit_state(fd, bytes)?,
        }
        Ok(0)
    })
}

/// See `godwit.h`.
///
/// # Safety
/// As [`gw_export_state`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_export_state_at(
    fd: c_int,
    snapshot: *const c_void,
    size: usize,
    read: u64,
    written: u64,
) -> c_int {
    boundary(|| {
        if size > MAX_SNAPSHOT as usize {
            return Err(GwResult::TooLarge);
        }
        // SAFETY: as this function's.
        let bytes = unsafe { bytes(snapshot, size)? };
        raw::export_state_at(fd, bytes, Progress { read, written })?;
        Ok(0)
    })
}

/// See `godwit.h`.
///
/// # Safety
/// `snapshot` points to `size` bytes that nothing else uses meanwhile, or is NULL
/// and `size` 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_import_state(
    fd: c_int,
    snapshot: *mut c_void,
    size: usize,
) -> libc::ssize_t {
    boundary(|| {
        let buffer = match (snapshot.is_null(), size) {
            (true, 0) => &mut [],
            (true, _) => return Err(GwResult::NullParameter),
            // A server's buffer may be larger than any snapshot; not than this.
            (false, _) if isize::try_from(size).is_err() => return Err(GwResult::TooLarge),
            // SAFETY: as this function's; C need not have written them.
            (false, _) => unsafe {
                slice::from_raw_parts_mut(snapshot.cast::<MaybeUninit<u8>>(), size)
            },
        };
        let length = raw::import_state(fd, buffer)?;
        libc::ssize_t::try_from(length).map_err(|_| GwResult::TooLarge)
    })
}

/// See `godwit.h`.
///
/// # Safety
/// `session` points to `size` bytes, or is NULL and `size` 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_session_join(fd: c_int, session: *const c_void, size: usize) -> c_int {
    boundary(|| {
        if size > godwit_app::MAX_SESSION {
            return Err(GwResult::TooLarge);
        }
        // SAFETY: as this function's.
        let name = unsafe { bytes(session, size)? };
        raw::join_session(fd, name)?;
        Ok(0)
    })
}

/// See `godwit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gw_close(fd: c_int) -> c_int {
    boundary(|| {
        raw::close(fd)?;
        Ok(0)
    })
}

/// See `godwit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gw_result_str(result: c_int) -> *const c_char {
    GwResult::text(result).as_ptr()
}

/// # Safety
/// `start` points to `size` bytes that live long enough, or is NULL and `size` 0.
unsafe fn bytes<'a>(start: *const c_void, size: usize) -> Result<&'a [u8], GwResult> {
    match (start.is_null(), size) {
        (true, 0) => Ok(&[]),
        (true, _) => Err(GwResult::NullParameter),
        // SAFETY: as this function's; callers have checked the size.
        (false, _) => Ok(unsafe { slice::from_raw_parts(start.cast(), size) }),
    }
}

impl From<Error> for GwResult {
    fn from(error: Error) -> Self {
        match error {
            Error::Emigrated => Self::Emigrated,
            Error::TooLarge => Self::TooLarge,
            Error::NoSpace => Self::NoSpace,
            Error::Unprotected => Self::Unprotected,
            Error::Misplaced => Self::Misplaced,
            Error::Unsupported => Self::Unsupported,
            Error::Unknown => Self::BadDescriptor,
            Error::System(error) => Self::of_system(&error),
            _ => Self::System,
        }
    }
}
