//! Role machine: what this node does for one share.
//!
//! Without a fence (`fencing = "none"`) ownership follows from who was heard
//! last, and if two nodes both believe that they own a share then the greater
//! epoch wins. With leases ([`Claiming::Leased`]) a node that would claim only
//! *wishes* to, and becomes the owner when it is granted the lease; states and
//! inputs are the same.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use godwit_wire::{Epoch, Generation, GoodbyeReason, Role};

use crate::{MonoTime, PeerId};

mod epoch;
mod state;
#[cfg(test)]
mod tests;

pub use epoch::Ballot;
pub use state::{Ownership, Reason, State};

/// How long a backup that has never heard an owner waits before it claims.
/// Long enough for the primary to boot in the same cluster start.
pub const COLD_START: Duration = Duration::from_secs(3);

/// How a node becomes the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claiming {
    /// It says so.
    Bare,
    /// It is granted a lease.
    Leased,
}

/// Where another share of the same address is. An address is in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// Nowhere, as far as is known, or there is none.
    Unknown,
    /// This node owns it.
    Here,
    /// Another node owns it, or may by now.
    Elsewhere,
}

/// What does not change while the agent runs.
#[derive(Debug, Clone)]
pub struct Config {
    /// How this node becomes the owner.
    pub claiming: Claiming,
    /// Makes epochs that only this node can claim.
    pub ballot: Ballot,
    /// Whether this node is the primary.
    pub primary: bool,
    /// The other nodes of the share.
    pub peers: Vec<PeerId>,
    /// How long a primary listens before it claims.
    pub startup_grace: Duration,
}

/// One change of state. [`ShareMachine::epoch`] is that of `state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The state before.
    pub prev: State,
    /// The state now.
    pub state: State,
    /// Why.
    pub reason: Reason,
}

/// What a peer says of the share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerClaim {
    /// Who says so.
    pub peer: PeerId,
    /// What it does.
    pub role: Role,
    /// Its epoch if it owns, else the latest it knows of.
    pub epoch: Epoch,
    /// Whether the peer wins if both own under the same epoch, which only
    /// nodes with different configurations can bring about.
    pub wins_ties: bool,
}

/// Decides what this node does for one share. See [`State`].
///
/// Inputs that come from a peer's earlier life or out of order must be filtered
/// before: the machine believes what it is told.
#[derive(Debug, Clone)]
pub struct ShareMachine {
    config: Config,
    state: State,
    /// Own epoch as the owner, else the latest one heard of.
    epoch: Epoch,
    /// Why it wants to own, while it waits for a lease.
    wish: Option<Reason>,
    /// Peers that said, since start, that they do nothing for the share.
    idle: BTreeSet<PeerId>,
    /// `None`: no other share has its address.
    home: Option<Home>,
    changes: VecDeque<Change>,
}

impl ShareMachine {
    /// A machine that starts by listening.
    pub fn new(config: Config, now: MonoTime) -> Self {
        let patience = if config.primary && config.peers.is_empty() {
            Duration::ZERO
        } else if config.primary {
            config.startup_grace
        } else {
            COLD_START
        };
        Self {
            config,
            state: State::Starting {
                until: now.saturating_add(patience),
            },
            epoch: Epoch::NONE,
            wish: None,
            idle: BTreeSet::new(),
            home: None,
            changes: VecDeque::new(),
        }
    }

    /// A machine that goes on where an earlier agent of this node left off.
    pub fn resume(config: Config, state: State, epoch: Epoch) -> Self {
        Self {
            config,
            state,
            epoch,
            wish: None,
            idle: BTreeSet::new(),
            home: None,
            changes: VecDeque::new(),
        }
    }

    /// Epochs up to this one may have been used, this node's own included: an agent
    /// that is started twice in a second would use them again.
    pub fn handle_used(&mut self, epoch: Epoch) {
        self.learn(epoch);
    }

    /// Where other shares of its address are, if nobody owns this one yet: it begins there,
    /// whoever is its primary. May be repeated.
    pub fn handle_home(&mut self, home: Home, now: MonoTime) {
        let State::Starting { until } = self.state else {
            self.home = None;
            return;
        };
        let before = self.home.replace(home);
        let grace = now.saturating_add(self.config.startup_grace);
        let until = match home {
            Home::Unknown => until,
            Home::Here if before == Some(Home::Here) => until,
            Home::Here => until.min(grace),
            Home::Elsewhere => now.saturating_add(COLD_START),
        };
        self.state = State::Starting { until };
        if home == Home::Elsewhere {
            self.wish = None;
        }
        self.begin_if_all_are_idle();
    }

