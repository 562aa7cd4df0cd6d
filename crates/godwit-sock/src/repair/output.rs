//! What a connection's peer has not acknowledged yet, read while its application
//! stands still and the connection goes on.
//!
//! The kernel shows a send queue in repair mode only, and only while that queue is
//! chosen. A segment of the peer that arrives in these microseconds would have the
//! kernel count as sent what it never sent (`tcp_write_xmit`): the peer gets it by a
//! retransmission. So what is not sent yet is waited for first, a little.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use crate::{StreamPosition, stream};

use super::pause::{PauseError, PausedSocket, leave_repair};
use super::queue::Queue;
use super::restore::Release;
use super::sys::{self, SockOptError, TCP_REPAIR};

/// How long what is not sent yet may take to be sent. Where the peer's window is shut
/// it is not, and is not waited for: peers that do not listen are not to slow others down.
const PATIENCE: Duration = Duration::from_millis(2);

/// Between two looks.
const LOOK: Duration = Duration::from_micros(50);

/// Where an application stands, and the end of what it has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unacknowledged {
    /// Where it stands.
    pub position: StreamPosition,
    /// The last bytes before `position.written`: the peer has acknowledged all that
    /// was written before them, as some of them perhaps.
    pub output: Vec<u8>,
}

/// Why it can't be had; the connection goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// More than was asked for.
    #[error("{0} bytes are not acknowledged")]
    TooLarge(u64),
    /// Its socket can't be stopped.
    #[error("the socket can't be stopped")]
    Pause(#[from] PauseError),
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] SockOptError),
    /// It is no connection, or no more.
    #[error("no position")]
    Position(#[source] std::io::Error),
    /// The kernel shows less than it counts.
    #[error("{shown} of {counted} bytes are there")]
    Short {
        /// Bytes that it shows.
        shown: u64,
        /// Bytes that it counts.
        counted: u64,
    },
}

/// Reads what is not acknowledged, of which there may be `most` bytes. The application
/// must stand still. Needs CAP_NET_ADMIN if there is anything.
///
/// # Errors
/// See [`OutputError`].
pub fn unacknowledged(socket: OwnedFd, most: u64) -> Result<Unacknowledged, OutputError> {
    let position = at(socket.as_fd())?;
    if position.written == position.acknowledged {
        // Nobody is stopped for nothing.
        let output = Vec::new();
        return Ok(Unacknowledged { position, output });
    }
    await_sending(socket.as_fd());
    let paused = PausedSocket::pause(socket).map_err(|(_, error)| error)?;
    let read = peek(paused.as_fd(), most);
    // Dropped at an error it resumes, too.
    paused.resume(Release::Silently)?;
    read
}

fn peek(socket: BorrowedFd<'_>, most: u64) -> Result<Unacknowledged, OutputError> {
    let before = at(socket)?;
    let wanted = before.written - before.acknowledged;
    let length = u32::try_from(wanted).ok().filter(|_| wanted <= most);
    let length = length.ok_or(OutputError::TooLarge(wanted))?;
    let output = Queue::Send.peek(socket, length);
    Queue::leave(socket)?;
    let (output, position) = (output?, at(socket)?);
    // What was acknowledged meanwhile is not there any more.
    let (shown, counted) = (
        output.len() as u64,
        position.written.saturating_sub(position.acknowledged),
    );
    if shown < counted || position.written != before.written {
        return Err(OutputError::Short { shown, counted });
    }
    Ok(Unacknowledged { position, output })
}

fn at(socket: BorrowedFd<'_>) -> Result<StreamPosition, OutputError> {
    StreamPosition::of(socket).map_err(OutputError::Position)
}

fn await_sending(socket: BorrowedFd<'_>) {
    let goes_out = || {
        let waits = stream::unsent(socket).is_ok_and(|bytes| bytes > 0);
        waits && !stream::is_shut(socket).unwrap_or(false)
    };
    let end = Instant::now() + PATIENCE;
    while goes_out() && Instant::now() < end {
        thread::sleep(LOOK);
    }
}

/// Has a connection go on that somebody has stopped and not let go: no segment leaves
/// for it. True if it was stopped.
///
/// # Errors
/// If it is no TCP socket, or the process lacks CAP_NET_ADMIN.
pub fn mend(socket: BorrowedFd<'_>) -> Result<bool, SockOptError> {
    let stopped = TCP_REPAIR.get(socket)? != 0;
    if stopped {
        sys::TCP_REPAIR_QUEUE.set(socket, 0)?;
        leave_repair(socket, Release::Silently)?;
    }
    Ok(stopped)
}
