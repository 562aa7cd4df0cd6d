//! M-TCP's second experiment: a stream of 256 KB, in chunks of 1 KB, whose server slows
//! down once it has sent 32 KB on a connection. The client's machine looks at the rate
//! at which bytes come in, and when it has dropped by a quarter has the connection
//! moved to the other server, where it is fast again; and so on. Beside it plain TCP,
//! which stays where it is, and a server that does not slow down.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use godwit_wire::{Endpoint, FlowKey};

use super::budget::Budget;
use super::migrate::{cluster, other};
use super::pair::PORT;
use super::report::{Measured, Point, Report};
use super::stats::Samples;
use super::stream::PATIENCE;
use crate::apps::client::read_some;
use crate::apps::content::{Checker, Content};
use crate::apps::server::Wish;
use crate::apps::stream::{self, Manner};
use crate::cluster::Cluster;
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions};

const CONTENT: Content = Content {
    seed: 0x51_0717,
    length: 256 << 10,
};

/// Where it begins to slow down, and how: a millisecond between two chunks becomes a
/// tenth more with each.
const SLOWS_AFTER: u64 = 32 << 10;
const PAUSE: Duration = Duration::from_millis(1);
const SLOWER: Duration = Duration::from_micros(100);

/// Bytes of the snapshots, besides those that the server needs.
const SIZES: [(&str, usize); 3] = [("2k", 2 << 10), ("10k", 10 << 10), ("16k", 16 << 10)];

/// The new value's part of the estimate (1/8 in the paper), and how much of the best
/// rate is enough.
const ALPHA: f64 = 1.0 / 8.0;
const ENOUGH: f64 = 0.75;

/// Chunks from one server before its rate is judged.
const WARM_UP: u32 = 8;

/// One round of all, rounded up.
const ROUND: Duration = Duration::from_millis(5500);

/// `migrate.slowing.*`, and a trace of each kind.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions::default())?;
    let cluster = cluster(&lab)?;
    let kinds = [("healthy", None, 0), ("stays", Some(false), 0)]
        .into_iter()
        .chain(SIZES.map(|(name, size)| (name, Some(true), size)));
    let kinds = kinds.collect::<Vec<_>>();
    let mut took = vec![Samples::default(); kinds.len()];
    let mut moves = Samples::default();
    for round in budget.runs(20, 1, ROUND) {
        for ((name, slows, ballast), took) in kinds.iter().zip(&mut took) {
            let manner = Manner {
                ballast: *ballast,
                pause: PAUSE,
                slows_after: slows.map_or(u64::MAX, |_| SLOWS_AFTER),
                slower: SLOWER,
                ..Manner::default()
            };
            let trace = one(&lab, &cluster, manner, slows.unwrap_or_default())
                .with_context(|| format!("round {round} of {name}"))?;
            let last = trace.points.last().context("nothing came")?;
            took.push(last.0);
            if *slows == Some(true) {
                moves.push(f64::from(trace.moves));
            }
            if round == 0 {
                report.trace(&format!("migrate.slowing.{name}"), "ms", &trace.points)?;
            }
        }
    }
    let healthy = took[0].p50();
    for ((name, ..), took) in kinds.iter().zip(&took) {
        let rate = |ms: f64| CONTENT.length as f64 / ms;
        let measured = Measured {
            value: took.p50().map(rate),
            control: healthy.map(rate),
            runs: took.runs(),
        };
        report.put(&format!("migrate.slowing.{name}"), measured)?;
    }
    report.put_p50("migrate.slowing.moves", &moves)
}

/// Bytes that had come by a time after the wish, in milliseconds.
struct Trace {
    points: Vec<Point>,
    moves: u32,
}

