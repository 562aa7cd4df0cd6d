//! What the core must know of the cluster, from the configuration.

use std::fmt;
use std::net::IpAddr;

use godwit_core::lease::Terms;
use godwit_core::node::LeaseConfig;
use godwit_core::{FlowPolicy, MonoTime, Node, NodeConfig, PeerConfig, ShareConfig};
use godwit_wire::ShareId;

use crate::config::{Config, Failback, Fencing, OnDivergence, OnLag, ServiceConfig};
use crate::heartbeat::Secret;

/// One life of an agent or a witness.
#[derive(Clone)]
pub struct Life {
    /// Start of the agent: seconds since 1970 in the upper 32 bits.
    pub incarnation: u64,
    /// What heartbeat keys are derived from.
    pub secret: Secret,
    /// Until when it must not vote, see [`crate::votes`].
    pub quiet_until: MonoTime,
}

/// The secret is not printed.
impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Life")
            .field("incarnation", &self.incarnation)
            .field("quiet_until", &self.quiet_until)
            .finish_non_exhaustive()
    }
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
        // Each peer is told another one, when the message leaves.
        heartbeat_key: [0; 32],
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
            wait_for_lagging: service.lag.on_lag == OnLag::Wait,
            report_divergence: service.divergence.on_divergence == OnDivergence::Report,
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

#[cfg(test)]
mod tests {
    use godwit_core::{Action, Difference, Link, PeerAction, PeerId, Side};

    use super::*;
    use crate::testing::directed as config;

    const RULE: &str = "[[service.rule]]\nprefix = \"/a/\"\nto = [\"a\"]\n";

    fn start(config: &Config) -> Node {
        let life = Life {
            incarnation: 1,
            secret: [0; 32].into(),
            quiet_until: MonoTime::ZERO,
        };
        node(config, &node_config(config, &life), MonoTime::ZERO)
    }

    /// What the first of two nodes finds in the file of the second.
    fn differences(one: &Config, other: &Config) -> Vec<Difference> {
        let id = |of: &Config, name: &Config| of.peer_id(name.node.name).expect("a peer");
        let (to, from) = (id(one, other), id(other, one));
        let mut nodes = [(start(one), to), (start(other), from)];
        for (node, peer) in &mut nodes {
            node.handle_link(*peer, Link::Up, MonoTime::ZERO);
        }
        let [(one, to), (other, from)] = &mut nodes;
        for _ in 0..3 {
            pass(one, (*to, *from), other);
            pass(other, (*from, *to), one);
        }
        let status = one.peer_status().nth(usize::from(to.0));
        status.expect("it is a peer").differences
    }

    fn pass(by: &mut Node, (to, from): (PeerId, PeerId), hearer: &mut Node) {
        while let Some(action) = by.poll_action() {
            if let Action::Peer(peer, PeerAction::Send(message)) = action
                && peer == to
            {
                hearer.handle_message(from, &message, MonoTime::ZERO);
            }
        }
    }

    /// It knows that they differ, and not in what.
    #[test]
    fn who_knows_no_lines_of_its_own_names_none() {
        let (one, other) = (config("d1", ""), config("a", RULE));
        let id = one.peer_id(other.node.name).expect("a peer");
        let back = other.peer_id(one.node.name).expect("a peer");
        let life = Life {
            incarnation: 1,
            secret: [0; 32].into(),
            quiet_until: MonoTime::ZERO,
        };
        let mut blank = Node::new(&node_config(&one, &life), MonoTime::ZERO);
        let mut full = start(&other);
        blank.handle_link(id, Link::Up, MonoTime::ZERO);
        full.handle_link(back, Link::Up, MonoTime::ZERO);
        for _ in 0..3 {
            pass(&mut blank, (id, back), &mut full);
            pass(&mut full, (back, id), &mut blank);
        }
        let status = blank.peer_status().nth(usize::from(id.0));
        let status = status.expect("it is a peer");
        assert!(status.config_differs && status.differences.is_empty());
    }

    /// Whatever both are: the section and the key.
    #[test]
    fn two_nodes_name_what_differs() {
        let rule = RULE;
        let named = |key: &str, side| {
            vec![Difference {
                section: "service \"web\"".into(),
                key: key.into(),
                side,
            }]
        };
        let pairs = [("d1", "a"), ("a", "d1"), ("d1", "d2"), ("a", "b")];
        for (one, other) in pairs {
            let (with, without) = (config(one, rule), config(other, ""));
            assert_eq!(
                differences(&with, &without),
                named("rule 1", Side::Here),
                "{one} {other}"
            );
            assert_eq!(
                differences(&without, &with),
                named("rule 1", Side::There),
                "{one} {other}"
            );
            assert_eq!(differences(&with, &config(other, rule)), []);
            let elsewhere = "[[service]]\nname = \"more\"\naddress = \"10.9.0.101:80\"\n\
                             standby = \"none\"\nprimary = \"b\"\n";
            let found = differences(&config(one, ""), &config(other, elsewhere));
            let expected = Difference {
                section: "service \"more\"".into(),
                key: String::new(),
                side: Side::There,
            };
            assert_eq!(found, [expected], "{one} {other}");
        }
    }
}
