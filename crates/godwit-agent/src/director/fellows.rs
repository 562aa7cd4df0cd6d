//! Other directors of the same services: who of them answers for the addresses, and what
//! of connections was told by whom. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use godwit_core::director::{Fellow, Holder};
use godwit_core::{MonoTime, PeerId};
use godwit_wire::{Epoch, FlowKey, Role, ShareClaim, ShareId};

use super::extent::others;
use crate::config::{Config, PeerRole};

/// The share that heartbeats of directors speak of: their hold on the addresses. No service
/// has it.
const HOLD: ShareId = ShareId(u32::MAX);

/// How often others hear of all slots: what they could not take on the first time, for a
/// back-end was not there for them yet.
const REMINDER: Duration = Duration::from_secs(5);

/// The other directors, and this one among them.
#[derive(Debug)]
pub(super) struct Fellows {
    pub(super) holder: Holder,
    /// In the order of the file.
    peers: Vec<PeerId>,
    /// Who is telling all that it knows, and of which connections it has spoken.
    telling: BTreeMap<PeerId, BTreeSet<FlowKey>>,
    /// When to tell of slots again; at once after a change.
    reminder: MonoTime,
}

impl Fellows {
    /// `holds`: the services' addresses are on this machine.
    pub(super) fn new(config: &Config, holds: bool, (now, grace): (MonoTime, Duration)) -> Self {
        let directors = config
            .peers
            .iter()
            .filter(|it| it.role == PeerRole::Director);
        let mut names = directors.map(|peer| peer.name);
        let rank = names.position(|name| name == config.node.name);
        let rank = rank.unwrap_or_default();
        let peers: Vec<_> = others(config).collect();
        Self {
            holder: Holder::new(rank, peers.len(), holds, now.saturating_add(grace)),
            peers,
            telling: BTreeMap::new(),
            reminder: now,
        }
    }

    pub(super) fn peers(&self) -> &[PeerId] {
        &self.peers
    }

    /// Its place among the others, if it is a director.
    pub(super) fn place_of(&self, peer: PeerId) -> Option<usize> {
        self.peers.iter().position(|known| *known == peer)
    }

    /// Whether this one has the addresses, and has heard that nobody else has: it knows most
    /// of connections.
    pub(super) fn has_hold(&self) -> bool {
        self.holder.claim() == Fellow::Holding
    }

    /// What heartbeats say of this one: nothing as long as it has not heard whether another one
    /// has held the addresses since its last life.
    pub(super) fn claims(&self) -> Vec<ShareClaim> {
        let role = match self.holder.claim() {
            Fellow::Unknown => return Vec::new(),
            Fellow::Holding => Role::Owner,
            Fellow::Able => Role::Shadow,
            Fellow::Gone | Fellow::Unable => Role::None,
        };
        let (share, epoch) = (HOLD, Epoch::NONE);
        vec![ShareClaim { share, role, epoch }]
    }

    /// What a heartbeat says of another one; `None` if it has just begun to speak.
    pub(super) fn claimed(claims: &[ShareClaim]) -> Option<Fellow> {
        let claim = claims.iter().find(|claim| claim.share == HOLD)?;
        Some(match claim.role {
            Role::Owner => Fellow::Holding,
            Role::Shadow => Fellow::Able,
            Role::None => Fellow::Unable,
        })
    }

    /// All that a peer knows follows.
    pub(super) fn begin(&mut self, peer: PeerId) {
        self.telling.insert(peer, BTreeSet::new());
    }

    /// Whether a peer is telling all that it knows.
    pub(super) fn tells(&self, peer: PeerId) -> bool {
        self.telling.contains_key(&peer)
    }

    /// Somebody has spoken of a connection: whoever is telling all has not forgotten it.
    pub(super) fn note(&mut self, key: FlowKey) {
        for told in self.telling.values_mut() {
            told.insert(key);
        }
    }

    /// That was all: of which connections it has spoken.
    pub(super) fn end(&mut self, peer: PeerId) -> Option<BTreeSet<FlowKey>> {
        self.telling.remove(&peer)
    }

    /// Slots have changed: others are told at once.
    pub(super) fn hurry(&mut self, now: MonoTime) {
        self.reminder = now;
    }

    /// Whether others are to be told of slots now.
    pub(super) fn is_due(&mut self, now: MonoTime) -> bool {
        let is_due = self.reminder <= now && self.has_hold() && !self.peers.is_empty();
        if is_due {
            self.reminder = now.saturating_add(REMINDER);
        }
        is_due
    }

    pub(super) fn poll_timeout(&self) -> Option<MonoTime> {
        let tells = self.has_hold() && !self.peers.is_empty();
        let dues = [self.holder.poll_timeout(), tells.then_some(self.reminder)];
        dues.into_iter().flatten().min()
    }
}
