//! What a node is told at start. The agent has checked it.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_wire::{Epoch, Generation, NodeName, Role, ShareId};

use crate::MonoTime;
use crate::lease::Terms;

/// Configuration of a [`crate::Node`].
#[derive(Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// This node.
    pub name: NodeName,
    /// Start of this agent: seconds since 1970 in the upper 32 bits, fraction
    /// in the lower. A later start must have a greater one.
    pub incarnation: u64,
    /// The other nodes; a [`crate::PeerId`] is an index into this.
    pub peers: Vec<PeerConfig>,
    /// All shares. This node serves those that it is primary or backup of; on
    /// the leases of the others it only votes. A witness serves none.
    pub shares: Vec<ShareConfig>,
    /// What shares with a fence need.
    pub lease: LeaseConfig,
    /// Time between two heartbeats; 1 ms to 10 s.
    pub heartbeat: Duration,
    /// How many heartbeats a peer may miss; 2 to 100.
    pub misses: u32,
    /// How long a primary listens for an owner before it claims.
    /// [`NodeConfig::STARTUP_GRACE`] unless there is a reason.
    pub startup_grace: Duration,
    /// Key of the tags in our heartbeats; drawn anew at each start.
    pub heartbeat_key: [u8; 32],
    /// SHA-256 of the part of the configuration that all nodes must share.
    pub config_digest: [u8; 32],
}

impl NodeConfig {
    /// The usual [`NodeConfig::startup_grace`]: links come up in less.
    pub const STARTUP_GRACE: Duration = Duration::from_millis(300);
}

/// The key is a secret, so it is not printed.
impl std::fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeConfig")
            .field("name", &self.name)
            .field("incarnation", &self.incarnation)
            .field("peers", &self.peers)
            .field("shares", &self.shares)
            .field("lease", &self.lease)
            .field("heartbeat", &self.heartbeat)
            .field("misses", &self.misses)
            .field("startup_grace", &self.startup_grace)
            .finish_non_exhaustive()
    }
}

/// What leases need to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Who votes; the same on all nodes. This node may be one of them.
    pub voters: Vec<NodeName>,
    /// How long leases last.
    pub terms: Terms,
    /// Until then this node does not vote, for what an earlier agent of it voted
    /// for may be in force: what [`Node::bound_until`](crate::Node::bound_until)
    /// said when that ended in order, [`Terms::quarantine`] from now if it did
    /// not, and from [`MonoTime::ZERO`] if there was none since the host booted.
    pub quiet_until: MonoTime,
    /// Makes the waits of candidates differ.
    pub seed: u64,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            voters: Vec::new(),
            terms: Terms::default(),
            quiet_until: MonoTime::ZERO,
            seed: 0,
        }
    }
}

/// Another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerConfig {
    /// Its name, as in its certificate.
    pub name: NodeName,
}

/// What keeps a failed owner silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fencing {
    /// Nothing: an owner that only seemed to fail goes on speaking. Unsafe.
    #[default]
    None,
    /// The end of its lease: its data path falls silent by the clock.
    Lease,
    /// Its power switch. Leases do not end by themselves.
    Stonith,
}

impl Fencing {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lease => "lease",
            Self::Stonith => "stonith",
        }
    }

    /// Whether leases are endless; `None` without leases.
    pub const fn endless(self) -> Option<bool> {
        match self {
            Self::None => None,
            Self::Lease => Some(false),
            Self::Stonith => Some(true),
        }
    }
}

/// One share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareConfig {
    /// Its number, the same on all nodes.
    pub id: ShareId,
    /// Its name, for people.
    pub name: String,
    /// Who owns it when the cluster starts.
    pub primary: NodeName,
    /// Who may take it over, in order.
    pub backups: Vec<NodeName>,
    /// The other shares that have an address in common with it.
    pub mates: Vec<ShareId>,
    /// What keeps a failed owner silent.
    pub fencing: Fencing,
    /// How long the owner, when its server process has died, stays silent for a
    /// standby to take over; two lease times. Zero: it does not, clients see the
    /// connections end.
    pub server_lost_hold: Duration,
    /// What happens to flows whose twins do not keep step.
    pub policy: FlowPolicy,
    /// How many involuntary moves of the share and losses of its standby within a
    /// minute are too many; 0: none are.
    pub flap_limit: u32,
    /// How long the primary must have been in sync before the share goes back to
    /// it by itself; `None`: it does not.
    pub failback: Option<Duration>,
    /// Along how many paths a standby has to prove that twins are born there, one for
    /// each address; 0: it is believed.
    pub paths: u8,
    /// Its connections go one by one to shares that have the same number here;
    /// `None`: they stay with the share.
    pub moves_within: Option<ShareId>,
    /// What the pinned maps of an earlier agent of this node say.
    pub resume: Option<Resume>,
}

/// What happens to a flow whose twin does not keep step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowPolicy {
    /// The client waits for a twin that lags; else the flow is let go.
    pub wait_for_lagging: bool,
    /// One that says something else is reported only; else the flow is let go.
    pub report_divergence: bool,
}

/// The state of a share that an earlier agent left in the data path.
///
/// What it left of flows goes to [`crate::Node::handle_inherited_flows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// What the node does.
    pub role: Role,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// The generation of the standby that is in sync.
    pub generation: Generation,
    /// When the data path falls silent by itself, see [`crate::ShareAction::Set`].
    pub expiry: Option<MonoTime>,
    /// The other side of that: of an owner its standby, of a standby its owner. `None`: not
    /// known; the only other node of the share is meant then.
    pub other: Option<NodeName>,
}

/// The shares that have addresses in common with others, and these.
pub(super) type Mates = BTreeMap<ShareId, Vec<ShareId>>;

pub(super) fn mates(config: &NodeConfig) -> Mates {
    let shares = config.shares.iter();
    let with = shares.filter(|share| !share.mates.is_empty());
    with.map(|share| (share.id, share.mates.clone())).collect()
}
