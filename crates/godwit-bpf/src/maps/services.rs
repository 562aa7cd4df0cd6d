//! `gw_services`, `gw_wards` and `gw_addresses`: which endpoints belong to which share.

use std::sync::Arc;

use godwit_wire::{Endpoint, ShareId};
use libbpf_rs::MapHandle;

use super::slots::Slots;
use super::{MapError, TypedMap};
use crate::convert::addr_words;
use crate::skel::types;

/// The number of a share that is never anybody's: below those of names, and above those that
/// places in a file have.
const NOBODY: u32 = godwit_wire::FIRST_STABLE_ID - 1;

/// Typed access to the endpoints that the data path cares for.
#[derive(Debug)]
pub struct ServiceTable {
    services: TypedMap<types::gw_endpoint, u32>,
    wards: TypedMap<types::gw_endpoint, u32>,
    addresses: TypedMap<types::gw_address, u32>,
    slots: Arc<Slots>,
}

impl ServiceTable {
    pub(crate) fn new(
        services: MapHandle,
        wards: MapHandle,
        addresses: MapHandle,
        slots: Arc<Slots>,
    ) -> Self {
        Self {
            services: TypedMap::new(services, "gw_services"),
            wards: TypedMap::new(wards, "gw_wards"),
            addresses: TypedMap::new(addresses, "gw_addresses"),
            slots,
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
            let slot = self.slots.of(*share)?;
            self.addresses.update(&types::gw_address { addr }, &slot)?;
        }
        // A share that is a ward is never taken for the node's own.
        self.fill(&self.wards, wards)?;
        self.fill(&self.services, endpoints)?;
        for key in self.addresses.keys()? {
            if !endpoints
                .iter()
                .any(|(endpoint, _)| addr_words(endpoint.addr) == key.addr)
            {
                self.addresses.delete(&key)?;
            }
        }
        Ok(())
    }

    /// Every endpoint that the data path has for a share now.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn known(&self) -> Result<Vec<(Endpoint, ShareId)>, MapError> {
        let mut known = Vec::new();
        for map in [&self.services, &self.wards] {
            for key in map.keys()? {
                if let Some(slot) = map.lookup(&key)? {
                    known.push((Endpoint::from(key), self.slots.share_at(slot)));
                }
            }
        }
        Ok(known)
    }

    /// The slot that an agent of version 0.1 gave the share of an endpoint, by its place in
    /// the file of that time.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn slot_of(&self, endpoint: Endpoint, is_ward: bool) -> Result<Option<u32>, MapError> {
        let map = if is_ward { &self.wards } else { &self.services };
        map.lookup(&endpoint.into())
    }

    /// Takes endpoints from these shares and gives them to nobody: what comes from there is dropped, and what is sent to
    /// there finds nobody, until [`replace`](Self::replace) forgets them.
    ///
    /// # Errors
    /// Fails if the kernel refuses a change.
    pub fn bury(&self, endpoints: &[(Endpoint, ShareId)]) -> Result<(), MapError> {
        if endpoints.is_empty() {
            return Ok(());
        }
        // Nobody is as good as another share's entry without a role.
        let Some(nobody) = self.slots.take(NOBODY)? else {
            return Ok(());
        };
        for (endpoint, share) in endpoints {
            let slot = self.slots.slot_of(share.0);
            for map in [&self.services, &self.wards] {
                let key = types::gw_endpoint::from(*endpoint);
                if slot.is_some() && map.lookup(&key)? == slot {
                    map.update(&key, &nobody)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a map hold exactly these.
    fn fill(
        &self,
        map: &TypedMap<types::gw_endpoint, u32>,
        endpoints: &[(Endpoint, ShareId)],
    ) -> Result<(), MapError> {
        for (endpoint, share) in endpoints {
            map.update(
                &types::gw_endpoint::from(*endpoint),
                &self.slots.of(*share)?,
            )?;
        }
        for key in map.keys()? {
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
}
