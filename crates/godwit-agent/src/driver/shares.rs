//! What this node's data path is told of each share.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use godwit_bpf::{Datapath, MapError, ShareEntry};
use godwit_core::{MonoTime, PeerId};
use godwit_sock::{NeighbourError, resolve_neighbour};
use godwit_wire::{Epoch, Generation, MacAddr, Role, ShareId};

use crate::clock;
use crate::config::{Config, Gate};
use crate::status::TakeoverReport;

/// A peer that was heard a moment ago answers at once.
const PATIENCE: Duration = Duration::from_millis(200);

/// The shares of this node, by number.
#[derive(Debug)]
pub(super) struct Shares {
    ifindex: u32,
    peers: Vec<IpAddr>,
    shares: BTreeMap<ShareId, Share>,
}

/// One share.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) name: String,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) entry: ShareEntry,
    /// When this agent last took it over.
    pub(super) taken_over: Option<MonoTime>,
    pub(super) last_takeover: Option<LastTakeover>,
}

/// The last takeover by this agent.
#[derive(Debug, Clone)]
pub(super) struct LastTakeover {
    pub(super) report: TakeoverReport,
    pub(super) at: MonoTime,
}

/// Why a share's entry was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetShareError {
    #[error("there is no share {0}")]
    Unknown(ShareId),
    #[error(transparent)]
    Peer(#[from] NeighbourError),
    #[error(transparent)]
    Map(#[from] MapError),
}

impl Shares {
    pub(super) fn new(config: &Config, ifindex: u32) -> Self {
        let shares = config.own_shares().map(|(id, service)| {
            let entry = ShareEntry {
                role: Role::None,
                epoch: Epoch::NONE,
                generation: Generation::NONE,
                peer_mac: MacAddr::ZERO,
                group: service.group(),
                leash: service.leash,
                lag_limit: service.lag_limit,
                gate: service.gate_in_force() == Gate::Ack,
                takeovers: 0,
            };
            let share = Share {
                name: service.name.to_string(),
                addresses: service.ips(),
                entry,
                taken_over: None,
                last_takeover: None,
            };
            (id, share)
        });
        Self {
            ifindex,
            peers: config.others().map(|peer| peer.data).collect(),
            shares: shares.collect(),
        }
    }

    pub(super) fn get(&self, share: ShareId) -> Option<&Share> {
        self.shares.get(&share)
    }

    pub(super) fn get_mut(&mut self, share: ShareId) -> Option<&mut Share> {
        self.shares.get_mut(&share)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ShareId, &Share)> {
        self.shares.iter().map(|(id, share)| (*id, share))
    }

    /// Writes a share's entry: the moment from which a role holds.
    ///
    /// A takeover names no peer and so never waits for one; the old peer's
    /// address stays, for what it may still send.
    pub(super) fn set(
        &mut self,
        datapath: &Datapath,
        share: ShareId,
        role: Role,
        epoch: Epoch,
        generation: Generation,
        peer: Option<PeerId>,
    ) -> Result<(), SetShareError> {
        let mac = self.peer_mac(peer)?;
        let share_state = self
            .shares
            .get_mut(&share)
            .ok_or(SetShareError::Unknown(share))?;
        let entry = &mut share_state.entry;
        if entry.role == Role::Shadow && role == Role::Owner {
            entry.takeovers += 1;
            share_state.taken_over = Some(clock::now());
        }
        (entry.role, entry.epoch, entry.generation) = (role, epoch, generation);
        entry.peer_mac = mac.unwrap_or(entry.peer_mac);
        datapath.shares.set(share, entry)?;
        Ok(())
    }

    fn peer_mac(&self, peer: Option<PeerId>) -> Result<Option<MacAddr>, NeighbourError> {
        let Some(address) = peer.and_then(|peer| self.peers.get(usize::from(peer.0))) else {
            return Ok(None);
        };
        resolve_neighbour(self.ifindex, *address, PATIENCE).map(Some)
    }
}
