//! Flows that run already and are to have a twin here (`install` in
//! `godwit.bpf.c`).

use std::io;
use std::sync::Arc;

use godwit_wire::{Generation, Restore, ShareId};
use libbpf_rs::ProgramMut;

use crate::maps::slots::Slots;
use crate::orders::OrderError;
use crate::skel::types;
use crate::skel::types::gw_flow_flags as Flag;
use crate::syscall::SyscallProgram;

/// The way to have them.
#[derive(Debug)]
pub struct Installer {
    program: SyscallProgram<types::gw_install>,
    slots: Arc<Slots>,
}

impl Installer {
    pub(crate) fn new(program: &ProgramMut<'_>, slots: Arc<Slots>) -> io::Result<Self> {
        let program = SyscallProgram::new(program)?;
        Ok(Self { program, slots })
    }

    /// Makes the entry of a flow of which this node is a shadow, as it stood
    /// where the log begins. The twin itself is made by the first segment that
    /// is replayed; it must not be served before an [`Order::Admit`].
    ///
    /// [`Order::Admit`]: crate::Order::Admit
    ///
    /// # Errors
    /// [`OrderError::NoFlow`] if there is such a flow here already, or this node
    /// is no shadow of that generation.
    pub fn install(
        &self,
        share: ShareId,
        generation: Generation,
        restore: &Restore,
    ) -> Result<(), OrderError> {
        let slot = self.slots.slot_of(share.0).ok_or(OrderError::NoFlow)?;
        let record = &restore.record;
        let negotiated = record.negotiated;
        let flags = [
            (negotiated.wscale, Flag::GW_FLOW_WSCALE),
            (negotiated.sack, Flag::GW_FLOW_SACK),
            (negotiated.time_stamps, Flag::GW_FLOW_TS),
            (negotiated.ecn, Flag::GW_FLOW_ECN),
        ];
        let context = types::gw_install {
            rtt_ns: u64::from(restore.rtt_us) * 1000,
            key: record.id.key.into(),
            share: slot,
            generation: generation.0,
            irs: record.id.irs.0,
            iss: record.iss.0,
            base: restore.base.0,
            base_ack: restore.base_ack.0,
            snd_una: record.snd_una.0,
            snd_edge: restore.snd_edge.0,
            ts_val: restore.ts_val,
            owner_ts: restore.owner_ts,
            flags: flags
                .into_iter()
                .filter(|(set, _)| *set)
                .fold(0, |flags, (_, flag)| flags | flag.0),
            mss: record.mss,
            syn_ack_mss: restore.syn_ack_mss,
            snd_wscale: record.snd_wscale,
            rcv_wscale: record.rcv_wscale,
            client_mac: restore.client_mac.0,
        };
        match self.program.call(&context).map_err(OrderError::Run)? {
            0 => Ok(()),
            _ => Err(OrderError::NoFlow),
        }
    }
}
