//! Connections that go to another server one by one: `driver/handoff` of the agent,
//! `gw_handoff.h` of the data path, and the sockets of `godwit-sock`.
//!
//! Clients reach the first server. What an entry says of a connection outlives the
//! agent; sockets that were stopped do too, those that were made of bytes do not.

use godwit_core::handoff::{Order, Place, Step, Written};
use godwit_core::node::{HandoffReport, HandoffWork, Resume};
use godwit_core::{Action, Command, Fencing, FlowPolicy, PeerId, ShareAction, ShareConfig};
use godwit_wire::{
    Epoch, FlowId, Generation, HandoffId, HandoffMessage, HandoffRefusal, HandoffStep, Message,
    Role, ShareId,
};
use std::time::Duration;

use crate::flow::{Frame, Kind, MSS, Script, WINDOW, Why};
use crate::host::{Input, node_of, peer_of};
use crate::mutant::Mutant;
use crate::plan::{MS, SERVERS};
use crate::world::{Happening, World, flow_id, name, slot_of};

/// Where clients find the service.
const HOME: usize = 0;

/// The share of each server: that of the other is none of its own.
const SHARES: [ShareId; SERVERS] = [ShareId(8), ShareId(9)];

/// Retransmission time-out of a service.
const RTO_NS: u64 = 40 * MS;

/// Orders that a kernel does not carry out, per mille.
const REFUSED: u64 = 20;

/// The most segments that wait for a socket.
const MAX_HELD: usize = 64;

/// What the data path is told of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Way {
    /// Nothing: it is where its handshake was.
    #[default]
    Home,
    Held,
    Away(usize),
    Here,
}

/// Whether a socket may be heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    Speaks,
    /// It was stopped, to become bytes.
    Stopped,
    /// It was made of bytes.
    Made,
}

#[derive(Debug, Clone, Copy)]
struct Socket {
    voice: Voice,
    rcv_nxt: u32,
    snd_una: u32,
    snd_nxt: u32,
    /// In true time.
    rto_ns: u64,
}

/// One connection on one host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Single {
    way: Way,
    socket: Option<Socket>,
    parts: Vec<u8>,
    held: Vec<Frame>,
    written: Option<Written>,
    repeats: bool,
}

/// A connection, and what its client was told.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Told {
    slot: usize,
    script: Script,
    ack: u32,
    /// A server that knew of it has crashed: it may be lost.
    at_risk: bool,
    /// A server has heard its client out.
    over: bool,
}

impl Socket {
    fn bytes(self) -> Vec<u8> {
        [self.rcv_nxt, self.snd_una, self.snd_nxt]
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect()
    }

    fn made(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_be_bytes(word))
        };
        Some(Self {
            voice: Voice::Made,
            rcv_nxt: word(0)?,
            snd_una: word(4)?,
            snd_nxt: word(8)?,
            rto_ns: 0,
        })
    }
}

impl World {
    pub(crate) const fn is_single(&self, slot: usize) -> bool {
        slot >= self.plan.shares * self.plan.slots
    }

    fn told(&self, irs: u32) -> Told {
        self.audit.singles.get(&irs).copied().unwrap_or_default()
    }

    /// The share of a server's own connections, as its agent is configured.
    pub(crate) fn single_shares(&self, node: usize) -> Vec<ShareConfig> {
        let epoch = self
            .hosts
            .get(node)
            .map_or(Epoch::NONE, |host| host.kernel.singles_epoch);
        let share = |home: usize| ShareConfig {
            id: SHARES[home],
            name: String::new(),
            primary: name(home),
            mates: Vec::new(),
            backups: Vec::new(),
            fencing: Fencing::None,
            server_lost_hold: Duration::ZERO,
            policy: FlowPolicy::default(),
            flap_limit: 0,
            failback: None,
            paths: 0,
            moves_within: Some(SHARES[HOME]),
            resume: (epoch != Epoch::NONE).then_some(Resume {
                role: Role::Owner,
                epoch,
                generation: Generation::NONE,
                expiry: None,
                other: None,
            }),
        };
        let some = self.plan.singles > 0 && node < SERVERS;
        (0..SERVERS).filter(|_| some).map(share).collect()
    }

