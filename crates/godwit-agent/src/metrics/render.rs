//! A status as OpenMetrics text.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::Sources;
use crate::directed::DirectorReport;
use crate::facts::FactReport;
use crate::heartbeat::HeartbeatCounters;
use crate::logging;
use crate::status::{PeerReport, ServiceReport, Status};

/// `{service="web"}`
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ServiceLabel {
    pub(super) service: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlowLabel {
    service: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabel {
    service: String,
    role: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResetLabel {
    service: String,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerLabel {
    peer: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnsentLabel {
    peer: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DoubtLabel {
    peer: String,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabel {
    event: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BackendLabel {
    backend: String,
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SlotLabel {
    service: String,
    backend: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FactLabel {
    name: String,
    service: String,
}

type Float = Gauge<f64, AtomicU64>;

/// Writes everything that is known.
///
/// # Errors
/// Only if the library refuses a name, which a test rules out.
pub(super) fn render(status: &Status, sources: &Sources) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("godwit");
    let about = Info::new([
        ("node", status.node.clone()),
        ("version", status.version.clone()),
    ]);
    registry.register("agent", "Name and version of the agent", about);
    let uptime = Float::default();
    uptime.set(seconds(status.uptime_ms as f64));
    registry.register_with_unit("uptime", "Since the agent started", Unit::Seconds, uptime);
    services(&mut registry, &status.services);
    let stalls = sources.metrics.stalls.clone();
    let help = "From the old owner's last heartbeat to the new role in force: an estimate of a busy client's wait";
    registry.register_with_unit("stall", help, Unit::Seconds, stalls);
    apps(&mut registry, &status.apps_refused);
    facts(&mut registry, &status.facts);
    peers(&mut registry, &status.peers);
    if let Some(report) = &status.director {
        director(&mut registry, report, status.data_path.attached);
    }
    heartbeats(&mut registry, sources);
    reasons(&mut registry, status, sources);
    let mut text = String::new();
    encode(&mut text, &registry).map(|()| text)
}

fn services(registry: &mut Registry, services: &[ServiceReport]) {
    let flows = Family::<FlowLabel, Gauge>::default();
    let roles = Family::<RoleLabel, Gauge>::default();
    let standbys = Family::<ServiceLabel, Gauge>::default();
    let takeovers = Family::<ServiceLabel, Counter>::default();
    let resets = Family::<ResetLabel, Counter>::default();
    for report in services {
        let service = &report.name;
        for (state, count) in report.flows.by_state() {
            let label = FlowLabel {
                service: service.clone(),
                state,
            };
            flows.get_or_create(&label).set(signed(count));
        }
        let label = RoleLabel {
            service: service.clone(),
            role: report.ownership.role.clone(),
        };
        roles.get_or_create(&label).set(1);
        let label = ServiceLabel {
            service: service.clone(),
        };
        standbys
            .get_or_create(&label)
            .set(signed(report.ownership.in_sync.len() as u64));
        takeovers.get_or_create(&label).inc_by(report.takeovers);
        for (reason, count) in &report.resets {
            let label = ResetLabel {
                service: service.clone(),
                reason: reason.clone(),
            };
            resets.get_or_create(&label).inc_by(*count);
        }
    }
    registry.register("flows", "Flows by state", flows);
    registry.register("role", "1 for the role that this node has", roles);
    registry.register(
        "standbys_in_sync",
        "Standbys that hold all that clients were told",
        standbys,
    );
    registry.register("takeovers", "Takeovers by this node", takeovers);
    registry.register(
        "resets",
        "Connections that this node's agent has reset",
        resets,
    );
}

fn apps(registry: &mut Registry, refused: &BTreeMap<String, u64>) {
    let counts = Family::<ReasonLabel, Counter>::default();
    for (reason, count) in refused {
        let label = ReasonLabel {
            reason: reason.clone(),
        };
        counts.get_or_create(&label).inc_by(*count);
    }
    let help = "Requests of server processes with libgodwit that were refused";
    registry.register("app_refused", help, counts);
}

fn facts(registry: &mut Registry, facts: &[FactReport]) {
    let known = Family::<FactLabel, Gauge>::default();
    let days = Family::<FactLabel, Gauge>::default();
    for fact in facts {
        let label = FactLabel {
            name: fact.name.clone(),
            service: fact.service.clone().unwrap_or_default(),
        };
        if let Some(left) = fact.days_left {
            days.get_or_create(&label).set(left);
        }
        known.get_or_create(&label).set(fact.ok.into());
    }
    let help = "Days that a certificate is valid for";
    registry.register("certificate_days", help, days);
    registry.register(
        "fact",
        "1 while a fact is as it should be, 0 while it is wrong",
        known,
    );
}

fn peers(registry: &mut Registry, peers: &[PeerReport]) {
    let alive = Family::<PeerLabel, Gauge>::default();
    let linked = Family::<PeerLabel, Gauge>::default();
    let interarrival = Family::<PeerLabel, Float>::default();
    let doubts = Family::<DoubtLabel, Counter>::default();
    let delayed = Family::<PeerLabel, Counter>::default();
    for report in peers {
        for (reason, count) in &report.doubts {
            let label = DoubtLabel {
                peer: report.name.clone(),
                reason: reason.clone(),
            };
            doubts.get_or_create(&label).inc_by(*count);
        }
        let label = PeerLabel {
            peer: report.name.clone(),
        };
        alive
            .get_or_create(&label)
            .set(i64::from(report.liveness == "alive"));
        delayed.get_or_create(&label).inc_by(report.late);
        linked.get_or_create(&label).set(i64::from(report.linked));
        interarrival
            .get_or_create(&label)
            .set(seconds(report.max_interarrival_ms));
    }
    registry.register("peer_alive", "1 while a peer's heartbeats arrive", alive);
    registry.register(
        "peer_linked",
        "1 while the control link to a peer is up",
        linked,
    );
    let help = "Heartbeats of a peer that arrived too late to count";
    registry.register("peer_heartbeats_delayed", help, delayed);
    let help = "Claims of peers about shares and leases that did not count";
    registry.register("peer_doubts", help, doubts);
    let help = "Longest time between two heartbeats of a peer that was alive";
    registry.register("heartbeat_interarrival_seconds_max", help, interarrival);
}

fn director(registry: &mut Registry, report: &DirectorReport, attached: bool) {
    let states = Family::<BackendLabel, Gauge>::default();
    for backend in &report.backends {
        let label = BackendLabel {
            backend: backend.name.clone(),
            state: backend.state.clone(),
        };
        states.get_or_create(&label).set(1);
    }
    let slots = Family::<SlotLabel, Gauge>::default();
    let mixed = Family::<ServiceLabel, Gauge>::default();
    for service in &report.services {
        // Who gets nothing has a zero, so that the line does not end.
        for backend in &report.backends {
            let count = service.slots.get(&backend.name).copied().unwrap_or(0);
            let label = SlotLabel {
                service: service.name.clone(),
                backend: backend.name.clone(),
            };
            slots.get_or_create(&label).set(count.into());
        }
        let label = ServiceLabel {
            service: service.name.clone(),
        };
        mixed.get_or_create(&label).set(service.mixed.into());
    }
    registry.register("backend", "1 for the state that a back-end is in", states);
    let help = "Slots that give new connections to a back-end";
    registry.register("backend_slots", help, slots);
    let help = "Slots that have changed, so that connections of them may have entries";
    registry.register("mixed_slots", help, mixed);
    let flags = [
        (
            "directing",
            "1 while the program is in the interface's path",
            attached,
        ),
        ("deaf", "1 while no back-end is heard", report.deaf),
    ];
    for (name, help, flag) in flags {
        let gauge = Gauge::<i64>::default();
        gauge.set(flag.into());
        registry.register(name, help, gauge);
    }
}

fn heartbeats(registry: &mut Registry, sources: &Sources) {
    let counters = &sources.heartbeats;
    let counts = [
        ("heartbeats_sent", "Heartbeats sent", counters.sent()),
        (
            "heartbeats_send_failed",
            "Heartbeats that the kernel did not take",
            counters.send_failed(),
        ),
        (
            "heartbeats_late",
            "Heartbeats sent an interval late or more",
            counters.late_ticks(),
        ),
        (
            "inputs_dropped",
            "Heartbeats dropped because the agent was too busy",
            sources.inbox.dropped(),
        ),
        (
            "log_lines_lost",
            "Lines of the log that standard error did not take",
            logging::lost(),
        ),
        (
            "log_lines_left_out",
            "Lines of the log that were not written because there were many of their kind",
            logging::left_out(),
        ),
    ];
    for (name, help, count) in counts {
        registry.register(name, help, counter(count));
    }
    let refused = Family::<ReasonLabel, Counter>::default();
    for (reason, count) in counters.refused() {
        let label = ReasonLabel {
            reason: reason.as_str().into(),
        };
        refused.get_or_create(&label).inc_by(count);
    }
    let label = ReasonLabel {
        reason: "unread".into(),
    };
    refused.get_or_create(&label).inc_by(counters.unread());
    registry.register(
        "peer_datagrams_unsent",
        "Heartbeats and lease datagrams for a peer that the kernel did not take",
        unsent(counters),
    );
    let unlinked = Family::<ReasonLabel, Counter>::default();
    for (reason, count) in sources.unlinked.read() {
        let label = ReasonLabel {
            reason: reason.as_str().into(),
        };
        unlinked.get_or_create(&label).inc_by(count);
    }
    registry.register(
        "links_refused",
        "Connections to the control port that became no link",
        unlinked,
    );
    registry.register(
        "heartbeats_refused",
        "Datagrams that did not count as heartbeats",
        refused,
    );
}

fn unsent(counters: &HeartbeatCounters) -> Family<UnsentLabel, Counter> {
    let unsent = Family::<UnsentLabel, Counter>::default();
    for way in counters.ways() {
        for (reason, count) in [("refused", way.failed), ("buffer_full", way.dropped)] {
            let label = UnsentLabel {
                peer: way.peer.clone(),
                reason,
            };
            unsent.get_or_create(&label).inc_by(count);
        }
    }
    unsent
}

fn reasons(registry: &mut Registry, status: &Status, sources: &Sources) {
    let reasons = Family::<ReasonLabel, Counter>::default();
    for (reason, count) in &status.data_path.reasons {
        let label = ReasonLabel {
            reason: reason.clone(),
        };
        reasons.get_or_create(&label).inc_by(*count);
    }
    registry.register("reasons", "Verdicts of the data path", reasons);
    let events = Family::<EventLabel, Counter>::default();
    for (event, count) in sources.events.counts() {
        events.get_or_create(&EventLabel { event }).inc_by(count);
    }
    registry.register("events", "Events by name", events);
}

fn counter(count: u64) -> Counter {
    let counter = Counter::default();
    counter.inc_by(count);
    counter
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn seconds(ms: f64) -> f64 {
    ms / 1e3
}
