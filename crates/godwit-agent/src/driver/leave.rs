//! The end of an agent's life, in order.

use godwit_core::share::State;
use godwit_core::{Command, ShareStatus};
use godwit_wire::GoodbyeReason;

use super::{Driver, detach};
use crate::clock;

impl Driver {
    pub(super) fn quit(mut self, asked: GoodbyeReason) {
        let reason = self.parting(asked);
        if reason != asked {
            tracing::warn!("no standby is in sync: connections stay here, without Godwit");
        }
        self.node
            .handle_command(Command::Goodbye(reason), clock::now());
        self.drain();
        if reason == GoodbyeReason::Detach
            && let Err(error) = detach::detach(&self.config, self.ifindex, self.datapath)
        {
            tracing::error!(error = %error, "not everything could be detached");
        }
    }

    /// What can be said at the end. A peer takes over from a node that shuts
    /// down, so one whose connections live nowhere else does not: it would be
    /// silent, or there would be two voices.
    fn parting(&self, asked: GoodbyeReason) -> GoodbyeReason {
        let bare = |share: &ShareStatus| {
            let unresolved = self
                .shares
                .get(share.id)
                .is_some_and(|share| share.unresolved().is_some());
            share.state == State::Owner && (share.in_sync.is_empty() || unresolved)
        };
        match asked {
            GoodbyeReason::Shutdown if self.node.share_status().any(|share| bare(&share)) => {
                GoodbyeReason::Detach
            }
            GoodbyeReason::Shutdown | GoodbyeReason::Restart | GoodbyeReason::Detach => asked,
        }
    }
}