    /// What is done for such a share; the rest is given back.
    pub(crate) fn carry_out_single(&mut self, node: usize, action: Action) -> Option<Action> {
        if let Action::Handoff(_, work) = action {
            self.trace(|_| format!("{node}: {work:?}"));
            self.work(node, work);
            return None;
        }
        if let Action::Share(share, ShareAction::Set { role, epoch, .. }) = &action
            && SHARES.contains(share)
        {
            let owns = *role == Role::Owner;
            self.hosts[node].kernel.singles_epoch = if owns { *epoch } else { Epoch::NONE };
            return None;
        }
        if let Action::Share(share, ShareAction::EndFlows { .. }) = &action
            && SHARES.contains(share)
        {
            self.hosts[node].kernel.singles.clear();
            return None;
        }
        let announces = matches!(&action, Action::Share(share, ShareAction::Announce) if SHARES.contains(share));
        (!announces).then_some(action)
    }

    fn work(&mut self, node: usize, work: HandoffWork) {
        match work {
            HandoffWork::State { id, part } => self.single(node, id.flow).parts.extend(part),
            HandoffWork::Held { flow, packet } => {
                let (slot, irs) = slot_of(flow);
                if let Some(frame) = unpack(&packet, slot, irs) {
                    self.single_hears(node, frame);
                }
            }
            HandoffWork::Ended { outcome, .. } => self.tally.singles += u64::from(outcome.is_ok()),
            HandoffWork::Obey { order, written } => self.obey_single(node, order, written),
        }
    }

    fn single(&mut self, node: usize, flow: FlowId) -> &mut Single {
        let (_, irs) = slot_of(flow);
        self.hosts[node].kernel.singles.entry(irs).or_default()
    }

    fn obey_single(&mut self, node: usize, order: Order, written: Option<Written>) {
        if let Some(written) = written
            && self.plan.mutant != Some(Mutant::NoNote)
        {
            self.single(node, order.flow()).written = Some(written);
        }
        let refused = self.random.chance(REFUSED);
        let result = |why| if refused { Err(why) } else { Ok(()) };
        match order {
            Order::Say { to, id, step } => {
                debug_assert_eq!(step, Step::State, "the others are messages");
                self.say_state(node, to, id);
            }
            Order::Hold { id, .. } => {
                let held = result(HandoffRefusal::NoServer);
                if held.is_ok() {
                    let single = self.single(node, id.flow);
                    (single.way, single.parts) = (Way::Held, Vec::new());
                }
                self.report_single(node, HandoffReport::Held(id, held));
            }
            Order::Freeze { id, to } => {
                let to = node_of(node, to);
                let now = self.hosts[node].clock.read(self.now_ns);
                let single = self.single(node, id.flow);
                let frozen = match &mut single.socket {
                    Some(socket) if socket.voice == Voice::Speaks && !refused => {
                        socket.voice = Voice::Stopped;
                        single.way = Way::Away(to);
                        Ok(now)
                    }
                    Some(_) | None => Err(HandoffRefusal::NotMovable),
                };
                self.report_single(node, HandoffReport::Frozen(id, frozen));
            }
            Order::Restore(id) => {
                let single = self.single(node, id.flow);
                let made = Socket::made(&single.parts).filter(|_| !refused);
                single.socket = made.or(single.socket);
                let restored = made.map(drop).ok_or(HandoffRefusal::NotRestored);
                self.report_single(node, HandoffReport::Restored(id, restored));
            }
            Order::Commit { .. } => {}
            Order::Place(id) => self.place(node, id),
            Order::Thaw(id) | Order::Reclaim(id) => self.thaw(node, id.flow),
            Order::Lose(id) => self.lose(node, id.flow),
            Order::Release(id) => self.single(node, id.flow).socket = None,
            Order::Discard { id, from, moved } => self.discard(node, id, from, moved),
            Order::Forget(flow) => {
                let (_, irs) = slot_of(flow);
                self.hosts[node].kernel.singles.remove(&irs);
            }
            Order::Look { id, from } => {
                let (_, irs) = slot_of(id.flow);
                let single = self.hosts[node].kernel.singles.get(&irs);
                if single.is_none_or(|single| single.socket.is_none()) {
                    self.report_single(node, HandoffReport::Absent { id, from });
                }
            }
        }
    }

