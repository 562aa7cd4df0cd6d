//! Asks whether one machine reaches another, and how long it takes.
//!
//! UDP datagrams to a thread of ours on the other machine: `ping` is not
//! installed everywhere, and this one sends as fast as answers come.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::host::Host;
use crate::lab::Lab;

/// How long an answer may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// What came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pings {
    /// Round-trip time of each answer.
    pub times: Vec<Duration>,
}

impl Pings {
    /// Answers that came.
    pub const fn received(&self) -> usize {
        self.times.len()
    }

    /// The middle round-trip time, if anything came back.
    pub fn median(&self) -> Option<Duration> {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }
}

impl Lab {
    /// Sends `count` datagrams from `from` to `address`, which is one of `to`'s,
    /// each after the answer to the one before or after `patience`.
    ///
    /// # Errors
    /// Fails if one of the machines is gone or does not have the address.
    pub fn ping(&self, from: Host, to: Host, address: IpAddr, count: u32) -> Result<Pings> {
        self.ping_within(from, to, address, count, PATIENCE)
    }

    /// As [`ping`](Self::ping), waiting at most `patience` for each answer.
    ///
    /// # Errors
    /// As [`ping`](Self::ping).
    pub fn ping_within(
        &self,
        from: Host,
        to: Host,
        address: IpAddr,
        count: u32,
        patience: Duration,
    ) -> Result<Pings> {
        let echo = self.node(to).enter(|| UdpSocket::bind((address, 0)))?;
        let echo = echo.with_context(|| format!("binding {address} on {to}"))?;
        echo.set_read_timeout(Some(Duration::from_millis(20)))
            .context("setting a time limit")?;
        let target = echo.local_addr().context("asking for the port")?;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A socket stays in the namespace where it was opened.
            scope.spawn(|| answer(&echo, &done));
            let pings = self.node(from).enter(|| send(target, count, patience));
            done.store(true, Ordering::Relaxed);
            pings?.with_context(|| format!("sending from {from} to {target}"))
        })
    }
}

fn answer(socket: &UdpSocket, done: &AtomicBool) {
    let mut buffer = [0; 64];
    while !done.load(Ordering::Relaxed) {
        // A time limit or an ICMP error: the next one may do.
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}

fn send(target: SocketAddr, count: u32, patience: Duration) -> io::Result<Pings> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(patience))?;
    let mut pings = Pings::default();
    for number in 0..count {
        let start = Instant::now();
        // Without carrier or neighbour a send fails: as good as lost.
        if socket.send_to(&number.to_be_bytes(), target).is_err() {
            continue;
        }
        let mut buffer = [0; 64];
        while let Ok((length, _)) = socket.recv_from(&mut buffer) {
            // An answer that comes late counts for no one.
            if buffer[..length] == number.to_be_bytes() {
                pings.times.push(start.elapsed());
                break;
            }
        }
    }
    Ok(pings)
}
