//! `enum gw_result`.

use std::ffi::{CStr, c_int};
use std::io;

/// Declares the enum with what each number means.
macro_rules! results {
    ($($variant:ident = $number:literal, $text:literal;)+) => {
        /// What a call returns; `godwit.h` explains each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(i8)]
        pub(crate) enum GwResult {
            $($variant = $number,)+
        }

        impl GwResult {
            /// What a number means.
            pub(crate) const fn text(result: c_int) -> &'static CStr {
                match result {
                    0.. => c"done",
                    $($number => $text,)+
                    _ => c"no result of this release",
                }
            }
        }
    };
}

results! {
    NullParameter = -1, c"a pointer is NULL that may not be";
    Panic = -2, c"a defect of libgodwit";
    BadDescriptor = -3, c"the descriptor is not open, or not what it has to be";
    TooLarge = -4, c"more than fits";
    NoSpace = -5, c"no room for the snapshot";
    Emigrated = -6, c"the connection has moved to another server";
    Unsupported = -7, c"not supported by this release";
    WouldBlock = -8, c"nobody waits to be accepted";
    Interrupted = -9, c"interrupted by a signal";
    BadSize = -10, c"the structure is too small";
    System = -11, c"a system call failed";
    Unprotected = -12, c"no standby has the snapshot";
    Misplaced = -13, c"the server has come to another place than it says";
}

impl GwResult {
    /// What a system call said; `errno` says it too.
    pub(crate) fn of_system(error: &io::Error) -> Self {
        let number = error.raw_os_error().unwrap_or(libc::EINVAL);
        // SAFETY: the thread's own errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: it points to that as long as the thread runs.
        unsafe { *errno = number };
        match number {
            libc::EBADF | libc::ENOTSOCK => Self::BadDescriptor,
            libc::EAGAIN => Self::WouldBlock,
            libc::EINTR => Self::Interrupted,
            _ => Self::System,
        }
    }
}
