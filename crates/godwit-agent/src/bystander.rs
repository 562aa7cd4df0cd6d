//! What the core asks of a node that has no share: to speak with others, no more.

use godwit_core::{Action, Node};

use crate::events::EventLog;
use crate::heartbeat::LeaseSender;
use crate::peers::PeerSender;

/// A node's ways out, where it has no data path for flows.
#[derive(Debug)]
pub(crate) struct Bystander {
    pub(crate) peers: PeerSender,
    pub(crate) leases: LeaseSender,
    pub(crate) events: EventLog,
}

impl Bystander {
    /// Carries out and tells what the core wants by now.
    pub(crate) fn drain(&mut self, node: &mut Node) {
        while let Some(action) = node.poll_action() {
            if let Err(error) = self.carry_out(action) {
                tracing::debug!(error, "not sent");
            }
        }
        self.peers.flush();
        while let Some(event) = node.poll_event() {
            self.events.publish(&event);
        }
    }

    fn carry_out(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::KeepVotes { votes } => {
                self.leases.keep(&votes);
                Ok(())
            }
            Action::SendLease { peer, datagram } => self
                .leases
                .send(peer, &datagram)
                .map_err(|error| error.to_string()),
            Action::Send { peer, message } => self
                .peers
                .send(peer, message)
                .map_err(|error| error.to_string()),
            // It serves no share, so nothing else is asked of it.
            Action::SetShare { .. }
            | Action::SetExpiry { .. }
            | Action::Silence { .. }
            | Action::Reopen { .. }
            | Action::Announce { .. }
            | Action::Revive { .. }
            | Action::CheckFlows { .. }
            | Action::ResetUnprotected { .. }
            | Action::HandOver { .. }
            | Action::Resume { .. }
            | Action::MoveEnded { .. }
            | Action::AskMove { .. }
            | Action::ReleaseGate { .. }
            | Action::UngateFlow { .. }
            | Action::ResendHandshake { .. }
            | Action::MarkDemoted { .. }
            | Action::Compare { .. }
            | Action::EndTwin { .. }
            | Action::EndFlows { .. }
            | Action::PokeTwin { .. }
            | Action::BeginRejoin { .. }
            | Action::FeedLog { .. }
            | Action::ProtectFlow { .. }
            | Action::RestoreTwin { .. }
            | Action::FeedTwin { .. }
            | Action::AdmitTwin { .. }
            | Action::KeepSnapshot { .. }
            | Action::SnapshotKept { .. }
            | Action::Handoff { .. }
            | Action::Stonith { .. } => Ok(()),
        }
    }
}
