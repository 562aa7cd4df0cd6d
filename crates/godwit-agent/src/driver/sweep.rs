//! Ends that nobody reports: of sockets that the kernel gave up without a
//! segment, or at a RST that the data path can't judge, and of flows whose report was lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{FlowState, FlowTable, Order, Phase, TransferTable};
use godwit_core::unlisted::Unlisted;
use godwit_core::{FlowEvent, FlowEventKind, MonoTime};
use godwit_sock::{has_tcp_socket, without_tcp_socket};
use godwit_wire::{FlowId, FlowKey, SeqNumber, UnprotectedReason};

use super::doubts::Doubts;
use super::flow_feed::FlowFeed;
use super::follow::Place;
use super::ground::Ground;
use crate::clock;
use crate::input::{Inbox, Input};

/// How often is looked for what was not heard: flows that ended.
pub(super) const HOUSEKEEPING: Duration = Duration::from_secs(10);

/// How often flows without a socket are looked for, at most.
const SWEEP: Duration = Duration::from_secs(15);

/// After a look it rests at least so many times as long as that took.
const REST: u32 = 400;

/// The same of a look at flows whose clients have sent a RST.
const PAUSE: u32 = 20;

/// How often it looks whether the driver is gone, and whether the sockets are whose clients
/// have sent a RST.
const STEP: Duration = Duration::from_millis(250);

/// Flows of which each is looked up by itself.
const FEW: usize = 256;

/// Ends that the driver hears of at once, and when it hears of more: a heartbeat waits for no
/// longer than it takes for some.
const AT_ONCE: usize = 64;
const BREATH: Duration = Duration::from_millis(5);

/// Flows whose sockets are looked up while a share waits to move: a few milliseconds.
const LOOKED_UP: usize = 128;

/// The kernel has a socket for a connection some microseconds after the data path has a flow.
const YOUNG: Duration = Duration::from_secs(1);

/// A client that is silent for so long may have gone, and its socket with it;
/// the kernel tells nobody when it gives up.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The same if its twin has closed, as twins of ended connections do, or both sides have.
const ENDING: Duration = Duration::from_secs(10);

/// Longer than a new socket is waited for, and in no step with the tries, one a second.
const ANEW: Duration = Duration::from_millis(650);

/// The hand for such ends.
#[derive(Debug)]
pub(super) struct Sweep {
    /// Flows of which the kernel is asked soon whether they have sockets.
    doubts: Arc<Doubts>,
    due: MonoTime,
}

impl Sweep {
    /// Starts the thread that looks for flows without a socket.
    pub(super) fn spawn(
        tables: (Arc<FlowTable>, Arc<TransferTable>),
        place: Arc<Place>,
        inbox: Inbox,
        now: MonoTime,
    ) -> io::Result<Self> {
        let doubts = Arc::new(Doubts::default());
        spawn(tables, doubts.clone(), place, inbox)?;
        Ok(Self { doubts, due: now })
    }

    /// Where to say which flows may have none.
    pub(super) fn doubts(&self) -> Arc<Doubts> {
        self.doubts.clone()
    }

    /// When [`Sweep::tick`] is due.
    pub(super) const fn due(&self) -> MonoTime {
        self.due
    }

    /// Flows under supervision that have ended without the core's knowing.
    pub(super) fn tick(&mut self, feed: &mut FlowFeed<'_>, now: MonoTime) {
        self.due = now.saturating_add(HOUSEKEEPING);
        if let Err(error) = feed.ground.datapath.orders.tick() {
            tracing::warn!(%error, "the clock of flows without timers can't be started");
        }
        let supervised: Vec<_> = feed.ground.node.supervised_flows().collect();
        for event in supervised {
            if !is_over(feed.ground, &event) {
                continue;
            }
            // Or it is under way; it may come twice.
            tracing::debug!(flow = %event.flow.key, "its end was not reported");
            feed.feed(event, now);
        }
    }

