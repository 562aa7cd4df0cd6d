//! The data path of a node, as `godwit-bpf/bpf` has it: fence, gate, tap and
//! shadow, around a kernel that takes what is in order and repeats what is not
//! acknowledged. Functions are named after those of the C files.

use godwit_core::{FlowEvent, FlowEventKind, MonoTime};
use godwit_wire::{DigestEntry, Generation, Role, SeqNumber};

use crate::flow::{Flow, Frame, Kind, MSS, Phase, WINDOW, Why};
use crate::host::Half;
use crate::mutant::Mutant;
use crate::network::Net;
use crate::orders::reset_given_up;
use crate::plan::{MS, SERVERS, US};
use crate::world::{Happening, World, flow_id};

/// A client that is held back for so long is let go.
const LAG_LIMIT_NS: u64 = 300 * MS;
/// GW_START_RETRY_NS, GW_START_LIMIT_NS
const START_RETRY_NS: u64 = 5 * MS;
const START_LIMIT_NS: u64 = 30 * MS;
/// GW_LINGER_NS: how long an ended flow is remembered.
const LINGER_NS: u64 = 1_000 * MS;
/// Retransmission time-out of a service; a kernel's is 200 ms.
const RTO_NS: u64 = 40 * MS;

impl World {
    pub(crate) fn clock(&self, node: usize) -> MonoTime {
        self.hosts[node].clock.read(self.now_ns)
    }

    pub(crate) fn flow(&mut self, node: usize, slot: usize) -> &mut Flow {
        &mut self.hosts[node].kernel.flows[slot]
    }

    /// gw_silenced: whether an owner may not speak.
    pub(crate) fn is_silenced(&self, node: usize, share: usize) -> bool {
        let entry = &self.hosts[node].kernel.entries[share];
        let now = self.clock(node);
        let fenced = entry.expiry.is_some_and(|expiry| expiry <= now);
        let ignored = self.plan.mutant == Some(Mutant::NoFence);
        fenced && !ignored || self.is_held(entry.released, now)
    }

    /// Whether a node's data path lets segments of a share out at this moment.
    pub(crate) fn can_speak(&self, node: usize, share: usize) -> bool {
        let host = &self.hosts[node];
        host.runs() && self.is_owner(node, share) && !self.is_silenced(node, share)
    }

    pub(crate) fn is_owner(&self, node: usize, share: usize) -> bool {
        self.hosts[node].kernel.entries[share].role == Role::Owner
    }

    /// gw_is_held: half as long again is for an agent that is not there.
    fn is_held(&self, since: Option<MonoTime>, now: MonoTime) -> bool {
        let hold = self.hold() + self.hold() / 2;
        since.is_some_and(|since| now.since(since) < hold)
    }

    /// What has passed the gate: through the fence, and out of the host.
    pub(crate) fn speak(&mut self, node: usize, share: usize, frame: Frame) {
        if !self.can_speak(node, share) {
            return;
        }
        let epoch = self.hosts[node].kernel.entries[share].epoch.0;
        if self.now_ns < self.hosts[node].kernel.deep_until_ns && self.plan.residence_ns > 0 {
            // True time, at the worst end of what `doctor` computes.
            let at_ns = self.now_ns + self.plan.residence_ns - self.random.below(100 * US);
            self.queue.push(
                at_ns,
                Happening::Exit {
                    node,
                    share,
                    epoch,
                    frame,
                },
            );
        } else {
            self.leave_host(node, share, epoch, frame);
        }
    }

    pub(crate) fn leave_host(&mut self, node: usize, share: usize, epoch: u64, frame: Frame) {
        if !self.hosts[node].runs() {
            return;
        }
        self.audit_word(node, share, epoch, &frame);
        self.send_frame(node, self.plan.nodes, frame);
    }

    pub(crate) fn send_frame(&mut self, from: usize, to: usize, frame: Frame) {
        let path = (Net::Data, from, to);
        let fate = self.network.fate(path, self.now_ns, &mut self.random);
        if let Some(fault) = fate.by
            && self.is_in_flight(frame.slot)
        {
            self.count(fault);
        }
        for at_ns in [fate.at_ns, fate.again_ns].into_iter().flatten() {
            self.queue.push(at_ns, Happening::Frame { from, to, frame });
        }
        self.trace(|_| format!("    {from} to {to}: {frame:?}, arrives {:?}", fate.at_ns));
    }

