//! What a node shows of itself, for `godwit status`.

use std::time::Duration;

use godwit_wire::{Epoch, Generation, NodeName, Role, ShareId};

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
    /// Whether it runs with another configuration.
    pub config_differs: bool,
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
}
