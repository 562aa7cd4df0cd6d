//! What peers' words about a share are worth, before anybody acts on them.
//!
//! The key of one node opens the shares that this node's file gives to it, and no others.
//! Without these looks whoever has the key of any node (a witness, a director, a server of
//! something else) could be promised an epoch that nobody can exceed, and no share would
//! ever be taken over again; or name the lease of a live owner as void, and have it.
//!
//! | doubt | what is not considered |
//! |---|---|
//! | [`Doubt::NoServer`] | that somebody owns, or wants a lease, who is no server of the share |
//! | [`Doubt::FarAhead`] | an epoch of more than a day from now |
//! | [`Doubt::OutOfTurn`] | a candidate's epoch that is not one of its own |
//! | [`Doubt::NotVoid`] | that the lease of another node no longer counts |
//! | [`Doubt::Late`] | a proposal that has waited on the way: its author may be dead |
//! | [`Doubt::NoVoter`] | an answer of a node that is not asked |
//!
//! Whoever holds a lease that was accepted here may renew it, whatever our file says by
//! now: it was a server of the share when it got it.
//!
//! *Now* is the clock of day at the start of this agent and what has passed since, or what
//! that clock has said later if that is more ([`Day`]). It is compared where shares have
//! leases: there votes decide. Where there are none, claims do, and a node with a wrong
//! clock that is not believed would own beside another one.
//!
//! A void lease needs a witness of ours: its holder itself says by now that it does not own
//! ([`Scrutiny::note`]); or, where leases are endless, the candidate says that it has
//! powered the holder off, and that one is silent here, too.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use godwit_wire::{Epoch, LeaseMessage, NodeName, Role, ShareClaim, ShareId};

use super::claims::Known;
use super::config::{NodeConfig, ShareConfig};
use super::doubt::Doubt;
use crate::MonoTime;
use crate::lease::View;
use crate::share::Ballot;

/// How far clocks of day may be apart: a clock may be taken for local time.
pub(super) const TOLERANCE: Duration = Duration::from_secs(24 * 3600);

/// What the clock of day says, in seconds since 1970.
#[derive(Debug, Clone, Copy)]
struct Day {
    /// When this agent was started, by either clock.
    born: (u32, MonoTime),
    /// The most that the clock of day has said since. It may have been set.
    told: u32,
}

impl Day {
    fn seconds(&self, now: MonoTime) -> u64 {
        let (seconds, at) = self.born;
        let running = u64::from(seconds).saturating_add(now.since(at).as_secs());
        running.max(u64::from(self.told))
    }
}

/// Who may own one share.
#[derive(Debug, Clone)]
struct Roll {
    /// In the order of their ranks.
    servers: Vec<NodeName>,
    /// Whether its leases are endless; `None` if it has none.
    endless: Option<bool>,
    /// What an earlier agent of this node left in the data path.
    found: Epoch,
    /// What the servers said last of it.
    said: BTreeMap<NodeName, Known>,
}

/// Whose word it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Author {
    pub(super) node: NodeName,
    /// Whether it has said that it has another file.
    pub(super) differs: bool,
}

/// What this node knows to compare with.
#[derive(Debug, Clone)]
pub(super) struct Scrutiny {
    rolls: BTreeMap<ShareId, Roll>,
    voters: Vec<NodeName>,
    day: Day,
}

impl Scrutiny {
    pub(super) fn new(config: &NodeConfig, now: MonoTime) -> Self {
        let seconds = config.incarnation >> 32;
        Self {
            rolls: config.shares.iter().map(Roll::of).collect(),
            voters: config.lease.voters.clone(),
            day: Day {
                born: (u32::try_from(seconds).unwrap_or(u32::MAX), now),
                told: 0,
            },
        }
    }

    /// The clock of day says that so many seconds have passed since 1970.
    pub(super) fn handle_day(&mut self, seconds: u32) {
        self.day.told = self.day.told.max(seconds);
    }

    /// Later epochs and incarnations are not considered: in seconds since 1970.
    pub(super) fn latest(&self, now: MonoTime) -> u64 {
        self.day.seconds(now).saturating_add(TOLERANCE.as_secs())
    }

    /// An authentic heartbeat of a peer has a claim.
    pub(super) fn note(&mut self, node: NodeName, incarnation: u64, claim: &ShareClaim) {
        let roll = self.rolls.get_mut(&claim.share);
        let Some(roll) = roll.filter(|roll| roll.endless.is_some()) else {
            return;
        };
        if roll.servers.contains(&node) {
            let known = Known {
                incarnation,
                epoch: claim.epoch,
                role: claim.role,
            };
            roll.said.insert(node, known);
        }
    }

    /// What a server of a share with leases said last of it.
    pub(super) fn said(&self, share: ShareId, node: NodeName) -> Option<Known> {
        self.rolls.get(&share)?.said.get(&node).copied()
    }

    /// Whether what a peer claims of a share may be considered.
    pub(super) fn judge_claim(
        &self,
        node: NodeName,
        claim: &ShareClaim,
        view: Option<View<'_>>,
        now: MonoTime,
    ) -> Result<(), Doubt> {
        let Some(roll) = self.rolls.get(&claim.share) else {
            return Ok(());
        };
        if claim.role == Role::Owner && !roll.servers.contains(&node) {
            return Err(Doubt::NoServer);
        }
        self.judge_epoch(claim.share, claim.epoch, view, now)
    }

