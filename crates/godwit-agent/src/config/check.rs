//! What one key says about another: names, members, addresses, times.

use std::collections::BTreeMap;
use std::net::IpAddr;

use godwit_bpf::{MAX_PLACED_NODES, MAX_POLICIES, MAX_ROUTERS};
use godwit_wire::{NodeName, node_id};

use super::digest;
use super::error::{ConfigError, Problem};
use super::keyword::{Failback, Fencing, Front, PeerRole, Snapshots, Standby, Tap, Unread};
use super::reader::{Place, Source};
use super::sections::Places;
use super::service::{ServiceConfig, ServicePlaces};
use super::units::show_duration;
use super::{Config, PeerConfig, Reach, RuleConfig};

/// `GW_MAX_SHARES` of the data path.
const MAX_SHARES: usize = 256;

/// Checks a draft as a whole and completes it with warnings and digest.
pub(super) fn check(
    source: &Source<'_>,
    mut config: Config,
    places: &Places,
) -> Result<Config, ConfigError> {
    check_peers(source, &config, places)?;
    check_voters(source, &config, places)?;
    check_detect(source, &config, places)?;
    check_fencing(source, &config, places)?;
    check_reach(source, &config, places)?;
    check_number(source, &config, places)?;
    for (index, place) in places.services.iter().enumerate() {
        let (earlier, rest) = config.services.split_at(index);
        let service = &rest[0];
        check_support(source, service, place)?;
        check_front(source, &config, service, place)?;
        check_rules(source, &config, service, place)?;
        check_policy(source, &config, service, place)?;
        check_members(source, &config, service, place)?;
        check_addresses(source, &config, (earlier, &places.services), service, place)?;
        check_failback(source, earlier, service, place)?;
    }
    check_ids(source, &config, places)?;
    config.warnings = warnings(source, &config, places);
    config.digest = digest::digest(&config);
    Ok(config)
}

/// A majority is of nodes: one that is named twice would vote twice.
fn check_voters(source: &Source<'_>, config: &Config, places: &Places) -> Result<(), ConfigError> {
    for (index, (voter, at)) in config.voters.iter().zip(&places.voters).enumerate() {
        let mut earlier = config.voters.iter().zip(&places.voters).take(index);
        if let Some((_, first)) = earlier.find(|(other, _)| same_name(**other, *voter)) {
            let problem = Problem::NotUnique {
                section: "[cluster]".into(),
                key: "voters",
                value: format!("\"{voter}\""),
                first_line: source.line(*first),
            };
            return Err(source.error(*at, problem));
        }
    }
    Ok(())
}

/// A tunnel has two ends of one family.
fn check_reach(source: &Source<'_>, config: &Config, places: &Places) -> Result<(), ConfigError> {
    let is_director = |peer: &&PeerConfig| peer.role == PeerRole::Director;
    for (peer, place) in config.peers.iter().zip(&places.peers) {
        if peer.reach == Reach::Link {
            if !peer.routers.is_empty() {
                let section = place.title.clone();
                let problem = Problem::RoutersOnLink { section };
                return Err(source.error(place.routers, problem));
            }
            continue;
        }
        if peer.routers.len() > MAX_ROUTERS {
            let (section, found) = (place.title.clone(), peer.routers.len());
            let most = MAX_ROUTERS;
            let problem = Problem::TooManyRouters {
                section,
                found,
                most,
            };
            return Err(source.error(place.routers, problem));
        }
        let is_other = |it: &&PeerConfig| it.data.is_ipv4() != peer.data.is_ipv4();
        let other = config.peers.iter().filter(is_director).find(is_other);
        if let Some(other) = other {
            let (section, name) = (place.title.clone(), other.name.to_string());
            let problem = Problem::TunnelOfTwoFamilies { section, name };
            return Err(source.error(place.reach, problem));
        }
    }
    Ok(())
}

/// A service is a share, or one per server if its connections move one by one.
fn check_number(source: &Source<'_>, config: &Config, places: &Places) -> Result<(), ConfigError> {
    let mut shares = 0;
    for (service, place) in config.services.iter().zip(&places.services) {
        shares += 1;
        if service.is_divided() {
            shares += service.backups.len();
        }
        if shares > MAX_SHARES {
            let (name, most) = (service.name.to_string(), MAX_SHARES);
            return Err(source.error(place.name, Problem::TooManyServices { name, most }));
        }
    }
    Ok(())
}

