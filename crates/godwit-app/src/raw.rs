//! The same by number, for the C library.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use nix::sys::socket::SockFlag;

use crate::descriptor::{set_cloexec, set_nonblocking};
use crate::listener::Guest;
use crate::{Arrival, Error, Options, Progress, fork};

/// How a new descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags {
    /// Closed when a program is executed.
    pub close_on_exec: bool,
    /// Reads and writes do not wait.
    pub nonblocking: bool,
}

impl Flags {
    /// Only that.
    pub const CLOSE_ON_EXEC: Self = Self {
        close_on_exec: true,
        nonblocking: false,
    };
}

/// A connection by its number.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub socket: OwnedFd,
    /// Another server had it.
    pub migrated: bool,
    /// Size of the snapshot that it came with, in bytes.
    pub snapshot: usize,
}

/// Registers a listener.
///
/// # Errors
/// If it is none.
pub fn listen(listener: RawFd, options: Options) -> Result<(), Error> {
    let stateless = Some(options.stateless);
    fork::current().listener(listener, stateless)?;
    Ok(())
}

/// The next connection of a listener, which is registered if it was not.
///
/// # Errors
/// As accept4(2).
pub fn accept(listener: RawFd, flags: Flags) -> Result<Accepted, Error> {
    let process = fork::current();
    let known = process.listener(listener, None)?;
    let mut wanted = SockFlag::empty();
    wanted.set(SockFlag::SOCK_CLOEXEC, flags.close_on_exec);
    wanted.set(SockFlag::SOCK_NONBLOCK, flags.nonblocking);
    let (socket, arrival) = match known.accept(wanted)? {
        Guest::Client(socket) => (socket, Arrival::Fresh),
        Guest::Migrated(given) => {
            let descriptor = std::os::fd::AsFd::as_fd(&given.socket);
            set_cloexec(descriptor, flags.close_on_exec)?;
            set_nonblocking(descriptor, flags.nonblocking)?;
            (given.socket, Arrival::Migrated(given.carried))
        }
    };
    let (migrated, snapshot) = match &arrival {
        Arrival::Fresh | Arrival::Inherited => (false, 0),
        Arrival::Migrated(carried) => {
            let length = carried.as_ref().map_or(0, |carried| carried.bytes.len());
            (true, length)
        }
    };
    process.enter(socket.as_raw_fd(), known.stateless, arrival)?;
    Ok(Accepted {
        socket,
        migrated,
        snapshot,
    })
}

/// See [`crate::export_state`].
///
/// # Errors
/// As there.
pub fn export_state(connection: RawFd, snapshot: &[u8]) -> Result<(), Error> {
    fork::current().export(connection, snapshot, None)
}

/// See [`crate::export_state_at`].
///
/// # Errors
/// As there.
pub fn export_state_at(
    connection: RawFd,
    snapshot: &[u8],
    progress: Progress,
) -> Result<(), Error> {
    fork::current().export(connection, snapshot, Some(progress))
}

/// See [`crate::commit_state`].
///
/// # Errors
/// As there.
pub fn commit_state(connection: RawFd, snapshot: &[u8]) -> Result<(), Error> {
    fork::current().commit(connection, snapshot)
}

/// Copies what a connection came with, if `buffer` has room for all of it; its
/// size in bytes.
///
/// # Errors
/// [`Error::Emigrated`] if another server has it.
pub fn import_state(connection: RawFd, buffer: &mut [MaybeUninit<u8>]) -> Result<usize, Error> {
    fork::current().import(connection, buffer)
}

/// See [`crate::join_session`].
///
/// # Errors
/// As there.
pub fn join_session(connection: RawFd, session: &[u8]) -> Result<(), Error> {
    fork::current().join(connection, session)
}

/// See [`crate::close`].
///
/// # Errors
/// As there.
pub fn close(connection: RawFd) -> Result<(), Error> {
    fork::current().close(connection)
}
