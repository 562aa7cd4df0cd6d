//! One busy connection that goes to and fro between two servers, with its state.
//!
//! The server says 1 KB at a time and exports a snapshot after each. A client reads,
//! and in some runs says as much itself. What is looked at of each move: the time
//! from the order to the first byte that the new server has said itself; how long
//! nobody spoke, as the origin knows it; and the longest silence that the client
//! saw, against two times as long before, when nothing moved. The null of the first
//! of them is how long the client waits for its next byte when nobody gives an order.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::budget::Budget;
use super::ferry::{Ferry, Way};
use super::pair::{CONGESTION_CONTROL, PORT};
use super::report::{Measured, Report};
use super::stats::Samples;
use crate::apps::roam::{self, Manner};
use crate::cluster::{Cluster, ClusterOptions, Service};
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions};
use crate::process::Process;

/// What the server says at a time.
pub(super) const CHUNK: usize = 1 << 10;
pub(super) const PACE: Duration = Duration::from_micros(100);

/// Looked at after the order, and twice before it.
const SPAN: Duration = Duration::from_millis(60);

/// One move, and what is around it; measured, rounded up.
const MOVE: Duration = Duration::from_millis(220);

/// How long servers and agents may take until connections move.
pub(super) const START: Duration = Duration::from_secs(20);

/// Round trips between client and servers, with the figures' names of them.
const PATHS: [(&str, Duration); 3] = [
    ("0us", Duration::ZERO),
    ("150us", Duration::from_micros(150)),
    ("20ms", Duration::from_millis(20)),
];

/// Bytes of a snapshot, besides those that the server needs to go on.
const SIZES: [(&str, usize); 5] = [
    ("0k", 0),
    ("2k", 2 << 10),
    ("10k", 10 << 10),
    ("16k", 16 << 10),
    ("1m", 1 << 20),
];

type Percentile = fn(&Samples) -> Option<f64>;
const PERCENTILES: [(&str, Percentile); 2] = [("p50", Samples::p50), ("p99", Samples::p99)];

/// What the runs with one path, size and way gave.
#[derive(Debug, Default)]
struct Seen {
    first_data: Samples,
    next_data: Samples,
    freeze: Samples,
    gap: Samples,
    calm: Samples,
    calm_again: Samples,
}

/// All runs together.
#[derive(Debug, Default)]
struct Total {
    moves: u32,
    stayed: u32,
    streams: u32,
    broken: u32,
}

/// `migrate.*`, but for batches.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let mut total = Total::default();
    for (path, round_trip) in PATHS {
        let near = round_trip.is_zero();
        let all = report.is_choosy() || budget.either(true, false);
        let runs: Vec<_> = runs(path, near, all)
            .filter(|run| run.figures.iter().any(|name| report.wants_figure(name)))
            .collect();
        if runs.is_empty() || budget.is_over() {
            continue;
        }
        let lab = lab(round_trip)?;
        put_round_trip(&lab, path, report)?;
        let cluster = cluster(&lab)?;
        for run in runs {
            let seen = moves((&lab, &cluster), &run, budget, (&mut total, report))?;
            for (percentile, of) in PERCENTILES {
                let [first_data, freeze, gap] = run
                    .figures
                    .each_ref()
                    .map(|it| format!("{it}.{percentile}"));
                if run.way == Way::Download {
                    report.put(&first_data, seen.until_data(of))?;
                }
                if near && run.way == Way::Download {
                    report.put(&freeze, seen.frozen(of))?;
                }
                if near && run.state == 0 {
                    report.put(&gap, seen.added(of))?;
                }
            }
        }
    }
    let known = |value| Measured {
        value: (total.streams > 0).then_some(f64::from(value)),
        control: None,
        runs: total.streams,
    };
    report.put("migrate.moves", known(total.moves))?;
    report.put("migrate.stayed", known(total.stayed))?;
    report.put("migrate.broken", known(total.broken))
}

/// One connection's moves, and what they are for.
struct Run {
    state: usize,
    way: Way,
    /// Names, if there is a figure: first data, freeze, gap.
    figures: [String; 3],
}

