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

use super::ground::Ground;
use super::segments;
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

impl Replays {
    /// The entry first; its twin is made by the first byte that is said. Refused
    /// while another connection of the same addresses has a twin: the owner asks
    /// again, if it still has the one that it asked for.
    pub(super) fn restore_twin(
        &mut self,
        ground: &mut Ground,
        share: ShareId,
        generation: Generation,
        restore: &Restore,
    ) {
        let flow = restore.flow();
        if let Ok(Some(old)) = ground.datapath.flows.get(flow.key) {
            let is_ours = old.share != share && old.phase != Phase::Ended;
            if is_ours || !old.gives_way_to(flow) {
                return tracing::warn!(flow = %flow.key, reason = "twin_alive", "no twin can be made");
            }
            // Forgotten before it is ended: its RST is not the new twin's.
            ground.give(old.share, old.id, Order::Forget);
        }
        if let Err(error) = destroy_tcp(ground.voice.ifindex, flow.key) {
            tracing::warn!(flow = %flow.key, error = %error, "socket not ended");
        }
        if let Err(error) = ground
            .datapath
            .twins
            .installer
            .install(share, generation, restore)
        {
            return tracing::warn!(flow = %flow.key, error = %error, "no twin can be made");
        }
        let Some(state) = ground.flow(flow) else {
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
        self.begin_replay(ground, &state, replay, now);
    }

    pub(super) fn feed_twin(
        &mut self,
        ground: &mut Ground,
        flow: FlowId,
        seq: SeqNumber,
        fin: bool,
        input: Vec<u8>,
    ) {
        let Some(state) = ground.flow(flow) else {
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
        match self.replays.get(&flow.key) {
            Some(old) if goes_on(old) => say_replay(ground, &state, old),
            Some(_) | None => self.begin_replay(ground, &state, replay, now),
        }
    }

    /// Only this one: with many, the others have just been looked at.
    fn begin_replay(
        &mut self,
        ground: &mut Ground,
        state: &FlowState,
        replay: Replay,
        now: MonoTime,
    ) {
        say_replay(ground, state, &replay);
        self.insert(replay, now);
    }

    /// Says what twins can take by now.
    pub(super) fn replay(&mut self, ground: &mut Ground, now: MonoTime) {
        let mut replays = std::mem::take(self);
        replays.carry_out(
            now,
            |flow| ground.flow(flow),
            |flow, packet| {
                send(
                    &ground.voice.replayed,
                    &frame_to_self(ground, flow, &packet),
                    flow,
                )
            },
        );
        *self = replays;
    }
}

fn say_replay(ground: &Ground, state: &FlowState, replay: &Replay) {
    replay.say(state, &|flow, packet| {
        send(
            &ground.voice.replayed,
            &frame_to_self(ground, flow, &packet),
            flow,
        );
    });
}

fn frame_to_self(ground: &Ground, flow: &FlowState, packet: &[u8]) -> Vec<u8> {
    segments::frame(ground.voice.mac, flow.client_mac, packet)
}

/// The twin may be served, if it is well.
pub(super) fn admit_twin(ground: &mut Ground, share: ShareId, flow: FlowId) {
    match ground.datapath.orders.give(share, flow, Order::Admit) {
        Ok(()) => ground.node.handle_twin_admitted(share, flow, clock::now()),
        Err(error) => tracing::warn!(flow = %flow.key, error = %error, "twin not admitted"),
    }
}

/// A full queue is met by the next round.
fn send(frames: &FrameSender, frame: &[u8], flow: &FlowState) {
    if let Err(error) = frames.send(frame) {
        tracing::debug!(flow = %flow.id.key, error = %error, "own kernel not told");
    }
}
