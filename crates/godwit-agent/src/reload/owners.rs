//! Files that take an owner away from under its connections.
//!
//! Nodes know each other by name. A node that takes a file without the owner of a pair ends its
//! twins, or its vote for the owner's lease: the owner is unprotected, or silent. So such a file
//! is refused while the owner lives, and whoever renames a node is told to drain it first.

use crate::config::{Config, ServiceConfig};
use crate::status::{ServiceReport, Status};

/// Services that go as a whole, and which both files have.
fn shared<'a>(
    running: &'a Config,
    next: &'a Config,
) -> impl Iterator<Item = (&'a ServiceConfig, &'a ServiceConfig)> {
    let whole = running.services.iter().filter(|it| !it.is_divided());
    whole.filter_map(|service| {
        let mut others = next.services.iter().filter(|it| !it.is_divided());
        let other = others.find(|it| it.name == service.name)?;
        Some((service, other))
    })
}

/// Whether a service has a server in this file that it has not in the next one.
pub(super) fn lose_servers(running: &Config, next: &Config) -> bool {
    shared(running, next).any(|(now, then)| now.members().any(|it| !then.has_member(it)))
}

/// Those servers, but for this node itself, as `a of service "web"`.
pub(super) fn lost_servers(running: &Config, next: &Config) -> Vec<String> {
    let own = running.node.name;
    let lost = shared(running, next).flat_map(|(now, then)| {
        let lost = now
            .members()
            .filter(|it| *it != own && !then.has_member(*it));
        lost.map(|it| format!("{it} of service \"{}\"", now.name))
    });
    lost.collect()
}

/// Whether each service that loses servers has an owner that stays.
pub(super) fn are_known(running: &Config, next: &Config, status: &Status) -> bool {
    shared(running, next).all(|(now, then)| {
        let stays = |name: &str| then.members().any(|it| it.as_str() == name);
        now.members().all(|it| then.has_member(it)) || owner(status, now).is_some_and(stays)
    })
}

/// Why a node in this state does not take `next` now: the owner of a service is another node,
/// which lives, and is no server of it any more.
pub(super) fn in_the_way(running: &Config, next: &Config, status: &Status) -> Option<String> {
    let own = running.node.name;
    // Before one that has announced its restart is taken for dead, nobody has taken over.
    let is_there = |name: &str| {
        let mut peers = status.peers.iter();
        peers.any(|it| it.name == name && matches!(it.liveness.as_str(), "alive" | "excused"))
    };
    shared(running, next).find_map(|(now, then)| {
        let mut leaving = now.members().filter(|it| !then.has_member(*it));
        let owner = owner(status, now)?;
        let owner = leaving.find(|it| it.as_str() == owner && *it != own)?;
        is_there(owner.as_str()).then(|| {
            let name = &now.name;
            format!(
                "service \"{name}\": {owner} owns it, and this file has no server {owner} for it, \
                 so its connections would be reset: hand it over first (godwit drain at {owner}); \
                 a restart of this node does not take the file before that either"
            )
        })
    })
}

/// What this node owns, and can't go on with under the name that `next` gives it.
pub(super) fn endings(running: &Config, next: &Config, status: &Status) -> Vec<String> {
    let (own, other) = (running.node.name, next.node.name);
    if own == other {
        return Vec::new();
    }
    let owned = shared(running, next).filter_map(|(service, _)| {
        let report = report(status, service)?;
        let count = report.flows.total;
        (report.ownership.role == "owner" && count > 0).then(|| {
            let name = &service.name;
            format!(
                "service \"{name}\": this node owns it with {count} connections, and does not \
                 start under the name {other} before they are elsewhere: hand it over first \
                 (godwit drain at {own})"
            )
        })
    });
    owned.collect()
}

/// Who owns it, as this node knows or has voted for.
pub(super) fn owner<'a>(status: &'a Status, service: &ServiceConfig) -> Option<&'a str> {
    let known = report(status, service).and_then(|it| it.ownership.owner.as_deref());
    let voted = || status.leases.get(service.name.as_str());
    known.or_else(|| voted().map(String::as_str))
}

