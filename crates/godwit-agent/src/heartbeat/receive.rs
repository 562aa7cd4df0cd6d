//! The receiving thread.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_wire::{Heartbeat, LeaseDatagram};

use super::{HeartbeatCounters, HeartbeatKeys, Refused};
use crate::clock;
use crate::input::{Inbox, Input};
use crate::realtime::{self, Urgency};

/// Between attempts while the socket fails: no busy loop at real-time priority.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest datagram of either kind.
pub(super) const MAX_LEN: usize = if LeaseDatagram::MAX_LEN > Heartbeat::MAX_LEN {
    LeaseDatagram::MAX_LEN
} else {
    Heartbeat::MAX_LEN
};

/// Everything the thread needs.
pub(super) struct Receiver {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) sources: Vec<IpAddr>,
    pub(super) keys: Arc<HeartbeatKeys>,
    pub(super) inbox: Inbox,
    pub(super) counters: Arc<HeartbeatCounters>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Receiver {
    pub(super) fn run(self) {
        realtime::prefer("gw-beat-recv", Urgency::Heartbeats);
        // One byte more than the longest, so that an overlong one is noticed.
        let mut buffer = [0; MAX_LEN + 1];
        while !self.stop.load(Ordering::Relaxed) {
            match self.socket.recv_from(&mut buffer) {
                Ok((len, source)) => {
                    let at = clock::now();
                    let datagram = buffer.get(..len).unwrap_or_default();
                    match self.check(source.ip(), datagram, at) {
                        Ok(input) => {
                            if self.inbox.offer(input).is_err() {
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

    fn check(&self, source: IpAddr, datagram: &[u8], at: MonoTime) -> Result<Input, Refused> {
        // Cheap first: strangers must not make a real-time thread compute.
        if !self.sources.contains(&source.to_canonical()) {
            return Err(Refused::Stranger);
        }
        if LeaseDatagram::is_one(datagram) {
            let (peer, datagram) = self.keys.verify_lease(datagram)?;
            return Ok(Input::Lease { peer, datagram });
        }
        let (peer, heartbeat) = self.keys.verify(datagram)?;
        let beat = heartbeat.into();
        Ok(Input::Heartbeat { peer, beat, at })
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
