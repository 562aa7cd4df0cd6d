//! What people see of a director, in `godwit.status/1` and in answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::moves::MoveRefused;

/// A director in `godwit.status/1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectorReport {
    /// Where the program is: `xdp` or `tcx`.
    pub via: String,
    /// Where it was to be.
    pub hook: String,
    /// Whether it answers for the services' addresses: another director may.
    #[serde(default = "yes")]
    pub holds: bool,
    /// Whether back-ends are still waited for, so that nothing has been changed yet.
    pub starting: bool,
    /// Whether it hears no back-end, so that nothing is changed.
    pub deaf: bool,
    /// Whether the kernel has not taken all of what it should know; it is tried again.
    #[serde(default)]
    pub behind: bool,
    /// Slots of each service.
    pub table_size: u32,
    /// The back-ends.
    pub backends: Vec<BackendReport>,
    /// Where the connections of each service go.
    pub services: Vec<DirectedReport>,
}

/// As directors of before had it.
const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
const fn is_not(it: &bool) -> bool {
    !*it
}

/// A back-end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendReport {
    /// Its name.
    pub name: String,
    /// `unknown`, `taking`, `draining`, `doubtful`, `silent` or `gone`.
    pub state: String,
    /// Whether frames go to it.
    pub there: bool,
    /// Whether the operator wants no new connections there.
    pub drained: bool,
    /// Whether its heartbeats come and it does not hear this director: it gets no new ones.
    #[serde(default, skip_serializing_if = "is_not")]
    pub cut_off: bool,
    /// How many it gets, against the others.
    pub weight: u16,
    /// Where it is on the link; absent if it has not been found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectedReport {
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub addresses: Vec<String>,
    /// How many slots send new connections to each back-end; none to those left out.
    pub slots: BTreeMap<String, u32>,
    /// Slots that send new connections to nobody.
    pub nobody: u32,
    /// The back-ends whose servers stand still.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused: Vec<String>,
    /// Slots whose connections are not all where new ones go, or have not always been.
    pub mixed: u32,
}

impl DirectorReport {
    /// What needs attention.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.via != self.hook {
            warnings.push(format!(
                "the interface's driver has no XDP: the program is on {}, which is slower",
                self.via
            ));
        }
        if self.deaf {
            warnings.push(
                "no back-end is heard: connections go where they went, whether somebody is \
                 there or not"
                    .into(),
            );
        }
        if self.behind {
            warnings.push("the kernel did not take a change of the tables".into());
        }
        for backend in self.backends.iter().filter(|it| it.cut_off) {
            warnings.push(format!(
                "back-end {name} is heard, and does not hear this director: it gets no new \
                 connections, and those that it has may hang; look at the way from here to {name} \
                 (a firewall, a switch, its control port)",
                name = backend.name
            ));
        }
        for service in self.services.iter().filter(|it| it.nobody > 0) {
            warnings.push(format!("service {} has no back-end", service.name));
        }
        warnings.extend(self.services.iter().filter_map(DirectedReport::say_paused));
        warnings
    }
}

impl DirectedReport {
    /// The servers that stand still, and what follows.
    fn say_paused(&self) -> Option<String> {
        let names = self.paused.join(", ");
        let follows = if self.paused.iter().any(|name| self.slots.contains_key(name)) {
            "new connections wait there, as no other one serves"
        } else {
            "it gets no new connections until it goes on"
        };
        (!names.is_empty()).then(|| {
            format!(
                "service {}: the server on {names} is stopped, so {follows}: see `godwit status` \
                 there",
                self.name
            )
        })
    }
}

/// `godwit.backend/1`: a back-end that was told to drain, or not to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendDrain {
    /// The schema's name and version.
    pub schema: String,
    /// The director.
    pub node: String,
    /// The back-end.
    pub backend: String,
    /// Whether it gets no new connections.
    pub drained: bool,
}

impl BackendDrain {
    pub(crate) const SCHEMA: &str = "godwit.backend/1";
}

/// Somebody wants a back-end to drain, or not to.
#[derive(Debug)]
pub struct DrainWish {
    /// Name of the back-end.
    pub node: String,
    /// Whether it is to get no new connections.
    pub drained: bool,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<BackendDrain, MoveRefused>>,
}

impl DrainWish {
    /// A wish whose answer goes to `reply`.
    pub(crate) const fn new(
        node: String,
        drained: bool,
        reply: oneshot::Sender<Result<BackendDrain, MoveRefused>>,
    ) -> Self {
        Self {
            node,
            drained,
            reply,
        }
    }

    /// The answer of a node that is no director.
    pub(crate) fn refuse(self) {
        let sentence = "this node is no director".into();
        let reason = "no_director";
        // Whoever asked may have gone.
        let _ = self.reply.send(Err(MoveRefused { reason, sentence }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_stand_still_are_named_with_what_follows() {
        let said = |paused: &[&str], taker: &str| {
            let report = DirectedReport {
                name: "web".into(),
                addresses: Vec::new(),
                slots: [(taker.to_owned(), 251)].into(),
                nobody: 0,
                paused: paused.iter().map(|name| (*name).to_owned()).collect(),
                mixed: 0,
            };
            report.say_paused().unwrap_or_default()
        };
        assert_eq!(said(&[], "b"), "");
        let one = said(&["b"], "c");
        assert!(
            one.contains("the server on b is stopped, so it gets no new"),
            "{one}"
        );
        let all = said(&["b", "c"], "c");
        assert!(
            all.contains("on b, c is stopped, so new connections wait"),
            "{all}"
        );
    }
}