    /// Of flows that keep their share from moving, how many are over: they have no socket. If
    /// there are more of them than can be looked up at once, the others are looked up soon.
    pub(super) fn let_go_ghosts(
        &self,
        feed: &mut FlowFeed<'_>,
        flows: &[FlowState],
        now: MonoTime,
    ) -> BTreeSet<FlowId> {
        let (first, others) = flows.split_at(flows.len().min(LOOKED_UP));
        for flow in others {
            self.doubts.add(ended(flow));
        }
        let ifindex = feed.ground.voice.ifindex;
        let old = first.iter().filter(|flow| !is_young(flow.born_ns, now));
        let ghosts = ghosts(old.map(ended), |flow| has_tcp_socket(ifindex, flow));
        let over = ghosts.iter().map(|event| event.flow).collect();
        forget_gone(feed, ghosts, now);
        over
    }
}

/// Flows of which there is no socket: they are over.
pub(super) fn forget_gone(feed: &mut FlowFeed<'_>, gone: Vec<FlowEvent>, now: MonoTime) {
    for event in gone {
        feed.ground.give(event.share, event.flow, Order::Forget);
        feed.feed(event, now);
    }
}

/// One that can't be looked up is left for the next time.
fn is_over(ground: &Ground, event: &FlowEvent) -> bool {
    ground
        .datapath
        .flows
        .get(event.flow.key)
        .is_ok_and(|found| {
            let found = found.map(|state| (state.id.irs, state.phase));
            has_ended(event.flow, found)
        })
}

/// Whether a flow is over of which the data path has this: its four-tuple may be
/// free, or another connection's.
fn has_ended(flow: FlowId, found: Option<(SeqNumber, Phase)>) -> bool {
    found.is_none_or(|(irs, phase)| irs != flow.irs || phase == Phase::Ended)
}

