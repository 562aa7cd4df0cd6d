//! What must hold, checked wherever it could be broken.
//!
//! 1. *One voice.* When a segment leaves a host, no other data path lets any
//!    out; and who has been followed by another voice never speaks again.
//! 2. *Acknowledged means safe.* When an acknowledgement leaves a host, whoever
//!    shadows that owner has the bytes, or does not serve the flow, or the generation
//!    is over. When another node begins to speak, it has every byte that clients
//!    were told of the flows that it serves, and serves every flow that was
//!    protected by the generation that it continues.
//! 3. *The stream is exact.* Clients never hear of bytes that they did not send,
//!    and once all is well every connection comes to its end (`history.rs`).
//! 4. *In sync is proved* (`insync.rs`).
//! 5. *An address is in one place* (`homes.rs`), as far as that is decided when a share
//!    begins.

use std::collections::{BTreeMap, BTreeSet};

use godwit_wire::{Epoch, Generation, Role};

use crate::flow::{Flow, Frame, Kind, Phase};
use crate::insync::Watch;
use crate::mutant::Mutant;
use crate::plan::SERVERS;
use crate::proof::Way;
use crate::singles;
use crate::world::World;

/// Who speaks for a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Voice {
    node: usize,
    /// Of the host: when all voters have forgotten, a node that has too may come
    /// upon an epoch again.
    boots: u64,
    epoch: u64,
}

/// What a client was told last.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    irs: u32,
    ack: u32,
    /// The generation that protected the flow then.
    by: Option<(Epoch, Generation)>,
}

/// Books of what has left hosts.
#[derive(Debug)]
pub(crate) struct Audit {
    voices: Vec<Option<Voice>>,
    retired: Vec<Vec<Voice>>,
    told: Vec<Told>,
    /// Stays that their owner has kept: only their standby may take over.
    kept: Vec<BTreeSet<(Epoch, Generation)>>,
    /// Stays that their owner has given up: its clients were told more.
    stale: Vec<Vec<(Epoch, Generation)>>,
    /// Connections that go from server to server by themselves.
    pub(crate) singles: BTreeMap<u32, singles::Told>,
    /// Who has owned under which epoch.
    claims: Vec<Vec<(Epoch, usize)>>,
    /// When the latest canary was born that a node has sent along a way.
    births: BTreeMap<(usize, Way), u64>,
    /// Owners, by share, that hear their standby.
    pub(crate) watches: BTreeMap<(usize, usize), Watch>,
    /// Nodes and shares that their agents know another owner of.
    pub(crate) followed: BTreeSet<(usize, usize)>,
}

impl Audit {
    pub(crate) fn new(shares: usize, slots: usize) -> Self {
        Self {
            voices: vec![None; shares],
            retired: vec![Vec::new(); shares],
            told: vec![Told::default(); slots],
            kept: vec![BTreeSet::new(); shares],
            stale: vec![Vec::new(); shares],
            singles: BTreeMap::new(),
            claims: vec![Vec::new(); shares],
            births: BTreeMap::new(),
            watches: BTreeMap::new(),
            followed: BTreeSet::new(),
        }
    }

    /// A client begins a connection.
    pub(crate) fn begin(&mut self, slot: usize, irs: u32) {
        self.told[slot] = Told {
            irs,
            ..Told::default()
        };
    }

    /// A canary that `node` has sent was born.
    pub(crate) fn note_birth(&mut self, node: usize, way: Way, now_ns: u64) {
        self.births.insert((node, way), now_ns);
    }

    /// The agent of a node begins anew: nothing was proved to it.
    pub(crate) fn forget_births(&mut self, node: usize) {
        self.births.retain(|(asker, _), _| *asker != node);
    }

    /// When the latest canary was born.
    pub(crate) fn birth(&self, node: usize, way: Way) -> Option<u64> {
        self.births.get(&(node, way)).copied()
    }

    /// An owner has a standby in sync.
    pub(crate) fn keep(&mut self, share: usize, epoch: Epoch, generation: Generation) {
        if !generation.is_none() {
            self.kept[share].insert((epoch, generation));
        }
    }

