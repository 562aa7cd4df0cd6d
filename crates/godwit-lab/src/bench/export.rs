//! What an export costs the server that makes it: the call itself, also if it waits for
//! the standby, and a stream that has one after each of its chunks.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::budget::Budget;
use super::migrate::{START, cluster_of};
use super::pair::PORT;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stream::PATIENCE;
use crate::apps::client::read_some;
use crate::apps::content::Content;
use crate::apps::exports::{self, CALLS, COMMITS, Cost};
use crate::apps::server::Wish;
use crate::apps::stream::{self, Manner};
use crate::cluster::{Cluster, Service};
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions};
use crate::process::Process;

/// Two services whose connections move one by one. The servers of the other export
/// nothing.
const LAZY: u16 = 81;
const SILENT: u16 = 82;

/// Its servers commit.
const COMMITTING: u16 = 83;

/// Where there is no service.
const ELSEWHERE: u16 = 90;

/// What a stream has in a full benchmark, and in a quick one.
const LONG: u64 = 400_000_000;
const SHORT: u64 = 50_000_000;

/// One client, and one round of streams, rounded up.
const CLIENT: Duration = Duration::from_millis(1000);
const ROUND: Duration = Duration::from_millis(3000);

/// `migrate.export.*`, `migrate.commit.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    eager(budget, report)?;
    let lab = Lab::new(LabOptions::default())?;
    let cluster = cluster_of(&lab, vec![service(LAZY), service(SILENT)])?;
    cluster.wait_owner(Host::A, START)?;
    let agent = cluster.app_socket(Host::A)?;
    let nobody = Path::new("/nonexistent");
    let kinds = [
        (
            "lazy",
            SocketAddr::from((SERVICE_V4, LAZY)),
            agent.as_path(),
        ),
        ("no_agent", (Host::A.v4(), ELSEWHERE).into(), nobody),
    ];
    for (name, address, agent) in kinds {
        let server = exports::start(lab.a(), address.port(), agent)?;
        calls((&lab, address), (&server, CALLS), budget)?;
        put_calls(report, &format!("export.{name}"), (&server, CALLS), None)?;
    }
    let counting = exports::start_counting(lab.a(), LAZY, &agent)?;
    calls(
        (&lab, (SERVICE_V4, LAZY).into()),
        (&counting, CALLS),
        budget,
    )?;
    put_calls(report, "export.counted", (&counting, CALLS), None)?;
    drop(counting);
    streams((&lab, &cluster), budget, report)
}

fn service(port: u16) -> Service {
    Service {
        standby: "snapshot",
        ..Service::new(&format!("port{port}"), port)
    }
}

/// With a standby that gets what it is sent of the snapshots.
fn eager(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions::default())?;
    let service = |port| Service {
        extra: "snapshots = \"eager\"".to_owned(),
        ..service(port)
    };
    let mut cluster = cluster_of(&lab, vec![service(PORT), service(COMMITTING)])?;
    let serve = |host| exports::start(lab.node(host), PORT, &cluster.app_socket(host)?);
    let [server, _standby] = [serve(Host::A)?, serve(Host::B)?];
    let commit = |host| {
        let agent = cluster.app_socket(host)?;
        exports::start_committing(lab.node(host), COMMITTING, &agent)
    };
    let [committing, _standby_too] = [commit(Host::A)?, commit(Host::B)?];
    cluster.wait_in_sync(Host::A, START)?;
    let at = |port| (&lab, SocketAddr::from((SERVICE_V4, port)));
    calls(at(PORT), (&server, CALLS), budget)?;
    put_calls(report, "export.eager", (&server, CALLS), None)?;
    calls(at(COMMITTING), (&committing, COMMITS), budget)?;
    let pings = lab.ping(Host::A, Host::B, Host::B.v4().into(), 200)?;
    let there_and_back = pings.median().map(|median| median.as_secs_f64() * 1e6);
    put_calls(report, "commit", (&committing, COMMITS), there_and_back)?;
    put_unprotected((&cluster, &committing.log()), report)
}