    /// The worker's answer takes its time.
    fn report_single(&mut self, node: usize, report: HandoffReport) {
        let delay_ns = self.random.between(20_000, 800_000);
        self.tell_later(node, delay_ns, Input::Handoff(SHARES[node], report));
    }

    fn say_state(&mut self, node: usize, to: PeerId, id: HandoffId) {
        let socket = self.single(node, id.flow).socket;
        let bytes = socket.map(Socket::bytes).unwrap_or_default();
        let half = bytes.len() / 2;
        for (last, part) in [(false, &bytes[..half]), (true, &bytes[half..])] {
            let part = part.to_vec();
            self.say_single(node, to, id, HandoffStep::State { last, part });
        }
    }

    fn say_single(&mut self, node: usize, to: PeerId, id: HandoffId, step: HandoffStep) {
        let message = Message::Handoff(HandoffMessage {
            share: SHARES[HOME],
            epoch: Epoch::NONE,
            id,
            step,
        });
        self.send_message(node, node_of(node, to), message);
    }

    fn place(&mut self, node: usize, id: HandoffId) {
        let single = self.single(node, id.flow);
        single.way = Way::Here;
        let held = std::mem::take(&mut single.held);
        self.give_voice(node, id.flow, Voice::Made);
        for frame in held {
            self.single_hears(node, frame);
        }
        let (slot, irs) = slot_of(id.flow);
        self.single_speaks(node, slot, irs, true);
        self.report_single(node, HandoffReport::Placed(id));
    }

    fn thaw(&mut self, node: usize, flow: FlowId) {
        let single = self.single(node, flow);
        let came = single
            .written
            .is_some_and(|written| written.place == Place::Here);
        single.way = if came { Way::Here } else { Way::Home };
        if single
            .socket
            .is_some_and(|socket| socket.voice == Voice::Stopped)
        {
            self.give_voice(node, flow, Voice::Stopped);
            let (slot, irs) = slot_of(flow);
            self.single_speaks(node, slot, irs, true);
        }
    }

    /// Nobody knows how far it went elsewhere: its client asks again, and is reset.
    fn lose(&mut self, node: usize, flow: FlowId) {
        let (slot, irs) = slot_of(flow);
        self.tally.lost += 1;
        self.hosts[node].kernel.singles.remove(&irs);
        if !self.told(irs).at_risk {
            self.violate(|_| format!("{node} loses slot {slot}, whose target knows of it"));
        }
    }

    /// A silent socket may be heard: no other is, and it has what clients were told.
    fn give_voice(&mut self, node: usize, flow: FlowId, was: Voice) {
        let (slot, irs) = slot_of(flow);
        let told = self.told(irs);
        let Some(socket) = self.single(node, flow).socket.as_mut() else {
            return self.violate(|_| format!("{node} has no socket to place, slot {slot}"));
        };
        let (voice, has) = (socket.voice, socket.rcv_nxt);
        socket.voice = Voice::Speaks;
        if voice != was {
            self.violate(|_| format!("{node} lets slot {slot} speak, which was {voice:?}"));
        } else if has < told.ack {
            let ack = told.ack;
            self.violate(|_| format!("{node} goes on with {has} bytes of slot {slot}, {ack} told"));
        }
    }