    pub(crate) fn frame_arrives(&mut self, from: usize, to: usize, frame: Frame) {
        if to == self.plan.nodes {
            self.client_hears(from, frame);
            return;
        }
        if !self.hosts[to].runs() || to >= SERVERS {
            return;
        }
        if self.is_single(frame.slot) {
            return self.single_arrives(from, to, frame);
        }
        let share = self.share_of(frame.slot);
        if from == self.plan.nodes && self.is_out_of_reach(to, share) {
            return;
        }
        let entry = &self.hosts[to].kernel.entries[share];
        let tapped = entry.peer == Some(from);
        match (entry.role, frame.kind) {
            (Role::Owner, Kind::WhoHas) => self.announce(to, share),
            (Role::Owner, Kind::TwinAck) if tapped => self.gate_twin_ack(to, frame),
            (Role::Owner, Kind::Syn) => self.owner_syn(to, frame),
            (Role::Owner, Kind::Third | Kind::Client | Kind::Fin) => self.owner_client(to, frame),
            (Role::Shadow, Kind::Syn | Kind::Third | Kind::Client | Kind::Fin) if tapped => {
                self.shadow_client(to, frame)
            }
            (Role::Shadow, Kind::SynAck | Kind::Reset(_)) if tapped => self.shadow_owner(to, frame),
            (Role::Shadow, Kind::TwinAck) if tapped => self.note_owner(to, frame),
            // gw_forward: an owner that stepped down hands on what still comes.
            (Role::None | Role::Shadow, Kind::Syn | Kind::Third | Kind::Client | Kind::Fin) => {
                if let Some(peer) = entry.peer.filter(|_| from == self.plan.nodes) {
                    self.send_frame(to, peer, frame);
                }
            }
            _ => {}
        }
    }

    fn owner_syn(&mut self, node: usize, frame: Frame) {
        let (slot, share) = (frame.slot, self.share_of(frame.slot));
        let entry = self.hosts[node].kernel.entries[share];
        if !entry.listening {
            self.speak(
                node,
                share,
                Frame::bare(Kind::Reset(Why::Refused), slot, frame.irs),
            );
            return;
        }
        if frame.irs <= self.hosts[node].kernel.flows[slot].irs {
            // Repeated by the network: its kernel knows the connection, or a later
            // one (RFC 9293 section 3.10.7.4: an old duplicate).
            return;
        }
        let old = self.hosts[node].kernel.halves[slot];
        let again = old.irs == frame.irs && !old.tapped && old.generation == entry.generation;
        if !again {
            self.hosts[node].kernel.halves[slot] = Half {
                irs: frame.irs,
                generation: entry.generation,
                ..Half::default()
            };
        }
        self.mirror(node, frame);
        if self.is_silenced(node, share) {
            return;
        }
        if self.hosts[node].kernel.flows[slot].irs != frame.irs {
            self.end(node, slot);
        }
        let iss = self.draw_iss(node, slot);
        let answer = Frame::begun(Kind::SynAck, slot, frame.irs, iss);
        self.mirror(node, answer);
        self.speak(node, share, answer);
    }

    /// The kernel answers, with one initial sequence number as often as it does: its
    /// clock's, and no two hosts draw the same (RFC 9293 section 3.4.1).
    fn draw_iss(&mut self, node: usize, slot: usize) -> u32 {
        let drawn = u32::try_from(self.now_ns / US * SERVERS as u64 + node as u64);
        let half = &mut self.hosts[node].kernel.halves[slot];
        if !half.answered {
            half.answered = true;
            half.iss = drawn.unwrap_or(u32::MAX);
        }
        half.iss
    }

    /// To the standby, if there is one.
    fn mirror(&mut self, node: usize, frame: Frame) {
        let entry = &self.hosts[node].kernel.entries[self.share_of(frame.slot)];
        if let Some(peer) = entry.peer.filter(|_| !entry.generation.is_none()) {
            self.send_frame(node, peer, frame);
        }
    }

