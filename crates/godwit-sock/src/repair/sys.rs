//! The system calls, one by one.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::libc;

/// A call on a socket that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{option}")]
pub struct SockOptError {
    /// The socket option or system call.
    pub option: &'static str,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// A socket option: its level, number and name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opt {
    level: libc::c_int,
    number: libc::c_int,
    name: &'static str,
}

/// A socket option with the name that libc gives it.
macro_rules! opt {
    ($name:ident = $level:ident, $number:expr) => {
        pub(super) const $name: Opt = Opt {
            level: libc::$level,
            number: $number,
            name: stringify!($name),
        };
    };
}

opt!(TCP_REPAIR = IPPROTO_TCP, libc::TCP_REPAIR);
opt!(TCP_REPAIR_QUEUE = IPPROTO_TCP, libc::TCP_REPAIR_QUEUE);
opt!(TCP_QUEUE_SEQ = IPPROTO_TCP, libc::TCP_QUEUE_SEQ);
opt!(TCP_REPAIR_OPTIONS = IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS);
opt!(TCP_REPAIR_WINDOW = IPPROTO_TCP, libc::TCP_REPAIR_WINDOW);
opt!(TCP_TIMESTAMP = IPPROTO_TCP, libc::TCP_TIMESTAMP);
opt!(TCP_INFO = IPPROTO_TCP, libc::TCP_INFO);
opt!(TCP_MAXSEG = IPPROTO_TCP, libc::TCP_MAXSEG);
opt!(TCP_CONGESTION = IPPROTO_TCP, libc::TCP_CONGESTION);
opt!(TCP_ULP = IPPROTO_TCP, libc::TCP_ULP);
#[cfg(test)]
opt!(TCP_MD5SIG = IPPROTO_TCP, libc::TCP_MD5SIG);
opt!(TCP_NODELAY = IPPROTO_TCP, libc::TCP_NODELAY);
opt!(TCP_KEEPIDLE = IPPROTO_TCP, libc::TCP_KEEPIDLE);
opt!(TCP_KEEPINTVL = IPPROTO_TCP, libc::TCP_KEEPINTVL);
opt!(TCP_KEEPCNT = IPPROTO_TCP, libc::TCP_KEEPCNT);
opt!(TCP_CORK = IPPROTO_TCP, libc::TCP_CORK);
opt!(TCP_NOTSENT_LOWAT = IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
opt!(TCP_USER_TIMEOUT = IPPROTO_TCP, libc::TCP_USER_TIMEOUT);
opt!(SO_KEEPALIVE = SOL_SOCKET, libc::SO_KEEPALIVE);
opt!(SO_OOBINLINE = SOL_SOCKET, libc::SO_OOBINLINE);
opt!(SO_LINGER = SOL_SOCKET, libc::SO_LINGER);
opt!(IP_TOS = IPPROTO_IP, libc::IP_TOS);
opt!(IP_OPTIONS = IPPROTO_IP, libc::IP_OPTIONS);
// include/uapi/linux/in6.h
opt!(IPV6_2292PKTOPTIONS = IPPROTO_IPV6, 6);
opt!(IPV6_TCLASS = IPPROTO_IPV6, libc::IPV6_TCLASS);
opt!(SO_REUSEADDR = SOL_SOCKET, libc::SO_REUSEADDR);
opt!(SO_SNDBUF = SOL_SOCKET, libc::SO_SNDBUF);
opt!(SO_RCVBUF = SOL_SOCKET, libc::SO_RCVBUF);
opt!(SO_SNDBUFFORCE = SOL_SOCKET, libc::SO_SNDBUFFORCE);
opt!(SO_RCVBUFFORCE = SOL_SOCKET, libc::SO_RCVBUFFORCE);
// Linux 5.14, include/uapi/asm-generic/socket.h
opt!(SO_BUF_LOCK = SOL_SOCKET, 72);

impl Opt {
    fn error(self) -> SockOptError {
        failed(self.name)
    }

    /// Sets the option to a number.
    pub(super) fn set(self, fd: BorrowedFd<'_>, value: u32) -> Result<(), SockOptError> {
        self.set_bytes(fd, &value.to_ne_bytes())
    }

    /// The option's number.
    pub(super) fn get(self, fd: BorrowedFd<'_>) -> Result<u32, SockOptError> {
        let mut value = [0; 4];
        self.get_bytes(fd, &mut value)?;
        Ok(u32::from_ne_bytes(value))
    }

    /// Sets the option to a structure, laid out as the kernel has it.
    pub(super) fn set_bytes(self, fd: BorrowedFd<'_>, value: &[u8]) -> Result<(), SockOptError> {
        let length = libc::socklen_t::try_from(value.len()).map_err(|_| self.error())?;
        // SAFETY: the value outlives the call, and its length is given.
        let err = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                self.level,
                self.number,
                value.as_ptr().cast(),
                length,
            )
        };
        (err == 0).then_some(()).ok_or_else(|| self.error())
    }

    /// Fills `value` as far as the kernel has anything; how far is returned.
    pub(super) fn get_bytes(
        self,
        fd: BorrowedFd<'_>,
        value: &mut [u8],
    ) -> Result<usize, SockOptError> {
        let mut length = libc::socklen_t::try_from(value.len()).map_err(|_| self.error())?;
        // SAFETY: the kernel writes at most `length` bytes, which `value` has.
        let err = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                self.level,
                self.number,
                value.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let filled = usize::try_from(length).unwrap_or(0).min(value.len());
        (err == 0).then_some(filled).ok_or_else(|| self.error())
    }
}

/// What the last system call said, on behalf of `option`.
pub(super) fn failed(option: &'static str) -> SockOptError {
    SockOptError {
        option,
        source: io::Error::last_os_error(),
    }
}

/// As [`failed`], for an error that is at hand.
pub(super) fn refused(option: &'static str, source: impl Into<io::Error>) -> SockOptError {
    SockOptError {
        option,
        source: source.into(),
    }
}
