//! Connections whose twins stand at their servers' snapshots (ADR 18).
//!
//! | part | has |
//! |---|---|
//! | `exports` | snapshots on their way from the owner to its standby |
//! | `commits` | snapshots that a server must not go back from |
//! | `births` | new twins that begin at a snapshot |
//!
//! What the standby does with them is [`Keeper`]'s.

mod births;
mod commits;
mod exports;

use std::time::Duration;

use godwit_core::snapshot::exports::Exports;
use godwit_core::{FlowEvent, FlowEventKind, MonoTime, SnapshotAction};
use godwit_wire::{FlowKey, ShareId};

use super::ground::Ground;
use super::keeper::{self, Keeper};
use super::replay::Replays;
use crate::config::Config;
use births::AwaitedTwins;
use commits::Commits;

pub(super) use births::NoRoom;
pub(super) use commits::answer_held;

/// The hand for all of that.
#[derive(Debug)]
pub(super) struct Snapshots {
    /// Twins that stand still until they are served; `None` if no service of this
    /// node has such.
    keeper: Option<Keeper>,
    exports: Exports,
    awaited_twins: AwaitedTwins,
    commits: Commits,
}

impl Snapshots {
    pub(super) fn new(config: &Config, keeper: Option<Keeper>, now: MonoTime) -> Self {
        Self {
            keeper,
            exports: Exports::new(keeper::shares(config), now),
            awaited_twins: AwaitedTwins::default(),
            commits: Commits::default(),
        }
    }

    /// When [`Snapshots::tick`] has something to do.
    pub(super) fn due(&self) -> Option<MonoTime> {
        let due = [self.exports.due(), self.commits.poll_timeout()];
        due.into_iter().flatten().min()
    }

    pub(super) fn tick(&mut self, ground: &mut Ground, now: MonoTime) {
        if self.exports.due().is_some_and(|due| due <= now) {
            self.send_snapshots(ground, now);
        }
        self.look_after_commits(ground, now);
    }

    pub(super) fn carry_out(
        &mut self,
        (ground, replays): (&mut Ground, &mut Replays),
        share: ShareId,
        action: SnapshotAction,
    ) {
        match action {
            SnapshotAction::Keep { flow, part } => {
                self.keep_snapshot((ground, replays), share, flow, part);
            }
            SnapshotAction::Kept { flow, commit } => self.note_kept(ground, flow, commit),
        }
    }

    /// The data path says this of a flow. Whether the core has to wait for that word.
    pub(super) fn note_event(&mut self, ground: &mut Ground, event: FlowEvent) -> bool {
        if event.kind == FlowEventKind::Ended {
            self.exports.note_end(event.flow);
            self.awaited_twins.note_end(event.flow);
            self.commits.forget(event.flow.key);
            self.end_commits(ground, |_, flow| flow == event.flow);
        }
        if event.kind == FlowEventKind::Left {
            self.awaited_twins.note_end(event.flow);
        }
        self.holds_back(ground, event)
    }

    /// What was under way on the old link is lost.
    pub(super) fn note_link_change(&mut self) {
        self.exports.forget();
        self.awaited_twins.forget();
        self.commits.handle_link_change();
    }

    /// A flow is about to have a new twin: what the one before had, this one lacks.
    pub(super) fn note_rejoin(&mut self, flow: FlowKey) {
        self.exports.note_rejoin(flow);
        self.commits.forget(flow);
    }

    /// This node owns a share no more, or has no standby that is in sync.
    pub(super) fn note_standing_alone(&mut self, ground: &mut Ground, share: ShareId) {
        self.end_commits(ground, |of, _| of == share);
        let exports = &self.exports;
        self.commits
            .forget_all(|key| exports.share_of(key) == Some(share));
    }

    /// How long all that is under way to the standby may take to get there.
    pub(super) fn time_under_way(&self) -> Duration {
        self.exports.under_way().duration()
    }

    /// How many commits of a share are under way.
    pub(super) fn commits_under_way(&self, share: ShareId) -> u32 {
        self.commits.count(share)
    }

    /// This node owns a share whose twins are kept, or does not.
    pub(super) fn serve(&self, share: ShareId, serves: bool) {
        if let Some(keeper) = &self.keeper {
            keeper.serve(share, serves);
        }
    }

    /// What is kept ends.
    pub(super) fn end(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.end();
        }
    }
}
