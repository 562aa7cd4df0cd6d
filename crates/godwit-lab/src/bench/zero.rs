//! No delay and no shaping: what the data path itself costs.
//!
//! Client, both servers and both agents share two CPUs, so the standby's work
//! is paid here too; in a real cluster another machine does it.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::{SysconfVar, sysconf};

use super::arms::{Arm, Arms, Compared, Labs};
use super::budget::Budget;
use super::pair::{need_two_cpus, pin, pin_current_thread};
use super::report::Report;
use super::stats::Samples;
use super::stream::connect;
use crate::apps::client::Rounds;
use crate::host::{Host, Network};
use crate::lab::Lab;
use crate::meter::Meter;
use crate::process::Process;

const PATIENCE: Duration = Duration::from_secs(10);

/// Exchanges of one run of the echo figure.
const EXCHANGES: u32 = 1000;

/// Bytes of one run of a throughput figure.
const BULK: u64 = 400_000_000;

/// The CPU of everything but the owner.
const OTHER_CPU: usize = 0;

/// The owner's CPU.
const OWNER_CPU: usize = 1;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

/// `echo.added.*`, `throughput.*` and `owner.cpu.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let labs = Labs::new(|_| Ok(()))?;
    let mut arms = labs.start()?;
    if report.wants_figure("throughput") {
        throughput(&arms, budget, report)?;
    }
    need_two_cpus()?;
    pin_all(&mut arms)?;
    if report.wants_figure("echo") {
        let _awake = keep_awake(&labs.plain)?;
        let mut added = Compared::default();
        for _ in budget.runs(40, 2, Duration::from_secs(1)) {
            arms.round(Arm::ROUND, &mut added, exchange_us)?;
        }
        report.put("echo.added.p50", added.difference())?;
    }
    if report.wants_figure("owner") {
        owner_cpu(&arms, budget, report)?;
    }
    Ok(())
}

/// Gigabits per second each way, and their ratios.
fn throughput(arms: &Arms<'_>, budget: Budget, report: &Report) -> Result<()> {
    for way in [Way::Down, Way::Up] {
        let mut rates = Compared::default();
        for _ in budget.runs(20, 1, Duration::from_secs(2)) {
            arms.round(
                budget.either(Arm::ROUND, Arm::SHORT_ROUND),
                &mut rates,
                |lab| Ok(gigabits(transfer(lab, way)?)),
            )?;
        }
        let name = |what: &str| format!("throughput.{}.{what}", way.name());
        report.put(&name("ratio"), rates.ratio())?;
        report.put(&name("absolute"), rates.absolute())?;
    }
    Ok(())
}

/// CPU time of the owner for the same bytes: Godwit / plain TCP.
///
/// The owner has a CPU of its own; what else goes on there is little. Its
/// received frames are handled there too (RPS), everything else elsewhere.
fn owner_cpu(arms: &Arms<'_>, budget: Budget, report: &Report) -> Result<()> {
    for arm in [Arm::Plain, Arm::Godwit] {
        steer(arms.lab(arm))?;
    }
    for way in [Way::Down, Way::Up] {
        let mut busy = Compared::default();
        for _ in budget.runs(20, 1, Duration::from_secs(3)) {
            arms.round(
                budget.either(Arm::ROUND, Arm::SHORT_ROUND),
                &mut busy,
                |lab| {
                    let before = busy_seconds(OWNER_CPU)?;
                    transfer(lab, way)?;
                    Ok(busy_seconds(OWNER_CPU)? - before)
                },
            )?;
        }
        report.put(&format!("owner.cpu.{}", way.name()), busy.ratio())?;
    }
    Ok(())
}

/// The middle time of many exchanges, in microseconds.
fn exchange_us(lab: &Lab) -> Result<f64> {
    let rounds = Rounds {
        count: EXCHANGES,
        request: 150,
        reply: None,
        pause: Duration::ZERO,
    };
    let times = lab.client().enter(|| {
        pin_current_thread(OTHER_CPU)?;
        connect(PATIENCE)?.exchange(rounds, &Meter::default())
    })??;
    let mut samples = Samples::default();
    for time in times {
        samples.push(time.as_secs_f64() * 1e6);
    }
    samples.p50().context("there were exchanges")
}

