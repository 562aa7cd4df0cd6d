//! The sending thread.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use godwit_core::{MonoTime, PeerId};
use godwit_wire::{Heartbeat, NodeName, ShareClaim};
use ring::hmac;

use super::{HeartbeatCounters, HeartbeatKeys, ShareBoard};
use crate::clock;
use crate::config::Config;
use crate::realtime::{self, Urgency};

/// Everything the thread needs, and nothing that could make it wait.
pub(super) struct Sender {
    pub(super) socket: UdpSocket,
    pub(super) name: NodeName,
    pub(super) incarnation: u64,
    pub(super) interval: Duration,
    pub(super) targets: Vec<Target>,
    pub(super) board: ShareBoard,
    pub(super) counters: Arc<HeartbeatCounters>,
    pub(super) stop: Arc<AtomicBool>,
}

/// A peer that wants to hear from us.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) key: hmac::Key,
}

/// Every other node, with the key that it knows from us.
pub(super) fn targets(config: &Config, keys: &HeartbeatKeys) -> Vec<Target> {
    all_targets(config, keys).flatten().collect()
}

/// The same with a place for each peer, by its number.
pub(super) fn all_targets(
    config: &Config,
    keys: &HeartbeatKeys,
) -> impl Iterator<Item = Option<Target>> {
    (0..).map(PeerId).zip(config.others()).map(|(id, peer)| {
        let key = keys.ours(id)?;
        Some(Target {
            address: peer.control,
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
        })
    })
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
        for target in &self.targets {
            HeartbeatKeys::sign(&target.key, datagram);
            let count = match self.socket.send_to(datagram, target.address) {
                Ok(_) => &self.counters.sent,
                // No route yet, or a full buffer: the next one may get through.
                Err(_) => &self.counters.send_failed,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
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
