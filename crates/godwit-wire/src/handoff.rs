//! Which handoff of which connection is spoken of, and why one is refused.

use core::fmt;

use alloc::vec::Vec;

use crate::cursor::Reader;
use crate::share::wire_enum;
use crate::{FlowId, ParseError};

/// Counts the attempts to hand one connection over, wherever it was at the time.
///
/// The node that takes a connection over by a handoff holds it under the number
/// of that attempt; every later attempt has a greater one. Zero: it is where its
/// handshake was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FlowEpoch(pub u32);

impl FlowEpoch {
    /// The connection has never been handed over.
    pub const NATIVE: Self = Self(0);

    /// The number of the attempt after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for FlowEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// One attempt to hand one connection over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandoffId {
    /// The connection.
    pub flow: FlowId,
    /// The attempt: what the target will hold it under.
    pub epoch: FlowEpoch,
}

impl HandoffId {
    /// Size on the wire, in bytes.
    pub const LEN: usize = FlowId::LEN + 4;

    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        self.flow.emit(out);
        out.extend_from_slice(&self.epoch.0.to_be_bytes());
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            flow: FlowId::parse(reader)?,
            epoch: FlowEpoch(reader.u32("handoff: epoch")?),
        })
    }
}

impl fmt::Display for HandoffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} handoff {}", self.flow, self.epoch)
    }
}

wire_enum! {
    /// Why a connection is not taken, or not let go.
    HandoffRefusal, "handoff refusal" {
        /// The target serves no such service.
        WrongService = 1, "wrong_service";
        /// Nothing listens there that could take it.
        NoServer = 2, "no_server";
        /// The target holds as much as it may.
        NoCapacity = 3, "no_capacity";
        /// The target has a connection with that four-tuple.
        InUse = 4, "in_use";
        /// The target may not speak at present.
        NotInForce = 5, "not_in_force";
        /// The socket can't be moved exactly: the origin's events say what it is.
        NotMovable = 6, "not_movable";
        /// The connection has more in its queues than may be moved.
        TooLarge = 7, "too_large";
        /// What came is cut, corrupt, or of another version.
        Corrupt = 8, "corrupt";
        /// The target's kernel did not accept the socket.
        NotRestored = 9, "not_restored";
        /// The target knows nothing of it, and has not spoken under that number.
        Forgotten = 10, "forgotten";
        /// It was over before it could move.
        Ended = 11, "ended";
        /// Its server has read or written since the last snapshot of its state.
        SnapshotBehind = 12, "snapshot_behind";
        /// It is one of a session, which stays together.
        InSession = 13, "in_session";
        /// Its server knows nothing of Godwit, and has read from it or written to it.
        AlreadyRead = 14, "already_read";
        /// No process has registered it, and nobody may look for its server.
        NotRegistered = 15, "not_registered";
    }
}
