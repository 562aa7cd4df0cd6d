//! What the core must know of the cluster, from the configuration.

use std::net::IpAddr;

use godwit_core::lease::Terms;
use godwit_core::node::LeaseConfig;
use godwit_core::{FlowPolicy, MonoTime, Node, NodeConfig, PeerConfig, ShareConfig};
use godwit_wire::ShareId;

use crate::config::{Config, Failback, Fencing, OnDivergence, OnLag, ServiceConfig};

/// One life of an agent or a witness.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    /// Start of the agent: seconds since 1970 in the upper 32 bits.
    pub incarnation: u64,
    /// What heartbeat keys are derived from.
    pub secret: [u8; 32],
    /// Until when it must not vote, see [`crate::votes`].
    pub quiet_until: MonoTime,
}

/// The configuration of the core. No share is resumed.
pub(crate) fn node_config(config: &Config, life: &Life) -> NodeConfig {
    NodeConfig {
        name: config.node.name,
        incarnation: life.incarnation,
        peers: config
            .others()
            .map(|peer| PeerConfig { name: peer.name })
            .collect(),
        shares: shares(config).collect(),
        lease: leases(config, life),
        heartbeat: config.detect.heartbeat,
        misses: config.detect.misses,
        startup_grace: config.detect.startup_grace,
        heartbeat_key: life.secret,
        config_digest: config.digest,
    }
}

/// The node itself, which knows what its file says.
pub(crate) fn node(config: &Config, node: &NodeConfig, now: MonoTime) -> Node {
    Node::new(node, now).with_lines(config.wire_lines())
}

/// Before the goodbye of a life whose next one goes by another file.
pub(crate) fn take_leave(node: &mut Node, next: &Config) {
    node.take_leave(&next.wire_lines(), |name| next.peer(name).is_some());
}

/// All shares: a node votes on those that it does not serve.
fn shares(config: &Config) -> impl Iterator<Item = ShareConfig> {
    let fencing = match config.fencing() {
        Fencing::Lease => godwit_core::Fencing::Lease,
        Fencing::Stonith => godwit_core::Fencing::Stonith,
        Fencing::None => godwit_core::Fencing::None,
    };
    config.homes().map(move |(id, service, home)| ShareConfig {
        id,
        name: config.share_name(id, service),
        primary: home,
        backups: service.standbys_of(home),
        mates: mates(config, id, service),
        // Nobody else ever owns it (ADR 17).
        fencing: if service.moves() {
            godwit_core::Fencing::None
        } else {
            fencing
        },
        paths: service.paths(),
        moves_within: config.service_share(service).filter(|_| service.moves()),
        server_lost_hold: config.server_lost_hold(service),
        policy: FlowPolicy {
            wait_for_lagging: service.on_lag == OnLag::Wait,
            report_divergence: service.on_divergence == OnDivergence::Report,
        },
        flap_limit: config.flap_limit(),
        failback: (service.failback == Failback::Auto).then_some(service.failback_after),
        resume: None,
    })
}

/// The other shares that have an address in common with one. In a ring each server has a
/// share, and directors see to it that all have the address.
fn mates(config: &Config, of: ShareId, service: &ServiceConfig) -> Vec<ShareId> {
    if service.is_ring() {
        return Vec::new();
    }
    let shares = |ip: &IpAddr| service.ips().contains(ip);
    config
        .homes()
        .filter(|(id, other, _)| *id != of && !other.is_ring() && other.ips().iter().any(shares))
        .map(|(id, _, _)| id)
        .collect()
}

fn leases(config: &Config, life: &Life) -> LeaseConfig {
    let seed = life.secret.iter().take(8);
    LeaseConfig {
        voters: config.voters.clone(),
        terms: terms(config),
        quiet_until: life.quiet_until,
        seed: seed.fold(0, |seed, byte| seed << 8 | u64::from(*byte)),
    }
}

/// How long leases last.
pub(crate) fn terms(config: &Config) -> Terms {
    Terms {
        term: config.detect.lease,
        egress_residence: config.detect.egress_residence,
        ..Terms::default()
    }
}
