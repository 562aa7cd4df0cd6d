//! What the owner of a share and its standby say to each other of the standby.

use alloc::vec::Vec;

use super::kind;
use crate::cursor::Reader;
use crate::{Epoch, LeaveReason, MoveRefusal, ParseError};

/// About a standby, or one to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandbyMessage {
    /// From a standby: this is the generation whose twins I hold, zero for
    /// none. From the owner: an offer of a new generation, to be confirmed.
    Ready,
    /// From the owner: the standby of that generation is not in the in-sync set.
    Left {
        /// Why.
        reason: LeaveReason,
    },
    /// The sender's server process has died. From the owner: it is silent, and
    /// the standby of that generation may take over at once. From the standby:
    /// it is not in that generation any more, and does not take over.
    ServerLost,
}

impl StandbyMessage {
    pub(super) const fn kind(self) -> u8 {
        match self {
            Self::Ready => kind::STANDBY_READY,
            Self::Left { .. } => kind::STANDBY_LEFT,
            Self::ServerLost => kind::SERVER_LOST,
        }
    }

    pub(super) fn emit(self, out: &mut Vec<u8>) {
        match self {
            Self::Ready | Self::ServerLost => {}
            Self::Left { reason } => out.push(reason.number()),
        }
    }

    /// Another `kind` is not for this function; it reads as a server that is lost.
    pub(super) fn parse(kind: u8, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(match kind {
            kind::STANDBY_READY => Self::Ready,
            kind::STANDBY_LEFT => Self::Left {
                reason: LeaveReason::parse(reader)?,
            },
            _ => Self::ServerLost,
        })
    }
}

/// A step of a planned move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStep {
    /// From the owner: be ready to own the share.
    Prepare,
    /// From the standby: it is, and will own under this epoch.
    Ready {
        /// Above the owner's.
        successor: Epoch,
    },
    /// From the standby: it will not.
    Refused {
        /// Why.
        reason: MoveRefusal,
    },
}

impl MoveStep {
    const PREPARE: u8 = 1;
    const READY: u8 = 2;
    const REFUSED: u8 = 3;

    pub(super) fn emit(self, out: &mut Vec<u8>) {
        match self {
            Self::Prepare => out.push(Self::PREPARE),
            Self::Ready { successor } => {
                out.push(Self::READY);
                out.extend_from_slice(&successor.0.to_be_bytes());
            }
            Self::Refused { reason } => {
                out.push(Self::REFUSED);
                out.push(reason.number());
            }
        }
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        Ok(match reader.u8("move: step")? {
            Self::PREPARE => Self::Prepare,
            Self::READY => Self::Ready {
                successor: reader.epoch("move: successor")?,
            },
            Self::REFUSED => Self::Refused {
                reason: MoveRefusal::parse(reader)?,
            },
            other => {
                return Err(ParseError {
                    what: "move: step",
                    at,
                    got: u64::from(other),
                });
            }
        })
    }
}
