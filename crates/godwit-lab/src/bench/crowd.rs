//! Ten thousand idle connections and a hundred busy ones lose their owner.
//!
//! Every idle one must answer afterwards and every busy one end with each byte
//! right. The *extra* stall is that of the busy connection that waited longest in the
//! second after the failure, less what the new owner needed to notice; its control is
//! the longest wait later on, when a hundred downloads fight for one link. Memory is what both agents and their
//! maps grew by while the connections came, divided by their number.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stream::{Stream, Work, connect};
use crate::apps::client::{Client, Rounds};
use crate::cluster::{ClusterOptions, FlowReport};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::links::{Death, Shape};
use crate::meter::Meter;

const IDLE: u32 = 10_000;

const BUSY: u32 = 100;

/// Connections where only their memory is looked at.
const FEW: u32 = 1_000;

/// The client's link: its queue holds the first ten segments of all busy ones,
/// so that what they wait for is the takeover and not each other's loss.
const LINK: Shape = Shape {
    rate_bits: 1_000_000_000,
    queue: Duration::from_millis(40),
};

/// Busy connections that begin at once: their handshakes all compete for the
/// two CPUs of the lab, and a flow has 30 ms to find its twin.
const BATCH: u32 = 10;

/// Bytes of each busy connection: ten seconds of all together, as they do not
/// share the link evenly and none may end before the failure.
const BUSY_BYTES: u64 = 12_000_000;

/// How long the busy ones run before the failure.
const BEFORE: Duration = Duration::from_millis(200);

/// Whoever waits because of the failure has begun to by then.
const AFTER: Duration = Duration::from_secs(1);

/// A client that was silent for two seconds counts as idle at a takeover.
const REST: Duration = Duration::from_millis(2200);

const PATIENCE: Duration = Duration::from_secs(10);

/// What one run takes; measured, rounded up.
const RUN: Duration = Duration::from_secs(25);

/// What it takes to look at the memory of a few; measured, rounded up.
const FEW_RUN: Duration = Duration::from_secs(5);

/// Descriptors that client and server need each.
const DESCRIPTORS: u64 = 12_000;

/// What runs gave.
#[derive(Clone, Debug, Default)]
struct Seen {
    protected: Samples,
    survivors: Samples,
    extra: Samples,
    later: Samples,
    memory: [Samples; 2],
}

/// `crowd.*` and `memory.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let mut seen = Seen::default();
    if !budget.has(FEW_RUN) {
        return Ok(());
    }
    allow_descriptors()?;
    let lab = Lab::new(LabOptions::default())?;
    lab.shape(Host::Client, Some(LINK))?;
    // A run takes a third of the client's ports, and TIME-WAIT keeps them.
    lab.client()
        .netns()
        .sysctl("ipv4.tcp_max_tw_buckets", "0")?;
    let mut pair = Pair::start(&lab, ClusterOptions::unfenced())?;
    for run in budget.runs(20, 1, RUN) {
        if run > 0 {
            pair.reboot_standby()?;
        }
        one_run(&mut pair, &mut seen, report)?;
    }
    if seen.survivors.runs() == 0 {
        // Too little time for a failure, but enough to see what a flow takes.
        open_idle(&mut pair, FEW, &mut seen)?;
    }
    report.put_p50("crowd.protected", &seen.protected)?;
    report.put_p50("crowd.survivors", &seen.survivors)?;
    let extra = Measured {
        value: seen.extra.p50(),
        control: seen.later.p50(),
        runs: seen.extra.runs(),
    };
    report.put("crowd.stall.extra", extra)?;
    let [owner, standby] = &seen.memory;
    report.put_p50("memory.flow.owner", owner)?;
    report.put_p50("memory.flow.standby", standby)
}

fn one_run(pair: &mut Pair<'_>, seen: &mut Seen, report: &Report) -> Result<()> {
    let lab = pair.lab;
    let idle = open_idle(pair, IDLE, seen)?;
    // Only now are they idle for the new owner, which probes the others.
    thread::sleep(REST);
    let mut busy = Vec::new();
    for seed in 0..BUSY {
        busy.push(Stream::start(lab, Work::Download(BUSY_BYTES), seed.into())?);
        if seed % BATCH == BATCH - 1 {
            busy.iter().try_for_each(Stream::wait_begun)?;
        }
    }
    let protected = pair.wait_protected(u64::from(IDLE + BUSY))?;
    let protected = u32::try_from(protected).unwrap_or(u32::MAX);
    seen.protected.push(f64::from(protected));
    if protected < IDLE + BUSY {
        tell_unprotected(pair, report)?;
    }
    thread::sleep(BEFORE);
    let crash = pair.crash_owner(Death::Power)?;
    let (mut stalls, mut later) = (Samples::default(), Samples::default());
    for stream in busy {
        match stream.finish_apart(crash.from, AFTER) {
            Ok(waits) => {
                stalls.push_ms(waits[0]);
                later.push_ms(waits[1]);
            }
            Err(error) => report.progress(&format!("busy: {error:#}")),
        }
    }
    let detection = pair.last_takeover()?.detection_ms;
    let alive = idle.into_iter().map(answers).filter(Result::is_ok).count();
    let alive = u32::try_from(alive)?;
    let survivors = alive + stalls.runs();
    let longest = stalls.max().context("no busy connection survived")?;
    let extra = longest - detection;
    let later = later.max().unwrap_or_default();
    report.progress(&format!(
        "{protected} protected, {survivors} survived, extra stall {extra:.1} ms, \
         later {later:.1} ms"
    ));
    seen.survivors.push(f64::from(survivors));
    seen.extra.push(extra);
    seen.later.push(later);
    Ok(())
}

