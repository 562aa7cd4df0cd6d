//! What is fed into a node.

use godwit_wire::{FlowId, Generation, GoodbyeReason, Heartbeat, NodeName, ShareClaim, ShareId};

use crate::{MonoTime, PeerId};

/// What counts of an authentic heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Start of the sending agent.
    pub incarnation: u64,
    /// Counts the heartbeats of that incarnation.
    pub sequence: u64,
    /// When it was sent, by the sender's clock; `None` if nobody looks at that.
    pub sent: Option<MonoTime>,
    /// The sender's part in each share.
    pub shares: Vec<ShareClaim>,
}

impl From<Heartbeat> for Beat {
    fn from(heartbeat: Heartbeat) -> Self {
        Self {
            incarnation: heartbeat.incarnation,
            sequence: heartbeat.sequence,
            sent: Some(MonoTime::from_nanos(heartbeat.sent_ns)),
            shares: heartbeat.shares,
        }
    }
}

/// What became of the control link to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A new, authenticated link; the peer's first message is its hello.
    Up,
    /// There is no link.
    Down,
}

/// Why a peer could not be powered off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StonithFault {
    /// The command said so.
    CommandFailed,
    /// The command took too long, and was killed.
    TimedOut,
    /// The command could not be run.
    NotRun,
}

impl StonithFault {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CommandFailed => "command_failed",
            Self::TimedOut => "timed_out",
            Self::NotRun => "not_run",
        }
    }
}

/// Something that the data path noticed about one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEvent {
    /// The share that the flow belongs to.
    pub share: ShareId,
    /// The flow.
    pub flow: FlowId,
    /// The generation that the flow was born with.
    pub generation: Generation,
    /// What was noticed.
    pub kind: FlowEventKind,
}

/// What the data path notices. The numbers are those of `enum gw_event_kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum FlowEventKind {
    /// Owner: the third ACK came 5 ms ago and no twin has answered.
    Unconfirmed = 1,
    /// Owner: nor has one after 30 ms.
    NotConfirmed = 2,
    /// Owner: the let-out ACK trails the owner's own for `lag_limit`.
    Stalled = 3,
    /// Shadow: the twin closed or reset before the flow ended.
    TwinClosed = 4,
    /// The connection is over.
    Ended = 5,
    /// Shadow: no socket could be made for the flow.
    MaterialiseFailed = 6,
    /// Owner: a twin has answered after all.
    Confirmed = 7,
    /// Owner: the new twin of a running flow has spoken.
    Rejoined = 8,
    /// Owner: it has all that the client was told.
    Whole = 9,
    /// Another server has the connection: for this share it is over, as its standby knows.
    Left = 10,
}

impl TryFrom<u32> for FlowEventKind {
    type Error = u32;

    /// Fails with the number itself if it is of a later data path.
    fn try_from(number: u32) -> Result<Self, u32> {
        Ok(match number {
            1 => Self::Unconfirmed,
            2 => Self::NotConfirmed,
            3 => Self::Stalled,
            4 => Self::TwinClosed,
            5 => Self::Ended,
            6 => Self::MaterialiseFailed,
            7 => Self::Confirmed,
            8 => Self::Rejoined,
            9 => Self::Whole,
            10 => Self::Left,
            other => return Err(other),
        })
    }
}

/// At which addresses of a share something listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listening {
    /// At all of them.
    All,
    /// At some: an owner serves those, a standby could not take over the others.
    Partly,
    /// At none.
    Nowhere,
}

impl From<bool> for Listening {
    fn from(all: bool) -> Self {
        if all { Self::All } else { Self::Nowhere }
    }
}

/// Whether server processes that can be given a connection have shown their listeners to
/// this node's agent. Only twins that are kept until a server takes them need that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// At every address of the share, or the share needs none.
    Complete,
    /// Not at every address, for a moment: they may look for the agent.
    Awaited,
    /// Not at every address.
    Missing,
}

/// A server process of this node has died, as far as it concerns one share. The
/// data path keeps its flows silent already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerExit {
    /// The share.
    pub share: ShareId,
    /// Whether a server died. If not, a process has ended that had one connection, or
    /// that was meant to end: no other connection is concerned.
    pub server: bool,
    /// Flows that another node could continue.
    pub kept: u32,
    /// Whether nothing listens for the share any more.
    pub listener_lost: bool,
    /// Whether all services of its addresses can move with it.
    pub movable: bool,
}

/// What people ask of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Get ready for that goodbye: take long leases before a restart, have the
    /// voters know before programs are detached that no standby may take over.
    /// Wait for [`crate::Node::is_prepared`], or as long as there is patience.
    Prepare(GoodbyeReason),
    /// This node can't serve the share at present: its lease is given back, and
    /// wanted again if nobody takes the share within two terms.
    Release(ShareId),
    /// Hand the share, which this node owns, to another node. The answer is
    /// [`crate::MoveAction::Ended`].
    Move {
        /// The share.
        share: ShareId,
        /// Where to.
        to: NodeName,
        /// Whether flows that can't move are reset instead of being in the way.
        force: bool,
    },
    /// Hand connections that are here, by their handshakes or by handoffs, to another
    /// node, together or not at all. The answer is
    /// [`crate::node::HandoffWork::Ended`], for each.
    MoveFlows {
        /// Their share.
        share: ShareId,
        /// Which, each once.
        flows: Vec<FlowId>,
        /// Where to: a server of the same service.
        to: PeerId,
    },
    /// End this agent. Carry out the actions that follow, then stop.
    Goodbye(GoodbyeReason),
}