fn transfer(lab: &Lab, way: Way) -> Result<Duration> {
    lab.client().enter(|| {
        let mut client = connect(PATIENCE)?;
        let start = Instant::now();
        match way {
            Way::Down => client.drain(BULK),
            Way::Up => client.pour(BULK),
        }?;
        Ok(start.elapsed())
    })?
}

fn gigabits(time: Duration) -> f64 {
    let bits = f64::from(u32::try_from(BULK).unwrap_or(u32::MAX)) * 8.0;
    bits / time.as_secs_f64() / 1e9
}

/// Programs that spin on both CPUs when nobody else wants them (SCHED_IDLE).
///
/// A CPU that goes idle wakes up late, in a virtual machine above all; the
/// standby's work keeps it awake, and Godwit would look faster than plain TCP.
fn keep_awake(lab: &Lab) -> Result<[Process; 2]> {
    let spin = |cpu: usize| {
        let mut command = Command::new("chrt");
        command.args(["--idle", "0", "taskset", "-c", &cpu.to_string()]);
        command.args(["sh", "-c", "while :; do :; done"]);
        lab.client().spawn("spin", command)
    };
    Ok([spin(OTHER_CPU)?, spin(OWNER_CPU)?])
}

/// The owner's processes on one CPU, everything else on the other.
fn pin_all(arms: &mut Arms<'_>) -> Result<()> {
    pin(arms.plain_server.pid(), OWNER_CPU)?;
    for (host, cpu) in [(Host::A, OWNER_CPU), (Host::B, OTHER_CPU)] {
        pin(arms.pair.server(host)?.pid(), cpu)?;
        let agent = arms.pair.cluster.agent(host);
        pin(agent.context("both agents run")?.pid(), cpu)?;
    }
    Ok(())
}

/// Lets the owner's CPU handle what the owner receives, and the other CPU all
/// else: receive packet steering, by interface.
fn steer(lab: &Lab) -> Result<()> {
    let data = Network::Data;
    let host = |host: Host| (lab.node(host).netns(), data.interface().to_owned());
    let port = |host: Host| (&lab.switch, data.port(host));
    let others = [
        host(Host::Client),
        host(Host::B),
        port(Host::Client),
        port(Host::A),
        port(Host::B),
    ];
    let others = others.into_iter().map(|place| (place, OTHER_CPU));
    for ((netns, interface), cpu) in others.chain([(host(Host::A), OWNER_CPU)]) {
        let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        let line = format!("echo {:x} > {file}", 1_u64 << cpu);
        // `ip netns exec` shows the namespace's own /sys.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns.name(), "sh", "-c", &line]);
        let status = command.status().context("starting `ip netns exec`")?;
        ensure!(status.success(), "`{line}` failed in {}", netns.name());
    }
    Ok(())
}

/// Time that a CPU was not idle since boot: `/proc/stat`, proc(5).
fn busy_seconds(cpu: usize) -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let prefix = format!("cpu{cpu} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    let line = line.with_context(|| format!("/proc/stat has no CPU {cpu}"))?;
    let ticks = line.split_whitespace().map(str::parse::<u32>);
    let ticks = ticks
        .collect::<Result<Vec<_>, _>>()
        .context("reading /proc/stat")?;
    // user, nice, system, idle, iowait, irq, softirq
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|&at| ticks.get(at));
    let hertz = sysconf(SysconfVar::CLK_TCK).context("asking for the clock tick")?;
    let hertz = hertz
        .and_then(|hertz| u32::try_from(hertz).ok())
        .unwrap_or(100);
    Ok(busy.map(|&ticks| f64::from(ticks)).sum::<f64>() / f64::from(hertz))
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Down => "download",
            Self::Up => "upload",
        }
    }
}
