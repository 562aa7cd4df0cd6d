//! Heartbeats: authenticated UDP datagrams on the control address.
//!
//! Two plain threads, so that nothing else the agent does can delay them:
//!
//! - `gw-beat-send`: one datagram per peer and interval, on absolute ticks. Ticks that were
//!   slept through are skipped, never sent in a burst;
//! - `gw-beat-recv`: checks each datagram and hands it to the driver.
//!
//! What bounds them, and what is dropped when something is full, is in `docs/threads.md`.
//! Both run under real-time priority where permitted ([`crate::realtime`]).
//! What is said of the shares is a copy that the driver replaces
//! ([`ShareBoard`]): the sender never waits for the driver.

mod keys;
mod lease;
mod receive;
mod send;
mod sieve;
#[cfg(test)]
mod tests;
mod way;

use std::io;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use godwit_core::PeerId;
use godwit_wire::ShareClaim;

use crate::config::Config;
use crate::input::Inbox;
use crate::votes::VoteBook;

pub use keys::{HeartbeatKeys, Refused, Secret, draw_secret};
pub use lease::LeaseSender;
pub use sieve::bind;
pub use way::WayReport;

use sieve::Sieve;
use way::Way;

/// The ways to all peers, each at the place of its number.
type Ways = Arc<[Way]>;

/// What heartbeats say of this node's shares; written by the driver.
#[derive(Debug, Clone, Default)]
pub struct ShareBoard(Arc<Mutex<Arc<[ShareClaim]>>>);

/// Counts of what was sent and received.
#[derive(Debug)]
pub struct HeartbeatCounters {
    ways: Ways,
    sent: AtomicU64,
    send_failed: AtomicU64,
    late_ticks: AtomicU64,
    refused: [AtomicU64; Refused::ALL.len()],
    sieve: Option<Arc<Sieve>>,
}

/// The running threads; they end when this is dropped.
#[derive(Debug)]
pub struct Heartbeats {
    counters: Arc<HeartbeatCounters>,
    board: ShareBoard,
    ways: Ways,
    keys: Arc<HeartbeatKeys>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl ShareBoard {
    /// Replaces what the next heartbeat says.
    pub fn post(&self, claims: Vec<ShareClaim>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = claims.into();
    }

    fn read(&self) -> Arc<[ShareClaim]> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl HeartbeatCounters {
    fn new(ways: Ways, sieve: Option<Arc<Sieve>>) -> Self {
        Self {
            ways,
            sieve,
            sent: AtomicU64::new(0),
            send_failed: AtomicU64::new(0),
            late_ticks: AtomicU64::new(0),
            refused: Default::default(),
        }
    }

    /// Heartbeats sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// What became of the datagrams for each peer, heartbeats and leases.
    pub fn ways(&self) -> impl Iterator<Item = WayReport> {
        self.ways.iter().map(Way::report)
    }

    /// Heartbeats that the kernel did not take.
    pub fn send_failed(&self) -> u64 {
        self.send_failed.load(Ordering::Relaxed)
    }

    /// Ticks that came an interval late or more: the host was too busy.
    pub fn late_ticks(&self) -> u64 {
        self.late_ticks.load(Ordering::Relaxed)
    }

    /// Datagrams that the kernel has dropped: they could not have counted, or there was no
    /// room for them.
    pub fn unread(&self) -> u64 {
        self.sieve.as_ref().map_or(0, |sieve| sieve.dropped())
    }

    /// Datagrams that did not count, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (Refused, u64)> {
        Refused::ALL.into_iter().zip(
            self.refused
                .iter()
                .map(|count| count.load(Ordering::Relaxed)),
        )
    }

    fn count_refused(&self, reason: Refused) {
        let index = Refused::ALL.iter().position(|other| *other == reason);
        if let Some(count) = index.and_then(|index| self.refused.get(index)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Heartbeats {
    /// Starts both threads, which hear what comes to a socket [at](bind) the control address.
    ///
    /// # Errors
    /// If a thread can't be started, or a way to a peer can't be opened.
    pub fn start(
        config: &Config,
        incarnation: u64,
        (keys, inbox): (Arc<HeartbeatKeys>, Inbox),
        socket: UdpSocket,
    ) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let ways = ways(config, &keys)?;
        let sieve = keys.guard(socket.clone());
        sieve::forget_unread(&socket);
        let mut heartbeats = Self {
            counters: Arc::new(HeartbeatCounters::new(ways.clone(), Some(sieve))),
            board: ShareBoard::default(),
            ways: ways.clone(),
            keys: keys.clone(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        let receiver = receive::Receiver {
            socket,
            sources: config.others().map(|peer| peer.control.ip()).collect(),
            keys: keys.clone(),
            inbox,
            counters: heartbeats.counters.clone(),
            stop: heartbeats.stop.clone(),
        };
        // Only to see `stop`: datagrams wake the thread at once.
        receiver
            .socket
            .set_read_timeout(Some(Duration::from_millis(100)))?;
        let sender = send::Sender {
            name: config.node.name,
            incarnation,
            interval: config.detect.heartbeat,
            ways,
            keys,
            board: heartbeats.board.clone(),
            counters: heartbeats.counters.clone(),
            stop: heartbeats.stop.clone(),
        };
        heartbeats.spawn("gw-beat-recv", move || receiver.run())?;
        heartbeats.spawn("gw-beat-send", move || sender.run())?;
        Ok(heartbeats)
    }

    /// Where the driver says what it does for each share.
    pub fn board(&self) -> ShareBoard {
        self.board.clone()
    }

    /// The way to the voters, of one who keeps votes in this book.
    pub(crate) fn leases(&self, book: VoteBook) -> LeaseSender {
        LeaseSender::new(self.ways.clone(), self.keys.clone(), book)
    }

    /// Counts, for metrics.
    pub fn counters(&self) -> Arc<HeartbeatCounters> {
        self.counters.clone()
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name(name.into()).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }
}

#[cfg(test)]
impl HeartbeatCounters {
    /// Of a node that has sent nothing yet.
    pub(crate) fn unsent(config: &Config) -> Self {
        let keys = HeartbeatKeys::new(config, &[0; 32], 1);
        Self::new(ways(config, &keys).expect("loopback"), None)
    }
}

/// A way to every other node, with the key that it knows from us.
fn ways(config: &Config, keys: &HeartbeatKeys) -> io::Result<Ways> {
    let own = config.own_peer().control;
    let peers = (0..).map(PeerId).zip(config.others());
    let ways = peers.map(|(id, peer)| {
        let signer = keys.signer(id).ok_or(io::ErrorKind::NotFound)?;
        Way::open(own, (peer.name, peer.control), signer)
    });
    ways.collect()
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic there was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}