/// The data path has places for so many nodes, which it gives in the order of the file.
fn place_of(config: &Config, name: NodeName) -> Option<u16> {
    let mut places = (0..).zip(&config.peers);
    places.find_map(|(place, peer)| (peer.name == name).then_some(place))
}

/// Names stand in messages as numbers, which must differ.
fn check_ids(source: &Source<'_>, config: &Config, places: &Places) -> Result<(), ConfigError> {
    let mut nodes = BTreeMap::new();
    for (peer, place) in config.peers.iter().zip(&places.peers) {
        if let Some(other) = nodes.insert(node_id(peer.name), peer.name) {
            let (name, other) = (peer.name.to_string(), other.to_string());
            return Err(source.error(place.name, Problem::SameNumber { name, other }));
        }
    }
    let mut shares = BTreeMap::new();
    for (id, service, home) in config.homes() {
        if let Some((other, _)) = shares.insert(id, (service.name, home)) {
            let place = config.services.iter().zip(&places.services);
            let mut place = place.filter(|(it, _)| it.name == service.name);
            let (name, other) = (service.name.to_string(), other.to_string());
            if let Some((_, place)) = place.next() {
                return Err(source.error(place.name, Problem::SameNumber { name, other }));
            }
        }
    }
    Ok(())
}

fn check_peers(source: &Source<'_>, config: &Config, places: &Places) -> Result<(), ConfigError> {
    for (index, (peer, place)) in config.peers.iter().zip(&places.peers).enumerate() {
        let earlier = || config.peers.iter().zip(&places.peers).take(index);
        let twice = |key, value: String, first: Place| Problem::NotUnique {
            section: place.title.clone(),
            key,
            value,
            first_line: source.line(first),
        };
        // Certificates carry names as DNS names, which have no case.
        if let Some((_, first)) = earlier().find(|(other, _)| same_name(other.name, peer.name)) {
            let problem = twice("name", format!("\"{}\"", peer.name), first.name);
            return Err(source.error(place.name, problem));
        }
        if let Some((_, first)) = earlier().find(|(other, _)| other.control == peer.control) {
            let problem = twice("control", peer.control.to_string(), first.control);
            return Err(source.error(place.control, problem));
        }
    }
    if config.peer(config.node.name).is_none() {
        let name = config.node.name.to_string();
        return Err(source.error(places.node_name, Problem::NodeIsNoPeer { name }));
    }
    Ok(())
}

fn same_name(a: NodeName, b: NodeName) -> bool {
    a.as_str().eq_ignore_ascii_case(b.as_str())
}

/// With any fencing: a file that is right today is right when leases are there.
fn check_detect(source: &Source<'_>, config: &Config, places: &Places) -> Result<(), ConfigError> {
    let detect = &config.detect;
    let silence = detect.heartbeat * detect.misses;
    if detect.lease > silence {
        return Ok(());
    }
    let lease = show_duration(detect.lease);
    let silence = show_duration(silence);
    Err(source.error(places.lease, Problem::LeaseTooShort { lease, silence }))
}

/// Whether what keeps an old owner silent can work at all.
fn check_fencing(source: &Source<'_>, config: &Config, places: &Places) -> Result<(), ConfigError> {
    let detect = &config.detect;
    if detect.fencing == Fencing::Stonith && detect.stonith.is_none() {
        return Err(source.error(places.fencing, Problem::NoStonith));
    }
    if config.fencing() == Fencing::Lease && detect.lease <= detect.egress_residence * 2 {
        let lease = show_duration(detect.lease);
        let residence = show_duration(detect.egress_residence);
        return Err(source.error(
            places.lease,
            Problem::LeaseBelowResidence { lease, residence },
        ));
    }
    Ok(())
}