    /// Whether a message about a lease may be considered.
    pub(super) fn judge(
        &self,
        from: Author,
        message: &LeaseMessage,
        view: Option<View<'_>>,
        now: MonoTime,
    ) -> Result<(), Doubt> {
        let share = message.share();
        match message {
            LeaseMessage::Prepare { epoch, .. } => {
                self.judge_server(share, from.node)?;
                self.judge_epoch(share, *epoch, view, now)?;
                self.judge_turn(share, from, *epoch)
            }
            LeaseMessage::Propose { lease, .. } => {
                let held = |view: View<'_>| {
                    view.lease.holder == from.node && view.lease.epoch == lease.epoch
                };
                if view.is_some_and(held) {
                    return Ok(());
                }
                self.judge_server(share, from.node)?;
                self.judge_epoch(share, lease.epoch, view, now)
            }
            // Nobody ends but what is its own.
            LeaseMessage::Release { .. } => Ok(()),
            LeaseMessage::Promise { last, .. } => {
                self.judge_voter(share, from.node)?;
                let reported = last.as_ref().map_or(Epoch::NONE, |last| last.lease.epoch);
                self.judge_epoch(share, reported, view, now)
            }
            LeaseMessage::Refused { by, .. } => {
                self.judge_voter(share, from.node)?;
                self.judge_epoch(share, *by, view, now)
            }
            LeaseMessage::Accepted { .. } => self.judge_voter(share, from.node),
        }
    }

    /// A message without the epoch that it calls void, if that is not believed.
    /// `is_silent`: whether a node is not heard.
    pub(super) fn without_void<'a>(
        &self,
        message: &'a LeaseMessage,
        view: Option<View<'_>>,
        is_silent: impl FnOnce(NodeName) -> bool,
        now: MonoTime,
    ) -> (Cow<'a, LeaseMessage>, Result<(), Doubt>) {
        let named = match message {
            LeaseMessage::Prepare { void, .. } | LeaseMessage::Propose { void, .. } => *void,
            LeaseMessage::Release { .. }
            | LeaseMessage::Promise { .. }
            | LeaseMessage::Accepted { .. }
            | LeaseMessage::Refused { .. } => Epoch::NONE,
        };
        if named == Epoch::NONE {
            return (Cow::Borrowed(message), Ok(()));
        }
        let meant = view.filter(|view| view.lease.epoch == named && view.is_in_force(now));
        let verdict = match meant {
            Some(view) if self.is_void(message.share(), view, is_silent) => {
                return (Cow::Borrowed(message), Ok(()));
            }
            Some(_) => Err(Doubt::NotVoid),
            // It is in nobody's way.
            None => Ok(()),
        };
        let mut bare = message.clone();
        if let LeaseMessage::Prepare { void, .. } | LeaseMessage::Propose { void, .. } = &mut bare {
            *void = Epoch::NONE;
        }
        (Cow::Owned(bare), verdict)
    }

    /// Whether there is more than the candidate's word for it.
    fn is_void(
        &self,
        share: ShareId,
        view: View<'_>,
        is_silent: impl FnOnce(NodeName) -> bool,
    ) -> bool {
        let Some(roll) = self.rolls.get(&share) else {
            return false;
        };
        let (holder, epoch) = (view.lease.holder, view.lease.epoch);
        let disowned = roll.said.get(&holder).is_some_and(|said| {
            // It has handed the share over; or it has begun anew, and has forgotten it.
            let later = said.epoch > epoch;
            let reborn = said.role == Role::None && said.incarnation > view.life;
            said.role != Role::Owner && (later || reborn)
        });
        disowned || (roll.endless == Some(true) && is_silent(holder))
    }

    fn judge_server(&self, share: ShareId, node: NodeName) -> Result<(), Doubt> {
        if self.is_server(share, node) {
            Ok(())
        } else {
            Err(Doubt::NoServer)
        }
    }

    fn judge_voter(&self, share: ShareId, node: NodeName) -> Result<(), Doubt> {
        if self.voters.contains(&node) || self.is_server(share, node) {
            Ok(())
        } else {
            Err(Doubt::NoVoter)
        }
    }

    fn is_server(&self, share: ShareId, node: NodeName) -> bool {
        let roll = self.rolls.get(&share);
        roll.is_some_and(|roll| roll.servers.contains(&node))
    }

    /// What was accepted here, or found, was near when it began: clocks may have been set
    /// back since.
    pub(super) fn judge_epoch(
        &self,
        share: ShareId,
        epoch: Epoch,
        view: Option<View<'_>>,
        now: MonoTime,
    ) -> Result<(), Doubt> {
        let roll = self.rolls.get(&share);
        let Some(roll) = roll.filter(|roll| roll.endless.is_some()) else {
            return Ok(());
        };
        let accepted = view.map_or(Epoch::NONE, |view| view.lease.epoch);
        let known = roll.found.max(accepted).incarnation();
        if u64::from(epoch.incarnation()) <= self.latest(now).max(u64::from(known)) {
            Ok(())
        } else {
            Err(Doubt::FarAhead)
        }
    }

    /// One with another file may have another rank, or count other servers.
    fn judge_turn(&self, share: ShareId, from: Author, epoch: Epoch) -> Result<(), Doubt> {
        let servers = self.rolls.get(&share).map(|roll| &*roll.servers);
        let servers = servers.unwrap_or_default();
        let rank = servers.iter().position(|server| *server == from.node);
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let own = rank.map(|rank| Ballot::new(0, count(rank), count(servers.len())));
        if from.differs || own.is_some_and(|own| own.is_own(epoch)) {
            Ok(())
        } else {
            Err(Doubt::OutOfTurn)
        }
    }
}

impl Roll {
    fn of(share: &ShareConfig) -> (ShareId, Self) {
        let servers = std::iter::once(share.primary).chain(share.backups.iter().copied());
        let roll = Self {
            servers: servers.collect(),
            endless: share.fencing.endless(),
            found: share.resume.map_or(Epoch::NONE, |found| found.epoch),
            said: BTreeMap::new(),
        };
        (share.id, roll)
    }
}
