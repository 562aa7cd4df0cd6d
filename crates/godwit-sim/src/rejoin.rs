//! Re-protection: `driver/rejoin.rs` and `driver/replay.rs` of the agent,
//! `gw_rejoin.h` and `gw_install.h` of the data path.
//!
//! A log is as long as what was read; one of more than [`CAP`] bytes is gone.
//! A twin takes what it gets of it at once.

use godwit_core::rejoin::{Candidate, Past};
use godwit_core::{FlowEventKind, RejoinAction};
use godwit_wire::{
    FlowId, FlowRecord, Generation, MacAddr, Negotiated, Restore, Role, SeqNumber, ShareId,
};

use crate::flow::{Flow, Frame, Kind, Phase};
use crate::mutant::Mutant;
use crate::world::{World, flow_id, slot_of};

/// `reprotect_cap`.
const CAP: u32 = 20_000;

impl World {
    pub(crate) fn carry_out_rejoin(&mut self, node: usize, share: ShareId, action: RejoinAction) {
        self.trace(|_| format!("{node}: {action:?}"));
        match action {
            RejoinAction::Begin { flow, generation } => {
                self.begin_rejoin(node, share, flow, generation);
            }
            RejoinAction::FeedLog { flow } => self.feed_log(node, share, flow),
            RejoinAction::Protect { flow } => self.protect(node, share, flow),
            RejoinAction::Restore {
                generation,
                restore,
            } => self.restore_twin(node, share, generation, &restore),
            RejoinAction::Feed {
                flow, seq, input, ..
            } => self.feed_twin(node, flow, seq, input.len()),
            RejoinAction::Admit { flow } => self.admit_twin(node, share, flow),
        }
    }

    /// Which flows could have a twin.
    pub(crate) fn offer_candidates(&mut self, node: usize, share: usize) {
        // It may have been stopped by what it did a moment ago.
        if !self.hosts[node].thinks() {
            return;
        }
        let generation = self.hosts[node].kernel.entries[share].generation;
        let candidates: Vec<_> = self
            .slots_of(share)
            .filter_map(|slot| {
                let flow = &self.hosts[node].kernel.flows[slot];
                let past = past_of(flow, generation)?;
                let flow = flow_id(slot, flow.irs);
                Some(Candidate { flow, past })
            })
            .collect();
        if !candidates.is_empty() {
            let id = Self::share_id(share);
            self.input(node, |agent, now| {
                agent.handle_candidates(id, &candidates, now);
            });
        }
    }

    /// First the tap, then the log.
    fn begin_rejoin(&mut self, node: usize, share: ShareId, id: FlowId, generation: Generation) {
        let (slot, irs) = slot_of(id);
        let epoch = self.hosts[node].kernel.entries[Self::share_at(share)].epoch;
        let restore = self.rejoin(node, slot, irs, generation).then(|| {
            let flow = self.flow(node, slot);
            Box::new(Restore {
                record: FlowRecord {
                    id,
                    iss: SeqNumber(0),
                    mss: 0,
                    snd_wscale: 0,
                    rcv_wscale: 0,
                    negotiated: Negotiated::default(),
                    ts_off: 0,
                    snd_una: SeqNumber(flow.snd_una),
                    snd_nxt: SeqNumber(flow.snd_nxt),
                    rcv_nxt: SeqNumber(flow.rcv_nxt),
                    epoch,
                },
                base: SeqNumber(0),
                base_ack: SeqNumber(0),
                snd_edge: SeqNumber(0),
                ts_val: 0,
                owner_ts: 0,
                rtt_us: 0,
                syn_ack_mss: 0,
                client_mac: MacAddr::default(),
                fin: false,
                input: log(0, flow.rcv_nxt),
            })
        });
        self.answer(node, |agent, now| {
            agent.handle_restore(share, id, restore, now);
        });
    }

    /// gw_rejoin
    fn rejoin(&mut self, node: usize, slot: usize, irs: u32, generation: Generation) -> bool {
        let entry = self.hosts[node].kernel.entries[self.share_of(slot)];
        if entry.role != Role::Owner || entry.generation != generation || generation.is_none() {
            return false;
        }
        let flow = self.hosts[node].kernel.flows[slot];
        let gated = flow.is_gated(generation) && flow.phase != Phase::Rejoining;
        let asked = flow.is_rejoining(generation) && flow.whole;
        let served = !flow.twin || !flow.is_given_up();
        if flow.irs != irs || flow.is_over() || !flow.socket || gated || asked || !served {
            return false;
        }
        if flow.twin {
            self.adopt(node, slot);
        }
        let flow = self.flow(node, slot);
        (flow.gate.gated, flow.whole, flow.gate.owed, flow.gate.held) = (false, false, false, None);
        flow.gate.twin_ack = 0;
        flow.gate.told_ack = flow.gate.told_ack.max(flow.rcv_nxt);
        flow.phase = Phase::Rejoining;
        flow.generation = generation;
        true
    }

