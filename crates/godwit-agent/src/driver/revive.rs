//! After a takeover: tell the clients that their connections go on.

use godwit_bpf::{FlowState, Phase};
use godwit_core::MonoTime;
use godwit_sock::destroy_tcp;
use godwit_wire::{ShareId, UnprotectedReason};

use super::{Driver, segments};
use crate::clock;

/// A client that was silent for longer has nothing under way: its next segment
/// finds the new owner by itself.
const BUSY_NS: u64 = 2_000_000_000;

/// A client retransmits its third ACK's data for longer than this.
const HALF_OPEN_NS: u64 = 5_000_000_000;

impl Driver {
    /// One round of ACKs and probes to busy clients that have not been heard
    /// since the takeover, the busiest first.
    pub(super) fn revive(&mut self, share: ShareId, attempt: u32) {
        let now = clock::now();
        let taken_over = self.taken_over_at(share);
        let mut busy = Vec::new();
        let mut unserved = Vec::new();
        let scanned = self.datapath.flows.for_each(|flow| {
            if flow.share != share || !flow.twin || flow.phase == Phase::Ended {
                return;
            }
            if flow.not_in_sync || flow.cut_short || flow.phase == Phase::Closed {
                unserved.push(flow);
            } else if flow.heard_ns < taken_over.0
                && now.0.saturating_sub(flow.heard_ns) < busy_for(attempt, taken_over, now)
            {
                busy.push(flow);
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows to revive");
        }
        if attempt == 0 {
            self.reset_unserved(&unserved);
        }
        busy.sort_unstable_by_key(|flow| std::cmp::Reverse(flow.heard_ns));
        for flow in &busy {
            self.speak(flow, segments::ack(flow, now));
            self.speak(flow, segments::probe(flow, now));
        }
        if attempt == 0 {
            self.answer_half_open(share, now);
        }
    }

    /// The gates of a generation that is over are open: everybody hears what
    /// they kept back.
    pub(super) fn release_gate(&mut self, share: ShareId, generation: godwit_wire::Generation) {
        let now = clock::now();
        let mut held = Vec::new();
        let scanned = self.datapath.flows.for_each(|flow| {
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
            self.let_go(flow, now);
        }
    }

    /// The client hears all that our kernel thinks it has said long ago, and
    /// our kernel the window that the leash kept from it.
    pub(super) fn let_go(&self, flow: &FlowState, now: MonoTime) {
        self.speak(flow, segments::ack(flow, now));
        if flow.leashed {
            self.inject(flow, segments::client_window(flow));
        }
    }

    /// Sends a packet to a flow's client. A full queue or a missing route is
    /// met by the next round, or by the kernel's own retransmission.
    pub(super) fn speak(&self, flow: &FlowState, packet: Option<Vec<u8>>) {
        let Some(packet) = packet else { return };
        if let Err(error) = self.segments.send(flow.id.key.client.ip(), &packet) {
            tracing::debug!(flow = %flow.id.key, error = %error, "segment not sent");
        }
    }

    /// A flow that was given up must be reset, with a reason, not served.
    fn reset_unserved(&self, flows: &[FlowState]) {
        for flow in flows {
            let reason = if flow.not_in_sync {
                UnprotectedReason::NotInSync
            } else {
                UnprotectedReason::TwinClosed
            };
            tracing::info!(flow = %flow.id.key, %reason, "reset at takeover");
            self.speak(flow, segments::reset(flow));
            self.give(flow.id, godwit_bpf::Order::End);
            if let Err(error) = destroy_tcp(self.ifindex, flow.id.key) {
                tracing::warn!(flow = %flow.id.key, error = %error, "socket not ended");
            }
        }
    }

    fn answer_half_open(&self, share: ShareId, now: MonoTime) {
        let half_open = match self.datapath.half_open.answered() {
            Ok(half_open) => half_open,
            Err(error) => return tracing::error!(error = %error, "can't read the handshakes"),
        };
        for half in half_open {
            if half.share != share
                || !half.tapped
                || now.0.saturating_sub(half.born_ns) > HALF_OPEN_NS
            {
                continue;
            }
            if let Some(packet) = segments::syn_ack(&half)
                && let Err(error) = self.segments.send(half.key.client.ip(), &packet)
            {
                tracing::debug!(flow = %half.key, error = %error, "SYN-ACK not sent");
            }
        }
    }
}

/// Later rounds still mean those that were busy at the takeover.
fn busy_for(attempt: u32, taken_over: MonoTime, now: MonoTime) -> u64 {
    let since = now.0.saturating_sub(taken_over.0);
    if attempt == 0 {
        BUSY_NS
    } else {
        BUSY_NS.saturating_add(since)
    }
}
