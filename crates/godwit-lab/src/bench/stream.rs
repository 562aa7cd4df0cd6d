//! One client's connection that lives through a failure, and what it saw.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt};

use super::pair::{CONGESTION_CONTROL, PORT};
use crate::apps::client::{Client, Rounds};
use crate::apps::content::Content;
use crate::apps::server::set_pace;
use crate::host::SERVICE_V4;
use crate::lab::Lab;
use crate::meter::{Gap, Meter};

/// A silence that is longer has ended the connection for this benchmark.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// An upload is seen to go on when the sender's buffer has room again: a small
/// one says it soon. The kernel doubles it.
const SEND_BUFFER: usize = 64 << 10;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The server sends so many bytes.
    Download(u64),
    /// The client sends so many bytes.
    Upload(u64),
    /// So many exchanges of 150 bytes, with 1 ms between them.
    Echo(u32),
    /// So many of them, with [`CHAT_PAUSE`] between them.
    Chat(u32),
}

/// Between two exchanges of one of very many connections.
pub(super) const CHAT_PAUSE: Duration = Duration::from_millis(100);

/// A connection on a thread of its own.
#[derive(Debug)]
pub(super) struct Stream {
    meter: Arc<Meter>,
    thread: JoinHandle<Result<()>>,
    name: &'static str,
    pause: Duration,
}

/// Where the client finds the service.
fn service() -> SocketAddr {
    SocketAddr::from((SERVICE_V4, PORT))
}

/// Connects to the service, with the same congestion control as the server's.
pub(super) fn connect(patience: Duration) -> Result<Client> {
    let client = Client::connect(service(), patience)?;
    let name = OsString::from(CONGESTION_CONTROL);
    setsockopt(client.stream(), sockopt::TcpCongestion, &name)
        .context("choosing the congestion control")?;
    Ok(client)
}

impl Stream {
    /// Connects to the service and begins; `seed` chooses the bytes.
    pub(super) fn start(lab: &Lab, work: Work, seed: u64) -> Result<Self> {
        Self::start_at(lab, work, seed, None)
    }

    /// As [`start`](Self::start), with a client that sends no more than `pace` bytes
    /// per second.
    pub(super) fn start_paced(lab: &Lab, work: Work, seed: u64, pace: u32) -> Result<Self> {
        Self::start_at(lab, work, seed, Some(pace))
    }

    fn start_at(lab: &Lab, work: Work, seed: u64, pace: Option<u32>) -> Result<Self> {
        let meter = Arc::new(Meter::default());
        let (client, recorder) = (lab.client().clone(), Arc::clone(&meter));
        let run = move || client.enter(|| perform(work, seed, pace, &recorder))?;
        let thread = thread::Builder::new()
            .name("stream".to_owned())
            .spawn(run)
            .context("starting a thread")?;
        Ok(Self {
            meter,
            thread,
            name: work.name(),
            pause: work.pause(),
        })
    }

    /// Waits until the first bytes have passed.
    pub(super) fn wait_begun(&self) -> Result<()> {
        self.wait_bytes(1)
    }

    /// Waits until `bytes` have passed.
    pub(super) fn wait_bytes(&self, bytes: u64) -> Result<()> {
        while self.meter.bytes() < bytes {
            let last = self.meter.last().unwrap_or_else(|| self.meter.started());
            ensure!(
                last.elapsed() < PATIENCE && !self.thread.is_finished(),
                "the {} did not come to {bytes} bytes",
                self.name
            );
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The longest silence of the last `span` before `moment`, at least 1 ms: what
    /// a stall would be if nothing had failed.
    pub(super) fn calm(&self, moment: Instant, span: Duration) -> Duration {
        let from = moment.checked_sub(span).unwrap_or(moment);
        let gap = self.meter.longest_gap_between(from, moment);
        gap.map_or(Duration::from_millis(1), |gap| gap.length)
    }

    /// As [`calm`](Self::calm), but without the pause that the client makes itself.
    pub(super) fn waited(&self, moment: Instant, span: Duration) -> Duration {
        self.calm(moment, span).saturating_sub(self.pause)
    }

    /// Waits for the end: the longest silence that ended after `since`, at
    /// least 1 ms, if every byte was right.
    pub(super) fn finish(self, since: Instant) -> Result<Duration> {
        let meter = self.end(since)?;
        Ok(length(meter.longest_gap_since(since)))
    }

    /// As [`finish`](Self::finish): of the silences that began within `span` after
    /// `since`, or before it, and of those that began later.
    pub(super) fn finish_apart(self, since: Instant, span: Duration) -> Result<[Duration; 2]> {
        let meter = self.end(since)?;
        Ok(meter.longest_gaps_around(since, since + span).map(length))
    }

    /// Waits for the end, at which every byte must be right.
    fn end(self, since: Instant) -> Result<Arc<Meter>> {
        let ended = self.thread.join();
        ended
            .map_err(|_| anyhow!("a client thread panicked"))?
            .with_context(|| format!("the {} broke", self.name))?;
        if self.meter.last().is_some_and(|last| last < since) {
            bail!("the {} ended before the failure", self.name);
        }
        Ok(self.meter)
    }
}

/// Shorter silences are not kept.
fn length(gap: Option<Gap>) -> Duration {
    gap.map_or(Duration::from_millis(1), |gap| gap.length)
}

impl Work {
    /// What it is called in figures.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Download(_) => "download",
            Self::Upload(_) => "upload",
            Self::Echo(_) => "echo",
            Self::Chat(_) => "chat",
        }
    }

    /// Between an answer and the next request.
    const fn pause(self) -> Duration {
        match self {
            Self::Download(_) | Self::Upload(_) => Duration::ZERO,
            Self::Echo(_) => Duration::from_millis(1),
            Self::Chat(_) => CHAT_PAUSE,
        }
    }
}

fn perform(work: Work, seed: u64, pace: Option<u32>, meter: &Meter) -> Result<()> {
    let mut client = connect(PATIENCE)?;
    if let Some(pace) = pace {
        set_pace(client.stream().as_fd(), pace).context("pacing the client")?;
    }
    match work {
        Work::Download(length) => {
            let verdict = client.get(Content { seed, length }, meter)?;
            ensure!(verdict.exact, "a byte is wrong or missing: {verdict:?}");
            Ok(())
        }
        Work::Upload(length) => {
            setsockopt(client.stream(), sockopt::SndBuf, &SEND_BUFFER)
                .context("sizing the send buffer")?;
            client.put(Content { seed, length }, meter)
        }
        Work::Echo(count) | Work::Chat(count) => {
            let rounds = Rounds {
                count,
                request: 150,
                reply: None,
                pause: work.pause(),
            };
            client.exchange(rounds, meter).map(drop)
        }
    }
}
