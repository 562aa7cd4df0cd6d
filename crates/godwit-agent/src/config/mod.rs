//! The configuration file (`docs/configuration.md`), parsed once into valid types.
//!
//! Nothing after this module sees a raw string: names, addresses, durations
//! and sizes are checked here, and so is everything that one key says about
//! another. The first problem is reported, as one sentence with file, line
//! and key. What is written but not yet acted upon becomes a warning
//! ([`Config::warnings`]), never silence.

mod change;
mod check;
mod digest;
mod error;
mod keyword;
mod legacy;
mod lines;
mod mask;
mod plain;
mod policy;
mod reader;
mod rule;
mod sections;
mod service;
mod spelling;
#[cfg(test)]
mod tests;
mod units;
mod value;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use godwit_core::PeerId;
use godwit_core::director::TableSize;
use godwit_wire::{MacAddr, NodeName, ShareId};

pub use change::{Change, KeyChange};
pub use error::{ConfigError, Problem};
pub use keyword::{
    Failback, Fencing, Front, Gate, Hook, OnDivergence, OnLag, OnProcessExit, PeerRole, Reach,
    Reprotect, Snapshots, Standby, Tap, Unread,
};
pub(crate) use legacy::Places;
pub use lines::Line;
pub use plain::{InterfaceName, Seed};
pub use policy::{PolicyConfig, ProgramConfig};
pub use rule::RuleConfig;
pub use sections::DEFAULT_RUN_DIR;
pub use service::{DivergenceConfig, HandoffConfig, LagConfig, ServiceConfig};
pub use units::Fraction;

use crate::files;
use reader::Source;

/// A whole configuration, valid in itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file it was read from, from the root on.
    pub path: PathBuf,
    /// What was in it.
    pub text: Arc<str>,
    /// What differs from node to node.
    pub node: NodeConfig,
    /// Nodes that vote on leases.
    pub voters: Vec<NodeName>,
    /// Every node of the cluster, this one too, by name.
    pub peers: Vec<PeerConfig>,
    /// Where this node's certificates are.
    pub tls: TlsPaths,
    /// Failure detection and fencing.
    pub detect: DetectConfig,
    /// What directors go by, if there are any.
    pub director: Option<DirectorConfig>,
    /// The services, in the order of the file, which means nothing.
    pub services: Vec<ServiceConfig>,
    /// Sentences about what is written but has no effect in this version.
    pub warnings: Vec<String>,
    /// SHA-256 of what must be equal on all nodes.
    pub digest: [u8; 32],
}

/// The `[node]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// This node's name, one of the peers'.
    pub name: NodeName,
    /// The interface that carries the service addresses.
    pub interface: InterfaceName,
    /// Where sockets and state of running agents live; `/run/godwit` unless given.
    pub run_dir: PathBuf,
    /// The group whose processes may use the agent through `libgodwit`; only root
    /// unless given.
    pub app_group: Option<String>,
    /// Where Prometheus may read metrics over plain HTTP; off unless given.
    pub metrics: Option<SocketAddr>,
}

/// A `[[peer]]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// Its name, which its certificate must carry.
    pub name: NodeName,
    /// What it is in the cluster.
    pub role: PeerRole,
    /// Where it is reached by peers: control messages over TCP, heartbeats over UDP.
    pub control: SocketAddr,
    /// The address whose MAC gets mirrored segments; its `control` address unless given.
    pub data: IpAddr,
    /// How many new connections a director gives it, against the others: 0 to 1000, 1
    /// unless given.
    pub weight: u16,
    /// How a director's frames come to it.
    pub reach: Reach,
    /// Who sends them on its own link, if they come in a tunnel; none: anybody.
    pub routers: Vec<MacAddr>,
}

/// The `[director]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectorConfig {
    /// Seed of the hash of flows.
    pub seed: Seed,
    /// Slots of each service.
    pub table_size: TableSize,
    /// Most connections that have an entry, 1024 to 2^24.
    pub max_entries: u32,
    /// Where the program is.
    pub hook: Hook,
    /// Of tunnels to servers that are not on the link, 1 to 2^24 - 1.
    pub vni: u32,
    /// How long back-ends are waited for at the start, 0 to 60 s.
    pub grace: Duration,
}

