//! The part of `godwit.status/1` and `godwit.flows/1` that a lab asks about.
//!
//! Fields that are added to the schemas later do not disturb it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

/// In seconds.
const DAY: f64 = 86_400.0;

/// One node's answer to `godwit status --json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Status {
    /// Start of the agent.
    #[serde(default)]
    pub incarnation: u64,
    /// The node's name.
    pub node: String,
    /// Which fencing is in force.
    #[serde(default)]
    pub fencing: String,
    /// The other nodes.
    #[serde(default)]
    pub peers: Vec<PeerReport>,
    /// Its services.
    pub services: Vec<ServiceReport>,
    /// Of a director: its back-ends.
    #[serde(default)]
    pub director: Option<DirectorReport>,
    /// What its data path has counted.
    #[serde(default)]
    pub data_path: DataPath,
    /// What needs attention.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Another node in a [`Status`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PeerReport {
    /// Its name.
    pub name: String,
    /// `unknown`, `alive`, `excused`, `departed` or `failed`.
    pub liveness: String,
    /// Whether the control link is up and both sides have said hello.
    pub linked: bool,
    /// Why there is no link.
    #[serde(default)]
    pub no_link: Option<NoLinkReport>,
    /// `unknown`, `cutting`, `stuck` or `off`.
    #[serde(default)]
    pub power: String,
    /// Why it could not be powered off.
    #[serde(default)]
    pub stonith_fault: Option<String>,
    /// Whether its frames are proved: `demanded`, `partly`, `believed` or `none`.
    #[serde(default)]
    pub tags: Option<String>,
}

/// Why there is no link to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NoLinkReport {
    /// As `unreachable` or `turned_away`.
    pub reason: String,
}

/// A director in a [`Status`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct DirectorReport {
    /// `xdp` or `tcx`.
    pub via: String,
    /// Whether it answers for the services' addresses.
    pub holds: bool,
    /// Whether back-ends are still waited for.
    pub starting: bool,
    /// Whether it hears nobody.
    pub deaf: bool,
    /// The back-ends.
    pub backends: Vec<BackendReport>,
    /// Where the connections of each service go.
    pub services: Vec<DirectedReport>,
}

/// A back-end in a [`DirectorReport`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BackendReport {
    /// Its name.
    pub name: String,
    /// `unknown`, `taking`, `draining`, `doubtful` or `gone`.
    pub state: String,
    /// Whether frames go to it.
    pub there: bool,
    /// Whether it was told to drain.
    pub drained: bool,
    /// Whether it does not answer the director's notes.
    #[serde(default)]
    pub unproved: bool,
    /// Whether it is heard and does not hear the director.
    #[serde(default)]
    pub cut_off: bool,
}

/// A service in a [`DirectorReport`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct DirectedReport {
    /// How many slots send new connections to each back-end.
    pub slots: BTreeMap<String, u32>,
    /// How many send them to nobody.
    pub nobody: u32,
    /// The back-ends whose servers stand still.
    #[serde(default)]
    pub paused: Vec<String>,
    /// How many have been changed since their first connection.
    pub mixed: u32,
}

/// The data path in a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct DataPath {
    /// Whether the programs are in the path.
    pub attached: bool,
    /// How often each verdict was given, by its name; those at 0 are left out.
    #[serde(default)]
    pub reasons: BTreeMap<String, u64>,
}

/// One service in a [`Status`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ServiceReport {
    /// Its name.
    pub name: String,
    /// `starting`, `standby`, `shadow`, `owner` or `quitting`.
    pub state: String,
    /// What the data path does: `none`, `owner` or `shadow`.
    pub role: String,
    /// Name of the owner as far as the node knows.
    pub owner: Option<String>,
    /// Generation of the standby in sync; 0 if there is none.
    pub generation: u32,
    /// Standbys that hold all that clients were told.
    pub in_sync: Vec<String>,
    /// Flows that would survive the owner's failure now.
    pub protected: u64,
    /// Whether the other side's failure would be noticed at once.
    #[serde(default)]
    pub watched: bool,
    /// How far a twin's application may be behind now.
    #[serde(default)]
    pub leash_bytes: u32,
    /// If its requests have rules: the other servers that are asked for them.
    #[serde(default)]
    pub asks: Option<Vec<String>>,
    /// If its new connections may begin elsewhere: how loaded it is, in percent.
    #[serde(default)]
    pub load: Option<u8>,
    /// Takeovers by this node.
    #[serde(default)]
    pub takeovers: u64,
    /// The last of them.
    #[serde(default)]
    pub last_takeover: Option<Takeover>,
    /// Connections that the node has reset, by reason.
    #[serde(default)]
    pub resets: BTreeMap<String, u64>,
}

