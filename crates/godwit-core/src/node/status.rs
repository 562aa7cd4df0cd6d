//! What a node shows of itself, for `godwit status`.

use std::time::Duration;

use godwit_wire::{Epoch, Generation, LeaveReason, NodeName, Role, ShareId};

use super::differences::Difference;
use super::doubt::Doubt;
use super::input::StonithFault;
use super::peer::Power;
use super::wish::MoveError;
use crate::MonoTime;
use crate::detector;
use crate::flow::Counts;
use crate::share::State;

/// One peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its name.
    pub name: NodeName,
    /// Whether it is alive.
    pub liveness: detector::State,
    /// Whether the control link is up and both sides have said hello.
    pub linked: bool,
    /// Start of its agent, as last heard.
    pub incarnation: Option<u64>,
    /// When it was last heard.
    pub heard: Option<MonoTime>,
    /// Longest time between two heartbeats while it was alive.
    pub max_interval: Duration,
    /// Heartbeats that were old, replayed or of another incarnation.
    pub ignored: u64,
    /// Heartbeats that were under way for so long that they count as silence.
    pub late: u64,
    /// Whether it runs with another configuration.
    pub config_differs: bool,
    /// What differs, as soon as it has said what its file has.
    pub differences: Vec<Difference>,
    /// Lease datagrams that were old, replayed, meant for an earlier life of
    /// this node, or counted on other voters.
    pub lease_ignored: u64,
    /// Whether its data path says of a SYN whether it has the connection.
    pub tells_connections: bool,
    /// What it said of shares that was not considered, by reason; those at 0 are left out.
    pub doubts: Vec<(Doubt, u64)>,
    /// What is known of its power.
    pub power: Power,
    /// Why it could not be powered off when that was last tried; `None` when it
    /// has been, or has been heard since.
    pub stonith_fault: Option<StonithFault>,
}

/// One share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareStatus {
    /// Its number.
    pub id: ShareId,
    /// Its name.
    pub name: String,
    /// What this node does.
    pub state: State,
    /// The role that the data path has.
    pub role: Role,
    /// The owner's epoch, as far as it is known.
    pub epoch: Epoch,
    /// The generation of the standby in sync; none if there is none.
    pub generation: Generation,
    /// Who owns it, this node included; `None` if that is not known.
    pub owner: Option<NodeName>,
    /// The standbys in sync, as the owner or the standby itself knows.
    pub in_sync: Vec<NodeName>,
    /// Flows under supervision.
    pub supervised: Counts,
    /// How its lease stands; `None` without fencing.
    pub lease: Option<LeaseStatus>,
    /// As the owner: until when the other node is held off, if it has been.
    pub held_off_until: Option<MonoTime>,
    /// As the owner: standbys that could not prove that twins are born there, and why.
    pub unproved: Vec<(NodeName, LeaveReason)>,
    /// As the owner with a standby: voters without this node could elect nobody.
    pub no_quorum: bool,
    /// As the owner: the move to its primary that was refused.
    pub failback: Option<FailbackStatus>,
}

/// A share that does not go back to its primary, though that stands by for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailbackStatus {
    /// The primary.
    pub to: NodeName,
    /// Why the last move was refused.
    pub refused: MoveError,
    /// When the next one is tried.
    pub again: MonoTime,
}

/// The lease of a share, as this node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseStatus {
    /// Whether this node held it last, may not speak, and wants it back.
    pub lapsed: bool,
    /// When it ends unless it is renewed; `None` if this node does not hold it,
    /// or it is endless.
    pub expiry: Option<MonoTime>,
    /// Whether this node stands for the share.
    pub wanted: bool,
}