/// The `[tls]` section, paths made absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPaths {
    /// The authority that every node's certificate must come from, PEM.
    pub ca: PathBuf,
    /// This node's certificate chain, PEM.
    pub cert: PathBuf,
    /// The key of that certificate, PEM.
    pub key: PathBuf,
    /// The list of revoked certificates, PEM.
    pub crl: Option<PathBuf>,
}

/// The `[detect]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectConfig {
    /// Time from one heartbeat to the next, 1 ms to 10 s.
    pub heartbeat: Duration,
    /// Heartbeats in a row that must be missing, 2 to 100.
    pub misses: u32,
    /// How long an owner may speak without renewal.
    pub lease: Duration,
    /// What was asked for to keep an old owner silent; see [`Config::fencing`].
    pub fencing: Fencing,
    /// The shell command that powers the node in `GODWIT_NODE` off.
    pub stonith: Option<String>,
    /// How long that command may run, 1 s to 10 min.
    pub stonith_limit: Duration,
    /// How long a segment may sit in queues below the data path, 0 to 1 s.
    pub egress_residence: Duration,
    /// Failures within a minute from which on a standby is held off, 0 to 100.
    pub flap_limit: u32,
    /// How long a primary waits at its start for an owner to speak up.
    pub startup_grace: Duration,
}

