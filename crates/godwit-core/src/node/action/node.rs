//! What is asked of the whole node: about leases, and about peers.

use godwit_wire::{LeaseDatagram, Message};

use crate::PeerId;

/// Votes and leases, which are about several shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseAction {
    /// Keep what this node has voted for where it outlives a killed agent, but no boot, in
    /// place of what was kept before. Where that can't be, nothing need be done: the next
    /// agent keeps quiet for as long as any vote may bind.
    KeepVotes {
        /// What [`VoterMemory::of_text`](super::super::VoterMemory::of_text) reads.
        votes: String,
    },
    /// Sign and send a datagram beside the heartbeats.
    Send {
        /// To whom.
        peer: PeerId,
        /// What.
        datagram: LeaseDatagram,
    },
}

/// A peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAction {
    /// Run the configured command that powers the node off. Its outcome goes to
    /// [`crate::Node::handle_stonith`].
    Stonith,
    /// Send a message on the control link.
    Send(Message),
}