    fn discard(&mut self, node: usize, id: HandoffId, from: PeerId, moved: Option<PeerId>) {
        let to = node_of(node, moved.unwrap_or(from));
        let single = self.single(node, id.flow);
        if single
            .socket
            .is_some_and(|socket| socket.voice == Voice::Made)
        {
            single.socket = None;
        }
        single.way = Way::Away(to);
        let held = std::mem::take(&mut single.held);
        for frame in held {
            let packet = pack(frame);
            self.say_single(node, from, id, HandoffStep::Held { packet });
        }
    }

    /// An agent starts: what an earlier one has decided, and what it had not.
    pub(crate) fn resume_singles(&mut self, node: usize) {
        let known: Vec<_> = self.hosts[node].kernel.singles.keys().copied().collect();
        for irs in known {
            let slot = self.told(irs).slot;
            let Some(single) = self.hosts[node].kernel.singles.get(&irs) else {
                continue;
            };
            let (flow, written) = (flow_id(slot, irs), single.written);
            let held = single.way == Way::Held;
            let here = written.is_some_and(|written| written.place == Place::Here);
            let away = written.and_then(|written| match written.place {
                Place::Committed { to, .. } | Place::Moved { to, .. } => Some(to),
                Place::Elsewhere | Place::Here => None,
            });
            let over = single.way == Way::Here && single.socket.is_none();
            if let Some(written) = written.filter(|_| !(held && here)) {
                self.tell_single(node, HandoffReport::Resumed(flow, written));
            }
            if held {
                let epoch = written.map(|written| written.spent).unwrap_or_default();
                let id = HandoffId { flow, epoch };
                self.hosts[node]
                    .kernel
                    .singles
                    .entry(irs)
                    .or_default()
                    .held
                    .clear();
                self.discard(node, id, peer_of(node, 1 - node), away);
            } else if over {
                self.report_single(node, HandoffReport::Ended(flow));
            } else if away.is_none() && matches!(self.single(node, flow).way, Way::Away(_)) {
                self.thaw(node, flow);
            }
        }
    }

    fn tell_single(&mut self, node: usize, report: HandoffReport) {
        self.answer(node, |agent, now| {
            agent.handle_handoff_report(SHARES[node], report, now);
        });
    }

    /// Somebody wants a connection to be elsewhere.
    pub(crate) fn wish(&mut self) {
        let next_ns = self.now_ns + self.random.spread(2 * MS, 200 * MS);
        if self.open {
            self.queue.push(next_ns, Happening::Wish);
        }
        let node = usize::try_from(self.random.below(SERVERS as u64)).unwrap_or(0);
        if !self.hosts[node].thinks() {
            return;
        }
        let speaking = |(irs, single): (&u32, &Single)| {
            let speaks = single
                .socket
                .is_some_and(|socket| socket.voice == Voice::Speaks);
            speaks.then_some(*irs)
        };
        let mine: Vec<_> = self.hosts[node]
            .kernel
            .singles
            .iter()
            .filter_map(speaking)
            .collect();
        if mine.is_empty() {
            return;
        }
        let irs = self.random.pick(&mine);
        let slot = self.told(irs).slot;
        let (share, flow) = (SHARES[node], flow_id(slot, irs));
        let to = peer_of(node, 1 - node);
        let flows = vec![flow];
        self.command(node, Command::MoveFlows { share, flows, to });
    }

    /// A host is gone, with all that it has.
    pub(crate) fn lose_singles(&mut self, node: usize) {
        for irs in self.hosts[node].kernel.singles.keys() {
            self.audit.singles.entry(*irs).or_default().at_risk = true;
        }
        self.hosts[node].kernel.singles.clear();
        self.hosts[node].kernel.singles_epoch = Epoch::NONE;
    }

