//! What a node asks of its driver.

use std::collections::VecDeque;

use godwit_wire::{
    Epoch, FlowId, Generation, LeaseDatagram, Message, NodeName, OutputEntry, Restore, Role,
    SeqNumber, ShareId, SnapshotPart, UnprotectedReason,
};

use super::event::{Event, EventKind};
use super::handoff::HandoffWork;
use super::moving::MoveError;
use super::wish::MoveWish;
use crate::{MonoTime, PeerId};

/// Why sockets of this node are to end, silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The connection is over at its owner.
    EndedAtOwner,
    /// The twins are of a stay in the in-sync set that is over.
    NotInSync,
    /// Another node owns the share.
    Superseded,
    /// Nobody owns the share any more: whoever does next begins it anew, unless somebody
    /// else has twins.
    NobodyOwns,
    /// The owner's connections go on without Godwit.
    OwnerDetached,
    /// This agent ends.
    Quit,
}

impl EndReason {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EndedAtOwner => "ended_at_owner",
            Self::NotInSync => "not_in_sync",
            Self::Superseded => "superseded",
            Self::NobodyOwns => "nobody_owns",
            Self::OwnerDetached => "owner_detached",
            Self::Quit => "quit",
        }
    }
}

/// One thing to do, at once and in the order given. What is of another share need
/// not wait for [`Action::EndFlows`], which takes long with thousands of flows.
///
/// The order is part of the contract:
///
/// - a takeover: `SetShare` (owner), `Announce`, `Revive`;
/// - a standby that is lost: `SetShare` (generation 0), `ReleaseGate`;
/// - the owner's server died: `Silence`, then `Send` (the share is free); if
///   nobody takes it: `Send` (the standby is out), then `Reopen`;
/// - a demoted flow on the owner: `Send` (the question); once it is answered
///   `UngateFlow`. On the standby: `MarkDemoted`, then `Send` (the answer);
/// - a standby that joins: on the standby `SetShare` (none), `EndFlows`,
///   `SetShare` (shadow), `Send`; then on the owner `SetShare`;
/// - stepping down: `SetShare` (none), then `EndFlows`;
/// - a planned move: on the owner `SetShare` (shadow), `HandOver`, `Send` (the
///   claim); then on the target `SetShare` (owner), `Announce`, `Resume`;
/// - a connection that goes to another server: what [`HandoffWork::Obey`] has is
///   written down before the next action is carried out;
/// - a vote: `KeepVotes`, then whatever follows from it;
/// - a lease that is given back, or shortened: `SetShare` or `SetExpiry`, then
///   `SendLease`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Keep what this node has voted for where it outlives a killed agent, but no boot, in
    /// place of what was kept before. Where that can't be, nothing need be done: the next
    /// agent keeps quiet for as long as any vote may bind.
    KeepVotes {
        /// What [`VoterMemory::of_text`](super::VoterMemory::of_text) reads.
        votes: String,
    },
    /// Write the share's entry in the data path: one map write.
    SetShare {
        /// The share.
        share: ShareId,
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
        /// The share.
        share: ShareId,
        /// The epoch that the entry has.
        epoch: Epoch,
        /// The end of the lease less what may sit in queues.
        expiry: MonoTime,
    },
    /// Silence the share, which this node owns, because its server has died:
    /// another node may take it over. Until [`Action::Reopen`], the end of the
    /// ownership, or for half as long again as
    /// [`ShareConfig::server_lost_hold`](super::ShareConfig), whichever is first.
    Silence {
        /// The share.
        share: ShareId,
    },
    /// Nobody took the share over: end its silence and that of flows whose
    /// process has died, and tell their clients what they have missed.
    Reopen {
        /// The share.
        share: ShareId,
    },
    /// Tell the link that the share's addresses are here (gratuitous ARP, NA).
    Announce {
        /// The share.
        share: ShareId,
    },
    /// Send an ACK and a probe on busy flows not heard since the takeover.
    Revive {
        /// The share.
        share: ShareId,
        /// Counts the rounds from 0.
        attempt: u32,
    },
    /// Look whether all flows of the share could move to the peer, and tell it
    /// of each what this node has. The outcome goes to
    /// [`crate::Node::handle_flow_check`].
    CheckFlows {
        /// The share, which this node owns.
        share: ShareId,
        /// Where to.
        peer: PeerId,
    },
    /// The share is about to move, and this node still owns it: reset the flows
    /// that had no twin when they were checked. What the fence forbids is not said.
    ResetUnprotected {
        /// The share.
        share: ShareId,
    },
    /// The share has just become a shadow's: tell its new owner once more what
    /// this node has of the flows that were busy when they were checked.
    HandOver {
        /// The share.
        share: ShareId,
    },
    /// The share was handed to this node: open the windows of its twins.
    Resume {
        /// The share.
        share: ShareId,
    },
    /// Answer whoever asked for a move.
    MoveEnded {
        /// The share.
        share: ShareId,
        /// Where it is now, or why it did not move.
        outcome: Result<NodeName, MoveError>,
    },
    /// Open the gates of all flows of a generation: send each held ACK.
    ReleaseGate {
        /// The share.
        share: ShareId,
        /// The generation that is over.
        generation: Generation,
    },
    /// Open the gate of one flow: send its held ACK.
    UngateFlow {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
        /// Why it is unprotected now.
        reason: UnprotectedReason,
    },
    /// Ask this node to move the share, and whatever moves with it, as
    /// [`crate::Command::Move`] does for a person. Shares of one address go together or
    /// stay together; which those are, the driver knows.
    AskMove {
        /// The share.
        share: ShareId,
        /// Where to, and why.
        wish: MoveWish,
    },
    /// Send the flow's handshake to the standby again.
    ResendHandshake {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
    },
    /// Reset this flow at a takeover instead of serving it (`not_in_sync`).
    MarkDemoted {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: UnprotectedReason,
    },
    /// Compare a twin with what the owner has said; a difference goes to
    /// [`crate::Node::handle_divergence`].
    Compare {
        /// The share.
        share: ShareId,
        /// What was said.
        entry: OutputEntry,
    },
    /// End one twin silently.
    EndTwin {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: EndReason,
    },
    /// End every socket of the share on this node silently. The share's role is
    /// none while this is carried out.
    EndFlows {
        /// The share.
        share: ShareId,
        /// Why.
        reason: EndReason,
    },
    /// Tell a twin what the client has acknowledged, as the tap may have missed it.
    PokeTwin {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
        /// First byte that the client has not acknowledged.
        snd_una: SeqNumber,
    },
    /// As the owner: open the tap for a running flow, and answer with
    /// [`crate::Node::handle_restore`].
    BeginRejoin {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
        /// The generation that is to hold its twin.
        generation: Generation,
    },
    /// As the owner: answer with what the twin of a flow lacks of its log, by
    /// [`crate::Node::handle_log`]; nothing if it lacks nothing.
    FeedLog {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
    },
    /// As the owner: the flow is protected. Answer with
    /// [`crate::Node::handle_flow_protected`].
    ProtectFlow {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
    },
    /// As a standby: make a twin of a running flow, in place of one that may be
    /// here, and replay its log. It must not be served yet.
    RestoreTwin {
        /// The share.
        share: ShareId,
        /// The generation that is to hold it.
        generation: Generation,
        /// The flow and its log.
        restore: Box<Restore>,
    },
    /// As a standby: more of that log.
    FeedTwin {
        /// The share.
        share: ShareId,
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
    AdmitTwin {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
    },
    /// As a standby: keep a part of a snapshot of a server's state, and answer with
    /// [`crate::Node::handle_snapshot_kept`] when it is whole; of a commit, when the
    /// twin has come there.
    KeepSnapshot {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
        /// The part.
        part: SnapshotPart,
    },
    /// As the owner: the standby has the last snapshot of the flow that it was sent.
    SnapshotKept {
        /// The share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
        /// The number of the commit, if it is one.
        commit: Option<u64>,
    },
    /// Do something for a connection that goes to another server by itself.
    Handoff {
        /// The share that it is of, or is to be.
        share: ShareId,
        /// What.
        work: HandoffWork,
    },
    /// Sign and send a datagram beside the heartbeats.
    SendLease {
        /// To whom.
        peer: PeerId,
        /// What.
        datagram: LeaseDatagram,
    },
    /// Run the configured command that powers a node off. Its outcome goes to
    /// [`crate::Node::handle_stonith`].
    Stonith {
        /// Which.
        peer: PeerId,
    },
    /// Send a message on the control link.
    Send {
        /// To whom.
        peer: PeerId,
        /// What.
        message: Message,
    },
}

