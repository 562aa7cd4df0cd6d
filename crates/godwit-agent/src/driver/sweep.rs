//! Ends that nobody reports: of sockets that the kernel gave up without a
//! segment, and of flows whose report was lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{FlowState, FlowTable, Order, Phase};
use godwit_core::{FlowEvent, FlowEventKind, MonoTime};
use godwit_sock::without_tcp_socket;
use godwit_wire::{FlowId, SeqNumber, UnprotectedReason};

use super::Driver;
use super::follow::Place;
use crate::clock;
use crate::input::{Inbox, Input};

/// How often flows without a socket are looked for, at most.
const SWEEP: Duration = Duration::from_secs(15);

/// After a look it rests at least so many times as long as that took.
const REST: u32 = 400;

/// How often it looks whether the driver is gone.
const STEP: Duration = Duration::from_secs(1);

/// A client that is silent for so long may have gone, and its socket with it;
/// the kernel tells nobody when it gives up.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The same if its twin has closed, as twins of ended connections do, or both sides have.
const ENDING: Duration = Duration::from_secs(10);

/// Longer than a new socket is waited for, and in no step with the tries, one a second.
const ANEW: Duration = Duration::from_millis(650);

impl Driver {
    /// Flows of which there is no socket: they are over.
    pub(super) fn forget_gone(&mut self, gone: Vec<FlowEvent>, now: MonoTime) {
        for event in gone {
            self.give(event.share, event.flow, Order::Forget);
            self.feed_flow(event, now);
        }
    }

    /// Flows under supervision that have ended without the core's knowing.
    pub(super) fn find_lost_ends(&mut self, now: MonoTime) {
        let supervised: Vec<_> = self.node.supervised_flows().collect();
        for event in supervised {
            if !self.is_over(&event) {
                continue;
            }
            // Or it is under way; it may come twice.
            tracing::debug!(flow = %event.flow.key, "its end was not reported");
            self.feed_flow(event, now);
        }
    }

    /// One that can't be looked up is left for the next time.
    fn is_over(&self, event: &FlowEvent) -> bool {
        self.datapath.flows.get(event.flow.key).is_ok_and(|found| {
            let found = found.map(|state| (state.id.irs, state.phase));
            has_ended(event.flow, found)
        })
    }
}

/// Whether a flow is over of which the data path has this: its four-tuple may be
/// free, or another connection's.
fn has_ended(flow: FlowId, found: Option<(SeqNumber, Phase)>) -> bool {
    found.is_none_or(|(irs, phase)| irs != flow.irs || phase == Phase::Ended)
}

/// Looks until the driver is gone, off its thread: the kernel walks over all of
/// its sockets.
pub(super) fn spawn(flows: Arc<FlowTable>, place: Arc<Place>, inbox: Inbox) -> io::Result<()> {
    let look = move || {
        let mut due = Instant::now() + SWEEP;
        while !inbox.is_closed() {
            thread::sleep(STEP);
            if Instant::now() < due {
                continue;
            }
            let begun = Instant::now();
            let found = gone(&flows, place.ifindex(), clock::now());
            due = Instant::now() + SWEEP.max(begun.elapsed() * REST);
            match found {
                Ok(gone) if gone.is_empty() => {}
                Ok(gone) => {
                    if inbox.send(Input::Gone(gone)).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %error, "can't look for flows without a socket");
                }
            }
        }
    };
    thread::Builder::new()
        .name("gw-sweep".into())
        .spawn(look)
        .map(drop)
}

/// Silent flows that have no socket here.
fn gone(flows: &FlowTable, ifindex: u32, now: MonoTime) -> io::Result<Vec<FlowEvent>> {
    let mut silent = BTreeMap::new();
    let scanned = flows.for_each(|flow| {
        if now.since(MonoTime::from_nanos(flow.heard_ns)) > patience(&flow) {
            silent.insert(flow.id.key, ended(&flow));
        }
    });
    scanned.map_err(io::Error::other)?;
    if silent.is_empty() {
        return Ok(Vec::new());
    }
    let asked: BTreeSet<_> = silent.keys().copied().collect();
    let mut gone = without_tcp_socket(ifindex, asked)?;
    if !gone.is_empty() {
        // One that goes back into its accept queue has none for a moment.
        thread::sleep(ANEW);
        gone = without_tcp_socket(ifindex, gone)?;
    }
    silent.retain(|flow, _| gone.contains(flow));
    Ok(silent.into_values().collect())
}

fn patience(flow: &FlowState) -> Duration {
    let closed = flow.why == Some(UnprotectedReason::TwinClosed);
    let ends = closed || flow.client_fin && flow.own_fin;
    if flow.phase == Phase::Unprotected && ends {
        ENDING
    } else {
        FORGOTTEN
    }
}

fn ended(flow: &FlowState) -> FlowEvent {
    FlowEvent {
        share: flow.share,
        flow: flow.id,
        generation: flow.generation,
        kind: FlowEventKind::Ended,
    }
}

#[cfg(test)]
mod tests {
    use godwit_wire::{Endpoint, FlowKey};

    use super::*;

    #[test]
    fn an_end_that_was_not_reported_is_seen_in_the_data_path() {
        let endpoint = |text: &str| text.parse::<Endpoint>().expect("a literal");
        let irs = SeqNumber(77);
        let flow = FlowId {
            key: FlowKey {
                client: endpoint("10.9.0.10:40000"),
                service: endpoint("10.9.0.100:80"),
            },
            irs,
        };
        assert!(has_ended(flow, None), "forgotten");
        assert!(has_ended(flow, Some((irs, Phase::Ended))));
        let later = (SeqNumber(78), Phase::Protected);
        assert!(has_ended(flow, Some(later)), "its port is used again");
        for phase in [Phase::Confirming, Phase::Protected, Phase::Unprotected] {
            assert!(!has_ended(flow, Some((irs, phase))), "{phase:?}");
        }
    }
}
