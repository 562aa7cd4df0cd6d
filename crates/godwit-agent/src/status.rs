//! `godwit.status/1`: everything about one node, as the control socket answers it.
//!
//! The schema is stable: fields may be added, none is renamed or removed.
//! `docs/cli.md` describes each for people.

mod peer;
mod service;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::whole_ms;
use crate::config::Config;
use crate::directed::DirectorReport;
use crate::facts::FactReport;
use crate::logging;

pub use peer::{NoLinkReport, PeerReport};
pub use service::{Ownership, ServiceReport, TakeoverReport};

/// The schema's name and version.
pub const SCHEMA: &str = "godwit.status/1";

/// As many as people read.
const MOST_DIFFERENCES: usize = 8;

/// A node that has run for longer has no services that begin for long.
const STARTS_FOR_MS: u64 = 5000;

/// One node, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: String,
    /// This node.
    pub node: String,
    /// `server`, `witness` or `director`; empty of an agent of an earlier version.
    #[serde(default)]
    pub role: String,
    /// Version of the agent.
    pub version: String,
    /// Start of the agent, seconds since 1970 in the upper 32 bits.
    pub incarnation: u64,
    /// How long the agent has been running.
    pub uptime_ms: u64,
    /// Which fencing is in force, and what is unsafe about it.
    pub fencing: String,
    /// The other nodes.
    pub peers: Vec<PeerReport>,
    /// The services that this node is primary or backup of.
    pub services: Vec<ServiceReport>,
    /// Of a witness: who holds the leases that are in force with its vote, by service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub leases: BTreeMap<String, String>,
    /// Of a director: its back-ends, and what they get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub director: Option<DirectorReport>,
    /// What is attached where.
    pub data_path: DataPathReport,
    /// What server processes that use libgodwit were refused, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub apps_refused: BTreeMap<String, u64>,
    /// What this node relies on, and whether it is as it should be.
    #[serde(default)]
    pub facts: Vec<FactReport>,
    /// Sentences about what needs attention, most lasting first.
    pub warnings: Vec<String>,
}

/// What is attached where.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataPathReport {
    /// The service interface.
    pub interface: String,
    /// Whether the programs are in the path.
    pub attached: bool,
    /// Version of the programs, that of the agent which loaded them.
    pub version: String,
    /// How often each verdict was given; those at 0 are left out.
    pub reasons: BTreeMap<String, u64>,
}

impl Status {
    /// A status without peers, services and data path: the driver adds those.
    pub fn new(config: &Config, incarnation: u64, uptime: Duration) -> Self {
        Self {
            schema: SCHEMA.into(),
            node: config.node.name.to_string(),
            role: config.own_peer().role.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            incarnation,
            uptime_ms: whole_ms(uptime),
            fencing: config.fencing_in_force().into(),
            peers: Vec::new(),
            services: Vec::new(),
            leases: BTreeMap::new(),
            director: None,
            data_path: DataPathReport {
                interface: config.node.interface.to_string(),
                ..DataPathReport::default()
            },
            apps_refused: BTreeMap::new(),
            facts: Vec::new(),
            warnings: config
                .warnings
                .iter()
                .cloned()
                .chain(logging::warning())
                .collect(),
        }
    }

    /// Adds what follows from what peers and services say together.
    pub fn conclude(&mut self) {
        self.leave_refused_sets();
        let alive = |name: &String| {
            let mut peers = self.peers.iter();
            peers.any(|peer| peer.name == *name && peer.liveness == "alive")
        };
        for service in &mut self.services {
            let heard = match service.ownership.state.as_str() {
                "owner" => service.ownership.in_sync.iter().all(alive),
                "shadow" => service.ownership.owner.as_ref().is_some_and(alive),
                _ => false,
            };
            service.watched = heard && !service.ownership.in_sync.is_empty();
        }
        let facts: Vec<_> = self.facts.iter().filter_map(FactReport::warning).collect();
        self.warnings.extend(facts);
        let warnings = self.conclusions();
        self.warnings.extend(warnings);
    }

    /// An owner that refuses the links of this node, or is refused, has no standby in it, and
    /// can't say so to it.
    fn leave_refused_sets(&mut self) {
        let is_refused = |it: &&PeerReport| it.no_link.as_ref().is_some_and(|it| it.refused);
        let refused: Vec<_> = self.peers.iter().filter(is_refused).collect();
        let known = self.services.iter_mut().map(|it| &mut it.ownership);
        for known in known.filter(|it| it.state == "shadow") {
            let owner = known.owner.as_deref();
            if refused.iter().any(|it| Some(it.name.as_str()) == owner) {
                known.in_sync.retain(|name| *name != self.node);
            }
        }
    }

