//! A move that a node wants by itself.

use godwit_wire::NodeName;

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
