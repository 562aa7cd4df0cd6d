//! `gw_services`, `gw_wards` and `gw_addresses`: which endpoints belong to which share.

use godwit_wire::{Endpoint, ShareId};
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::convert::addr_words;
use crate::skel::types;

/// Typed access to the endpoints that the data path cares for.
#[derive(Debug)]
pub struct ServiceTable {
    services: TypedMap<types::gw_endpoint, u32>,
    wards: TypedMap<types::gw_endpoint, u32>,
    addresses: TypedMap<types::gw_address, u32>,
}

impl ServiceTable {
    pub(crate) fn new(services: MapHandle, wards: MapHandle, addresses: MapHandle) -> Self {
        Self {
            services: TypedMap::new(services, "gw_services"),
            wards: TypedMap::new(wards, "gw_wards"),
            addresses: TypedMap::new(addresses, "gw_addresses"),
        }
    }

    /// Makes the table hold exactly these endpoints, each with this node's own share of it.
    /// `wards` are those of which it has another server's besides. What stays is never
    /// absent meanwhile.
    ///
    /// # Errors
    /// Fails if the kernel refuses a change.
    pub fn replace(
        &self,
        endpoints: &[(Endpoint, ShareId)],
        wards: &[(Endpoint, ShareId)],
    ) -> Result<(), MapError> {
        for (endpoint, share) in endpoints {
            let addr = addr_words(endpoint.addr);
            self.addresses
                .update(&types::gw_address { addr }, &share.0)?;
        }
        // A share that is a ward is never taken for the node's own.
        fill(&self.wards, wards)?;
        fill(&self.services, endpoints)?;
        for key in self.addresses.keys() {
            if !endpoints
                .iter()
                .any(|(endpoint, _)| addr_words(endpoint.addr) == key.addr)
            {
                self.addresses.delete(&key)?;
            }
        }
        Ok(())
    }
}

/// Makes a map hold exactly these.
fn fill(
    map: &TypedMap<types::gw_endpoint, u32>,
    endpoints: &[(Endpoint, ShareId)],
) -> Result<(), MapError> {
    for (endpoint, share) in endpoints {
        map.update(&types::gw_endpoint::from(*endpoint), &share.0)?;
    }
    for key in map.keys() {
        let is_it = |(kept, _): &(Endpoint, ShareId)| {
            let kept = types::gw_endpoint::from(*kept);
            (kept.addr, kept.port) == (key.addr, key.port)
        };
        if !endpoints.iter().any(is_it) {
            map.delete(&key)?;
        }
    }
    Ok(())
}
