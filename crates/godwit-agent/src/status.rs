//! `godwit.status/1`: everything about one node, as the control socket answers it.
//!
//! The schema is stable: fields may be added, none is renamed or removed.
//! `docs/cli.md` describes each for people.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use godwit_core::{Difference, MonoTime, PeerStatus, ShareStatus, Side};
use godwit_wire::{NodeName, Role};
use serde::{Deserialize, Serialize};

use crate::config::{Config, PeerConfig, PeerRole, ServiceConfig};
use crate::director::DirectorReport;
use crate::flows::{FlowCounts, ShareView};
use crate::logging;
use crate::peers::Absence;
use crate::surroundings::FactReport;

/// The schema's name and version.
pub const SCHEMA: &str = "godwit.status/1";

/// As many as people read.
const MOST_DIFFERENCES: usize = 8;

/// A node that has run for longer has no services that begin for long.
const STARTS_FOR_MS: u64 = 5000;

/// Connections that are not protected, from which on that may be said: one has reasons of its
/// own.
const FEW: u64 = 2;

/// What differs between this file and a peer's, and what follows. `own`: this node's role.
fn differences(own: PeerRole, config: &PeerConfig, found: &[Difference]) -> Vec<String> {
    let peer = config.name;
    let one = |it: &Difference| {
        let (section, key) = (&it.section, &it.key);
        let (has, lacks, role) = match it.side {
            Side::Both => {
                return format!(
                    "peer {peer} runs with another configuration: {section}: {key} differs"
                );
            }
            Side::Here => ("this node".to_owned(), format!("peer {peer}"), config.role),
            Side::There => (format!("peer {peer}"), "this node".to_owned(), own),
        };
        if !key.is_empty() {
            return format!("{section}: only {has} has {key} in its file, {lacks} has not");
        }
        let follows = match (section.starts_with("service "), role) {
            (false, _) => "",
            (true, PeerRole::Director) => ": no connection of it comes by that director",
            (true, PeerRole::Witness) => ": that witness does not vote for it",
            (true, PeerRole::Server) if [own, config.role].contains(&PeerRole::Director) => {
                ": that server gets no connection of it"
            }
            (true, PeerRole::Server) => ": nothing of it is protected between the two",
        };
        format!("only {has} has {section} in its file, {lacks} has not{follows}")
    };
    found.iter().map(one).collect()
}

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

/// One other node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its name.
    pub name: String,
    /// `server`, `witness` or `director`.
    pub role: String,
    /// `unknown`, `alive`, `excused`, `departed` or `failed`.
    pub liveness: String,
    /// Whether the control link is up and both sides have said hello.
    pub linked: bool,
    /// Why there is no link, as far as that is known; absent while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_link: Option<NoLinkReport>,
    /// Time since its last heartbeat; absent if it was never heard.
    pub last_heard_ms: Option<f64>,
    /// Longest time between two of its heartbeats while it was alive.
    pub max_interarrival_ms: f64,
    /// Heartbeats that were authentic but old.
    pub ignored: u64,
    /// Heartbeats that were under way for so long that they count as silence.
    #[serde(default)]
    pub late: u64,
    /// What it said of shares that was not considered, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub doubts: BTreeMap<String, u64>,
    /// Whether it runs with another configuration.
    pub config_differs: bool,
    /// What differs, a sentence each, as soon as it has said so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// Whether what it sends on the data network is proved to be its: `demanded`, `believed`
    /// (it may be, and need not yet) or `none` (it knows no tags); absent of who shares no
    /// service with this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<String>,
    /// What is known of its power: `unknown`, `cutting`, `stuck` or `off`.
    #[serde(default)]
    pub power: String,
    /// Why it could not be powered off when that was last tried:
    /// `command_failed`, `timed_out` or `not_run`.
    #[serde(default)]
    pub stonith_fault: Option<String>,
}

/// Why there is no link to a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoLinkReport {
    /// The stable name.
    pub reason: String,
    /// The same as a sentence.
    pub found: String,
    /// Whether one side refuses the certificate of the other.
    pub refused: bool,
}

