//! A machine dies and stays dead: how long clients wait when the takeover is over.
//!
//! A client at each address exchanges a few bytes every 20 ms with the service, and one
//! (the control) with a server on the survivor that nobody protects. What counts is the
//! longest wait that began later than a second after the death. Configuration: that of a
//! pair with a witness, all defaults, heartbeats on the clients' network.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::budget::Budget;
use super::pair::{PORT, Pair};
use super::report::{Measured, Report};
use super::watcher::Watcher;
use crate::apps::server;
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::{Host, SERVICE};
use crate::lab::{Lab, LabOptions};
use crate::links::Death;

const SPAN: Duration = Duration::from_secs(600);
const QUICK_SPAN: Duration = Duration::from_secs(30);

/// Lab and agents, before and after.
const AROUND: Duration = Duration::from_secs(6);

/// A takeover is over by then.
const OVER: Duration = Duration::from_secs(1);

/// Between two exchanges.
const PAUSE: Duration = Duration::from_millis(20);

/// Of the server that nobody protects.
const CONTROL: u16 = PORT + 1;

/// `dead.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let span = budget.span(SPAN, QUICK_SPAN);
    if !budget.has(span + AROUND) {
        return Ok(());
    }
    let lab = Lab::new(LabOptions {
        witness: true,
        control_network: false,
        ..LabOptions::default()
    })?;
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut pair = Pair::start(&lab, options)?;
    let _server = server::start(lab.b(), CONTROL)?;
    let control = Watcher::start(&lab, (Host::B.v4(), CONTROL).into(), PAUSE)?;
    let clients = SERVICE.map(|address| Watcher::start(&lab, (address, PORT).into(), PAUSE));
    let clients = clients.into_iter().collect::<Result<Vec<_>>>()?;
    pair.must_protect(clients.len() as u64)?;
    let since = Instant::now() + OVER;
    pair.crash_owner(Death::Power)?;
    thread::sleep((since + span).duration_since(Instant::now()));
    let control = control.longest_since(since)?;
    let mut longest = Duration::ZERO;
    for client in clients {
        longest = longest.max(client.longest_since(since)?);
    }
    let events = pair.cluster.event_reports(pair.owner())?;
    let lapses = events
        .iter()
        .filter(|it| it.event == "lease_lapsed")
        .count();
    put(report, span, (longest, control), u32::try_from(lapses)?)
}

fn put(
    report: &Report,
    span: Duration,
    (longest, control): (Duration, Duration),
    lapses: u32,
) -> Result<()> {
    let one = |value: f64| Measured {
        value: Some(value),
        control: None,
        runs: 1,
    };
    report.put("dead.minutes", one(span.as_secs_f64() / 60.0))?;
    let longest = Measured {
        control: Some(control.as_secs_f64() * 1e3),
        ..one(longest.as_secs_f64() * 1e3)
    };
    report.put("dead.longest", longest)?;
    report.put("dead.lapses", one(f64::from(lapses)))
}
