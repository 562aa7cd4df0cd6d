//! Benchmarks: what a client pays for Godwit, and what it sees of a failure.
//!
//! [`run`] builds labs of its own, measures the figures that [`figure`] lists
//! and prints each as one line. What is compared runs interleaved: plain TCP,
//! Godwit, plain TCP again; the second plain arm, divided by the first, is the
//! *control*, which says how much of a figure is the machine's noise.
//!
//! | module | figures |
//! |---|---|
//! | [`stall`] | `stall.machine.*`, `stall.machine50.*`, `stall.hung.*`, `stall.multicast.*`, `exact.*` |
//! | [`standby`] | `stall.standby.*` |
//! | [`process`] | `stall.process.*` |
//! | [`ratio`] | `ratio.*`: total time over a wide-area path |
//! | [`zero`] | `echo.added.*`, `throughput.*`, `owner.cpu.*`: no path at all |
//! | [`tap`] | `tap.*`: segments lost between owner and standby |
//! | [`crowd`] | `crowd.*`, `memory.*`: ten thousand connections |
//! | [`recovery`] | `recovery.*`: retransmissions after a takeover |
//! | [`stall`], again | `stall.leased.*`, `stall.leased.multicast.*`: with leases |
//! | [`frozen`] | `frozen.*`: a node is stopped, and resumes |
//! | [`calm`] | `calm.*`: nothing fails on a machine that is busy |
//! | [`idle`] | `idle.*`: what an agent costs while nobody is there |
//! | [`changes`] | `changes.*`: what changes around a node, until it is followed or said |
//! | [`reload`] | `reload.*`: rolling reloads under running connections |
//! | [`dead`] | `dead.*`: a machine dies and stays dead |
//! | [`peers`] | `peers.*`: the same failure with keepalived and haproxy |
//! | [`migrate`] | `migrate.*`: connections that move one by one |
//! | [`batch`] | `migrate.batch.*`: a thousand of them in one order |
//! | [`export`] | `migrate.export.*`, `migrate.commit.*`: what a server pays for its snapshots |
//! | [`origin`] | `migrate.crash.*`: the origin dies, its snapshots are on the standby |
//! | [`slowing`] | `migrate.slowing.*`: a client that leaves servers which slow down |
//! | [`many`] | `migrate.many.*`: ten thousand moves of busy streams |
//! | [`datapath`] | `datapath.*`: what a segment costs in the hooks |
//! | [`flood`] | `flood.*`: handshakes by the ten thousand per second |
//! | [`direct`] | `director.*`: servers behind a director |
//! | [`handoff`] | `handoff.*`: requests that go to the server which has their file |
//! | [`reprotect`] | `reprotect.*`: running connections and a standby that returns |
//!
//! [`pair`] is the pair of servers under test, which fails over back and
//! forth; [`stream`] is one client's connection through a failure; [`stillness`]
//! tells which runs the machine itself disturbed.

mod arms;
mod batch;
mod budget;
mod calm;
mod changes;
mod crowd;
mod datapath;
mod dead;
mod direct;
mod exit;
mod export;
mod ferry;
mod figure;
mod flood;
mod frozen;
mod handoff;
mod idle;
mod load;
mod many;
mod migrate;
mod moved;
mod origin;
mod pair;
mod peers;
mod process;
mod ratio;
mod recovery;
mod reload;
mod report;
mod reprotect;
mod slowing;
mod stall;
mod standby;
mod stats;
mod stillness;
mod stream;
mod tap;
mod underway;
mod watcher;
mod zero;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use budget::Budget;
use figure::Theme;
use report::Report;

use crate::{Unknown, out};

/// Names that [`run`] knows, with what each measures.
pub const NAMES: [(&str, &str); 12] = [
    (
        "standby",
        "a hot standby: cost without a failure, stalls with one",
    ),
    (
        "failover",
        "servers that die, leases, nodes that stop and resume, false alarms",
    ),
    (
        "dead",
        "a machine that dies and stays dead for ten minutes: how long clients wait afterwards",
    ),
    (
        "idle",
        "what an agent costs while nobody is there: canaries, watches, all of it",
    ),
    (
        "changes",
        "addresses, links, settings and rules that change: time until followed or said",
    ),
    (
        "reload",
        "a hundred rolling reloads under running connections: resets, voices, pauses",
    ),
    (
        "exit",
        "a process with 500 000 descriptors that is killed on an owner: what that costs",
    ),
    (
        "migrate",
        "connections that move from server to server one by one, with their state",
    ),
    (
        "director",
        "a machine that gives connections to servers: frames, requests, a server that dies",
    ),
    (
        "handoff",
        "requests that are handed to the server that has their file in memory",
    ),
    (
        "datapath",
        "what a segment costs in the hooks of owner and standby, and what was verified",
    ),
    (
        "flood",
        "floods of handshakes on an owner, from real and from spoofed clients",
    ),
];

