//! What an earlier agent has left of services that are no longer in the file, or no longer
//! there under that name or address. It ends in order, before anything new begins:
//!
//! 1. An owner without a standby, or of an address that the service has no longer, tells its
//!    clients (RST): nobody else will.
//! 2. From here on the share has no role: it is deaf and mute in the data path.
//! 3. All sockets end; the resets of our kernel go nowhere. A standby that is in sync, and
//!    has the service in its file, goes on with the connections.
//! 4. So is the address (`ServiceTable::bury`). In a ring a server's own share is at the same
//!    address: what its ward's sockets say after that would be taken for words of its own.
//! 5. The addresses go from the node, then the data path forgets.
//!
//! Names decide, see [`Slots`]: places in the file mean nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use godwit_bpf::{Datapath, Expiry, FlowState, MapError, Order, ShareEntry, Slots, Steering};
use godwit_sock::Destroyer;
use godwit_wire::{Endpoint, Generation, Role, ShareId, node_id};
use thiserror::Error;

use super::addresses;
use crate::config::Config;

/// Why what is no longer in the file could not be ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GoneError {
    /// The data path can't be read or changed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A socket lives on; without the data path it would speak.
    #[error("can't end a connection of a service that is no longer in the file")]
    Socket(#[source] io::Error),
    /// A service address is still there.
    #[error("can't remove the address of a service that is no longer in the file")]
    Address(#[source] io::Error),
    /// The data path has no room for one share more.
    #[error("the data path has no place for share {share}")]
    Full {
        /// Whose.
        share: String,
    },
}

/// What is there and what is wanted.
struct Change<'a> {
    config: &'a Config,
    datapath: &'a Datapath,
    /// Each endpoint that is wanted, with each share that this node has of it.
    wanted: BTreeSet<(Endpoint, ShareId)>,
    /// What earlier agents have left of shares that are not wanted, or are elsewhere.
    left: BTreeMap<ShareId, Option<ShareEntry>>,
}

/// Ends what is no longer in the file, and gives every name of the file its place.
///
/// # Errors
/// If it can't be ended; the data path keeps it silent.
pub(super) fn settle(config: &Config, ifindex: u32, datapath: &Datapath) -> Result<(), GoneError> {
    name_the_unnamed(config, datapath)?;
    let change = Change::new(config, datapath)?;
    change.end(ifindex)?;
    let gone = change.gone();
    for (share, service) in config.own_shares() {
        let slots = &datapath.share_slots;
        if slots.take(share.0)?.is_none() {
            gone.iter().try_for_each(|id| slots.free(id.0))?;
            slots.take(share.0)?.ok_or_else(|| GoneError::Full {
                share: config.share_name(share, service),
            })?;
        }
    }
    number_nodes(config, &datapath.node_slots)?;
    Ok(())
}

/// After the endpoints of the file have taken the place of all others.
pub(super) fn release(config: &Config, datapath: &Datapath) -> Result<(), GoneError> {
    let own: BTreeSet<_> = config.own_shares().map(|(share, _)| share.0).collect();
    for id in datapath.share_slots.all() {
        if !own.contains(&id) {
            datapath.share_slots.free(id)?;
        }
    }
    Ok(())
}

/// Version 0.1 has called shares by their places in the file. Which those were is in the
/// table of endpoints; what is not found there any more has no name, and is ended.
fn name_the_unnamed(config: &Config, datapath: &Datapath) -> Result<(), GoneError> {
    let slots = &datapath.share_slots;
    if !slots.are_unnamed() {
        return Ok(());
    }
    for (share, service) in config.own_shares() {
        let endpoints = service.addresses.iter().map(|at| Endpoint::from(*at));
        for endpoint in endpoints {
            let slot = datapath.services.slot_of(endpoint, config.is_ward(share))?;
            if let Some(slot) = slot
                && slots.slot_of(share.0).is_none()
            {
                slots.put(slot, share.0)?;
            }
        }
    }
    for slot in datapath.shares.unnamed()? {
        // Below all numbers of names.
        slots.put(slot, slot + 1)?;
    }
    Ok(())
}

/// A node keeps its number as long as it is in the file: connections that have gone to it
/// are written down under that. The first ones have them in the order of the file.
fn number_nodes(config: &Config, slots: &Slots) -> Result<(), MapError> {
    let ids: Vec<_> = config
        .peers
        .iter()
        .map(|it| node_id(it.name).get())
        .collect();
    for id in &ids {
        // Rules name none of those that are too many (`config::check`).
        slots.take(*id)?;
    }
    for id in slots.all() {
        if !ids.contains(&id) {
            slots.free(id)?;
        }
    }
    Ok(())
}

