//! Socket options that are numbers.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Sizes in bytes.
const INT: libc::socklen_t = 4;
const LONG: libc::socklen_t = 8;

/// The number of an option.
///
/// # Errors
/// If the socket has none, or it is no socket.
pub fn option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<libc::c_int> {
    let (mut value, mut length) = (0, INT);
    // SAFETY: the kernel writes at most `length` bytes, which `value` has.
    let err = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    outcome(err).map(|()| value)
}

/// Sets an option to a number.
///
/// # Errors
/// If the kernel refuses.
pub fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the value outlives the call, and its length is given.
    let err = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            INT,
        )
    };
    outcome(err)
}

/// `SO_COOKIE`: no two sockets have the same while the machine runs.
///
/// # Errors
/// If it is no socket.
pub fn socket_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let (mut cookie, mut length) = (0_u64, LONG);
    // SAFETY: the kernel writes at most `length` bytes, which `cookie` has.
    let err = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    outcome(err).map(|()| cookie)
}

fn outcome(err: libc::c_int) -> io::Result<()> {
    match err {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
