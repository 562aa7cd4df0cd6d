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

impl Queue {
    pub(super) fn choose(self, fd: BorrowedFd<'_>) -> Result<(), SockOptError> {
        TCP_REPAIR_QUEUE.set(fd, self as u32)
    }

    /// Reads and writes are about no queue any more.
    pub(super) fn leave(fd: BorrowedFd<'_>) -> Result<(), SockOptError> {
        TCP_REPAIR_QUEUE.set(fd, 0)
    }

    /// The end of the queue: `rcv_nxt` or `write_seq`.
    pub(super) fn end(self, fd: BorrowedFd<'_>) -> Result<SeqNumber, SockOptError> {
        self.choose(fd)?;
        TCP_QUEUE_SEQ.get(fd).map(SeqNumber)
    }

    /// Where the queue of a socket that is not connected begins.
    pub(super) fn begin(self, fd: BorrowedFd<'_>, at: SeqNumber) -> Result<(), SockOptError> {
        self.choose(fd)?;
        TCP_QUEUE_SEQ.set(fd, at.0)
    }

    /// All that is in the queue, which stays there: `length` bytes.
    pub(super) fn peek(self, fd: BorrowedFd<'_>, length: u32) -> Result<Vec<u8>, SockOptError> {
        self.choose(fd)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let got = recv(fd.as_raw_fd(), &mut bytes, flags)
            .map_err(|errno| sys::refused(self.name(), errno))?;
        bytes.truncate(got);
        Ok(bytes)
    }

    /// Puts bytes into the queue: as received, or as sent.
    pub(super) fn fill(self, fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), SockOptError> {
        self.choose(fd)?;
        write_all(fd, bytes).map_err(|errno| sys::refused(self.name(), errno))
    }

    const fn name(self) -> &'static str {
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