/// Looks until the driver is gone, off its thread: the kernel walks over all of
/// its sockets.
fn spawn(
    (flows, transfers): (Arc<FlowTable>, Arc<TransferTable>),
    doubts: Arc<Doubts>,
    place: Arc<Place>,
    inbox: Inbox,
) -> io::Result<()> {
    let look = move || {
        let (mut due, mut step) = (Instant::now() + SWEEP, STEP);
        let mut left = Unlisted::default();
        while !inbox.is_closed() {
            thread::sleep(step);
            let (begun, ifindex) = (Instant::now(), place.ifindex());
            let found = if begun < due {
                without_socket(doubts.take(), ifindex)
            } else {
                let found = gone(&flows, (doubts.take(), &mut left), ifindex, clock::now());
                remove_late(&transfers);
                due = Instant::now() + SWEEP.max(begun.elapsed() * REST);
                found
            };
            step = STEP.max(begun.elapsed().saturating_sub(ANEW) * PAUSE);
            match found {
                Ok(gone) if !tell(&gone, &inbox) => return,
                Ok(_) => {}
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

/// Whether the driver is there to hear of it.
fn tell(gone: &[FlowEvent], inbox: &Inbox) -> bool {
    for some in gone.chunks(AT_ONCE) {
        if inbox.send(Input::Gone(some.to_vec())).is_err() {
            return false;
        }
        if some.len() == AT_ONCE {
            thread::sleep(BREATH);
        }
    }
    true
}

/// What is known of connections that are elsewhere, or were, and should have been forgotten.
fn remove_late(transfers: &TransferTable) {
    match transfers.remove_late(clock::now().0) {
        Ok(0) => {}
        Ok(removed) => tracing::debug!(removed, "transfers without a timer are forgotten"),
        Err(error) => tracing::warn!(%error, "can't forget transfers without a timer"),
    }
}

/// Silent flows that have no socket here, those of the `silent` that have none, and ended ones
/// that the data path has `left` in its table.
fn gone(
    flows: &FlowTable,
    (mut silent, left): (BTreeMap<FlowKey, FlowEvent>, &mut Unlisted<FlowId>),
    ifindex: u32,
    now: MonoTime,
) -> io::Result<Vec<FlowEvent>> {
    let mut over = BTreeMap::new();
    let scanned = flows.for_each(|flow| {
        if flow.phase == Phase::Ended {
            over.insert(flow.id, ended(&flow));
        } else if now.since(MonoTime::from_nanos(flow.heard_ns)) > patience(&flow) {
            silent.insert(flow.id.key, ended(&flow));
        }
    });
    scanned.map_err(io::Error::other)?;
    let mut gone = left_over(over, left);
    gone.extend(without_socket(silent, ifindex)?);
    Ok(gone)
}

/// Of ended flows those that had ended at the last sweep already. The data path forgets an ended
/// flow after three seconds, unless the kernel had no memory for its timer.
fn left_over(mut over: BTreeMap<FlowId, FlowEvent>, left: &mut Unlisted<FlowId>) -> Vec<FlowEvent> {
    let twice = left.note(over.keys().copied().collect());
    over.retain(|flow, _| twice.contains(flow));
    over.into_values().collect()
}

/// Those that have no socket here.
fn without_socket(
    mut silent: BTreeMap<FlowKey, FlowEvent>,
    ifindex: u32,
) -> io::Result<Vec<FlowEvent>> {
    if silent.is_empty() {
        return Ok(Vec::new());
    }
    let mut gone = without(ifindex, silent.keys().copied().collect())?;
    if !gone.is_empty() {
        // One that goes back into its accept queue has none for a moment.
        thread::sleep(ANEW);
        gone = without(ifindex, gone)?;
    }
    silent.retain(|flow, _| gone.contains(flow));
    Ok(silent.into_values().collect())
}

/// A few are looked up, for many the kernel walks over all of its sockets.
fn without(ifindex: u32, flows: BTreeSet<FlowKey>) -> io::Result<BTreeSet<FlowKey>> {
    if flows.len() > FEW {
        return without_tcp_socket(ifindex, flows);
    }
    let mut gone = BTreeSet::new();
    for flow in flows {
        if !has_tcp_socket(ifindex, flow)? {
            gone.insert(flow);
        }
    }
    Ok(gone)
}

/// Whether it may be about to get its socket.
fn is_young(born_ns: u64, now: MonoTime) -> bool {
    now.since(MonoTime::from_nanos(born_ns)) < YOUNG
}

/// Those that have no socket. One that can't be looked up has one.
fn ghosts(
    flows: impl Iterator<Item = FlowEvent>,
    has_socket: impl Fn(FlowKey) -> io::Result<bool>,
) -> Vec<FlowEvent> {
    flows
        .filter(|event| matches!(has_socket(event.flow.key), Ok(false)))
        .collect()
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
    use godwit_wire::{Endpoint, Generation, ShareId};

    use super::*;

    fn flow(port: u16) -> FlowEvent {
        let endpoint = |text: String| text.parse::<Endpoint>().expect("an address");
        let key = FlowKey {
            client: endpoint(format!("10.9.0.10:{port}")),
            service: endpoint("10.9.0.100:80".into()),
        };
        FlowEvent {
            share: ShareId(1),
            flow: FlowId {
                key,
                irs: SeqNumber(77),
            },
            generation: Generation(1),
            kind: FlowEventKind::Ended,
        }
    }

    /// What stands in the way of a move and has no socket does not, but for one that the kernel
    /// says nothing of, or whose socket is being made.
    #[test]
    fn a_flow_without_a_socket_is_let_go() {
        let flows = [1, 2, 3].map(flow);
        let has_socket = |key: FlowKey| match key.client.port {
            1 => Ok(true),
            2 => Ok(false),
            _ => Err(io::Error::from(io::ErrorKind::TimedOut)),
        };
        assert_eq!(ghosts(flows.into_iter(), has_socket), [flows[1]]);
        let now = MonoTime::from_nanos(5_000_000_000);
        assert!(is_young(4_500_000_000, now));
        assert!(!is_young(3_500_000_000, now));
    }

    /// Whose end is new has a few seconds for segments that are late.
    #[test]
    fn an_ended_flow_that_stays_in_the_table_is_let_go_at_the_second_sweep() {
        let mut left = Unlisted::default();
        let mut sweep = |ports: &[u16]| {
            let over = ports.iter().map(|port| flow(*port));
            left_over(over.map(|it| (it.flow, it)).collect(), &mut left)
        };
        assert_eq!(sweep(&[1, 2]), []);
        assert_eq!(sweep(&[2, 3]), [flow(2)]);
        assert_eq!(sweep(&[]), []);
        assert_eq!(sweep(&[3]), [], "another end");
    }

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