    /// An agent ends, and with it what was not placed: a kernel closes a socket that is
    /// under TCP_REPAIR without a segment (`RestoredSocket` of `godwit-sock`).
    pub(crate) fn end_made(&mut self, node: usize) {
        let is_made = |socket: &mut Socket| socket.voice == Voice::Made;
        for single in self.hosts[node].kernel.singles.values_mut() {
            single.socket.take_if(is_made);
        }
    }

    /// gw_handoff_client: a segment of a client, perhaps by way of the other server.
    pub(crate) fn single_arrives(&mut self, from: usize, node: usize, frame: Frame) {
        if frame.kind == Kind::Syn {
            return self.single_begins(node, frame);
        }
        if frame.kind == Kind::WhoHas {
            // The address stays where it is.
            return;
        }
        let Some(single) = self.hosts[node].kernel.singles.get_mut(&frame.irs) else {
            return self.single_unknown(node, frame);
        };
        match single.way {
            Way::Held => {
                if single.held.len() < MAX_HELD {
                    single.held.push(frame);
                }
            }
            Way::Away(to) => {
                // That would be a circle.
                if to != from {
                    self.send_frame(node, to, frame);
                }
            }
            Way::Home | Way::Here => self.single_hears(node, frame),
        }
    }

    fn single_begins(&mut self, node: usize, frame: Frame) {
        if node != HOME {
            return;
        }
        if !self.audit.singles.contains_key(&frame.irs) {
            let told = Told {
                slot: frame.slot,
                script: self.clients[frame.slot].script,
                ..Told::default()
            };
            self.audit.singles.insert(frame.irs, told);
            let socket = Socket {
                voice: Voice::Speaks,
                rcv_nxt: 0,
                snd_una: 0,
                snd_nxt: 0,
                rto_ns: 0,
            };
            let single = Single {
                socket: Some(socket),
                ..Single::default()
            };
            self.hosts[node].kernel.singles.insert(frame.irs, single);
        }
        if self.hosts[node].kernel.singles.contains_key(&frame.irs) {
            let answer = Frame::bare(Kind::SynAck, frame.slot, frame.irs);
            self.send_frame(node, self.plan.nodes, answer);
        } else {
            self.single_unknown(node, frame);
        }
    }

    /// A kernel without a socket answers with RST.
    fn single_unknown(&mut self, node: usize, frame: Frame) {
        let told = self.told(frame.irs);
        // Of an attempt that was called off: its origin went on to the end, and its target
        // has yet to hear of that.
        let is_left = |socket: Socket| told.over && socket.voice == Voice::Made;
        let lives = self
            .hosts
            .iter()
            .filter_map(|host| host.kernel.singles.get(&frame.irs)?.socket)
            .any(|socket| !is_left(socket));
        if lives && !told.at_risk {
            self.violate(|_| format!("{node} resets slot {}, which lives", frame.slot));
        }
        let gone = Frame::bare(Kind::Reset(Why::ServerDied), frame.slot, frame.irs);
        self.send_frame(node, self.plan.nodes, gone);
    }

    /// The kernel takes a segment of the client, and answers.
    fn single_hears(&mut self, node: usize, frame: Frame) {
        let (slot, irs, now_ns) = (frame.slot, frame.irs, self.now_ns);
        let script = self.told(irs).script;
        let Some(single) = self.hosts[node].kernel.singles.get_mut(&irs) else {
            return;
        };
        let Some(socket) = single
            .socket
            .as_mut()
            .filter(|it| it.voice == Voice::Speaks)
        else {
            return;
        };
        if frame.ack > socket.snd_una {
            socket.rto_ns = now_ns + RTO_NS;
        }
        socket.snd_una = socket.snd_una.max(frame.ack);
        socket.snd_nxt = socket.snd_nxt.max(socket.snd_una);
        if frame.seq <= socket.rcv_nxt {
            socket.rcv_nxt = socket.rcv_nxt.max(frame.seq + frame.len);
        }
        let heard_out = socket.rcv_nxt == script.asked() && socket.snd_una == script.answered();
        if frame.kind == Kind::Fin && heard_out {
            single.socket = None;
            self.audit.singles.entry(irs).or_default().over = true;
            self.report_single(node, HandoffReport::Ended(flow_id(slot, irs)));
            return;
        }
        self.single_speaks(node, slot, irs, frame.len > 0 || frame.kind == Kind::Third);
    }

