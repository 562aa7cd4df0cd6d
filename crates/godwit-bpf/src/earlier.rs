//! What an agent of another version has left behind.
//!
//! Programs share a pinned map only with an equal shape: sizes of key and value,
//! and number of entries. What merely counts is left to the earlier programs and
//! begun anew. If anything else has changed its shape, the new programs can't take
//! the flows over; this says what is in the old maps, as far as every version has
//! it in the same place, so that the agent can tell whether it may go.

use std::fs;
use std::mem::offset_of;

use godwit_wire::{FlowKey, Role, ShareId};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, OpenMapMut};

use crate::convert::value_of;
use crate::maps::fences::Expiry;
use crate::maps::{MapError, scan};
use crate::pin::PinDir;
use crate::skel::types;

// The heads of these are as in every version, for ever.
const _: () = assert!(offset_of!(types::gw_share, role) == ROLE);
const _: () = assert!(offset_of!(types::gw_fence, expiry_ns) == 0);
const _: () = assert!(size_of::<types::gw_flow_key>() == 40);

const ROLE: usize = 16;

/// Maps without which nobody loses a connection.
const COUNTING: [&str; 4] = ["gw_counters", "gw_events", "gw_exits", "gw_policy_calls"];

/// Whether what is pinned under the name of a map has another shape than that. What
/// only counts is unpinned instead; its programs keep it to their end.
pub(crate) fn is_other(map: &OpenMapMut<'_>, pins: &PinDir) -> bool {
    let name = map.name().to_string_lossy();
    let path = pins.map(&name);
    let Ok(pinned) = MapHandle::from_pinned_path(&path) else {
        return false;
    };
    let is_equal = pinned.key_size() == map.key_size()
        && pinned.value_size() == map.value_size()
        && pinned.max_entries() == map.max_entries();
    if is_equal || !COUNTING.contains(&&*name) {
        return !is_equal;
    }
    // If it can't be, loading fails with the name of the map.
    let _ = fs::remove_file(path);
    false
}

/// The maps that the agent of another version has pinned.
#[derive(Debug)]
pub struct Earlier(PinDir);

impl Earlier {
    /// What is pinned there. The programs of that version are still attached.
    pub const fn new(pins: PinDir) -> Self {
        Self(pins)
    }

    /// The shares that this node may still speak for at `now_ns` (CLOCK_BOOTTIME):
    /// it is their owner, and its fence is open.
    ///
    /// # Errors
    /// If the maps can't be read.
    pub fn owned(&self, now_ns: u64) -> Result<Vec<ShareId>, MapError> {
        let (shares, fences) = (self.map("gw_shares")?, self.map("gw_fences")?);
        let mut owned = Vec::new();
        for share in 0..shares.max_entries() {
            let role = read(&shares, "gw_shares", share)?;
            let role = role.get(ROLE..).and_then(value_of::<u16>);
            let fence = read(&fences, "gw_fences", share)?;
            let expiry = value_of::<u64>(&fence).map(Expiry::from_ns);
            let is_open = match expiry {
                Some(Expiry::Never) => true,
                Some(Expiry::At(ns)) => ns > now_ns,
                None => false,
            };
            if role == Some(Role::Owner.number().into()) && is_open {
                owned.push(ShareId(self.name_of(share)));
            }
        }
        Ok(owned)
    }

    /// The number of a slot's name; its place where the version had no names.
    fn name_of(&self, slot: u32) -> u32 {
        let ids = self.map("gw_share_ids");
        let id = ids.and_then(|ids| read(&ids, "gw_share_ids", slot)).ok();
        let id = id.and_then(|id| value_of::<u32>(&id));
        id.filter(|id| *id != 0).unwrap_or(slot)
    }

    /// The connections that it knows.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn flows(&self) -> Result<Vec<FlowKey>, MapError> {
        let flows = self.map("gw_flows")?;
        let keys = scan::keys::<types::gw_flow_key>(&flows, usize::MAX)
            .map_err(|source| MapError::new("read", "gw_flows", source.into()))?;
        Ok(keys.into_iter().map(FlowKey::from).collect())
    }

    /// Takes programs and maps away.
    ///
    /// # Errors
    /// If a pin can't be removed.
    pub fn remove(self) -> Result<(), crate::PinError> {
        self.0.remove()
    }

    fn map(&self, name: &'static str) -> Result<MapHandle, MapError> {
        MapHandle::from_pinned_path(self.0.map(name))
            .map_err(|source| MapError::new("open", name, source))
    }
}

fn read(map: &MapHandle, name: &'static str, index: u32) -> Result<Vec<u8>, MapError> {
    let entry = map.lookup(&index.to_ne_bytes(), MapFlags::ANY);
    let entry = entry.map_err(|source| MapError::new("read", name, source))?;
    Ok(entry.unwrap_or_default())
}
