//! Nothing fails, and the machine is busy: whether a node is taken for dead, or
//! falls silent, although it is well.
//!
//! Eight processes spin; a connection exchanges a little. The *hiccups* are the
//! control: on each processor a thread of the same real-time priority as the
//! agents', which does nothing but sleep for a millisecond, woke up ten or more too
//! late. A machine whose host takes the CPU away shows there, and a failure
//! detector is then right to see a failure: *unexplained* is what the agents did
//! while the control was in time.

use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Result, ensure};

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stillness;
use super::stream::{Stream, Work};
use crate::apps::hiccup::Hiccup;
use crate::cluster::{ClusterOptions, EventReport, Fencing};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::process::Process;

/// Processes that want a CPU all the time.
const SPINNERS: u32 = 8;

const SPAN: Duration = Duration::from_secs(3600);
const QUICK_SPAN: Duration = Duration::from_secs(5);

/// Lab and agents, before and after.
const AROUND: Duration = Duration::from_secs(3);

/// A beat that is late by so much more than its interval is missed three times: an
/// agent that was kept from its processor for so long is taken for dead with reason.
const EXPLAINS: Duration = Duration::from_millis(20);

/// So far from its cause a decision may be.
const NEAR: Duration = Duration::from_millis(100);

/// What should not happen in a calm hour.
const NAMES: [&str; 3] = ["takeover_started", "lease_lapsed", "standby_left"];

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
    let mut hiccups = stillness::start(&lab, span)?;
    let end = Instant::now() + span;
    let mut seed = 0;
    while Instant::now() < end {
        let stream = Stream::start(&lab, Work::Echo(EXCHANGES), seed)?;
        stream.finish(Instant::now())?;
        seed += 1;
    }
    hiccups.wait(AROUND)?;
    let mut events = events(&pair)?;
    events.retain(|event| !before.contains(event));
    drop(spinners);
    put(report, span, &hiccups.log(), &events)
}

fn put(report: &Report, span: Duration, log: &str, events: &[EventReport]) -> Result<()> {
    let hiccups = stillness::parse(log)?;
    let longest = hiccups.iter().map(|hiccup| hiccup.late).max();
    let unexplained = events.iter().filter(|event| !is_explained(event, &hiccups));
    let unexplained = unexplained.count();
    let named = |name: &str| events.iter().filter(|event| event.event == name).count();
    let [takeovers, fences, standbys_lost] = NAMES.map(named);
    let one = |value: f64| Measured {
        value: Some(value),
        control: None,
        runs: 1,
    };
    report.put("calm.minutes", one(span.as_secs_f64() / 60.0))?;
    report.put("calm.load", one(f64::from(SPINNERS)))?;
    for (name, count) in [
        ("calm.takeovers", takeovers),
        ("calm.fences", fences),
        ("calm.standbys_lost", standbys_lost),
        ("calm.unexplained", unexplained),
        ("calm.hiccups", hiccups.len()),
    ] {
        report.put(name, one(f64::from(u32::try_from(count)?)))?;
    }
    let longest = longest.unwrap_or_default().as_secs_f64() * 1e3;
    report.put("calm.longest_hiccup", one(longest))
}

/// What both servers' agents did that nothing called for, up to now.
fn events(pair: &Pair<'_>) -> Result<Vec<EventReport>> {
    let mut found = Vec::new();
    for host in Host::SERVERS {
        let events = pair.cluster.event_reports(host)?;
        let count = events.len();
        ensure!(
            count < TOO_MANY,
            "{count} events of a calm hour on {host:?}"
        );
        let called = |event: &EventReport| NAMES.contains(&event.event.as_str());
        found.extend(events.into_iter().filter(called));
    }
    Ok(found)
}

/// Whether a processor stood still shortly before that.
fn is_explained(event: &EventReport, hiccups: &[Hiccup]) -> bool {
    let mut long = hiccups.iter().filter(|hiccup| hiccup.late >= EXPLAINS);
    long.any(|hiccup| {
        let before = event.seconds_before(UNIX_EPOCH + hiccup.end);
        before.is_some_and(|before| before.abs() <= NEAR.as_secs_f64())
    })
}

fn spin(lab: &Lab) -> Result<Process> {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    lab.client().spawn("spin", command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_when_a_processor_stood_still_is_explained() {
        let event = EventReport {
            time: "2026-11-22T19:18:51.511936Z".to_owned(),
            ..EventReport::of("a", "standby_left", None)
        };
        // The same moment, and how long before it the processor ran again.
        let at = Duration::from_micros(1_795_375_131_511_936);
        let hiccup = |late, before| Hiccup {
            end: at - Duration::from_millis(before),
            late: Duration::from_millis(late),
            cpu: 0,
        };
        assert!(is_explained(&event, &[hiccup(11, 0), hiccup(23, 50)]));
        assert!(!is_explained(&event, &[hiccup(19, 0)]));
        assert!(!is_explained(&event, &[hiccup(23, 200)]));
    }
}
