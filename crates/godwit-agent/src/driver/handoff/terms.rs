//! What the file says of services whose connections move one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use godwit_wire::{Endpoint, ShareId};

use crate::config::{Config, ServiceConfig};

/// The same, as the thread looks it up.
pub(super) struct Terms {
    /// The shares of this node, by the services' addresses.
    pub(super) shares: BTreeMap<Endpoint, ShareId>,
    /// Under which share other nodes know them.
    pub(super) within: BTreeMap<ShareId, ShareId>,
    /// How long a client may be silent before its connection is asked for, by the
    /// services' addresses.
    pub(super) idle: BTreeMap<Endpoint, Duration>,
    /// Services whose connections can go before anybody has read from them: their servers
    /// need not know of Godwit.
    pub(super) unread: BTreeSet<Endpoint>,
}

impl Terms {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            shares: shares(config),
            within: within(config),
            idle: by_address(config, |_, service| service.handoff.forward_idle),
            unread: unread(config),
        }
    }
}

/// The shares of this node whose connections move, by the services' addresses.
pub(super) fn shares(config: &Config) -> BTreeMap<Endpoint, ShareId> {
    by_address(config, |share, _| share)
}

fn by_address<T: Copy>(
    config: &Config,
    of: impl Fn(ShareId, &ServiceConfig) -> T,
) -> BTreeMap<Endpoint, T> {
    let moving = config.own_shares().filter(|(_, service)| service.moves());
    let ends = moving.flat_map(|(share, service)| {
        let (ends, known) = (service.addresses.iter().copied(), of(share, service));
        ends.map(move |at| (Endpoint::from(at), known))
    });
    ends.collect()
}

fn unread(config: &Config) -> BTreeSet<Endpoint> {
    let moving = config.own_shares().filter(|(_, it)| it.moves_unread());
    let ends = moving.flat_map(|(_, service)| service.addresses.iter().copied());
    ends.map(Endpoint::from).collect()
}

fn within(config: &Config) -> BTreeMap<ShareId, ShareId> {
    let moving = config.own_shares().filter(|(_, service)| service.moves());
    moving
        .filter_map(|(share, service)| Some((share, config.service_share(service)?)))
        .collect()
}