/// What may be chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BenchOptions {
    /// One line of JSON per figure on standard output. Default: a table.
    pub json: bool,
    /// Ends within 45 s: fewer runs, and no 99th percentiles of less than 200 values.
    /// Default: false.
    pub quick: bool,
    /// Measures only the figures whose names begin so; several prefixes have
    /// commas between them. Default: all.
    pub only: Option<String>,
    /// How long `dead` keeps a machine dead, and `idle` looks on, in seconds. Default: ten
    /// minutes, and one.
    pub seconds: Option<u64>,
}

/// Runs the benchmark called `name`; true if every figure could be measured for
/// which there was time, whether or not it meets its target.
///
/// # Errors
/// Fails with [`Unknown`] if there is no such benchmark, or no figure has the prefix that was
/// asked for; else if this machine can't have a lab.
pub fn run(name: &str, options: &BenchOptions) -> Result<bool> {
    let Some(themes) = Theme::of(name) else {
        let known = NAMES.map(|(name, _)| name).join(", ");
        let sentence = format!("there is no benchmark {name:?}; there are: {known}");
        return Err(Unknown::new(sentence).into());
    };
    let report = Report::new(options.json, options.only.clone(), themes)?;
    crate::Lab::available()?;
    let budget = Budget::new(options.quick, options.seconds.map(Duration::from_secs));
    let Some(limit) = budget.limit() else {
        return measure_all(themes, budget, &report);
    };
    let (sender, receiver) = mpsc::channel();
    let measuring = report.clone();
    let measure = move || sender.send(measure_all(themes, budget, &measuring));
    thread::Builder::new()
        .name("bench".to_owned())
        .spawn(measure)
        .context("starting a thread")?;
    receiver.recv_timeout(limit).unwrap_or_else(|_| {
        // A promise is a promise: what still runs ends with this process, and
        // the lab's watchdog clears up.
        report.progress("the time is over");
        put_all_missing(themes, &report).map(|()| true)
    })
}

fn measure_all(themes: &[Theme], budget: Budget, report: &Report) -> Result<bool> {
    let mut complete = true;
    for &theme in themes {
        if !report.wants(theme) {
            continue;
        }
        report.progress(theme.title());
        if budget.is_over() {
            report.progress("no time left");
        } else if let Err(error) = measure(theme, budget, report) {
            if out::is_unread(&error) {
                return Err(error);
            }
            complete = false;
            report.progress(&format!("not measured: {error:#}"));
        }
        report.put_missing(theme)?;
    }
    Ok(complete)
}

fn put_all_missing(themes: &[Theme], report: &Report) -> Result<()> {
    let mut themes = themes.iter();
    themes.try_for_each(|theme| report.put_missing(*theme))
}

fn measure(theme: Theme, budget: Budget, report: &Report) -> Result<()> {
    match theme {
        Theme::Machine => stall::machine(budget, report),
        Theme::Ratio => ratio::run(budget, report),
        Theme::Standby => standby::run(budget, report),
        Theme::Zero => zero::run(budget, report),
        Theme::Process => process::run(budget, report),
        Theme::SlowBeat => stall::slow_heartbeat(budget, report),
        Theme::Hung => stall::hung(budget, report),
        Theme::Multicast => stall::multicast(budget, report),
        Theme::Tap => tap::run(budget, report),
        Theme::Crowd => crowd::run(budget, report),
        Theme::Recovery => recovery::run(budget, report),
        Theme::Leased => stall::leased(budget, report),
        Theme::LeasedMulticast => stall::leased_multicast(budget, report),
        Theme::Frozen => frozen::run(budget, report),
        Theme::Calm => calm::run(budget, report),
        Theme::Dead => dead::run(budget, report),
        Theme::Idle => idle::run(budget, report),
        Theme::Changes => changes::run(budget, report),
        Theme::Reload => reload::run(budget, report),
        Theme::Exit => exit::run(budget, report),
        Theme::Peers => peers::run(budget, report),
        Theme::Reprotect => reprotect::run(budget, report),
        Theme::Moved => moved::run(budget, report),
        Theme::Migrate => migrate::run(budget, report),
        Theme::Batch => batch::run(budget, report),
        Theme::Export => export::run(budget, report),
        Theme::Origin => origin::run(budget, report),
        Theme::Slowing => slowing::run(budget, report),
        Theme::Many => many::run(budget, report),
        Theme::Director => direct::run(budget, report),
        Theme::Handoff => handoff::run(budget, report),
        Theme::Datapath => datapath::run(budget, report),
        Theme::Flood => flood::run(budget, report),
    }
}