/// One service, and the share that it is in this version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Its name.
    pub name: String,
    /// Number of its share.
    pub share: u32,
    /// Where clients reach it.
    pub addresses: Vec<String>,
    /// The node that owns it when nobody else does.
    pub primary: String,
    /// The nodes that take over.
    pub backups: Vec<String>,
    /// `starting`, `standby`, `shadow`, `owner` or `quitting`.
    pub state: String,
    /// What the data path does: `none`, `owner` or `shadow`.
    pub role: String,
    /// Who owns it, as far as this node knows.
    pub owner: Option<String>,
    /// The owner's epoch, `incarnation.counter`.
    pub epoch: String,
    /// The generation of the standby in sync; 0 if there is none.
    pub generation: u32,
    /// The standbys that hold all that clients were told.
    pub in_sync: Vec<String>,
    /// The addresses at which nothing listens on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_listening: Vec<String>,
    /// `ack` or `off`.
    pub gate: String,
    /// Whether the other side's heartbeats arrive, so that its failure would be
    /// noticed at once: the owner's at a shadow, the standby's at an owner.
    #[serde(default)]
    pub watched: bool,
    /// How far a twin's application may be behind now, in bytes.
    #[serde(default)]
    pub leash_bytes: u32,
    /// If its requests have rules: the other servers that are asked for them now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<Vec<String>>,
    /// If its new connections may begin elsewhere: how loaded this node is, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<u8>,
    /// Flows by state.
    pub flows: FlowCounts,
    /// Whether it is one of a ring.
    #[serde(skip)]
    pub is_ring: bool,
    /// Whether the file gives it a standby.
    #[serde(skip)]
    pub has_standby: bool,
    /// Flows that would survive the owner's failure now: both sides count them.
    pub protected: u64,
    /// Takeovers by this node since its data path was attached.
    pub takeovers: u64,
    /// The last takeover by this node's agent.
    pub last_takeover: Option<TakeoverReport>,
    /// Connections that this node's agent has reset since it started, by reason;
    /// those at 0 are left out.
    #[serde(default)]
    pub resets: BTreeMap<String, u64>,
}