fn report<'a>(status: &'a Status, service: &ServiceConfig) -> Option<&'a ServiceReport> {
    let name = service.name.as_str();
    status.services.iter().find(|it| it.name == name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::testing::service_report;

    /// The file of `own`, with a service of a and of the other server.
    fn pair(own: &str, other: &str) -> Config {
        let nodes = [("a", "server"), (other, "server"), ("w", "witness")];
        let peer = |((name, role), at): ((&str, &str), u8)| {
            format!(
                "[[peer]]\nname = \"{name}\"\nrole = \"{role}\"\ncontrol = \"10.9.0.{at}:7400\"\n"
            )
        };
        let peers: String = nodes.into_iter().zip(11..).map(peer).collect();
        let text = format!(
            "{peers}[node]\nname = \"{own}\"\ninterface = \"eth0\"\n\
             [cluster]\nvoters = [\"a\", \"{other}\", \"w\"]\n\
             [tls]\nca = \"c\"\ncert = \"n\"\nkey = \"k\"\n\
             [[service]]\nname = \"web\"\naddress = \"10.9.0.100:80\"\n\
             primary = \"a\"\nbackups = [\"{other}\"]\n"
        );
        Config::parse(Path::new("/x/godwit.toml"), &text).expect("valid")
    }

    /// Of a node that hears `heard` in that way.
    fn hearing(config: &Config, heard: &str, liveness: &str) -> Status {
        let mut status = Status::new(config, 5, Duration::from_secs(3));
        let peer = json!({
            "name": heard, "role": "server", "liveness": liveness, "linked": true,
            "max_interarrival_ms": 0.0, "ignored": 0, "config_differs": false,
        });
        status
            .peers
            .push(serde_json::from_value(peer).expect("it is one"));
        status
    }

    #[test]
    fn the_owner_is_not_taken_from_the_file_while_it_is_there() {
        let (running, next) = (pair("a", "b"), pair("a", "bb"));
        let told = |liveness, next: &Config| {
            let mut status = hearing(&running, "b", liveness);
            status.services.push(service_report("shadow", &["a"]));
            in_the_way(&running, next, &status)
        };
        for liveness in ["alive", "excused"] {
            let sentence = told(liveness, &next).expect("b owns it");
            assert!(sentence.contains("godwit drain at b"), "{sentence}");
        }
        assert_eq!(told("failed", &next), None, "nobody is waited for");
        assert_eq!(told("alive", &running), None, "it stays");
        let mut without = next.clone();
        without.services.clear();
        assert_eq!(told("alive", &without), None, "it goes as a whole");
        assert!(lose_servers(&running, &next) && !lose_servers(&running, &running));
    }

    /// This node owns it: its standby may go.
    #[test]
    fn a_standby_is_taken_from_the_file_at_any_time() {
        let (running, next) = (pair("a", "b"), pair("a", "bb"));
        let mut status = hearing(&running, "b", "alive");
        let mut report = service_report("owner", &["b"]);
        report.ownership.owner = Some("a".into());
        status.services.push(report);
        assert_eq!(in_the_way(&running, &next, &status), None);
    }

    /// It has no service, and its vote is for b.
    #[test]
    fn a_witness_keeps_the_owner_that_it_has_voted_for() {
        let (running, next) = (pair("w", "b"), pair("w", "bb"));
        let mut status = hearing(&running, "b", "alive");
        assert_eq!(in_the_way(&running, &next, &status), None, "no vote");
        status.leases.insert("web".into(), "a".into());
        assert_eq!(in_the_way(&running, &next, &status), None, "a's");
        status.leases.insert("web".into(), "b".into());
        assert!(in_the_way(&running, &next, &status).is_some(), "b's");
    }

    #[test]
    fn an_owner_that_gets_another_name_is_told_to_hand_over_first() {
        let (running, next) = (pair("b", "b"), pair("bb", "bb"));
        let told = |role, connections| {
            let mut status = hearing(&running, "a", "alive");
            let mut report = service_report(role, &[]);
            report.flows.total = connections;
            status.services.push(report);
            endings(&running, &next, &status).concat()
        };
        let sentence = told("owner", 7);
        assert!(
            sentence.contains("owns it with 7 connections"),
            "{sentence}"
        );
        assert!(sentence.contains("godwit drain at b"), "{sentence}");
        assert_eq!(told("owner", 0), "", "nobody is there");
        assert_eq!(told("shadow", 7), "", "they are elsewhere");
        let status = hearing(&running, "a", "alive");
        assert_eq!(endings(&running, &running, &status), [""; 0]);
    }
}
