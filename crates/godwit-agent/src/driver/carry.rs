//! From the core's actions to what the kernel is asked for.

use godwit_bpf::Order;
use godwit_core::{Action, MonoTime};
use godwit_wire::{FlowId, ShareId, UnprotectedReason};

use super::{Driver, segments};
use crate::clock;

impl Driver {
    pub(super) fn carry_out(&mut self, action: Action) {
        match action {
            Action::SetShare {
                share,
                role,
                epoch,
                generation,
                peer,
            } => {
                if let Err(error) =
                    self.shares
                        .set(&self.datapath, share, role, epoch, generation, peer)
                {
                    tracing::error!(share = share.0, error = %error, "role not set");
                }
            }
            Action::Announce { share } => self.announce(share),
            Action::Revive { share, attempt } => self.revive(share, attempt),
            Action::ReleaseGate { share, generation } => self.release_gate(share, generation),
            Action::UngateFlow { flow, reason, .. } => self.ungate(flow, reason),
            Action::ResendHandshake { share, flow } => self.resend_handshake(share, flow),
            Action::MarkDemoted { flow, .. } => self.give(flow, Order::NotInSync),
            Action::EndTwin { flow, reason, .. } => self.end_twin(flow, reason),
            Action::EndFlows { share, reason } => self.end_flows(share, reason),
            Action::PokeTwin { flow, snd_una, .. } => self.poke_twin(flow, snd_una),
            Action::Send { peer, message } => {
                if let Err(error) = self.peers.send(peer, message) {
                    tracing::debug!(peer = peer.0, error = %error, "message not sent");
                }
            }
        }
    }

    /// The gate opens first, then both sides hear what it kept from them.
    fn ungate(&self, flow: FlowId, reason: UnprotectedReason) {
        self.give(flow, Order::Ungate(reason));
        if let Some(state) = self.flow(flow) {
            self.let_go(&state, clock::now());
        }
    }

    fn resend_handshake(&self, share: ShareId, flow: FlowId) {
        let Some(peer) = self.shares.get(share).map(|share| share.entry.peer_mac) else {
            return;
        };
        let Some(packets) = self.flow(flow).as_ref().and_then(segments::handshake) else {
            return;
        };
        for packet in &packets {
            if let Err(error) = self.frames.send(&segments::frame(peer, self.mac, packet)) {
                tracing::debug!(flow = %flow.key, error = %error, "handshake not sent again");
            }
        }
    }

    /// When this node last took a share over; the start if it never did.
    pub(super) fn taken_over_at(&self, share: ShareId) -> MonoTime {
        self.shares
            .get(share)
            .and_then(|share| share.taken_over)
            .unwrap_or(self.started)
    }
}
