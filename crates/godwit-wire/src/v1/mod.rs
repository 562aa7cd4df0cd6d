//! Version 1 of the control messages. FROZEN.
//!
//! The bytes are pinned by `golden.txt`. New kinds are appended with a new
//! number; anything else is a new version in a new module. The tables are in
//! `docs/protocol.md`.
//!
//! Messages are grouped by concern, as the actions of `godwit-core` are. Each group is a
//! file here, which has its kinds, its bytes, and nothing of the other groups.

use core::fmt;

use crate::{Epoch, Generation, ShareClaim, ShareId};

mod director;
mod emit;
mod flow;
mod handoff;
mod kept;
mod lines;
mod network;
mod output;
mod parse;
mod peer;
mod question;
mod rejoin;
mod standby;
mod tags;
#[cfg(test)]
mod tests;
mod twin;

pub use director::{DirectorWord, EntryWord, MAX_DIRECTED, SlotWord};
pub use flow::FlowMessage;
pub use handoff::{HandoffMessage, HandoffStep, Party};
pub use kept::{Commit, SnapshotMessage, SnapshotPart};
pub use lines::{ConfigLine, MAX_CONFIG_LINES};
pub use network::NetworkMessage;
pub use output::{OutputEntry, Said};
pub(crate) use parse::parse_body;
pub use peer::{Hello, PeerMessage};
pub use question::{Question, QuestionWord};
pub use rejoin::RejoinMessage;
pub use standby::{MoveStep, StandbyMessage};
pub use tags::TagWord;
pub use twin::{DigestEntry, MAX_DIGEST_ENTRIES, TwinMessage};

/// The number of this version.
pub const VERSION: u8 = 1;

/// Numbers of the kinds on the wire: append-only.
pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const SHARE_STATE: u8 = 2;
    pub(crate) const STANDBY_READY: u8 = 3;
    pub(crate) const STANDBY_LEFT: u8 = 4;
    pub(crate) const FLOW_DEMOTE: u8 = 5;
    pub(crate) const FLOW_DEMOTED: u8 = 6;
    pub(crate) const TWIN_CLOSED: u8 = 7;
    pub(crate) const DIGEST: u8 = 8;
    pub(crate) const GOODBYE: u8 = 9;
    pub(crate) const SERVER_LOST: u8 = 10;
    pub(crate) const OUTPUT: u8 = 11;
    pub(crate) const MOVE: u8 = 12;
    pub(crate) const FLOW_RESTORE: u8 = 13;
    pub(crate) const FLOW_INPUT: u8 = 14;
    pub(crate) const FLOW_ADMIT: u8 = 15;
    pub(crate) const FLOW_ADMITTED: u8 = 16;
    pub(crate) const HANDOFF: u8 = 17;
    pub(crate) const FLOW_SNAPSHOT: u8 = 18;
    pub(crate) const FLOW_SNAPSHOT_KEPT: u8 = 19;
    pub(crate) const DIRECTOR: u8 = 20;
    pub(crate) const CONFIG_LINES: u8 = 21;
    pub(crate) const QUESTION: u8 = 22;
    pub(crate) const TAGS: u8 = 23;
    pub(crate) const PLACE: u8 = 24;

    pub(crate) const KNOWN: core::ops::RangeInclusive<u8> = HELLO..=PLACE;

    /// For logs and counters; nothing for a number that is none.
    pub(super) const fn name(kind: u8) -> &'static str {
        match kind {
            HELLO => "hello",
            SHARE_STATE => "share_state",
            STANDBY_READY => "standby_ready",
            STANDBY_LEFT => "standby_left",
            FLOW_DEMOTE => "flow_demote",
            FLOW_DEMOTED => "flow_demoted",
            TWIN_CLOSED => "twin_closed",
            DIGEST => "digest",
            GOODBYE => "goodbye",
            SERVER_LOST => "server_lost",
            OUTPUT => "output",
            MOVE => "move",
            FLOW_RESTORE => "flow_restore",
            FLOW_INPUT => "flow_input",
            FLOW_ADMIT => "flow_admit",
            FLOW_ADMITTED => "flow_admitted",
            HANDOFF => "handoff",
            FLOW_SNAPSHOT => "flow_snapshot",
            FLOW_SNAPSHOT_KEPT => "flow_snapshot_kept",
            DIRECTOR => "director",
            CONFIG_LINES => "config_lines",
            QUESTION => "question",
            TAGS => "tags",
            PLACE => "place",
            _ => "",
        }
    }
}