/// One takeover as the node that made it saw it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Takeover {
    /// Why.
    pub reason: String,
    /// From the old owner's last heartbeat to the decision.
    pub detection_ms: f64,
    /// From that heartbeat until the share's role was written.
    pub stall_ms: f64,
}

/// The answer to `godwit move --json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MoveReport {
    /// The services that moved.
    pub services: Vec<String>,
    /// Connections that moved with them.
    pub flows: u64,
    /// From the old owner's last word to the new owner's claim.
    pub silent_ms: f64,
}

/// The answer to `godwit move --json` about single connections.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct FlowMoves {
    /// Those that moved.
    pub moved: Vec<MovedFlow>,
    /// Those that did not.
    pub stayed: Vec<StayedFlow>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MovedFlow {
    /// `client -> service`.
    pub flow: String,
    /// How long nobody spoke, in milliseconds.
    pub silent_ms: f64,
}

/// One that stayed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StayedFlow {
    /// `client -> service`.
    pub flow: String,
    /// Why.
    pub reason: String,
}

/// One node's answer to `godwit flows --json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Flows {
    /// Its flows, in no order.
    pub flows: Vec<FlowReport>,
}

/// One flow in [`Flows`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct FlowReport {
    /// `client -> service`.
    pub flow: String,
    /// Name of its service.
    #[serde(default)]
    pub service: String,
    /// `owner` or `shadow`.
    pub role: String,
    /// `confirming`, `protected`, `unprotected`, `twin`, `closed` or `ended`.
    pub state: String,
    /// Whether it would survive the owner's failure now.
    pub protected: bool,
    /// Why not.
    pub reason: Option<String>,
    /// How far the twin is behind the client's acknowledgements.
    pub lag_bytes: Option<u32>,
    /// Sent to the client (owner), or would have been (shadow).
    #[serde(default)]
    pub bytes_out: u64,
    /// Name of the node that it was given to; it may not be there yet.
    #[serde(default)]
    pub at: Option<String>,
    /// Owner: what an unprotected flow waits for.
    #[serde(default)]
    pub reprotect: Option<String>,
    /// Owner: time since it became protected again.
    #[serde(default)]
    pub protected_again_ms: Option<u64>,
}

/// One line of `godwit events --json`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct EventReport {
    /// Counts the events of one agent's life from 1.
    pub sequence: u64,
    /// When, as RFC 3339 in UTC.
    pub time: String,
    /// The node whose agent says so.
    pub node: String,
    /// Its stable name.
    pub event: String,
    /// The service that it is about, if it is about one.
    pub service: Option<String>,
    /// `client -> service`, if it is about a flow.
    pub flow: Option<String>,
    /// Why, where the event has a reason.
    pub reason: Option<String>,
    /// The same as a sentence, of what can't be moved.
    pub why: Option<String>,
    /// Of a change of role: the state that the node is in since.
    pub state: Option<String>,
    /// Of a move: the new owner.
    pub to: Option<String>,
}

impl EventReport {
    /// An event without any of its fields.
    #[cfg(test)]
    pub(crate) fn of(node: &str, event: &str, service: Option<&str>) -> Self {
        Self {
            sequence: 1,
            time: String::new(),
            node: node.to_owned(),
            event: event.to_owned(),
            service: service.map(str::to_owned),
            flow: None,
            reason: None,
            why: None,
            state: None,
            to: None,
        }
    }

