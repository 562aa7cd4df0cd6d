//! `gw_newborns`: connections that came from elsewhere and get their sockets from their
//! servers' own listeners.

use godwit_wire::{FlowId, FlowKey, SeqNumber};
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::skel::types;
use crate::skel::types::gw_flow_flags as Flag;

const _: () = assert!(size_of::<types::gw_newborn>() == 20);

/// What a socket is made of that begins at the first byte of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newborn {
    /// The connection, with the client's initial sequence number.
    pub flow: FlowId,
    /// Initial sequence number of the service.
    pub iss: SeqNumber,
    /// What the service's time stamp clock says, in milliseconds; `None` without time
    /// stamps.
    pub ts_val: Option<u32>,
    /// Maximum segment size that the client announced, in bytes.
    pub mss: u16,
    /// Shifts of the windows that client and service announce, 0 to 14; `None` without
    /// window scaling.
    pub wscale: Option<(u8, u8)>,
    /// Selective acknowledgements.
    pub sack: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

/// Typed access to `gw_newborns`.
#[derive(Debug)]
pub struct NewbornTable(TypedMap<types::gw_flow_key, types::gw_newborn>);

impl NewbornTable {
    pub(crate) fn new(handle: MapHandle) -> Self {
        Self(TypedMap::new(handle, "gw_newborns"))
    }

    /// From here on an ACK of its client at the first bytes of both sides, with
    /// [`MARK_REPLAY`](crate::MARK_REPLAY), makes its socket, if it is
    /// [`Born`](crate::Whereabouts::Born).
    ///
    /// # Errors
    /// If the kernel refuses the write; there is room for 256.
    pub fn set(&self, newborn: &Newborn) -> Result<(), MapError> {
        let flags = [
            (newborn.wscale.is_some(), Flag::GW_FLOW_WSCALE),
            (newborn.sack, Flag::GW_FLOW_SACK),
            (newborn.ts_val.is_some(), Flag::GW_FLOW_TS),
            (newborn.ecn, Flag::GW_FLOW_ECN),
        ];
        let (snd_wscale, rcv_wscale) = newborn.wscale.unwrap_or_default();
        let raw = types::gw_newborn {
            irs: newborn.flow.irs.0,
            iss: newborn.iss.0,
            ts_val: newborn.ts_val.unwrap_or(0),
            flags: flags
                .into_iter()
                .filter(|(set, _)| *set)
                .fold(0, |flags, (_, flag)| flags | flag.0),
            mss: newborn.mss,
            snd_wscale,
            rcv_wscale,
        };
        self.0
            .update(&types::gw_flow_key::from(newborn.flow.key), &raw)
    }

    /// It has its socket, or gets none.
    ///
    /// # Errors
    /// If the kernel refuses the write, or there is none.
    pub fn remove(&self, key: FlowKey) -> Result<(), MapError> {
        self.0.delete(&types::gw_flow_key::from(key))
    }
}