    /// What the kernel has to say and may; an ACK at least, if one is due.
    fn single_speaks(&mut self, node: usize, slot: usize, irs: u32, due: bool) {
        let script = self.told(irs).script;
        let mut silent = true;
        while let Some(socket) = self.speaking(node, irs) {
            let ready = script.answers(socket.rcv_nxt);
            let edge = (socket.snd_una + WINDOW).min(ready);
            let (seq, ack) = (socket.snd_nxt, socket.rcv_nxt);
            let len = edge.saturating_sub(seq).min(MSS);
            if len == 0 && !(silent && due) {
                break;
            }
            socket.snd_nxt += len;
            silent = false;
            let kind = Kind::Service;
            let frame = Frame {
                kind,
                slot,
                irs,
                iss: 0,
                seq,
                len,
                ack,
            };
            self.single_says(node, frame);
            if len == 0 {
                break;
            }
        }
        let open = self
            .speaking(node, irs)
            .is_some_and(|it| it.snd_nxt > it.snd_una);
        if open {
            self.single_arms(node, slot, irs);
        }
    }

    fn speaking(&mut self, node: usize, irs: u32) -> Option<&mut Socket> {
        let socket = self.hosts[node]
            .kernel
            .singles
            .get_mut(&irs)?
            .socket
            .as_mut()?;
        (socket.voice == Voice::Speaks).then_some(socket)
    }

    /// One voice: nobody else has a socket that may be heard.
    fn single_says(&mut self, node: usize, frame: Frame) {
        if self.speaking(1 - node, frame.irs).is_some() {
            self.violate(|_| format!("two servers speak on slot {}", frame.slot));
        }
        let told = self.audit.singles.entry(frame.irs).or_default();
        told.ack = told.ack.max(frame.ack);
        let client = &mut self.clients[frame.slot];
        if client.irs == frame.irs {
            client.sent_to = client.sent_to.max(frame.seq + frame.len);
        }
        self.send_frame(node, self.plan.nodes, frame);
    }

    fn single_arms(&mut self, node: usize, slot: usize, irs: u32) {
        let at_ns = self.now_ns + RTO_NS;
        if let Some(single) = self.hosts[node].kernel.singles.get_mut(&irs)
            && !single.repeats
        {
            single.repeats = true;
            self.queue
                .push(at_ns, Happening::Repeat { node, slot, irs });
        }
    }

    /// A retransmission timer; a socket that is silent keeps it.
    pub(crate) fn single_repeats(&mut self, node: usize, slot: usize, irs: u32) {
        let now_ns = self.now_ns;
        let Some(single) = self.hosts[node].kernel.singles.get_mut(&irs) else {
            return;
        };
        single.repeats = false;
        let Some(socket) = &mut single.socket else {
            return;
        };
        if socket.voice == Voice::Speaks && socket.rto_ns <= now_ns {
            socket.snd_nxt = socket.snd_una;
            self.single_speaks(node, slot, irs, false);
        }
        self.single_arms(node, slot, irs);
    }
}

/// A segment of a client as bytes.
fn pack(frame: Frame) -> Vec<u8> {
    let kind = u32::from(frame.kind == Kind::Fin);
    [kind, frame.seq, frame.len, frame.ack]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect()
}

fn unpack(bytes: &[u8], slot: usize, irs: u32) -> Option<Frame> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_be_bytes(word))
    };
    Some(Frame {
        kind: if word(0)? == 1 {
            Kind::Fin
        } else {
            Kind::Client
        },
        slot,
        irs,
        iss: 0,
        seq: word(4)?,
        len: word(8)?,
        ack: word(12)?,
    })
}
