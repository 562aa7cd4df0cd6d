//! What one client program tells of itself while it runs.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::phase::Phase;

/// Silence after which a client gives up. The longest hold is far shorter, and
/// so are the retransmissions that it causes.
pub(super) const PATIENCE: Duration = Duration::from_secs(12);

/// A client program's place: it writes, the run reads.
#[derive(Debug, Default)]
pub(super) struct Seat {
    phase: AtomicU8,
    enough: AtomicBool,
    bytes: AtomicU64,
    connections: Mutex<Vec<Connection>>,
}

/// One connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    /// What its program does.
    pub(super) kind: &'static str,
    /// The service's end.
    pub(super) service: SocketAddr,
    /// The client's end, once there is one.
    pub(super) local: Option<SocketAddr>,
    /// When the handshake was over.
    pub(super) opened: Option<Instant>,
    /// How it ended, and when.
    pub(super) end: Option<(Instant, Fate)>,
    /// When its client made the last two requests that may have taken it to another
    /// server.
    pub(super) sent_off: [Option<Instant>; 2],
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Every byte was right, and so was the end.
    Exact,
    /// A byte was wrong, or too much.
    Wrong(String),
    /// It was reset, or its orderly end came too early.
    Cut(String),
    /// Nothing came for [`PATIENCE`], or something else went wrong.
    Dead(String),
}

/// The connection that a program is at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number(usize);

impl Seat {
    pub(super) fn phase(&self) -> Phase {
        Phase::from_u8(self.phase.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// The program is to come to an orderly end.
    pub(super) fn dismiss(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_dismissed(&self) -> bool {
        self.enough.load(Ordering::Relaxed)
    }

    /// So many more bytes were checked, or are on their way.
    pub(super) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A copy of all connections, in the order of their beginning.
    pub(super) fn connections(&self) -> Vec<Connection> {
        self.lock().clone()
    }

    /// Connects.
    pub(super) fn open(
        &self,
        kind: &'static str,
        service: SocketAddr,
    ) -> Result<(Number, TcpStream), (Number, Fate)> {
        let number = self.begin(kind, service);
        self.set(Phase::Syn);
        let stream = TcpStream::connect_timeout(&service, PATIENCE);
        let stream = stream.and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let local = stream.local_addr()?;
            Ok((local, stream))
        });
        match stream {
            Ok((local, stream)) => {
                let mut connections = self.lock();
                if let Some(connection) = connections.get_mut(number.0) {
                    connection.local = Some(local);
                    connection.opened = Some(Instant::now());
                }
                Ok((number, stream))
            }
            Err(error) => {
                // A SYN that is reset is refused (RFC 9293 §3.10.7.3). Only who is
                // connected can be reset: it was, and was told too late.
                if error.kind() == ErrorKind::ConnectionReset
                    && let Some(connection) = self.lock().get_mut(number.0)
                {
                    connection.opened = Some(Instant::now());
                }
                Err((number, Fate::of(&error, "connecting")))
            }
        }
    }

    /// Its next request may take a connection to another server.
    pub(super) fn send_off(&self, number: Number) {
        if let Some(connection) = self.lock().get_mut(number.0) {
            let [_, last] = connection.sent_off;
            connection.sent_off = [last, Some(Instant::now())];
        }
    }

    /// Notes how a connection ended.
    pub(super) fn close(&self, number: Number, fate: Fate) {
        self.set(Phase::Idle);
        if let Some(connection) = self.lock().get_mut(number.0) {
            connection.end = Some((Instant::now(), fate));
        }
    }

    fn begin(&self, kind: &'static str, service: SocketAddr) -> Number {
        let mut connections = self.lock();
        connections.push(Connection {
            kind,
            service,
            local: None,
            opened: None,
            end: None,
            sent_off: [None; 2],
        });
        Number(connections.len() - 1)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Fate {
    /// What an error of a socket means to a client.
    pub(super) fn of(error: &io::Error, doing: &str) -> Self {
        let said = format!("{doing}: {error}");
        let cut = [
            ErrorKind::ConnectionReset,
            ErrorKind::BrokenPipe,
            ErrorKind::ConnectionRefused,
            ErrorKind::ConnectionAborted,
        ];
        if cut.contains(&error.kind()) {
            Self::Cut(said)
        } else {
            Self::Dead(said)
        }
    }
}
