//! What people see of this node: `status`, `flows`, the last takeover.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use godwit_bpf::FlowTable;
use godwit_core::node::{FailbackStatus, ShareNews};
use godwit_core::{Event, EventKind, MonoTime, PeerId, PeerStatus, ShareStatus};
use godwit_wire::{Generation, LeaveReason, NodeName, Role, ShareId};
use tokio::sync::oneshot;

use super::shares::LastTakeover;
use super::{Driver, moves, unreached};
use crate::clock::{self, ms, whole_ms};
use crate::config::PeerConfig;
use crate::flows::{FlowCounts, FlowReport, Flows, ShareView};
use crate::realtime::be_ordinary;
use crate::status::{DataPathReport, PeerReport, ServiceReport, Status, TakeoverReport};

/// What a scan of the flow table needs to know of the shares.
#[derive(Debug)]
struct Views(BTreeMap<ShareId, View>);

#[derive(Debug)]
struct View {
    service: String,
    role: Role,
    generation: Generation,
    no_quorum: bool,
    kept: bool,
}

impl Driver {
    /// Answers when the flows have been counted, on a thread of its own: with
    /// many flows that takes longer than a heartbeat.
    pub(super) fn answer_status(&self, answer: oneshot::Sender<Status>, now: MonoTime) {
        let (mut status, ids) = self.status(now);
        let (flows, views) = (self.ground.datapath.flows.clone(), self.views());
        let handed = self.handoffs.handed(&self.ground);
        let (unreached, transfers) = (
            self.requests.unreached(now),
            self.ground.datapath.requests.transfers.clone(),
        );
        aside(move || {
            status
                .warnings
                .extend(unreached::say(&unreached, &transfers));
            let mut counts = views.count(&flows);
            for (share, handed) in handed {
                counts.entry(share).or_default().count(handed.state);
            }
            for (report, id) in status.services.iter_mut().zip(ids) {
                report.flows = counts.get(&id).copied().unwrap_or_default();
                report.protected = match views.of(id) {
                    Some(share) => report.survivors(share, &status.node),
                    None => 0,
                };
            }
            // Whoever asked may have gone.
            let _ = answer.send(status);
        });
    }

    /// As [`Driver::answer_status`].
    pub(super) fn answer_flows(&self, answer: oneshot::Sender<Flows>, now: MonoTime) {
        let node = self.ground.config.node.name;
        let (flows, views) = (self.ground.datapath.flows.clone(), self.views());
        let handed = self.handoffs.handed(&self.ground);
        aside(move || {
            let mut reports = views.report(&flows, now);
            for (share, handed) in handed {
                let Some(view) = views.of(share) else {
                    continue;
                };
                // Its flow may be what is left of its time here.
                let name = handed.flow.to_string();
                reports.retain(|report| report.flow != name);
                reports.push(FlowReport::handed(&handed, (view.service, share), now));
            }
            // Whoever asked may have gone.
            let _ = answer.send(Flows::new(node.as_str(), reports));
        });
    }

    fn peer_reports(&self, now: MonoTime) -> Vec<PeerReport> {
        let own = self.ground.config.own_peer().role;
        let peers = self
            .ground
            .config
            .others()
            .zip(self.ground.node.peer_status());
        let reports = peers.zip((0..).map(PeerId));
        let reports = reports.map(|((config, peer), id)| PeerReport {
            tags: self.requests.tagging().of(id).map(ToOwned::to_owned),
            ..PeerReport::new(own, config, &peer, now).with_absence(self.ground.peers.absence(id))
        });
        reports.collect()
    }

