//! Re-protection: which flows could have a new twin, and what the standby needs to make one.
//! What the standby does with that is in `replay`.

use std::cell::LazyCell;
use std::time::Duration;

use godwit_bpf::{FlowState, LogState, Order};
use godwit_core::rejoin::{Candidate, Past};
use godwit_core::snapshot::exports::behind;
use godwit_core::snapshot::parcel::Parcel;
use godwit_core::{MonoTime, RejoinAction};
use godwit_wire::{
    FlowId, FlowRecord, Generation, MAX_INPUT_LEN, Negotiated, Restore, Role, SeqNumber, ShareId,
};

use super::ground::Ground;
use super::replay::{Replays, admit_twin};
use super::segments;
use super::snapshots::{NoRoom, Snapshots};
use crate::apps::Places;
use crate::clock;
use crate::reprotect::{self, Obstacle};

/// How often flows are looked for.
const INTERVAL: Duration = Duration::from_millis(50);

/// A scan may take at most this part of the driver's time.
const SHARE_OF_TIME: u32 = 20;

/// Offered at a time; the rest has its turn later.
const MAX_CANDIDATES: usize = 16_384;

/// The hand for running connections that get new twins, of both sides.
#[derive(Debug)]
pub(super) struct Rejoins {
    /// When flows are looked for next.
    due: MonoTime,
    /// The standby's side.
    pub(super) replays: Replays,
}

/// Where a new twin begins.
struct Beginning {
    /// The next byte of the client, and what the client expected there.
    base: SeqNumber,
    base_ack: SeqNumber,
    /// What its server knew there; `None` where the log begins.
    snapshot: Option<Parcel>,
}

impl Rejoins {
    pub(super) fn new(now: MonoTime) -> Self {
        Self {
            due: now,
            replays: Replays::default(),
        }
    }

    /// When [`Rejoins::tick`] has something to do.
    pub(super) fn due(&self) -> MonoTime {
        self.replays.due().map_or(self.due, |due| due.min(self.due))
    }

    pub(super) fn tick(
        &mut self,
        ground: &mut Ground,
        snapshots: &Snapshots,
        is_idle: bool,
        now: MonoTime,
    ) {
        if self.due <= now {
            self.offer(ground, snapshots, is_idle, now);
        }
        if self.replays.due().is_some_and(|due| due <= now) {
            self.replays.replay(ground, now);
        }
    }

    /// What either side is to do for a running flow that gets a twin.
    pub(super) fn carry_out(
        &mut self,
        (ground, snapshots): (&mut Ground, &mut Snapshots),
        share: ShareId,
        action: RejoinAction,
    ) {
        match action {
            RejoinAction::Begin { flow, generation } => {
                begin_rejoin((ground, snapshots), share, flow, generation);
            }
            RejoinAction::FeedLog { flow } => feed_log(ground, share, flow),
            RejoinAction::Protect { flow } => protect(ground, share, flow),
            RejoinAction::Restore {
                generation,
                restore,
            } => {
                let with = (ground, &mut self.replays);
                snapshots.expect_twin(with, share, generation, &restore);
            }
            RejoinAction::Feed {
                flow,
                seq,
                fin,
                input,
            } => self.replays.feed_twin(ground, flow, seq, fin, input),
            RejoinAction::Admit { flow } => admit_twin(ground, share, flow),
        }
    }

    /// Tells the core which flows could be protected again: none while the digests are idle.
    fn offer(&mut self, ground: &mut Ground, snapshots: &Snapshots, is_idle: bool, now: MonoTime) {
        let wanted: Vec<_> = ground
            .shares
            .iter()
            .filter(|(_, share)| {
                share.entry.role == Role::Owner && !share.entry.generation.is_none()
            })
            .map(|(id, share)| (id, share.entry.generation))
            .collect();
        for (share, generation) in wanted {
            let candidates = match is_idle {
                true => Vec::new(),
                false => candidates(ground, snapshots, share, generation),
            };
            ground.node.handle_candidates(share, &candidates, now);
        }
        let took = clock::now().since(now);
        self.due = now.saturating_add(INTERVAL.max(took * SHARE_OF_TIME));
    }
}