/// Names the connections that the failure will cost, and why.
fn tell_unprotected(pair: &Pair<'_>, report: &Report) -> Result<()> {
    let flows = pair.cluster.flows(pair.owner())?.flows;
    let over = |flow: &&FlowReport| flow.state == "ended";
    for flow in flows.iter().filter(|flow| !flow.protected && !over(flow)) {
        report.progress(&format!("{}: {:?}", flow.flow, flow.reason));
    }
    Ok(())
}

/// Opens `count` connections, lets each exchange something once, and records
/// what they take.
fn open_idle(pair: &mut Pair<'_>, count: u32, seen: &mut Seen) -> Result<Vec<Client>> {
    let hosts = [pair.owner(), pair.standby()];
    let before = memory(pair, hosts)?;
    let idle = pair.lab.client().enter(|| {
        let clients = (0..count).map(|_| exchange_once());
        clients.collect::<Result<Vec<_>>>()
    })??;
    pair.wait_protected(u64::from(count))?;
    let after = memory(pair, hosts)?;
    for ((samples, before), after) in seen.memory.iter_mut().zip(before).zip(after) {
        samples.push((after - before) / f64::from(count));
    }
    Ok(idle)
}

fn exchange_once() -> Result<Client> {
    let once = Rounds {
        count: 1,
        request: 150,
        reply: None,
        pause: Duration::ZERO,
    };
    let mut client = connect(PATIENCE)?;
    client.exchange(once, &Meter::default())?;
    Ok(client)
}

/// Whether an idle connection still gives back what it gets.
fn answers(client: Client) -> Result<()> {
    let mut stream: &TcpStream = client.stream();
    let question = *b"still there?";
    let mut answer = [0; 12];
    stream.write_all(&question).context("asking")?;
    stream
        .read_exact(&mut answer)
        .context("waiting for an answer")?;
    ensure!(answer == question, "a byte is wrong");
    Ok(())
}

/// Bytes of the agents and of the maps that they hold.
fn memory(pair: &mut Pair<'_>, hosts: [Host; 2]) -> Result<[f64; 2]> {
    let mut bytes = [0.0; 2];
    for (bytes, host) in bytes.iter_mut().zip(hosts) {
        let agent = pair.cluster.agent(host).context("both agents run")?;
        *bytes = resident(agent.pid())? + maps(agent.pid())?;
    }
    Ok(bytes)
}

/// `VmRSS` of a process, proc(5).
fn resident(process: Pid) -> Result<f64> {
    let path = Path::new("/proc").join(process.to_string()).join("status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let kib = field(&text, "VmRSS:").context("no VmRSS")?;
    Ok(kib * 1024.0)
}

/// Memory of all BPF maps that a process holds, as the kernel counts it.
fn maps(process: Pid) -> Result<f64> {
    let folder = Path::new("/proc").join(process.to_string()).join("fdinfo");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut bytes = 0.0;
    let mut counted = Vec::new();
    for entry in entries {
        let path = entry.context("listing descriptors")?.path();
        // A descriptor may be closed meanwhile.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let map = field(&text, "map_id:").zip(field(&text, "memlock:"));
        if let Some((id, memory)) = map.filter(|(id, _)| !counted.contains(id)) {
            counted.push(id);
            bytes += memory;
        }
    }
    ensure!(!counted.is_empty(), "the agent holds no map");
    Ok(bytes)
}

fn field(text: &str, name: &str) -> Option<f64> {
    let mut rows = text.lines().filter_map(|line| line.strip_prefix(name));
    rows.next()?.split_whitespace().next()?.parse().ok()
}

/// Raises this process's limit, which its servers inherit.
fn allow_descriptors() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("asking for a limit")?;
    ensure!(
        hard >= DESCRIPTORS,
        "`ulimit -Hn` is {hard}, and {DESCRIPTORS} are needed"
    );
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raising a limit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_the_first_word_after_its_name() {
        let text = "map_type:\t1\nmemlock:\t4096\nVmRSS:\t  12 kB\n";
        assert_eq!(field(text, "memlock:"), Some(4096.0));
        assert_eq!(field(text, "VmRSS:"), Some(12.0));
        assert_eq!(field(text, "map_id:"), None);
    }
}
