//! Ten thousand moves of streams of 10 MB that are busy in both directions, byte for
//! byte. A stream goes to and fro until its 10 MB have come; then the next one.
//!
//! Between two moves something has to come: a segment that is lost right behind a move
//! is sent again after a time-out, and a connection that is moved more often than that
//! never gets so far.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::budget::Budget;
use super::ferry::{Ferry, Way};
use super::migrate::{cluster, first_move, order, other};
use super::pair::{CONGESTION_CONTROL, PORT};
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stream::PATIENCE;
use crate::apps::roam::{self, CHUNK, Manner};
use crate::cluster::Cluster;
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions};
use crate::links::Shape;
use crate::process::Process;

/// Bytes from the server in one stream.
const LENGTH: u64 = 10 << 20;

/// Rate of the client's link, megabits per second: a stream takes half a second.
const MBIT: u64 = 200;

/// Bytes that come between two moves at least.
const BETWEEN: u64 = 64 << 10;

/// Moves of a full benchmark, and of a quick one.
const MOVES: u32 = 10_000;
const FEW: u32 = 100;

/// What is left of a quick benchmark when it begins no more streams.
const STREAM: Duration = Duration::from_secs(2);

/// `migrate.many.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions::default())?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let cluster = cluster(&lab)?;
    let manner = Manner {
        pace: Duration::ZERO,
        congestion: Some(CONGESTION_CONTROL),
        ..Manner::default()
    };
    let serve = |host| roam::start_with(lab.node(host), PORT, &cluster.app_socket(host)?, manner);
    let servers = [serve(Host::A)?, serve(Host::B)?];
    let wanted = budget.either(MOVES, FEW);
    let mut seen = Seen::default();
    while seen.freeze.runs() < wanted && budget.has(STREAM) {
        one((&lab, &cluster), &servers, &mut seen, report)?;
        if seen.streams.is_multiple_of(20) {
            let done = seen.freeze.runs();
            report.progress(&format!("{done} moves of {} streams", seen.streams));
        }
    }
    let known = |value: u32| Measured {
        value: (seen.streams > 0).then_some(f64::from(value)),
        control: None,
        runs: seen.streams,
    };
    report.put("migrate.many.moves", known(seen.freeze.runs()))?;
    report.put("migrate.many.stayed", known(seen.stayed))?;
    report.put("migrate.many.broken", known(seen.broken))?;
    report.put_percentiles("migrate.many.freeze", &seen.freeze)
}

/// What came of all.
#[derive(Debug, Default)]
struct Seen {
    freeze: Samples,
    stayed: u32,
    streams: u32,
    broken: u32,
}

fn one(
    (lab, cluster): (&Lab, &Cluster<'_>),
    servers: &[Process; 2],
    seen: &mut Seen,
    report: &Report,
) -> Result<()> {
    let service = SocketAddr::from((SERVICE_V4, PORT));
    let ferry = Ferry::start(lab, service, Way::Both, (CHUNK, Duration::ZERO))?;
    let client = ferry.client.to_string();
    // Before that the agents may not have found each other.
    let begun = if seen.streams == 0 {
        first_move(cluster, &ferry)?
    } else {
        Host::A
    };
    let (mut at, mut last) = (begun, (0, Instant::now()));
    while ferry.bytes() < LENGTH && ferry.goes_on() && last.1.elapsed() < PATIENCE {
        if ferry.bytes() < last.0 + BETWEEN {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        last = (ferry.bytes(), Instant::now());
        match order(cluster, &ferry, at) {
            Ok(Ok((_, silent_ms))) => {
                seen.freeze.push(silent_ms);
                at = other(at);
            }
            Ok(Err(reason)) => {
                seen.stayed += 1;
                report.progress(&format!("it stays on {at}: {reason}"));
                thread::sleep(Duration::from_millis(20));
            }
            // The agents do not know it yet.
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
    seen.streams += 1;
    if let Err(error) = ferry.end() {
        seen.broken += 1;
        report.progress(&format!("stream {}, {client}: {error:#}", seen.streams));
        for (server, host) in servers.iter().zip(Host::SERVERS) {
            let log = server.log();
            let said = log.lines().filter(|line| line.contains(&client));
            let last = said.collect::<Vec<_>>();
            let last = last.iter().rev().take(3).rev();
            last.for_each(|line| report.progress(&format!("{host}: {line}")));
        }
    }
    Ok(())
}
