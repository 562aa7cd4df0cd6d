//! Descriptors that belong to the server.
//!
//! The server names its sockets by number and may close them at any time, so a
//! number is only looked at, never owned; which socket it is says its cookie.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::stat::fstat;

use crate::error::Error;

pub(crate) use godwit_sock::{option, set_option, socket_cookie as cookie};

/// The descriptor with this number, for the calls of one function.
pub(crate) fn borrow<'a>(number: RawFd) -> io::Result<BorrowedFd<'a>> {
    if number < 0 {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: it is passed to system calls only, which refuse what is not open.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Refuses a number that can't be a connection of the server's: not open, no socket, a
/// listener.
pub(crate) fn expect_connection(number: RawFd) -> Result<(), Error> {
    let listens = option(borrow(number)?, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)?;
    if listens == 0 {
        Ok(())
    } else {
        Err(Error::Unknown)
    }
}

/// Puts another file under a number of the server's, which stays as it was when a
/// program is executed.
pub(crate) fn replace(number: RawFd, by: BorrowedFd<'_>) -> io::Result<()> {
    let flags = FdFlag::from_bits_retain(fcntl(borrow(number)?, FcntlArg::F_GETFD)?);
    let cloexec = match flags.contains(FdFlag::FD_CLOEXEC) {
        true => OFlag::O_CLOEXEC,
        false => OFlag::empty(),
    };
    // SAFETY: takes numbers only. The server expects its number to be open, and
    // cannot tell that it means something else.
    let err = unsafe { libc::dup3(by.as_raw_fd(), number, cloexec.bits()) };
    Errno::result(err).map(drop).map_err(Into::into)
}

/// Which file it is, among those that are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inode(libc::dev_t, libc::ino_t);

impl Inode {
    pub(crate) fn of(fd: impl AsFd) -> io::Result<Self> {
        let status = fstat(fd)?;
        Ok(Self(status.st_dev, status.st_ino))
    }
}

/// Whether reads and writes do not wait.
pub(crate) fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    Ok(flags.contains(OFlag::O_NONBLOCK))
}

/// Has reads and writes wait, or not.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> io::Result<()> {
    let mut flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    flags.set(OFlag::O_NONBLOCK, nonblocking);
    fcntl(fd, FcntlArg::F_SETFL(flags))?;
    Ok(())
}

/// Has a descriptor closed when a program is executed, or not.
pub(crate) fn set_cloexec(fd: BorrowedFd<'_>, cloexec: bool) -> io::Result<()> {
    let flag = match cloexec {
        true => FdFlag::FD_CLOEXEC,
        false => FdFlag::empty(),
    };
    fcntl(fd, FcntlArg::F_SETFD(flag))?;
    Ok(())
}
