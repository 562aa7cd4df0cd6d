//! The receiving thread.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use godwit_core::PeerId;
use godwit_wire::Heartbeat;

use super::{HeartbeatCounters, HeartbeatKeys, Refused};
use crate::input::{Inbox, Input};
use crate::{clock, realtime};

/// Between attempts while the socket fails: no busy loop at real-time priority.
const PAUSE: Duration = Duration::from_millis(10);

/// Everything the thread needs.
pub(super) struct Receiver {
    pub(super) socket: UdpSocket,
    pub(super) sources: Vec<IpAddr>,
    pub(super) keys: Arc<HeartbeatKeys>,
    pub(super) inbox: Inbox,
    pub(super) counters: Arc<HeartbeatCounters>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Receiver {
    pub(super) fn run(self) {
        realtime::prefer("gw-beat-recv");
        // One byte more than the longest, so that an overlong one is noticed.
        let mut buffer = [0; Heartbeat::MAX_LEN + 1];
        while !self.stop.load(Ordering::Relaxed) {
            match self.socket.recv_from(&mut buffer) {
                Ok((len, source)) => {
                    let at = clock::now();
                    let datagram = buffer.get(..len).unwrap_or_default();
                    match self.check(source.ip(), datagram) {
                        Ok((peer, heartbeat)) => {
                            let beat = heartbeat.into();
                            if self
                                .inbox
                                .offer(Input::Heartbeat { peer, beat, at })
                                .is_err()
                            {
                                return;
                            }
                        }
                        Err(reason) => self.counters.count_refused(reason),
                    }
                }
                Err(error) if is_passing(error.kind()) => {}
                // Deafness would look like everybody's death: say so, and go on.
                Err(error) => {
                    tracing::error!(%error, "can't receive heartbeats");
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    fn check(&self, source: IpAddr, datagram: &[u8]) -> Result<(PeerId, Heartbeat), Refused> {
        // Cheap first: strangers must not make a real-time thread compute.
        if !self.sources.contains(&source.to_canonical()) {
            return Err(Refused::Stranger);
        }
        self.keys.verify(datagram)
    }
}

/// Errors after which the next datagram may be fine: time limits, and the ICMP
/// messages that our own heartbeats to a dead peer bring back.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
    )
}
