//! What an agent asks of its data path: roles, takeovers, gates, flows.

use godwit_core::FlowEventKind;
use godwit_core::ServerExit;
use godwit_wire::{Generation, Role};

use crate::fault::FaultKind;
use crate::flow::{Flow, Frame, Kind, Phase, Why};
use crate::host::{Entry, Half, Input};
use crate::mutant::Mutant;
use crate::plan::{MS, SERVERS};
use crate::world::{Happening, World};

impl World {
    /// `Shares::set` of godwit-bpf: an owner's fence before its role, any other
    /// role before its fence. The agent may be stopped between the two.
    pub(crate) fn set_share(&mut self, node: usize, share: usize, entry: Entry) {
        let before = self.hosts[node].kernel.entries[share];
        let hands_over = before.role == Role::Owner && entry.role == Role::Shadow;
        if hands_over && self.plan.mutant == Some(Mutant::NoSilence) {
            return;
        }
        let fence_first = self.plan.mutant == Some(Mutant::FenceFirst);
        if entry.role == Role::Owner || fence_first {
            let now = &mut self.hosts[node].kernel.entries[share];
            if entry.role == Role::Owner && before.role != Role::Owner {
                (now.died, now.released) = (None, None);
            }
            now.expiry = entry.expiry;
        } else {
            let expiry = before.expiry;
            self.finish_share(node, share, Entry { expiry, ..entry });
        }
        if self.interrupt(node) {
            if self.hosts[node].agent.is_some() {
                self.hosts[node].kernel.unwritten = Some((share, entry));
            }
            return;
        }
        self.finish_share(node, share, entry);
    }

    pub(crate) fn finish_share(&mut self, node: usize, share: usize, entry: Entry) {
        let before = self.hosts[node].kernel.entries[share];
        let mut entry = Entry {
            released: before.released,
            died: before.died,
            listening: before.listening,
            given_back: before.given_back,
            from: before.from,
            ..entry
        };
        let owns = entry.role == Role::Owner;
        let same = owns && before.role == Role::Owner && before.epoch == entry.epoch;
        if before.role == Role::Owner && entry.role == Role::Shadow {
            // Its claim is what hands the share over; the lease is given back with it.
            entry.given_back = before.epoch;
        }
        if same && before.generation != entry.generation {
            self.audit.give_up(share, before.epoch, before.generation);
        }
        if owns && !same {
            let twins = before.role == Role::Shadow;
            entry.from = twins.then_some((before.epoch, before.generation));
        }
        self.hosts[node].kernel.entries[share] = entry;
        if owns {
            self.audit.keep(share, entry.epoch, entry.generation);
        }
        if before.role == Role::Owner && entry.role == Role::Shadow {
            self.turn_shadow(node, share);
        }
        self.trace(|_| {
            let Entry {
                role,
                epoch,
                generation,
                expiry,
                ..
            } = entry;
            format!(
                "{node}: share {share}: {role} {epoch} generation {generation} until {expiry:?}"
            )
        });
        if before.role != entry.role {
            self.blame_role_change();
        }
        if owns && !same {
            self.audit_claim(node, share, entry.epoch);
        }
        self.check_voices(share);
    }

    /// Every flow of a generation hears what the gate kept back.
    pub(crate) fn release_gate(&mut self, node: usize, share: usize, over: Generation) {
        for slot in self.slots_of(share) {
            let flow = self.flow(node, slot);
            if flow.generation == over && flow.gate.gated && flow.gate.held.is_some() {
                self.let_go(node, slot);
            }
        }
    }

    fn let_go(&mut self, node: usize, slot: usize) {
        let flow = self.flow(node, slot);
        flow.gate.held = None;
        flow.gate.told_ack = flow.rcv_nxt;
        let ack = flow.rcv_nxt;
        self.say_ack(node, slot, ack);
    }

    pub(crate) fn ungate(&mut self, node: usize, slot: usize, irs: u32) {
        let flow = self.flow(node, slot);
        if flow.irs == irs && !flow.is_over() {
            flow.gate.gated = false;
            flow.phase = Phase::Unprotected;
            self.let_go(node, slot);
        }
    }

    /// What [`Mutant::NoWait`] does when a standby falls silent.
    pub(crate) fn open_gates_at_once(&mut self, node: usize, silent: Option<usize>) {
        if node >= SERVERS {
            return;
        }
        for share in 0..self.plan.shares {
            let entry = &mut self.hosts[node].kernel.entries[share];
            let over = entry.generation;
            if entry.role == Role::Owner && entry.peer == silent && !over.is_none() {
                entry.generation = Generation::NONE;
                self.release_gate(node, share, over);
            }
        }
    }