    fn conclusions(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(director) = &self.director {
            warnings.extend(director.warnings());
            if !self.data_path.attached {
                warnings.push(format!(
                    "interface {} is not there, or takes no program: nothing is directed",
                    self.data_path.interface
                ));
            }
        }
        for peer in &self.peers {
            warnings.extend(peer.differences.iter().take(MOST_DIFFERENCES).cloned());
            if peer.differences.len() > MOST_DIFFERENCES {
                let more = peer.differences.len() - MOST_DIFFERENCES;
                warnings.push(format!(
                    "{more} more lines differ from those of {}",
                    peer.name
                ));
            }
            if peer.config_differs && peer.differences.is_empty() {
                warnings.push(format!(
                    "peer {} runs with another configuration",
                    peer.name
                ));
            }
            if let Some(no_link) = peer.no_link.as_ref().filter(|it| it.refused) {
                warnings.push(format!("no link to peer {}: {}", peer.name, no_link.found));
            }
            if peer.liveness == "failed" {
                warnings.push(format!("peer {} is silent", peer.name));
            }
            if peer.liveness == "alive" && !peer.linked {
                warnings.push(format!(
                    "peer {}: its heartbeats come, but the control connection (TCP, port 7400 \
                     by default) is down: nothing joins and nothing moves",
                    peer.name
                ));
            }
            if let Some(fault) = &peer.stonith_fault {
                warnings.push(format!(
                    "peer {} can't be powered off ({fault}): nothing is taken over from it",
                    peer.name
                ));
            }
        }
        for service in &self.services {
            warnings.extend(self.conclusions_of(service));
        }
        warnings.extend(self.split_addresses());
        warnings
    }

    fn conclusions_of(&self, service: &ServiceReport) -> Vec<String> {
        let mut warnings = Vec::new();
        if service.ownership.state == "owner"
            && service.has_standby
            && service.ownership.in_sync.is_empty()
        {
            warnings.push(format!("service {} has no standby in sync", service.name));
        } else if service.is_unwatched() {
            // After a start: the peer's heartbeats count once it is linked.
            warnings.push(format!(
                "service {}: the other side is not heard, so its failure \
                 would be noticed seconds late",
                service.name
            ));
        }
        warnings.extend(service.protects_few());
        if !service.not_listening.is_empty() {
            warnings.push(service.missing_listener());
        }
        if service.ownership.state == "starting" && self.uptime_ms > STARTS_FOR_MS {
            warnings.push(format!(
                "service {} has no owner: it begins when a majority of the voters has it in \
                 their files, and the node that has other services of its address",
                service.name
            ));
        }
        if service.ownership.state == "standby" && service.ownership.owner.is_none() {
            warnings.push(format!(
                "service {} has no owner: the last one was detached, and nobody takes over",
                service.name
            ));
        }
        warnings
    }

