//! What is asked for one flow, or its twin.

use godwit_wire::{
    FlowId, Generation, OutputEntry, Restore, SeqNumber, SnapshotPart, UnprotectedReason,
};

use super::reason::EndReason;

/// One flow of a share that this node owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowAction {
    /// Open the gate of one flow: send its held ACK.
    Ungate {
        /// The flow.
        flow: FlowId,
        /// Why it is unprotected now.
        reason: UnprotectedReason,
    },
    /// Send the flow's handshake to the standby again.
    ResendHandshake {
        /// The flow.
        flow: FlowId,
    },
}

/// One twin, on a standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TwinAction {
    /// Compare a twin with what the owner has said; a difference goes to
    /// [`crate::Node::handle_divergence`].
    Compare {
        /// What was said.
        entry: OutputEntry,
    },
    /// Reset this flow at a takeover instead of serving it (`not_in_sync`).
    MarkDemoted {
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: UnprotectedReason,
    },
    /// End one twin silently.
    End {
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: EndReason,
    },
    /// Tell a twin what the client has acknowledged, as the tap may have missed it.
    Poke {
        /// The flow.
        flow: FlowId,
        /// First byte that the client has not acknowledged.
        snd_una: SeqNumber,
    },
}

/// A twin for a flow that runs already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejoinAction {
    /// As the owner: open the tap for a running flow, and answer with
    /// [`crate::Node::handle_restore`].
    Begin {
        /// The flow.
        flow: FlowId,
        /// The generation that is to hold its twin.
        generation: Generation,
    },
    /// As the owner: answer with what the twin of a flow lacks of its log, by
    /// [`crate::Node::handle_log`]; nothing if it lacks nothing.
    FeedLog {
        /// The flow.
        flow: FlowId,
    },
    /// As the owner: the flow is protected. Answer with
    /// [`crate::Node::handle_flow_protected`].
    Protect {
        /// The flow.
        flow: FlowId,
    },
    /// As a standby: make a twin of a running flow, in place of one that may be
    /// here, and replay its log. It must not be served yet.
    Restore {
        /// The generation that is to hold it.
        generation: Generation,
        /// The flow and its log.
        restore: Box<Restore>,
    },
    /// As a standby: more of that log.
    Feed {
        /// The flow.
        flow: FlowId,
        /// Sequence number of the first byte.
        seq: SeqNumber,
        /// Whether the client has ended its side behind the bytes.
        fin: bool,
        /// The bytes.
        input: Vec<u8>,
    },
    /// As a standby: that twin may be served at a takeover. If it is well,
    /// answer with [`crate::Node::handle_twin_admitted`].
    Admit {
        /// The flow.
        flow: FlowId,
    },
}

/// What a server exports of its own state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotAction {
    /// As a standby: keep a part of a snapshot of a server's state, and answer with
    /// [`crate::Node::handle_snapshot_kept`] when it is whole; of a commit, when the
    /// twin has come there.
    Keep {
        /// The flow.
        flow: FlowId,
        /// The part.
        part: SnapshotPart,
    },
    /// As the owner: the standby has the last snapshot of the flow that it was sent.
    Kept {
        /// The flow.
        flow: FlowId,
        /// The number of the commit, if it is one.
        commit: Option<u64>,
    },
}
