//! Starting where an agent of another version has left what this one can't read.
//!
//! A standby loses nothing by beginning anew: its twins end while they are silent,
//! and are made again from what the owner keeps. An owner has live connections in
//! there, so it has to hand them over first; one whose lease is over has nothing
//! left to hand over.

use std::io;

use godwit_bpf::{Earlier, MapError, PinDir, PinError};
use godwit_sock::Destroyer;
use thiserror::Error;

use super::addresses;
use crate::clock;
use crate::config::{Config, Places};
use godwit_core::MonoTime;

/// Why what another version has left stays where it is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EarlierError {
    /// It may still speak for a service.
    #[error(
        "this node owns service {service}, and its connections are in the data path of another \
         version: start that version again, `godwit drain {node}`, then change versions"
    )]
    Owner {
        /// Of the first such share.
        service: String,
        /// This node.
        node: String,
    },
    /// What is in there can't be read.
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

/// Ends what is in there, silently, and takes it away: sockets, addresses, programs.
pub(super) fn clear(config: &Config, ifindex: u32, pins: PinDir) -> Result<(), EarlierError> {
    let earlier = Earlier::new(pins);
    let now = clock::now().since(MonoTime::ZERO);
    let owned = earlier.owned(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))?;
    if let Some(share) = owned.first() {
        let share = Places::new(config).share_at(*share);
        let mut named = config.shares().filter(|(id, _)| *id == share);
        let service = named.next().map(|(_, service)| service.name.to_string());
        return Err(EarlierError::Owner {
            service: service.unwrap_or_else(|| format!("number {share}, which the file lacks")),
            node: config.node.name.to_string(),
        });
    }
    let destroyer = Destroyer::open(ifindex).map_err(EarlierError::Twin)?;
    let flows = earlier.flows()?;
    tracing::info!(
        flows = flows.len(),
        "an agent of another version was a standby here: its twins end"
    );
    for flow in flows {
        destroyer.destroy(flow).map_err(EarlierError::Twin)?;
    }
    let unused: Vec<_> = config
        .own_shares()
        .flat_map(|(_, service)| service.ips())
        .collect();
    addresses::remove(&unused).map_err(EarlierError::Address)?;
    Ok(earlier.remove()?)
}
