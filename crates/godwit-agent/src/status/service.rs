//! What a node says of each service.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use godwit_core::ShareStatus;
use godwit_wire::{NodeName, Role};
use serde::{Deserialize, Serialize};

use crate::config::{Config, ServiceConfig};
use crate::flows::{FlowCounts, ShareView};

/// Connections that are not protected, from which on that may be said: one has reasons of its
/// own.
const FEW: u64 = 2;

/// One service, and the share that it is in this version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Its name.
    pub name: String,
    /// Number of its share.
    pub share: u32,
    /// Where clients reach it.
    pub addresses: Vec<String>,
    /// The node that owns it when nobody else does.
    pub primary: String,
    /// The nodes that take over.
    pub backups: Vec<String>,
    /// Who owns it, and who may.
    #[serde(flatten)]
    pub ownership: Ownership,
    /// The addresses at which nothing listens on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_listening: Vec<String>,
    /// `ack` or `off`.
    pub gate: String,
    /// Whether the other side's heartbeats arrive, so that its failure would be
    /// noticed at once: the owner's at a shadow, the standby's at an owner.
    #[serde(default)]
    pub watched: bool,
    /// How far a twin's application may be behind now, in bytes.
    #[serde(default)]
    pub leash_bytes: u32,
    /// If its requests have rules: the other servers that are asked for them now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<Vec<String>>,
    /// If its new connections may begin elsewhere: how loaded this node is, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<u8>,
    /// Flows by state.
    pub flows: FlowCounts,
    /// Whether it is one of a ring.
    #[serde(skip)]
    pub is_ring: bool,
    /// Whether the file gives it a standby.
    #[serde(skip)]
    pub has_standby: bool,
    /// Flows that would survive the owner's failure now: both sides count them.
    pub protected: u64,
    /// Takeovers by this node since its data path was attached.
    pub takeovers: u64,
    /// The last takeover by this node's agent.
    pub last_takeover: Option<TakeoverReport>,
    /// Connections that this node's agent has reset since it started, by reason;
    /// those at 0 are left out.
    #[serde(default)]
    pub resets: BTreeMap<String, u64>,
}

/// Who owns a share, and who may, as a node knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ownership {
    /// `starting`, `standby`, `shadow`, `owner` or `quitting`.
    pub state: String,
    /// What the data path does: `none`, `owner` or `shadow`.
    pub role: String,
    /// Who owns it, as far as this node knows.
    pub owner: Option<String>,
    /// The owner's epoch, `incarnation.counter`.
    pub epoch: String,
    /// The generation of the standby in sync; 0 if there is none.
    pub generation: u32,
    /// The standbys that hold all that clients were told.
    pub in_sync: Vec<String>,
}

/// How one takeover went, as this node can know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakeoverReport {
    /// The owner before.
    pub from: String,
    /// Why: `owner_failed`, `owner_shutdown`, ...
    pub reason: String,
    /// From the old owner's last heartbeat to the decision.
    pub detection_ms: f64,
    /// From that heartbeat until the share's role was written: what a busy
    /// client has waited, but for one round trip. An estimate.
    pub stall_ms: f64,
    /// How long ago it was.
    pub age_ms: u64,
}

impl ServiceReport {
    /// Puts together what the file, the core and the data path know of a service.
    pub fn new(
        file: &Config,
        config: &ServiceConfig,
        status: &ShareStatus,
        flows: FlowCounts,
    ) -> Self {
        let names = |names: &[NodeName]| names.iter().map(ToString::to_string).collect();
        let home = file.home_of(status.id).filter(|_| config.is_ring());
        let (primary, backups) = match home {
            Some(home) => (home, config.standbys_of(home)),
            None => (config.primary, config.backups.clone()),
        };
        Self {
            name: file.share_name(status.id, config),
            share: status.id.0,
            addresses: config.addresses.iter().map(ToString::to_string).collect(),
            primary: primary.to_string(),
            backups: names(&backups),
            ownership: Ownership {
                state: status.state.as_str().into(),
                role: status.role.as_str().into(),
                owner: status.owner.map(|owner| owner.to_string()),
                epoch: status.epoch.to_string(),
                generation: status.generation.0,
                in_sync: names(&status.in_sync),
            },
            not_listening: Vec::new(),
            gate: config.gate_in_force().as_str().into(),
            watched: false,
            is_ring: config.is_ring(),
            has_standby: config.has_standby(),
            leash_bytes: config.lag.leash,
            asks: None,
            load: None,
            protected: flows.protected,
            flows,
            takeovers: 0,
            last_takeover: None,
            resets: BTreeMap::new(),
        }
    }