fn check_support(
    source: &Source<'_>,
    service: &ServiceConfig,
    place: &ServicePlaces,
) -> Result<(), ConfigError> {
    let refuse = |at, key, value, instead| {
        let section = place.title.clone();
        Err(source.error(
            at,
            Problem::NotInThisVersion {
                section,
                key,
                value,
                instead,
            },
        ))
    };
    let standby = service.standby;
    match standby {
        Standby::Shadow | Standby::Snapshot | Standby::None => {}
        Standby::Replay => {
            let instead = "write \"shadow\", \"snapshot\" or \"none\"";
            return refuse(place.standby, "standby", standby.as_str(), instead);
        }
    }
    if service.snapshots == Snapshots::Eager && standby != Standby::Snapshot {
        let problem = Problem::SnapshotsWithoutServer {
            section: place.title.clone(),
            standby: standby.as_str(),
        };
        return Err(source.error(place.standby, problem));
    }
    if service.handoff.unread == Unread::Move && !service.moves() {
        let problem = Problem::UnreadWithTwins {
            section: place.title.clone(),
            standby: standby.as_str(),
        };
        return Err(source.error(place.standby, problem));
    }
    match service.tap {
        Tap::Mirror | Tap::Multicast => Ok(()),
        Tap::Director => refuse(place.tap, "tap", service.tap.as_str(), "write \"mirror\""),
    }
}

/// A director needs servers that each have their own connections, and to be there.
fn check_front(
    source: &Source<'_>,
    config: &Config,
    service: &ServiceConfig,
    place: &ServicePlaces,
) -> Result<(), ConfigError> {
    if !service.is_fronted() {
        return Ok(());
    }
    let section = place.title.clone();
    if !service.is_divided() {
        let (front, standby) = (service.front.as_str(), service.standby.as_str());
        let problem = Problem::FrontWithTwins {
            section,
            front,
            standby,
        };
        return Err(source.error(place.front, problem));
    }
    if !service.is_directed() {
        return Ok(());
    }
    check_ring(source, config, service, place)?;
    let is_director = |peer: &PeerConfig| peer.role == PeerRole::Director;
    if config.director.is_none() || !config.peers.iter().any(is_director) {
        return Err(source.error(place.front, Problem::FrontWithoutDirector { section }));
    }
    Ok(())
}

/// Twins of a ring's connections are told by frames: their servers are on one link, and a
/// director sends each segment to one of them.
fn check_ring(
    source: &Source<'_>,
    config: &Config,
    service: &ServiceConfig,
    place: &ServicePlaces,
) -> Result<(), ConfigError> {
    if !service.is_ring() {
        return Ok(());
    }
    let section = || place.title.clone();
    if service.tap != Tap::Mirror {
        let (section, tap) = (section(), service.tap.as_str());
        return Err(source.error(place.tap, Problem::FrontWithTap { section, tap }));
    }
    let is_far = |name: &NodeName| config.peer(*name).is_some_and(|it| it.reach != Reach::Link);
    match service.members().find(is_far) {
        None => Ok(()),
        Some(name) => {
            let (section, name) = (section(), name.to_string());
            Err(source.error(place.front, Problem::RingBeyondLink { section, name }))
        }
    }
}

/// Rules name servers of their service, each kind of request once.
fn check_rules(
    source: &Source<'_>,
    config: &Config,
    service: &ServiceConfig,
    place: &ServicePlaces,
) -> Result<(), ConfigError> {
    let section = || format!("{}: rule", place.title);
    for (index, (rule, at)) in service.rules.iter().zip(&place.rules).enumerate() {
        if !service.is_divided() {
            let (section, standby) = (place.title.clone(), service.standby.as_str());
            return Err(source.error(at.at, Problem::RulesWithTwins { section, standby }));
        }
        if rule.to.is_empty() {
            return Err(source.error(at.to, Problem::RuleForNobody { section: section() }));
        }
        if let Some(name) = rule.to.iter().find(|name| !service.has_member(**name)) {
            let name = name.to_string();
            let section = section();
            return Err(source.error(at.to, Problem::RuleForStranger { section, name }));
        }
        let number = |name: &NodeName| place_of(config, *name);
        let is_beyond = |name: &&NodeName| number(name).is_none_or(|it| it >= MAX_PLACED_NODES);
        if let Some(name) = rule.to.iter().find(is_beyond) {
            let (name, most) = (name.to_string(), MAX_PLACED_NODES);
            let section = section();
            return Err(source.error(
                at.to,
                Problem::RuleForTooMany {
                    section,
                    name,
                    most,
                },
            ));
        }
        let mut earlier = service.rules.iter().zip(&place.rules).take(index);
        let host = |rule: &RuleConfig| rule.host.as_ref().map(|host| host.to_ascii_lowercase());
        let is_same = |other: &RuleConfig| host(other) == host(rule) && other.path == rule.path;
        if let Some((_, first)) = earlier.find(|(other, _)| is_same(other)) {
            let (section, first_line) = (section(), source.line(first.at));
            return Err(source.error(
                at.at,
                Problem::RuleTwice {
                    section,
                    first_line,
                },
            ));
        }
    }
    Ok(())
}

