//! What a proposer is asked for, and what it reports.

use std::time::Duration;

use godwit_wire::{Epoch, Generation, NodeName, ShareId};

use super::Terms;
use crate::MonoTime;
use crate::share::Ballot;

/// What does not change while the agent runs.
#[derive(Debug, Clone)]
pub struct ProposerConfig {
    /// The share.
    pub share: ShareId,
    /// This node.
    pub node: NodeName,
    /// All voters of the cluster.
    pub voters: Vec<NodeName>,
    /// The other nodes that may own the share.
    pub others: Vec<NodeName>,
    /// Makes epochs that only this node can claim.
    pub ballot: Ballot,
    /// Whether leases do not end by themselves: others are powered off.
    pub endless: bool,
    /// How long leases last.
    pub terms: Terms,
    /// Makes the waits of two candidates differ.
    pub seed: u64,
}

/// Why a node stands for a share, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidacy {
    /// The greatest epoch that it has heard of: it owns under a greater one.
    pub above: Epoch,
    /// The twins that it holds: the epoch of the owner that they shadow, and
    /// their generation.
    pub held: Option<(Epoch, Generation)>,
    /// Whether their owner has no lease: voters can't know who is in sync with it.
    pub unvoted: bool,
    /// The epoch under which it owned last itself, if it has kept all flows: it
    /// goes on with them if nobody has owned since.
    pub kept: Option<Epoch>,
    /// A lease that no longer counts: its holder has handed the share over, or forgotten it.
    pub void: Option<Epoch>,
    /// How long it leaves others the precedence.
    pub stagger: Duration,
    /// The same from the moment on in which a majority may vote that was silent before.
    pub yields: Duration,
    /// When it may begin anew although another standby may hold the connections.
    pub fresh_after: MonoTime,
    /// How long it leaves the last owner, if that was alone, to have its lease back.
    pub owner_has: Duration,
    /// When it may have nodes powered off that do not answer. Only where leases
    /// are endless.
    pub fence_after: MonoTime,
}

/// What happened to the lease of a share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEvent {
    /// This node owns the share.
    Granted {
        /// Under this epoch.
        epoch: Epoch,
        /// Whether a majority knows that its twins hold all that the last owner
        /// told its clients. If not, they must be ended first.
        member: bool,
    },
    /// The end of the lease has moved: see [`super::Proposer::expiry`].
    Moved,
    /// A majority holds the in-sync set of this revision.
    Agreed {
        /// Counts the changes of the set.
        revision: u64,
    },
    /// The lease has ended. The data path is silent by itself.
    Lapsed,
    /// It is in force again, under the same epoch: nobody owned in between.
    Regained,
    /// It can't be had back: another node may have owned the share since.
    Lost {
        /// Who, and under which epoch, if that is known.
        to: Option<(Epoch, NodeName)>,
    },
    /// Nothing can be decided unless this node is powered off.
    FenceWanted {
        /// Which.
        node: NodeName,
    },
}