    /// Everything but the flow counts, and the shares of its services.
    fn status(&self, now: MonoTime) -> (Status, Vec<ShareId>) {
        let mut status = Status::new(
            &self.ground.config,
            self.incarnation,
            now.since(self.ground.started),
        );
        status.apps_refused = self.ground.apps.refused();
        status.peers = self.peer_reports(now);
        let mut ids = Vec::new();
        for share in self.ground.node.share_status() {
            let Some((_, config)) = self.ground.config.shares().find(|(id, _)| *id == share.id)
            else {
                continue;
            };
            let mut report =
                ServiceReport::new(&self.ground.config, config, &share, FlowCounts::default());
            if let Some(peer) = self.unresolved(share.id) {
                report.ownership.in_sync.clear();
                report.ownership.generation = 0;
                status.warnings.push(format!(
                    "service {}: peer {} does not answer for {} on the service interface, \
                     so nothing is protected",
                    report.name, peer.name, peer.data
                ));
            }
            for (peer, why) in &share.unproved {
                status
                    .warnings
                    .push(self.say_unproved(&report.name, *peer, *why));
            }
            let silent = self.servers.silent(share.id);
            report.not_listening = silent.iter().map(ToString::to_string).collect();
            let socket = self.ground.apps.socket();
            let unregistered = self
                .servers
                .registrations
                .say(share.id, &report.name, socket);
            status.warnings.extend(unregistered);
            status.warnings.extend(say_lease(&report.name, &share, now));
            let home = share.failback.as_ref();
            status
                .warnings
                .extend(home.map(|it| say_failback(&report.name, it, now)));
            for server in self.requests.unproved(share.id, now) {
                status.warnings.push(format!(
                    "service {}: the link does not carry what this node would send to {server} \
                     with a request (frames of EtherType 0x88b6), or nothing comes back, so \
                     requests stay where they are",
                    report.name
                ));
            }
            status.services.push(self.with_entry(report, share.id, now));
            ids.push(share.id);
        }
        status.warnings.extend(self.say_pauses());
        status
            .warnings
            .extend(self.servers.doubters.say(&self.ground.node));
        status.data_path = self.data_path();
        status.facts = self.outside.facts.reports(&self.ground.config);
        status.conclude();
        (status, ids)
    }

    /// Servers that stand still on peers that are heard.
    fn say_pauses(&self) -> Vec<String> {
        let peers = (0..).map(PeerId).zip(self.ground.node.peer_status());
        let heard = peers.filter(|(_, peer)| peer.liveness.is_alive());
        let say = |(id, peer): (PeerId, PeerStatus)| {
            let services = self.servers.pauses.of(id).into_iter();
            let say = move |service| {
                format!(
                    "service {service}: all of its server on peer {} is stopped, so clients \
                     wait there, and what another server dies with is not taken over: see \
                     `godwit status` there",
                    peer.name
                )
            };
            services.map(say).collect::<Vec<_>>()
        };
        heard.flat_map(say).collect()
    }

    /// Why a standby is not admitted that wants to be in sync.
    fn say_unproved(&self, service: &str, peer: NodeName, why: LeaveReason) -> String {
        let mut others = self.ground.config.others();
        let known = others.find(|other| other.name == peer);
        let mac = self
            .ground
            .node
            .peer_id(peer)
            .and_then(|id| self.ground.shares.mac(id));
        match (known, mac, why) {
            (Some(known), None, _) => format!(
                "service {service}: peer {peer} does not answer for {} on the service \
                 interface, so nothing is protected",
                known.data
            ),
            (_, _, LeaveReason::NotBorn) => format!(
                "service {service}: peer {peer} gets what is mirrored to it and no twin is \
                 born there ({why}), so nothing is protected: see `godwit status` there, and \
                 if that says nothing, its listeners and firewall"
            ),
            (_, _, _) => format!(
                "service {service}: what is mirrored to peer {peer} has no answer ({why}), \
                 so nothing is protected: look at the link both ways"
            ),
        }
    }

    /// The other side of the tap, if it can't be found on the link.
    fn unresolved(&self, share: ShareId) -> Option<&PeerConfig> {
        let peer = self.ground.shares.get(share)?.unresolved()?;
        self.ground.config.others().nth(usize::from(peer.0))
    }

    /// Remembers a takeover of this node for `status`.
    pub(super) fn note_takeover(&mut self, event: &Event) {
        let EventKind::Share {
            share,
            news:
                ShareNews::TakeoverStarted {
                    from,
                    reason,
                    detection,
                    ..
                },
        } = &event.kind
        else {
            return;
        };
        let (share, at) = (*share, clock::now());
        let report = TakeoverReport {
            from: from.to_string(),
            reason: reason.as_str().into(),
            detection_ms: ms(*detection),
            stall_ms: ms(*detection + at.since(event.at)),
            age_ms: 0,
        };
        if let Some(share) = self.ground.shares.get_mut(share) {
            self.outside
                .metrics
                .observe_stall(&share.name, *detection + at.since(event.at));
            share.last_takeover = Some(LastTakeover { report, at });
        }
    }