    /// When it was, within half a day of `moment`. `None` if its time is none.
    pub fn at(&self, moment: SystemTime) -> Option<SystemTime> {
        let before = self.seconds_before(moment)?;
        let span = Duration::try_from_secs_f64(before.abs()).ok()?;
        if before > 0.0 {
            moment.checked_sub(span)
        } else {
            moment.checked_add(span)
        }
    }

    /// How many seconds before `moment` it was, less than half a day; negative if
    /// after. `None` if its time is none.
    pub fn seconds_before(&self, moment: SystemTime) -> Option<f64> {
        let (_, time) = self.time.strip_suffix('Z')?.split_once('T')?;
        let mut parts = time.split(':').map(str::parse::<f64>);
        let second = parts.try_fold(0.0, |sum, part| Some(sum * 60.0 + part.ok()?))?;
        let moment = moment.duration_since(UNIX_EPOCH).ok()?;
        let since_midnight = moment.as_secs_f64() % DAY;
        Some((since_midnight - second + 1.5 * DAY) % DAY - DAY / 2.0)
    }
}

impl Status {
    /// How often the data path gave a verdict; 0 for a name that it lacks.
    pub fn counted(&self, reason: &str) -> u64 {
        self.data_path.reasons.get(reason).copied().unwrap_or(0)
    }
}

impl Status {
    /// Why the failure of this owner would not be outlived, if it would not. Asked are also
    /// `standby`, and the flows of the owner.
    pub(crate) fn why_unready(&self, standby: &Self, flows: &Flows) -> Option<String> {
        if let Some(late) = self.services.iter().find(|it| !it.is_owner_in_sync()) {
            return Some(format!("{} has no standby in sync", late.name));
        }
        if let Some(late) = standby.services.iter().find(|it| !it.is_shadow()) {
            return Some(format!("{} does not shadow {}", standby.node, late.name));
        }
        let mut lives = flows.flows.iter().filter(|flow| flow.state != "ended");
        let open = lives.find(|flow| !flow.protected)?;
        let reason = open.reason.as_deref().unwrap_or(&open.state);
        Some(format!("{} is not protected ({reason})", open.flow))
    }
}

impl ServiceReport {
    /// True on an owner whose standby could take over now.
    pub fn is_owner_in_sync(&self) -> bool {
        self.role == "owner" && self.generation != 0 && self.watched
    }

    /// True on a standby that follows, and would notice its owner's failure.
    pub fn is_shadow(&self) -> bool {
        self.role == "shadow" && self.watched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(node: &str, role: &str, generation: u32) -> Status {
        let text = format!(
            r#"{{"node":"{node}","services":[{{"name":"web","state":"{role}","role":"{role}",
            "owner":"a","generation":{generation},"in_sync":[],"protected":0,"watched":true}}]}}"#
        );
        serde_json::from_str(&text).expect("nothing else is needed")
    }

    fn flows(state: &str, protected: bool) -> Flows {
        let text = format!(
            r#"{{"flows":[{{"flow":"c -> s","role":"owner","state":"{state}",
            "protected":{protected},"reason":null,"lag_bytes":null}}]}}"#
        );
        serde_json::from_str(&text).expect("nothing else is needed")
    }

    #[test]
    fn a_failure_is_outlived_by_what_is_in_sync_and_protected() {
        let (owner, standby) = (status("a", "owner", 3), status("b", "shadow", 0));
        assert_eq!(owner.why_unready(&standby, &flows("protected", true)), None);
        assert_eq!(owner.why_unready(&standby, &flows("ended", false)), None);
        for (first, second, flow, why) in [
            (
                &status("a", "owner", 0),
                &standby,
                true,
                "no standby in sync",
            ),
            (
                &status("a", "none", 3),
                &standby,
                true,
                "no standby in sync",
            ),
            (
                &owner,
                &status("b", "none", 0),
                true,
                "b does not shadow web",
            ),
            (&owner, &standby, false, "c -> s is not protected"),
        ] {
            let said = first.why_unready(second, &flows("confirming", flow));
            assert!(said.as_ref().is_some_and(|it| it.contains(why)), "{said:?}");
        }
    }
}
