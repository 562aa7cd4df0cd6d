//! `gw_paths`: which probes of the link have been answered (`gw_probe.h`).

use godwit_wire::MacAddr;
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::skel::types;

/// Typed access to the numbers of probes, by who has answered them and who is asked.
#[derive(Debug)]
pub struct PathTable {
    heard: TypedMap<types::gw_mate_mac, u32>,
    asked: TypedMap<types::gw_mate_mac, u32>,
}

impl PathTable {
    pub(crate) fn new(heard: MapHandle, asked: MapHandle) -> Self {
        Self {
            heard: TypedMap::new(heard, "gw_paths"),
            asked: TypedMap::new(asked, "gw_paths_asked"),
        }
    }

    /// The number of the last probe that has come back from there, and 0 if none has.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn heard(&self, mac: MacAddr) -> Result<u32, MapError> {
        Ok(self.heard.lookup(&key_of(mac))?.unwrap_or(0))
    }

    /// The answer to the probe of that number is waited for, and no other one's.
    ///
    /// # Errors
    /// Fails if the kernel does not take it.
    pub fn expect(&self, mac: MacAddr, number: u32) -> Result<(), MapError> {
        self.asked.update(&key_of(mac), &number)
    }
}

const fn key_of(mac: MacAddr) -> types::gw_mate_mac {
    types::gw_mate_mac { mac: mac.0, pad: 0 }
}
