//! What the file names for the agent itself: where it is scraped, who may use it, where its
//! folder is.

use std::net::IpAddr;
use std::path::PathBuf;

use super::{Check, Host, Scope};
use crate::config::{Config, PeerRole};
use crate::votes::{forgets, votes};

/// Keys of `[node]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// Where scrapers come to.
    pub metrics: Option<IpAddr>,
    /// Whose processes may use it.
    pub app_group: Option<String>,
    /// Where its folder is made.
    pub run_dir: Option<PathBuf>,
    /// Whether it is to remember what it has voted for.
    pub votes: bool,
}

/// What a machine makes of a `run_dir`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunDir {
    /// An agent has no place there: a sentence.
    Unfit(String),
    /// It is in memory, or would be.
    InMemory,
    /// It is not.
    OnDisk,
}

impl Start {
    pub(super) fn of(config: &Config) -> Self {
        let is_server = config.own_peer().role == PeerRole::Server;
        Self {
            metrics: config.node.metrics.map(|address| address.ip()),
            app_group: config.node.app_group.clone().filter(|_| is_server),
            run_dir: Some(config.node.run_dir.clone()),
            votes: votes(config),
        }
    }
}

pub(super) fn checks(host: &impl Host, scope: &Scope) -> Vec<Check> {
    let start = &scope.start;
    let metrics = start.metrics.map(|address| {
        if host.has_address(address) {
            return Check::ok("metrics", address.to_string());
        }
        let found = format!("{address} is no address of this machine: no agent starts");
        Check::fail("metrics", found, "correct `metrics` of [node]")
    });
    let group = start.app_group.as_ref();
    let group = group.map(|name| match host.find_group(name) {
        Ok(()) => Check::ok("app_group", name),
        Err(why) => {
            let found = format!("{name}: {why}; no agent starts");
            Check::fail(
                "app_group",
                found,
                "make it, or correct `app_group` of [node]",
            )
        }
    });
    let checks = metrics.into_iter().chain(group);
    checks.chain(run_dir(host, start)).collect()
}

fn run_dir(host: &impl Host, start: &Start) -> Option<Check> {
    const NAME: &str = "run_dir";
    let folder = start.run_dir.as_ref()?;
    let shown = folder.display();
    Some(match host.run_dir(folder)? {
        RunDir::Unfit(why) => Check::fail(
            NAME,
            format!("{why}; no agent starts"),
            "correct `run_dir` of [node], or leave it out",
        ),
        RunDir::OnDisk if start.votes => {
            let (found, advice) = forgets(folder);
            Check::warn(NAME, found, advice)
        }
        RunDir::OnDisk => Check::ok(NAME, format!("{shown}; this node does not vote")),
        RunDir::InMemory => Check::ok(NAME, format!("{shown}, in memory")),
    })
}