    fn owner_client(&mut self, node: usize, frame: Frame) {
        let (slot, share) = (frame.slot, self.share_of(frame.slot));
        let generation = self.hosts[node].kernel.entries[share].generation;
        let flow = self.hosts[node].kernel.flows[slot];
        let known = flow.irs == frame.irs && !self.is_forgotten(&flow);
        if !known || flow.is_over() && self.hosts[node].kernel.halves[slot].irs == frame.irs {
            self.owner_begin(node, frame);
            return;
        }
        if flow.twin {
            let marked = self.plan.mutant != Some(Mutant::NoMark) || flow.phase == Phase::Closed;
            if flow.is_given_up() && marked {
                // The socket is gone: whoever asks again is told again.
                if flow.is_over() {
                    self.speak(node, share, reset_given_up(&flow, slot));
                }
                return;
            }
            self.adopt(node, slot);
            self.flow(node, slot).heard = true;
            if self.reset_unborn(node, slot) {
                return;
            }
        }
        if self.flow(node, slot).is_tapped(generation) {
            self.mirror(node, frame);
        }
        self.kernel_hears(node, frame);
    }

    pub(crate) fn is_forgotten(&self, flow: &Flow) -> bool {
        flow.irs == 0 || flow.phase == Phase::Ended && flow.ended_ns + LINGER_NS < self.now_ns
    }

    /// gw_owner_begin
    fn owner_begin(&mut self, node: usize, frame: Frame) {
        let (slot, share) = (frame.slot, self.share_of(frame.slot));
        let half = self.hosts[node].kernel.halves[slot];
        let from = self.hosts[node].kernel.entries[share].from;
        let continued = from.map_or(Generation::NONE, |(_, generation)| generation);
        if !half.not_in_sync && half.is_ahead(frame, continued) {
            return;
        }
        if let Some(why) = self.why_unknown(node, half, frame) {
            self.speak(node, share, Frame::bare(Kind::Reset(why), slot, frame.irs));
            return;
        }
        let generation = self.hosts[node].kernel.entries[share].generation;
        self.begin(node, frame, half);
        let flow = self.flow(node, slot);
        if half.tapped {
            flow.heard = true;
            self.adopt(node, slot);
            let flow = self.flow(node, slot);
            if flow.is_gated(generation) {
                flow.phase = Phase::Confirming;
                self.mirror(node, frame);
                self.watch(node, slot, START_RETRY_NS);
            }
        } else if flow.is_tapped(generation) {
            flow.phase = Phase::Confirming;
            flow.gate.gated = true;
            self.mirror(node, frame);
            self.watch(node, slot, START_RETRY_NS);
        }
        self.kernel_hears(node, frame);
    }

    fn begin(&mut self, node: usize, frame: Frame, half: Half) {
        let script = self.clients[frame.slot].script;
        let born = self.clock(node);
        // gw_flow_start: also behind the SYN-ACK of an owner that shadows now
        let shadow =
            self.hosts[node].kernel.entries[self.share_of(frame.slot)].role == Role::Shadow;
        let twin = half.tapped || shadow;
        self.hosts[node].kernel.halves[frame.slot] = Half::default();
        *self.flow(node, frame.slot) = Flow {
            irs: frame.irs,
            iss: half.iss,
            generation: half.generation,
            phase: if twin {
                Phase::Twin
            } else {
                Phase::Unprotected
            },
            twin,
            not_in_sync: half.not_in_sync,
            socket: true,
            script,
            born,
            ..Flow::default()
        };
    }

    /// The kernel takes a segment of the client, and answers.
    fn kernel_hears(&mut self, node: usize, frame: Frame) {
        let (slot, now_ns) = (frame.slot, self.now_ns);
        let flow = self.flow(node, slot);
        if !flow.socket || flow.is_over() {
            return;
        }
        let before = (flow.snd_una, flow.rcv_nxt);
        flow.take(frame);
        flow.changed |= before != (flow.snd_una, flow.rcv_nxt);
        flow.snd_nxt = flow.snd_nxt.max(flow.snd_una);
        if before.0 != flow.snd_una {
            flow.rto.at_ns = now_ns + RTO_NS;
        }
        let complete = frame.kind == Kind::Fin
            && flow.rcv_nxt == flow.script.asked()
            && flow.snd_una == flow.script.answered();
        if complete {
            self.end(node, slot);
            self.tell(node, slot, FlowEventKind::Ended);
            return;
        }
        self.kernel_speaks(node, slot, frame.len > 0 || frame.kind == Kind::Third);
    }