/// Connections can begin elsewhere where they are without twins, at servers that have numbers.
fn check_policy(
    source: &Source<'_>,
    config: &Config,
    service: &ServiceConfig,
    place: &ServicePlaces,
) -> Result<(), ConfigError> {
    if service.policy.is_none() {
        return Ok(());
    }
    let section = place.title.clone();
    if !service.is_divided() {
        let standby = service.standby.as_str();
        return Err(source.error(place.policy, Problem::PolicyWithTwins { section, standby }));
    }
    let is_beyond = |name: &NodeName| {
        let number = place_of(config, *name);
        number.is_none_or(|number| number >= MAX_PLACED_NODES)
    };
    if let Some(name) = service.members().find(is_beyond) {
        let (name, most) = (name.to_string(), MAX_PLACED_NODES);
        let problem = Problem::RuleForTooMany {
            section,
            name,
            most,
        };
        return Err(source.error(place.policy, problem));
    }
    if config.programs().len() > MAX_POLICIES {
        let most = MAX_POLICIES;
        return Err(source.error(place.policy, Problem::TooManyPrograms { section, most }));
    }
    Ok(())
}

fn check_members(
    source: &Source<'_>,
    config: &Config,
    service: &ServiceConfig,
    place: &ServicePlaces,
) -> Result<(), ConfigError> {
    let section = || place.title.clone();
    let is_server = |name| {
        config
            .peer(name)
            .is_some_and(|peer| peer.role == PeerRole::Server)
    };
    let not_a_server = |at, key, name: NodeName| {
        let problem = Problem::NotAServer {
            section: section(),
            key,
            name: name.to_string(),
        };
        Err(source.error(at, problem))
    };
    if !is_server(service.primary) {
        return not_a_server(place.primary, "primary", service.primary);
    }
    if let Some(name) = service.backups.iter().find(|name| !is_server(**name)) {
        return not_a_server(place.backups, "backups", *name);
    }
    if service.backups.contains(&service.primary) {
        let name = service.primary.to_string();
        let problem = Problem::BackupIsPrimary {
            section: section(),
            name,
        };
        return Err(source.error(place.backups, problem));
    }
    let count = service.backups.len();
    if service.moves() || count == 1 || (service.is_ring() && count > 0) {
        return Ok(());
    }
    Err(source.error(
        place.backups,
        Problem::BackupCount {
            section: section(),
            count,
        },
    ))
}

fn check_addresses(
    source: &Source<'_>,
    config: &Config,
    (earlier, all_places): (&[ServiceConfig], &[ServicePlaces]),
    service: &ServiceConfig,
    place: &ServicePlaces,
) -> Result<(), ConfigError> {
    let twice = |key, value, first| Problem::NotUnique {
        section: place.title.clone(),
        key,
        value,
        first_line: source.line(first),
    };
    for (other, first) in earlier.iter().zip(all_places) {
        if same_name(other.name, service.name) {
            let problem = twice("name", format!("\"{}\"", service.name), first.name);
            return Err(source.error(place.name, problem));
        }
    }
    for (index, (address, at)) in service.addresses.iter().zip(&place.addresses).enumerate() {
        let ip = address.ip();
        if let Some(kind) = unreachable(ip, service.front) {
            let problem = Problem::Unreachable {
                section: place.title.clone(),
                address: address.to_string(),
                kind,
            };
            return Err(source.error(*at, problem));
        }
        if let Some(node) = config.peers.iter().find(|peer| is_own(peer, ip)) {
            let problem = Problem::AddressOfNode {
                section: place.title.clone(),
                address: ip.to_string(),
                node: node.name.to_string(),
            };
            return Err(source.error(*at, problem));
        }
        let own = service.addresses.iter().zip(&place.addresses).take(index);
        let others = earlier.iter().zip(all_places);
        let taken =
            others.flat_map(|(other, places)| other.addresses.iter().zip(&places.addresses));
        if let Some((_, first)) = own.chain(taken).find(|(other, _)| *other == address) {
            return Err(source.error(*at, twice("address", address.to_string(), *first)));
        }
        check_same_members(source, earlier, service, (ip, *at), place)?;
    }
    Ok(())
}