    /// An owner lets clients know more than the standby of a generation may have.
    pub(crate) fn give_up(&mut self, share: usize, epoch: Epoch, generation: Generation) {
        if !generation.is_none() {
            self.stale[share].push((epoch, generation));
        }
    }
}

impl World {
    /// Two data paths that let segments out at one moment are two voices, even
    /// if neither has anything to say.
    pub(crate) fn check_voices(&mut self, share: usize) {
        if (0..SERVERS).all(|node| self.can_speak(node, share)) {
            self.violate(|world| {
                let entry = |node: usize| world.hosts[node].kernel.entries[share];
                format!(
                    "two voices for share {share}: 0 under {} until {:?}, 1 under {} until {:?}",
                    entry(0).epoch,
                    entry(0).expiry,
                    entry(1).epoch,
                    entry(1).expiry
                )
            });
        }
    }

    /// A node owns a share under another epoch than before.
    pub(crate) fn audit_claim(&mut self, node: usize, share: usize, epoch: Epoch) {
        let claims = &mut self.audit.claims[share];
        match claims.iter().find(|(claimed, _)| *claimed == epoch) {
            None => claims.push((epoch, node)),
            Some((_, by)) if *by == node => {}
            Some((_, by)) => {
                let by = *by;
                self.violate(|_| format!("{by} and {node} own share {share} under {epoch}"));
            }
        }
    }

    /// A node calls a share moved that it has let go: it goes on with the generation.
    pub(crate) fn audit_move(&mut self, node: usize, share: usize) {
        let entry = self.hosts[node].kernel.entries[share];
        let stay = (entry.epoch, entry.generation);
        if !self.audit.kept[share].contains(&stay) {
            self.violate(|_| format!("{node} calls share {share} moved, nobody keeps {stay:?}"));
        }
    }

    /// Something for a client leaves a host.
    ///
    /// What was in queues when the lease was given back may come late, even if this
    /// node has another by then: a released lease is taken over at once
    /// (`docs/adr/0014`).
    pub(crate) fn audit_word(&mut self, node: usize, share: usize, epoch: u64, frame: &Frame) {
        let other = 1 - node;
        let entry = &self.hosts[node].kernel.entries[share];
        let goes_on = self.can_speak(node, share) && entry.epoch.0 == epoch;
        if entry.given_back.0 == epoch && !goes_on {
            self.audit_late_word(node, epoch, frame);
            return;
        }
        if self.can_speak(other, share) {
            self.violate(|_| {
                format!("{node} speaks for share {share} while {other} may: {frame:?}")
            });
        }
        let boots = self.hosts[node].boots;
        self.audit_voice(Voice { node, boots, epoch }, share);
        if frame.kind == Kind::Service {
            self.audit_ack(node, share, frame);
        }
        let client = &mut self.clients[frame.slot];
        if client.irs == frame.irs && frame.kind == Kind::Service {
            client.sent_to = client.sent_to.max(frame.seq + frame.len);
        }
    }

    /// What comes after the next owner's first words is what that could have said
    /// itself, late: nothing acknowledged that it has not, and no end. But whoever had
    /// no twin to serve has reset that connection while it was the owner, though the
    /// next one, which it had the share from, could have gone on.
    fn audit_late_word(&mut self, node: usize, epoch: u64, frame: &Frame) {
        self.tally.late += 1;
        let slot = frame.slot;
        let (share, next) = (self.share_of(slot), self.hosts[1 - node].kernel.flows[slot]);
        let serves = self.is_owner(1 - node, share)
            && self.hosts[1 - node].kernel.entries[share].epoch.0 > epoch
            && next.irs == frame.irs
            && self.would_serve(&next);
        let has = next.rcv_nxt;
        match frame.kind {
            Kind::Service | Kind::Probe if serves && has < frame.ack => {
                self.violate(|_| format!("{node} is late with {frame:?}, its heir has {has}"));
            }
            Kind::Reset(why) if serves && !why.is_of_twin() => {
                self.violate(|_| format!("{node} ends late what its heir serves: {frame:?}"));
            }
            Kind::Service
            | Kind::Probe
            | Kind::Reset(_)
            | Kind::Announce
            | Kind::SynAck
            | Kind::Syn
            | Kind::Third
            | Kind::Client
            | Kind::Fin
            | Kind::WhoHas
            | Kind::TwinAck => {}
        }
    }

