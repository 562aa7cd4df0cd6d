//! The end of an agent's life, in order.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use godwit_core::share::State;
use godwit_core::{Command, MonoTime, ShareStatus};
use godwit_wire::GoodbyeReason;

use super::turn::Next;
use super::{Driver, detach};
use crate::clock;
use crate::input::Input;

/// How long voters may take to agree to an end that was planned.
const PATIENCE: Duration = Duration::from_millis(500);

impl Driver {
    /// Asks the voters for what the end needs: a lease that outlasts a restart.
    /// Without an answer the end comes all the same, and the lease goes on to
    /// run out.
    pub(super) fn get_ready(&mut self, reason: GoodbyeReason, inputs: &Receiver<Input>) {
        let end = clock::now().saturating_add(PATIENCE);
        self.node
            .handle_command(Command::Prepare(reason), clock::now());
        self.drain();
        while !self.node.is_prepared(reason, clock::now()) && clock::now() < end {
            // Whoever asks to stop again is served by this end.
            let _: Next = self.step(inputs);
            self.drain();
        }
    }

    /// The last words. Returns until when what this agent voted for binds.
    pub(super) fn quit(mut self, asked: GoodbyeReason) -> MonoTime {
        let reason = self.parting(asked);
        if reason != asked {
            tracing::warn!("no standby is in sync: connections stay here, without Godwit");
        }
        self.finish_dismissals();
        self.restarts = reason == GoodbyeReason::Restart;
        self.node
            .handle_command(Command::Goodbye(reason), clock::now());
        self.drain();
        self.peers.flush();
        self.finish_dismissals();
        self.end_handoffs();
        if let Some(keeper) = self.keeper.take() {
            keeper.end();
        }
        if reason == GoodbyeReason::Detach
            && let Err(error) = detach::detach(&self.config, self.ifindex, self.datapath)
        {
            tracing::error!(error = %error, "not everything could be detached");
        }
        self.node.bound_until(clock::now())
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