fn candidates(
    ground: &Ground,
    snapshots: &Snapshots,
    share: ShareId,
    generation: Generation,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    let kept = ground.is_kept(share);
    // Looked up when the first asks for it: that takes a while where there are many.
    let places = LazyCell::new(|| ground.apps.places());
    let scanned = ground.datapath.flows.for_each(|flow| {
        if flow.share != share || candidates.len() >= MAX_CANDIDATES {
            return;
        }
        // Under way: the core knows, unless an earlier agent began it.
        let past = match reprotect::obstacle(&flow, generation, kept) {
            // It is asked again at the next look, and need not rest.
            Some(Obstacle::Turn) if kept && !can_begin(snapshots, &flow, &places) => return,
            Some(Obstacle::Turn | Obstacle::Twin | Obstacle::CatchUp) => Past::None,
            Some(Obstacle::GivenUp) => Past::Failed,
            Some(Obstacle::Diverged) => Past::Wrong,
            Some(_) | None => return,
        };
        candidates.push(Candidate {
            flow: flow.id,
            past,
        });
    });
    if let Err(error) = scanned {
        tracing::warn!(error = %error, "can't look for flows to protect again");
    }
    candidates
}

/// First the tap, then the log: what comes in between is in both.
fn begin_rejoin(
    (ground, snapshots): (&mut Ground, &mut Snapshots),
    share: ShareId,
    flow: FlowId,
    generation: Generation,
) {
    snapshots.note_rejoin(flow.key);
    let begins = ground
        .flow(flow)
        .map(|state| beginning(ground, snapshots, &state));
    let now = clock::now();
    if matches!(begins, Some(Err(NoRoom))) {
        return ground.node.handle_restore_postponed(share, flow, now);
    }
    let begun = begins.and_then(Result::ok).flatten();
    let begun = begun.and_then(|begins| {
        let order = Order::Rejoin(generation, begins.base_ack);
        match ground.datapath.orders.give(share, flow, order) {
            Ok(()) => Some((restore(ground, share, flow, &begins)?, begins.snapshot)),
            Err(error) => {
                tracing::debug!(flow = %flow.key, error = %error, "no twin can be made");
                None
            }
        }
    });
    let now = clock::now();
    let Some((restore, snapshot)) = begun else {
        return ground.node.handle_restore(share, flow, None, now);
    };
    let restore = Some(Box::new(restore));
    ground.node.handle_restore(share, flow, restore, now);
    if let (Some(snapshot), Some(state)) = (snapshot, ground.flow(flow)) {
        snapshots.send_snapshot(ground, (&state, snapshot), now);
    }
    let delay = snapshots.time_under_way();
    ground.node.handle_restore_delay(share, flow, delay);
}

/// `None` if what a twin would have to hear is not in the log, or not yet.
fn beginning(
    ground: &Ground,
    snapshots: &mut Snapshots,
    flow: &FlowState,
) -> Result<Option<Beginning>, NoRoom> {
    let log = flow.log;
    let kept = ground.is_kept(flow.share);
    let snapshot = if kept {
        snapshots.snapshot_in_log(ground, flow)
    } else {
        Ok(None)
    };
    if let Ok(Some(snapshot)) = snapshot {
        let place = snapshot.exported.place;
        return Ok(Some(Beginning {
            base: behind(flow.birth, place.read),
            base_ack: behind(flow.birth_ack, place.written),
            snapshot: Some(snapshot),
        }));
    }
    if kept && !is_whole(flow) {
        return snapshot.map(|_| None);
    }
    Ok(Some(Beginning {
        base: log.base,
        base_ack: log.base_ack,
        snapshot: None,
    }))
}

/// Whether a twin that is to be kept has where to begin.
fn can_begin(
    snapshots: &Snapshots,
    flow: &FlowState,
    places: &LazyCell<Places, impl FnOnce() -> Places>,
) -> bool {
    let kept = || places.get(&flow.id.key).map_or(&[][..], Vec::as_slice);
    is_whole(flow) || snapshots.has_snapshot_in_log(flow, kept())
}

