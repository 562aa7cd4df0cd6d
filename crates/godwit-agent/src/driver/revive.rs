//! After a takeover: tell the clients that their connections go on.

use godwit_bpf::{FlowState, HalfOpen, Order, Phase};
use godwit_core::MonoTime;
use godwit_wire::{FlowId, ShareId};

use super::ground::Ground;
use super::offer::offer_windows;
use super::resets::{ResetReason, reset};
use super::segments;
use crate::clock;

/// A client that was silent for longer has nothing under way: its next segment
/// finds the new owner by itself.
const BUSY_NS: u64 = 2_000_000_000;

/// A client retransmits its third ACK's data for longer than this.
const HALF_OPEN_NS: u64 = 5_000_000_000;

/// As many are answered anew at a takeover: flows are waiting, and a SYN flood
/// fills the table.
const HALF_OPEN_MAX: usize = 1024;

/// Clients that are spoken to before the driver looks up: about a millisecond.
const BATCH: usize = 64;

/// Clients that were busy at a takeover and have not been heard since.
#[derive(Debug, Default)]
pub(super) struct Revival {
    unheard: Vec<FlowId>,
    /// To how many of them this round has spoken.
    spoken: usize,
}

impl Revival {
    fn begin(&mut self, unheard: Vec<FlowId>) {
        *self = Self { unheard, spoken: 0 };
    }

    /// Whether somebody is still to be spoken to in this round.
    pub(super) const fn is_under_way(&self) -> bool {
        self.spoken < self.unheard.len()
    }

    /// The next of this round.
    fn next(&mut self) -> Vec<FlowId> {
        let rest = self.unheard.iter().skip(self.spoken);
        let batch: Vec<_> = rest.take(BATCH).copied().collect();
        self.spoken += batch.len();
        batch
    }
}

/// Begins one round of ACKs and probes to busy clients that have not been
/// heard since the takeover, the busiest first.
pub(super) fn revive(ground: &mut Ground, share: ShareId, attempt: u32) {
    let now = clock::now();
    let unheard = if attempt == 0 {
        begin_revival(ground, share, now)
    } else {
        let revival = ground.shares.get(share).map(|share| &share.revival);
        match revival {
            // Thousands: the last round is not over.
            Some(revival) if !revival.is_under_way() => unheard(ground, share, &revival.unheard),
            Some(_) | None => return,
        }
    };
    if let Some(share) = ground.shares.get_mut(share) {
        share.revival.begin(unheard);
    }
    go_on_reviving(ground, now);
    if attempt == 0 {
        offer_windows(ground, share, MonoTime(now.0.saturating_sub(BUSY_NS)));
        answer_half_open(ground, share, now);
        ask_given_up(ground, share);
    }
}

/// Speaks to some of those who wait for it; the driver has other work, too.
pub(super) fn go_on_reviving(ground: &mut Ground, now: MonoTime) {
    let Some((share, revival)) = ground.shares.revival_under_way() else {
        return;
    };
    let batch = revival.next();
    for flow in batch.into_iter().filter_map(|flow| ground.flow(flow)) {
        if is_unheard(ground, share, &flow) {
            ground.speak(&flow, segments::ack(&flow, now));
            ground.speak(&flow, segments::probe(&flow, now));
        }
    }
}

/// The clients that were busy at the takeover, the busiest first. What nobody
/// can serve is reset.
fn begin_revival(ground: &mut Ground, share: ShareId, now: MonoTime) -> Vec<FlowId> {
    let (mut busy, mut unserved) = (Vec::new(), Vec::new());
    let scanned = ground.datapath.flows.for_each(|flow| {
        if flow.share != share || !flow.twin || flow.phase == Phase::Ended {
            return;
        }
        if flow.not_in_sync || flow.cut_short || flow.phase == Phase::Closed {
            let reason = ResetReason::of_twin(&flow);
            unserved.push((flow, reason));
        } else if now.0.saturating_sub(flow.heard_ns) < BUSY_NS && is_unheard(ground, share, &flow)
        {
            busy.push((flow.heard_ns, flow.id));
        }
    });
    if let Err(error) = scanned {
        tracing::error!(error = %error, "can't read the flows to revive");
    }
    reset(ground, share, &unserved);
    busy.sort_unstable_by_key(|(heard_ns, _)| std::cmp::Reverse(*heard_ns));
    busy.into_iter().map(|(_, flow)| flow).collect()
}

/// Those of `flows` that still have not been heard: looked up one by one, for
/// the share may have many more.
fn unheard(ground: &Ground, share: ShareId, flows: &[FlowId]) -> Vec<FlowId> {
    let states = flows.iter().filter_map(|flow| ground.flow(*flow));
    let unheard = states.filter(|flow| is_unheard(ground, share, flow));
    unheard.map(|flow| flow.id).collect()
}

fn is_unheard(ground: &Ground, share: ShareId, flow: &FlowState) -> bool {
    flow.phase != Phase::Ended && flow.heard_ns < ground.taken_over_at(share).0
}