    /// gw_follow_rejoin: the new twin has spoken.
    pub(crate) fn follow_rejoin(&mut self, node: usize, slot: usize) {
        let hasty = self.plan.mutant == Some(Mutant::NoCatchUp);
        let flow = self.flow(node, slot);
        let first = !flow.gate.gated;
        if first {
            flow.gate.gated = true;
            flow.gate.told_ack = flow.gate.told_ack.max(flow.rcv_nxt);
        }
        let whole = !flow.whole && (hasty || flow.gate.twin_ack >= flow.gate.told_ack);
        flow.whole |= whole;
        if first {
            self.tell(node, slot, FlowEventKind::Rejoined);
        }
        if whole {
            self.tell(node, slot, FlowEventKind::Whole);
        }
    }

    /// What the twin has not acknowledged.
    fn feed_log(&mut self, node: usize, share: ShareId, id: FlowId) {
        let (slot, irs) = slot_of(id);
        let flow = self.hosts[node].kernel.flows[slot];
        if flow.irs == irs && flow.gate.twin_ack < flow.rcv_nxt {
            let at = (SeqNumber(flow.gate.twin_ack), false);
            let input = log(flow.gate.twin_ack, flow.rcv_nxt);
            self.answer(node, |agent, now| {
                agent.handle_log(share, id, at, input, now);
            });
        }
    }

    fn protect(&mut self, node: usize, share: ShareId, id: FlowId) {
        let (slot, irs) = slot_of(id);
        let generation = self.hosts[node].kernel.entries[Self::share_at(share)].generation;
        let flow = self.flow(node, slot);
        let protected = flow.irs == irs
            && !flow.is_over()
            && flow.is_rejoining(generation)
            && flow.is_gated(generation)
            && flow.whole;
        if protected {
            flow.phase = Phase::Protected;
            self.tally.reprotected += 1;
        }
        self.answer(node, |agent, now| {
            agent.handle_flow_protected(share, id, protected, now);
        });
    }

    /// gw_obey_install, and the log.
    fn restore_twin(
        &mut self,
        node: usize,
        share: ShareId,
        generation: Generation,
        restore: &Restore,
    ) {
        let (slot, irs) = slot_of(restore.flow());
        let entry = self.hosts[node].kernel.entries[Self::share_at(share)];
        let old = self.hosts[node].kernel.flows[slot];
        let gone = old.irs == irs && (old.is_over() || old.not_in_sync);
        let in_use = !(gone || self.is_forgotten(&old));
        if entry.role != Role::Shadow || entry.generation != generation || in_use {
            return;
        }
        let (born, client) = (self.clock(node), self.clients[slot]);
        *self.flow(node, slot) = Flow {
            irs,
            iss: client.iss,
            generation,
            phase: Phase::Twin,
            twin: true,
            not_in_sync: true,
            script: client.script,
            snd_una: restore.record.snd_una.0,
            born,
            ..Flow::default()
        };
        if self.materialise(node, slot) {
            self.replay(node, slot, 0, restore.input.len());
        }
    }

    fn feed_twin(&mut self, node: usize, id: FlowId, seq: SeqNumber, len: usize) {
        let (slot, irs) = slot_of(id);
        let flow = self.hosts[node].kernel.flows[slot];
        if flow.irs == irs && flow.phase == Phase::Twin && flow.socket {
            self.replay(node, slot, seq.0, len);
        }
    }

    /// gw_replay
    fn replay(&mut self, node: usize, slot: usize, seq: u32, len: usize) {
        let entry = self.hosts[node].kernel.entries[self.share_of(slot)];
        if entry.role != Role::Shadow {
            return;
        }
        let end = seq + u32::try_from(len).unwrap_or(0);
        let flow = self.flow(node, slot);
        if seq <= flow.rcv_nxt {
            flow.rcv_nxt = flow.rcv_nxt.max(end);
        }
        let twin_ack = Frame {
            ack: flow.rcv_nxt,
            ..Frame::bare(Kind::TwinAck, slot, flow.irs)
        };
        if let Some(owner) = entry.peer {
            self.send_frame(node, owner, twin_ack);
        }
    }

    fn admit_twin(&mut self, node: usize, share: ShareId, id: FlowId) {
        let (slot, irs) = slot_of(id);
        let flow = self.flow(node, slot);
        if flow.irs != irs || flow.phase != Phase::Twin || !flow.socket {
            return;
        }
        flow.not_in_sync = false;
        self.answer(node, |agent, now| {
            agent.handle_twin_admitted(share, id, now);
        });
    }
}

/// What became of the twins that the standby of that generation had; `None` if it
/// can't have one, or has. As `reprotect::obstacle` of the agent.
fn past_of(flow: &Flow, generation: Generation) -> Option<Past> {
    let current = flow.is_tapped(generation);
    match flow.phase {
        Phase::None | Phase::Ended => None,
        Phase::Confirming | Phase::Protected if current => None,
        Phase::Rejoining if current => Some(Past::None),
        Phase::Confirming
        | Phase::Protected
        | Phase::Rejoining
        | Phase::Unprotected
        | Phase::Twin
        | Phase::Closed => {
            let past = if current { Past::Failed } else { Past::None };
            (flow.socket && flow.rcv_nxt <= CAP).then_some(past)
        }
    }
}

/// Bytes of the client: which, their positions say.
fn log(from: u32, to: u32) -> Vec<u8> {
    vec![0; to.saturating_sub(from) as usize]
}
