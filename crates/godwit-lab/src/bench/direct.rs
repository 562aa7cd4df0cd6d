//! A director: what its frames cost, what clients of three nginx pay for it, and how
//! soon it gives up a server that is dark.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::budget::Budget;
use super::load;
use super::report::{Measured, Report};
use super::stats::Samples;
use crate::apps::nginx::Nginx;
use crate::cluster::{self, Cluster, ClusterOptions, EventReport, Service};
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions};

const BACKENDS: [Host; 3] = [Host::A, Host::B, Host::C];
const PORT: u16 = 80;

/// How long agents and director may take until all is as it should be.
const START: Duration = Duration::from_secs(20);

/// What the kernel may take for a million frames, so many times.
const FRAMES: Duration = Duration::from_secs(60);

/// One load by wrk; and what a failure and a return take, rounded up.
const LOAD: Duration = Duration::from_secs(3);
const DARK: Duration = Duration::from_millis(1500);

/// `godwit director-load`.
#[derive(Debug, Deserialize)]
struct FrameCosts {
    segments: Vec<u64>,
    syns: Vec<u64>,
    segments_mixed: Vec<u64>,
    syns_mixed: Vec<u64>,
    entries: u64,
}

/// `director.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    load::DIRECTOR.sweep()?;
    let lab = Lab::new(LabOptions {
        third: true,
        director: true,
        ..LabOptions::default()
    })?;
    if report.wants_figure("director.frames") {
        frames(&lab, budget, report)?;
    }
    let cluster = Cluster::start(&lab, options())?;
    let _servers = BACKENDS.map(|host| serve(&lab, host));
    wait_takers(&cluster, BACKENDS.len())?;
    requests(&lab, budget, report)?;
    dark(&lab, &cluster, budget, report)
}

fn options() -> ClusterOptions {
    ClusterOptions {
        services: vec![Service {
            standby: "none",
            others: &[Host::C],
            extra: "front = \"director\"".into(),
            ..Service::new("web", PORT)
        }],
        // XDP_TX on a veth needs a peer that polls, and the switch's end does not.
        sections: "[director]\nseed = \"0123456789abcdef\"\nhook = \"tcx\"\n".into(),
        more: &[Host::C, Host::Director],
        ..ClusterOptions::unfenced()
    }
}

fn serve(lab: &Lab, host: Host) -> Result<Nginx> {
    let node = lab.node(host);
    let root = node.folder()?.join("root");
    fs::create_dir_all(&root).context("making a folder")?;
    fs::write(root.join("1k"), [b'x'; 1 << 10]).context("writing a file")?;
    Nginx::start(node, &root, PORT)
}

/// Until new connections go to so many servers.
pub(super) fn wait_takers(cluster: &Cluster<'_>, count: usize) -> Result<()> {
    let end = Instant::now() + START;
    loop {
        let status = cluster.status(Host::Director);
        let director = status.ok().and_then(|status| status.director);
        if director.is_some_and(|it| it.services.iter().all(|it| it.slots.len() == count)) {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "the director does not find {count} servers"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// The kernel runs the program, a million flows in turn.
fn frames(lab: &Lab, budget: Budget, report: &Report) -> Result<()> {
    let rounds = budget.either(10, 3);
    let mut command = Command::new(cluster::binary()?);
    command.args(load::DIRECTOR.on(lab, Host::Director)?);
    command.args(["--rounds", &rounds.to_string()]);
    let output = lab.node(Host::Director).run(command, FRAMES)?;
    ensure!(output.status.success(), "{}", output.stderr.trim());
    let costs: FrameCosts = serde_json::from_str(&output.stdout).context("reading costs")?;
    for (name, costs) in [
        ("director.frames.segments", costs.segments),
        ("director.frames.syns", costs.syns),
        ("director.frames.mixed.segments", costs.segments_mixed),
        ("director.frames.mixed.syns", costs.syns_mixed),
    ] {
        let mut rates = Samples::default();
        for nanoseconds in costs.into_iter().filter(|cost| *cost > 0) {
            let cost = u32::try_from(nanoseconds).unwrap_or(u32::MAX);
            rates.push(1e3 / f64::from(cost));
        }
        report.put_p50(name, &rates)?;
    }
    let measured = Measured {
        value: Some(f64::from(u32::try_from(costs.entries).unwrap_or(u32::MAX))),
        control: None,
        runs: rounds,
    };
    report.put("director.frames.mixed.entries", measured)
}

/// Small replies, by way of the director and, as the control, straight from one server's
/// own address, where neither director nor agent sees them. All share the processors.
fn requests(lab: &Lab, budget: Budget, report: &Report) -> Result<()> {
    for (name, header) in [
        ("director.requests.kept", "Connection: keep-alive"),
        ("director.requests.new", "Connection: close"),
    ] {
        if !report.wants_figure(name) {
            continue;
        }
        let (mut directed, mut plain) = (Samples::default(), Samples::default());
        for _ in budget.runs(10, 1, 2 * LOAD) {
            plain.push(wrk(lab, &Host::A.v4().to_string(), header)?);
            directed.push(wrk(lab, &SERVICE_V4.to_string(), header)?);
        }
        let measured = Measured {
            value: directed.p50(),
            control: plain.p50(),
            runs: directed.runs(),
        };
        report.put(name, measured)?;
    }
    Ok(())
}

/// Requests per second.
fn wrk(lab: &Lab, address: &str, header: &str) -> Result<f64> {
    let mut wrk = Command::new("wrk");
    wrk.args(["-t1", "-c32", "-H", header]);
    wrk.arg(format!("-d{}s", LOAD.as_secs()));
    wrk.arg(format!("http://{address}:{PORT}/1k"));
    let output = lab.client().run(wrk, LOAD * 5)?;
    for wrong in ["Socket errors", "Non-2xx"] {
        ensure!(!output.stdout.contains(wrong), "{}", output.stdout);
    }
    let rate = output.stdout.lines();
    let mut rate = rate.filter_map(|line| line.strip_prefix("Requests/sec:"));
    let rate = rate.next().context("wrk says no rate")?;
    rate.trim().parse().context("reading wrk's rate")
}

/// From when a server is dark to when no new connection goes there.
fn dark(lab: &Lab, cluster: &Cluster<'_>, budget: Budget, report: &Report) -> Result<()> {
    if !report.wants_figure("director.dark") {
        return Ok(());
    }
    let mut noticed = Samples::default();
    for _ in budget.runs(40, 3, DARK) {
        let known = given_up(cluster)?.len();
        let moment = SystemTime::now();
        let networks = lab.networks_of(Host::C);
        lab.cut(Host::C, networks)?;
        noticed.push_ms(wait_given_up(cluster, known, moment)?);
        lab.heal(Host::C, networks)?;
        wait_takers(cluster, BACKENDS.len())?;
    }
    report.put_p50("director.dark.p50", &noticed)
}

/// When the director gave back-ends up.
fn given_up(cluster: &Cluster<'_>) -> Result<Vec<EventReport>> {
    let mut events = cluster.event_reports(Host::Director)?;
    events.retain(|event| event.event == "backend_silent");
    Ok(events)
}

fn wait_given_up(cluster: &Cluster<'_>, known: usize, moment: SystemTime) -> Result<Duration> {
    let end = Instant::now() + START;
    while Instant::now() < end {
        if let Some(event) = given_up(cluster)?.get(known) {
            let at = event.at(moment).context("an event has a time")?;
            return at.duration_since(moment).context("it was before that");
        }
        thread::sleep(Duration::from_millis(5));
    }
    bail!("the director does not give it up")
}
