//! Taking a socket out of a server's hands while the server runs, and putting it
//! back.
//!
//! A connection that is being moved stands still in repair mode, where reads and
//! writes fail with errors that no server expects. So its number gets another file
//! meanwhile: one end of a pair of Unix sockets from which nothing can be read and
//! to which nothing can be written. Calls on it wait or say EAGAIN, and not a byte
//! gets lost or into the wrong order, because not a byte is taken.
//!
//! What the server had begun before goes on with the connection itself: a read or
//! write that waits, and every registration with epoll, which belongs to the file
//! and not to the number (epoll(7)). What it has begun since and is waiting in has
//! to be made to begin again when the connection is back: see [`release`].
//!
//! [`release`]: crate::release

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, send, setsockopt, socketpair, sockopt,
};

use crate::descriptor;
use crate::descriptor::{Inode, is_nonblocking, option, replace, set_nonblocking, set_option};

/// A connection that its server does not reach.
#[derive(Debug)]
pub(crate) struct Parked {
    number: RawFd,
    socket: OwnedFd,
    /// What is under the server's number instead.
    stand_in: Inode,
    /// The stand-in's other end.
    other: OwnedFd,
}

/// The other end of a stand-in that somebody may still wait in.
#[derive(Debug)]
pub(crate) struct Leftover {
    /// The server's number.
    pub(crate) number: RawFd,
    other: OwnedFd,
}

impl Parked {
    /// Takes the socket under a number of the server's.
    ///
    /// # Errors
    /// If too many files are open; then the server still has it.
    pub(crate) fn park(number: RawFd) -> io::Result<Self> {
        let descriptor = descriptor::borrow(number)?;
        let socket = descriptor.try_clone_to_owned()?;
        let (stand_in, other) = full_pair()?;
        set_nonblocking(stand_in.as_fd(), is_nonblocking(descriptor)?)?;
        let parked = Self {
            number,
            socket,
            stand_in: Inode::of(&stand_in)?,
            other,
        };
        replace(number, stand_in.as_fd())?;
        Ok(parked)
    }

    /// The connection.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Gives it back. The server may have closed its number in the meantime: then
    /// the connection is closed as well, and nothing is left over.
    ///
    /// # Errors
    /// If the kernel refuses; then it is closed.
    pub(crate) fn put_back(self) -> io::Result<Option<Leftover>> {
        if !self.is_there() {
            return Ok(None);
        }
        replace(self.number, self.socket.as_fd())?;
        // What the server was told of before, and then could not find, is told
        // again: an edge-triggered epoll says everything once.
        renew_edges(self.socket.as_fd())?;
        Ok(Some(Leftover {
            number: self.number,
            other: self.other,
        }))
    }

    /// Gives back a connection that is over here: calls on it fail from now on, and
    /// those that wait in the stand-in do too. It must have been disconnected.
    ///
    /// # Errors
    /// If the kernel refuses; then the server finds a broken connection all the same.
    pub(crate) fn end(self) -> io::Result<()> {
        if self.is_there() {
            replace(self.number, self.socket.as_fd())?;
        }
        Ok(())
    }

    /// Whether the server has not closed its number.
    fn is_there(&self) -> bool {
        let descriptor = descriptor::borrow(self.number);
        let inode = descriptor.and_then(Inode::of);
        inode.is_ok_and(|inode| inode == self.stand_in)
    }
}

impl Leftover {
    /// Whether nobody is in a call on the stand-in any more.
    pub(crate) fn is_over(&self) -> bool {
        let mut end = [PollFd::new(self.other.as_fd(), PollFlags::empty())];
        let polled = poll(&mut end, PollTimeout::ZERO);
        let events = end[0].revents().unwrap_or(PollFlags::empty());
        polled.is_err() || events.contains(PollFlags::POLLHUP)
    }
}

/// Two ends, of which the first takes no more bytes.
fn full_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (first, other) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    // As small as the kernel allows.
    setsockopt(&first, sockopt::SndBuf, &0)?;
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    loop {
        use std::os::fd::AsRawFd as _;
        match send(first.as_raw_fd(), &[0; 1024], flags) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Ok((first, other)),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sets two options to what they are, upon which TCP tells those who wait of room
/// in the send queue and of bytes in the receive queue (`tcp_set_rcvlowat`,
/// `do_tcp_setsockopt`).
fn renew_edges(socket: BorrowedFd<'_>) -> io::Result<()> {
    for (level, name) in [
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    ] {
        set_option(socket, level, name, option(socket, level, name)?)?;
    }
    Ok(())
}
