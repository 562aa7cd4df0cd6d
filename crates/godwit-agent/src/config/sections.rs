//! Reads every section into a draft, with the places that later checks point at.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use godwit_core::director::TableSize;
use godwit_wire::{MacAddr, NodeName};

use super::error::{ConfigError, Problem};
use super::keyword::{Fencing, Hook, PeerRole, Reach};
use super::reader::{Item, Place, Section, Source};
use super::service::{self, ServicePlaces};
use super::units::show_duration;
use super::{
    Config, DetectConfig, DirectorConfig, InterfaceName, NodeConfig, PeerConfig, Seed, TlsPaths,
};

/// Where sockets and state of running agents live unless the file says otherwise.
pub const DEFAULT_RUN_DIR: &str = "/run/godwit";

/// Of the tunnels of a director, unless the file says otherwise: "gw".
const VNI: u32 = 0x6777;

/// Where things stood that are checked against each other.
pub(super) struct Places {
    pub(super) node_name: Place,
    pub(super) voters: Vec<Place>,
    pub(super) peers: Vec<PeerPlaces>,
    pub(super) lease: Place,
    pub(super) fencing: Place,
    pub(super) services: Vec<ServicePlaces>,
}

pub(super) struct PeerPlaces {
    pub(super) title: String,
    pub(super) name: Place,
    pub(super) control: Place,
    pub(super) reach: Place,
    pub(super) routers: Place,
}

/// Reads the whole file; nothing is checked across keys yet.
pub(super) fn read(source: &Source<'_>) -> Result<(Config, Places), ConfigError> {
    let mut root = source.root()?;
    let missing = |section| source.error(Place::default(), Problem::MissingSection { section });
    let node = root.table("node")?.ok_or_else(|| missing("[node]"))?;
    let cluster = root.table("cluster")?;
    let peers = root.tables("peer")?;
    let tls = root.table("tls")?.ok_or_else(|| missing("[tls]"))?;
    let detect = root.table("detect")?;
    let director = root.table("director")?;
    let services = root.tables("service")?;
    root.finish()?;

    let (node, node_name) = read_node(source, node)?;
    let voters = cluster.map_or_else(|| Ok(Vec::new()), read_voters)?;
    let (peers, peer_places) = unzip(peers, read_peer)?;
    let tls = read_tls(source, tls)?;
    let (detect, lease, fencing) = read_detect(detect)?;
    let director = director.map(read_director).transpose()?;
    let (services, service_places) = unzip(services, service::read)?;
    let places = Places {
        node_name,
        voters: voters.iter().map(|voter| voter.at).collect(),
        peers: peer_places,
        lease,
        fencing,
        services: service_places,
    };
    let config = Config {
        path: source.absolute(),
        text: source.text().into(),
        node,
        voters: voters.into_iter().map(|voter| voter.value).collect(),
        peers,
        tls,
        detect,
        director,
        services,
        warnings: Vec::new(),
        digest: [0; 32],
    };
    Ok((config, places))
}

/// Name and folder of `[node]`, whatever else is wrong.
pub(super) fn whereabouts(source: &Source<'_>) -> Option<(NodeName, PathBuf)> {
    let mut node = source.root().ok()?.table("node").ok()??;
    let name = node.required::<NodeName>("name").ok()?;
    let run_dir = node.optional::<String>("run_dir").ok()?;
    let run_dir = run_dir.map_or_else(|| DEFAULT_RUN_DIR.into(), |dir| source.resolve(&dir.value));
    Some((name.value, run_dir))
}

fn unzip<'a, T, P>(
    sections: Vec<Section<'a>>,
    read: impl Fn(Section<'a>) -> Result<(T, P), ConfigError>,
) -> Result<(Vec<T>, Vec<P>), ConfigError> {
    let pairs: Result<Vec<_>, _> = sections.into_iter().map(read).collect();
    Ok(pairs?.into_iter().unzip())
}

fn read_node(
    source: &Source<'_>,
    mut section: Section<'_>,
) -> Result<(NodeConfig, Place), ConfigError> {
    let name = section.required::<NodeName>("name")?;
    let interface = section.required::<InterfaceName>("interface")?;
    let run_dir = section.optional::<String>("run_dir")?;
    let app_group = section.optional::<String>("app_group")?;
    let metrics = section.optional::<SocketAddr>("metrics")?;
    section.finish()?;
    let node = NodeConfig {
        name: name.value,
        interface: interface.value,
        run_dir: run_dir.map_or_else(|| DEFAULT_RUN_DIR.into(), |dir| source.resolve(&dir.value)),
        app_group: app_group.map(|item| item.value),
        metrics: metrics.map(|item| item.value),
    };
    Ok((node, name.at))
}

fn read_voters(mut section: Section<'_>) -> Result<Vec<Item<NodeName>>, ConfigError> {
    let voters = section.optional::<Vec<Item<NodeName>>>("voters")?;
    section.finish()?;
    let Some(voters) = voters else {
        return Ok(Vec::new());
    };
    let at = voters.at;
    let place = |voter: Item<NodeName>| Item {
        at: voter.at.or(at),
        ..voter
    };
    Ok(voters.value.into_iter().map(place).collect())
}

