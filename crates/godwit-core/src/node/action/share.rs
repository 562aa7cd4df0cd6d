//! What is asked for a whole share.

use godwit_wire::{Epoch, Generation, NodeName, Role};

use super::reason::EndReason;
use crate::node::wish::{MoveError, MoveWish};
use crate::{MonoTime, PeerId};

/// A share of this node, as its data path and its link have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareAction {
    /// Write the share's entry in the data path: one map write.
    Set {
        /// What this node does for it.
        role: Role,
        /// The owner's epoch, as far as it is known.
        epoch: Epoch,
        /// The generation of the standby in sync; none if there is none.
        generation: Generation,
        /// The other side of the tap: the standby in sync, or the owner.
        peer: Option<PeerId>,
        /// When an owner falls silent by itself; `None` without a lease that ends.
        expiry: Option<MonoTime>,
    },
    /// Write when the data path falls silent by itself: a part of the share's
    /// entry, every few milliseconds. A time that has passed silences at once.
    SetExpiry {
        /// The epoch that the entry has.
        epoch: Epoch,
        /// The end of the lease less what may sit in queues.
        expiry: MonoTime,
    },
    /// Silence the share, which this node owns, because its server has died:
    /// another node may take it over. Until [`ShareAction::Reopen`], the end of the
    /// ownership, or for half as long again as
    /// [`ShareConfig::server_lost_hold`](super::super::ShareConfig), whichever is first.
    Silence,
    /// Nobody took the share over: end its silence and that of flows whose
    /// process has died, and tell their clients what they have missed.
    Reopen,
    /// Tell the link that the share's addresses are here (gratuitous ARP, NA).
    Announce,
    /// Send an ACK and a probe on busy flows not heard since the takeover.
    Revive {
        /// Counts the rounds from 0.
        attempt: u32,
    },
    /// Open the gates of all flows of a generation: send each held ACK.
    ReleaseGate {
        /// The generation that is over.
        generation: Generation,
    },
    /// End every socket of the share on this node silently. The share's role is
    /// none while this is carried out.
    EndFlows {
        /// Why.
        reason: EndReason,
    },
}

/// A planned move of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveAction {
    /// Look whether all flows of the share could move to the peer, and tell it
    /// of each what this node has. The outcome goes to
    /// [`crate::Node::handle_flow_check`].
    CheckFlows {
        /// Where to.
        peer: PeerId,
    },
    /// The share is about to move, and this node still owns it: reset the flows
    /// that had no twin when they were checked. What the fence forbids is not said.
    ResetUnprotected,
    /// The share has just become a shadow's: tell its new owner once more what
    /// this node has of the flows that were busy when they were checked.
    HandOver,
    /// The share was handed to this node: open the windows of its twins.
    Resume,
    /// Ask this node to move the share, and whatever moves with it, as
    /// [`crate::Command::Move`] does for a person. Shares of one address go together or
    /// stay together; which those are, the driver knows.
    Ask {
        /// Where to, and why.
        wish: MoveWish,
    },
    /// Answer whoever asked for a move.
    Ended {
        /// Where it is now, or why it did not move.
        outcome: Result<NodeName, MoveError>,
    },
}