    /// What the kernel has to say and may; an ACK at least, if one is due.
    pub(crate) fn kernel_speaks(&mut self, node: usize, slot: usize, due: bool) {
        let mut silent = true;
        loop {
            let flow = self.flow(node, slot);
            let ready = flow.script.answers(flow.rcv_nxt);
            let edge = (flow.snd_una + WINDOW).min(ready);
            let len = edge.saturating_sub(flow.snd_nxt).min(MSS);
            if len == 0 {
                break;
            }
            let seq = flow.snd_nxt;
            flow.snd_nxt += len;
            silent = false;
            self.owner_own(node, slot, seq, len);
        }
        let flow = self.flow(node, slot);
        let (seq, open) = (flow.snd_nxt, flow.snd_nxt > flow.snd_una);
        if silent && due {
            self.owner_own(node, slot, seq, 0);
        }
        if open {
            self.arm(node, slot);
        }
    }

    /// A retransmission timer, unless one is under way.
    pub(crate) fn arm(&mut self, node: usize, slot: usize) {
        let now_ns = self.now_ns;
        let flow = self.flow(node, slot);
        if !flow.rto.queued {
            flow.rto.queued = true;
            flow.rto.at_ns = now_ns + RTO_NS;
            let irs = flow.irs;
            self.queue
                .push(now_ns + RTO_NS, Happening::Repeat { node, slot, irs });
        }
    }

    pub(crate) fn repeat(&mut self, node: usize, slot: usize, irs: u32) {
        if self.is_single(slot) {
            return self.single_repeats(node, slot, irs);
        }
        let (now_ns, share) = (self.now_ns, self.share_of(slot));
        let owns = self.is_owner(node, share);
        let flow = self.flow(node, slot);
        if flow.irs != irs {
            return;
        }
        flow.rto.queued = false;
        if flow.is_over() {
            return;
        }
        if !owns {
            self.arm(node, slot);
            return;
        }
        if now_ns < flow.rto.at_ns {
            flow.rto.queued = true;
            let at_ns = flow.rto.at_ns;
            self.queue
                .push(at_ns, Happening::Repeat { node, slot, irs });
            return;
        }
        if !flow.socket {
            self.close_dead(node, slot);
        } else if flow.snd_nxt > flow.snd_una {
            flow.snd_nxt = flow.snd_una;
            self.kernel_speaks(node, slot, false);
        }
        let flow = self.flow(node, slot);
        if !flow.is_over() && flow.snd_nxt > flow.snd_una || !flow.socket {
            self.arm(node, slot);
        }
    }

    /// The kernel of a dead process says goodbye, when it can be heard.
    fn close_dead(&mut self, node: usize, slot: usize) {
        let share = self.share_of(slot);
        if self.is_orphaned(node, slot) || !self.can_speak(node, share) {
            return;
        }
        let irs = self.flow(node, slot).irs;
        self.end(node, slot);
        self.speak(
            node,
            share,
            Frame::bare(Kind::Reset(Why::NoTaker), slot, irs),
        );
    }

    /// gw_is_orphaned
    pub(crate) fn is_orphaned(&mut self, node: usize, slot: usize) -> bool {
        let died = self.hosts[node].kernel.entries[self.share_of(slot)].died;
        let held = self.is_held(died, self.clock(node));
        let flow = self.flow(node, slot);
        flow.orphaned &= held;
        flow.orphaned
    }

    /// gw_owner_own, gw_gate_own: a segment of our kernel.
    fn owner_own(&mut self, node: usize, slot: usize, seq: u32, len: u32) {
        let share = self.share_of(slot);
        if !self.is_owner(node, share)
            || self.is_silenced(node, share)
            || self.is_orphaned(node, slot)
        {
            return;
        }
        // gw_follow: a timer of the kernel may be first after a turn
        let flow = self.hosts[node].kernel.flows[slot];
        if flow.twin && !flow.is_given_up() {
            self.adopt(node, slot);
        }
        let generation = self.hosts[node].kernel.entries[share].generation;
        let open = self.plan.mutant == Some(Mutant::NoGate);
        let flow = self.flow(node, slot);
        let (mut ack, irs, iss) = (flow.rcv_nxt, flow.irs, flow.iss);
        if flow.is_gated(generation) && !open {
            ack = flow.rcv_nxt.min(flow.gate.twin_ack).max(flow.gate.told_ack);
            if len == 0 && ack < flow.rcv_nxt && ack == flow.gate.told_ack {
                flow.gate.owed = true;
                self.said(node, slot, ack);
                return;
            }
            self.said(node, slot, ack);
        } else {
            flow.gate.told_ack = ack;
        }
        let kind = Kind::Service;
        self.speak(
            node,
            share,
            Frame {
                kind,
                slot,
                irs,
                iss,
                seq,
                len,
                ack,
            },
        );
    }