    fn with_entry(
        &self,
        mut report: ServiceReport,
        share: ShareId,
        now: MonoTime,
    ) -> ServiceReport {
        report.asks = self.requests.asked(share);
        report.load = self.requests.load(share);
        if let Some(share) = self.ground.shares.get(share) {
            report.leash_bytes = share.entry.leash;
            report.takeovers = u64::from(share.entry.takeovers);
            report.resets = share.resets.report();
            report.last_takeover = share.last_takeover.as_ref().map(|last| TakeoverReport {
                age_ms: whole_ms(now.since(last.at)),
                ..last.report.clone()
            });
        }
        report
    }

    fn views(&self) -> Views {
        let doubtful: BTreeSet<_> = self
            .ground
            .node
            .share_status()
            .filter(|share| share.no_quorum)
            .map(|share| share.id)
            .collect();
        let views = self.ground.shares.iter().map(|(id, share)| {
            let view = View {
                service: share.name.clone(),
                role: share.entry.role,
                generation: share.entry.generation,
                no_quorum: doubtful.contains(&id),
                kept: share.kept,
            };
            (id, view)
        });
        Views(views.collect())
    }

    fn data_path(&self) -> DataPathReport {
        let reasons = self.ground.datapath.counters.read();
        DataPathReport {
            interface: self.ground.config.node.interface.to_string(),
            attached: true,
            version: env!("CARGO_PKG_VERSION").into(),
            reasons: reasons
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        }
    }
}

impl Views {
    fn of(&self, share: ShareId) -> Option<ShareView<'_>> {
        let view = self.0.get(&share)?;
        Some(ShareView {
            service: &view.service,
            role: view.role,
            generation: view.generation,
            no_quorum: view.no_quorum,
            kept: view.kept,
        })
    }

    fn report(&self, flows: &FlowTable, now: MonoTime) -> Vec<FlowReport> {
        let mut reports = Vec::new();
        let scanned = flows.for_each(|flow| {
            if let Some(view) = self.of(flow.share) {
                reports.push(FlowReport::new(&flow, view, now));
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows");
        }
        reports
    }

    fn count(&self, flows: &FlowTable) -> BTreeMap<ShareId, FlowCounts> {
        let mut counts: BTreeMap<ShareId, FlowCounts> = BTreeMap::new();
        let scanned = flows.for_each(|flow| {
            if let Some(view) = self.of(flow.share) {
                counts.entry(flow.share).or_default().note(&flow, view);
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't count the flows");
        }
        counts
    }
}

/// Without a thread there is no answer, and whoever asked is told so.
fn aside(work: impl FnOnce() + Send + 'static) {
    let work = || {
        be_ordinary();
        work();
    };
    if let Err(error) = thread::Builder::new().name("gw-report".into()).spawn(work) {
        tracing::warn!(error = %error, "a question stays unanswered");
    }
}

/// Why a share is not back at its primary, and when that is tried again.
fn say_failback(service: &str, failback: &FailbackStatus, now: MonoTime) -> String {
    let refused = moves::say(service, failback.to.as_str(), failback.refused);
    format!(
        "{}; that is tried again in {} s",
        refused.sentence,
        failback.again.since(now).as_secs() + 1
    )
}

/// What is wrong with the lease of a share, and with its standby.
fn say_lease(name: &str, share: &ShareStatus, now: MonoTime) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(until) = share.held_off_until.filter(|until| *until > now) {
        warnings.push(format!(
            "service {name}: its standby is held off for {} s, as it failed too often \
             within a minute",
            until.since(now).as_secs() + 1
        ));
    }
    if share.lease.is_some_and(|lease| lease.lapsed) {
        warnings.push(format!(
            "service {name}: this node's lease has ended and too few voters answer, so \
             clients hear nothing until it is renewed or another node takes over"
        ));
    }
    if share.no_quorum {
        warnings.push(format!(
            "service {name}: too few voters besides this node know its lease, so nobody \
             could take over; one that was killed and started again votes after \
             10 s"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use godwit_core::MoveError;

    use super::*;

    #[test]
    fn a_share_that_does_not_go_home_says_why_and_until_when() {
        let failback = FailbackStatus {
            to: NodeName::new("a").expect("valid"),
            refused: MoveError::Unprotected { flows: 3 },
            again: MonoTime(2_500_000_000),
        };
        let said = say_failback("echo@a", &failback, MonoTime(1_000_000_000));
        assert!(
            said.starts_with("service echo@a does not move to a: 3 of its connections"),
            "{said}"
        );
        assert!(said.ends_with("tried again in 2 s"), "{said}");
    }
}
