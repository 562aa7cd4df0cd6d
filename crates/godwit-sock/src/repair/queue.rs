//! The two queues of a socket in repair mode.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use godwit_wire::SeqNumber;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use super::sys::{self, SockOptError, TCP_QUEUE_SEQ, TCP_REPAIR_QUEUE};

/// include/uapi/linux/tcp.h: `TCP_NO_QUEUE`, `TCP_RECV_QUEUE`, `TCP_SEND_QUEUE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Recv = 1,
    Send = 2,
}

/// A single write to a queue is one buffer of the kernel's, and has to fit; a
/// smaller one is tried down to this.
const LEAST: usize = 4096;
/// Most bytes in one buffer of the kernel's (`GSO_LEGACY_MAX_SIZE`, and what
/// BIG TCP makes of it).
const MOST_BUFFER: usize = 8 * 65536;

impl Queue {
    pub(super) fn choose(self, fd: BorrowedFd<'_>) -> Result<(), SockOptError> {
        TCP_REPAIR_QUEUE.set(fd, self as u32)
    }

    /// Reads and writes are about no queue any more.
    pub(super) fn leave(fd: BorrowedFd<'_>) -> Result<(), SockOptError> {
        TCP_REPAIR_QUEUE.set(fd, 0)
    }

    /// Where the queue of a socket that is not connected begins.
    pub(super) fn begin(self, fd: BorrowedFd<'_>, at: SeqNumber) -> Result<(), SockOptError> {
        self.choose(fd)?;
        TCP_QUEUE_SEQ.set(fd, at.0)
    }

    /// The last `length` bytes in the queue, which stay there. Fewer if there are
    /// fewer.
    pub(super) fn peek(self, fd: BorrowedFd<'_>, length: u32) -> Result<Vec<u8>, SockOptError> {
        if length == 0 {
            return Ok(Vec::new());
        }
        self.choose(fd)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length + self.surplus()];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let got = match recv(fd.as_raw_fd(), &mut bytes, flags) {
            Ok(got) => got,
            // Nothing there: the caller knows better than to ask.
            Err(Errno::EAGAIN) => 0,
            Err(errno) => return Err(sys::refused(self.name(), errno)),
        };
        bytes.truncate(got);
        bytes.drain(..got.saturating_sub(length));
        Ok(bytes)
    }

    /// How much the kernel may show in front of the queue. A client that
    /// acknowledges a part of a buffer which holds one segment has the kernel keep
    /// all of it (`tcp_clean_rtx_queue`), and a peek into the send queue needs
    /// room for all.
    const fn surplus(self) -> usize {
        match self {
            Self::Recv => 0,
            Self::Send => MOST_BUFFER,
        }
    }

    /// Puts bytes into the queue: as received, or as sent.
    pub(super) fn fill(self, fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), SockOptError> {
        self.choose(fd)?;
        write_all(fd, bytes).map_err(|errno| sys::refused(self.name(), errno))
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Recv => "the receive queue",
            Self::Send => "the send queue",
        }
    }
}

/// Writes all of `bytes` at once or in parts that the kernel has room for.
pub(super) fn write_all(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let (mut at, mut part) = (0, bytes.len());
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    while at < bytes.len() {
        let end = bytes.len().min(at + part);
        match send(fd.as_raw_fd(), &bytes[at..end], flags) {
            Ok(written) => at += written,
            Err(Errno::ENOMEM | Errno::EMSGSIZE) if part > LEAST => part /= 2,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