    /// gw_said: books what the client is told now.
    fn said(&mut self, node: usize, slot: usize, ack: u32) {
        let now = self.clock(node);
        let flow = self.flow(node, slot);
        let moved = ack > flow.gate.told_ack;
        flow.gate.told_ack = ack;
        if ack >= flow.rcv_nxt {
            flow.gate.held = None;
            return;
        }
        if moved || flow.gate.held.is_none() {
            flow.gate.held = Some(now);
        }
        self.watch(node, slot, LAG_LIMIT_NS);
    }

    /// The twin's acknowledgement: more may be said.
    fn gate_twin_ack(&mut self, node: usize, frame: Frame) {
        let (slot, share) = (frame.slot, self.share_of(frame.slot));
        let generation = self.hosts[node].kernel.entries[share].generation;
        let flow = self.flow(node, slot);
        let rejoining = flow.is_rejoining(generation);
        if flow.irs != frame.irs
            || flow.is_over()
            || !flow.is_gated(generation) && !rejoining
            || frame.ack < flow.gate.twin_ack
        {
            return;
        }
        flow.gate.twin_ack = frame.ack;
        if rejoining {
            self.follow_rejoin(node, slot);
        }
        let flow = self.flow(node, slot);
        let confirmed = flow.phase == Phase::Confirming && flow.gate.twin_ack >= flow.gate.told_ack;
        if confirmed {
            flow.phase = Phase::Protected;
        }
        let ack = flow.rcv_nxt.min(flow.gate.twin_ack).max(flow.gate.told_ack);
        let news = ack > flow.gate.told_ack || flow.gate.owed;
        flow.gate.owed &= !news;
        if confirmed {
            self.tell(node, slot, FlowEventKind::Confirmed);
        }
        if news {
            self.said(node, slot, ack);
            self.say_ack(node, slot, ack);
        }
    }

    /// An ACK that Godwit itself makes.
    pub(crate) fn say_ack(&mut self, node: usize, slot: usize, ack: u32) {
        let share = self.share_of(slot);
        let flow = self.flow(node, slot);
        let frame = Frame {
            kind: Kind::Service,
            slot,
            irs: flow.irs,
            iss: flow.iss,
            seq: flow.snd_nxt,
            len: 0,
            ack,
        };
        self.speak(node, share, frame);
    }

    /// A segment of the client, through the tap.
    fn shadow_client(&mut self, node: usize, frame: Frame) {
        let slot = frame.slot;
        let entry = self.hosts[node].kernel.entries[self.share_of(slot)];
        if frame.kind == Kind::Syn {
            // gw_shadow_syn: of this connection, or of one before it
            if frame.irs <= self.hosts[node].kernel.flows[slot].irs {
                return;
            }
            let old = self.hosts[node].kernel.halves[slot];
            let again = old.irs == frame.irs && old.tapped && old.generation == entry.generation;
            if !again || !old.answered {
                self.hosts[node].kernel.halves[slot] = Half {
                    irs: frame.irs,
                    generation: entry.generation,
                    tapped: true,
                    not_in_sync: old.irs == frame.irs && old.not_in_sync,
                    ..Half::default()
                };
            }
            return;
        }
        let flow = self.hosts[node].kernel.flows[slot];
        let half = self.hosts[node].kernel.halves[slot];
        if flow.irs == 0 || flow.is_over() {
            if !half.is_third_ack(frame) || half.generation != entry.generation {
                return;
            }
            self.begin(node, frame, half);
            self.materialise(node, slot);
        } else if flow.irs != frame.irs || flow.phase == Phase::Closed {
            return;
        }
        let bears = entry.listening && !self.is_barren(node, slot);
        let flow = self.flow(node, slot);
        if !flow.socket {
            // gw_shadow_retry
            flow.socket = bears && frame.seq == 0 && frame.ack == 0;
            if !flow.socket {
                return;
            }
        }
        flow.take(frame);
        let (irs, ack) = (flow.irs, flow.rcv_nxt);
        let answered = flow.snd_una == flow.script.answered();
        if frame.kind == Kind::Fin && ack == flow.script.asked() && answered {
            self.end(node, slot);
        }
        if let Some(owner) = entry.peer {
            let twin_ack = Frame {
                ack,
                ..Frame::bare(Kind::TwinAck, slot, irs)
            };
            self.send_frame(node, owner, twin_ack);
        }
    }