fn read_peer(mut section: Section<'_>) -> Result<(PeerConfig, PeerPlaces), ConfigError> {
    let name = section.required::<NodeName>("name")?;
    section.rename(format!("peer \"{}\"", name.value));
    let role = section.required::<PeerRole>("role")?;
    let control = section.required::<SocketAddr>("control")?;
    let data = section.optional::<IpAddr>("data")?;
    let weight = section.ranged("weight", 1, 0..1000, |weight: u32| weight.to_string())?;
    let reach = section.optional::<Reach>("reach")?;
    let routers = section.optional::<Vec<Item<MacAddr>>>("routers")?;
    let places = PeerPlaces {
        title: section.title().to_owned(),
        name: name.at,
        control: control.at,
        reach: reach.as_ref().map_or(name.at, |item| item.at),
        routers: routers.as_ref().map_or(name.at, |item| item.at),
    };
    section.finish()?;
    let routers = routers.map_or_else(Vec::new, |item| item.value);
    let peer = PeerConfig {
        name: name.value,
        role: role.value,
        control: control.value,
        data: data.map_or_else(|| control.value.ip(), |item| item.value),
        weight: u16::try_from(weight.value).expect("ranged() allows at most 1000"),
        reach: reach.map_or(Reach::Link, |item| item.value),
        routers: routers.into_iter().map(|item| item.value).collect(),
    };
    Ok((peer, places))
}

fn read_tls(source: &Source<'_>, mut section: Section<'_>) -> Result<TlsPaths, ConfigError> {
    let mut path = |key| section.required::<String>(key);
    let (ca, cert, key) = (path("ca")?, path("cert")?, path("key")?);
    let crl = section.optional::<String>("crl")?;
    section.finish()?;
    Ok(TlsPaths {
        ca: source.resolve(&ca.value),
        cert: source.resolve(&cert.value),
        key: source.resolve(&key.value),
        crl: crl.map(|crl| source.resolve(&crl.value)),
    })
}

fn read_director(mut section: Section<'_>) -> Result<DirectorConfig, ConfigError> {
    let seed = section.required::<Seed>("seed")?;
    let table_size = section.optional::<TableSize>("table_size")?;
    let entries = |count: u32| count.to_string();
    let max_entries = section.ranged("max_entries", 1 << 20, 1024..1 << 24, entries)?;
    let hook = section.optional::<Hook>("hook")?;
    let grace = section.ranged(
        "grace",
        Duration::from_secs(1),
        Duration::ZERO..Duration::from_secs(60),
        show_duration,
    )?;
    let vni = section.ranged("vni", VNI, 1..(1 << 24) - 1, |vni: u32| vni.to_string())?;
    section.finish()?;
    Ok(DirectorConfig {
        seed: seed.value,
        table_size: table_size.map_or(TableSize::DEFAULT, |item| item.value),
        max_entries: max_entries.value,
        hook: hook.map_or(Hook::Xdp, |item| item.value),
        grace: grace.value,
        vni: vni.value,
    })
}

fn read_detect(section: Option<Section<'_>>) -> Result<(DetectConfig, Place, Place), ConfigError> {
    let Some(mut section) = section else {
        return Ok((DetectConfig::default(), Place::default(), Place::default()));
    };
    let defaults = DetectConfig::default();
    let second = Duration::from_secs(1);
    let ms = Duration::from_millis(1);
    let heartbeat = section.ranged(
        "heartbeat",
        defaults.heartbeat,
        ms..10 * second,
        show_duration,
    )?;
    let misses = section.ranged("misses", defaults.misses, 2..100, |misses| {
        misses.to_string()
    })?;
    let lease = section.optional::<Duration>("lease")?;
    let fencing = section.optional::<Fencing>("fencing")?;
    let stonith = section.optional::<String>("stonith")?;
    let stonith_limit = section.ranged(
        "stonith_limit",
        defaults.stonith_limit,
        second..600 * second,
        show_duration,
    )?;
    let egress_residence = section.ranged(
        "egress_residence",
        defaults.egress_residence,
        Duration::ZERO..second,
        show_duration,
    )?;
    let flap_limit = section.ranged("flap_limit", defaults.flap_limit, 0..100, |limit| {
        limit.to_string()
    })?;
    let startup_grace = section.ranged(
        "startup_grace",
        defaults.startup_grace,
        Duration::ZERO..60 * second,
        show_duration,
    )?;
    let at = section.at();
    section.finish()?;
    let silence = heartbeat.value * misses.value;
    let detect = DetectConfig {
        heartbeat: heartbeat.value,
        misses: misses.value,
        // Twice the silence: the shortest lease that a late renewal survives.
        lease: lease.as_ref().map_or(silence * 2, |item| item.value),
        fencing: fencing.as_ref().map_or(defaults.fencing, |item| item.value),
        stonith: stonith.map(|item| item.value),
        stonith_limit: stonith_limit.value,
        egress_residence: egress_residence.value,
        flap_limit: flap_limit.value,
        startup_grace: startup_grace.value,
    };
    let place = |item: Option<Place>| item.unwrap_or(at);
    Ok((
        detect,
        place(lease.map(|item| item.at)),
        place(fencing.map(|item| item.at)),
    ))
}

impl Default for DetectConfig {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(10),
            misses: 3,
            lease: Duration::from_millis(60),
            fencing: Fencing::Lease,
            stonith: None,
            stonith_limit: Duration::from_secs(30),
            egress_residence: Duration::from_millis(5),
            flap_limit: 5,
            startup_grace: Duration::from_millis(300),
        }
    }
}
