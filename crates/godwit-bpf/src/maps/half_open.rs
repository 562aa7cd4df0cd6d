//! `gw_half_open`: handshakes under way.

use std::sync::Arc;

use godwit_wire::{FlowKey, SeqNumber, ShareId};
use libbpf_rs::MapHandle;

use super::slots::Slots;
use super::{MapError, TypedMap};
use crate::skel::types;
use crate::skel::types::gw_flow_flags as Flag;

const _: () = assert!(size_of::<types::gw_half_open>() == 56);

/// A handshake of which the SYN-ACK was seen, or all that is known of a connection
/// that was given up before it had a twin here: the numbers may be 0 then.
#[derive(Debug, Clone, Copy)]
pub struct HalfOpen {
    /// The flow to be.
    pub key: FlowKey,
    /// Of which share.
    pub share: ShareId,
    /// Initial sequence number of the client.
    pub irs: SeqNumber,
    /// Initial sequence number of the service.
    pub iss: SeqNumber,
    /// MSS that the service announced; 0: not known.
    pub mss: u16,
    /// Window that the service announced, not scaled.
    pub wnd: u16,
    /// Window scale that the service announced, if both sides scale.
    pub rcv_wscale: Option<u8>,
    /// Whether both sides do selective acknowledgements.
    pub sack: bool,
    /// TSval of the SYN-ACK and TSval of the SYN, if both sides use them.
    pub ts: Option<(u32, u32)>,
    /// When the handshake was seen, or the connection given up; CLOCK_BOOTTIME
    /// nanoseconds.
    pub born_ns: u64,
    /// Whether it was seen through the tap.
    pub tapped: bool,
    /// Whether the owner was promised that it will not be served here.
    pub given_up: bool,
}

/// Typed access to `gw_half_open`.
#[derive(Debug)]
pub struct HalfOpenTable(
    TypedMap<types::gw_flow_key, types::gw_half_open>,
    Arc<Slots>,
);

impl HalfOpenTable {
    pub(crate) fn new(handle: MapHandle, slots: Arc<Slots>) -> Self {
        Self(TypedMap::new(handle, "gw_half_open"), slots)
    }

    /// Those whose clients may wait for this node after a takeover.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn waiting(&self) -> Result<Vec<HalfOpen>, MapError> {
        let mut found = Vec::new();
        self.0.for_each(|key, raw| {
            let half = half_open(key, &raw, self.1.share_at(raw.share));
            if raw.answered != 0 || half.given_up {
                found.push(half);
            }
            found.extend(given_up_beside(half, &raw));
        })?;
        Ok(found)
    }
}

/// A connection that was given up, and in whose place a SYN has come that is not answered.
fn given_up_beside(half: HalfOpen, raw: &types::gw_half_open) -> Option<HalfOpen> {
    let marked = raw.marked != 0 && raw.answered == 0;
    marked.then_some(HalfOpen {
        irs: SeqNumber(raw.iss),
        iss: SeqNumber(0),
        given_up: true,
        ..half
    })
}

fn half_open(key: types::gw_flow_key, raw: &types::gw_half_open, share: ShareId) -> HalfOpen {
    let has = |flag: Flag| u32::from(raw.flags) & flag.0 != 0;
    HalfOpen {
        key: key.into(),
        share,
        irs: SeqNumber(raw.irs),
        iss: SeqNumber(raw.iss),
        mss: raw.syn_ack_mss,
        wnd: u16::try_from(raw.syn_ack_edge.wrapping_sub(raw.irs.wrapping_add(1)))
            .unwrap_or(u16::MAX),
        rcv_wscale: has(Flag::GW_FLOW_WSCALE).then_some(raw.rcv_wscale),
        sack: has(Flag::GW_FLOW_SACK),
        ts: has(Flag::GW_FLOW_TS).then_some((raw.ts_val, raw.client_ts_val)),
        born_ns: raw.born_ns,
        tapped: raw.tapped != 0,
        given_up: has(Flag::GW_FLOW_NOT_IN_SYNC),
    }
}
