//! Rings that change while a share is not at home.
//!
//! Each server of a ring stands by for another one. A file with another order or number of
//! servers gives shares other standbys. While a share is away its owner and its home must
//! agree who those are: a node that forgets a share whose connections it has resets them, and
//! frames could go round between nodes with different files. So that is refused, and
//! connections that end with a file are counted before.

use godwit_wire::{NodeName, ShareId};

use crate::config::{Config, ServiceConfig};
use crate::status::{ServiceReport, Status};

/// Whether shares of this file can be away from home in a ring.
pub(super) fn has_ring(config: &Config) -> bool {
    config.own_shares().any(|(_, service)| service.is_ring())
}

/// Why a node in this state does not take `next` now. A service that goes as a whole is no
/// ring that changes.
pub(super) fn in_the_way(running: &Config, next: &Config, status: &Status) -> Option<String> {
    let own = running.node.name;
    let mut rings = running.homes().filter(|(_, service, _)| service.is_ring());
    rings.find_map(|(share, service, home)| {
        let now = nodes(running, share);
        if !stays(next, service) || !now.contains(&own) || now == nodes(next, share) {
            return None;
        }
        let report = report(status, share)?;
        let owner = report.ownership.owner.as_deref()?;
        let is_here = owner == own.as_str() && report.flows.total > 0;
        let (who, otherwise) = if home == own && owner != own.as_str() {
            (format!("{owner} has the connections of this node"), "")
        } else if home != own && is_here {
            let who = format!("this node has {} connections of {home}", report.flows.total);
            (
                who,
                "; a restart of the agent takes the file, and resets them",
            )
        } else {
            return None;
        };
        Some(format!(
            "service \"{}\": {who}, and this file changes which servers they belong to: wait \
             until they are home (godwit status), or move them (godwit move){otherwise}",
            service.name
        ))
    })
}

/// Connections of this node that end with `next`, a sentence for each service that has such:
/// the service stays, and this node is no server of it any more.
pub(super) fn endings(running: &Config, next: &Config, status: &Status) -> Vec<String> {
    let own = running.node.name;
    let shares = running.homes().filter(|(.., home)| *home == own);
    let leaving = shares.filter(|(share, service, _)| {
        service.is_divided() && stays(next, service) && nodes(next, *share).is_empty()
    });
    let counted = leaving.filter_map(|(share, service, _)| {
        let report = report(status, share)?;
        let count = report.flows.total;
        (report.ownership.role == "owner" && count > 0).then(|| {
            let name = service.name;
            format!(
                "service \"{name}\": {count} connections are here, and those that are left when \
                 this node takes the file are reset: drain it first (godwit drain {own} at the \
                 director)"
            )
        })
    });
    counted.collect()
}

fn stays(next: &Config, service: &ServiceConfig) -> bool {
    next.services.iter().any(|it| it.name == service.name)
}

fn report(status: &Status, share: ShareId) -> Option<&ServiceReport> {
    status.services.iter().find(|it| it.share == share.0)
}