fn one(lab: &Lab, cluster: &Cluster<'_>, manner: Manner, moves: bool) -> Result<Trace> {
    let serve = |host| {
        let agent = cluster.app_socket(host)?;
        stream::start_with(lab.node(host), PORT, &agent, manner)
    };
    let _servers = [serve(Host::A)?, serve(Host::B)?];
    let (viewer, notes) = Viewer::start(lab)?;
    let mut trace = Trace {
        points: Vec::new(),
        moves: 0,
    };
    let (mut policy, mut at) = (Policy::new(viewer.begun), Host::A);
    loop {
        match notes.recv_timeout(PATIENCE) {
            Ok((when, bytes)) => {
                let since = when.duration_since(viewer.begun);
                trace.points.push((since.as_secs_f64() * 1e3, bytes));
                if policy.is_too_slow(when, bytes) && moves && bytes < CONTENT.length {
                    if viewer.moves_on(cluster, at)? {
                        at = other(at);
                        trace.moves += 1;
                    }
                    policy.begin_anew();
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => return Err(anyhow!("nothing comes")),
        }
    }
    viewer.finish()?;
    Ok(trace)
}

/// When a connection is to leave its server.
struct Policy {
    last: (Instant, u64),
    rate: Option<f64>,
    best: f64,
    seen: u32,
}

impl Policy {
    const fn new(begun: Instant) -> Self {
        Self {
            last: (begun, 0),
            rate: None,
            best: 0.0,
            seen: 0,
        }
    }

    /// Another server: what was the best of the one before says nothing of this.
    const fn begin_anew(&mut self) {
        self.rate = None;
        self.best = 0.0;
        self.seen = 0;
    }

    fn is_too_slow(&mut self, when: Instant, bytes: u64) -> bool {
        let (before, had) = std::mem::replace(&mut self.last, (when, bytes));
        let span = when.duration_since(before).max(Duration::from_micros(1));
        let measured = (bytes - had) as f64 / span.as_secs_f64();
        let rate = match self.rate {
            // The first one has the time in which nobody served in it.
            Some(rate) if self.seen > 1 => ALPHA.mul_add(measured, (1.0 - ALPHA) * rate),
            Some(_) | None => measured,
        };
        self.rate = Some(rate);
        self.seen += 1;
        if self.seen < WARM_UP {
            return false;
        }
        self.best = self.best.max(rate);
        rate < ENOUGH * self.best
    }
}

/// The client: it says when how much had come.
struct Viewer {
    begun: Instant,
    flow: FlowKey,
    thread: JoinHandle<Result<()>>,
}

impl Viewer {
    fn start(lab: &Lab) -> Result<(Self, Receiver<(Instant, u64)>)> {
        let service = SocketAddr::from((SERVICE_V4, PORT));
        let connect = || TcpStream::connect_timeout(&service, PATIENCE);
        let mut stream = lab.client().enter(connect)?.context("connecting")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let flow = FlowKey {
            client: Endpoint::from(stream.local_addr()?),
            service: Endpoint::from(service),
        };
        let (sender, notes) = mpsc::channel();
        let begun = Instant::now();
        stream.write_all(Wish::Get(CONTENT).to_string().as_bytes())?;
        let thread = thread::Builder::new()
            .name("viewer".to_owned())
            .spawn(move || listen(stream, &sender))
            .context("starting a thread")?;
        let viewer = Self {
            begun,
            flow,
            thread,
        };
        Ok((viewer, notes))
    }

    /// Has it moved; false if it stays.
    fn moves_on(&self, cluster: &Cluster<'_>, from: Host) -> Result<bool> {
        let which = format!("\"flow\":\"{}\"", self.flow);
        let (_, ended) = cluster.order_flows(&which, from, other(from))?;
        Ok(ended.stayed.is_empty())
    }

    fn finish(self) -> Result<()> {
        let ended = self.thread.join();
        ended.map_err(|_| anyhow!("the client panicked"))?
    }
}

fn listen(mut stream: TcpStream, notes: &Sender<(Instant, u64)>) -> Result<()> {
    let (mut checker, mut bytes) = (Checker::new(CONTENT), 0);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = read_some(&mut stream, &mut buffer).context("reading")?;
        if length == 0 {
            break;
        }
        bytes += length as u64;
        checker.feed(&buffer[..length]);
        // Whoever listens has an error of its own.
        let _ = notes.send((Instant::now(), bytes));
    }
    let verdict = checker.finish();
    ensure!(verdict.exact, "a byte is wrong or missing: {verdict:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate in steps of one chunk, and the chunk at which it is too slow.
    fn judge(pauses: impl Iterator<Item = Duration>) -> Option<usize> {
        let mut now = Instant::now();
        let mut policy = Policy::new(now);
        for (index, pause) in pauses.enumerate() {
            now += pause;
            if policy.is_too_slow(now, (index as u64 + 1) << 10) {
                return Some(index);
            }
        }
        None
    }

    #[test]
    fn a_steady_server_is_not_left_and_one_that_slows_down_is() {
        let steady = || (0..100).map(|_| PAUSE);
        assert_eq!(judge(steady()), None);
        let slowing = (1..50).map(|step| PAUSE + SLOWER * step);
        let left = judge(steady().chain(slowing)).expect("it is too slow");
        // At 1.33 ms between two the rate has dropped by a quarter; the estimate
        // follows within some eight chunks.
        assert!((103..=112).contains(&left), "{left}");
    }

    /// The first chunks of a new server come behind the pause of the move.
    #[test]
    fn a_pause_at_the_beginning_is_no_reason() {
        let pauses = [Duration::from_millis(30)].into_iter();
        assert_eq!(judge(pauses.chain((0..50).map(|_| PAUSE))), None);
    }
}