    /// Whether it waits for another node to begin. A grant that was under way when the wish
    /// was withdrawn is not made use of.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.state, State::Starting { .. }) && self.home == Some(Home::Elsewhere)
    }

    /// A peer says what it does for the share.
    pub fn handle_claim(&mut self, claim: PeerClaim, now: MonoTime) {
        match claim.role {
            Role::Owner => self.handle_owner_claim(claim),
            Role::None | Role::Shadow => self.handle_other_claim(claim, now),
        }
    }

    fn handle_owner_claim(&mut self, claim: PeerClaim) {
        let PeerClaim { peer, epoch, .. } = claim;
        let owner = Ownership { peer, epoch };
        match self.state {
            State::Starting { .. } | State::Standby { owner: None } => {
                self.follow(owner, Reason::PeerOwns);
            }
            State::Standby { owner: Some(known) } => {
                // Voters that forgot may have granted a lesser epoch. A node that
                // has given its owner up, and holds no twins, goes by the claim.
                let bereft = self.wish.is_some() && peer != known.peer;
                if epoch > known.epoch || bereft || self.is_reborn(known, owner) {
                    self.follow(owner, Reason::PeerOwns);
                }
            }
            State::Shadow { owner: known, .. } => {
                if epoch > known.epoch || self.is_reborn(known, owner) {
                    self.follow(owner, Reason::PeerOwns);
                } else if owner == known && self.wish == Some(Reason::OwnerForgot) {
                    // It had not forgotten: it was about to begin, after a move.
                    self.wish = None;
                }
            }
            State::Owner => {
                if epoch > self.epoch || (epoch == self.epoch && claim.wins_ties) {
                    self.follow(owner, Reason::Superseded);
                }
            }
            State::Quitting => {}
        }
    }

    /// Whether an owner has owned since under a lesser epoch, which within one life it
    /// can't: it has forgotten its flows, and so have the voters that granted this.
    /// Without leases it raises its epoch as soon as it hears ours.
    fn is_reborn(&self, known: Ownership, claims: Ownership) -> bool {
        let leased = self.config.claiming == Claiming::Leased;
        leased && claims.peer == known.peer && claims.epoch < known.epoch
    }

    fn handle_other_claim(&mut self, claim: PeerClaim, now: MonoTime) {
        let above = claim.epoch > self.epoch;
        let from_owner = self
            .state
            .owner()
            .is_some_and(|owner| owner.peer == claim.peer);
        let leased = self.config.claiming == Claiming::Leased;
        if !(leased && self.state == State::Owner) {
            self.learn(claim.epoch);
        }
        match self.state {
            State::Starting { .. } => self.hear_idle(claim),
            State::Standby { .. } => {
                if from_owner {
                    self.restart(Reason::OwnerForgot, now);
                }
            }
            State::Shadow { owner, .. } => {
                if from_owner && claim.epoch > owner.epoch {
                    // It stepped down for a third node, which will be heard.
                    self.restart(Reason::OwnerForgot, now);
                } else if from_owner {
                    self.claim(Reason::OwnerForgot);
                }
            }
            State::Owner => {
                // A lease is above every other that a majority ever granted.
                if above && !leased {
                    self.claim(Reason::Raised);
                }
            }
            State::Quitting => {}
        }
    }

    /// The detector says that a peer has failed.
    pub fn handle_failed(&mut self, peer: PeerId) {
        self.lose_owner(peer, Reason::OwnerFailed);
    }

    /// A peer said goodbye.
    pub fn handle_goodbye(&mut self, peer: PeerId, reason: GoodbyeReason) {
        match reason {
            // The detector waits for it; nothing changes here.
            GoodbyeReason::Restart => {}
            GoodbyeReason::Shutdown => self.lose_owner(peer, Reason::OwnerShutdown),
            GoodbyeReason::Detach => match self.state {
                State::Standby { owner: Some(owner) } | State::Shadow { owner, .. } => {
                    if owner.peer == peer {
                        self.enter(State::Standby { owner: None }, Reason::OwnerDetached);
                    }
                }
                State::Starting { .. }
                | State::Standby { owner: None }
                | State::Owner
                | State::Quitting => {}
            },
        }
    }

    /// The owner offers a generation: from now on twins of it may be served.
    pub fn handle_admitted(&mut self, generation: Generation) {
        match self.state {
            State::Standby { owner: Some(owner) } | State::Shadow { owner, .. } => {
                self.enter(State::Shadow { owner, generation }, Reason::Admitted);
            }
            State::Starting { .. }
            | State::Standby { owner: None }
            | State::Owner
            | State::Quitting => {}
        }
    }

    /// The owner removed this node from the in-sync set.
    pub fn handle_dismissed(&mut self, ended: Generation) {
        match self.state {
            State::Shadow { owner, generation } => {
                if generation == ended {
                    self.enter(State::Standby { owner: Some(owner) }, Reason::Dismissed);
                }
            }
            State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => {}
        }
    }

    /// The lease of the owner `peer` has ended, or it was given back.
    pub fn handle_lapse(&mut self, peer: PeerId, reason: Reason) {
        self.lose_owner(peer, reason);
    }

    /// The lease of the owner `peer` is in force after all.
    pub fn handle_owner_seen(&mut self, peer: PeerId) {
        let lost = matches!(
            self.wish,
            Some(
                Reason::OwnerFailed
                    | Reason::LeaseLapsed
                    | Reason::OwnerReleased
                    | Reason::OwnerServerLost
            )
        );
        if lost && self.state.owner().is_some_and(|owner| owner.peer == peer) {
            self.wish = None;
        }
    }

    /// This node will be granted the share, but is no member of the last in-sync
    /// set: its twins are to be ended first.
    pub fn handle_not_in_sync(&mut self) {
        match self.state {
            State::Shadow { owner, .. } => {
                let wish = self.wish;
                self.enter(State::Standby { owner: Some(owner) }, Reason::Dismissed);
                self.wish = wish;
            }
            State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => {}
        }
    }

    /// The owner says that its server has died and that it is silent: whoever
    /// holds the twins of that generation continues its connections.
    pub fn handle_owner_server_lost(&mut self, offered: Generation) {
        match self.state {
            State::Shadow { generation, .. } => {
                if generation == offered {
                    self.claim(Reason::OwnerServerLost);
                }
            }
            State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => {}
        }
    }

    /// As the owner: the share is let go, and `to` is to own it next. This node
    /// stands by with the flows of `generation`.
    pub fn handle_released(&mut self, to: Ownership, generation: Generation) {
        match self.state {
            State::Owner => {
                self.learn(to.epoch);
                let owner = to;
                self.enter(State::Shadow { owner, generation }, Reason::Moved);
            }
            State::Starting { .. }
            | State::Standby { .. }
            | State::Shadow { .. }
            | State::Quitting => {}
        }
    }

    /// As the standby: the owner has let the share go, for this node. Whatever it
    /// wanted the share for before does not count: that might yet come to nothing.
    pub fn handle_handed_over(&mut self) {
        match self.state {
            State::Shadow { .. } => {
                self.wish = None;
                self.claim(Reason::Moved);
            }
            State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => {}
        }
    }

    /// Whom this node let the share go to owns it, perhaps under a later epoch.
    pub fn handle_successor(&mut self, owner: Ownership) {
        if let State::Shadow {
            owner: known,
            generation,
        } = self.state
            && known.peer == owner.peer
        {
            self.learn(owner.epoch);
            self.state = State::Shadow { owner, generation };
            self.wish = None;
        }
    }

    /// Whom this node let the share go to will not own it.
    pub fn handle_move_refused(&mut self) {
        match self.state {
            State::Shadow { .. } => self.claim(Reason::MovedBack),
            State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => {}
        }
    }

    /// The epoch that this node would claim now.
    pub fn next_epoch(&self) -> Epoch {
        self.config.ballot.above(self.epoch)
    }

    /// A majority grants the share to this node, under `epoch`.
    pub fn handle_granted(&mut self, epoch: Epoch) {
        match self.state {
            State::Starting { .. } | State::Standby { .. } | State::Shadow { .. } => {
                let reason = self.wish.unwrap_or(Reason::ColdStart);
                self.epoch = epoch;
                self.enter(State::Owner, reason);
            }
            State::Owner | State::Quitting => {}
        }
    }

    /// Another node may have owned the share since our lease ended.
    pub fn handle_lost(&mut self, to: Option<Ownership>, now: MonoTime) {
        match (self.state, to) {
            (State::Owner, Some(owner)) => self.follow(owner, Reason::LeaseLost),
            (State::Owner, None) => self.restart(Reason::LeaseLost, now),
            (
                State::Starting { .. }
                | State::Standby { .. }
                | State::Shadow { .. }
                | State::Quitting,
                _,
            ) => {}
        }
    }

    /// This node can't stand by, for that reason.
    pub fn handle_retired(&mut self, reason: Reason) {
        match self.state {
            State::Shadow { owner, .. } => {
                self.enter(State::Standby { owner: Some(owner) }, reason);
            }
            State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => {}
        }
    }

    /// This node's agent ends.
    pub fn handle_quit(&mut self) {
        match self.state {
            State::Starting { .. }
            | State::Standby { .. }
            | State::Shadow { .. }
            | State::Owner => {
                self.enter(State::Quitting, Reason::Quit);
            }
            State::Quitting => {}
        }
    }

    /// When the machine claims of itself.
    pub const fn poll_timeout(&self) -> Option<MonoTime> {
        match self.state {
            State::Starting { until } if self.wish.is_none() => Some(until),
            State::Starting { .. }
            | State::Standby { .. }
            | State::Shadow { .. }
            | State::Owner
            | State::Quitting => None,
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        if self.poll_timeout().is_some_and(|until| until <= now) {
            self.claim(Reason::ColdStart);
        }
    }

    /// The next change, oldest first.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Why this node wants to own, while it waits for a lease.
    pub const fn wish(&self) -> Option<Reason> {
        self.wish
    }

    /// What this node does.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Own epoch as the owner, else the latest one heard of.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn lose_owner(&mut self, peer: PeerId, reason: Reason) {
        match self.state {
            State::Standby { owner: Some(owner) } | State::Shadow { owner, .. } => {
                if owner.peer == peer {
                    self.claim(reason);
                }
            }
            State::Starting { .. } => {
                self.idle.remove(&peer);
            }
            State::Standby { owner: None } | State::Owner | State::Quitting => {}
        }
    }

    /// A primary claims as soon as all others have said that they do nothing. A
    /// peer with twins is left alone: it will claim, and saves connections.
    fn hear_idle(&mut self, claim: PeerClaim) {
        if claim.role == Role::None {
            self.idle.insert(claim.peer);
        } else {
            self.idle.remove(&claim.peer);
        }
        // Where the others are is looked at when all is heard that one message says.
        if self.home.is_none() {
            self.begin_if_all_are_idle();
        }
    }

    fn begin_if_all_are_idle(&mut self) {
        let begins = match self.home {
            None | Some(Home::Unknown) => self.config.primary,
            Some(Home::Here) => true,
            Some(Home::Elsewhere) => false,
        };
        let mut peers = self.config.peers.iter();
        if begins && peers.all(|peer| self.idle.contains(peer)) {
            self.claim(Reason::ColdStart);
        }
    }

    /// The owner has no connections and neither have we: as at cold start.
    fn restart(&mut self, reason: Reason, now: MonoTime) {
        let fresh = Self::new(self.config.clone(), now);
        self.idle.clear();
        self.enter(fresh.state, reason);
    }

    fn follow(&mut self, owner: Ownership, reason: Reason) {
        self.learn(owner.epoch);
        self.enter(State::Standby { owner: Some(owner) }, reason);
    }

    fn claim(&mut self, reason: Reason) {
        match self.config.claiming {
            Claiming::Bare => {
                self.epoch = self.config.ballot.above(self.epoch);
                self.enter(State::Owner, reason);
            }
            Claiming::Leased => self.wish = self.wish.or(Some(reason)),
        }
    }

    fn learn(&mut self, epoch: Epoch) {
        self.epoch = self.epoch.max(epoch);
    }

    fn enter(&mut self, state: State, reason: Reason) {
        let prev = self.state;
        self.state = state;
        self.wish = None;
        self.changes.push_back(Change {
            prev,
            state,
            reason,
        });
    }
}