/// What is done on one path; less by a quick benchmark that is to measure everything.
fn runs(path: &str, near: bool, all: bool) -> impl Iterator<Item = Run> {
    let quick: &[&str] = if near { &["0k", "16k", "1m"] } else { &["0k"] };
    let sizes = SIZES.into_iter();
    let sizes = sizes.filter(move |(size, _)| all || quick.contains(size));
    let path = path.to_owned();
    let downloads = sizes.map(move |(size, state)| Run {
        state,
        way: Way::Download,
        figures: [
            format!("migrate.first_data.{path}.{size}"),
            format!("migrate.freeze.{size}"),
            "migrate.gap.download".to_owned(),
        ],
    });
    let both = near.then(|| Run {
        state: 0,
        way: Way::Both,
        figures: ["migrate.gap.both"; 3].map(str::to_owned),
    });
    downloads.chain(both)
}

impl Seen {
    fn until_data(&self, of: Percentile) -> Measured {
        Measured {
            value: of(&self.first_data),
            control: of(&self.next_data),
            runs: self.first_data.runs(),
        }
    }

    fn frozen(&self, of: Percentile) -> Measured {
        Measured {
            value: of(&self.freeze),
            control: None,
            runs: self.freeze.runs(),
        }
    }

    /// What a move adds to the longest silence, and what none adds.
    fn added(&self, of: Percentile) -> Measured {
        let over = |samples: &Samples| Some(of(samples)? - of(&self.calm)?);
        Measured {
            value: over(&self.gap),
            control: over(&self.calm_again),
            runs: self.gap.runs(),
        }
    }
}

/// A lab whose client is so far away.
fn lab(round_trip: Duration) -> Result<Lab> {
    let lab = Lab::new(LabOptions::default())?;
    lab.delay(Host::Client, round_trip / 2)?;
    Ok(lab)
}

fn put_round_trip(lab: &Lab, path: &str, report: &Report) -> Result<()> {
    let pings = lab.ping(Host::Client, Host::A, Host::A.v4().into(), 200)?;
    let measured = Measured {
        value: pings.median().map(|median| median.as_secs_f64() * 1e3),
        control: None,
        runs: u32::try_from(pings.received()).unwrap_or(u32::MAX),
    };
    report.put(&format!("migrate.rtt.{path}"), measured)
}

/// Agents of a service whose connections move one by one.
pub(super) fn cluster(lab: &Lab) -> Result<Cluster<'_>> {
    let service = Service {
        standby: "snapshot",
        ..Service::new("web", PORT)
    };
    let cluster = cluster_of(lab, vec![service])?;
    for host in Host::SERVERS {
        cluster.wait_owner(host, START)?;
    }
    Ok(cluster)
}

/// Agents of these services.
pub(super) fn cluster_of(lab: &Lab, services: Vec<Service>) -> Result<Cluster<'_>> {
    let options = ClusterOptions {
        services,
        ..ClusterOptions::unfenced()
    };
    Cluster::start(lab, options)
}

/// The other server.
pub(super) const fn other(host: Host) -> Host {
    match host {
        Host::A => Host::B,
        Host::B
        | Host::C
        | Host::Client
        | Host::Attacker
        | Host::Witness
        | Host::Director
        | Host::Reserve => Host::A,
    }
}

