//! Planned moves, for people and drivers: who wants one, and why it did not come about.

use godwit_wire::{MoveRefusal, NodeName};

/// Why a share does not move. Everything is as before then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveError {
    /// This node does not own the share.
    NotOwner {
        /// Who does, as far as is known.
        owner: Option<NodeName>,
    },
    /// It is where it is to go.
    AlreadyThere,
    /// Another move of it is under way.
    AlreadyMoving,
    /// The target is no server of this share.
    NotAMember,
    /// The target can't be reached.
    TargetDown,
    /// The target is not in the in-sync set.
    NotInSync,
    /// The owner may not speak at present, so it has nothing to hand over.
    NotInForce,
    /// The target says that it will not.
    Target(MoveRefusal),
    /// The target did not answer.
    TargetSilent,
    /// Flows would be lost.
    Unprotected {
        /// How many.
        flows: u32,
    },
    /// Another share of its address does not move: an address is in one place.
    Mate,
    /// The target took it over, as from an owner that failed, before it was handed
    /// to it.
    TakenOver,
    /// The owner failed, stepped down or ends.
    Interrupted,
}

impl MoveError {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotOwner { .. } => "not_owner",
            Self::AlreadyThere => "already_there",
            Self::AlreadyMoving => "already_moving",
            Self::NotAMember => "not_a_member",
            Self::TargetDown => "target_down",
            Self::NotInSync => "not_in_sync",
            Self::NotInForce => "not_in_force",
            Self::Target(reason) => reason.as_str(),
            Self::TargetSilent => "target_silent",
            Self::Unprotected { .. } => "unprotected",
            Self::Mate => "mate",
            Self::TakenOver => "taken_over",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Why a node wants a share to move that nobody has asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveCause {
    /// Nothing listens here, and something does at the standby.
    ServerMissing,
    /// Clients do not reach the service here.
    Unfit,
    /// The primary has been in sync for long enough.
    Failback,
    /// The share has begun here, as its primary did not have it yet. Now it is in sync.
    FirstHome,
}

impl MoveCause {
    /// The stable name, which is that of its event.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ServerMissing => "server_missing_hand_over",
            Self::Unfit => "unfit_hand_over",
            Self::Failback => "failback_hand_over",
            Self::FirstHome => "home_hand_over",
        }
    }
}

/// Where a share is to move that nobody has asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveWish {
    /// The node that is to own it.
    pub to: NodeName,
    /// Whether flows that can't move are reset.
    pub force: bool,
    /// Why.
    pub cause: MoveCause,
}

/// What the flows of a share, and of those that move with it, look like to an
/// owner that wants to hand them over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowCheck {
    /// The standby has no twin of them that may be served.
    pub unprotected: u32,
    /// Their twin has not answered yet.
    pub confirming: u32,
    /// A share that was to move with it does not.
    pub mate_stays: bool,
}
