//! What another file would change: for `godwit check`, before `godwit reload` does it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::lines::Line;
use super::{Config, ServiceConfig};

/// What becomes of one section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// As `service "web"`.
    pub section: String,
    /// `added`, `removed`, `renamed`, `readdressed`, `changed` or `unchanged`.
    pub what: &'static str,
    /// The keys that change, and from what to what.
    pub keys: Vec<KeyChange>,
    /// What follows for those who are connected; empty: nothing.
    pub means: String,
}

/// What becomes of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyChange {
    /// The key.
    pub key: String,
    /// What it is; empty: it is not there.
    pub from: String,
    /// What it would be; empty: it would not be there.
    pub to: String,
}

const ENDS: &str = "its address goes from this node; a standby in sync whose file still has \
                    it goes on with its connections, else they end";
const UNDISTURBED: &str = "which disturbs no connection";

const OLD_ENDS: &str =
    "connections of the old addresses end, those of addresses that stay are not disturbed";

impl Change {
    /// One line for people.
    pub fn sentence(&self) -> String {
        let mut text = format!("{}: {}", self.section, self.what);
        for key in &self.keys {
            let shown = |value: &str| match value {
                "" => "nothing".to_owned(),
                value => value.to_owned(),
            };
            let (from, to) = (shown(&key.from), shown(&key.to));
            text.push_str(&format!("; {} from {from} to {to}", key.key));
        }
        if !self.means.is_empty() {
            text.push_str(&format!(" ({})", self.means));
        }
        text
    }
}

impl Config {
    /// What changes if a node that runs with this file takes `next`: every section, in
    /// the order of names.
    pub fn changes(&self, next: &Self) -> Vec<Change> {
        let (old, new) = (by_section(self), by_section(next));
        let mut changes = Vec::new();
        for (section, keys) in &old {
            let change = match new.get(section) {
                Some(others) => self.compare(next, section, (keys, others)),
                None => self.removed(next, section),
            };
            changes.push(change);
        }
        for section in new.keys().filter(|section| !old.contains_key(*section)) {
            changes.push(next.added(self, section));
        }
        changes.extend(self.own_changes(next));
        changes
    }

