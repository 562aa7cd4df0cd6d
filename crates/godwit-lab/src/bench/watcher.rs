//! A client that exchanges a few bytes again and again, and knows how long it waited.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

use super::stream::PATIENCE;
use crate::lab::Lab;

/// A client on a thread of its own; it ends with the longest wait since a moment.
#[derive(Debug)]
pub(super) struct Watcher {
    local: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<(Instant, Duration)>>>,
}

impl Watcher {
    /// Connects from the client's machine; `pause` is between two exchanges.
    pub(super) fn start(lab: &Lab, server: SocketAddr, pause: Duration) -> Result<Self> {
        let connect = || TcpStream::connect_timeout(&server, PATIENCE);
        let stream = lab.client().enter(connect)?;
        let stream = stream.with_context(|| format!("connecting to {server}"))?;
        let local = stream.local_addr()?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("watcher".to_owned())
            .spawn(move || watch(stream, pause, &stopped))
            .context("starting a thread")?;
        Ok(Self {
            local,
            stop,
            thread,
        })
    }

    /// Its end of the connection.
    pub(super) const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Ends it. The longest wait of those that began since then.
    ///
    /// # Errors
    /// Fails if a byte was wrong, or the connection broke.
    pub(super) fn longest_since(self, since: Instant) -> Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let waits = self.thread.join();
        let waits = waits.map_err(|_| anyhow!("a client has panicked"))??;
        let later = waits.into_iter().filter(|(from, _)| *from >= since);
        Ok(later.map(|(_, wait)| wait).max().unwrap_or_default())
    }
}

/// Each exchange, with the moment at which it began.
fn watch(
    mut stream: TcpStream,
    pause: Duration,
    stop: &AtomicBool,
) -> Result<Vec<(Instant, Duration)>> {
    stream.write_all(b"echo\n")?;
    let mut waits = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let said = format!("{:08}", waits.len());
        let mut heard = [0; 8];
        let from = Instant::now();
        stream.write_all(said.as_bytes())?;
        stream.read_exact(&mut heard)?;
        anyhow::ensure!(heard == said.as_bytes(), "a byte is wrong");
        waits.push((from, from.elapsed()));
        thread::sleep(pause);
    }
    Ok(waits)
}
