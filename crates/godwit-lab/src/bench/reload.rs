//! Rolling reloads: a file that changes again and again under running connections.
//!
//! A pair with a witness, all defaults. In turn a service is put before the others, gets
//! another address, and is taken out again; each time both nodes take the file one after
//! the other, in alternating order. Clients exchange a few bytes every 5 ms with the service
//! that stays, at both its addresses, and with a server that nobody protects (the control).
//! The switch hears who speaks for them.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::budget::Budget;
use super::pair::{PORT, Pair};
use super::report::{Measured, Report};
use super::watcher::Watcher;
use crate::apps::server;
use crate::capture::Wire;
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::{Host, SERVICE};
use crate::lab::{Lab, LabOptions};

const CHANGES: u32 = 100;
const QUICK_CHANGES: u32 = 9;

/// Two reloads, until the standby is in sync again.
const COST: Duration = Duration::from_secs(2);

/// Between two exchanges.
const PAUSE: Duration = Duration::from_millis(5);

/// Clients at each address.
const CLIENTS: usize = 4;

/// Of the server that nobody protects.
const CONTROL: u16 = PORT + 1;

const READY: Duration = Duration::from_secs(10);

/// What is done to the service that comes and goes.
#[derive(Debug, Clone, Copy)]
enum Change {
    Insert,
    Readdress,
    Remove,
}

impl Change {
    const fn of(number: u32) -> Self {
        match number % 3 {
            0 => Self::Insert,
            1 => Self::Readdress,
            _ => Self::Remove,
        }
    }

    /// The file after it; `kept` is the file without that service.
    fn apply(self, kept: &str) -> String {
        let last = match self {
            Self::Insert => 120,
            Self::Readdress => 121,
            Self::Remove => return kept.to_owned(),
        };
        let service = format!(
            "[[service]]\nname = \"guest\"\n\
             address = [\"10.9.0.{last}:{PORT}\", \"[2001:db8:9::{last}]:{PORT}\"]\n\
             primary = \"a\"\nbackups = [\"b\"]\n\n[[service]]"
        );
        kept.replacen("[[service]]", &service, 1)
    }
}

/// `reload.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions {
        witness: true,
        control_network: false,
        ..LabOptions::default()
    })?;
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let pair = Pair::start(&lab, options)?;
    let _server = server::start(lab.a(), CONTROL)?;
    let wire = Wire::start(&lab)?;
    let control = Watcher::start(&lab, (Host::A.v4(), CONTROL).into(), PAUSE)?;
    let clients = SERVICE.into_iter().cycle().take(2 * CLIENTS);
    let clients = clients.map(|to| Watcher::start(&lab, SocketAddr::from((to, PORT)), PAUSE));
    let clients = clients.collect::<Result<Vec<_>>>()?;
    pair.must_protect(clients.len() as u64)?;
    let since = Instant::now();
    let mut files = Vec::new();
    for host in Host::SERVERS {
        let path = pair.cluster.config_file(host)?;
        let text = fs::read_to_string(&path).context("reading a configuration")?;
        files.push((host, path, text));
    }
    let mut done = 0;
    for number in budget.runs(CHANGES, QUICK_CHANGES, COST) {
        for (host, path, kept) in &files {
            fs::write(path, Change::of(number).apply(kept)).context("writing a file")?;
            reload(&pair, *host)?;
            wait_kept(&pair)?;
        }
        files.reverse();
        done += 1;
    }
    pair.must_protect(clients.len() as u64)?;
    let mut longest = Duration::ZERO;
    let mut wrong = 0;
    for client in clients {
        match client.longest_since(since) {
            Ok(wait) => longest = longest.max(wait),
            Err(_) => wrong += 1,
        }
    }
    let control = control.longest_since(since)?;
    let books = wire.take()?;
    ensure!(books.segments > 0, "nothing was heard at the switch");
    let others = |voice: &crate::capture::Voice| voice.turns.len() > 1;
    let voices = books.voices().filter(|(_, voice)| others(voice)).count();
    put(report, "reload.changes", f64::from(done), None)?;
    put(report, "reload.resets", count(books.resets.len())?, None)?;
    put(report, "reload.voices", count(voices)?, None)?;
    put(report, "reload.broken", f64::from(wrong), None)?;
    let millis = |it: Duration| it.as_secs_f64() * 1e3;
    put(
        report,
        "reload.longest",
        millis(longest),
        Some(millis(control)),
    )
}

fn count(number: usize) -> Result<f64> {
    Ok(f64::from(u32::try_from(number)?))
}

fn put(report: &Report, name: &str, value: f64, control: Option<f64>) -> Result<()> {
    let measured = Measured {
        value: Some(value),
        control,
        runs: 1,
    };
    report.put(name, measured)
}

fn reload(pair: &Pair<'_>, host: Host) -> Result<()> {
    let socket = pair.cluster.socket(host)?;
    let socket = socket.to_str().context("its path is UTF-8")?;
    let output = pair.cluster.godwit(host, &["reload", "--socket", socket])?;
    ensure!(output.status.success(), "{host}: {}", output.stderr.trim());
    Ok(())
}

/// The service that stays has its standby.
fn wait_kept(pair: &Pair<'_>) -> Result<()> {
    let end = Instant::now() + READY;
    while Instant::now() < end {
        let status = pair.cluster.status(pair.owner())?;
        let kept = status.services.iter().find(|it| it.name == "web");
        if kept.is_some_and(|it| !it.in_sync.is_empty()) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    bail!("no standby is in sync after a reload")
}
