//! Which single flows will not be served at a takeover.

use alloc::vec::Vec;

use super::kind;
use crate::cursor::Reader;
use crate::{FlowId, ParseError, UnprotectedReason};

/// About one flow that has a twin, or had one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowMessage {
    /// From the owner: do not serve this flow at a takeover.
    Demote {
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: UnprotectedReason,
    },
    /// From the standby: it will not be served.
    Demoted {
        /// The flow.
        flow: FlowId,
    },
    /// From the standby: its twin is gone, and the flow will not be served.
    TwinClosed {
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: UnprotectedReason,
    },
}

impl FlowMessage {
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Demote { .. } => kind::FLOW_DEMOTE,
            Self::Demoted { .. } => kind::FLOW_DEMOTED,
            Self::TwinClosed { .. } => kind::TWIN_CLOSED,
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Demote { flow, reason } | Self::TwinClosed { flow, reason } => {
                flow.emit(out);
                out.push(reason.number());
            }
            Self::Demoted { flow } => flow.emit(out),
        }
    }

    /// Another `kind` is not for this function; it reads as a twin that closed.
    pub(super) fn parse(kind: u8, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let flow = FlowId::parse(reader)?;
        if kind == kind::FLOW_DEMOTED {
            return Ok(Self::Demoted { flow });
        }
        let reason = UnprotectedReason::parse(reader)?;
        Ok(match kind {
            kind::FLOW_DEMOTE => Self::Demote { flow, reason },
            _ => Self::TwinClosed { flow, reason },
        })
    }
}
