//! What the core asks of a node that has no share: to speak with others, no more.

use godwit_core::{Action, LeaseAction, Node, PeerAction};

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
            Action::Lease(LeaseAction::KeepVotes { votes }) => {
                self.leases.keep(&votes);
                Ok(())
            }
            Action::Lease(LeaseAction::Send { peer, datagram }) => self
                .leases
                .send(peer, &datagram)
                .map_err(|error| error.to_string()),
            Action::Peer(peer, PeerAction::Send(message)) => self
                .peers
                .send(peer, message)
                .map_err(|error| error.to_string()),
            // It serves no share, so nothing else is asked of it.
            Action::Peer(_, PeerAction::Stonith)
            | Action::Share(..)
            | Action::Move(..)
            | Action::Flow(..)
            | Action::Twin(..)
            | Action::Rejoin(..)
            | Action::Snapshot(..)
            | Action::Handoff(..) => Ok(()),
        }
    }
}
