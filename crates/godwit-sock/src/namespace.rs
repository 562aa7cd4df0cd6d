//! Which network namespace this is.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Linux 5.14, include/uapi/asm-generic/socket.h.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// A number of the calling thread's network namespace that no other one gets
/// until the machine restarts; inode numbers are used again.
///
/// # Errors
/// Fails on kernels older than 5.14.
pub fn netns_cookie() -> io::Result<u64> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    netns_cookie_of(fd.as_fd())
}

/// As [`netns_cookie`], of the namespace that a socket belongs to.
///
/// # Errors
/// As there, or if it is no socket.
pub fn netns_cookie_of(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).expect("8 fits");
    // SAFETY: value and length point to live variables of the sizes given.
    let err = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if err == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}
