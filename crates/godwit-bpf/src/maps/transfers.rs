//! `gw_transfers`: connections that the data path has handed to another server with a request, or
//! is about to (`gw_transfer.h`).

use std::time::Duration;

use godwit_wire::{FlowId, FlowKey, MacAddr, SeqNumber};
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::skel::types;

const _: () = assert!(size_of::<types::gw_transfer>() == 64);

/// As `GW_TRANSFER_ASKED` and others.
const ASKED: u32 = 2;
const GONE: u32 = 3;
const REFUSED: u32 = 4;
const TOLD: u32 = 5;

/// The data path removes an entry in its time if it has a timer.
const LATE: Duration = Duration::from_secs(15);

impl TransferEntry {
    /// Whether that question is open, and has no answer.
    pub const fn asks(&self, number: u32) -> bool {
        self.state == ASKED && self.number == number
    }

    /// Whether another server has it.
    pub const fn has_gone(&self) -> bool {
        self.state == GONE
    }
}

/// A connection that needs another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Which one.
    pub flow: FlowKey,
    /// Where that server was on the link.
    pub to: MacAddr,
    /// A request is on its way there; else the connection is there, and this node sends on
    /// what its client says.
    pub asked: bool,
    /// When its client has spoken last here, in nanoseconds of CLOCK_BOOTTIME.
    pub heard_ns: u64,
}

/// What is known of where a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferEntry {
    /// `enum gw_transfer_state`.
    pub state: u32,
    /// The number of its last handoff.
    pub number: u32,
    /// For how long its client may be silent before an entry goes that goes by itself.
    pub idle: Duration,
    /// Where the request begins that it was offered with.
    pub seq: SeqNumber,
    /// Where the server that was asked, or has it, is on the link.
    pub to: MacAddr,
}

/// Typed access to them.
#[derive(Debug)]
pub struct TransferTable(TypedMap<types::gw_flow_key, types::gw_transfer>);

impl TransferTable {
    pub(crate) fn new(map: MapHandle) -> Self {
        Self(TypedMap::new(map, "gw_transfers"))
    }

    /// Every connection that needs another server, in no order. Those that come or go
    /// meanwhile may be missed.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read; what came before was passed to `each`.
    pub fn for_each(&self, mut each: impl FnMut(Transfer)) -> Result<(), MapError> {
        self.0.for_each(|key, raw| {
            if let Some(transfer) = transfer(key, &raw) {
                each(transfer);
            }
        })
    }

    /// Every connection of which something is known, in no order. Those that come or go meanwhile
    /// may be missed.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read; what came before was passed to `each`.
    pub fn for_each_entry(
        &self,
        mut each: impl FnMut(FlowId, TransferEntry),
    ) -> Result<(), MapError> {
        self.0.for_each(|key, raw| {
            let flow = FlowId {
                key: FlowKey::from(key),
                irs: SeqNumber(raw.irs),
            };
            each(flow, entry(&raw));
        })
    }

    /// Removes entries whose clients have been silent for so long that they are to go, and which
    /// the data path has left because the kernel had no memory for their timers; how many. `now`
    /// is CLOCK_BOOTTIME, in nanoseconds.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read or a removal.
    pub fn remove_late(&self, now: u64) -> Result<usize, MapError> {
        let mut late = Vec::new();
        self.0.for_each(|key, raw| {
            if is_late(&raw, now) {
                late.push(key);
            }
        })?;
        let mut removed = 0;
        for key in late {
            // Its client may have spoken, or its port be another connection's by now.
            if self.0.lookup(&key)?.is_some_and(|raw| is_late(&raw, now)) {
                self.0.delete(&key)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// What is known of one connection, and not of an earlier one with the same addresses.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn get(&self, flow: FlowId) -> Result<Option<TransferEntry>, MapError> {
        let raw = self.0.lookup(&types::gw_flow_key::from(flow.key))?;
        let raw = raw.filter(|raw| raw.irs == flow.irs.0);
        Ok(raw.as_ref().map(entry))
    }
}

/// Whether it should have gone by itself.
fn is_late(raw: &types::gw_transfer, now: u64) -> bool {
    let idle = Duration::from_nanos(raw.idle_ns) + LATE;
    let silent = Duration::from_nanos(now.saturating_sub(raw.heard_ns));
    matches!(raw.state, GONE | REFUSED | TOLD) && silent > idle
}

const fn entry(raw: &types::gw_transfer) -> TransferEntry {
    TransferEntry {
        state: raw.state,
        number: raw.number,
        idle: Duration::from_nanos(raw.idle_ns),
        seq: SeqNumber(raw.seq),
        to: MacAddr(raw.to.mac),
    }
}

fn transfer(key: types::gw_flow_key, raw: &types::gw_transfer) -> Option<Transfer> {
    matches!(raw.state, ASKED | GONE).then(|| Transfer {
        flow: FlowKey::from(key),
        to: MacAddr(raw.to.mac),
        asked: raw.state == ASKED,
        heard_ns: raw.heard_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_another_server_has_or_was_asked_for_needs_it() {
        let mac = [2, 0, 0, 0, 0, 7];
        let of = |state| {
            let to = types::gw_target { mac, node: 3 };
            let raw = types::gw_transfer {
                to,
                state,
                heard_ns: 9,
                ..types::gw_transfer::default()
            };
            let found = transfer(types::gw_flow_key::default(), &raw)?;
            assert_eq!((found.to, found.heard_ns), (MacAddr(mac), 9));
            Some(found.asked)
        };
        let found: Vec<_> = (1..=7).map(of).collect();
        let nothing = [None; 4];
        assert_eq!(found[..3], [None, Some(true), Some(false)]);
        assert_eq!(found[3..], nothing);
    }
}