    /// How many flows would survive the owner's failure now: the owner's protected ones, or
    /// the twins that this node would serve, if it is in sync.
    pub(crate) fn survivors(&self, share: ShareView<'_>, node: &str) -> u64 {
        match share.role {
            Role::Owner if !share.no_quorum => self.flows.protected,
            Role::Shadow if self.ownership.in_sync.iter().any(|name| name == node) => {
                self.flows.ready
            }
            Role::Owner | Role::Shadow | Role::None => 0,
        }
    }

    /// In sync with a side that is not heard.
    pub(super) fn is_unwatched(&self) -> bool {
        !self.ownership.in_sync.is_empty() && !self.watched
    }

    /// As the owner: a standby is in sync, and most connections are not protected.
    pub(super) fn protects_few(&self) -> Option<String> {
        let FlowCounts {
            protected,
            unprotected,
            ..
        } = self.flows;
        let few = unprotected >= FEW && unprotected > protected;
        let owns = self.ownership.state == "owner" && !self.ownership.in_sync.is_empty();
        (owns && few).then(|| {
            format!(
                "service {}: {unprotected} of {} connections are not protected, although {} is \
                 in sync: `godwit flows` says why, and `godwit status` there what is wrong",
                self.name,
                unprotected + protected,
                self.ownership.in_sync.join(", ")
            )
        })
    }

    /// Its addresses without ports; none where directors see to it that each server has them.
    pub(super) fn ips(&self) -> Vec<IpAddr> {
        let addresses = self.addresses.iter().filter(|_| !self.is_ring);
        let sockets = addresses.filter_map(|address| address.parse::<SocketAddr>().ok());
        sockets.map(|socket| socket.ip()).collect()
    }

    /// What follows from the addresses at which nothing listens.
    pub(super) fn missing_listener(&self) -> String {
        let addresses = self.not_listening.join(", ");
        let follows = match self.ownership.state.as_str() {
            "owner" => "clients are refused there",
            _ => "this node does not stand by",
        };
        format!(
            "service {}: nothing listens at {addresses} on this node, so {follows}",
            self.name
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_str, to_string};

    use super::*;
    use crate::testing::service_report;

    /// Programs read `godwit status --json`: its fields have one level, whatever this code
    /// makes of them.
    #[test]
    fn a_service_has_its_fields_side_by_side() {
        let mut report = service_report("owner", &["b"]);
        report.not_listening = vec!["10.0.0.100:80".into()];
        (report.asks, report.load) = (Some(vec!["b".into()]), Some(3));
        // What the file says is not in it.
        report.has_standby = false;
        let text = to_string(&report).expect("it has only texts and numbers");
        let flows = to_string(&report.flows).expect("they are numbers");
        let said = format!(
            "{{\"name\":\"web\",\"share\":0,\"addresses\":[],\"primary\":\"a\",\
             \"backups\":[\"b\"],\"state\":\"owner\",\"role\":\"owner\",\"owner\":\"b\",\
             \"epoch\":\"1.1\",\"generation\":1,\"in_sync\":[\"b\"],\
             \"not_listening\":[\"10.0.0.100:80\"],\"gate\":\"ack\",\"watched\":false,\
             \"leash_bytes\":0,\"asks\":[\"b\"],\"load\":3,\"flows\":{flows},\
             \"protected\":0,\"takeovers\":0,\"last_takeover\":null,\"resets\":{{}}}}"
        );
        assert_eq!(text, said);
        let read: ServiceReport = from_str(&text).expect("it is what was written");
        assert_eq!(read, report);
        // What an agent of another version says in addition is passed over.
        let mut more: Value = from_str(&text).expect("it is JSON");
        more["later"] = Value::Bool(true);
        let read: ServiceReport = from_str(&more.to_string()).expect("it is no fault");
        assert_eq!(read.ownership, report.ownership);
    }
}
