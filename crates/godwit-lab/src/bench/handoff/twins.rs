//! The same where connections have twins, of three servers that stand by for each other: what
//! a handoff costs then, and how long a connection is without a twin meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use godwit_wire::{Endpoint, MacAddr};

use super::handed::{CLIENTS, small};
use super::measure;
use super::site::{Front, Setup, Site, Web};
use crate::apps::webstone::Load;
use crate::bench::budget::Budget;
use crate::bench::report::Report;
use crate::bench::stats::Samples;
use crate::capture::{Capture, SegmentSeen, Trace};
use crate::host::{Host, Network};

const SETUP: Setup = Setup {
    front: Front::Twinned,
    web: Web::Nginx,
    servers: 3,
    cache: None,
};

/// All of it, in a quick benchmark.
const COST: Duration = Duration::from_secs(6);

/// `handoff.twins.*`.
pub(super) fn run(site: &Site, budget: Budget, report: &Report) -> Result<()> {
    if !report.wants_figure("handoff.twins") || !budget.has(COST) {
        return Ok(());
    }
    let running = site.start(SETUP, CLIENTS)?;
    let (mut stayed, mut moved, mut added) =
        (Samples::default(), Samples::default(), Samples::default());
    let (mut open, mut rates) = (Samples::default(), Samples::default());
    for round in budget.runs(10, 1, Duration::from_secs(3)) {
        let load = Load {
            span: budget.either(Duration::from_secs(5), Duration::from_secs(2)),
            seed: u64::from(round),
            ..small(&running, 1)
        };
        let tally = measure(&running, SETUP, &load, report)?;
        if tally.stayed.requests > 0 && tally.moved.requests > 0 {
            stayed.push(tally.stayed.p50_ms * 1e3);
            moved.push(tally.moved.p50_ms * 1e3);
            added.push((tally.moved.p50_ms - tally.stayed.p50_ms) * 1e3);
        }
        let watched = Load {
            span: Duration::from_secs(1),
            warm: Duration::ZERO,
            ..load.clone()
        };
        let capture = Capture::start(site.lab().node(Host::C), Network::Data)?;
        measure(&running, SETUP, &watched, report)?;
        for span in spans(&capture.finish()?) {
            open.push(span * 1e6);
        }
        let many = Load {
            connections: CLIENTS,
            ..load
        };
        let tally = measure(&running, SETUP, &many, report)?;
        rates.push(f64::from(tally.moved.requests) / tally.seconds);
    }
    report.put_p50("handoff.twins.stayed.p50", &stayed)?;
    report.put_p50("handoff.twins.moved.p50", &moved)?;
    report.put_p50("handoff.twins.added.p50", &added)?;
    report.put_percentiles("handoff.twins.open", &open)?;
    report.put_p50("handoff.twins.rate", &rates)
}

/// How long each connection that came to c was there until its new twin, at a, had the
/// request, in seconds.
///
/// A request comes from another server, which is nobody's way to c but a question's; c sends
/// the same segment to its standby; and that one's first word covers it.
fn spans(trace: &Trace) -> Vec<f64> {
    let mac = |host: Host| host.mac(Network::Data);
    let origins = [mac(Host::A), mac(Host::B)];
    let mut asked = BTreeMap::<Endpoint, SegmentSeen>::new();
    let mut sent = BTreeMap::<Endpoint, (u64, u32)>::new();
    let mut spans = Vec::new();
    let goes =
        |it: &SegmentSeen, from: MacAddr, to: MacAddr| it.from_mac == from && it.to_mac == to;
    for it in trace.segments() {
        if it.length > 0 && it.to_mac == mac(Host::C) && origins.contains(&it.from_mac) {
            asked.insert(it.from, *it);
        } else if goes(it, mac(Host::C), mac(Host::A)) && it.length > 0 {
            let question = asked.get(&it.from).filter(|asked| asked.seq == it.seq);
            if let Some(question) = question {
                sent.insert(it.from, (question.at_ns, it.seq.0.wrapping_add(it.length)));
            }
        } else if goes(it, mac(Host::A), mac(Host::C))
            && let Some((since, end)) = sent.get(&it.to)
            && it.ack.0 == *end
        {
            spans.push(Duration::from_nanos(it.at_ns - since).as_secs_f64());
            sent.remove(&it.to);
            asked.remove(&it.to);
        }
    }
    spans
}