    pub(crate) fn announce(&mut self, node: usize, share: usize) {
        let slot = self.slots_of(share).start;
        self.speak(node, share, Frame::bare(Kind::Announce, slot, 0));
    }

    /// After a takeover: one round of ACKs and probes.
    pub(crate) fn revive(&mut self, node: usize, share: usize, attempt: u32) {
        for slot in self.slots_of(share) {
            let flow = self.hosts[node].kernel.flows[slot];
            let half = self.hosts[node].kernel.halves[slot];
            if attempt == 0 && half.tapped && half.answered {
                let again = Frame::begun(Kind::SynAck, slot, half.irs, half.iss);
                self.speak(node, share, again);
            }
            if !flow.twin || flow.is_over() {
                continue;
            }
            let unmarked = self.plan.mutant == Some(Mutant::NoMark) && flow.phase == Phase::Twin;
            if flow.is_given_up() && !unmarked {
                if attempt == 0 {
                    self.reset_given_up(node, slot);
                }
            } else if !flow.heard {
                self.say_ack(node, slot, flow.rcv_nxt);
                let probe = Frame {
                    ack: flow.rcv_nxt,
                    ..Frame::bare(Kind::Probe, slot, flow.irs)
                };
                self.speak(node, share, probe);
            }
        }
    }

    /// Whoever has a connection that nobody serves after a move is told.
    pub(crate) fn reset_unserved(&mut self, node: usize, share: usize) {
        for slot in self.slots_of(share) {
            let flow = self.hosts[node].kernel.flows[slot];
            if flow.twin && !flow.is_over() && flow.is_given_up() {
                self.reset_given_up(node, slot);
            }
        }
    }

    fn reset_given_up(&mut self, node: usize, slot: usize) {
        let flow = self.hosts[node].kernel.flows[slot];
        let share = self.share_of(slot);
        self.speak(node, share, reset_given_up(&flow, slot));
        self.end(node, slot);
    }

    pub(crate) fn resend_handshake(&mut self, node: usize, slot: usize, irs: u32) {
        let share = self.share_of(slot);
        let entry = self.hosts[node].kernel.entries[share];
        let flow = self.hosts[node].kernel.flows[slot];
        let runs = flow.irs == irs && !flow.is_over();
        if let Some(peer) = entry.peer.filter(|_| runs) {
            for kind in [Kind::Syn, Kind::SynAck, Kind::Third] {
                self.send_frame(node, peer, Frame::begun(kind, slot, irs, flow.iss));
            }
        }
    }

    pub(crate) fn mark_demoted(&mut self, node: usize, slot: usize, irs: u32) {
        let generation = self.hosts[node].kernel.entries[self.share_of(slot)].generation;
        let flow = self.flow(node, slot);
        if flow.irs == irs {
            flow.not_in_sync = true;
            return;
        }
        if self.plan.mutant == Some(Mutant::NoUnborn) {
            return;
        }
        // Its handshake may yet come.
        let half = &mut self.hosts[node].kernel.halves[slot];
        if half.irs != irs {
            *half = Half {
                irs,
                generation,
                tapped: true,
                ..Half::default()
            };
        }
        half.not_in_sync = true;
    }

    pub(crate) fn end_twin(&mut self, node: usize, slot: usize, irs: u32) {
        if self.hosts[node].kernel.flows[slot].irs == irs {
            self.end(node, slot);
        }
    }

    pub(crate) fn poke_twin(&mut self, node: usize, slot: usize, irs: u32, snd_una: u32) {
        let flow = self.flow(node, slot);
        if flow.irs == irs {
            flow.snd_una = flow.snd_una.max(snd_una);
        }
    }

    pub(crate) fn end_flows(&mut self, node: usize, share: usize) {
        if self.is_owner(node, share) {
            self.violate(|_| format!("{node} ends its sockets aloud"));
        }
        if self.plan.mutant != Some(Mutant::NoEnd) {
            for slot in self.slots_of(share) {
                *self.flow(node, slot) = Flow::default();
            }
        }
    }

    /// Nobody took the share over: clients are told.
    pub(crate) fn reopen(&mut self, node: usize, share: usize) {
        let entry = &mut self.hosts[node].kernel.entries[share];
        if !entry.generation.is_none() {
            let generation = entry.generation;
            self.violate(|_| format!("{node} reopens while {generation} is in sync"));
            return;
        }
        (entry.died, entry.released) = (None, None);
        for slot in self.slots_of(share) {
            let flow = self.flow(node, slot);
            let (over, socket, irs) = (flow.is_over(), flow.socket, flow.irs);
            let held = flow.gate.held.is_some();
            flow.orphaned = false;
            if over {
                continue;
            }
            if !socket {
                self.speak(
                    node,
                    share,
                    Frame::bare(Kind::Reset(Why::NoTaker), slot, irs),
                );
                self.end(node, slot);
            } else if held {
                self.let_go(node, slot);
            }
        }
    }

