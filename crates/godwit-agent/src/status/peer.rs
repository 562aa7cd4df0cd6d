//! What a node says of each peer.

use std::collections::BTreeMap;

use godwit_core::{Difference, MonoTime, PeerStatus, Side};
use serde::{Deserialize, Serialize};

use crate::clock::ms;
use crate::config::{PeerConfig, PeerRole};
use crate::peers::Absence;

/// One other node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its name.
    pub name: String,
    /// `server`, `witness` or `director`.
    pub role: String,
    /// `unknown`, `alive`, `excused`, `departed` or `failed`.
    pub liveness: String,
    /// Whether the control link is up and both sides have said hello.
    pub linked: bool,
    /// Why there is no link, as far as that is known; absent while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_link: Option<NoLinkReport>,
    /// Time since its last heartbeat; absent if it was never heard.
    pub last_heard_ms: Option<f64>,
    /// Longest time between two of its heartbeats while it was alive.
    pub max_interarrival_ms: f64,
    /// Heartbeats that were authentic but old.
    pub ignored: u64,
    /// Heartbeats that were under way for so long that they count as silence.
    #[serde(default)]
    pub late: u64,
    /// What it said of shares that was not considered, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub doubts: BTreeMap<String, u64>,
    /// Whether it runs with another configuration.
    pub config_differs: bool,
    /// What differs, a sentence each, as soon as it has said so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// Whether what it sends on the data network is proved to be its: `demanded`, `believed`
    /// (it may be, and need not yet) or `none` (it knows no tags); absent of who shares no
    /// service with this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<String>,
    /// What is known of its power: `unknown`, `cutting`, `stuck` or `off`.
    #[serde(default)]
    pub power: String,
    /// Why it could not be powered off when that was last tried:
    /// `command_failed`, `timed_out` or `not_run`.
    #[serde(default)]
    pub stonith_fault: Option<String>,
}

/// Why there is no link to a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoLinkReport {
    /// The stable name.
    pub reason: String,
    /// The same as a sentence.
    pub found: String,
    /// Whether one side refuses the certificate of the other.
    pub refused: bool,
}

impl PeerReport {
    /// Puts together what the file and the core know of a peer.
    /// `own`: this node's role.
    pub fn new(own: PeerRole, config: &PeerConfig, status: &PeerStatus, now: MonoTime) -> Self {
        Self {
            name: config.name.to_string(),
            role: config.role.to_string(),
            liveness: status.liveness.as_str().into(),
            linked: status.linked,
            no_link: None,
            last_heard_ms: status.heard.map(|heard| ms(now.since(heard))),
            max_interarrival_ms: ms(status.max_interval),
            ignored: status.ignored,
            late: status.late,
            doubts: status
                .doubts
                .iter()
                .map(|(doubt, count)| (doubt.as_str().into(), *count))
                .collect(),
            config_differs: status.config_differs,
            differences: differences(own, config, &status.differences),
            tags: None,
            power: status.power.as_str().into(),
            stonith_fault: status.stonith_fault.map(|fault| fault.as_str().into()),
        }
    }

    /// The same with the reason why there is no link, if there is none.
    pub fn with_absence(self, absence: Option<Absence>) -> Self {
        let absence = absence.filter(|_| !self.linked);
        let no_link = absence.map(|it| NoLinkReport {
            reason: it.reason.as_str().into(),
            found: it.to_string(),
            refused: it.reason.is_refusal(),
        });
        Self { no_link, ..self }
    }
}

/// What differs between this file and a peer's, and what follows. `own`: this node's role.
pub(super) fn differences(own: PeerRole, config: &PeerConfig, found: &[Difference]) -> Vec<String> {
    let peer = config.name;
    let one = |it: &Difference| {
        let (section, key) = (&it.section, &it.key);
        let (has, lacks, role) = match it.side {
            Side::Both => {
                return format!(
                    "peer {peer} runs with another configuration: {section}: {key} differs"
                );
            }
            Side::Here => ("this node".to_owned(), format!("peer {peer}"), config.role),
            Side::There => (format!("peer {peer}"), "this node".to_owned(), own),
        };
        if !key.is_empty() {
            return format!("{section}: only {has} has {key} in its file, {lacks} has not");
        }
        let follows = match (section.starts_with("service "), role) {
            (false, _) => "",
            (true, PeerRole::Director) => ": no connection of it comes by that director",
            (true, PeerRole::Witness) => ": that witness does not vote for it",
            (true, PeerRole::Server) if [own, config.role].contains(&PeerRole::Director) => {
                ": that server gets no connection of it"
            }
            (true, PeerRole::Server) => ": nothing of it is protected between the two",
        };
        format!("only {has} has {section} in its file, {lacks} has not{follows}")
    };
    found.iter().map(one).collect()
}
