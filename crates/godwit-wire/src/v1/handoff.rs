//! The steps of a handoff of one connection.

use core::fmt;

use alloc::vec::Vec;

use crate::cursor::Reader;
use crate::restore::{emit_input, parse_input};
use crate::{EmitError, Epoch, HandoffId, HandoffRefusal, ParseError, ShareId};

/// One connection goes to another server while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffMessage {
    /// The share that it is of, at its origin.
    pub share: ShareId,
    /// The epoch of the origin.
    pub epoch: Epoch,
    /// The connection, and which attempt.
    pub id: HandoffId,
    /// How far it has come.
    pub step: HandoffStep,
}

impl HandoffMessage {
    pub(super) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        out.extend_from_slice(&self.share.0.to_be_bytes());
        self.id.emit(out);
        self.step.emit(out)
    }

    pub(super) fn parse(epoch: Epoch, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            share: reader.share("handoff: share")?,
            epoch,
            id: HandoffId::parse(reader)?,
            step: HandoffStep::parse(reader)?,
        })
    }
}

/// What origin and target say to each other of one attempt; the order is in
/// `docs/protocol.md`.
#[derive(Clone, PartialEq, Eq)]
pub enum HandoffStep {
    /// From the origin: make room.
    Prepare {
        /// With which others it goes.
        party: Party,
    },
    /// From the target: what the client sends waits there from now on.
    Ready,
    /// From the origin: the connection as it stands, in parts.
    State {
        /// Nothing follows.
        last: bool,
        /// At most [`crate::MAX_INPUT_LEN`] bytes.
        part: Vec<u8>,
    },
    /// From the target: a socket is there, and silent.
    Prepared,
    /// From the origin: speak.
    Commit,
    /// From the target: it speaks.
    Done,
    /// From the origin: it has heard that. Again: it asks for the end.
    Settled,
    /// From the origin: it goes on by itself.
    Abort,
    /// From the target: a packet of the client that has waited there.
    Held {
        /// From its IP header on, at most [`crate::MAX_INPUT_LEN`] bytes.
        packet: Vec<u8>,
    },
    /// From the target: it has not spoken under this number and will not.
    Refused {
        /// Why.
        reason: HandoffRefusal,
    },
    /// From the target: the connection is over there, or not known.
    Over,
}

/// Connections that go together or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Party {
    /// Which, of those that an origin asks for over one link.
    pub number: u32,
    /// How many they are, at most [`Party::MAX`]; one that goes alone has no number.
    pub size: u8,
}

impl Party {
    /// A connection that goes by itself.
    pub const ALONE: Self = Self { number: 0, size: 1 };

    /// As many go together at most.
    pub const MAX: u8 = 16;

    /// Whether nothing else goes with it.
    pub const fn is_alone(&self) -> bool {
        self.size <= 1
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let number = reader.u32("handoff: party")?;
        let at = reader.at();
        let size = reader.u8("handoff: size of a party")?;
        if !(2..=Self::MAX).contains(&size) {
            return Err(ParseError {
                what: "handoff: size of a party",
                at,
                got: u64::from(size),
            });
        }
        Ok(Self { number, size })
    }
}

impl HandoffStep {
    const PREPARE: u8 = 1;
    const READY: u8 = 2;
    const STATE: u8 = 3;
    const STATE_END: u8 = 4;
    const PREPARED: u8 = 5;
    const COMMIT: u8 = 6;
    const DONE: u8 = 7;
    const SETTLED: u8 = 8;
    const ABORT: u8 = 9;
    const HELD: u8 = 10;
    const REFUSED: u8 = 11;
    const OVER: u8 = 12;
    const PREPARE_PARTY: u8 = 13;

    /// The stable name.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => "prepare",
            Self::Ready => "ready",
            Self::State { .. } => "state",
            Self::Prepared => "prepared",
            Self::Commit => "commit",
            Self::Done => "done",
            Self::Settled => "settled",
            Self::Abort => "abort",
            Self::Held { .. } => "held",
            Self::Refused { .. } => "refused",
            Self::Over => "over",
        }
    }

    const fn number(&self) -> u8 {
        match self {
            Self::Prepare { party } if party.is_alone() => Self::PREPARE,
            Self::Prepare { .. } => Self::PREPARE_PARTY,
            Self::Ready => Self::READY,
            Self::State { last: false, .. } => Self::STATE,
            Self::State { last: true, .. } => Self::STATE_END,
            Self::Prepared => Self::PREPARED,
            Self::Commit => Self::COMMIT,
            Self::Done => Self::DONE,
            Self::Settled => Self::SETTLED,
            Self::Abort => Self::ABORT,
            Self::Held { .. } => Self::HELD,
            Self::Refused { .. } => Self::REFUSED,
            Self::Over => Self::OVER,
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        out.push(self.number());
        match self {
            Self::State { part: bytes, .. } | Self::Held { packet: bytes } => {
                emit_input(out, bytes)
            }
            Self::Refused { reason } => {
                out.push(reason.number());
                Ok(())
            }
            Self::Prepare { party } if !party.is_alone() => {
                out.extend(party.number.to_be_bytes());
                out.push(party.size);
                Ok(())
            }
            Self::Prepare { .. }
            | Self::Ready
            | Self::Prepared
            | Self::Commit
            | Self::Done
            | Self::Settled
            | Self::Abort
            | Self::Over => Ok(()),
        }
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        Ok(match reader.u8("handoff: step")? {
            Self::PREPARE => Self::Prepare {
                party: Party::ALONE,
            },
            Self::PREPARE_PARTY => Self::Prepare {
                party: Party::parse(reader)?,
            },
            Self::READY => Self::Ready,
            number @ (Self::STATE | Self::STATE_END) => Self::State {
                last: number == Self::STATE_END,
                part: parse_input(reader)?,
            },
            Self::PREPARED => Self::Prepared,
            Self::COMMIT => Self::Commit,
            Self::DONE => Self::Done,
            Self::SETTLED => Self::Settled,
            Self::ABORT => Self::Abort,
            Self::HELD => Self::Held {
                packet: parse_input(reader)?,
            },
            Self::REFUSED => Self::Refused {
                reason: HandoffRefusal::parse(reader)?,
            },
            Self::OVER => Self::Over,
            other => {
                return Err(ParseError {
                    what: "handoff: step",
                    at,
                    got: u64::from(other),
                });
            }
        })
    }
}

/// What clients and servers say to each other is not printed.
impl fmt::Debug for HandoffStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State { part: bytes, .. } | Self::Held { packet: bytes } => {
                write!(f, "{} of {} bytes", self.as_str(), bytes.len())
            }
            Self::Refused { reason } => write!(f, "refused: {}", reason.as_str()),
            Self::Prepare { .. }
            | Self::Ready
            | Self::Prepared
            | Self::Commit
            | Self::Done
            | Self::Settled
            | Self::Abort
            | Self::Over => f.write_str(self.as_str()),
        }
    }
}
