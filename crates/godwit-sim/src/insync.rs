//! Who may be in sync: checked in each round of an owner's canaries.
//!
//! A standby is in sync only if twins are born there, and if nothing around it is wrong
//! that says they are not. Both are known to its owner a while later, so what is checked is
//! what has been so for long: while the owner may speak, both agents run and hear each
//! other. Whenever that ends it begins anew.

use godwit_core::Node;
use godwit_core::share::State;
use godwit_wire::{Epoch, LeaveReason};

use crate::facts::NOTICED_NS;
use crate::host::peer_of;
use crate::network::Net;
use crate::plan::{MS, SERVERS};
use crate::proof::{ROUND_NS, Way};
use crate::world::{World, name};

/// A standby that bears no twin misses four canaries. As long again, and the news of it
/// has come to a majority, through bad weather.
const BARREN_NS: u64 = 10 * ROUND_NS;

/// In so many rounds at least: an agent that sleeps has none.
const BARREN_ROUNDS: u32 = 10;

/// How long an unfit standby is in sync at most: until it has noticed, and its word has
/// come through.
const UNFIT_NS: u64 = NOTICED_NS + 2_000 * MS;

/// An owner and its standby that hear each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    epoch: Epoch,
    lives: [u64; SERVERS],
    since_ns: u64,
    rounds: u32,
    /// When the standby was fit, the last time.
    fit_ns: u64,
}

impl World {
    pub(crate) const fn note_left(&mut self, reason: LeaveReason) {
        match reason {
            LeaveReason::NotBorn | LeaveReason::NotHeard => self.tally.unproved += 1,
            LeaveReason::Unfit => self.tally.unfit += 1,
            LeaveReason::StandbySilent
            | LeaveReason::DemoteUnconfirmed
            | LeaveReason::SupervisionOverflow
            | LeaveReason::StandbyRestarted
            | LeaveReason::StandbyQuit
            | LeaveReason::WrongEpoch
            | LeaveReason::OwnerLeft
            | LeaveReason::ServerLost
            | LeaveReason::NotTaken => {}
        }
    }

    /// What an owner has of its standby, share by share.
    pub(crate) fn audit_standby(&mut self, node: usize) {
        for share in 0..self.plan.shares {
            if !self.is_owner_heard(node, share) {
                self.audit.watches.remove(&(node, share));
                continue;
            }
            let watch = self.keep_watch(node, share);
            if self.hosts[node].kernel.entries[share].generation.is_none() {
                continue;
            }
            let standby = 1 - node;
            let unfit_ns = self.now_ns - watch.fit_ns;
            if unfit_ns > UNFIT_NS {
                self.violate(|_| {
                    let ms = unfit_ns / MS;
                    format!("{standby} is in sync for share {share}, and unfit for {ms} ms")
                });
            }
            if watch.rounds > BARREN_ROUNDS {
                self.audit_births(node, share, watch.since_ns);
            }
        }
    }

    /// What was wrong at a standby is right, perhaps for less than a round.
    pub(crate) fn note_fit(&mut self, standby: usize) {
        let now_ns = self.now_ns;
        for share in 0..self.plan.shares {
            let fit = !self.is_unfit(standby, share);
            let watch = self.audit.watches.get_mut(&(1 - standby, share));
            if let Some(watch) = watch.filter(|_| fit) {
                watch.fit_ns = now_ns;
            }
        }
    }

    fn keep_watch(&mut self, node: usize, share: usize) -> Watch {
        let now_ns = self.now_ns;
        let begun = Watch {
            epoch: self.hosts[node].kernel.entries[share].epoch,
            lives: [0, 1].map(|one: usize| self.hosts[one].life),
            since_ns: now_ns,
            rounds: 0,
            fit_ns: now_ns,
        };
        let fit = !self.is_unfit(1 - node, share);
        let watch = self.audit.watches.entry((node, share)).or_insert(begun);
        if (watch.epoch, watch.lives) != (begun.epoch, begun.lives) {
            *watch = begun;
        }
        watch.rounds += 1;
        if fit {
            watch.fit_ns = now_ns;
        }
        *watch
    }

    /// Twins have been born along each path lately.
    fn audit_births(&mut self, node: usize, share: usize, since_ns: u64) {
        let standby = 1 - node;
        for path in 0..self.plan.habits.paths {
            let way = Way {
                share,
                standby,
                path,
            };
            let born_ns = self.audit.birth(node, way).unwrap_or(0).max(since_ns);
            let barren_ns = self.now_ns - born_ns;
            if barren_ns > BARREN_NS {
                self.violate(|_| {
                    let ms = barren_ns / MS;
                    format!(
                        "{standby} is in sync for share {share}, and no twin was born at path \
                         {path} for {ms} ms"
                    )
                });
            }
        }
    }

    /// Nobody is admitted where no twin was born just now.
    pub(crate) fn audit_join(&mut self, node: usize, share: usize) {
        self.audit_births(node, share, 0);
    }

    /// Whether a node owns a share, may speak, and hears the other server as that hears it.
    fn is_owner_heard(&mut self, node: usize, share: usize) -> bool {
        let id = Self::share_id(share);
        let owns = |agent: &Node| {
            let mut shares = agent.share_status();
            shares.any(|it| it.id == id && it.state == State::Owner)
        };
        let agent = self.hosts[node].agent.as_ref();
        let owns = agent.is_some_and(owns) && self.can_speak(node, share);
        owns && self.is_ready(node, 1 - node) && self.is_ready(1 - node, node)
    }

    /// Whether an agent runs, hears that of another node and is linked with it.
    fn is_ready(&mut self, node: usize, other: usize) -> bool {
        let now_ns = self.now_ns;
        let cut = self.network.mended(Net::Control, node, other, now_ns);
        let host = &self.hosts[node];
        let index = usize::from(peer_of(node, other).0);
        let hears = |agent: &Node| {
            let peer = agent.peer_status().nth(index);
            peer.is_some_and(|peer| {
                debug_assert_eq!(peer.name, name(other), "in the order of the configuration");
                peer.linked && peer.liveness.is_alive()
            })
        };
        cut.is_none() && host.thinks() && host.agent.as_ref().is_some_and(hears)
    }
}