impl Action {
    /// The share that it is about, so that its order among others of that share
    /// matters. Leases and peers are about no share.
    pub const fn share(&self) -> Option<ShareId> {
        match self {
            Self::SetShare { share, .. }
            | Self::SetExpiry { share, .. }
            | Self::Silence { share }
            | Self::Reopen { share }
            | Self::Announce { share }
            | Self::Revive { share, .. }
            | Self::CheckFlows { share, .. }
            | Self::ResetUnprotected { share }
            | Self::HandOver { share }
            | Self::Resume { share }
            | Self::MoveEnded { share, .. }
            | Self::AskMove { share, .. }
            | Self::ReleaseGate { share, .. }
            | Self::UngateFlow { share, .. }
            | Self::ResendHandshake { share, .. }
            | Self::MarkDemoted { share, .. }
            | Self::Compare { share, .. }
            | Self::EndTwin { share, .. }
            | Self::EndFlows { share, .. }
            | Self::PokeTwin { share, .. }
            | Self::BeginRejoin { share, .. }
            | Self::FeedLog { share, .. }
            | Self::ProtectFlow { share, .. }
            | Self::RestoreTwin { share, .. }
            | Self::FeedTwin { share, .. }
            | Self::AdmitTwin { share, .. }
            | Self::KeepSnapshot { share, .. }
            | Self::SnapshotKept { share, .. }
            | Self::Handoff { share, .. } => Some(*share),
            Self::Send { message, .. } => message.share(),
            Self::KeepVotes { .. } | Self::SendLease { .. } | Self::Stonith { .. } => None,
        }
    }
}

/// Collects what a node has decided.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outbox {
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    /// Peers that nothing can be decided without unless they are off.
    fences: Vec<PeerId>,
}

impl Outbox {
    pub(crate) fn want_fence(&mut self, peer: PeerId) {
        self.fences.push(peer);
    }

    pub(crate) fn take_fences(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.fences)
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn send(&mut self, peer: PeerId, message: Message) {
        self.act(Action::Send { peer, message });
    }

    pub(crate) fn tell(&mut self, at: MonoTime, kind: EventKind) {
        self.events.push_back(Event { at, kind });
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
