//! `gw_crowds`: sources of connections that have their part of the flow table.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::convert::addr_words;
use crate::skel::types;

/// How many sources there is room for (`GW_CROWDS` in gw_crowd.h).
pub const CROWDS: usize = 16;

/// Typed access to `gw_crowds`.
#[derive(Debug)]
pub struct CrowdTable(TypedMap<types::gw_address, u32>);

impl CrowdTable {
    pub(crate) fn new(handle: MapHandle) -> Self {
        Self(TypedMap::new(handle, "gw_crowds"))
    }

    /// From here on new connections of exactly these sources are not protected. Each is what
    /// the addresses of a source begin with, and zeroes: 24 bits of IPv4, mapped, or 64 of
    /// IPv6. With it stands how many flows it has.
    ///
    /// # Errors
    /// If the kernel refuses the write; there is room for [`CROWDS`].
    pub fn replace(&self, sources: &BTreeMap<Ipv6Addr, u32>) -> Result<(), MapError> {
        for key in self.0.keys()? {
            if !sources.keys().any(|source| addr_words(*source) == key.addr) {
                self.0.delete(&key)?;
            }
        }
        for (source, flows) in sources {
            let addr = addr_words(*source);
            self.0.update(&types::gw_address { addr }, flows)?;
        }
        Ok(())
    }
}
