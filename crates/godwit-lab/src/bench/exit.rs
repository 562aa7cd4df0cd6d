//! What the end of a process with very many descriptors costs on an owner: the walks over
//! its files, when it takes the signal and when it ends (`kernel.bpf_stats_enabled`).

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;

use super::budget::Budget;
use super::pair::PORT;
use super::report::{Measured, Report};
use crate::apps::holder::{self, Kind};
use crate::apps::{command, server};
use crate::cluster::{Cluster, ClusterOptions, Fencing};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};

const COUNT: u64 = 500_000;

/// The control.
const FEW: u64 = 10;

const RUNS: u32 = 5;
const QUICK_RUNS: u32 = 2;

/// Lab, agents, and what opening takes.
const AROUND: Duration = Duration::from_secs(60);

const READY: Duration = Duration::from_secs(60);

/// `BPF_PROG_TYPE_TRACEPOINT`, `_RAW_TRACEPOINT`, `_TRACING`: what sees processes end.
const TRACING: [&str; 3] = ["5", "17", "26"];

const SETTING: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The kernel counts what programs need, until this is dropped.
struct Stats(String);

impl Stats {
    fn on() -> Result<Self> {
        let before = fs::read_to_string(SETTING).context("reading bpf_stats_enabled")?;
        fs::write(SETTING, "1").context("setting bpf_stats_enabled")?;
        Ok(Self(before))
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        // Nothing is wrong with a kernel that counts.
        let _ = fs::write(SETTING, self.0.trim());
    }
}

/// `exit.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    if !budget.has(AROUND) {
        return Ok(());
    }
    let lab = Lab::new(LabOptions {
        witness: true,
        control_network: false,
        ..LabOptions::default()
    })?;
    let _servers = Host::SERVERS.map(|host| server::start(lab.node(host), PORT));
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(&lab, options)?;
    cluster.wait_in_sync(Host::A, READY)?;
    let _stats = Stats::on()?;
    let runs = budget.either(RUNS, QUICK_RUNS);
    for (name, kind) in [("exit.files", Kind::Files), ("exit.sockets", Kind::Sockets)] {
        let (mut most, mut least) = (0.0_f64, 0.0_f64);
        for _ in 0..runs {
            least = least.max(end(&lab, &mut cluster, kind, FEW)?);
            most = most.max(end(&lab, &mut cluster, kind, COUNT)?);
        }
        report.put(
            name,
            Measured {
                value: Some(most),
                control: Some(least),
                runs,
            },
        )?;
    }
    Ok(())
}

/// Milliseconds of the agent's programs for the end of one process.
fn end(lab: &Lab, cluster: &mut Cluster<'_>, kind: Kind, count: u64) -> Result<f64> {
    let count = count.to_string();
    let command = command::program(&[holder::VERB, kind.word(), &count])?;
    let mut process = lab.node(Host::A).spawn("holder", command)?;
    let until = Instant::now() + READY;
    while !process.log().contains(holder::READY) {
        if Instant::now() > until || !process.is_running() {
            bail!("{count} descriptors can't be opened: {}", process.log());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let agent = cluster.agent(Host::A).context("the agent runs")?.pid();
    let before = run_time(agent.as_raw())?;
    process.signal(Signal::SIGKILL)?;
    process.wait(READY)?;
    let after = run_time(agent.as_raw())?;
    Ok(after.saturating_sub(before).as_secs_f64() * 1e3)
}

/// Of all programs that see processes end: `/proc/PID/fdinfo` of their agent.
fn run_time(agent: i32) -> Result<Duration> {
    let folder = format!("/proc/{agent}/fdinfo");
    let mut sum = 0;
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))? {
        // A descriptor may be closed since.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(":\t"));
            lines.find(|(name, _)| *name == key).map(|(_, value)| value)
        };
        if value("prog_type").is_some_and(|it| TRACING.contains(&it)) {
            let ns: u64 = value("run_time_ns")
                .context("fdinfo of a program")?
                .parse()?;
            sum += ns;
        }
    }
    Ok(Duration::from_nanos(sum))
}