    fn compare(&self, next: &Self, section: &str, (old, new): (&Keys, &Keys)) -> Change {
        let mut keys = Vec::new();
        for (key, from) in old {
            let to = new.get(key).cloned().unwrap_or_default();
            if *from != to {
                keys.push(key_change(key, from, &to));
            }
        }
        for (key, to) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
            keys.push(key_change(key, "", to));
        }
        let service = self.service_of(section).zip(next.service_of(section));
        let is_readdressed = service.is_some() && keys.iter().any(|it| it.key == "address");
        let is_another = service.is_some_and(|(a, b)| a.is_divided() != b.is_divided());
        let what = match (keys.is_empty(), is_readdressed) {
            (true, _) => "unchanged",
            (false, true) => "readdressed",
            (false, false) => "changed",
        };
        let means = match (is_another, is_readdressed) {
            (true, _) => "it becomes a service of another kind: its connections end",
            (false, true) => OLD_ENDS,
            (false, false) => "",
        };
        change(section, what, keys, means)
    }

    fn removed(&self, next: &Self, section: &str) -> Change {
        let Some(service) = self.service_of(section) else {
            return change(section, "removed", Vec::new(), "");
        };
        match renamed(service, self, next) {
            Some(other) => change(
                section,
                "renamed",
                vec![key_change(
                    "name",
                    service.name.as_str(),
                    other.name.as_str(),
                )],
                "the old service ends with its connections, and a new one begins",
            ),
            None => change(section, "removed", Vec::new(), ENDS),
        }
    }

    fn added(&self, earlier: &Self, section: &str) -> Change {
        let service = self.service_of(section);
        let former = service.and_then(|it| renamed(it, self, earlier));
        let keys = match (service, former) {
            (Some(service), Some(former)) => {
                vec![key_change(
                    "name",
                    former.name.as_str(),
                    service.name.as_str(),
                )]
            }
            _ => Vec::new(),
        };
        change(section, "added", keys, "")
    }

    fn service_of(&self, section: &str) -> Option<&ServiceConfig> {
        let mut services = self.services.iter();
        services.find(|it| section == format!("service \"{}\"", it.name))
    }

    /// What a restart with `next` costs. Where each server has connections of its own these go
    /// by the server's name.
    pub(crate) fn restart_cost(&self, next: &Self) -> String {
        let name = self.node.name;
        let own = self.services.iter().filter(|it| it.has_member(name));
        let (divided, whole): (Vec<_>, Vec<_>) = own.partition(|it| it.is_divided());
        let names = |all: &[&ServiceConfig]| {
            let names: Vec<_> = all.iter().map(|it| it.name.as_str()).collect();
            names.join(", ")
        };
        if name == next.node.name || (divided.is_empty() && whole.is_empty()) {
            return UNDISTURBED.into();
        }
        if divided.is_empty() {
            return format!(
                "which disturbs no connection once node {name} owns none of {}: hand them over \
                 first (`godwit drain` at {name})",
                names(&whole)
            );
        }
        format!(
            "which ends the connections that node {name} has of {}: they go by its name, so give \
             it no new ones (`godwit drain {name}` at a director) until it has none",
            names(&divided)
        )
    }

    /// What is this node's own: other nodes do not compare it.
    fn own_changes(&self, next: &Self) -> Vec<Change> {
        let node = |config: &Self| {
            let node = &config.node;
            [
                ("name", node.name.to_string()),
                ("interface", node.interface.to_string()),
                ("run_dir", node.run_dir.display().to_string()),
                ("app_group", node.app_group.clone().unwrap_or_default()),
                (
                    "metrics",
                    node.metrics.map(|it| it.to_string()).unwrap_or_default(),
                ),
            ]
        };
        let tls = |config: &Self| {
            let tls = &config.tls;
            [
                ("ca", tls.ca.display().to_string()),
                ("cert", tls.cert.display().to_string()),
                ("key", tls.key.display().to_string()),
                (
                    "crl",
                    tls.crl
                        .as_ref()
                        .map_or_else(String::new, |it| it.display().to_string()),
                ),
            ]
        };
        let restart = format!("it needs a restart, {}", self.restart_cost(next));
        let node = own_change("node", node(self), node(next), &restart);
        let tls = own_change("tls", tls(self), tls(next), "");
        node.into_iter().chain(tls).collect()
    }
}

/// What a section says of this node alone, by key.
fn own_change<const N: usize>(
    section: &str,
    old: [(&str, String); N],
    new: [(&str, String); N],
    means: &str,
) -> Option<Change> {
    let pairs = old.into_iter().zip(new);
    let keys: Vec<_> = pairs
        .filter(|((_, from), (_, to))| from != to)
        .map(|((key, from), (_, to))| key_change(key, &from, &to))
        .collect();
    (!keys.is_empty()).then(|| change(section, "changed", keys, means))
}

/// The service that has the same addresses under another name, if it is new there.
fn renamed<'a>(
    service: &ServiceConfig,
    here: &Config,
    there: &'a Config,
) -> Option<&'a ServiceConfig> {
    let is_new = |other: &&ServiceConfig| here.services.iter().all(|it| it.name != other.name);
    let is_it = |other: &&ServiceConfig| {
        let shared = service
            .addresses
            .iter()
            .any(|at| other.addresses.contains(at));
        shared && is_new(other)
    };
    there.services.iter().find(is_it)
}

type Keys = BTreeMap<String, String>;

fn by_section(config: &Config) -> BTreeMap<String, Keys> {
    let mut sections: BTreeMap<String, Keys> = BTreeMap::new();
    for Line {
        section,
        key,
        value,
    } in config.lines()
    {
        sections.entry(section).or_default().insert(key, value);
    }
    sections
}

fn change(section: &str, what: &'static str, keys: Vec<KeyChange>, means: &str) -> Change {
    Change {
        section: section.to_owned(),
        what,
        keys,
        means: means.to_owned(),
    }
}

fn key_change(key: &str, from: &str, to: &str) -> KeyChange {
    KeyChange {
        key: key.to_owned(),
        from: from.to_owned(),
        to: to.to_owned(),
    }
}
