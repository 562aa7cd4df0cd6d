//! The sending thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use godwit_core::{MonoTime, PeerId};
use godwit_wire::{Heartbeat, NodeName, ShareClaim};

use super::{HeartbeatCounters, HeartbeatKeys, ShareBoard, Ways};
use crate::clock;
use crate::realtime::{self, Urgency};

/// Everything the thread needs, and nothing that could make it wait.
pub(super) struct Sender {
    pub(super) name: NodeName,
    pub(super) incarnation: u64,
    pub(super) interval: Duration,
    pub(super) ways: Ways,
    pub(super) keys: Arc<HeartbeatKeys>,
    pub(super) board: ShareBoard,
    pub(super) counters: Arc<HeartbeatCounters>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Sender {
    pub(super) fn run(self) {
        realtime::prefer("gw-beat-send", Urgency::Heartbeats);
        let mut datagram = Vec::with_capacity(Heartbeat::MAX_LEN);
        let mut tick = clock::now();
        for sequence in 1.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.beat(sequence, &mut datagram);
            tick = self.next_tick(tick, clock::now());
            clock::sleep_until(tick);
        }
    }

    fn beat(&self, sequence: u64, datagram: &mut Vec<u8>) {
        let claims = self.board.read();
        let heartbeat = Heartbeat {
            sender: self.name,
            incarnation: self.incarnation,
            sequence,
            sent_ns: clock::now().as_nanos(),
            shares: window(&claims, sequence).to_vec(),
        };
        datagram.clear();
        if heartbeat.emit_unsigned(datagram).is_err() {
            // window() keeps to the format's limit.
            return;
        }
        for (peer, way) in (0..).map(PeerId).zip(&*self.ways) {
            let mut renamed = self.with_places(peer, &heartbeat);
            let datagram = renamed.as_mut().unwrap_or(datagram);
            let count = match way.send(datagram) {
                Ok(()) => &self.counters.sent,
                // No route yet, or a full buffer: the next one may get through.
                Err(_) => &self.counters.send_failed,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The same for a peer of version 0.1; `None`: it is none.
    fn with_places(&self, peer: PeerId, heartbeat: &Heartbeat) -> Option<Vec<u8>> {
        let places = self.keys.places_of(peer)?;
        let mut heartbeat = heartbeat.clone();
        for claim in &mut heartbeat.shares {
            claim.share = places.place_of(claim.share);
        }
        let mut datagram = Vec::with_capacity(Heartbeat::MAX_LEN);
        heartbeat.emit_unsigned(&mut datagram).ok()?;
        Some(datagram)
    }

    /// The tick after `tick` that is still to come: lost time is not made up for.
    fn next_tick(&self, tick: MonoTime, now: MonoTime) -> MonoTime {
        let next = tick.saturating_add(self.interval);
        if now <= next {
            return next;
        }
        self.counters.late_ticks.fetch_add(1, Ordering::Relaxed);
        now.saturating_add(self.interval)
    }
}

/// More shares than fit are told in turn.
fn window(claims: &[ShareClaim], sequence: u64) -> &[ShareClaim] {
    let windows = claims.len().div_ceil(Heartbeat::MAX_SHARES).max(1);
    let turn = usize::try_from(sequence % windows as u64).unwrap_or(0);
    claims
        .chunks(Heartbeat::MAX_SHARES)
        .nth(turn)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use godwit_wire::{Epoch, Role, ShareId};

    use super::*;

    #[test]
    fn more_shares_than_fit_are_told_in_turn() {
        let claims: Vec<_> = (0..150)
            .map(|id| ShareClaim {
                share: ShareId(id),
                role: Role::Owner,
                epoch: Epoch::NONE,
            })
            .collect();
        let told: usize = (0..3).map(|sequence| window(&claims, sequence).len()).sum();
        assert_eq!(told, 150);
        assert_eq!(window(&claims, 3)[0].share, ShareId(0));
        assert!(window(&[], 7).is_empty());
    }
}