    /// A segment of the owner, cloned to us.
    fn shadow_owner(&mut self, node: usize, frame: Frame) {
        let slot = frame.slot;
        let flow = self.hosts[node].kernel.flows[slot];
        if frame.kind == Kind::SynAck {
            let half = &mut self.hosts[node].kernel.halves[slot];
            if half.irs != frame.irs {
                return;
            }
            half.answered = true;
            half.iss = frame.iss;
            if flow.irs != 0 && flow.irs != frame.irs {
                self.end(node, slot);
            }
        } else if flow.irs == frame.irs && !flow.is_over() {
            self.end(node, slot);
        }
    }

    /// gw_end
    pub(crate) fn end(&mut self, node: usize, slot: usize) {
        let now_ns = self.now_ns;
        let flow = self.flow(node, slot);
        if !flow.is_over() {
            flow.phase = Phase::Ended;
            flow.gate.gated = false;
            flow.ended_ns = now_ns;
            flow.changed = true;
        }
    }

    pub(crate) fn tell(&mut self, node: usize, slot: usize, kind: FlowEventKind) {
        let flow = &self.hosts[node].kernel.flows[slot];
        let event = FlowEvent {
            share: Self::share_id(self.share_of(slot)),
            flow: flow_id(slot, flow.irs),
            generation: flow.generation,
            kind,
        };
        self.report(node, event);
    }

    /// gw_watch: arms the watchdog unless it is.
    fn watch(&mut self, node: usize, slot: usize, in_ns: u64) {
        let at_ns = self.now_ns + in_ns;
        let flow = self.flow(node, slot);
        if !flow.gate.watched {
            flow.gate.watched = true;
            let irs = flow.irs;
            self.queue.push(at_ns, Happening::Watch { node, slot, irs });
        }
    }

    /// gw_watchdog
    pub(crate) fn watchdog(&mut self, node: usize, slot: usize, irs: u32) {
        let entry = self.hosts[node].kernel.entries[self.share_of(slot)];
        let now = self.clock(node);
        let flow = self.flow(node, slot);
        if flow.irs != irs {
            return;
        }
        flow.gate.watched = false;
        if flow.is_over() || entry.role != Role::Owner || !flow.is_gated(entry.generation) {
            return;
        }
        if flow.phase == Phase::Confirming {
            let age_ns = u64::try_from(now.since(flow.born).as_nanos()).unwrap_or(u64::MAX);
            let (kind, next_ns) = if age_ns < START_LIMIT_NS {
                (FlowEventKind::Unconfirmed, START_LIMIT_NS - age_ns)
            } else {
                (FlowEventKind::NotConfirmed, LAG_LIMIT_NS)
            };
            self.tell(node, slot, kind);
            self.watch(node, slot, next_ns);
            return;
        }
        let Some(held) = flow.gate.held else {
            return;
        };
        let held_ns = u64::try_from(now.since(held).as_nanos()).unwrap_or(u64::MAX);
        if held_ns < LAG_LIMIT_NS {
            self.watch(node, slot, LAG_LIMIT_NS - held_ns);
        } else {
            self.tell(node, slot, FlowEventKind::Stalled);
            self.watch(node, slot, LAG_LIMIT_NS);
        }
    }

    /// What a digest says.
    pub(crate) fn changed_flows(&mut self, node: usize, share: usize) -> Vec<DigestEntry> {
        let generation = self.hosts[node].kernel.entries[share].generation;
        let mut changes = Vec::new();
        for slot in self.slots_of(share) {
            let flow = self.flow(node, slot);
            if flow.changed && flow.is_tapped(generation) {
                flow.changed = false;
                changes.push(DigestEntry {
                    flow: flow_id(slot, flow.irs),
                    snd_una: SeqNumber(flow.snd_una),
                    snd_nxt: SeqNumber(flow.snd_nxt),
                    rcv_nxt: SeqNumber(flow.rcv_nxt),
                    ended: flow.is_over(),
                });
            }
        }
        changes
    }
}
