//! Re-protection, the standby's side: twins of flows that run already.
//!
//! The log is said to our own kernel as the client said it. A twin takes no
//! more than its window, so the rest waits here.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_bpf::{FlowState, Order, Phase};
use godwit_core::MonoTime;
use godwit_core::rejoin::pace::{FIRST_PAUSE, Pace};
use godwit_sock::{FrameSender, destroy_tcp};
use godwit_wire::{FlowId, FlowKey, Generation, Restore, SeqNumber, ShareId};

use super::{Driver, segments};
use crate::clock;

/// How often a twin is looked at that has not taken all. Said to is one that has taken
/// something since; one that has not, more and more seldom.
const INTERVAL: Duration = FIRST_PAUSE;

/// A twin that takes nothing for so long is left to its owner, which feeds it
/// again or gives it up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of the log in one segment: with all headers below every MTU.
const SEGMENT: usize = 1200;

/// Segments said at once; the twin's ACK of the last comes before the next.
const BURST: usize = 64;

/// The twins that have not taken all of their logs.
#[derive(Debug, Default)]
pub(super) struct Replays {
    replays: BTreeMap<FlowKey, Replay>,
    due: MonoTime,
}

#[derive(Debug)]
struct Replay {
    flow: FlowId,
    /// Where the twin was born; sequence number of the first byte of `input`.
    base: SeqNumber,
    base_ack: SeqNumber,
    input: Vec<u8>,
    fin: bool,
    /// The client's latest TSval: no segment may look older than the tap's.
    ts_val: u32,
    until: MonoTime,
    pace: Pace<Taken>,
}

/// How far a twin is: whether it has been heard, what it has, and what it has room for.
type Taken = (bool, SeqNumber, SeqNumber);

const fn taken(state: &FlowState) -> Taken {
    (state.twin_seen, state.rcv_nxt, state.rcv_edge)
}

impl Replays {
    /// When to look next; `None` if there is nothing to say.
    pub(super) fn due(&self) -> Option<MonoTime> {
        (!self.replays.is_empty()).then_some(self.due)
    }

    /// Begins one; its twin has been told what it can take.
    fn insert(&mut self, replay: Replay, now: MonoTime) {
        if self.replays.is_empty() {
            self.due = now.saturating_add(INTERVAL);
        }
        self.replays.insert(replay.flow.key, replay);
    }

    /// Says what the twins can take.
    pub(super) fn carry_out(
        &mut self,
        now: MonoTime,
        flow: impl Fn(FlowId) -> Option<FlowState>,
        say: impl Fn(&FlowState, Vec<u8>),
    ) {
        self.due = now.saturating_add(INTERVAL);
        self.replays.retain(|_, replay| {
            let Some(state) = flow(replay.flow).filter(|state| state.phase == Phase::Twin) else {
                return false;
            };
            if replay.pace.is_due(taken(&state), now) {
                replay.say(&state, &say);
            }
            !replay.is_done(&state) && now < replay.until
        });
    }
}

impl Replay {
    fn end(&self) -> SeqNumber {
        self.base + u32::try_from(self.input.len()).unwrap_or(u32::MAX) + u32::from(self.fin)
    }

    fn is_done(&self, state: &FlowState) -> bool {
        state.twin_seen && state.rcv_nxt.ge(self.end())
    }

    /// From what the twin has to the end of its window.
    fn say(&self, state: &FlowState, say: &impl Fn(&FlowState, Vec<u8>)) {
        let at = state.rcv_nxt.checked_distance(self.base).unwrap_or(0);
        let room = state.rcv_edge.checked_distance(self.base).unwrap_or(0);
        let rest = self.input.get(at as usize..).unwrap_or_default();
        let window = (room.saturating_sub(at) as usize).min(rest.len());
        let rest = rest.get(..window).unwrap_or_default();
        let (mut at, last) = (at, at as usize + window == self.input.len());
        let mut pieces = rest.chunks(SEGMENT).take(BURST).peekable();
        if pieces.peek().is_none() && (!state.twin_seen || (last && self.fin)) {
            self.say_one(state, at, &[], last && self.fin, say);
        }
        for piece in pieces {
            let fin = self.fin && last && at as usize + piece.len() == self.input.len();
            self.say_one(state, at, piece, fin, say);
            at += u32::try_from(piece.len()).unwrap_or(0);
        }
    }

