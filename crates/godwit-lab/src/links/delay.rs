//! A delay line: frames wait a fixed time each way, in user space.
//!
//! The kernel here has no netem. Between a host's port and the bridge stand
//! two packet sockets and, for each direction, a thread with a queue:
//!
//! ```text
//!   host eth0 == p-host   thread   q-host == d-host   bridge
//!                   └──── queue ────┘
//! ```
//!
//! Order is kept: a queue is first in, first out and all frames wait equally
//! long. A segment that is still to be cut stays whole, as in the rest of the
//! lab: frame by frame this would cost more CPU than both servers.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use godwit_sock::OFFLOAD_HEADER;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl;
use nix::sys::time::TimeSpec;

use crate::host::{Host, Network};
use crate::lab::Lab;
use crate::packet::PacketSocket;

/// Frames that may wait: 300 ms at 4 Gbit/s in full frames. More are dropped.
const QUEUE_LIMIT: usize = 100_000;

/// Longest frame: an offloaded segment of 64 KiB with all that is before it.
const FRAME_LIMIT: usize = 65_536 + 64 + OFFLOAD_HEADER;

/// Frames taken before the queue's head is looked at again.
const BURST: usize = 64;

/// How long a thread sleeps at most before it looks whether it shall end.
const IDLE: Duration = Duration::from_millis(50);

/// The two forwarding threads of one host's link; they end when it is dropped.
#[derive(Debug)]
pub(crate) struct DelayLine {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Lab {
    /// Name of the bridge port that `host`'s frames pass.
    pub(crate) fn switch_port(&self, host: Host, network: Network) -> String {
        let delays = self.delays.lock().unwrap_or_else(|e| e.into_inner());
        if network == Network::Data && delays.contains_key(&host) {
            return outer(host);
        }
        network.port(host)
    }

    /// Makes every frame from and to `host` on the data network wait `one_way`.
    ///
    /// Zero takes the line out of the path again. The link is interrupted for
    /// some milliseconds; call it before traffic flows.
    ///
    /// # Errors
    /// Fails if the line can't be inserted.
    pub fn delay(&self, host: Host, one_way: Duration) -> Result<()> {
        let mut delays = self.delays.lock().unwrap_or_else(|e| e.into_inner());
        if delays.remove(&host).is_some() {
            self.take_out(host)?;
        }
        if !one_way.is_zero() {
            let line = self
                .put_in(host, one_way)
                .with_context(|| format!("delaying {host}'s link"))?;
            delays.insert(host, line);
        }
        Ok(())
    }

    fn put_in(&self, host: Host, one_way: Duration) -> Result<DelayLine> {
        let (port, inner, outer) = (Network::Data.port(host), inner(host), outer(host));
        self.switch.ip(&[
            format!("link add {outer} type veth peer name {inner}"),
            format!("link set {port} nomaster"),
            format!("link set {inner} up"),
            format!("link set {outer} master {} up", Network::Data.bridge()),
        ])?;
        self.switch
            .enter(|| DelayLine::start(&port, &inner, one_way))?
    }

    fn take_out(&self, host: Host) -> Result<()> {
        let port = Network::Data.port(host);
        self.switch.ip(&[
            format!("link del {}", outer(host)),
            format!("link set {port} master {} up", Network::Data.bridge()),
        ])
    }
}

impl DelayLine {
    /// Starts both directions in the namespace of the calling thread.
    fn start(one: &str, other: &str, wait: Duration) -> Result<Self> {
        let one = Arc::new(PacketSocket::open_uncut(one)?);
        let other = Arc::new(PacketSocket::open_uncut(other)?);
        let stop = Arc::new(AtomicBool::new(false));
        let mut line = Self {
            stop: Arc::clone(&stop),
            threads: Vec::new(),
        };
        for (name, from, to) in [("delay-in", &one, &other), ("delay-out", &other, &one)] {
            let (from, to, stop) = (Arc::clone(from), Arc::clone(to), Arc::clone(&stop));
            let run = move || {
                // The interfaces vanish under it when the lab goes; nothing to do.
                let _ = forward(&from, &to, wait, &stop);
            };
            let builder = thread::Builder::new().name(name.to_owned());
            line.threads
                .push(builder.spawn(run).context("starting a delay thread")?);
        }
        Ok(line)
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn inner(host: Host) -> String {
    format!("q-{host}")
}

fn outer(host: Host) -> String {
    format!("d-{host}")
}

/// Moves frames until `stop`, each `wait` after its arrival.
///
/// The last tenths of a millisecond are the scheduler's: a round trip takes up
/// to half a millisecond longer than twice `wait`.
fn forward(
    from: &PacketSocket,
    to: &PacketSocket,
    wait: Duration,
    stop: &AtomicBool,
) -> Result<()> {
    // By default the kernel may wake a thread 50 us late to save power.
    prctl::set_timerslack(1).context("asking for exact timers")?;
    let mut queue = VecDeque::<(Instant, Box<[u8]>)>::new();
    let mut buffer = vec![0; FRAME_LIMIT];
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        while queue.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, frame)) = queue.pop_front() {
                to.send(&frame)?;
            }
        }
        let pause = queue.front().map_or(IDLE, |(due, _)| {
            due.saturating_duration_since(now).min(IDLE)
        });
        let mut fds = [PollFd::new(from.fd().as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, Some(TimeSpec::from_duration(pause)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => bail!("waiting for a frame: {e}"),
        }
        for _ in 0..BURST {
            let Some(length) = from.receive(&mut buffer)? else {
                break;
            };
            if queue.len() < QUEUE_LIMIT {
                queue.push_back((Instant::now() + wait, buffer[..length].into()));
            }
        }
    }
    Ok(())
}
