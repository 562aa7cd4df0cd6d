//! A standby is in sync only while it proves that twins can be born there.
//!
//! The driver of the owner sends a canary along each path of a share (one for each
//! address of the service) several times a second, to every standby that is in sync or
//! wants to be, and tells the core what came back:
//!
//! ```text
//!  owner                                  standby
//!     ── canary, mirrored ──────────────────► tap: echo
//!     ◄── heard ──────────────────────────────┘ │ IP input, netfilter, socket
//!     ◄── born ─────────────────────────────────┘
//! ```
//!
//! A standby is admitted when the latest canary of each path was born, of those that were
//! sent since it asked: before, none were, and much may have changed. It leaves when
//! [`MISSES`] in a row were not, on any path. The reason names the leg that failed. A
//! standby that left for that has to prove more before it returns ([`AFTER_A_MISS`]).
//!
//! Nothing is judged while the peer is not ready: its heartbeats or its link speak for it
//! then, and an agent that restarts can't answer. A peer of a version that knows no
//! canary is believed, as before.

use std::collections::BTreeMap;

use godwit_wire::{FlowId, LeaveReason, NodeName};

use super::births::Births;
use super::context::Context;
use super::peer::PeerSide;
use super::share::ShareSide;
use crate::PeerId;
use crate::share::State;

/// Canaries in a row that may be missed. At three a second a standby leaves in less
/// than two seconds.
const MISSES: u32 = 4;

/// Canaries in a row that prove a path anew after a miss.
const AFTER_A_MISS: u32 = 3;

/// What came of one canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The standby's kernel made a socket of it, which answered.
    Born,
    /// The standby's data path had it, and nothing was born of it.
    NotBorn,
    /// Nothing came back.
    NotHeard,
}

impl Proof {
    /// Why a standby that goes on like that is not in sync; `None` if it proves itself.
    pub const fn failure(self) -> Option<LeaveReason> {
        match self {
            Self::Born => None,
            Self::NotBorn => Some(LeaveReason::NotBorn),
            Self::NotHeard => Some(LeaveReason::NotHeard),
        }
    }
}

/// The latest canaries of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    /// Born in a row, up to the latest.
    born: u32,
    /// Missed in a row, up to the latest.
    missed: u32,
    /// Why the latest of those was missed.
    failure: Option<LeaveReason>,
    /// How many have to be born in a row.
    needed: u32,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            born: 0,
            missed: 0,
            failure: None,
            needed: 1,
        }
    }
}

impl Record {
    fn note(&mut self, proof: Proof) {
        if let Some(failure) = proof.failure() {
            self.born = 0;
            self.missed = self.missed.saturating_add(1);
            self.failure = Some(failure);
            self.needed = AFTER_A_MISS;
        } else {
            self.missed = 0;
            self.born = self.born.saturating_add(1);
            if self.is_proved() {
                self.failure = None;
            }
        }
    }

    const fn is_proved(&self) -> bool {
        self.born >= self.needed
    }
}

/// What standbys of a share have proved to its owner.
#[derive(Debug, Clone, Default)]
pub(super) struct Proofs {
    /// How many paths there are; 0: none is asked.
    paths: u8,
    records: BTreeMap<(PeerId, u8), Record>,
    births: Births,
}

impl Proofs {
    pub(super) const fn new(paths: u8) -> Self {
        Self {
            paths,
            records: BTreeMap::new(),
            births: Births::new(),
        }
    }

    /// Those of connections' twins.
    pub(super) const fn births(&mut self) -> &mut Births {
        &mut self.births
    }

    /// This node has become the owner, or is it no more.
    pub(super) fn clear(&mut self) {
        self.births = Births::default();
        self.records.clear();
    }

