//! The end of an agent's life, in order.

use std::collections::BTreeSet;
use std::time::Duration;

use godwit_core::fitness::{Consequence, FactId};
use godwit_core::share::State;
use godwit_core::{Command, MonoTime, ShareStatus, VoterMemory};
use godwit_wire::{GoodbyeReason, NodeName, ShareId};
use tokio::sync::oneshot;

use super::turn::Next;
use super::{Driver, Remains, detach};
use crate::clock;
use crate::config::Config;
use crate::input::Inputs;
use crate::membership::take_leave;
use crate::moves::Wish;
use crate::reload::Fresh;

/// How long voters may take to agree to an end that was planned.
const PATIENCE: Duration = Duration::from_millis(500);

/// How a driver has ended.
#[derive(Debug)]
pub struct End {
    /// Until when the votes of this life bind, see
    /// [`Node::bound_until`](godwit_core::Node::bound_until).
    pub bound_until: MonoTime,
    /// What this life has voted for.
    pub memory: Option<VoterMemory>,
    /// If the process goes on: with which file, and what it goes on with.
    pub next: Option<(Fresh, Remains)>,
}

impl Driver {
    /// Asks the voters for what the end needs: a lease that outlasts a restart.
    /// Without an answer the end comes all the same, and the lease goes on to
    /// run out.
    pub(super) fn get_ready(&mut self, reason: GoodbyeReason, inputs: &Inputs) {
        if let Some((next, _)) = self.next.clone() {
            self.hand_over_the_leaving(&next, inputs);
            self.retire_from_the_leaving(&next, inputs);
        }
        let end = clock::now().saturating_add(PATIENCE);
        self.ground
            .node
            .handle_command(Command::Prepare(reason), clock::now());
        self.drain();
        while !self.ground.node.is_prepared(reason, clock::now()) && clock::now() < end {
            // Whoever asks to stop again is served by this end.
            let _: Next = self.step(inputs);
            self.drain();
        }
    }

    /// What is no longer in the changed file goes to a standby that is in sync: as it
    /// takes part, its file still has it. Without one its connections end here.
    fn hand_over_the_leaving(&mut self, next: &Config, inputs: &Inputs) {
        let leaves = |share: &ShareStatus| {
            let stays = next.own_shares().any(|(id, _)| id == share.id);
            share.state == State::Owner && !stays
        };
        let leaving: Vec<_> = self.ground.node.share_status().filter(leaves).collect();
        let mut answers = Vec::new();
        for share in leaving {
            let Some(to) = share.in_sync.first() else {
                continue;
            };
            let (reply, answer) = oneshot::channel();
            answers.push(answer);
            let wish = Wish {
                service: share.name.clone(),
                to: to.to_string(),
                force: false,
                reply,
            };
            self.moves.start(&mut self.ground, wish, clock::now());
        }
        let end = clock::now().saturating_add(PATIENCE);
        let is_open = |it: &mut oneshot::Receiver<_>| {
            matches!(it.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        self.drain();
        answers.retain_mut(is_open);
        while !answers.is_empty() && clock::now() < end {
            let _: Next = self.step(inputs);
            self.drain();
            answers.retain_mut(is_open);
        }
    }

    /// Twins that end with the changed file leave the in-sync set before they do: an owner
    /// whose file still has the service waits for none of them. That may have been this node
    /// until a moment ago.
    fn retire_from_the_leaving(&mut self, next: &Config, inputs: &Inputs) {
        let config = self.ground.config.clone();
        let endpoints = |config: &Config, id| {
            let mut own = config.own_shares();
            let service = own.find_map(|(share, service)| (share == id).then_some(service));
            service.map_or_else(BTreeSet::new, |it| it.addresses.iter().copied().collect())
        };
        let ends = |share: &ShareStatus| {
            let kept = endpoints(next, share.id).is_superset(&endpoints(&config, share.id));
            matches!(share.state, State::Shadow { .. }) && !kept
        };
        let ending: Vec<_> = self.ground.node.share_status().filter(ends).collect();
        for share in ending {
            let fact = FactId {
                name: "leaves_the_file".to_owned(),
                share: Some(share.id),
            };
            self.ground
                .node
                .handle_fact(fact, Some(Consequence::NoTwins), clock::now());
        }
        self.drain();
        let end = clock::now().saturating_add(PATIENCE);
        while self.ground.node.share_status().any(|share| ends(&share)) && clock::now() < end {
            let _: Next = self.step(inputs);
            self.drain();
        }
    }

    /// The last words.
    pub(super) fn quit(mut self, asked: GoodbyeReason) -> End {
        let reason = self.parting(asked);
        if reason != asked {
            tracing::warn!("no standby is in sync: connections stay here, without Godwit");
        }
        self.finish_dismissals();
        self.restarts = reason == GoodbyeReason::Restart;
        let others = self
            .ground
            .node
            .share_status()
            .filter_map(other_side)
            .collect();
        let begun = self.ground.node.begun();
        if let Some((next, _)) = &self.next {
            take_leave(&mut self.ground.node, next);
        }
        self.ground
            .node
            .handle_command(Command::Goodbye(reason), clock::now());
        self.drain();
        self.ground.peers.flush();
        self.finish_dismissals();
        let kit = self.handoffs.end();
        self.snapshots.end();
        let hooks = self.lasting.follow.stop();
        let bound_until = self.ground.node.bound_until(clock::now());
        let next = self.next.take();
        let reloaded = next.and_then(|(config, identity)| Some((config, identity?)));
        if reason == GoodbyeReason::Detach {
            if let Err(error) = detach::detach(
                &self.ground.config,
                self.ground.voice.ifindex,
                self.ground.datapath,
            ) {
                tracing::error!(error = %error, "not everything could be detached");
            }
            return End {
                bound_until,
                memory: None,
                next: None,
            };
        }
        self.ground.datapath.hooks = hooks;
        let remains = Remains {
            place: self.lasting.stand,
            interface: self.lasting.interface,
            datapath: self.ground.datapath,
            events: self.lasting.records,
            voice: self.ground.voice,
            origins: self.lasting.origins,
            kit,
            others,
            begun,
        };
        End {
            bound_until,
            memory: self.ground.node.into_memory(),
            next: reloaded.map(|fresh| (fresh, remains)),
        }
    }

    /// What can be said at the end. A peer takes over from a node that shuts
    /// down, so one whose connections live nowhere else does not: it would be
    /// silent, or there would be two voices.
    fn parting(&self, asked: GoodbyeReason) -> GoodbyeReason {
        let bare = |share: &ShareStatus| {
            let unresolved = self
                .ground
                .shares
                .get(share.id)
                .is_some_and(|share| share.unresolved().is_some());
            share.state == State::Owner && (share.in_sync.is_empty() || unresolved)
        };
        match asked {
            GoodbyeReason::Shutdown
                if self.ground.node.share_status().any(|share| bare(&share)) =>
            {
                GoodbyeReason::Detach
            }
            GoodbyeReason::Shutdown | GoodbyeReason::Restart | GoodbyeReason::Detach => asked,
        }
    }
}

/// Of an owner its standby, of a standby its owner.
fn other_side(share: ShareStatus) -> Option<(ShareId, NodeName)> {
    let other = match share.state {
        State::Owner => share.in_sync.first().copied(),
        State::Shadow { .. } => share.owner,
        State::Starting { .. } | State::Standby { .. } | State::Quitting => None,
    };
    Some((share.id, other?))
}
