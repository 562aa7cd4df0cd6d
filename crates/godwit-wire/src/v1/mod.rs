//! Version 1 of the control messages. FROZEN.
//!
//! The bytes are pinned by `golden.txt`. New kinds are appended with a new
//! number; anything else is a new version in a new module. The tables are in
//! `docs/protocol.md`.

use core::fmt;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::cursor::Reader;
use crate::{
    Epoch, FlowId, Generation, GoodbyeReason, HandoffId, LeaveReason, MacAddr, MoveRefusal,
    NodeName, ParseError, Restore, SeqNumber, ShareClaim, ShareId, UnprotectedReason,
};

mod director;
mod emit;
mod handoff;
mod kept;
mod lines;
mod output;
mod parse;
mod tags;
#[cfg(test)]
mod tests;

pub use director::{DirectorWord, EntryWord, MAX_DIRECTED, SlotWord};
pub use handoff::{HandoffStep, Party};
pub use kept::{Commit, SnapshotPart};
pub use lines::{ConfigLine, MAX_CONFIG_LINES};
pub use output::{OutputEntry, Said};
pub(crate) use parse::parse_body;
pub use tags::TagWord;

/// The number of this version.
pub const VERSION: u8 = 1;

/// The most flows that one [`Message::Digest`] tells of.
pub const MAX_DIGEST_ENTRIES: usize = 512;

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
}

/// First message of each side on a new link.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// Who speaks; the link's certificate must say the same.
    pub name: NodeName,
    /// Start of the speaking agent; a later start has a greater one.
    pub incarnation: u64,
    /// Oldest version that it speaks.
    pub min_version: u8,
    /// Latest version that it speaks.
    pub max_version: u8,
    /// Key of the tags in the heartbeats that it will send.
    pub heartbeat_key: [u8; 32],
    /// SHA-256 of the part of the configuration that all nodes must share.
    pub config_digest: [u8; 32],
}

/// The key is a secret, so it is not printed.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("name", &self.name)
            .field("incarnation", &self.incarnation)
            .field("min_version", &self.min_version)
            .field("max_version", &self.max_version)
            .field("config_digest", &self.config_digest)
            .finish_non_exhaustive()
    }
}

/// Where one changed flow stands, as its owner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DigestEntry {
    /// The flow.
    pub flow: FlowId,
    /// First byte that the client has not acknowledged.
    pub snd_una: SeqNumber,
    /// Next byte that the owner will send.
    pub snd_nxt: SeqNumber,
    /// Next byte that the owner expects from the client.
    pub rcv_nxt: SeqNumber,
    /// Whether the connection is over.
    pub ended: bool,
}

impl DigestEntry {
    /// Size on the wire, in bytes.
    pub const LEN: usize = FlowId::LEN + 3 * 4 + 1;
}