/// How one takeover went, as this node can know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakeoverReport {
    /// The owner before.
    pub from: String,
    /// Why: `owner_failed`, `owner_shutdown`, ...
    pub reason: String,
    /// From the old owner's last heartbeat to the decision.
    pub detection_ms: f64,
    /// From that heartbeat until the share's role was written: what a busy
    /// client has waited, but for one round trip. An estimate.
    pub stall_ms: f64,
    /// How long ago it was.
    pub age_ms: u64,
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
        let alive = |name: &String| {
            let mut peers = self.peers.iter();
            peers.any(|peer| peer.name == *name && peer.liveness == "alive")
        };
        for service in &mut self.services {
            let heard = match service.state.as_str() {
                "owner" => service.in_sync.iter().all(alive),
                "shadow" => service.owner.as_ref().is_some_and(alive),
                _ => false,
            };
            service.watched = heard && !service.in_sync.is_empty();
        }
        let facts: Vec<_> = self.facts.iter().filter_map(FactReport::warning).collect();
        self.warnings.extend(facts);
        let warnings = self.conclusions();
        self.warnings.extend(warnings);
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
        if service.state == "owner" && service.has_standby && service.in_sync.is_empty() {
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
        if service.state == "starting" && self.uptime_ms > STARTS_FOR_MS {
            warnings.push(format!(
                "service {} has no owner: it begins when a majority of the voters has it in \
                 their files, and the node that has other services of its address",
                service.name
            ));
        }
        if service.state == "standby" && service.owner.is_none() {
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
                let (Some(owner), Some(elsewhere)) = (&one.owner, &other.owner) else {
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

impl PeerReport {
    /// Puts together what the file and the core know of a peer.
    /// `own`: this node's role.
    pub fn new(own: PeerRole, config: &PeerConfig, status: &PeerStatus, now: MonoTime) -> Self {
        Self {
            name: config.name.to_string(),
            role: config.role.to_string(),
            liveness: status.liveness.as_str().into(),
            linked: status.linked,
            no_link: None,
            last_heard_ms: status.heard.map(|heard| ms(now.since(heard))),
            max_interarrival_ms: ms(status.max_interval),
            ignored: status.ignored,
            late: status.late,
            doubts: status
                .doubts
                .iter()
                .map(|(doubt, count)| (doubt.as_str().into(), *count))
                .collect(),
            config_differs: status.config_differs,
            differences: differences(own, config, &status.differences),
            tags: None,
            power: status.power.as_str().into(),
            stonith_fault: status.stonith_fault.map(|fault| fault.as_str().into()),
        }
    }

    /// The same with the reason why there is no link, if there is none.
    pub fn with_absence(self, absence: Option<Absence>) -> Self {
        let absence = absence.filter(|_| !self.linked);
        let no_link = absence.map(|it| NoLinkReport {
            reason: it.reason.as_str().into(),
            found: it.to_string(),
            refused: it.reason.is_refusal(),
        });
        Self { no_link, ..self }
    }
}

impl ServiceReport {
    /// Puts together what the file, the core and the data path know of a service.
    pub fn new(
        file: &Config,
        config: &ServiceConfig,
        status: &ShareStatus,
        flows: FlowCounts,
    ) -> Self {
        let names = |names: &[NodeName]| names.iter().map(ToString::to_string).collect();
        let home = file.home_of(status.id).filter(|_| config.is_ring());
        let (primary, backups) = match home {
            Some(home) => (home, config.standbys_of(home)),
            None => (config.primary, config.backups.clone()),
        };
        Self {
            name: file.share_name(status.id, config),
            share: status.id.0,
            addresses: config.addresses.iter().map(ToString::to_string).collect(),
            primary: primary.to_string(),
            backups: names(&backups),
            state: status.state.as_str().into(),
            role: status.role.as_str().into(),
            owner: status.owner.map(|owner| owner.to_string()),
            epoch: status.epoch.to_string(),
            generation: status.generation.0,
            in_sync: names(&status.in_sync),
            not_listening: Vec::new(),
            gate: config.gate_in_force().as_str().into(),
            watched: false,
            is_ring: config.is_ring(),
            has_standby: config.has_standby(),
            leash_bytes: config.leash,
            asks: None,
            load: None,
            protected: flows.protected,
            flows,
            takeovers: 0,
            last_takeover: None,
            resets: BTreeMap::new(),
        }
    }
}

impl ServiceReport {
    /// How many flows would survive the owner's failure now: the owner's protected ones, or
    /// the twins that this node would serve, if it is in sync.
    pub(crate) fn survivors(&self, share: ShareView<'_>, node: &str) -> u64 {
        match share.role {
            Role::Owner if !share.no_quorum => self.flows.protected,
            Role::Shadow if self.in_sync.iter().any(|name| name == node) => self.flows.ready,
            Role::Owner | Role::Shadow | Role::None => 0,
        }
    }

    /// In sync with a side that is not heard.
    fn is_unwatched(&self) -> bool {
        !self.in_sync.is_empty() && !self.watched
    }

    /// As the owner: a standby is in sync, and most connections are not protected.
    fn protects_few(&self) -> Option<String> {
        let FlowCounts {
            protected,
            unprotected,
            ..
        } = self.flows;
        let few = unprotected >= FEW && unprotected > protected;
        let owns = self.state == "owner" && !self.in_sync.is_empty();
        (owns && few).then(|| {
            format!(
                "service {}: {unprotected} of {} connections are not protected, although {} is \
                 in sync: `godwit flows` says why, and `godwit status` there what is wrong",
                self.name,
                unprotected + protected,
                self.in_sync.join(", ")
            )
        })
    }

    /// Its addresses without ports; none where directors see to it that each server has them.
    fn ips(&self) -> Vec<IpAddr> {
        let addresses = self.addresses.iter().filter(|_| !self.is_ring);
        let sockets = addresses.filter_map(|address| address.parse::<SocketAddr>().ok());
        sockets.map(|socket| socket.ip()).collect()
    }

    /// What follows from the addresses at which nothing listens.
    fn missing_listener(&self) -> String {
        let addresses = self.not_listening.join(", ");
        let follows = match self.state.as_str() {
            "owner" => "clients are refused there",
            _ => "this node does not stand by",
        };
        format!(
            "service {}: nothing listens at {addresses} on this node, so {follows}",
            self.name
        )
    }
}

/// Milliseconds for people and programs alike: three digits after the point.
pub(crate) fn ms(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

/// Whole milliseconds.
pub(crate) fn whole_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use godwit_wire::Generation;

    use super::*;
    use crate::peers::NoLink;
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
            let (_, warnings) = said("alive", service.clone());
            assert_eq!(!warnings.is_empty(), is_said, "{warnings:?}");
            let alone = ServiceReport {
                in_sync: Vec::new(),
                ..service
            };
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
            let other = ServiceReport {
                name: "mail".into(),
                addresses: vec!["[2001:db8::1]:25".into(), "10.0.0.100:25".into()],
                owner: Some(owner.to_owned()),
                ..one.clone()
            };
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