/// Where a share can be: at home, or at who stands by for it.
fn nodes(config: &Config, share: ShareId) -> Vec<NodeName> {
    let mut homes = config.homes();
    let found = homes.find(|(id, ..)| *id == share);
    found.map_or_else(Vec::new, |(_, service, home)| {
        let mut nodes = service.standbys_of(home);
        nodes.push(home);
        nodes.sort_unstable();
        nodes
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::testing::service_report;

    /// A ring of these servers, as the file of `own` has it.
    fn ring(own: &str, servers: &[&str]) -> Config {
        let peer = |(name, role, number): (&str, &str, usize)| {
            format!(
                "[[peer]]\nname = \"{name}\"\nrole = \"{role}\"\n\
                 control = \"10.9.0.{number}:7400\"\n"
            )
        };
        let all = ["a", "b", "c"].iter().zip(11..);
        let mut peers: String = all.map(|(name, at)| peer((name, "server", at))).collect();
        peers += &peer(("d", "director", 20));
        let backups: Vec<_> = servers[1..].iter().map(|it| format!("\"{it}\"")).collect();
        let text = format!(
            "{peers}[node]\nname = \"{own}\"\ninterface = \"eth0\"\n\
             [tls]\nca = \"c\"\ncert = \"n\"\nkey = \"k\"\n\
             [director]\nseed = \"0123456789abcdef\"\n\
             [[service]]\nname = \"web\"\naddress = \"10.9.0.100:80\"\nfront = \"director\"\n\
             primary = \"{}\"\nbackups = [{}]\n",
            servers[0],
            backups.join(", ")
        );
        Config::parse(Path::new("/x/godwit.toml"), &text).expect("valid")
    }

    /// Of a node whose shares are at these owners.
    fn status(config: &Config, owners: &[(&str, &str)]) -> Status {
        let mut status = Status::new(config, 5, Duration::from_secs(3));
        for (home, owner) in owners {
            let home = NodeName::new(home).expect("valid");
            let service = &config.services[0];
            let share = service.share_of(home);
            let mut report = service_report("owner", &[]);
            report.share = share.0;
            report.ownership.owner = Some((*owner).to_owned());
            let is_here = *owner == config.node.name.as_str();
            report.ownership.role = if is_here { "owner" } else { "shadow" }.to_owned();
            report.flows.total = 7;
            status.services.push(report);
        }
        status
    }

    /// In a ring of three b stands by for a, c for b and a for c.
    #[test]
    fn a_ring_changes_while_its_shares_are_at_home() {
        let at_home = [("a", "a"), ("b", "b"), ("c", "c")];
        for own in ["a", "b", "c"] {
            let running = ring(own, &["a", "b", "c"]);
            let status = status(&running, &at_home);
            let next = ring(own, &["a", "b"]);
            assert_eq!(in_the_way(&running, &next, &status), None, "{own}");
        }
    }

    #[test]
    fn connections_of_another_server_keep_a_ring_as_it_is() {
        let running = ring("b", &["a", "b", "c"]);
        let away = status(&running, &[("a", "b"), ("b", "b")]);
        let next = ring("b", &["a", "c", "b"]);
        let sentence = in_the_way(&running, &next, &away).expect("those of a are here");
        assert!(
            sentence.contains("this node has 7 connections of a"),
            "{sentence}"
        );
        assert_eq!(in_the_way(&running, &running, &away), None, "no change");
        let mut over = away.clone();
        over.services[0].flows.total = 0;
        assert_eq!(in_the_way(&running, &next, &over), None, "they have ended");
        let mut without = next.clone();
        without.services.clear();
        assert_eq!(
            in_the_way(&running, &without, &away),
            None,
            "it goes as a whole"
        );
        // Who stands by for a stays the same: those of c are somebody else's business.
        let smaller = ring("b", &["a", "b"]);
        assert_eq!(in_the_way(&running, &smaller, &away), None);
    }

    #[test]
    fn connections_that_are_away_keep_their_homes_ring_as_it_is() {
        let running = ring("a", &["a", "b", "c"]);
        let away = status(&running, &[("a", "b"), ("c", "c")]);
        let next = ring("a", &["a", "c", "b"]);
        let sentence = in_the_way(&running, &next, &away).expect("b has them");
        assert!(
            sentence.contains("b has the connections of this node"),
            "{sentence}"
        );
        let back = status(&running, &[("a", "a"), ("c", "c")]);
        assert_eq!(in_the_way(&running, &next, &back), None);
    }

    #[test]
    fn connections_that_end_are_counted() {
        let running = ring("c", &["a", "b", "c"]);
        let status = status(&running, &[("c", "c"), ("b", "b")]);
        let next = ring("c", &["a", "b"]);
        let said = endings(&running, &next, &status);
        assert!(
            matches!(&said[..], [it] if it.contains("\"web\": 7 connections are here")),
            "{said:?}"
        );
        let stays = ring("c", &["a", "c", "b"]);
        assert_eq!(endings(&running, &stays, &status), [] as [String; 0]);
    }
}
