//! A file as lines that can be compared with another one's: what must be equal on all
//! nodes, whatever its spelling and order.

use std::fmt::Display;
use std::time::Duration;

use godwit_wire::ConfigLine;

use super::units::{Bytes, show_bytes, show_duration};
use super::{Config, DirectorConfig, PeerConfig, PolicyConfig, ProgramConfig, ServiceConfig};

/// What one key is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// As `service "web"`.
    pub section: String,
    /// As in the file.
    pub key: String,
    /// As people read it; a secret is there as a hash.
    pub value: String,
}

impl Config {
    /// All lines, sections in the order of the file.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = Lines(Vec::new());
        lines.cluster(self);
        for peer in &self.peers {
            lines.peer(peer);
        }
        if let Some(director) = &self.director {
            lines.director(director);
        }
        for service in &self.services {
            lines.service(service);
        }
        lines.0
    }

    /// The same as other nodes are told them.
    pub(crate) fn wire_lines(&self) -> Vec<ConfigLine> {
        let lines = self.lines().into_iter();
        lines
            .map(|line| ConfigLine::new(&line.section, &line.key, &line.value))
            .collect()
    }
}

struct Lines(Vec<Line>);

impl Lines {
    fn add(&mut self, section: &str, key: &str, value: impl Display) {
        self.0.push(Line {
            section: section.to_owned(),
            key: key.to_owned(),
            value: value.to_string(),
        });
    }

    fn time(&mut self, section: &str, key: &str, value: Duration) {
        self.add(section, key, show_duration(value));
    }

    fn cluster(&mut self, config: &Config) {
        let mut voters = config.voters.clone();
        voters.sort_unstable();
        self.add("cluster", "voters", list(&voters));
        let detect = &config.detect;
        self.time("detect", "heartbeat", detect.heartbeat);
        self.add("detect", "misses", detect.misses);
        self.time("detect", "lease", detect.lease);
        self.add(
            "detect",
            "fencing",
            format!("{:?}", detect.fencing).to_lowercase(),
        );
        let command = detect.stonith.as_deref();
        let command = command.map(|it| ConfigLine::new("", "", it).value);
        let command = command.map_or_else(String::new, |it| format!("{it:016x}"));
        self.add("detect", "stonith", command);
        self.time("detect", "stonith_limit", detect.stonith_limit);
        self.add("detect", "flap_limit", detect.flap_limit);
        self.time("detect", "startup_grace", detect.startup_grace);
    }

    fn peer(&mut self, peer: &PeerConfig) {
        let section = format!("peer \"{}\"", peer.name);
        self.add(&section, "role", peer.role);
        self.add(&section, "control", peer.control);
        self.add(&section, "data", peer.data);
        self.add(&section, "weight", peer.weight);
        let reach = format!("{:?}", peer.reach).to_lowercase();
        self.add(&section, "reach", reach);
    }

    fn director(&mut self, director: &DirectorConfig) {
        let seed = format!("{:016x}", director.seed.0);
        let seed = ConfigLine::new("", "", &seed).value;
        self.add("director", "seed", format!("{seed:016x}"));
        self.add("director", "table_size", director.table_size.get());
        self.add("director", "vni", director.vni);
    }

    fn service(&mut self, service: &ServiceConfig) {
        let section = format!("service \"{}\"", service.name);
        let section = section.as_str();
        let addresses = service.addresses.iter().map(ToString::to_string);
        let mut addresses: Vec<_> = addresses.collect();
        addresses.sort_unstable();
        self.add(section, "address", addresses.join(", "));
        self.add(section, "primary", service.primary);
        self.add(section, "backups", list(&service.backups));
        self.add(section, "front", service.front);
        self.add(section, "standby", service.standby);
        self.add(section, "snapshots", service.snapshots);
        self.add(section, "unread", service.handoff.unread);
        self.add(section, "tap", service.tap);
        self.add(section, "gate", service.gate);
        self.add(section, "on_process_exit", service.on_process_exit);
        self.add(section, "on_lag", service.lag.on_lag);
        self.add(
            section,
            "leash",
            show_bytes(Bytes(service.lag.leash.into())),
        );
        self.time(section, "lag_limit", service.lag.lag_limit);
        let on_divergence = format!("{:?}", service.divergence.on_divergence).to_lowercase();
        self.add(section, "on_divergence", on_divergence);
        self.time(
            section,
            "divergence_limit",
            service.divergence.divergence_limit,
        );
        self.add(section, "verify", service.divergence.verify.to_string());
        self.add(section, "mask", service.divergence.mask.join(", "));
        let failback = format!("{:?}", service.failback).to_lowercase();
        self.add(section, "failback", failback);
        self.time(section, "failback_after", service.failback_after);
        self.add(section, "reprotect", service.reprotect);
        let cap = Bytes(service.reprotect_cap.into());
        self.add(section, "reprotect_cap", show_bytes(cap));
        self.time(section, "forward_idle", service.handoff.forward_idle);
        for (number, rule) in (1..).zip(&service.rules) {
            self.add(section, &format!("rule {number}"), rule);
        }
        if let Some(policy) = &service.policy {
            self.policy(section, policy);
        }
    }

    /// Where pressure is read is a machine's own affair.
    fn policy(&mut self, section: &str, policy: &PolicyConfig) {
        let number = |value: Option<String>| value.unwrap_or_else(|| "off".into());
        let redirect = policy.redirect.map(|it| it.to_string());
        self.add(section, "policy: redirect", number(redirect));
        self.add(section, "policy: margin", policy.margin);
        let connections = policy.connections.map(|it| it.to_string());
        self.add(section, "policy: connections", number(connections));
        let program = match &policy.program {
            Some(ProgramConfig::BuiltIn(name)) => Some(name.clone()),
            Some(ProgramConfig::File(path)) => Some(path.display().to_string()),
            None => None,
        };
        self.add(section, "policy: program", number(program));
    }
}

fn list(names: &[impl Display]) -> String {
    let names = names.iter().map(ToString::to_string);
    names.collect::<Vec<_>>().join(", ")
}
