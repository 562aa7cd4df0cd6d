//! The end of an agent's life: what is to be settled before it, and what is said. The driver's
//! loop has the order (`turn.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use godwit_core::fitness::{Consequence, FactId};
use godwit_core::share::State;
use godwit_core::{MonoTime, ShareStatus, VoterMemory};
use godwit_wire::{GoodbyeReason, NodeName, ShareId};
use tokio::sync::oneshot;

use super::Remains;
use super::ground::Ground;
use super::moves::Moves;
use crate::clock;
use crate::config::Config;
use crate::moves::{MoveRefused, MoveReport, Wish};
use crate::peers::Identity;
use crate::reload::Fresh;

/// How long voters may take to agree to an end that was planned.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

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

/// What is known of the end before it comes.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// The changed file, and its identity if this process goes on with it.
    pub(super) next: Option<(Arc<Config>, Option<Identity>)>,
    /// Whether this is the end before a restart.
    pub(super) restarts: bool,
}

/// Those who are told when a share has moved.
pub(super) struct Answers(Vec<oneshot::Receiver<Result<MoveReport, MoveRefused>>>);

impl Answers {
    /// Whether none of them is waited for any more.
    pub(super) fn are_there(&mut self) -> bool {
        self.0
            .retain_mut(|it| matches!(it.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        self.0.is_empty()
    }
}

/// What is no longer in the changed file goes to a standby that is in sync: as it
/// takes part, its file still has it. Without one its connections end here.
pub(super) fn hand_over_the_leaving(
    ground: &mut Ground,
    moves: &mut Moves,
    next: &Config,
) -> Answers {
    let leaves = |share: &ShareStatus| {
        let stays = next.own_shares().any(|(id, _)| id == share.id);
        share.state == State::Owner && !stays
    };
    let leaving: Vec<_> = ground.node.share_status().filter(leaves).collect();
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
        moves.start(ground, wish, clock::now());
    }
    Answers(answers)
}

/// Twins that end with the changed file leave the in-sync set before they do: an owner
/// whose file still has the service waits for none of them. That may have been this node
/// until a moment ago.
pub(super) fn retire_from_the_leaving(ground: &mut Ground, next: &Config) {
    for share in retiring(ground, next) {
        let fact = FactId {
            name: "leaves_the_file".to_owned(),
            share: Some(share),
        };
        ground
            .node
            .handle_fact(fact, Some(Consequence::NoTwins), clock::now());
    }
}

/// Shares of which this node is in the in-sync set, and will not be by the changed file.
pub(super) fn retiring(ground: &Ground, next: &Config) -> Vec<ShareId> {
    let endpoints = |config: &Config, id| {
        let mut own = config.own_shares();
        let service = own.find_map(|(share, service)| (share == id).then_some(service));
        service.map_or_else(BTreeSet::new, |it| it.addresses.iter().copied().collect())
    };
    let ends = |share: &ShareStatus| {
        let kept = endpoints(next, share.id).is_superset(&endpoints(&ground.config, share.id));
        matches!(share.state, State::Shadow { .. }) && !kept
    };
    let ending = ground.node.share_status().filter(ends);
    ending.map(|share| share.id).collect()
}

/// What can be said at the end. A peer takes over from a node that shuts
/// down, so one whose connections live nowhere else does not: it would be
/// silent, or there would be two voices.
pub(super) fn parting(ground: &Ground, asked: GoodbyeReason) -> GoodbyeReason {
    let bare = |share: &ShareStatus| {
        let unresolved = ground
            .shares
            .get(share.id)
            .is_some_and(|share| share.unresolved().is_some());
        share.state == State::Owner && (share.in_sync.is_empty() || unresolved)
    };
    let mut shares = ground.node.share_status();
    match asked {
        GoodbyeReason::Shutdown if shares.any(|share| bare(&share)) => GoodbyeReason::Detach,
        GoodbyeReason::Shutdown | GoodbyeReason::Restart | GoodbyeReason::Detach => asked,
    }
}

/// Of an owner its standby, of a standby its owner.
pub(super) fn other_side(share: ShareStatus) -> Option<(ShareId, NodeName)> {
    let other = match share.state {
        State::Owner => share.in_sync.first().copied(),
        State::Shadow { .. } => share.owner,
        State::Starting { .. } | State::Standby { .. } | State::Quitting => None,
    };
    Some((share.id, other?))
}