    /// An address is in one place. Where its services have different owners each of them
    /// announces it, and clients of the other ones reach nobody.
    fn split_addresses(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (at, one) in self.services.iter().enumerate() {
            for other in self.services.iter().skip(at + 1) {
                let (Some(owner), Some(elsewhere)) = (&one.ownership.owner, &other.ownership.owner)
                else {
                    continue;
                };
                let ips = one.ips();
                let common = other.ips().into_iter().find(|ip| ips.contains(ip));
                let Some(ip) = common.filter(|_| owner != elsewhere) else {
                    continue;
                };
                warnings.push(format!(
                    "address {ip} has two owners, {owner} of service {} and {elsewhere} of \
                     service {}: clients may reach nobody; `godwit move` one to the other",
                    one.name, other.name
                ));
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use godwit_core::{Difference, Side};
    use godwit_wire::{Generation, Role};

    use super::peer::differences;
    use super::*;
    use crate::config::{PeerConfig, PeerRole};
    use crate::flows::{FlowCounts, ShareView};
    use crate::peers::{Absence, NoLink};
    use crate::testing::{Pair, service_report as report};

    /// What a node says with one peer, b, and one service.
    fn said(liveness: &str, service: ServiceReport) -> (bool, Vec<String>) {
        let mut status = Status::new(&Pair::new().a, 1, Duration::ZERO);
        status.peers.push(peer(liveness, liveness == "alive"));
        status.services.push(service);
        status.conclude();
        (status.services[0].watched, status.warnings)
    }

    #[test]
    fn a_side_that_is_not_heard_is_not_watched() {
        for (state, in_sync) in [("owner", "b"), ("shadow", "a")] {
            assert_eq!(said("alive", report(state, &[in_sync])), (true, vec![]));
            for liveness in ["unknown", "excused", "departed"] {
                let (watched, warnings) = said(liveness, report(state, &[in_sync]));
                assert!(!watched, "{state}, {liveness}");
                let [warning] = &warnings[..] else {
                    panic!("{warnings:?}");
                };
                assert!(warning.contains("is not heard"), "{warning}");
            }
        }
    }

    #[test]
    fn an_owner_says_that_most_connections_are_not_protected() {
        for (protected, unprotected, is_said) in [(0, 1, false), (2, 2, false), (1, 2, true)] {
            let mut service = report("owner", &["b"]);
            service.flows = FlowCounts {
                protected,
                unprotected,
                ..FlowCounts::default()
            };
            let mut alone = service.clone();
            alone.ownership.in_sync.clear();
            let (_, warnings) = said("alive", service);
            assert_eq!(!warnings.is_empty(), is_said, "{warnings:?}");
            let (_, warnings) = said("alive", alone);
            assert!(warnings[0].contains("no standby in sync"), "{warnings:?}");
        }
    }

    #[test]
    fn a_standby_in_sync_counts_the_twins_that_it_would_serve() {
        let view = |role, no_quorum| ShareView {
            service: "web",
            role,
            generation: Generation(1),
            no_quorum,
            kept: false,
        };
        let survivors = |state: &str, in_sync: &[&str], view| {
            let mut service = report(state, in_sync);
            service.flows = FlowCounts {
                protected: 5,
                twin: 4,
                ready: 3,
                ..FlowCounts::default()
            };
            service.survivors(view, "b")
        };
        let (owner, shadow) = (view(Role::Owner, false), view(Role::Shadow, false));
        assert_eq!(survivors("owner", &["a"], owner), 5);
        assert_eq!(survivors("owner", &["a"], view(Role::Owner, true)), 0);
        assert_eq!(survivors("shadow", &["b"], shadow), 3);
        for (state, in_sync, view) in [
            ("shadow", &[][..], shadow),
            ("shadow", &["c"], shadow),
            ("standby", &["b"], view(Role::None, false)),
        ] {
            assert_eq!(survivors(state, in_sync, view), 0, "{state}, {in_sync:?}");
        }
    }

    #[test]
    fn an_address_with_two_owners_is_said() {
        let services = |owner: &str, is_ring: bool| {
            let one = ServiceReport {
                addresses: vec!["10.0.0.100:80".into()],
                is_ring,
                ..report("shadow", &["a"])
            };
            let mut other = ServiceReport {
                name: "mail".into(),
                addresses: vec!["[2001:db8::1]:25".into(), "10.0.0.100:25".into()],
                ..one.clone()
            };
            other.ownership.owner = Some(owner.to_owned());
            let mut status = Status::new(&Pair::new().a, 1, Duration::ZERO);
            status.services.extend([one, other]);
            status.split_addresses()
        };
        assert!(services("b", false).is_empty());
        let said = services("a", false);
        let [said] = &said[..] else {
            panic!("{said:?}");
        };
        assert!(
            said.starts_with("address 10.0.0.100 has two owners"),
            "{said}"
        );
        assert!(services("a", true).is_empty(), "directors have it");
    }

    #[test]
    fn a_peer_that_is_heard_and_not_linked_is_said() {
        let mut status = Status::new(&Pair::new().a, 1, Duration::ZERO);
        let (_, none) = said("alive", report("owner", &["b"]));
        assert_eq!(none, [""; 0]);
        status.peers = vec![peer("alive", false)];
        status.conclude();
        assert!(status.warnings[0].contains("is down"), "{status:?}");
    }

    #[test]
    fn a_refused_certificate_is_said_as_long_as_there_is_no_link() {
        let absence = |reason: NoLink| Some(Absence::from(reason));
        let said = |linked, reason| {
            let mut status = Status::new(&Pair::new().a, 1, Duration::ZERO);
            let peer = peer("unknown", linked);
            status.peers = vec![peer.with_absence(absence(reason))];
            status.conclude();
            let reason = status.peers[0].no_link.as_ref();
            (reason.map(|it| it.reason.clone()), status.warnings.len())
        };
        let reason = |name: &str| Some(name.to_owned());
        assert_eq!(said(false, NoLink::OwnExpired), (reason("own_expired"), 1));
        assert_eq!(said(false, NoLink::Unreachable), (reason("unreachable"), 0));
        assert_eq!(said(true, NoLink::OwnExpired), (None, 0));
    }

    /// Its owner has dropped it, and says so to everybody but this node.
    #[test]
    fn a_standby_that_its_owner_refuses_is_not_in_sync() {
        for (reason, stays) in [
            (NoLink::TurnedAway, false),
            (NoLink::OwnRevoked, false),
            (NoLink::PeerRevoked, false),
            (NoLink::Unreachable, true),
            (NoLink::Closed, true),
        ] {
            for (state, owner, is_dropped) in [("shadow", "b", !stays), ("shadow", "c", false)] {
                let mut status = Status::new(&Pair::new().a, 1, Duration::ZERO);
                let peer = peer("alive", false);
                status.peers = vec![peer.with_absence(Some(reason.into()))];
                let mut service = report(state, &["a"]);
                service.ownership.owner = Some(owner.to_owned());
                status.services = vec![service];
                status.conclude();
                assert_eq!(
                    status.services[0].ownership.in_sync.is_empty(),
                    is_dropped,
                    "{reason:?}"
                );
            }
        }
    }

    fn peer(liveness: &str, linked: bool) -> PeerReport {
        PeerReport {
            name: "b".into(),
            role: "server".into(),
            liveness: liveness.into(),
            linked,
            no_link: None,
            last_heard_ms: None,
            max_interarrival_ms: 0.0,
            ignored: 0,
            late: 0,
            doubts: BTreeMap::new(),
            config_differs: false,
            differences: Vec::new(),
            tags: None,
            power: "unknown".into(),
            stonith_fault: None,
        }
    }

    /// What `own` says of a peer b in that role, of one difference.
    fn difference(own: PeerRole, role: PeerRole, key: &str, side: Side) -> String {
        let config = Pair::new().a.clone();
        let peer = PeerConfig {
            role,
            ..config.others().next().expect("it has a peer").clone()
        };
        let one = Difference {
            section: "service \"web\"".into(),
            key: key.into(),
            side,
        };
        differences(own, &peer, &[one]).concat()
    }

    #[test]
    fn a_key_that_differs_is_named_with_its_section() {
        assert_eq!(
            difference(PeerRole::Director, PeerRole::Server, "rule 4", Side::There),
            "service \"web\": only peer b has rule 4 in its file, this node has not"
        );
    }

    /// Where a whole service is missing.
    #[test]
    fn what_follows_depends_on_what_the_two_nodes_are() {
        use PeerRole::{Director, Server, Witness};
        let by_director = "no connection of it comes by that director";
        let to_server = "that server gets no connection of it";
        for (own, role, side, expected) in [
            (Director, Director, Side::Here, by_director),
            (Server, Director, Side::Here, by_director),
            (Director, Server, Side::There, by_director),
            (Director, Server, Side::Here, to_server),
            (Server, Director, Side::There, to_server),
            (
                Server,
                Witness,
                Side::Here,
                "that witness does not vote for it",
            ),
            (
                Server,
                Server,
                Side::There,
                "nothing of it is protected between the two",
            ),
        ] {
            let said = difference(own, role, "", side);
            let (found, follows) = said.split_once(": ").expect("it says what follows");
            let (has, lacks) = match side {
                Side::There => ("peer b", "this node"),
                Side::Here | Side::Both => ("this node", "peer b"),
            };
            let only = format!("only {has} has service \"web\" in its file, {lacks} has not");
            assert_eq!((found, follows), (only.as_str(), expected));
        }
    }

    #[test]
    fn who_has_nothing_to_watch_says_what_is_missing_instead() {
        let (watched, warnings) = said("alive", report("owner", &[]));
        assert!(!watched);
        assert_eq!(warnings, ["service web has no standby in sync"]);
        let alone = ServiceReport {
            has_standby: false,
            ..report("owner", &[])
        };
        assert_eq!(
            said("alive", alone),
            (false, vec![]),
            "as the file wants it"
        );
        let (watched, warnings) = said("departed", report("standby", &[]));
        assert!(!watched);
        assert!(warnings[0].contains("has no owner"), "{warnings:?}");
    }
}