/// What one agent tells another over their link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Introduces the sender.
    Hello(Hello),
    /// Says what the sender does for a share.
    ShareState(ShareClaim),
    /// From a standby: this is the generation whose twins I hold, zero for
    /// none. From the owner: an offer of a new generation, to be confirmed.
    StandbyReady {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation held, or offered.
        generation: Generation,
    },
    /// From the owner: the standby of that generation is not in the in-sync set.
    StandbyLeft {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that ended.
        generation: Generation,
        /// Why.
        reason: LeaveReason,
    },
    /// From the owner: do not serve this flow at a takeover.
    FlowDemote {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that holds the twin.
        generation: Generation,
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: UnprotectedReason,
    },
    /// From the standby: it will not be served.
    FlowDemoted {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that held the twin.
        generation: Generation,
        /// The flow.
        flow: FlowId,
    },
    /// From the standby: its twin is gone, and the flow will not be served.
    TwinClosed {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that held the twin.
        generation: Generation,
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: UnprotectedReason,
    },
    /// From the owner: where the flows stand that changed since the last one.
    Digest {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that holds the twins.
        generation: Generation,
        /// The flows, at most [`MAX_DIGEST_ENTRIES`].
        entries: Vec<DigestEntry>,
    },
    /// The sender ends.
    Goodbye {
        /// Why.
        reason: GoodbyeReason,
    },
    /// The sender's server process has died. From the owner: it is silent, and
    /// the standby of that generation may take over at once. From the standby:
    /// it is not in that generation any more, and does not take over.
    ServerLost {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that may take over, or that the standby leaves.
        generation: Generation,
    },
    /// From the owner: what its application has said, to be compared.
    Output {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that holds the twins.
        generation: Generation,
        /// The flows, at most [`MAX_DIGEST_ENTRIES`].
        entries: Vec<OutputEntry>,
    },
    /// A planned move: the owner asks, the standby answers. That the owner has
    /// let go it says with its [`Message::ShareState`].
    Move {
        /// The share.
        share: ShareId,
        /// The epoch of the owner that is; of the one to be in a late refusal.
        epoch: Epoch,
        /// The generation whose twins are to be served.
        generation: Generation,
        /// How far it has come.
        step: MoveStep,
    },
    /// From the owner: make a twin of this running flow, which must not be
    /// served yet.
    FlowRestore {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that is to hold the twin.
        generation: Generation,
        /// The flow as it stands, and its log.
        restore: Box<Restore>,
    },
    /// From the owner: more of the log of a flow that is being restored.
    FlowInput {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that is to hold the twin.
        generation: Generation,
        /// The flow.
        flow: FlowId,
        /// Sequence number of the first byte.
        seq: SeqNumber,
        /// Whether the client has ended its side behind these bytes.
        fin: bool,
        /// The bytes.
        input: Vec<u8>,
    },
    /// From the owner: the restored twin has all that the client was told, and
    /// is to be served at a takeover.
    FlowAdmit {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that holds the twin.
        generation: Generation,
        /// The flow.
        flow: FlowId,
    },
    /// From the standby: it will be served.
    FlowAdmitted {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that holds the twin.
        generation: Generation,
        /// The flow.
        flow: FlowId,
    },
    /// One connection goes to another server while it runs.
    Handoff {
        /// The share that it is of, at its origin.
        share: ShareId,
        /// The epoch of the origin.
        epoch: Epoch,
        /// The connection, and which attempt.
        id: HandoffId,
        /// How far it has come.
        step: HandoffStep,
    },
    /// From the owner: keep this snapshot of the state that the flow's server has of
    /// it, in place of an older one. The client has acknowledged all that the server
    /// had written then, or the rest of it comes along.
    FlowSnapshot {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that holds the twin.
        generation: Generation,
        /// The flow.
        flow: FlowId,
        /// A part of the snapshot.
        part: SnapshotPart,
    },
    /// From the standby: it has the whole of the last one of that flow; or, of one
    /// that must not be gone back from: its twin has come there.
    FlowSnapshotKept {
        /// The share.
        share: ShareId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The generation that holds the twin.
        generation: Generation,
        /// The flow.
        flow: FlowId,
        /// The number of the commit, if it is one.
        commit: Option<u64>,
    },
    /// From one director to another, to no other node.
    Director(DirectorWord),
    /// What the sender's file says, to a peer with another one.
    ConfigLines(Vec<ConfigLine>),
    /// Between servers: a connection was offered over the link with a request, and no answer
    /// came.
    Question {
        /// The connection.
        flow: FlowId,
        /// The number of the question, in the life of the connection.
        number: u32,
        /// What is asked, or answered.
        word: QuestionWord,
    },
    /// Between servers: how what they send each other on the data network is proved.
    Tags(TagWord),
    /// Where the sender is on the data network: the MAC address of its service interface.
    Place(MacAddr),
}

/// What servers say over the control link of a connection that one has offered to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionWord {
    /// From who has offered it: have you accepted? If not, never do.
    Settle,
    /// It has not, and never will under that number.
    Never,
    /// It has the connection, or had it.
    Has,
    /// It is accepting it this moment: to be asked again.
    Later,
}

impl QuestionWord {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Settle, Self::Never, Self::Has, Self::Later];

    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Settle => 1,
            Self::Never => 2,
            Self::Has => 3,
            Self::Later => 4,
        }
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        let number = reader.u8("question: word")?;
        let word = Self::ALL.into_iter().find(|word| word.number() == number);
        word.ok_or_else(|| ParseError {
            what: "question: word",
            at,
            got: number.into(),
        })
    }
}

/// A step of a planned move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStep {
    /// From the owner: be ready to own the share.
    Prepare,
    /// From the standby: it is, and will own under this epoch.
    Ready {
        /// Above the owner's.
        successor: Epoch,
    },
    /// From the standby: it will not.
    Refused {
        /// Why.
        reason: MoveRefusal,
    },
}

impl MoveStep {
    pub(crate) const PREPARE: u8 = 1;
    pub(crate) const READY: u8 = 2;
    pub(crate) const REFUSED: u8 = 3;
}

