//! What all hands of the driver stand on: the core, the data path, the shares, and the ways
//! to say something. It knows none of them.

use std::sync::Arc;

use godwit_bpf::{Datapath, FlowState, Order, OrderError};
use godwit_core::{MonoTime, Node, PeerId};
use godwit_wire::{FlowId, ShareId};

use super::neighbours::Resolver;
use super::segments;
use super::shares::Shares;
use super::voice::Voice;
use crate::apps::Apps;
use crate::config::Config;
use crate::events::EventLog;
use crate::peers::PeerSender;

/// The ground, which the driver lends to each hand.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) config: Arc<Config>,
    pub(super) node: Node,
    pub(super) started: MonoTime,
    pub(super) datapath: Datapath,
    pub(super) shares: Shares,
    /// Segments and frames.
    pub(super) voice: Voice,
    pub(super) peers: PeerSender,
    pub(super) events: EventLog,
    /// Where peers are on the link.
    pub(super) resolver: Resolver,
    /// The server processes that let go of connections, and take them.
    pub(super) apps: Apps,
}

impl Ground {
    /// A flow as it is now, if it still is the same connection.
    pub(super) fn flow(&self, flow: FlowId) -> Option<FlowState> {
        let state = self.datapath.flows.get(flow.key).ok().flatten()?;
        (state.id.irs == flow.irs).then_some(state)
    }

    /// Gives an order; a flow that is gone needs none.
    pub(super) fn give(&self, share: ShareId, flow: FlowId, order: Order) {
        match self.datapath.orders.give(share, flow, order) {
            Ok(()) | Err(OrderError::NoFlow) => {}
            Err(error) => {
                tracing::error!(flow = %flow.key, error = %error, "order not carried out")
            }
        }
    }

    /// The moment from which a role holds.
    pub(super) fn write_share(&self, share: ShareId) {
        let Some(state) = self.shares.get(share) else {
            return;
        };
        if let Err(error) = self.datapath.shares.set(share, &state.entry) {
            tracing::error!(share = share.0, error = %error, "role not set");
        }
    }

    /// When this node last took a share over; the start if it never did.
    pub(super) fn taken_over_at(&self, share: ShareId) -> MonoTime {
        self.shares
            .get(share)
            .and_then(|share| share.taken_over)
            .unwrap_or(self.started)
    }

    pub(super) fn name_of(&self, share: ShareId) -> String {
        let known = self.shares.get(share).map(|share| share.name.clone());
        known.unwrap_or_default()
    }

    /// Whether twins of that share stand at their servers' snapshots.
    pub(super) fn is_kept(&self, share: ShareId) -> bool {
        self.shares.get(share).is_some_and(|share| share.kept)
    }

    /// Sends a packet to a flow's client. A full queue or a missing route is
    /// met by the next round, or by the kernel's own retransmission.
    pub(super) fn speak(&self, flow: &FlowState, packet: Option<Vec<u8>>) {
        let Some(packet) = packet else { return };
        let client = flow.id.key.client.ip();
        if let Err(error) = self.voice.segments.send(client, &packet) {
            tracing::debug!(flow = %flow.id.key, error = %error, "segment not sent");
        }
    }

    /// Hands our own kernel a segment as if the client had sent it.
    pub(super) fn inject(&self, flow: &FlowState, packet: Option<Vec<u8>>) {
        let Some(packet) = packet else { return };
        let frame = segments::frame(self.voice.mac, flow.client_mac, &packet);
        if let Err(error) = self.voice.injected.send(&frame) {
            tracing::debug!(flow = %flow.id.key, error = %error, "own kernel not told");
        }
    }

    /// Straight to the standby's data path; nobody else is to see it.
    pub(super) fn say_to_standby(&self, flow: &FlowState, packet: &[u8]) {
        let Some(peer) = self.shares.get(flow.share).map(|it| it.entry.peer_mac) else {
            return;
        };
        let frame = segments::frame(peer, self.voice.mac, packet);
        if let Err(error) = self.voice.frames.send(&frame) {
            tracing::debug!(flow = %flow.id.key, error = %error, "state not handed over");
        }
    }

    /// Whether a peer is found on the link, for people.
    pub(super) fn tell_peer_place(&self, event: &str, peer: PeerId, more: &[(&str, &str)]) {
        let Some(config) = self.config.others().nth(usize::from(peer.0)) else {
            return;
        };
        let (name, data) = (config.name.to_string(), config.data.to_string());
        let fields = [("peer", name.as_str()), ("data", data.as_str())];
        let warning = event == "peer_unresolved";
        let fields = fields.into_iter().chain(more.iter().copied());
        self.events.publish_own(event, warning, fields);
    }
}
