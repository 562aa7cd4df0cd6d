//! Ending a twin of this node while it is silent, and telling twins what the tap
//! has missed.

use std::io;
use std::time::Duration;

use godwit_bpf::{Datapath, FlowState, Order, OrderError, Phase};
use godwit_core::{EndReason, MonoTime};
use godwit_sock::destroy_tcp;
use godwit_wire::{FlowId, FlowKey, SeqNumber};

use super::{Driver, segments};
use crate::clock;

/// A twin whose connection is over at the owner gets this long to end in its
/// own way: its server may still be writing a log line.
const GRACE: Duration = Duration::from_secs(2);

/// Twins that are to end unless they do so themselves.
#[derive(Debug, Default)]
pub(super) struct Farewells(Vec<(MonoTime, FlowId)>);

impl Farewells {
    fn expect(&mut self, flow: FlowId, now: MonoTime) {
        self.0.push((now.saturating_add(GRACE), flow));
    }

    pub(super) fn carry_out(&mut self, ifindex: u32, datapath: &Datapath, now: MonoTime) {
        self.0.retain(|(due, flow)| {
            if *due <= now && is_alive(datapath, *flow) {
                end_socket(ifindex, datapath, *flow);
            }
            *due > now
        });
    }
}

impl Driver {
    pub(super) fn end_twin(&mut self, flow: FlowId, reason: EndReason) {
        // The server of one that is kept has never seen it.
        let kept = self
            .flow(flow)
            .and_then(|state| self.shares.get(state.share));
        if reason == EndReason::EndedAtOwner && kept.is_none_or(|share| !share.kept) {
            self.farewells.expect(flow, clock::now());
        } else {
            end_socket(self.ifindex, &self.datapath, flow);
        }
    }

    pub(super) fn poke_twin(&self, flow: FlowId, snd_una: SeqNumber) {
        self.give(flow, Order::Acknowledged(snd_una));
        let Some(state) = self.flow(flow) else { return };
        if state.snd_nxt.ge(snd_una) {
            // It has said it all, and the owner does not know: have it speak.
            self.inject(&state, segments::client_keep_alive(&state));
        } else {
            self.inject(&state, segments::client_ack(&state, snd_una));
        }
    }

    /// Hands our own kernel a segment as if the client had sent it.
    pub(super) fn inject(&self, flow: &FlowState, packet: Option<Vec<u8>>) {
        let Some(packet) = packet else { return };
        let frame = segments::frame(self.mac, flow.client_mac, &packet);
        if let Err(error) = self.injected.send(&frame) {
            tracing::debug!(flow = %flow.id.key, error = %error, "own kernel not told");
        }
    }

    /// A flow as it is now, if it still is the same connection.
    pub(super) fn flow(&self, flow: FlowId) -> Option<FlowState> {
        let state = self.datapath.flows.get(flow.key).ok().flatten()?;
        (state.id.irs == flow.irs).then_some(state)
    }

    /// Gives an order; a flow that is gone needs none.
    pub(super) fn give(&self, flow: FlowId, order: Order) {
        match self.datapath.orders.give(flow, order) {
            Ok(()) | Err(OrderError::NoFlow) => {}
            Err(error) => {
                tracing::error!(flow = %flow.key, error = %error, "order not carried out")
            }
        }
    }
}

fn is_alive(datapath: &Datapath, flow: FlowId) -> bool {
    let state = datapath.flows.get(flow.key).ok().flatten();
    state.is_some_and(|state| state.id.irs == flow.irs && state.phase != Phase::Ended)
}

fn end_socket(ifindex: u32, datapath: &Datapath, flow: FlowId) {
    note(flow.key, destroy_tcp(ifindex, flow.key));
    forget(datapath, flow);
}

pub(super) fn forget(datapath: &Datapath, flow: FlowId) {
    if let Err(error) = datapath.orders.give(flow, Order::Forget)
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
