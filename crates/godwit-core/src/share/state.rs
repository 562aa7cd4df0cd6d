//! The states of the role machine, and why they change.

use godwit_wire::{Epoch, Generation, Role};

use crate::{MonoTime, PeerId};

/// Whom this node stands by for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// The owner.
    pub peer: PeerId,
    /// The period of its ownership.
    pub epoch: Epoch,
}

/// What this node does for the share.
///
/// ```text
///              peer owns              admitted          (Owner ── moved ──► Shadow)
///  Starting ─────────────► Standby ─────────────► Shadow
///     │     ◄───────────── │  ▲  ▲ ◄───────────── │ │
///     │      owner forgot  │  │  │    dismissed,   │ │ owner failed, shut
///     │                    │  │  │    server lost   │ │ down, forgot, or
///     │ nobody owns        │  │  └─ other owner ───┘ │ its server died
///     ▼       owner failed │  │ superseded           │
///   Owner ◄────────────────┘  │                      │
///     │  ◄─────────────────── │ ─────────────────────┘
///     └───────────────────────┘          any state ── quit ──► Quitting
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Listens for an owner.
    Starting {
        /// When it claims if nobody owns.
        until: MonoTime,
    },
    /// Silent, without twins that may be served.
    Standby {
        /// `None` after the owner has detached: nobody is to claim.
        owner: Option<Ownership>,
    },
    /// Silent, with the twins of one generation.
    Shadow {
        /// Whose flows they are.
        owner: Ownership,
        /// The number that the owner gave this generation.
        generation: Generation,
    },
    /// Speaks to the clients.
    Owner,
    /// The agent ends; nothing changes any more.
    Quitting,
}

impl State {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting { .. } => "starting",
            Self::Standby { .. } => "standby",
            Self::Shadow { .. } => "shadow",
            Self::Owner => "owner",
            Self::Quitting => "quitting",
        }
    }

    /// The role in the data path that belongs to the state.
    pub const fn role(self) -> Role {
        match self {
            Self::Starting { .. } | Self::Standby { .. } | Self::Quitting => Role::None,
            Self::Shadow { .. } => Role::Shadow,
            Self::Owner => Role::Owner,
        }
    }

    /// Whom this node stands by for, if anyone.
    pub const fn owner(self) -> Option<Ownership> {
        match self {
            Self::Standby { owner } => owner,
            Self::Shadow { owner, .. } => Some(owner),
            Self::Starting { .. } | Self::Owner | Self::Quitting => None,
        }
    }
}

/// Why the state changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nobody owned the share at start.
    ColdStart,
    /// A peer owns it.
    PeerOwns,
    /// The owner is silent.
    OwnerFailed,
    /// The owner goes down and said so.
    OwnerShutdown,
    /// The owner took its programs away; its connections go on.
    OwnerDetached,
    /// The owner's server process died, and the owner said so.
    OwnerServerLost,
    /// The owner came back without its connections.
    OwnerForgot,
    /// The owner gave its lease back.
    OwnerReleased,
    /// The owner's lease has ended, although it is heard.
    LeaseLapsed,
    /// Our lease has ended, and another node may have owned the share since.
    LeaseLost,
    /// A peer owns it under a greater epoch.
    Superseded,
    /// A greater epoch was heard from a node that does not own: claimed anew.
    Raised,
    /// The owner admitted this node to the in-sync set.
    Admitted,
    /// The owner removed this node from the in-sync set.
    Dismissed,
    /// This node's server process died, or nothing listens any more.
    ServerLost,
    /// Something that this node relies on is wrong: no twins can be here.
    Unfit,
    /// The owner handed the share to its standby, as planned.
    Moved,
    /// It was handed over and the standby did not take it: taken back.
    MovedBack,
    /// The agent ends.
    Quit,
}

impl Reason {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ColdStart => "cold_start",
            Self::PeerOwns => "peer_owns",
            Self::OwnerFailed => "owner_failed",
            Self::OwnerShutdown => "owner_shutdown",
            Self::OwnerDetached => "owner_detached",
            Self::OwnerServerLost => "owner_server_lost",
            Self::OwnerForgot => "owner_forgot",
            Self::OwnerReleased => "owner_released",
            Self::LeaseLapsed => "lease_lapsed",
            Self::LeaseLost => "lease_lost",
            Self::Superseded => "superseded",
            Self::Raised => "raised",
            Self::Admitted => "admitted",
            Self::Dismissed => "dismissed",
            Self::ServerLost => "server_lost",
            Self::Unfit => "unfit",
            Self::Moved => "moved",
            Self::MovedBack => "moved_back",
            Self::Quit => "quit",
        }
    }

    /// Whether becoming the owner for this reason continues another's connections.
    pub const fn is_takeover(self) -> bool {
        match self {
            Self::OwnerFailed
            | Self::OwnerShutdown
            | Self::OwnerServerLost
            | Self::OwnerForgot
            | Self::OwnerReleased
            | Self::MovedBack
            | Self::LeaseLapsed => true,
            Self::ColdStart
            | Self::LeaseLost
            | Self::PeerOwns
            | Self::OwnerDetached
            | Self::Superseded
            | Self::Raised
            | Self::Admitted
            | Self::Dismissed
            | Self::ServerLost
            | Self::Moved
            | Self::Unfit
            | Self::Quit => false,
        }
    }
}