/// Why clients can't come to an address, wherever they are.
fn unreachable(ip: IpAddr, front: Front) -> Option<&'static str> {
    if ip.is_unspecified() {
        return Some("unspecified");
    }
    if ip.is_loopback() {
        return Some("loopback");
    }
    if ip.is_multicast() {
        return Some("multicast");
    }
    match ip {
        IpAddr::V4(v4) if v4.is_broadcast() => Some("broadcast"),
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => Some("reserved (class E)"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("of \"this network\" (0.0.0.0/8)"),
        // Clients on the link may come to one of IPv4; no router leads to it.
        IpAddr::V4(v4) if v4.is_link_local() && front == Front::Router => Some("link-local"),
        // It means something else on each interface, which nothing here says.
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("link-local"),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// One address is answered for by one node with one MAC, so its services must move together.
fn check_same_members(
    source: &Source<'_>,
    earlier: &[ServiceConfig],
    service: &ServiceConfig,
    (ip, at): (IpAddr, Place),
    place: &ServicePlaces,
) -> Result<(), ConfigError> {
    let split = earlier.iter().find(|other| {
        let shared = other.addresses.iter().any(|address| address.ip() == ip);
        let alike = |a: &ServiceConfig| (a.primary, a.backups.clone(), a.tap, a.moves(), a.front);
        shared && alike(other) != alike(service)
    });
    split.map_or(Ok(()), |other| {
        let problem = Problem::AddressSplit {
            section: place.title.clone(),
            address: ip.to_string(),
            other: other.name.to_string(),
        };
        Err(source.error(at, problem))
    })
}

/// Whether the share can go back by itself. Services of one address move together,
/// but whether all of them can is not known before the first one has moved.
fn check_failback(
    source: &Source<'_>,
    earlier: &[ServiceConfig],
    service: &ServiceConfig,
    place: &ServicePlaces,
) -> Result<(), ConfigError> {
    let is_auto = |service: &ServiceConfig| service.failback == Failback::Auto;
    let section = || place.title.clone();
    if is_auto(service) && service.moves() {
        let standby = service.standby.as_str();
        let problem = Problem::FailbackWithoutStandby {
            section: section(),
            standby,
        };
        return Err(source.error(place.failback, problem));
    }
    for other in earlier {
        let shared = service
            .ips()
            .into_iter()
            .find(|ip| other.ips().contains(ip));
        if let Some(ip) = shared.filter(|_| is_auto(service) || is_auto(other)) {
            let problem = Problem::FailbackOfSharedAddress {
                section: section(),
                address: ip.to_string(),
                other: other.name.to_string(),
            };
            return Err(source.error(place.failback, problem));
        }
    }
    Ok(())
}

fn is_own(peer: &PeerConfig, ip: IpAddr) -> bool {
    peer.data == ip || peer.control.ip() == ip
}

fn warnings(source: &Source<'_>, config: &Config, places: &Places) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |at: Place, text: String| {
        warnings.push(format!(
            "{}:{}: {text}",
            source.path().display(),
            source.line(at)
        ));
    };
    if config.fencing() != config.detect.fencing {
        warn(
            places.fencing,
            format!(
                "[detect]: fencing = \"lease\" needs three voters that are a [[peer]]; running as \
                 \"{}\", which is unsafe when only the link between the nodes fails",
                config.fencing()
            ),
        );
    }
    for (voter, at) in config.voters.iter().zip(&places.voters) {
        if config.peer(*voter).is_none() {
            warn(
                *at,
                format!("[cluster]: voter \"{voter}\" is no [[peer]], so it can't vote"),
            );
        }
    }
    if config.services.is_empty() {
        warn(
            Place::default(),
            "no [[service]]: there is nothing to protect".into(),
        );
    }
    warnings
}
