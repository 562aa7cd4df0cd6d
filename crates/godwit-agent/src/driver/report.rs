//! What people see of this node: `status`, `flows`, the last takeover.

use std::collections::BTreeMap;

use godwit_core::node::ShareNews;
use godwit_core::{Event, EventKind, MonoTime};
use godwit_wire::ShareId;

use super::Driver;
use super::shares::LastTakeover;
use crate::clock;
use crate::flows::{FlowCounts, FlowReport, FlowStateName, Flows, ShareView};
use crate::status::{DataPathReport, PeerReport, ServiceReport, Status, TakeoverReport, ms, whole_ms};

impl Driver {
    pub(super) fn status(&self, now: MonoTime) -> Status {
        let mut status = Status::new(&self.config, self.incarnation, now.since(self.started));
        status.peers = self
            .config
            .others()
            .zip(self.node.peer_status())
            .map(|(config, peer)| PeerReport::new(config, &peer, now))
            .collect();
        let counts = self.flow_counts();
        status.services = self
            .config
            .shares()
            .flat_map(|(id, config)| self.node.share_status().find(|share| share.id == id).map(|share| (config, share)))
            .map(|(config, share)| {
                let flows = counts.get(&share.id).copied().unwrap_or_default();
                self.with_takeovers(ServiceReport::new(config, &share, flows), share.id, now)
            })
            .collect();
        status.data_path = self.data_path();
        status.add_warnings();
        status
    }

    pub(super) fn flows(&self, now: MonoTime) -> Flows {
        let mut reports = Vec::new();
        let scanned = self.datapath.flows.for_each(|flow| {
            if let Some(view) = self.view(flow.share) {
                reports.push(FlowReport::new(&flow, view, now));
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows");
        }
        Flows::new(self.config.node.name.as_str(), reports)
    }

    /// Remembers a takeover of this node for `status`.
    pub(super) fn note_takeover(&mut self, event: &Event) {
        let EventKind::Share { share, news: ShareNews::TakeoverStarted { from, reason, detection, .. } } = &event.kind else {
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
        if let Some(share) = self.shares.get_mut(share) {
            self.metrics.observe_stall(&share.name, *detection + at.since(event.at));
            share.last_takeover = Some(LastTakeover { report, at });
        }
    }

    fn with_takeovers(&self, mut report: ServiceReport, share: ShareId, now: MonoTime) -> ServiceReport {
        if let Some(share) = self.shares.get(share) {
            report.takeovers = u64::from(share.entry.takeovers);
            report.last_takeover = share
                .last_takeover
                .as_ref()
                .map(|last| TakeoverReport { age_ms: whole_ms(now.since(last.at)), ..last.report.clone() });
        }
        report
    }

    fn view(&self, share: ShareId) -> Option<ShareView<'_>> {
        let share = self.shares.get(share)?;
        Some(ShareView { service: &share.name, role: share.entry.role, generation: share.entry.generation })
    }

    fn flow_counts(&self) -> BTreeMap<ShareId, FlowCounts> {
        let mut counts: BTreeMap<ShareId, FlowCounts> = BTreeMap::new();
        let scanned = self.datapath.flows.for_each(|flow| {
            if let Some(view) = self.view(flow.share) {
                counts.entry(flow.share).or_default().count(FlowStateName::of(&flow, view));
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't count the flows");
        }
        counts
    }

    fn data_path(&self) -> DataPathReport {
        let reasons = self.datapath.counters.read();
        DataPathReport {
            interface: self.config.node.interface.to_string(),
            attached: true,
            version: env!("CARGO_PKG_VERSION").into(),
            reasons: reasons.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count)).collect(),
        }
    }
}