    /// What the peer has proved does not count any more.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.records.retain(|(known, _), _| *known != peer);
    }

    /// The peer was not asked for a while: it has to prove itself anew.
    pub(super) fn doubt(&mut self, peer: PeerId) {
        let records = self.records.iter_mut();
        for (_, record) in records.filter(|((known, _), _)| *known == peer) {
            record.born = 0;
        }
    }

    /// Whether every path to the peer is proved.
    fn is_proved(&self, peer: PeerId) -> bool {
        let record = |path| self.records.get(&(peer, path));
        (0..self.paths).all(|path| record(path).is_some_and(Record::is_proved))
    }

    /// Why the peer is not proved, as far as that is known.
    fn failure(&self, peer: PeerId) -> Option<LeaveReason> {
        let mut paths = (0..self.paths).filter_map(|path| self.records.get(&(peer, path)));
        paths.find_map(|record| record.failure)
    }
}

impl ShareSide {
    /// What has come of a canary to `peer`.
    pub(super) fn handle_proof(
        &mut self,
        peer: PeerId,
        path: u8,
        proof: Proof,
        context: &mut Context<'_>,
    ) {
        let owns = self.machine.state() == State::Owner;
        if !owns || path >= self.standbys.proofs.paths || !self.has_member(peer) {
            return;
        }
        if !context.is_ready(peer) {
            return self.standbys.proofs.forget(peer);
        }
        let record = self
            .standbys
            .proofs
            .records
            .entry((peer, path))
            .or_default();
        record.note(proof);
        let failed = record.failure.filter(|_| record.missed >= MISSES);
        if let (Some(reason), true) = (failed, self.in_sync.contains(peer)) {
            self.lose_standby(peer, reason, context);
        }
    }

    /// Whether a standby that asks may be admitted.
    pub(super) fn has_proved(&self, peer: PeerId, peers: &[PeerSide]) -> bool {
        let side = peers.get(usize::from(peer.0));
        let can = side.is_some_and(|side| side.answers_canaries);
        // Whose server's snapshots nobody has can't be gone on with by a standby.
        let registered = self.server.is_registered() || self.in_sync.contains(peer);
        registered && (!can || self.standbys.proofs.is_proved(peer))
    }

    /// The peers that canaries are to be sent to, in order.
    pub(super) fn to_prove(&self, peers: &[PeerSide]) -> Vec<PeerId> {
        if self.machine.state() != State::Owner || self.standbys.proofs.paths == 0 {
            return Vec::new();
        }
        let wanted = |peer: &PeerId| {
            let side = peers.get(usize::from(peer.0));
            let can = side.is_some_and(|side| side.is_ready() && side.answers_canaries);
            can && (self.in_sync.contains(*peer) || self.standbys.requests.contains_key(peer))
        };
        self.members().filter(wanted).collect()
    }

    /// As the owner: standbys that want to be in sync and have not proved that they can
    /// be, with the reason.
    pub(super) fn unproved(&self, peers: &[PeerSide]) -> Vec<(NodeName, LeaveReason)> {
        let waiting = self
            .standbys
            .requests
            .keys()
            .filter(|_| self.machine.state() == State::Owner);
        let failing = |peer: &PeerId| {
            let side = peers.get(usize::from(peer.0))?;
            let failure = self.standbys.proofs.failure(*peer);
            failure
                .filter(|_| !self.has_proved(*peer, peers))
                .map(|it| (side.name, it))
        };
        waiting.filter_map(failing).collect()
    }

    /// As the owner: no kernel makes a twin of that flow, whichever standby it is.
    pub(super) fn excuse_birth(&mut self, flow: FlowId) {
        self.standbys.proofs.births().excuse(flow);
    }

    /// As the owner: so many flows are protected.
    pub(super) fn note_protected_count(&mut self, protected: u32, context: &mut Context<'_>) {
        let births = self.standbys.proofs.births();
        if protected > 0 || self.machine.state() != State::Owner {
            *births = Births::default();
        } else if births.all_fail(context.now) {
            *births = Births::default();
            let members: Vec<_> = self.in_sync.members().collect();
            for peer in members {
                self.lose_standby(peer, LeaveReason::NotBorn, context);
            }
        }
    }
}