/// Commits that no standby had, and what the owner has told of the time.
fn put_unprotected((cluster, log): (&Cluster<'_>, &str), report: &Report) -> Result<()> {
    let count = exports::unprotected(log);
    if count > 0 {
        report.progress(log.trim_end());
        for event in cluster.event_reports(Host::A)? {
            report.progress(&format!("{event:?}"));
        }
    }
    let measured = Measured {
        value: u32::try_from(count).ok().map(f64::from),
        control: None,
        runs: u32::try_from(exports::costs(log).len() * COMMITS).unwrap_or(u32::MAX),
    };
    report.put("migrate.commit.unprotected", measured)
}

/// One client after the other, each of which has so many bytes.
fn calls(
    (lab, at): (&Lab, SocketAddr),
    (server, each): (&Process, usize),
    budget: Budget,
) -> Result<()> {
    // Servers are known to their agents at once; nothing waits for it.
    thread::sleep(Duration::from_millis(100));
    for _ in budget.runs(10, 1, CLIENT) {
        let bytes = read_all(lab, at, None)?;
        ensure!(bytes == each as u64, "{bytes} came: {}", server.log());
    }
    Ok(())
}

fn put_calls(
    report: &Report,
    name: &str,
    (server, each): (&Process, usize),
    control: Option<f64>,
) -> Result<()> {
    let costs = exports::costs(&server.log());
    let put = |percentile: &str, of: fn(&Cost) -> Duration| {
        let mut samples = Samples::default();
        for cost in &costs {
            samples.push(of(cost).as_secs_f64() * 1e6);
        }
        let measured = Measured {
            value: samples.p50(),
            control,
            runs: u32::try_from(costs.len() * each).unwrap_or(u32::MAX),
        };
        report.put(&format!("migrate.{name}.{percentile}"), measured)
    };
    put("p50", |cost| cost.p50)?;
    put("p99", |cost| cost.p99)
}

/// A stream with an export after each chunk against one with none, and that against
/// another.
fn streams((lab, cluster): (&Lab, &Cluster<'_>), budget: Budget, report: &Report) -> Result<()> {
    let agent = cluster.app_socket(Host::A)?;
    let serve = |port, exports| {
        let manner = Manner {
            exports,
            ..Manner::default()
        };
        stream::start_with(lab.a(), port, &agent, manner)
    };
    let _servers = [serve(LAZY, true)?, serve(SILENT, false)?];
    thread::sleep(Duration::from_millis(100));
    let content = Content {
        seed: 4,
        length: budget.either(LONG, SHORT),
    };
    let rate = |port| -> Result<f64> {
        let since = Instant::now();
        let bytes = read_all(lab, (SERVICE_V4, port).into(), Some(content))?;
        ensure!(bytes == content.length, "{bytes} bytes came");
        Ok(bytes as f64 * 8.0 / since.elapsed().as_secs_f64() / 1e9)
    };
    let (mut absolute, mut ratio, mut control) = <(Samples, Samples, Samples)>::default();
    for _ in budget.runs(20, 2, ROUND) {
        let [none, with, again] = [rate(SILENT)?, rate(LAZY)?, rate(SILENT)?];
        absolute.push(with);
        ratio.push(with / f64::midpoint(none, again));
        control.push(again / none);
    }
    let measured = Measured {
        value: ratio.p50(),
        control: control.p50(),
        runs: ratio.runs(),
    };
    report.put("migrate.export.throughput.ratio", measured)?;
    report.put_p50("migrate.export.throughput.absolute", &absolute)
}

/// Reads until the end; how many bytes.
fn read_all(lab: &Lab, server: SocketAddr, wish: Option<Content>) -> Result<u64> {
    let connect = || TcpStream::connect_timeout(&server, PATIENCE);
    let mut stream = lab.client().enter(connect)?.context("connecting")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    if let Some(content) = wish {
        stream.write_all(Wish::Get(content).to_string().as_bytes())?;
    }
    let mut buffer = vec![0; 256 << 10];
    let mut bytes = 0;
    loop {
        match read_some(&mut stream, &mut buffer).context("reading")? {
            0 => return Ok(bytes),
            length => bytes += length as u64,
        }
    }
}
