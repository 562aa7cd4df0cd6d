//! For server applications whose connections move from server to server.
//!
//! A server registers its [`Listener`] and accepts from it: clients' connections,
//! and connections that another server of the cluster had. Between its calls it
//! uses plain reads, writes and epoll on the sockets. Whenever a connection's
//! state is worth keeping it exports a snapshot ([`export_state`]), which belongs
//! to the place in both streams where the server stands. When the connection
//! moves, the new server imports that snapshot and goes on from that place; the old
//! one gets [`Error::Emigrated`].
//!
//! Without an agent every call is what it would be on plain sockets, so a program
//! runs unchanged where there is none. `docs/libgodwit.md` is the contract: what is
//! exact, what is kept, which rules threads and forks follow.
//!
//! ```text
//!   server's threads                       library's thread "godwit"
//!     accept, export, import                 takes connections, puts them back
//!          │   copy                               │ messages, descriptors
//!          ▼                                      ▼
//!     region in memory  ◄───── reads ─────────  agent  ── moves ──► other agents
//! ```
//!
//! `unsafe` is for memory that two processes share, for descriptors by number, for
//! one signal handler and for forks.

mod arena;
mod commit;
mod descriptor;
mod error;
mod fork;
mod kept;
mod link;
mod listener;
mod park;
mod process;
mod region;
mod release;
mod served;
mod thread;
mod told;

pub mod raw;

use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _};

pub use error::Error;
pub use godwit_wire::app::{MAX_SESSION, MAX_SNAPSHOT};
pub use told::Progress;

use process::Arrival;

/// How the connections of a listener are dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The server keeps nothing about a connection that is not in its bytes: it
    /// may be moved as it stands, unread bytes and all, without a snapshot.
    pub stateless: bool,
}

/// A listener to which connections may come from other servers.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    options: Options,
}

/// A connection, and where it comes from.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: TcpStream,
    /// What another server had exported last; `None` for a client that has just
    /// connected. Empty if the connection has no state.
    pub migrated: Option<Vec<u8>>,
}

impl Listener {
    /// Registers a listener.
    ///
    /// # Errors
    /// If it is none.
    pub fn new(listener: TcpListener, options: Options) -> Result<Self, Error> {
        raw::listen(listener.as_raw_fd(), options)?;
        Ok(Self { listener, options })
    }

    /// The next connection. Waits for one unless the listener is non-blocking.
    ///
    /// # Errors
    /// As `TcpListener::accept`.
    pub fn accept(&self) -> Result<Accepted, Error> {
        let accepted = raw::accept(self.listener.as_raw_fd(), raw::Flags::CLOSE_ON_EXEC)?;
        let migrated = accepted.migrated.then(|| {
            let mut bytes = vec![MaybeUninit::new(0); accepted.snapshot];
            let _ = raw::import_state(accepted.socket.as_raw_fd(), &mut bytes);
            // SAFETY: zeros from the beginning, and a snapshot over them.
            let byte = |byte: MaybeUninit<u8>| unsafe { byte.assume_init() };
            bytes.into_iter().map(byte).collect()
        });
        Ok(Accepted {
            stream: accepted.socket.into(),
            migrated,
        })
    }

    /// The listener, for everything else.
    pub const fn as_tcp(&self) -> &TcpListener {
        &self.listener
    }

    /// As it was registered.
    pub const fn options(&self) -> Options {
        self.options
    }
}

/// Keeps a snapshot of the server's state of a connection: from it, and from
/// where the server stands in both streams now, another server can go on and
/// makes the same output again. No thread may be reading or writing the
/// connection meanwhile.
///
/// # Errors
/// [`Error::Emigrated`] if another server has it; [`Error::TooLarge`],
/// [`Error::NoSpace`]: what was kept before is still kept, but the connection does
/// not move before an export succeeds.
pub fn export_state(connection: &impl AsFd, snapshot: &[u8]) -> Result<(), Error> {
    raw::export_state(connection.as_fd().as_raw_fd(), snapshot)
}

/// As [`export_state`], by a server that counts itself how many bytes it has read and
/// written of the connection since [`Listener::accept`] gave it: a tenth of the time, as
/// the kernel is asked once in a millisecond only.
///
/// A server that says something wrong is found out at its next export after that
/// millisecond, or when its connection is to move. Should it fail before, a standby may go
/// on from where it said it was: before a long wait use [`export_state`].
///
/// # Errors
/// As there; [`Error::Misplaced`] if the kernel has counted other bytes.
pub fn export_state_at(
    connection: &impl AsFd,
    snapshot: &[u8],
    progress: Progress,
) -> Result<(), Error> {
    raw::export_state_at(connection.as_fd().as_raw_fd(), snapshot, progress)
}

/// As [`export_state`], for a state that nobody must ever go back from: waits until the
/// standby has it, and all output that the client has not acknowledged. Whatever
/// happens then, the connection goes on from there or from later.
///
/// Takes a round trip to the standby; at most five seconds, if nobody answers. For
/// services with `snapshots = "eager"`.
///
/// # Errors
/// [`Error::Unprotected`] if no standby has it: there is no agent, or no standby in
/// sync, or it has not answered. The connection goes on, and if its server fails it is
/// reset, or starts from here. As long as this node's agent lives and owns the service it
/// does not start from before; else that is not known. [`Error::Emigrated`],
/// [`Error::TooLarge`], [`Error::NoSpace`]: as there, and as unprotected.
pub fn commit_state(connection: &impl AsFd, snapshot: &[u8]) -> Result<(), Error> {
    raw::commit_state(connection.as_fd().as_raw_fd(), snapshot)
}

/// Has a connection stay together with all others that join the same session: they
/// move to another server together, or not at all.
///
/// # Errors
/// If the name is too long, or the connection not one of this process.
pub fn join_session(connection: &impl AsFd, session: &[u8]) -> Result<(), Error> {
    raw::join_session(connection.as_fd().as_raw_fd(), session)
}

/// Closes a connection. Dropping it does too, but the library hears of it only
/// later; and if the connection is being moved at that moment, a number that is
/// closed and used again could be mistaken.
///
/// # Errors
/// As close(2).
pub fn close(connection: TcpStream) -> Result<(), Error> {
    use std::os::fd::IntoRawFd as _;
    raw::close(connection.into_raw_fd())
}
