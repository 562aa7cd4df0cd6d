//! Planned moves, as the data path and the driver take part in them: `gw_turn.h`
//! and `godwit-agent/src/driver/moves.rs`.

use godwit_core::{FlowCheck, MonoTime};
use godwit_wire::{Generation, Message, MoveStep, Role};

use crate::flow::{Flow, Frame, Kind, Phase, Why};
use crate::mutant::Mutant;
use crate::world::World;

/// What becomes of a flow if its share moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Moves,
    /// Its twin has not answered yet.
    Soon,
    /// The standby has no twin of it that may be served.
    Never,
}

/// `None`: there is nothing to move.
fn can_move(flow: &Flow, generation: Generation) -> Option<Fit> {
    if flow.is_over() {
        return None;
    }
    Some(match flow.phase {
        Phase::Confirming | Phase::Rejoining if flow.is_tapped(generation) => Fit::Soon,
        Phase::Protected if flow.is_tapped(generation) => Fit::Moves,
        Phase::None
        | Phase::Confirming
        | Phase::Protected
        | Phase::Rejoining
        | Phase::Unprotected
        | Phase::Twin
        | Phase::Closed
        | Phase::Ended => Fit::Never,
    })
}

impl World {
    /// Whether all flows of a share have a twin that may be served. Of each that
    /// has the peer is told what this node holds.
    pub(crate) fn check_flows(&mut self, node: usize, share: usize) -> FlowCheck {
        let generation = self.hosts[node].kernel.entries[share].generation;
        let mut check = FlowCheck::default();
        for slot in self.slots_of(share) {
            match can_move(&self.hosts[node].kernel.flows[slot], generation) {
                Some(Fit::Moves) | None => {}
                Some(Fit::Soon) => check.confirming += 1,
                Some(Fit::Never) => check.unprotected += 1,
            }
        }
        self.say_all(node, share);
        check
    }

    /// At a forced move, while this node still owns: as long as its fence is open,
    /// clients hear of it.
    pub(crate) fn reset_unprotected(&mut self, node: usize, share: usize) {
        let generation = self.hosts[node].kernel.entries[share].generation;
        for slot in self.slots_of(share) {
            let flow = self.hosts[node].kernel.flows[slot];
            if can_move(&flow, generation) == Some(Fit::Never) {
                let gone = Kind::Reset(Why::ForcedMove);
                self.speak(node, share, Frame::bare(gone, slot, flow.irs));
                self.end(node, slot);
                self.tally.forced += 1;
            }
        }
    }

    /// To the other side of the tap: what this node holds of each flow.
    pub(crate) fn say_all(&mut self, node: usize, share: usize) {
        let entry = self.hosts[node].kernel.entries[share];
        for slot in self.slots_of(share) {
            let flow = self.hosts[node].kernel.flows[slot];
            let told = !flow.is_over() && flow.socket && flow.is_tapped(entry.generation);
            if let Some(peer) = entry.peer.filter(|_| told) {
                let word = Frame {
                    ack: flow.rcv_nxt,
                    ..Frame::bare(Kind::TwinAck, slot, flow.irs)
                };
                self.send_frame(node, peer, word);
            }
        }
    }

    /// What the owner of a twin holds.
    pub(crate) fn note_owner(&mut self, node: usize, frame: Frame) {
        let flow = self.flow(node, frame.slot);
        if flow.irs == frame.irs && flow.phase == Phase::Twin {
            flow.gate.twin_ack = flow.gate.twin_ack.max(frame.ack);
        }
    }

    /// gw_turn_shadow: what this node served are twins from here on.
    pub(crate) fn turn_shadow(&mut self, node: usize, share: usize) {
        let generation = self.hosts[node].kernel.entries[share].generation;
        for slot in self.slots_of(share) {
            let flow = self.flow(node, slot);
            if flow.is_over() {
                continue;
            }
            let whole = matches!(flow.phase, Phase::Confirming | Phase::Protected);
            // The new owner has no twin of it: it can't come back either.
            flow.not_in_sync |= !(whole && flow.is_tapped(generation));
            flow.phase = Phase::Twin;
            flow.twin = true;
            (flow.adopted, flow.gate.gated) = (false, false);
            (flow.gate.owed, flow.orphaned) = (false, false);
            (flow.gate.held, flow.gate.twin_ack) = (None, 0);
            if !flow.socket {
                self.close_twin(node, slot);
            }
        }
    }

    /// gw_turn_owner: a twin is this node's flow from here on. After a planned
    /// move the gate is shut from the first word on.
    pub(crate) fn adopt(&mut self, node: usize, slot: usize) {
        let generation = self.hosts[node].kernel.entries[self.share_of(slot)].generation;
        let flow = self.flow(node, slot);
        if flow.adopted {
            return;
        }
        flow.adopted = true;
        if flow.is_tapped(generation) {
            flow.gate.gated = true;
            flow.phase = Phase::Protected;
            flow.gate.told_ack = flow.rcv_nxt.min(flow.gate.twin_ack);
        } else {
            flow.gate.gated = false;
            flow.phase = Phase::Unprotected;
            flow.generation = Generation::NONE;
            self.tally.continued += 1;
        }
    }

    /// The share was handed to this node: its twins go on.
    pub(crate) fn resume(&mut self, node: usize, share: usize) {
        for slot in self.slots_of(share) {
            let flow = self.flow(node, slot);
            let whole = flow.twin && flow.socket && !flow.is_over() && !flow.is_given_up();
            if whole {
                self.adopt(node, slot);
                let flow = self.flow(node, slot);
                flow.snd_nxt = flow.snd_nxt.max(flow.snd_una);
                self.kernel_speaks(node, slot, true);
            }
        }
        self.reset_unserved(node, share);
    }

    /// What [`Mutant::EarlyCommit`] makes of the word that a standby is ready.
    pub(crate) fn commit_early(&mut self, node: usize, message: &Message) {
        let Message::Move(scope, MoveStep::Ready { successor }) = message else {
            return;
        };
        if self.plan.mutant == Some(Mutant::EarlyCommit) {
            let share = Self::share_at(scope.share);
            let entry = &mut self.hosts[node].kernel.entries[share];
            (entry.role, entry.epoch) = (Role::Owner, *successor);
            entry.expiry = entry.expiry.map(|_| MonoTime(u64::MAX));
            self.check_voices(share);
        }
    }
}
