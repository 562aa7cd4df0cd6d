//! Why a call did not do what was asked for.

use std::io;

/// Why a call did not do what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another server has the connection now: close it.
    #[error("the connection has moved to another server")]
    Emigrated,
    /// The snapshot has more than 16 MiB, or the session's name more than 32 bytes.
    #[error("more than fits")]
    TooLarge,
    /// The process has as many bytes of snapshots as it may: close connections, or
    /// export less. The connection's earlier snapshots are still there.
    #[error("no room for the snapshot")]
    NoSpace,
    /// No standby is known to have the snapshot that was to be safe. As long as this
    /// node's agent lives and owns the service, none serves the connection from an older
    /// one.
    #[error("no standby has the snapshot")]
    Unprotected,
    /// The server has not read or written as many bytes as it says. The snapshot is kept
    /// where the server stands; what it said since it was right last is forgotten, and it
    /// is not believed any more: the kernel is asked each time.
    #[error("the server has come to another place than it says")]
    Misplaced,
    /// The release cannot do it.
    #[error("not supported by this release")]
    Unsupported,
    /// The descriptor is no socket that the library has accepted.
    #[error("not a connection of this process")]
    Unknown,
    /// A system call.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<nix::Error> for Error {
    fn from(errno: nix::Error) -> Self {
        Self::System(errno.into())
    }
}