    fn audit_voice(&mut self, voice: Voice, share: usize) {
        let last = self.audit.voices[share];
        if last == Some(voice) {
            return;
        }
        if self.audit.retired[share].contains(&voice) {
            self.violate(|_| format!("{voice:?} speaks for share {share} again, after {last:?}"));
        }
        self.audit.retired[share].extend(last);
        self.audit.voices[share] = Some(voice);
        let entry = self.hosts[voice.node].kernel.entries[share];
        if let Some(from) = entry.from.filter(|_| entry.epoch.0 == voice.epoch) {
            self.audit_takeover(voice.node, share, from);
        }
    }

    /// The first words of a node that goes on with the twins of a generation.
    fn audit_takeover(&mut self, node: usize, share: usize, from: (Epoch, Generation)) {
        if self.audit.stale[share].contains(&from) {
            self.violate(|_| {
                let (epoch, generation) = from;
                format!("{node} continues {epoch} generation {generation}, which was given up")
            });
        }
        for slot in self.slots_of(share) {
            let told = self.audit.told[slot];
            if told.irs != self.clients[slot].irs {
                continue;
            }
            let flow = self.hosts[node].kernel.flows[slot];
            let known = flow.irs == told.irs;
            if known && self.would_serve(&flow) && flow.rcv_nxt < told.ack {
                let has = flow.rcv_nxt;
                self.violate(|_| {
                    let ack = told.ack;
                    format!(
                        "{node} took over slot {slot} with {has} bytes, the client was told {ack}"
                    )
                });
            } else if !known && told.by == Some(from) && told.ack > 0 {
                self.violate(|_| {
                    format!("{node} took over without slot {slot}, which was protected")
                });
            }
        }
    }

    /// What a client is told, against what the standby has.
    fn audit_ack(&mut self, node: usize, share: usize, frame: &Frame) {
        let (slot, other) = (frame.slot, 1 - node);
        let flow = self.hosts[node].kernel.flows[slot];
        let entry = self.hosts[node].kernel.entries[share];
        if self.audit.told[slot].irs != frame.irs || flow.irs != frame.irs {
            return;
        }
        let protected = flow.is_gated(entry.generation) && flow.phase == Phase::Protected;
        let told = &mut self.audit.told[slot];
        told.ack = told.ack.max(frame.ack);
        told.by = protected.then_some((entry.epoch, entry.generation));
        let twin = self.hosts[other].kernel.flows[slot];
        let shadow = self.hosts[other].kernel.entries[share];
        let stay = (shadow.epoch, shadow.generation);
        let follows = self.hosts[other].up
            && shadow.role == Role::Shadow
            && shadow.epoch == entry.epoch
            && self.audit.kept[share].contains(&stay)
            && !self.audit.stale[share].contains(&stay);
        if !follows {
            return;
        }
        if twin.irs == frame.irs {
            if self.would_serve(&twin) && twin.rcv_nxt < frame.ack {
                let (has, ack) = (twin.rcv_nxt, frame.ack);
                self.violate(|_| {
                    format!("{node} lets {ack} out on slot {slot}, standby {other} has {has}")
                });
            }
        } else if flow.is_tapped(shadow.generation) && protected && frame.ack > 0 {
            self.violate(|_| {
                format!("{node} calls slot {slot} protected, {other} knows nothing of it")
            });
        }
    }

    fn would_serve(&self, flow: &Flow) -> bool {
        let unmarked = self.plan.mutant == Some(Mutant::NoMark) && flow.phase == Phase::Twin;
        // Also a socket of an earlier ownership that was not ended.
        flow.socket && !flow.is_over() && (unmarked || !flow.twin || !flow.is_given_up())
    }
}