/// One connection that moves again and again, of servers of its own.
fn moves(
    (lab, cluster): (&Lab, &Cluster<'_>),
    &Run { state, way, .. }: &Run,
    budget: Budget,
    (total, report): (&mut Total, &Report),
) -> Result<Seen> {
    let manner = Manner {
        state,
        chunk: CHUNK,
        pace: PACE,
        congestion: Some(CONGESTION_CONTROL),
        ..Manner::default()
    };
    let serve = |host| {
        let agent = cluster.app_socket(host)?;
        roam::start_with(lab.node(host), PORT, &agent, manner)
    };
    let servers = [serve(Host::A)?, serve(Host::B)?];
    let service = SocketAddr::from((SERVICE_V4, PORT));
    let ferry = Ferry::start(lab, service, way, (CHUNK, PACE))?;
    let mut seen = Seen::default();
    let mut at = first_move(cluster, &ferry)?;
    for run in budget.runs(200, 5, MOVE) {
        let to = &servers[usize::from(at == Host::A)];
        let moved = move_once(cluster, &ferry, (at, to), &mut seen);
        match moved.with_context(|| format!("move {run} of {state} bytes from {at}"))? {
            Ok(()) => {
                at = other(at);
                total.moves += 1;
            }
            Err(reason) => {
                total.stayed += 1;
                report.progress(&format!("it stays on {at}: {reason}"));
            }
        }
    }
    total.streams += 1;
    if let Err(error) = ferry.end() {
        total.broken += 1;
        report.progress(&format!("{error:#}"));
    }
    Ok(seen)
}

/// Soon after start a connection may stay; returns where it is.
pub(super) fn first_move(cluster: &Cluster<'_>, ferry: &Ferry) -> Result<Host> {
    let end = Instant::now() + START;
    loop {
        match order(cluster, ferry, Host::A) {
            Ok(Ok(_)) => return Ok(Host::B),
            Err(error) if Instant::now() > end => return Err(error),
            Ok(Err(reason)) if Instant::now() > end => bail!("it stayed: {reason}"),
            Ok(Err(_)) | Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// When it was asked, and for how long nobody spoke, in milliseconds; or why it stays.
pub(super) fn order(
    cluster: &Cluster<'_>,
    ferry: &Ferry,
    from: Host,
) -> Result<Result<(Instant, f64), String>> {
    let which = format!("\"flow\":\"{}\"", ferry.flow);
    let (since, ended) = cluster.order_flows(&which, from, other(from))?;
    match (&ended.moved[..], &ended.stayed[..]) {
        ([moved], []) => Ok(Ok((since, moved.silent_ms))),
        ([], [stayed]) => Ok(Err(stayed.reason.clone())),
        _ => bail!("one was to move: {ended:?}"),
    }
}

/// One move to a server, and what the client saw before and after the order; or why
/// it stays.
fn move_once(
    cluster: &Cluster<'_>,
    ferry: &Ferry,
    (from, server): (Host, &Process),
    seen: &mut Seen,
) -> Result<Result<(), String>> {
    ferry.forget();
    let begun = Instant::now();
    thread::sleep(3 * SPAN);
    let calm = [begun, begun + SPAN, begun + 2 * SPAN];
    let [calm_again, calm] = [0, 1].map(|part| ferry.longest_gap(calm[part], calm[part + 1]));
    let next_data = ferry.first_after(begun + SPAN);
    let heard = ferry.bytes();
    let (since, silent_ms) = match order(cluster, ferry, from)? {
        Ok(moved) => moved,
        Err(reason) => return Ok(Err(reason)),
    };
    thread::sleep(SPAN.saturating_sub(since.elapsed()));
    let gap = ferry.longest_gap(since, since + SPAN);
    ensure!(ferry.goes_on(), "the connection broke");
    let first = first_data(ferry, server, heard)?;
    seen.first_data
        .push_ms(first.saturating_duration_since(since));
    if let Some(at) = next_data {
        seen.next_data.push_ms(at - (begun + SPAN));
    }
    seen.freeze.push(silent_ms);
    seen.gap.push_ms(gap);
    seen.calm.push_ms(calm);
    seen.calm_again.push_ms(calm_again);
    Ok(Ok(()))
}

/// When the client had a byte that the other server had not said. That one had said
/// at least what the client had `heard` before the order: what the log has of an
/// earlier arrival is less.
fn first_data(ferry: &Ferry, server: &Process, heard: u64) -> Result<Instant> {
    let end = Instant::now() + START;
    loop {
        let said = roam::came_at(&server.log(), ferry.client);
        let said = said.filter(|said| *said >= heard);
        match said.and_then(|said| ferry.heard_more_than(said)) {
            Some(at) => return Ok(at),
            None if Instant::now() > end => bail!("the new server says nothing"),
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}
