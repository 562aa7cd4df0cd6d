//! Nothing fails, and the machine is busy: whether a node is taken for dead, or
//! falls silent, although it is well.
//!
//! Eight processes spin; a connection exchanges a little. The *hiccups* are the
//! control: a thread of the same real-time priority as the agents', which does
//! nothing but sleep for a millisecond, woke up ten or more too late. A machine
//! whose host takes the CPU away shows there, and a failure detector is then
//! right to see a failure.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stream::{Stream, Work};
use crate::apps::command;
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::process::Process;

/// Processes that want a CPU all the time.
const SPINNERS: u32 = 8;

/// Priority of the agents' threads under SCHED_FIFO.
const PRIORITY: &str = "10";

const SPAN: Duration = Duration::from_secs(3600);
const QUICK_SPAN: Duration = Duration::from_secs(5);

/// Lab and agents, before and after.
const AROUND: Duration = Duration::from_secs(3);

/// An agent remembers some thousand events: with so many, some may be forgotten.
const TOO_MANY: usize = 1000;

/// Exchanges of one connection; the next one follows.
const EXCHANGES: u32 = 100;

/// `calm.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let span = budget.either(SPAN, QUICK_SPAN);
    if !budget.has(span + AROUND) {
        return Ok(());
    }
    let lab = Lab::new(LabOptions {
        witness: true,
        ..LabOptions::default()
    })?;
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let pair = Pair::start(&lab, options)?;
    let spinners = (0..SPINNERS).map(|_| spin(&lab));
    let spinners = spinners.collect::<Result<Vec<_>>>()?;
    let before = events(&pair)?;
    let mut hiccups = watch(&lab, span)?;
    let end = Instant::now() + span;
    let mut seed = 0;
    while Instant::now() < end {
        let stream = Stream::start(&lab, Work::Echo(EXCHANGES), seed)?;
        stream.finish(Instant::now())?;
        seed += 1;
    }
    hiccups.wait(AROUND)?;
    let after = events(&pair)?;
    drop(spinners);
    put(report, span, &hiccups.log(), [before, after])
}

fn put(report: &Report, span: Duration, log: &str, events: [Counts; 2]) -> Result<()> {
    let (count, longest) = parse(log).with_context(|| format!("no hiccup log: {log:?}"))?;
    let [before, after] = events;
    let one = |value: f64| Measured {
        value: Some(value),
        control: None,
        runs: 1,
    };
    report.put("calm.minutes", one(span.as_secs_f64() / 60.0))?;
    report.put("calm.load", one(f64::from(SPINNERS)))?;
    let names = ["calm.takeovers", "calm.fences", "calm.standbys_lost"];
    for ((name, before), after) in names.into_iter().zip(before).zip(after) {
        report.put(name, one(f64::from(after.saturating_sub(before))))?;
    }
    report.put("calm.hiccups", one(count))?;
    report.put("calm.longest_hiccup", one(longest))
}

/// Takeovers, lapsed leases, lost standbys.
type Counts = [u32; 3];

fn events(pair: &Pair<'_>) -> Result<Counts> {
    let mut counts = Counts::default();
    for host in Host::SERVERS {
        let events = pair.cluster.events(host)?;
        let count = events.len();
        ensure!(
            count < TOO_MANY,
            "{count} events of a calm hour on {host:?}"
        );
        let names = ["takeover_started", "lease_lapsed", "standby_left"];
        for (count, name) in counts.iter_mut().zip(names) {
            let found = events.iter().filter(|event| *event == name).count();
            *count += u32::try_from(found).unwrap_or(u32::MAX);
        }
    }
    Ok(counts)
}

fn spin(lab: &Lab) -> Result<Process> {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    lab.client().spawn("spin", command)
}

/// The control, as a process under real-time priority.
fn watch(lab: &Lab, span: Duration) -> Result<Process> {
    let program = command::program(&["hiccup", &span.as_millis().to_string()])?;
    let mut command = Command::new("chrt");
    command
        .args(["--fifo", PRIORITY])
        .arg(program.get_program());
    command.args(program.get_args());
    let watch = lab.client().spawn("hiccup", command)?;
    // It has begun before the first exchange has.
    thread::sleep(Duration::from_millis(20));
    Ok(watch)
}

/// How many, and the longest in milliseconds.
fn parse(log: &str) -> Option<(f64, f64)> {
    let mut words = log.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hiccup_log_is_a_count_and_a_length() {
        assert_eq!(parse("3 12.5\n"), Some((3.0, 12.5)));
        assert_eq!(parse("nothing"), None);
    }
}
