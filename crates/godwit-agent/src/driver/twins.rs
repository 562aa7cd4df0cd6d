//! Ending a twin of this node while it is silent, and telling twins what the tap
//! has missed.

use std::io;
use std::time::Duration;

use godwit_bpf::{Datapath, Order, OrderError, Phase};
use godwit_core::{EndReason, MonoTime};
use godwit_sock::destroy_tcp;
use godwit_wire::{FlowId, FlowKey, SeqNumber, ShareId};

use super::ground::Ground;
use super::segments;
use crate::clock;

/// A twin whose connection is over at the owner gets this long to end in its
/// own way: its server may still be writing a log line.
const GRACE: Duration = Duration::from_secs(2);

/// Twins that are to end unless they do so themselves.
#[derive(Debug, Default)]
pub(super) struct Farewells(Vec<(MonoTime, ShareId, FlowId)>);

impl Farewells {
    /// Ends a twin, or gives it time to end.
    pub(super) fn end_twin(
        &mut self,
        ground: &Ground,
        (share, flow): (ShareId, FlowId),
        reason: EndReason,
    ) {
        // The server of one that is kept has never seen it.
        if reason == EndReason::EndedAtOwner && !ground.is_kept(share) {
            self.expect(share, flow, clock::now());
        } else {
            end_socket(ground.voice.ifindex, &ground.datapath, (share, flow));
        }
    }

    fn expect(&mut self, share: ShareId, flow: FlowId, now: MonoTime) {
        self.0.push((now.saturating_add(GRACE), share, flow));
    }

    pub(super) fn tick(&mut self, ground: &Ground, now: MonoTime) {
        let (ifindex, datapath) = (ground.voice.ifindex, &ground.datapath);
        self.0.retain(|(due, share, flow)| {
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
