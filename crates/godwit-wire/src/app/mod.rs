//! What a server process that uses `libgodwit` and its agent say to each other.
//!
//! One Unix socket of type SOCK_SEQPACKET, a message per datagram, descriptors
//! beside it (SCM_RIGHTS). Snapshots do not pass through it: they are in a memory
//! region that the process shares with its agent ([`region`]). Neither side
//! trusts the other: what does not parse ends the connection between them, and
//! nothing else.
//!
//! ```text
//!  2 magic "GA" | 1 version | 1 kind | body
//! ```
//!
//! `Hello` is always sent in version 1; the agent answers with the version that
//! is spoken from then on. Each message bears the version that it came with, so that the
//! rest is the same in all.

mod message;
pub mod region;
#[cfg(test)]
mod tests;

pub use message::{
    AppMessage, AppRefusal, Carried, CommitRefusal, SnapshotKind, SnapshotPlace, Subject,
};

/// Oldest version that this build speaks.
pub const MIN_VERSION: u8 = 1;

/// Latest version that this build speaks.
pub const MAX_VERSION: u8 = 2;

/// From which version on a process shows connections of another account
/// ([`AppMessage::Show`]).
pub const SHOWS: u8 = 2;

/// The longest message, in bytes.
pub const MAX_MESSAGE: usize = 256;

/// The largest snapshot, in bytes.
pub const MAX_SNAPSHOT: u32 = 16 << 20;

/// The most output that travels with a snapshot from which its server must not go
/// back, in bytes.
pub const MAX_OUTPUT: u32 = 16 << 20;

/// The longest name of a session, in bytes.
pub const MAX_SESSION: usize = 32;
