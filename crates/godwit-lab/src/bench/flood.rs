//! Handshakes by the ten thousand per second, on the owner of a protected service.
//!
//! Ten connections exchange a few bytes meanwhile, which were protected before. Three floods:
//! `real`, whose clients complete the handshake and reset the connection; `spoofed`, whose
//! SYN-ACKs nobody answers; and `most`, with as many handshakes as the machine completes.
//! Each is waged on a pair under Godwit, and (the control) on a server without it. Heartbeats
//! and leases share the flooded network.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::budget::Budget;
use super::pair::{PORT, Pair};
use super::report::{Measured, Report};
use super::stillness;
use super::watcher::Watcher;
use crate::apps::flood::{self, Clients, Plan, Told};
use crate::apps::server;
use crate::cluster::{Cluster, ClusterOptions, EventReport, FlowReport};
use crate::host::{Host, SERVICE};
use crate::lab::{Lab, LabOptions};

const SPAN: Duration = Duration::from_secs(60);
const QUICK_SPAN: Duration = Duration::from_secs(2);

/// As long as `SPAN`, the most of it: what is reached does not change with the time.
const MOST_SPAN: Duration = Duration::from_secs(20);

/// Both labs, agents, and what floods leave to be done.
const AROUND: Duration = Duration::from_secs(20);

/// SYNs per second.
const RATE: u32 = 30_000;

/// More than any machine takes.
const NO_LIMIT: u32 = 1_000_000;

/// Handshakes under way at once where the answers say when the next one begins.
const WINDOW: u32 = 512;

/// Connections that exchange something meanwhile.
const REGULARS: usize = 10;

/// Between two of their exchanges.
const PAUSE: Duration = Duration::from_millis(20);

/// What a flood has left is over by then.
const CALM: Duration = Duration::from_secs(2);

/// What should not happen.
const NAMES: [&str; 3] = ["takeover_started", "lease_lapsed", "standby_left"];

/// One of the three.
struct Kind {
    name: &'static str,
    plan: Plan,
}

/// What one flood did.
#[derive(Clone, Copy, Debug)]
struct Seen {
    told: Told,
    completed: u64,
    /// Connections that the standby's server has accepted.
    twins: u64,
    longest: Duration,
    /// How late a thread of real-time priority woke up that only sleeps.
    hiccup: Duration,
    unprotected: usize,
    events: [usize; 3],
}

/// `flood.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let span = budget.span(SPAN, QUICK_SPAN);
    if !budget.has(4 * span + 2 * span.min(MOST_SPAN) + AROUND) {
        return Ok(());
    }
    for kind in kinds(span) {
        if !report.wants_figure(&format!("flood.{}", kind.name)) {
            continue;
        }
        let control = without(&kind)?;
        let seen = with(&kind, report)?;
        put(report, &kind, &seen, &control)?;
    }
    Ok(())
}

fn kinds(span: Duration) -> [Kind; 3] {
    let plan = |clients| Plan {
        clients,
        rate: RATE,
        window: u32::MAX,
        lasts: span,
    };
    let most = Plan {
        rate: NO_LIMIT,
        window: WINDOW,
        lasts: span.min(MOST_SPAN),
        ..plan(Clients::Real)
    };
    [
        ("real", plan(Clients::Real)),
        ("spoofed", plan(Clients::Spoofed)),
        ("most", most),
    ]
    .map(|(name, plan)| Kind { name, plan })
}

fn lab() -> Result<Lab> {
    let lab = Lab::new(LabOptions {
        control_network: false,
        ..LabOptions::default()
    })?;
    flood::route(&lab)?;
    Ok(lab)
}

/// A server that nobody protects.
fn without(kind: &Kind) -> Result<Seen> {
    let lab = lab()?;
    let _server = server::start(lab.a(), PORT)?;
    lab.take_service_address(Host::A)?;
    let regulars = regulars(&lab)?;
    let since = Instant::now();
    let seen = wage(&lab, kind)?;
    Ok(Seen {
        longest: longest(regulars, since)?,
        ..seen
    })
}

/// The owner of a pair with a witness.
fn with(kind: &Kind, report: &Report) -> Result<Seen> {
    let lab = lab()?;
    let mut pair = Pair::start(&lab, ClusterOptions::default())?;
    let regulars = regulars(&lab)?;
    pair.must_protect(REGULARS as u64)?;
    let locals: BTreeSet<_> = regulars.iter().map(Watcher::local).collect();
    let before = events(&pair.cluster)?;
    let since = Instant::now();
    let mut seen = wage(&lab, kind)?;
    pair.find_owner();
    let bare = unprotected(&pair.cluster, pair.owner(), &locals)?;
    for (local, flow) in &bare {
        report.progress(&format!("{local}: {flow:?}"));
    }
    seen.unprotected = bare.len();
    seen.longest = longest(regulars, since)?;
    let mut after = events(&pair.cluster)?;
    after.retain(|event| !before.contains(event));
    for event in &after {
        report.progress(&format!(
            "{} {} at {}: {:?}",
            event.time, event.event, event.node, event.reason
        ));
    }
    let count = |name| after.iter().filter(|event| event.event == name).count();
    seen.events = NAMES.map(count);
    Ok(seen)
}

fn regulars(lab: &Lab) -> Result<Vec<Watcher>> {
    let addresses = SERVICE.into_iter().cycle().take(REGULARS);
    let start = |address| Watcher::start(lab, (address, PORT).into(), PAUSE);
    addresses.map(start).collect()
}

