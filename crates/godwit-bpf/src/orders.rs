//! Changes to one flow, run in the kernel on the entry in place (`order` in
//! `godwit.bpf.c`): a read and a write back would undo what segments did.

use std::io;
use std::sync::Arc;

use godwit_wire::{FlowId, Generation, SeqNumber, ShareId, UnprotectedReason};
use libbpf_rs::ProgramMut;
use thiserror::Error;

use crate::maps::slots::Slots;
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
    /// Its log makes room for those of others, unless a twin is being made of it.
    DropLog,
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

/// What this node says of a connection that another one has asked it for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// It has it not, and never will by that question.
    Never,
    /// It has it, or had it.
    Has,
    /// It is coming this moment; to be asked again.
    Later,
}

/// The way to give orders.
#[derive(Debug)]
pub struct Orders {
    program: SyscallProgram<types::gw_order>,
    slots: Arc<Slots>,
}

impl Orders {
    pub(crate) fn new(program: &ProgramMut<'_>, slots: Arc<Slots>) -> io::Result<Self> {
        let program = SyscallProgram::new(program)?;
        Ok(Self { program, slots })
    }

    /// Starts the clock of flows that have no timer, for which the kernel has to have memory once;
    /// whether it has.
    ///
    /// # Errors
    /// If the kernel did not run the program.
    pub fn tick(&self) -> io::Result<bool> {
        // SAFETY: of integers, of which each may be 0.
        let nothing: types::gw_order = unsafe { std::mem::zeroed() };
        let kind = Kind::GW_ORDER_TICK.0;
        let context = types::gw_order { kind, ..nothing };
        Ok(self.program.call(&context)? == 0)
    }

    /// Rules a question out that another node has put, unless it was accepted.
    ///
    /// # Errors
    /// If the kernel did not run the program.
    pub fn settle(&self, flow: FlowId, number: u32) -> io::Result<Settlement> {
        let context = types::gw_order {
            key: flow.key.into(),
            irs: flow.irs.0,
            kind: Kind::GW_ORDER_SETTLE.0,
            detail: number,
            base_ack: 0,
            share: 0,
            pad: 0,
        };
        let said = types::gw_settlement(self.program.call(&context)?);
        Ok(match said {
            types::gw_settlement::GW_SETTLED_NEVER => Settlement::Never,
            types::gw_settlement::GW_SETTLED_HAS => Settlement::Has,
            _ => Settlement::Later,
        })
    }

    /// Carries out one order at once.
    ///
    /// # Errors
    /// [`OrderError::NoFlow`] if the data path has no such flow of that share.
    pub fn give(&self, share: ShareId, flow: FlowId, order: Order) -> Result<(), OrderError> {
        let slot = self.slots.slot_of(share.0).ok_or(OrderError::NoFlow)?;
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
            Order::DropLog => (Kind::GW_ORDER_DROP_LOG, 0),
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
                | Order::Admit
                | Order::DropLog => 0,
            },
            share: slot,
            pad: 0,
        };
        match self.program.call(&context).map_err(OrderError::Run)? {
            0 => Ok(()),
            _ => Err(OrderError::NoFlow),
        }
    }
}