    fn say_one(
        &self,
        state: &FlowState,
        at: u32,
        payload: &[u8],
        fin: bool,
        say: &impl Fn(&FlowState, Vec<u8>),
    ) {
        let ack = if at == 0 {
            self.base_ack
        } else {
            state.snd_nxt
        };
        let packet = segments::replay(state, (self.base + at, ack), self.ts_val, payload, fin);
        if let Some(packet) = packet {
            say(state, packet);
        }
    }
}

impl Driver {
    /// The entry first; its twin is made by the first byte that is said. Refused
    /// while another connection of the same addresses has a twin: the owner asks
    /// again, if it still has the one that it asked for.
    pub(super) fn restore_twin(
        &mut self,
        share: ShareId,
        generation: Generation,
        restore: &Restore,
    ) {
        let flow = restore.flow();
        if let Ok(Some(old)) = self.ground.datapath.flows.get(flow.key) {
            let is_ours = old.share != share && old.phase != Phase::Ended;
            if is_ours || !old.gives_way_to(flow) {
                return tracing::warn!(flow = %flow.key, reason = "twin_alive", "no twin can be made");
            }
            // Forgotten before it is ended: its RST is not the new twin's.
            self.ground.give(old.share, old.id, Order::Forget);
        }
        if let Err(error) = destroy_tcp(self.ground.voice.ifindex, flow.key) {
            tracing::warn!(flow = %flow.key, error = %error, "socket not ended");
        }
        if let Err(error) = self
            .ground
            .datapath
            .installer
            .install(share, generation, restore)
        {
            return tracing::warn!(flow = %flow.key, error = %error, "no twin can be made");
        }
        let Some(state) = self.ground.flow(flow) else {
            return;
        };
        let now = clock::now();
        let replay = Replay {
            flow,
            base: restore.base,
            base_ack: restore.base_ack,
            input: restore.input.clone(),
            fin: restore.fin,
            ts_val: restore.ts_val,
            until: now.saturating_add(PATIENCE),
            pace: Pace::new(taken(&state), now),
        };
        self.begin_replay(&state, replay, now);
    }

    pub(super) fn feed_twin(&mut self, flow: FlowId, seq: SeqNumber, fin: bool, input: Vec<u8>) {
        let Some(state) = self.ground.flow(flow) else {
            return;
        };
        let now = clock::now();
        let replay = Replay {
            flow,
            base: seq,
            base_ack: state.snd_nxt,
            input,
            fin,
            ts_val: state.ts.map_or(0, |ts| ts.client_val),
            until: now.saturating_add(PATIENCE),
            pace: Pace::new(taken(&state), now),
        };
        // What has not been said yet of the first log comes with this again.
        let goes_on = |old: &Replay| old.base.lt(seq) && !old.is_done(&state);
        match self.replays.replays.get(&flow.key) {
            Some(old) if goes_on(old) => self.say_replay(&state, old),
            Some(_) | None => self.begin_replay(&state, replay, now),
        }
    }

    /// Only this one: with many, the others have just been looked at.
    fn begin_replay(&mut self, state: &FlowState, replay: Replay, now: MonoTime) {
        self.say_replay(state, &replay);
        self.replays.insert(replay, now);
    }

    fn say_replay(&self, state: &FlowState, replay: &Replay) {
        replay.say(state, &|flow, packet| {
            send(
                &self.ground.voice.replayed,
                &self.frame_to_self(flow, &packet),
                flow,
            );
        });
    }

    /// Says what twins can take by now.
    pub(super) fn replay(&mut self, now: MonoTime) {
        let mut replays = std::mem::take(&mut self.replays);
        replays.carry_out(
            now,
            |flow| self.ground.flow(flow),
            |flow, packet| {
                send(
                    &self.ground.voice.replayed,
                    &self.frame_to_self(flow, &packet),
                    flow,
                )
            },
        );
        self.replays = replays;
    }

    fn frame_to_self(&self, flow: &FlowState, packet: &[u8]) -> Vec<u8> {
        segments::frame(self.ground.voice.mac, flow.client_mac, packet)
    }

    /// The twin may be served, if it is well.
    pub(super) fn admit_twin(&mut self, share: ShareId, flow: FlowId) {
        match self.ground.datapath.orders.give(share, flow, Order::Admit) {
            Ok(()) => self
                .ground
                .node
                .handle_twin_admitted(share, flow, clock::now()),
            Err(error) => tracing::warn!(flow = %flow.key, error = %error, "twin not admitted"),
        }
    }
}

/// A full queue is met by the next round.
fn send(frames: &FrameSender, frame: &[u8], flow: &FlowState) {
    if let Err(error) = frames.send(frame) {
        tracing::debug!(flow = %flow.id.key, error = %error, "own kernel not told");
    }
}
