//! Taking the data path away: an owner's connections go on without it, a
//! standby's twins end while they are still silent.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use godwit_bpf::{Datapath, MapError, PinError};
use godwit_sock::destroy_tcp;
use godwit_wire::{Role, ShareId};
use thiserror::Error;

use super::{addresses, neighbours};
use crate::config::Config;

/// What could not be taken away.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DetachError {
    /// Which flows are twins can't be read.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A twin lives on; without the gate it would speak, so the gate stays.
    #[error("can't end a twin")]
    Twin(#[source] io::Error),
    /// A service address is still there.
    #[error("can't remove a service address")]
    Address(#[source] io::Error),
    /// A pin is still there.
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// Twins first, then addresses, then programs: nothing speaks in between.
pub(super) fn detach(config: &Config, ifindex: u32, datapath: Datapath) -> Result<(), DetachError> {
    let own = config.own_shares().map(|(id, service)| (id, service.ips()));
    take_away(own.collect(), ifindex, datapath)?;
    neighbours::forget(config, ifindex);
    Ok(())
}

/// The same without a file: of all that is in there.
pub(super) fn detach_whole(ifindex: u32, datapath: Datapath) -> Result<(), DetachError> {
    let mut shares: BTreeMap<ShareId, Vec<IpAddr>> = BTreeMap::new();
    for (endpoint, share) in datapath.services.known()? {
        shares.entry(share).or_default().push(endpoint.ip());
    }
    take_away(shares.into_iter().collect(), ifindex, datapath)
}

fn take_away(
    shares: Vec<(ShareId, Vec<IpAddr>)>,
    ifindex: u32,
    datapath: Datapath,
) -> Result<(), DetachError> {
    let mut owned = Vec::new();
    let mut idle = Vec::new();
    for (id, ips) in shares {
        let role = datapath.shares.left_over(id)?.map(|left| left.role);
        let list = if role == Some(Role::Owner) {
            &mut owned
        } else {
            &mut idle
        };
        list.push((id, ips));
    }
    let mut twins = Vec::new();
    datapath.flows.for_each(|flow| {
        if idle.iter().any(|(id, _)| *id == flow.share) {
            twins.push(flow.id.key);
        }
    })?;
    for twin in twins {
        destroy_tcp(ifindex, twin).map_err(DetachError::Twin)?;
    }
    // Connections of a share that we own need its address further on.
    let mut unused: Vec<_> = idle.into_iter().flat_map(|(_, ips)| ips).collect();
    unused.retain(|ip| !owned.iter().any(|(_, ips)| ips.contains(ip)));
    addresses::remove(&unused).map_err(DetachError::Address)?;
    Ok(datapath.detach()?)
}