/// A majority of two is both: then nobody may take over from the other.
const MIN_VOTERS: usize = 3;

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// If it can't be read or anything in it is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = files::read_text(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text)
    }

    /// Checks the text of a file; `path` is for messages and relative paths.
    ///
    /// # Errors
    /// If anything in it is wrong.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = Source::new(path, text);
        let (draft, places) = sections::read(&source)?;
        check::check(&source, draft, &places)
    }

    /// Which node a file is of, and where its `run_dir` is, also if the rest of the file
    /// is wrong: who looks for the agent must find it then, too.
    pub fn whereabouts(path: &Path) -> Option<(NodeName, PathBuf)> {
        let text = files::read_text(path).ok()?;
        sections::whereabouts(&Source::new(path, &text))
    }

    /// What the file says of this node itself as a member of the cluster.
    pub fn own_peer(&self) -> &PeerConfig {
        self.peer(self.node.name)
            .expect("check() requires a [[peer]] for this node")
    }

    /// What the file says of a node.
    pub fn peer(&self, name: NodeName) -> Option<&PeerConfig> {
        self.peers.iter().find(|peer| peer.name == name)
    }

    /// Every node but this one; its place here is its [`PeerId`].
    pub fn others(&self) -> impl Iterator<Item = &PeerConfig> {
        self.peers.iter().filter(|peer| peer.name != self.node.name)
    }

    /// The programs of the user's own that this node's services are steered by, each once.
    pub fn programs(&self) -> Vec<&ProgramConfig> {
        let policies = self.own_shares().filter_map(|(_, it)| it.policy.as_ref());
        let mut programs: Vec<_> = policies.filter_map(|it| it.program.as_ref()).collect();
        programs.sort_unstable();
        programs.dedup();
        programs
    }

    /// The number by which the core knows another node.
    pub fn peer_id(&self, name: NodeName) -> Option<PeerId> {
        (0..)
            .map(PeerId)
            .zip(self.others())
            .find_map(|(id, peer)| (peer.name == name).then_some(id))
    }

    /// All shares with their services: first one of each service, in the order of
    /// the file, then those of the other servers of a service of which each has one.
    pub fn shares(&self) -> impl Iterator<Item = (ShareId, &ServiceConfig)> {
        self.homes().map(|(share, service, _)| (share, service))
    }

    /// The same, with the node that each belongs to as long as nothing fails.
    pub(crate) fn homes(&self) -> impl Iterator<Item = (ShareId, &ServiceConfig, NodeName)> {
        let first = self.services.iter().map(|it| (it, it.primary));
        let divided = self.services.iter().filter(|service| service.is_divided());
        let guests = divided.flat_map(|it| it.backups.iter().map(move |node| (it, *node)));
        let all = first.chain(guests);
        all.map(|(service, home)| (service.share_of(home), service, home))
    }

    /// The services that have a director before them.
    pub fn directed(&self) -> impl Iterator<Item = &ServiceConfig> {
        self.services.iter().filter(|service| service.is_directed())
    }

    /// The number under which nodes speak of a service's connections that move: that of
    /// the service, of which each server has a share.
    pub(crate) fn service_share(&self, service: &ServiceConfig) -> Option<ShareId> {
        let mut named = self.services.iter().filter(|it| it.name == service.name);
        named.next().map(|it| ShareId::of_service(it.name.as_str()))
    }

    /// What keeps an old owner silent here: leases need a majority that outlives
    /// a node, so three voters that can be asked.
    pub fn fencing(&self) -> Fencing {
        let voters = self
            .voters
            .iter()
            .filter(|name| self.peer(**name).is_some());
        match self.detect.fencing {
            Fencing::Lease if voters.count() < MIN_VOTERS => Fencing::None,
            asked @ (Fencing::Lease | Fencing::Stonith | Fencing::None) => asked,
        }
    }

    /// The same for `status` and logs.
    pub fn fencing_in_force(&self) -> &'static str {
        match (self.fencing(), self.detect.fencing) {
            (Fencing::None, Fencing::Lease) => {
                "none (unsafe: leases need three voters that are peers)"
            }
            (Fencing::None, _) => {
                "none (unsafe: two owners are possible when only the peers' link fails)"
            }
            (Fencing::Lease, _) => "lease",
            (Fencing::Stonith, _) => "stonith",
        }
    }

    /// The command that powers nodes off, and how long it may run; `None` with
    /// any other fencing.
    pub fn stonith_in_force(&self) -> Option<(&str, Duration)> {
        let detect = &self.detect;
        let command = detect.stonith.as_deref();
        let command = command.filter(|_| self.fencing() == Fencing::Stonith)?;
        Some((command, detect.stonith_limit))
    }

    /// The limit in force: without a fence a standby that is held off claims
    /// all the same, and would do so without the connections.
    pub fn flap_limit(&self) -> u32 {
        match self.fencing() {
            Fencing::Lease | Fencing::Stonith => self.detect.flap_limit,
            Fencing::None => 0,
        }
    }

    /// How long an owner whose server process has died keeps silent, so that a
    /// standby can take over: two lease times, or not at all.
    pub fn server_lost_hold(&self, service: &ServiceConfig) -> Duration {
        match service.on_process_exit {
            // Nobody would take it over.
            OnProcessExit::Takeover if service.moves() => Duration::ZERO,
            OnProcessExit::Takeover => self.detect.lease * 2,
            OnProcessExit::Close => Duration::ZERO,
        }
    }

    /// Shares for which this node is primary or backup: at most one of a service, or of a
    /// ring two.
    pub fn own_shares(&self) -> impl Iterator<Item = (ShareId, &ServiceConfig)> {
        let own = self.node.name;
        let mine = self.homes().filter(move |(_, service, home)| {
            *home == own || service.standbys_of(*home).contains(&own)
        });
        mine.map(|(share, service, _)| (share, service))
    }

    /// The node that a share belongs to as long as nothing fails.
    pub(crate) fn home_of(&self, share: ShareId) -> Option<NodeName> {
        self.homes()
            .find_map(|(id, _, home)| (id == share).then_some(home))
    }

    /// What people call a share: its service, and whose it is if it is not this node's own
    /// of a ring.
    pub(crate) fn share_name(&self, share: ShareId, service: &ServiceConfig) -> String {
        let home = self.home_of(share).filter(|_| service.is_ring());
        match home.filter(|home| *home != self.node.name) {
            Some(home) => format!("{}@{home}", service.name),
            None => service.name.to_string(),
        }
    }

    /// Whether a share of this node is another one's of a ring, for which it stands by.
    pub(crate) fn is_ward(&self, share: ShareId) -> bool {
        let mut homes = self.homes();
        homes.any(|(id, it, home)| id == share && it.is_ring() && home != self.node.name)
    }
}