impl Message {
    /// The kind's number on the wire.
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => kind::HELLO,
            Self::ShareState(_) => kind::SHARE_STATE,
            Self::StandbyReady { .. } => kind::STANDBY_READY,
            Self::StandbyLeft { .. } => kind::STANDBY_LEFT,
            Self::FlowDemote { .. } => kind::FLOW_DEMOTE,
            Self::FlowDemoted { .. } => kind::FLOW_DEMOTED,
            Self::TwinClosed { .. } => kind::TWIN_CLOSED,
            Self::Digest { .. } => kind::DIGEST,
            Self::Goodbye { .. } => kind::GOODBYE,
            Self::ServerLost { .. } => kind::SERVER_LOST,
            Self::Output { .. } => kind::OUTPUT,
            Self::Move { .. } => kind::MOVE,
            Self::FlowRestore { .. } => kind::FLOW_RESTORE,
            Self::FlowInput { .. } => kind::FLOW_INPUT,
            Self::FlowAdmit { .. } => kind::FLOW_ADMIT,
            Self::FlowAdmitted { .. } => kind::FLOW_ADMITTED,
            Self::Handoff { .. } => kind::HANDOFF,
            Self::FlowSnapshot { .. } => kind::FLOW_SNAPSHOT,
            Self::FlowSnapshotKept { .. } => kind::FLOW_SNAPSHOT_KEPT,
            Self::Director(_) => kind::DIRECTOR,
            Self::ConfigLines(_) => kind::CONFIG_LINES,
            Self::Question { .. } => kind::QUESTION,
            Self::Tags(_) => kind::TAGS,
            Self::Place(_) => kind::PLACE,
        }
    }

    /// The kind's name, for logs and counters.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::ShareState(_) => "share_state",
            Self::StandbyReady { .. } => "standby_ready",
            Self::StandbyLeft { .. } => "standby_left",
            Self::FlowDemote { .. } => "flow_demote",
            Self::FlowDemoted { .. } => "flow_demoted",
            Self::TwinClosed { .. } => "twin_closed",
            Self::Digest { .. } => "digest",
            Self::Goodbye { .. } => "goodbye",
            Self::ServerLost { .. } => "server_lost",
            Self::Output { .. } => "output",
            Self::Move { .. } => "move",
            Self::FlowRestore { .. } => "flow_restore",
            Self::FlowInput { .. } => "flow_input",
            Self::FlowAdmit { .. } => "flow_admit",
            Self::FlowAdmitted { .. } => "flow_admitted",
            Self::Handoff { .. } => "handoff",
            Self::FlowSnapshot { .. } => "flow_snapshot",
            Self::FlowSnapshotKept { .. } => "flow_snapshot_kept",
            Self::Director(_) => "director",
            Self::ConfigLines(_) => "config_lines",
            Self::Question { .. } => "question",
            Self::Tags(_) => "tags",
            Self::Place(_) => "place",
        }
    }

    /// The share spoken of.
    pub const fn share(&self) -> Option<ShareId> {
        match self {
            Self::Hello(_)
            | Self::Goodbye { .. }
            | Self::Director(_)
            | Self::ConfigLines(_)
            | Self::Tags(_)
            | Self::Place(_)
            | Self::Question { .. } => None,
            Self::ShareState(claim) => Some(claim.share),
            Self::StandbyReady { share, .. }
            | Self::StandbyLeft { share, .. }
            | Self::FlowDemote { share, .. }
            | Self::FlowDemoted { share, .. }
            | Self::TwinClosed { share, .. }
            | Self::Digest { share, .. }
            | Self::ServerLost { share, .. }
            | Self::Output { share, .. }
            | Self::Move { share, .. }
            | Self::FlowRestore { share, .. }
            | Self::FlowInput { share, .. }
            | Self::FlowAdmit { share, .. }
            | Self::FlowAdmitted { share, .. }
            | Self::Handoff { share, .. }
            | Self::FlowSnapshot { share, .. }
            | Self::FlowSnapshotKept { share, .. } => Some(*share),
        }
    }

    /// The same, to be replaced: peers of version 1 have other numbers.
    pub const fn share_mut(&mut self) -> Option<&mut ShareId> {
        match self {
            Self::Hello(_)
            | Self::Goodbye { .. }
            | Self::Director(_)
            | Self::ConfigLines(_)
            | Self::Tags(_)
            | Self::Place(_)
            | Self::Question { .. } => None,
            Self::ShareState(claim) => Some(&mut claim.share),
            Self::StandbyReady { share, .. }
            | Self::StandbyLeft { share, .. }
            | Self::FlowDemote { share, .. }
            | Self::FlowDemoted { share, .. }
            | Self::TwinClosed { share, .. }
            | Self::Digest { share, .. }
            | Self::ServerLost { share, .. }
            | Self::Output { share, .. }
            | Self::Move { share, .. }
            | Self::FlowRestore { share, .. }
            | Self::FlowInput { share, .. }
            | Self::FlowAdmit { share, .. }
            | Self::FlowAdmitted { share, .. }
            | Self::Handoff { share, .. }
            | Self::FlowSnapshot { share, .. }
            | Self::FlowSnapshotKept { share, .. } => Some(share),
        }
    }

    /// The epoch in the header: of the share spoken of, zero if of none.
    pub const fn epoch(&self) -> Epoch {
        match self {
            Self::Hello(_)
            | Self::Goodbye { .. }
            | Self::Director(_)
            | Self::ConfigLines(_)
            | Self::Tags(_)
            | Self::Place(_)
            | Self::Question { .. } => Epoch::NONE,
            Self::ShareState(claim) => claim.epoch,
            Self::StandbyReady { epoch, .. }
            | Self::StandbyLeft { epoch, .. }
            | Self::FlowDemote { epoch, .. }
            | Self::FlowDemoted { epoch, .. }
            | Self::TwinClosed { epoch, .. }
            | Self::Digest { epoch, .. }
            | Self::ServerLost { epoch, .. }
            | Self::Output { epoch, .. }
            | Self::Move { epoch, .. }
            | Self::FlowRestore { epoch, .. }
            | Self::FlowInput { epoch, .. }
            | Self::FlowAdmit { epoch, .. }
            | Self::FlowAdmitted { epoch, .. }
            | Self::Handoff { epoch, .. }
            | Self::FlowSnapshot { epoch, .. }
            | Self::FlowSnapshotKept { epoch, .. } => *epoch,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} epoch {}", self.name(), self.epoch())
    }
}