    /// A server process dies: `gw_exit.h`.
    pub(crate) fn kill_server(&mut self, kind: FaultKind) {
        let node = usize::try_from(self.random.below(SERVERS as u64)).unwrap_or(0);
        let share = self.any_share();
        let host = &self.hosts[node];
        let entry = host.kernel.entries[share];
        if !host.runs() || !entry.listening || entry.role == Role::None {
            return;
        }
        let all = kind == FaultKind::ServerDeath;
        // A worker has every second connection.
        let mine: Vec<_> = self
            .slots_of(share)
            .filter(|slot| all || slot % 2 == 0)
            .filter(|slot| !self.hosts[node].kernel.flows[*slot].is_over())
            .collect();
        let hit = mine.iter().any(|slot| self.is_in_flight(*slot));
        self.strike(kind, hit);
        self.trace(|_| format!("{node}: share {share}: {}", kind.as_str()));
        let mut kept = 0;
        for slot in mine {
            kept += u32::from(self.process_of_flow_exits(node, share, slot));
        }
        let now = self.clock(node);
        let state = &mut self.hosts[node].kernel.entries[share];
        if all {
            state.listening = false;
            if entry.role == Role::Owner && !entry.generation.is_none() {
                state.released = Some(now);
            }
            let back_ns = self.now_ns + self.random.spread(20 * MS, 2000 * MS);
            self.queue.push(back_ns, Happening::Listen { node, share });
        }
        let exit = ServerExit {
            share: Self::share_id(share),
            server: true,
            kept,
            listener_lost: all,
            movable: true,
        };
        self.report_exit(node, exit);
    }

    /// Whether another node could go on with it.
    fn process_of_flow_exits(&mut self, node: usize, share: usize, slot: usize) -> bool {
        let now = self.clock(node);
        let entry = self.hosts[node].kernel.entries[share];
        let flow = self.flow(node, slot);
        if entry.role == Role::Shadow {
            self.close_twin(node, slot);
            return false;
        }
        flow.socket = false;
        let whole = match flow.phase {
            Phase::Confirming | Phase::Protected => true,
            Phase::Rejoining => flow.whole,
            Phase::None | Phase::Unprotected | Phase::Twin | Phase::Closed | Phase::Ended => false,
        };
        if flow.is_tapped(entry.generation) && whole {
            flow.orphaned = true;
            self.hosts[node].kernel.entries[share].died = Some(now);
        }
        let orphaned = self.flow(node, slot).orphaned;
        if orphaned {
            // Its kernel tries to say goodbye, again and again.
            self.arm(node, slot);
        } else {
            let irs = self.flow(node, slot).irs;
            let gone = Frame::bare(Kind::Reset(Why::ServerDied), slot, irs);
            self.speak(node, share, gone);
            self.end(node, slot);
        }
        orphaned
    }

    pub(crate) fn close_twin(&mut self, node: usize, slot: usize) {
        let flow = self.flow(node, slot);
        if flow.phase == Phase::Twin {
            flow.phase = Phase::Closed;
            self.tell(node, slot, FlowEventKind::TwinClosed);
        }
    }

    /// One twin's application gives up.
    pub(crate) fn close_a_twin(&mut self) {
        let twin = (0..SERVERS)
            .flat_map(|node| (0..self.clients.len()).map(move |slot| (node, slot)))
            .find(|(node, slot)| {
                let entry = &self.hosts[*node].kernel.entries[self.share_of(*slot)];
                let flow = &self.hosts[*node].kernel.flows[*slot];
                entry.role == Role::Shadow && flow.phase == Phase::Twin
            });
        if let Some((node, slot)) = twin {
            let hit = self.is_in_flight(slot);
            self.strike(FaultKind::TwinClose, hit);
            self.close_twin(node, slot);
        }
    }

    /// The server has been started again.
    pub(crate) fn listen(&mut self, node: usize, share: usize) {
        if self.hosts[node].up {
            self.hosts[node].kernel.entries[share].listening = true;
            let delay_ns = self.random.below(100 * MS);
            self.tell_later(node, delay_ns, Input::Listening(share));
        }
    }
}

/// What the client of a flow that nobody serves is told after a takeover.
pub(crate) fn reset_given_up(flow: &Flow, slot: usize) -> Frame {
    let why = if flow.not_in_sync {
        Why::NotInSync
    } else {
        Why::TwinClosed
    };
    Frame::bare(Kind::Reset(why), slot, flow.irs)
}