/// The gates of a generation that is over are open: everybody hears what
/// they kept back.
pub(super) fn release_gate(
    ground: &mut Ground,
    share: ShareId,
    generation: godwit_wire::Generation,
) {
    let now = clock::now();
    let mut held = Vec::new();
    let scanned = ground.datapath.flows.for_each(|flow| {
        if flow.share == share
            && flow.generation == generation
            && flow.gated
            && (flow.is_held() || flow.leashed)
        {
            held.push(flow);
        }
    });
    if let Err(error) = scanned {
        tracing::error!(error = %error, "can't read the flows to release");
    }
    for flow in &held {
        let_go(ground, flow, now);
    }
}

/// The client hears all that our kernel thinks it has said long ago, and
/// our kernel the window that the leash kept from it. If that was the last word the
/// connection is over: no segment will come that says so.
pub(super) fn let_go(ground: &Ground, flow: &FlowState, now: MonoTime) {
    ground.speak(flow, segments::ack(flow, now));
    if flow.leashed {
        ground.inject(flow, segments::client_window(flow));
    }
    if flow.through {
        ground.give(flow.share, flow.id, Order::End);
    }
}

/// Clients in the middle of a handshake hear its answer again.
pub(super) fn answer_half_open(ground: &Ground, share: ShareId, now: MonoTime) {
    let mut fresh = half_open(ground, share);
    fresh.retain(|half| !half.given_up && now.0.saturating_sub(half.born_ns) <= HALF_OPEN_NS);
    say_syn_acks(ground, &mut fresh);
}

/// A client whose connection was given up before it had a twin here has completed
/// its handshake, however long ago: whatever the numbers of a SYN-ACK, it says where
/// it is (RFC 5961 section 4), and our kernel, which knows nothing of it, resets it.
/// With nothing to send it would wait for ever. An owner that lives has reset it
/// itself.
fn ask_given_up(ground: &Ground, share: ShareId) {
    let mut given_up = half_open(ground, share);
    given_up.retain(|half| half.given_up);
    say_syn_acks(ground, &mut given_up);
}

fn half_open(ground: &Ground, share: ShareId) -> Vec<HalfOpen> {
    let mut half_open = ground.datapath.half_open.waiting().unwrap_or_else(|error| {
        tracing::error!(error = %error, "can't read the handshakes");
        Vec::new()
    });
    half_open.retain(|half| half.share == share && half.tapped);
    half_open
}

fn say_syn_acks(ground: &Ground, half_open: &mut [HalfOpen]) {
    for half in latest(half_open) {
        let (key, irs) = (half.key, half.irs);
        // It has got its twin since.
        let known = ground.flow(FlowId { key, irs }).is_some();
        if !known
            && let Some(packet) = segments::syn_ack(half)
            && let Err(error) = ground.voice.segments.send(half.key.client.ip(), &packet)
        {
            tracing::debug!(flow = %half.key, error = %error, "SYN-ACK not sent");
        }
    }
}

/// The latest handshakes, as many as are answered. Under a SYN flood these are
/// no better than others; their clients ask again after a second by themselves.
fn latest(half_open: &mut [HalfOpen]) -> &[HalfOpen] {
    half_open.sort_unstable_by_key(|half| std::cmp::Reverse(half.born_ns));
    let answered = half_open.len().min(HALF_OPEN_MAX);
    if answered < half_open.len() {
        let left = half_open.len() - answered;
        tracing::warn!(answered, left, "more handshakes than are answered anew");
    }
    &half_open[..answered]
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use godwit_wire::{FlowKey, SeqNumber};

    use super::*;

    fn half_open(born_ns: u64) -> HalfOpen {
        HalfOpen {
            key: FlowKey {
                client: SocketAddr::from(([10, 9, 0, 10], 1)).into(),
                service: SocketAddr::from(([10, 9, 0, 100], 80)).into(),
            },
            share: ShareId(0),
            irs: SeqNumber(0),
            iss: SeqNumber(0),
            mss: 1460,
            wnd: 0,
            rcv_wscale: None,
            sack: false,
            ts: None,
            born_ns,
            tapped: true,
            given_up: false,
        }
    }

    /// With thousands of them heartbeats and leases come in between.
    #[test]
    fn clients_are_spoken_to_in_batches_each_once() {
        let key = half_open(0).key;
        let flows: Vec<_> = (0..200)
            .map(SeqNumber)
            .map(|irs| FlowId { key, irs })
            .collect();
        let mut revival = Revival::default();
        assert!(!revival.is_under_way());
        revival.begin(flows.clone());
        let mut spoken = Vec::new();
        while revival.is_under_way() {
            let batch = revival.next();
            assert!((1..=BATCH).contains(&batch.len()));
            spoken.extend(batch);
        }
        assert_eq!(spoken, flows);
        assert!(revival.next().is_empty());
    }

    /// A flood's handshakes are not all answered: the latest are.
    #[test]
    fn the_latest_handshakes_are_answered() {
        let mut flood: Vec<_> = (0..65_536).map(half_open).collect();
        let answered = latest(&mut flood);
        assert_eq!(answered.len(), HALF_OPEN_MAX);
        assert!(answered.iter().all(|half| half.born_ns >= 65_536 - 1024));
        let mut few = vec![half_open(1), half_open(2)];
        assert_eq!(latest(&mut few).len(), 2);
    }
}
