//! Metrics for Prometheus, in the OpenMetrics text format.
//!
//! A scrape asks the driver for its status, as `godwit status` does, and turns
//! that into text: there is no second set of books. Only what a status does
//! not hold, the stalls of all takeovers, is kept here. `docs/metrics.md`
//! lists names and meanings; they are stable.

mod http;
mod render;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use crate::events::EventLog;
use crate::heartbeat::HeartbeatCounters;
use crate::input::Inbox;
use crate::peers::UnlinkedCounters;

pub(crate) use http::{Exporter, serve};
use render::ServiceLabel;

/// Upper bounds in seconds: fine around the detection times that are usual.
const STALL_BUCKETS: [f64; 12] = [
    0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.1, 0.165, 0.25, 0.5, 1.0, 5.0,
];

type Stalls = Family<ServiceLabel, Histogram, fn() -> Histogram>;

/// What is measured beside the status; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    stalls: Stalls,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            stalls: Stalls::new_with_constructor(|| Histogram::new(STALL_BUCKETS)),
        }
    }
}

impl Metrics {
    /// Records a takeover: the time that a busy client has waited, estimated as
    /// in [`crate::status::TakeoverReport::stall_ms`].
    pub fn observe_stall(&self, service: &str, stall: Duration) {
        let label = ServiceLabel {
            service: service.to_owned(),
        };
        self.stalls
            .get_or_create(&label)
            .observe(stall.as_secs_f64());
    }
}

/// Everything that a scrape looks at.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) inbox: Inbox,
    pub(crate) metrics: Metrics,
    pub(crate) events: EventLog,
    pub(crate) heartbeats: Arc<HeartbeatCounters>,
    pub(crate) unlinked: Arc<UnlinkedCounters>,
}
