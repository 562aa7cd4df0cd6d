//! How a flow that runs already gets a twin.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::kind;
use crate::cursor::Reader;
use crate::restore::{emit_input, parse_fin, parse_input};
use crate::{EmitError, FlowId, ParseError, Restore, SeqNumber};

/// About one flow that is to have a new twin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejoinMessage {
    /// From the owner: make a twin of this running flow, which must not be
    /// served yet.
    Restore(
        /// The flow as it stands, and its log.
        Box<Restore>,
    ),
    /// From the owner: more of the log of a flow that is being restored.
    Input {
        /// The flow.
        flow: FlowId,
        /// Sequence number of the first byte.
        seq: SeqNumber,
        /// Whether the client has ended its side behind these bytes.
        fin: bool,
        /// The bytes.
        input: Vec<u8>,
    },
    /// From the owner: the restored twin has all that the client was told, and
    /// is to be served at a takeover.
    Admit {
        /// The flow.
        flow: FlowId,
    },
    /// From the standby: it will be served.
    Admitted {
        /// The flow.
        flow: FlowId,
    },
}

impl RejoinMessage {
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Restore(_) => kind::FLOW_RESTORE,
            Self::Input { .. } => kind::FLOW_INPUT,
            Self::Admit { .. } => kind::FLOW_ADMIT,
            Self::Admitted { .. } => kind::FLOW_ADMITTED,
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        match self {
            Self::Restore(restore) => restore.emit(out)?,
            Self::Input {
                flow,
                seq,
                fin,
                input,
            } => {
                flow.emit(out);
                out.extend_from_slice(&seq.0.to_be_bytes());
                out.push(u8::from(*fin));
                emit_input(out, input)?;
            }
            Self::Admit { flow } | Self::Admitted { flow } => flow.emit(out),
        }
        Ok(())
    }

    /// Another `kind` is not for this function; it reads as the last answer.
    pub(super) fn parse(kind: u8, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        if kind == kind::FLOW_RESTORE {
            return Ok(Self::Restore(Box::new(Restore::parse(reader)?)));
        }
        let flow = FlowId::parse(reader)?;
        Ok(match kind {
            kind::FLOW_INPUT => Self::Input {
                flow,
                seq: reader.seq("flow input: seq")?,
                fin: parse_fin(reader)?,
                input: parse_input(reader)?,
            },
            kind::FLOW_ADMIT => Self::Admit { flow },
            _ => Self::Admitted { flow },
        })
    }
}
