//! Changes to one flow, run in the kernel on the entry in place (`order` in
//! `godwit.bpf.c`): a read and a write back would undo what segments did.

use std::io;

use godwit_wire::{FlowId, Generation, SeqNumber, ShareId, UnprotectedReason};
use libbpf_rs::ProgramMut;
use thiserror::Error;

use crate::skel::types;
use crate::skel::types::gw_order_kind as Kind;
use crate::syscall::SyscallProgram;

/// What to do with a flow (`enum gw_order_kind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Owner: open the gate; the flow is unprotected from here on.
    Ungate(UnprotectedReason),
    /// Shadow: the twin must not be served at a takeover, and why.
    NotInSync(UnprotectedReason),
    /// The connection is over.
    End,
    /// Shadow: the client has acknowledged everything before this.
    Acknowledged(SeqNumber),
    /// Remove the entry.
    Forget,
    /// The share has changed hands: follow it now, not at the next segment.
    Turn,
    /// Owner: a twin is to be made of this running flow in that generation, and
    /// begins to speak there; the flow is tapped from here on.
    Rejoin(Generation, SeqNumber),
    /// Owner: the standby will serve that twin.
    Protect,
    /// Shadow: the twin of a running flow may be served at a takeover.
    Admit,
}

/// Why an order was not carried out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The flow is gone or another share's, its four-tuple belongs to a later connection, or
    /// it is not in a phase in which the order makes sense.
    #[error("no such flow")]
    NoFlow,
    /// The kernel did not run the program.
    #[error("can't run the order program")]
    Run(#[source] io::Error),
}

/// The way to give orders.
#[derive(Debug)]
pub struct Orders {
    program: SyscallProgram<types::gw_order>,
}

impl Orders {
    pub(crate) fn new(program: &ProgramMut<'_>) -> io::Result<Self> {
        let program = SyscallProgram::new(program)?;
        Ok(Self { program })
    }

    /// Carries out one order at once.
    ///
    /// # Errors
    /// [`OrderError::NoFlow`] if the data path has no such flow of that share.
    pub fn give(&self, share: ShareId, flow: FlowId, order: Order) -> Result<(), OrderError> {
        let (kind, detail) = match order {
            Order::Ungate(reason) => (Kind::GW_ORDER_UNGATE, u32::from(reason.number())),
            Order::NotInSync(reason) => (Kind::GW_ORDER_NOT_IN_SYNC, u32::from(reason.number())),
            Order::End => (Kind::GW_ORDER_END, 0),
            Order::Acknowledged(snd_una) => (Kind::GW_ORDER_ACKNOWLEDGED, snd_una.0),
            Order::Forget => (Kind::GW_ORDER_FORGET, 0),
            Order::Turn => (Kind::GW_ORDER_TURN, 0),
            Order::Rejoin(generation, _) => (Kind::GW_ORDER_REJOIN, generation.0),
            Order::Protect => (Kind::GW_ORDER_PROTECT, 0),
            Order::Admit => (Kind::GW_ORDER_ADMIT, 0),
        };
        let context = types::gw_order {
            key: flow.key.into(),
            irs: flow.irs.0,
            kind: kind.0,
            detail,
            base_ack: match order {
                Order::Rejoin(_, base_ack) => base_ack.0,
                Order::Ungate(_)
                | Order::NotInSync(_)
                | Order::End
                | Order::Acknowledged(_)
                | Order::Forget
                | Order::Turn
                | Order::Protect
                | Order::Admit => 0,
            },
            share: share.0,
            pad: 0,
        };
        match self.program.call(&context).map_err(OrderError::Run)? {
            0 => Ok(()),
            _ => Err(OrderError::NoFlow),
        }
    }
}
