//! The sockets at addresses of this node, which peers and scrapers know.
//!
//! They are bound once in a process, before anything is changed, and each life gets copies of
//! them. Between two lives they stay bound: ports from 1024 on are free to every account of
//! the machine, and one that took such a port while an agent reloads would end the agent.

use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{Backlog, listen};

use super::StartError;
use crate::config::Config;
use crate::heartbeat;

/// A process that was killed still has its sockets, until the kernel has closed all its files.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Bound, and nobody reads or accepts yet.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) heartbeats: UdpSocket,
    pub(super) links: TcpListener,
    pub(super) metrics: Option<TcpListener>,
}

impl Sockets {
    /// Takes the addresses of this node.
    ///
    /// # Errors
    /// If one of them is taken, or not there.
    pub(super) fn bind(config: &Config) -> Result<Self, StartError> {
        let control = config.own_peer().control;
        let metrics = |address| at(address, "metrics address", listening);
        Ok(Self {
            heartbeats: at(control, "control address (UDP)", heartbeat::bind)?,
            links: at(control, "control address (TCP)", listening)?,
            metrics: config.node.metrics.map(metrics).transpose()?,
        })
    }

    /// The same sockets for one life.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub(super) fn for_a_life(&self) -> io::Result<Self> {
        let metrics = self.metrics.as_ref();
        Ok(Self {
            heartbeats: self.heartbeats.try_clone()?,
            links: self.links.try_clone()?,
            metrics: metrics.map(TcpListener::try_clone).transpose()?,
        })
    }
}

/// Another agent with another `run_dir`, or another program, may be there already.
fn at<T>(
    address: SocketAddr,
    what: &'static str,
    bind: impl Fn(SocketAddr) -> io::Result<T>,
) -> Result<T, StartError> {
    let is_used = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    patiently(|| bind(address), is_used).map_err(|source| cant_listen(address, what, source))
}

pub(super) fn cant_listen(
    address: impl Display,
    what: &'static str,
    source: io::Error,
) -> StartError {
    StartError::Listen {
        address: address.to_string(),
        what,
        source,
    }
}

fn listening(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    // More than the standard library asks for.
    listen(&listener.as_fd(), Backlog::new(BACKLOG)?)?;
    Ok(listener)
}

/// Tries for [`PATIENCE`] while `is_taken`.
pub(super) fn patiently<T, E>(
    mut take: impl FnMut() -> Result<T, E>,
    is_taken: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let end = Instant::now() + PATIENCE;
    loop {
        match take() {
            Err(error) if is_taken(&error) && Instant::now() < end => thread::sleep(PAUSE),
            taken => return taken,
        }
    }
}