impl<'a> Change<'a> {
    fn new(config: &'a Config, datapath: &'a Datapath) -> Result<Self, MapError> {
        let wanted = config.own_shares().flat_map(|(share, service)| {
            let all = service.addresses.iter();
            all.map(move |address| (Endpoint::from(*address), share))
        });
        let wanted: BTreeSet<_> = wanted.collect();
        let own: BTreeSet<_> = config.own_shares().map(|(share, _)| share).collect();
        let slots = datapath.share_slots.all().into_iter().map(ShareId);
        let gone = slots.filter(|share| !own.contains(share));
        let known = datapath.services.known()?.into_iter();
        let moved = known.filter(|pair| !wanted.contains(pair));
        let concerned: BTreeSet<_> = gone.chain(moved.map(|(_, share)| share)).collect();
        let left = concerned
            .into_iter()
            .map(|share| Ok((share, datapath.shares.left_over(share)?)));
        Ok(Self {
            config,
            datapath,
            wanted,
            left: left.collect::<Result<_, MapError>>()?,
        })
    }

    /// The shares that are not in the file at all.
    fn gone(&self) -> Vec<ShareId> {
        let own: BTreeSet<_> = self.config.own_shares().map(|(share, _)| share).collect();
        let left = self.left.keys().copied();
        left.filter(|share| !own.contains(share)).collect()
    }

    fn end(&self, ifindex: u32) -> Result<(), GoneError> {
        if self.left.is_empty() {
            return Ok(());
        }
        let destroyer = Destroyer::open(ifindex).map_err(GoneError::Socket)?;
        let last = self.flows()?;
        let has_a_voice = |flow: &&FlowState| self.has_the_last_voice(flow.share);
        let told = last.iter().filter(has_a_voice).count();
        for flow in last.iter().filter(has_a_voice) {
            destroyer.destroy(flow.id.key).map_err(GoneError::Socket)?;
        }
        for share in self.gone() {
            self.silence(share)?;
        }
        for flow in &last {
            destroyer.destroy(flow.id.key).map_err(GoneError::Socket)?;
        }
        let known = self.datapath.services.known()?;
        let buried = known.into_iter().filter(|pair| !self.wanted.contains(pair));
        let buried: Vec<_> = buried.collect();
        self.datapath.services.bury(&buried)?;
        // A twin may have been born until just now.
        let flows = self.flows()?;
        for flow in &flows {
            destroyer.destroy(flow.id.key).map_err(GoneError::Socket)?;
        }
        for flow in flows.iter().chain(&last) {
            // One that ended by itself is no error.
            let _ = self
                .datapath
                .orders
                .give(flow.share, flow.id, Order::Forget);
        }
        self.remove_addresses(&buried)?;
        tracing::info!(
            shares = self.gone().len(),
            addresses = buried.len(),
            connections = flows.len().max(last.len()),
            told,
            "what is no longer in the file has ended"
        );
        Ok(())
    }

    /// Whether the clients of a share hear from nobody if not from this node: nobody stands
    /// by, or it goes on owning the share at another address.
    fn has_the_last_voice(&self, share: ShareId) -> bool {
        let left = self.left.get(&share).and_then(Option::as_ref);
        let goes_on = || self.config.own_shares().any(|(own, _)| own == share);
        left.is_some_and(|it| it.role == Role::Owner && (it.generation.is_none() || goes_on()))
    }

    /// The flows that end.
    fn flows(&self) -> Result<Vec<FlowState>, MapError> {
        let mut found = Vec::new();
        self.datapath.flows.for_each(|flow| {
            let is_left = self.left.contains_key(&flow.share);
            if is_left && !self.wanted.contains(&(flow.id.key.service, flow.share)) {
                found.push(flow);
            }
        })?;
        Ok(found)
    }

    /// Nothing of a share is left to be taken for another's.
    fn silence(&self, share: ShareId) -> Result<(), MapError> {
        if let Some(Some(left)) = self.left.get(&share) {
            let nobody = ShareEntry {
                role: Role::None,
                generation: Generation::NONE,
                expiry: Expiry::At(0),
                ..*left
            };
            self.datapath.shares.set(share, &nobody)?;
        }
        self.datapath.shares.open(share)?;
        self.datapath.requests.placing.set(share, None, &[], &[])?;
        self.datapath.requests.placing.forget_mates(share, &[])?;
        self.datapath
            .requests
            .steering
            .set(share, Steering::default())
    }

    fn remove_addresses(&self, buried: &[(Endpoint, ShareId)]) -> Result<(), GoneError> {
        let own = self.config.own_shares();
        let kept: BTreeSet<IpAddr> = own.flat_map(|(_, service)| service.ips()).collect();
        let unused = buried.iter().map(|(endpoint, _)| endpoint.ip());
        let unused: Vec<_> = unused.filter(|ip| !kept.contains(ip)).collect();
        addresses::remove(&unused).map_err(GoneError::Address)
    }
}
