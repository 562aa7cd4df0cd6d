//! What a node asks of its driver.
//!
//! Actions are grouped by concern, and a driver has one function for each group: a new
//! action of a group is known to that function only.

mod flow;
mod node;
mod reason;
mod share;

use godwit_wire::ShareId;

use super::handoff::HandoffWork;
use crate::PeerId;

pub use flow::{FlowAction, RejoinAction, SnapshotAction, TwinAction};
pub use node::{LeaseAction, PeerAction};
pub use reason::EndReason;
pub use share::{MoveAction, ShareAction};

/// One thing to do, at once and in the order given. What is of another share need
/// not wait for [`ShareAction::EndFlows`], which takes long with thousands of flows.
///
/// The order is part of the contract (`S`, `M`, `F`, `T` and `P` are groups: share, move,
/// flow, twin and peer):
///
/// - a takeover: `S::Set` (owner), `S::Announce`, `S::Revive`;
/// - a standby that is lost: `S::Set` (generation 0), `S::ReleaseGate`;
/// - the owner's server died: `S::Silence`, then `P::Send` (the share is free); if
///   nobody takes it: `P::Send` (the standby is out), then `S::Reopen`;
/// - a demoted flow on the owner: `P::Send` (the question); once it is answered
///   `F::Ungate`. On the standby: `T::MarkDemoted`, then `P::Send` (the answer);
/// - a standby that joins: on the standby `S::Set` (none), `S::EndFlows`,
///   `S::Set` (shadow), `P::Send`; then on the owner `S::Set`;
/// - stepping down: `S::Set` (none), then `S::EndFlows`;
/// - a planned move: on the owner `S::Set` (shadow), `M::HandOver`, `P::Send` (the
///   claim); then on the target `S::Set` (owner), `S::Announce`, `M::Resume`;
/// - a connection that goes to another server: what [`HandoffWork::Obey`] has is
///   written down before the next action is carried out;
/// - a vote: [`LeaseAction::KeepVotes`], then whatever follows from it;
/// - a lease that is given back, or shortened: `S::Set` or `S::SetExpiry`, then
///   [`LeaseAction::Send`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Something for a share.
    Share(ShareId, ShareAction),
    /// Something for a planned move of a share.
    Move(ShareId, MoveAction),
    /// Something for a flow of a share that this node owns.
    Flow(ShareId, FlowAction),
    /// Something for a twin of a share.
    Twin(ShareId, TwinAction),
    /// Something for a running flow of a share that gets a twin.
    Rejoin(ShareId, RejoinAction),
    /// Something for a server's snapshot, of a flow of a share.
    Snapshot(ShareId, SnapshotAction),
    /// Something for a connection that goes to another server by itself. The share is
    /// the one that it is of, or is to be.
    Handoff(ShareId, HandoffWork),
    /// Something for leases and votes.
    Lease(LeaseAction),
    /// Something for a peer.
    Peer(PeerId, PeerAction),
}

impl Action {
    /// The share that it is about, so that its order among others of that share
    /// matters. Leases and peers are about no share.
    pub const fn share(&self) -> Option<ShareId> {
        match self {
            Self::Share(share, _)
            | Self::Move(share, _)
            | Self::Flow(share, _)
            | Self::Twin(share, _)
            | Self::Rejoin(share, _)
            | Self::Snapshot(share, _)
            | Self::Handoff(share, _) => Some(*share),
            Self::Peer(_, PeerAction::Send(message)) => message.share(),
            Self::Peer(_, PeerAction::Stonith) | Self::Lease(_) => None,
        }
    }
}
