//! What an idle agent costs: processor time of all its threads, while no client is there.
//!
//! Twice the same pair with a witness, all defaults: with a hot standby, and (the control)
//! with `standby = "none"`. The difference is what a standby costs: leases that are renewed
//! each 20 ms, looks for flows, canaries. What follows the surroundings, and what accepts
//! canaries, has threads of its own.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::budget::Budget;
use super::pair::PORT;
use super::report::{Measured, Report};
use crate::apps::server;
use crate::cluster::{Cluster, ClusterOptions, Fencing, Service};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};

const SPAN: Duration = Duration::from_secs(60);
const QUICK_SPAN: Duration = Duration::from_secs(10);

/// What a start leaves to be done.
const CALM: Duration = Duration::from_secs(5);

/// Both labs, with their agents.
const AROUND: Duration = Duration::from_secs(16);

const READY: Duration = Duration::from_secs(10);

/// Which look at the surroundings.
const WATCHES: [&str; 4] = ["gw-facts", "gw-devices", "gw-unlisted", "gw-canary"];

/// Processor time of the threads of one agent, by their names.
type Times = BTreeMap<String, Duration>;

/// Shares of one processor, in percent: of owner and standby.
type Shares = [BTreeMap<String, f64>; 2];

/// `idle.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let span = budget.span(SPAN, QUICK_SPAN);
    if !budget.has(2 * span + AROUND) {
        return Ok(());
    }
    let control = measure("none", span)?;
    let shadow = measure("shadow", span)?;
    let all = |shares: &Shares| shares.each_ref().map(|one| one.values().sum::<f64>());
    let (with, without) = (all(&shadow), all(&control));
    for (at, name) in ["idle.owner", "idle.standby"].into_iter().enumerate() {
        put(report, name, with[at], Some(without[at]))?;
    }
    let watches = |one: &BTreeMap<String, f64>| {
        let names = WATCHES.iter().filter_map(|name| one.get(*name));
        names.sum::<f64>()
    };
    let most = |values: [f64; 2]| values[0].max(values[1]);
    let watches = shadow.each_ref().map(watches);
    let standby = [0, 1].map(|at| (with[at] - without[at]).max(0.0));
    put(report, "idle.watches", most(watches), None)?;
    put(report, "idle.hot", most(standby), None)
}

fn put(report: &Report, name: &str, value: f64, control: Option<f64>) -> Result<()> {
    report.put(
        name,
        Measured {
            value: Some(value),
            control,
            runs: 1,
        },
    )
}

fn measure(standby: &'static str, span: Duration) -> Result<Shares> {
    let lab = Lab::new(LabOptions {
        witness: true,
        control_network: false,
        ..LabOptions::default()
    })?;
    let _servers = Host::SERVERS.map(|host| server::start(lab.node(host), PORT));
    let mut cluster = Cluster::start(
        &lab,
        ClusterOptions {
            fencing: Fencing::Lease,
            services: vec![Service {
                standby,
                ..Service::new("web", PORT)
            }],
            ..ClusterOptions::default()
        },
    )?;
    match standby {
        "none" => wait_owner(&cluster)?,
        _ => cluster.wait_in_sync(Host::A, READY)?,
    }
    thread::sleep(CALM);
    let mut shares = Host::SERVERS.map(|host| (host, Times::new()));
    for (host, before) in &mut shares {
        *before = times(&mut cluster, *host)?;
    }
    thread::sleep(span);
    let mut percent = [BTreeMap::new(), BTreeMap::new()];
    for ((host, before), percent) in shares.into_iter().zip(&mut percent) {
        for (name, after) in times(&mut cluster, host)? {
            let before = before.get(&name).copied().unwrap_or_default();
            let busy = after.saturating_sub(before).as_secs_f64();
            percent.insert(name, busy / span.as_secs_f64() * 100.0);
        }
    }
    Ok(percent)
}

fn wait_owner(cluster: &Cluster<'_>) -> Result<()> {
    let end = Instant::now() + READY;
    while Instant::now() < end {
        let status = cluster.status(Host::A);
        if status.is_ok_and(|it| it.services.iter().all(|service| service.role == "owner")) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("nobody owns the service")
}

/// `/proc/PID/task/TID/schedstat`: nanoseconds on a processor come first.
fn times(cluster: &mut Cluster<'_>, host: Host) -> Result<Times> {
    let agent = cluster.agent(host).context("the agent runs")?;
    let mut times = Times::new();
    let tasks = format!("/proc/{}/task", agent.pid());
    for task in fs::read_dir(&tasks).with_context(|| format!("reading {tasks}"))? {
        let task = task?.path();
        // A thread may have ended since.
        let (Ok(name), Ok(stat)) = (
            fs::read_to_string(task.join("comm")),
            fs::read_to_string(task.join("schedstat")),
        ) else {
            continue;
        };
        let busy = stat.split(' ').next().and_then(|text| text.parse().ok());
        let busy = Duration::from_nanos(busy.context("schedstat begins with a number")?);
        *times.entry(name.trim().to_owned()).or_default() += busy;
    }
    Ok(times)
}
