//! `gw_services` and `gw_addresses`: which endpoints belong to which share.

use godwit_wire::{Endpoint, ShareId};
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::convert::addr_words;
use crate::skel::types;

/// Typed access to the endpoints that the data path cares for.
#[derive(Debug)]
pub struct ServiceTable {
    services: TypedMap<types::gw_endpoint, u32>,
    addresses: TypedMap<types::gw_address, u32>,
}

impl ServiceTable {
    pub(crate) fn new(services: MapHandle, addresses: MapHandle) -> Self {
        Self {
            services: TypedMap::new(services, "gw_services"),
            addresses: TypedMap::new(addresses, "gw_addresses"),
        }
    }

    /// Makes the table hold exactly these endpoints. Those that stay are never
    /// absent meanwhile.
    ///
    /// # Errors
    /// Fails if the kernel refuses a change.
    pub fn replace(&self, endpoints: &[(Endpoint, ShareId)]) -> Result<(), MapError> {
        let services: Vec<_> = endpoints
            .iter()
            .map(|(endpoint, share)| (types::gw_endpoint::from(*endpoint), share.0))
            .collect();
        for (key, share) in &services {
            self.addresses
                .update(&types::gw_address { addr: key.addr }, share)?;
            self.services.update(key, share)?;
        }
        for key in self.services.keys() {
            if !services
                .iter()
                .any(|(kept, _)| (kept.addr, kept.port) == (key.addr, key.port))
            {
                self.services.delete(&key)?;
            }
        }
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