fn restore(ground: &Ground, share: ShareId, flow: FlowId, begins: &Beginning) -> Option<Restore> {
    let epoch = ground.shares.get(share)?.entry.epoch;
    let state = ground.flow(flow)?;
    let input = input(ground, &state, begins.base)?;
    let now = clock::now();
    Some(Restore {
        record: FlowRecord {
            id: state.id,
            iss: state.iss,
            mss: state.mss,
            snd_wscale: state.snd_wscale,
            rcv_wscale: state.rcv_wscale,
            negotiated: Negotiated {
                wscale: state.wscale,
                sack: state.sack,
                time_stamps: state.ts.is_some(),
                ecn: state.ecn,
            },
            ts_off: state.ts.map_or(0, |ts| ts.offset),
            snd_una: state.snd_una,
            snd_nxt: state.send_next(),
            rcv_nxt: state.rcv_nxt,
            epoch,
        },
        base: begins.base,
        base_ack: begins.base_ack,
        snd_edge: state.snd_edge,
        ts_val: state.ts.map_or(0, |ts| ts.client_val),
        owner_ts: segments::clock_of(&state, now),
        rtt_us: u32::try_from(state.rtt_ns / 1000).unwrap_or(u32::MAX),
        syn_ack_mss: state.syn_ack_mss,
        client_mac: state.client_mac,
        fin: reprotect::has_fin(&state),
        input,
    })
}

/// The log from `from` on; `None` if it is not whole any more.
fn input(ground: &Ground, flow: &FlowState, from: SeqNumber) -> Option<Vec<u8>> {
    let read = ground.datapath.twins.log.read(flow.id, flow.log, from);
    let input = read.unwrap_or_else(|error| {
        tracing::warn!(flow = %flow.id.key, error = %error, "log not read");
        None
    })?;
    // It may have been begun anew meanwhile, or slid.
    let again = ground.flow(flow.id)?;
    (flow.log.goes_on_as(&again.log, from) && input.len() <= MAX_INPUT_LEN).then_some(input)
}

/// What the twin has not acknowledged and the log has.
fn feed_log(ground: &mut Ground, share: ShareId, flow: FlowId) {
    let Some(state) = ground.flow(flow) else {
        return;
    };
    let fin = reprotect::has_fin(&state);
    let from = state.twin_ack;
    if from.ge(state.log.end + u32::from(fin)) {
        return;
    }
    if let Some(input) = input(ground, &state, from.min(state.log.end)) {
        let at = (from.min(state.log.end), fin);
        ground.node.handle_log(share, flow, at, input, clock::now());
    } else if ground
        .flow(flow)
        .is_some_and(|state| lacks_for_good(&state))
    {
        let has = state.twin_ack;
        ground.node.handle_log_gone(share, flow, has, clock::now());
    }
}

/// The standby may have to serve the client from here on: it hears first of
/// what the client was told without it.
fn protect(ground: &mut Ground, share: ShareId, flow: FlowId) {
    let state = ground.flow(flow);
    let word = state.and_then(|state| Some((state, segments::floor_word(&state)?)));
    if let Some((state, word)) = word {
        ground.say_to_standby(&state, &word);
    }
    let outcome = ground.datapath.orders.give(share, flow, Order::Protect);
    if let Err(error) = &outcome {
        tracing::debug!(flow = %flow.key, error = %error, "not protected after all");
    }
    ground
        .node
        .handle_flow_protected(share, flow, outcome.is_ok(), clock::now());
}

/// Whether its twin lacks what the log has no more: its client has said too much since
/// the snapshot.
fn lacks_for_good(flow: &FlowState) -> bool {
    flow.log.state != LogState::Kept || flow.twin_ack.lt(flow.log.base)
}

/// Whether all that was said is in the log: without a snapshot a server begins where
/// the connection does.
fn is_whole(flow: &FlowState) -> bool {
    flow.log.base == flow.id.irs + 1 && flow.log.answered <= reprotect::MAX_OUTPUT
}
