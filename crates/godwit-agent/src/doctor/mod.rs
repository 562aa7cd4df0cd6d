//! `godwit doctor`: what Godwit needs of a machine, and what to do about it.
//!
//! One file per theme. A check looks at the machine through [`Host`] only, so
//! that tests can show it any machine. It never changes anything. A check that
//! can't see what it looks for says so; only what will not work is a failure.

mod agent;
pub(crate) mod certificates;
mod check;
pub(crate) mod custody;
mod devices;
mod firewall;
mod host;
mod kernel;
mod network;
mod purpose;
mod segment;
mod start;
mod tcp;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use godwit_wire::NodeName;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Fencing, Standby, TlsPaths};
use crate::driver::pin_name;

pub use agent::Running;
pub use check::{Check, Level};
pub(crate) use firewall::{PERHAPS, doubt, harm_by_settings, harm_to_clients, harm_to_twins};
pub use host::{Host, LiveHost};
pub(crate) use network::long_queue;
pub use start::{RunDir, Start};
pub(crate) use tcp::OPTIONS as TCP_OPTIONS;

/// The schema's name and version.
pub const SCHEMA: &str = "godwit.doctor/1";

/// What the checks are about; without a configuration, this machine in general.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The service interface.
    pub interface: Option<String>,
    /// The address that peers reach this node at.
    pub control: Option<IpAddr>,
    /// Where clients reach the services.
    pub services: Vec<SocketAddr>,
    /// Those of services that have twins.
    pub twinned: Vec<SocketAddr>,
    /// Silence after which a peer is held to have failed.
    pub silence: Option<Duration>,
    /// How long segments may wait below the data path before another node owns, where
    /// leases see to that.
    pub residence: Option<Duration>,
    /// Whether others give all services their connections, so that nobody looks for
    /// their addresses on the link.
    pub fronted: bool,
    /// Folder of the agent's pins.
    pub pins: Option<String>,
    /// This node, and its certificates.
    pub certificates: Option<(NodeName, TlsPaths)>,
    /// What the file names for the agent itself.
    pub start: Start,
    /// Files whose content the agent believes.
    pub believed: Vec<PathBuf>,
    /// The agent that runs with this configuration; `None`: it is not asked.
    pub running: Option<Running>,
}

/// All checks of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Whether no check failed.
    pub ok: bool,
    /// The checks, the most basic first.
    pub checks: Vec<Check>,
}

impl Scope {
    /// What a configuration is about.
    pub fn of(config: &Config) -> Self {
        let services = config
            .own_shares()
            .flat_map(|(_, service)| service.addresses.clone());
        let twinned = config
            .own_shares()
            .filter(|(_, service)| service.standby == Standby::Shadow)
            .flat_map(|(_, service)| service.addresses.clone());
        Self {
            interface: Some(config.node.interface.to_string()),
            control: Some(config.own_peer().control.ip()),
            services: services.collect(),
            twinned: twinned.collect(),
            silence: Some(config.detect.heartbeat * config.detect.misses),
            residence: (config.fencing() == Fencing::Lease)
                .then_some(config.detect.egress_residence),
            fronted: config.own_shares().all(|(_, service)| service.is_fronted()),
            pins: pin_name(config).ok(),
            certificates: Some((config.node.name, config.tls.clone())),
            start: Start::of(config),
            believed: crate::custody::believed(config),
            running: None,
        }
    }

    fn has_ipv6(&self) -> bool {
        self.services.iter().any(SocketAddr::is_ipv6)
    }

    fn has_ipv4(&self) -> bool {
        self.services.is_empty() || self.services.iter().any(SocketAddr::is_ipv4)
    }

    /// The files that [`settings`] reads, those of this machine's interface included.
    pub(crate) fn settings_files(&self) -> Vec<String> {
        let mut files: Vec<_> = tcp::FILES.iter().map(ToString::to_string).collect();
        let interface = self.interface.iter().map(String::as_str);
        for name in ["all"].into_iter().chain(interface) {
            for leaf in ["arp_ignore", "rp_filter"] {
                files.push(format!("/proc/sys/net/ipv4/conf/{name}/{leaf}"));
            }
            files.push(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"));
        }
        files
    }

    fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<_> = self.services.iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

/// Makes every check.
pub fn examine(host: &impl Host, scope: &Scope) -> Report {
    let mut checks = essentials(host);
    checks.extend(kernel::others(host));
    // One of them is an essential.
    checks.extend(settings(host, scope).into_iter().skip(1));
    checks.extend(tcp::checks(host, scope));
    checks.extend(network::checks(host, scope));
    checks.extend(segment::check(host, scope));
    checks.extend(devices::check(host, scope));
    checks.extend(devices::fronted(host, scope));
    checks.extend(devices::beside(host, scope));
    checks.extend(devices::left_addresses(host, scope));
    checks.extend(firewall::checks(host, scope));
    checks.extend(start::checks(host, scope));
    checks.extend(certificates::checks(host, scope));
    checks.extend(custody::check(scope));
    checks.extend(purpose::checks(host, scope));
    checks.extend(agent::checks(scope.running.as_ref()));
    Report {
        schema: SCHEMA.into(),
        ok: checks.iter().all(|check| check.level != Level::Fail),
        checks,
    }
}

/// Settings that anybody may change at any time; only files of /proc/sys are read.
pub(crate) fn settings(host: &impl Host, scope: &Scope) -> Vec<Check> {
    let mut checks = vec![tcp::syncookies(host), tcp::options(host), tcp::ecn(host)];
    checks.extend(network::settings(host, scope));
    checks
}

/// What an agent can't even start without: quick, and without other programs.
fn essentials(host: &impl Host) -> Vec<Check> {
    let mut checks = kernel::essentials(host);
    checks.push(tcp::syncookies(host));
    checks
}

/// Why an agent need not try to start here, as one sentence.
///
/// # Errors
/// The first failure among the essentials.
pub fn preflight(host: &impl Host) -> Result<(), Unfit> {
    let failed = essentials(host)
        .into_iter()
        .find(|check| check.level == Level::Fail);
    failed.map_or(Ok(()), |check| {
        Err(Unfit {
            check: check.name,
            found: check.found,
            advice: check.advice.unwrap_or_default(),
        })
    })
}

/// A machine that an agent can't run on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {found}; {advice}")]
pub struct Unfit {
    /// Name of the check.
    pub check: String,
    /// What was found.
    pub found: String,
    /// What to do.
    pub advice: String,
}