/// What a message of an owner or its standby is about. It counts for nothing once the share
/// has another owner, or the standby another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// The share.
    pub share: ShareId,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// The generation that holds the twins, or is to hold them.
    pub generation: Generation,
}

/// What one agent tells another over their link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// About the sender itself.
    Peer(PeerMessage),
    /// What the sender needs, or has, on the data network.
    Network(NetworkMessage),
    /// Says what the sender does for a share.
    Claim(ShareClaim),
    /// About the standby of a share. The generation is zero if there is none yet.
    Standby(Scope, StandbyMessage),
    /// A planned move: the owner asks, the standby answers. That the owner has
    /// let go it says with its [`Message::Claim`]. The epoch is that of the owner that is;
    /// in a late refusal, that of the one to be.
    Move(Scope, MoveStep),
    /// About one flow that has a twin, or had one.
    Flow(Scope, FlowMessage),
    /// From the owner, about all twins.
    Twin(Scope, TwinMessage),
    /// About a running flow that gets a twin.
    Rejoin(Scope, RejoinMessage),
    /// About the snapshots that a server makes of one flow.
    Snapshot(Scope, SnapshotMessage),
    /// About a connection that goes to another server by itself.
    Handoff(HandoffMessage),
    /// About a connection that was offered with a request.
    Question(Question),
    /// From one director to another, to no other node.
    Director(DirectorWord),
}

impl Message {
    /// The kind's number on the wire.
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Peer(message) => message.kind(),
            Self::Network(message) => message.kind(),
            Self::Claim(_) => kind::SHARE_STATE,
            Self::Standby(_, message) => message.kind(),
            Self::Move(..) => kind::MOVE,
            Self::Flow(_, message) => message.kind(),
            Self::Twin(_, message) => message.kind(),
            Self::Rejoin(_, message) => message.kind(),
            Self::Snapshot(_, message) => message.kind(),
            Self::Handoff(_) => kind::HANDOFF,
            Self::Question(_) => kind::QUESTION,
            Self::Director(_) => kind::DIRECTOR,
        }
    }

    /// The kind's name, for logs and counters.
    pub const fn name(&self) -> &'static str {
        kind::name(self.kind())
    }

    /// The share spoken of.
    pub const fn share(&self) -> Option<ShareId> {
        match self {
            Self::Claim(claim) => Some(claim.share),
            Self::Handoff(message) => Some(message.share),
            Self::Standby(scope, _)
            | Self::Move(scope, _)
            | Self::Flow(scope, _)
            | Self::Twin(scope, _)
            | Self::Rejoin(scope, _)
            | Self::Snapshot(scope, _) => Some(scope.share),
            Self::Peer(_) | Self::Network(_) | Self::Question(_) | Self::Director(_) => None,
        }
    }

    /// The same, to be replaced: peers of version 1 have other numbers.
    pub const fn share_mut(&mut self) -> Option<&mut ShareId> {
        match self {
            Self::Claim(claim) => Some(&mut claim.share),
            Self::Handoff(message) => Some(&mut message.share),
            Self::Standby(scope, _)
            | Self::Move(scope, _)
            | Self::Flow(scope, _)
            | Self::Twin(scope, _)
            | Self::Rejoin(scope, _)
            | Self::Snapshot(scope, _) => Some(&mut scope.share),
            Self::Peer(_) | Self::Network(_) | Self::Question(_) | Self::Director(_) => None,
        }
    }

    /// The epoch in the header: of the share spoken of, zero if of none.
    pub const fn epoch(&self) -> Epoch {
        match self {
            Self::Claim(claim) => claim.epoch,
            Self::Handoff(message) => message.epoch,
            Self::Standby(scope, _)
            | Self::Move(scope, _)
            | Self::Flow(scope, _)
            | Self::Twin(scope, _)
            | Self::Rejoin(scope, _)
            | Self::Snapshot(scope, _) => scope.epoch,
            Self::Peer(_) | Self::Network(_) | Self::Question(_) | Self::Director(_) => Epoch::NONE,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} epoch {}", self.name(), self.epoch())
    }
}
