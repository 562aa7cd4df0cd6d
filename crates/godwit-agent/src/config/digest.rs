//! A fingerprint of what must be equal on all nodes.

use std::fmt::Write as _;

use ring::digest;

use super::service::FORWARD_IDLE;
use super::{Config, PeerConfig, Reach, ServiceConfig};

/// SHA-256 over a plain text of the cluster: all but `[node]`, `[tls]` and comments.
///
/// Computed from the parsed values, so that spelling ("1s", "1000ms") and the
/// order of keys and sections don't matter.
pub(super) fn digest(config: &Config) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, text(config).as_bytes()).as_ref());
    bytes
}

fn text(config: &Config) -> String {
    let mut text = String::from("godwit.config/1\n");
    let mut line = |line: std::fmt::Arguments<'_>| {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{line}");
    };
    let mut voters = config.voters.clone();
    voters.sort_unstable();
    line(format_args!("voters {voters:?}"));
    let mut peers: Vec<_> = config.peers.iter().collect();
    peers.sort_unstable_by_key(|peer| peer.name);
    for peer in peers {
        line(format_args!(
            "peer {} {} {} {}",
            peer.name, peer.role, peer.control, peer.data
        ));
    }
    let detect = &config.detect;
    line(format_args!(
        "detect {:?} {} {:?} {} {:?} {:?} {} {:?}",
        detect.heartbeat,
        detect.misses,
        detect.lease,
        detect.fencing,
        detect.stonith,
        detect.stonith_limit,
        detect.flap_limit,
        detect.startup_grace,
    ));
    // Versions that do not know directors have none.
    if let Some(director) = &config.director {
        let (size, seed) = (director.table_size.get(), director.seed.0);
        line(format_args!("director {size} {seed:016x}"));
        for peer in config.peers.iter().filter(|peer| peer.weight != 1) {
            line(format_args!("weight {} {}", peer.name, peer.weight));
        }
        let far = |peer: &&PeerConfig| peer.reach == Reach::Vxlan;
        for peer in config.peers.iter().filter(far) {
            line(format_args!("reach {} vxlan {}", peer.name, director.vni));
        }
    }
    let mut services: Vec<_> = config.services.iter().collect();
    services.sort_unstable_by_key(|service| service.name);
    for service in services {
        line(format_args!(
            "service {} {:?} {} {} {} {} {} {:?} {} {} {} {:?} {} {:?} {} {:?} {} {:?} {} {}",
            service.name,
            service.addresses,
            service.standby,
            service.snapshots,
            service.tap,
            service.gate,
            service.primary,
            service.backups,
            service.on_process_exit,
            service.lag.on_lag,
            service.lag.leash,
            service.lag.lag_limit,
            service.divergence.on_divergence,
            service.divergence.divergence_limit,
            service.divergence.verify,
            service.divergence.mask,
            service.failback,
            service.failback_after,
            service.reprotect,
            service.reprotect_cap,
        ));
        later_keys(service, &mut line);
    }
    text
}

/// Versions that do not know these have them as they are by default.
fn later_keys(service: &ServiceConfig, line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    if service.moves_unread() {
        line(format_args!("unread {}", service.handoff.unread));
    }
    if service.is_fronted() {
        line(format_args!("front {}", service.front));
    }
    for rule in &service.rules {
        let host = rule.host.as_ref().map(|host| host.to_ascii_lowercase());
        line(format_args!("rule {host:?} {:?} {:?}", rule.path, rule.to));
    }
    if let Some(policy) = &service.policy {
        // Where pressure is read is a machine's own affair.
        let loads = (policy.redirect, policy.margin, policy.connections);
        line(format_args!("policy {loads:?} {:?}", policy.program));
    }
    if service.moves() && service.handoff.forward_idle != FORWARD_IDLE {
        line(format_args!(
            "forward_idle {:?}",
            service.handoff.forward_idle
        ));
    }
}