/// Ends them. The longest wait since then of all of them.
fn longest(regulars: Vec<Watcher>, since: Instant) -> Result<Duration> {
    let waits = regulars.into_iter().map(|it| it.longest_since(since));
    let waits = waits.collect::<Result<Vec<_>>>()?;
    Ok(waits.into_iter().max().unwrap_or_default())
}

fn wage(lab: &Lab, kind: &Kind) -> Result<Seen> {
    let before = Host::SERVERS.map(|host| accepted(lab, host));
    let mut watch = stillness::start(lab, kind.plan.lasts)?;
    let told = flood::wage(lab, Host::A, PORT, kind.plan)?;
    let mut counts = [0; 2];
    for ((count, host), before) in counts.iter_mut().zip(Host::SERVERS).zip(before) {
        *count = accepted(lab, host)?.saturating_sub(before?);
    }
    watch.wait(AROUND)?;
    let hiccups = stillness::parse(&watch.log())?;
    let hiccup = hiccups.iter().map(|hiccup| hiccup.late).max();
    thread::sleep(CALM);
    let [completed, twins] = counts;
    Ok(Seen {
        told,
        completed,
        twins,
        longest: Duration::ZERO,
        hiccup: hiccup.unwrap_or_default(),
        unprotected: 0,
        events: [0; 3],
    })
}

/// Those of `locals` that have no protection, or had none meanwhile.
fn unprotected(
    cluster: &Cluster<'_>,
    owner: Host,
    locals: &BTreeSet<SocketAddr>,
) -> Result<Vec<(SocketAddr, Option<FlowReport>)>> {
    let flows = cluster.flows(owner)?.flows;
    let own = |local: &SocketAddr| {
        let prefix = format!("{local} ");
        let mut own = flows.iter().filter(|flow| flow.flow.starts_with(&prefix));
        own.next().cloned()
    };
    let well = |flow: &FlowReport| flow.protected && flow.protected_again_ms.is_none();
    let all = locals.iter().map(|local| (*local, own(local)));
    Ok(all
        .filter(|(_, flow)| !flow.as_ref().is_some_and(well))
        .collect())
}

/// What both servers' agents did that nothing called for, up to now.
fn events(cluster: &Cluster<'_>) -> Result<Vec<EventReport>> {
    let mut found = Vec::new();
    for host in Host::SERVERS {
        let mut events = cluster.event_reports(host)?;
        events.retain(|event| NAMES.contains(&event.event.as_str()));
        found.append(&mut events);
    }
    Ok(found)
}

/// Handshakes that this machine's kernel has completed as a server (`PassiveOpens`).
fn accepted(lab: &Lab, host: Host) -> Result<u64> {
    // `self` would be the main thread, which is in another namespace.
    let table = || fs::read_to_string("/proc/thread-self/net/snmp");
    let table = lab.node(host).enter(table)?.context("reading counters")?;
    passive_opens(&table).context("the kernel counts no PassiveOpens")
}

fn passive_opens(table: &str) -> Option<u64> {
    let mut rows = table.lines().filter(|row| row.starts_with("Tcp:"));
    let (names, values) = (rows.next()?, rows.next()?);
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(name, _)| *name == "PassiveOpens")?;
    value.parse().ok()
}

fn put(report: &Report, kind: &Kind, seen: &Seen, control: &Seen) -> Result<()> {
    let figure = |name: &str, value: f64, control: Option<f64>| {
        report.put(
            &format!("flood.{}.{name}", kind.name),
            Measured {
                value: Some(value),
                control,
                runs: 1,
            },
        )
    };
    let rate = |seen: &Seen, count: u64| count as f64 / seen.told.seconds;
    let both = |count: fn(&Seen) -> u64| (rate(seen, count(seen)), rate(control, count(control)));
    let (sent, sent_control) = both(|seen| seen.told.sent);
    figure("sent", sent, Some(sent_control))?;
    if kind.plan.clients == Clients::Spoofed {
        let (answered, control) = both(|seen| seen.told.answered);
        figure("answered", answered, Some(control))?;
    } else {
        let (completed, control) = both(|seen| seen.completed);
        figure("completed", completed, Some(control))?;
        figure("twins", rate(seen, seen.twins), None)?;
    }
    for (name, of) in [
        ("longest", (|seen| seen.longest) as fn(&Seen) -> Duration),
        ("hiccup", |seen| seen.hiccup),
    ] {
        let ms = |seen| of(seen).as_secs_f64() * 1e3;
        figure(name, ms(seen), Some(ms(control)))?;
    }
    figure("unprotected", seen.unprotected as f64, None)?;
    for (name, count) in ["takeovers", "lapses", "standbys_lost"]
        .into_iter()
        .zip(seen.events)
    {
        figure(name, count as f64, None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_counted_by_the_name_of_their_counter() {
        let table = "Ip: Forwarding\nIp: 2\nTcp: ActiveOpens PassiveOpens\nTcp: 3 17\n";
        assert_eq!(passive_opens(table), Some(17));
        assert_eq!(passive_opens("Tcp: ActiveOpens\nTcp: 3\n"), None);
    }

    #[test]
    fn only_the_most_waits_for_answers() {
        let [real, spoofed, most] = kinds(SPAN);
        assert_eq!((real.plan.lasts, spoofed.plan.lasts), (SPAN, SPAN));
        assert_eq!(real.plan.window, u32::MAX);
        assert!(most.plan.window < u32::MAX && most.plan.lasts == MOST_SPAN);
        assert_eq!(kinds(QUICK_SPAN)[2].plan.lasts, QUICK_SPAN);
    }
}
