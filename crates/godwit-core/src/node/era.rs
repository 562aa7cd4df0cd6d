//! Whether agents were started at a time that is near now, by the clock of day.
//!
//! An incarnation is the clock of day at an agent's start, and its epochs begin with it. If that
//! clock was days ahead, no voter considers them ([`scrutiny`](super::scrutiny)): the node would
//! be in sync, and be granted nothing. So it is not taken for in sync, and says why. When its
//! clock has been set, it begins another life, as soon as nothing has happened for a while.
//!
//! ```text
//!  standby, of 2 days from now             owner
//!     ── StandbyReady (0) ─────────────────► does not take it in
//!     ◄───────────────── StandbyLeft (unfit)
//!  its clock is set, and ten seconds pass: another life, of now
//!     ── StandbyReady (0) ─────────────────► offers a generation
//! ```
//!
//! Compared where shares have leases, as the epochs are.

mod start;

use std::time::Duration;

use godwit_wire::{Generation, LeaveReason, Message, NodeName, StandbyMessage};

use super::Node;
use super::context::Context;
use super::moving::Moving;
use super::peer::PeerSide;
use super::scrutiny::TOLERANCE;
use super::share::ShareSide;
use crate::share::State;
use crate::{MonoTime, PeerId};

pub use start::Birth;
pub(super) use start::Era;
use start::seconds;

/// So long nothing must have happened before an agent begins another life.
const QUIET: Duration = Duration::from_secs(10);

impl Node {
    /// The clock of day says that so many seconds have passed since 1970. To be said now
    /// and then: it may have been wrong when the agent was started.
    pub fn handle_day(&mut self, seconds: u32, now: MonoTime) {
        self.scrutiny.handle_day(seconds);
        self.era.day = seconds;
        self.compare_births(now);
    }

    /// Notes which peers' agents were started too far from now.
    pub(super) fn compare_births(&mut self, now: MonoTime) {
        let latest = self.scrutiny.latest(now);
        let by_clock = u64::from(self.era.day).saturating_add(TOLERANCE.as_secs());
        for side in &mut self.peers {
            let born = u64::from(seconds(side.incarnation));
            side.ahead = born > by_clock;
            side.shunned = born > latest;
        }
        if self.is_behind() {
            for side in &mut self.peers {
                side.shunned = false;
            }
        }
    }

    /// Whether the clock of day of this node is behind, as it seems: most peers' agents were
    /// started more than a day from what it says now; or this one was, and one of them.
    pub fn is_behind(&self) -> bool {
        let ahead = self.peers_ahead().count();
        match self.era.ahead() {
            Some(_) => ahead > 0,
            None => ahead > 1 && 2 * ahead > self.peers.len(),
        }
    }

    /// The peers whose agents were started more than a day from now.
    pub fn peers_ahead(&self) -> impl Iterator<Item = NodeName> + '_ {
        let ahead = self.peers.iter().filter(|side| side.ahead);
        ahead.map(|side| side.name)
    }

    /// By how much this agent's start is ahead. If its clock is behind, that says nothing.
    fn born_ahead(&self) -> Option<Duration> {
        self.era.ahead().filter(|_| !self.is_behind())
    }

    /// Whether this agent was started near now.
    pub fn birth(&self) -> Birth {
        let doubted = self.shares.iter().any(|share| share.condition.is_shunned());
        match self.born_ahead() {
            Some(ahead) => Birth::Ahead(ahead),
            None if doubted => Birth::Doubted,
            None => Birth::Near,
        }
    }

    /// Whether another life of this agent, of now, is wanted and would disturb nothing. To be
    /// asked now and then.
    pub fn is_reborn_by_now(&mut self, now: MonoTime) -> bool {
        let calm = self.shares.iter().all(|share| share.is_calm(now));
        if self.born_ahead().is_none() || !calm || self.quitting {
            self.era.quiet = None;
            return false;
        }
        let states = self.shares.iter().map(|share| share.machine.state());
        let states: Vec<_> = states.collect();
        match &self.era.quiet {
            Some((since, before)) if *before == states => now.since(*since) >= QUIET,
            Some(_) | None => {
                self.era.quiet = Some((now, states));
                false
            }
        }
    }
}

impl ShareSide {
    /// Whether nothing of the share is under way that another life would have to begin again.
    fn is_calm(&self, now: MonoTime) -> bool {
        let settled = matches!(self.moves.moving, Moving::No);
        let waits = match self.machine.state() {
            State::Owner => self.is_silent(now),
            State::Shadow { .. } => self.machine.wish().is_some(),
            State::Starting { .. } | State::Standby { .. } | State::Quitting => false,
        };
        settled && !waits
    }

    /// As the owner: whether a standby is not taken in, as it would be granted nothing.
    pub(super) fn shuns(&self, peer: PeerId, peers: &[PeerSide]) -> bool {
        let side = peers.get(usize::from(peer.0));
        self.lease.is_some() && side.is_some_and(|side| side.shunned)
    }

    /// As the owner: standbys in sync that would be granted nothing leave the set.
    pub(super) fn part_with_shunned(&mut self, context: &mut Context<'_>) {
        let members = self.in_sync.members();
        let shunned: Vec<_> = members
            .filter(|peer| self.shuns(*peer, context.peers))
            .collect();
        for peer in shunned {
            self.lose_standby(peer, LeaveReason::Unfit, context);
        }
    }

    /// As the owner: a standby that is not taken in is told why.
    pub(super) fn answer_shunned(&self, peer: PeerId, context: &mut Context<'_>) {
        if self.shuns(peer, context.peers) {
            let left = Message::Standby(
                self.scope(Generation::NONE),
                StandbyMessage::Left {
                    reason: LeaveReason::Unfit,
                },
            );
            context.send(peer, left);
        }
    }
}
