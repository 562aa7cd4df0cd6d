//! Twins of this node while they are silent: what is compared with their owners, what they are
//! told that the tap has missed, and their end.

use std::io;
use std::time::Duration;

use godwit_bpf::{Datapath, Order, OrderError, Phase};
use godwit_core::twin::compare::Comparisons;
use godwit_core::{EndReason, MonoTime, TwinAction};
use godwit_sock::destroy_tcp;
use godwit_wire::{FlowId, FlowKey, SeqNumber, ShareId};

use super::compare::compare;
use super::ground::Ground;
use super::segments;
use crate::clock;

/// A twin whose connection is over at the owner gets this long to end in its
/// own way: its server may still be writing a log line.
const GRACE: Duration = Duration::from_secs(2);

/// The hand for twins of this node while they are silent.
#[derive(Debug)]
pub(super) struct Twins {
    comparisons: Comparisons,
    /// Those that are to end unless they do so themselves.
    farewells: Vec<(MonoTime, ShareId, FlowId)>,
}

impl Twins {
    pub(super) fn new(now: MonoTime) -> Self {
        Self {
            comparisons: Comparisons::new(now),
            farewells: Vec::new(),
        }
    }

    /// When [`Twins::tick`] has something to do. That a twin ends may be a little late.
    pub(super) fn due(&self, now: MonoTime) -> MonoTime {
        self.comparisons.due(now)
    }

    /// Whether a server is stopped: how far its answers have come is no measure.
    pub(super) fn note_standstill(&mut self, stands: bool) {
        self.comparisons.note_standstill(stands);
    }

    pub(super) fn carry_out(&mut self, ground: &Ground, share: ShareId, action: TwinAction) {
        match action {
            TwinAction::Compare { entry } => self.comparisons.expect(share, entry, clock::now()),
            TwinAction::MarkDemoted { flow, reason } => {
                ground.give(share, flow, Order::NotInSync(reason));
            }
            TwinAction::End { flow, reason } => self.end_twin(ground, (share, flow), reason),
            TwinAction::Poke { flow, snd_una } => poke_twin(ground, share, flow, snd_una),
        }
    }

    pub(super) fn tick(&mut self, ground: &mut Ground, now: MonoTime) {
        compare(ground, &mut self.comparisons, now);
        self.end_late(ground, now);
    }

    /// Ends a twin, or gives it time to end.
    fn end_twin(&mut self, ground: &Ground, (share, flow): (ShareId, FlowId), reason: EndReason) {
        // The server of one that is kept has never seen it.
        if reason == EndReason::EndedAtOwner && !ground.is_kept(share) {
            self.expect(share, flow, clock::now());
        } else {
            end_socket(ground.voice.ifindex, &ground.datapath, (share, flow));
        }
    }

    fn expect(&mut self, share: ShareId, flow: FlowId, now: MonoTime) {
        self.farewells
            .push((now.saturating_add(GRACE), share, flow));
    }

    fn end_late(&mut self, ground: &Ground, now: MonoTime) {
        let (ifindex, datapath) = (ground.voice.ifindex, &ground.datapath);
        self.farewells.retain(|(due, share, flow)| {
            if *due <= now && find(datapath, *share, *flow).is_some_and(|it| it != Phase::Ended) {
                end_socket(ifindex, datapath, (*share, *flow));
            }
            *due > now
        });
    }
}

pub(super) fn poke_twin(ground: &Ground, share: ShareId, flow: FlowId, snd_una: SeqNumber) {
    ground.give(share, flow, Order::Acknowledged(snd_una));
    let state = ground.flow(flow).filter(|state| state.share == share);
    let Some(state) = state else { return };
    if state.snd_nxt.ge(snd_una) {
        // It has said it all, and the owner does not know: have it speak.
        ground.inject(&state, segments::client_keep_alive(&state));
    } else {
        ground.inject(&state, segments::client_ack(&state, snd_una));
    }
}

/// Where a flow of that share is in its life; it may have come to another share of this
/// node's since.
pub(super) fn find(datapath: &Datapath, share: ShareId, flow: FlowId) -> Option<Phase> {
    let state = datapath.flows.get(flow.key).ok().flatten()?;
    ((state.share, state.id.irs) == (share, flow.irs)).then_some(state.phase)
}

fn end_socket(ifindex: u32, datapath: &Datapath, (share, flow): (ShareId, FlowId)) {
    if find(datapath, share, flow).is_some() {
        note(flow.key, destroy_tcp(ifindex, flow.key));
        forget(datapath, share, flow);
    }
}

pub(super) fn forget(datapath: &Datapath, share: ShareId, flow: FlowId) {
    if let Err(error) = datapath.orders.give(share, flow, Order::Forget)
        && !matches!(error, OrderError::NoFlow)
    {
        tracing::error!(flow = %flow.key, error = %error, "flow not forgotten");
    }
}

pub(super) fn note(flow: FlowKey, outcome: io::Result<bool>) {
    if let Err(error) = outcome {
        tracing::warn!(flow = %flow, error = %error, "socket not ended");
    }
}
