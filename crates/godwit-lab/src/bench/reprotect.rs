//! How long a running download is without protection when the old owner comes
//! back after a takeover.
//!
//! The server of the owner is killed in the middle of a download at 200 Mbit/s.
//! When it is started again, the clock starts; it stops when `flows` of the new
//! owner calls the download protected again. Its twin has everything to repeat
//! that was said: some 6 MB here.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stillness::Stillness;
use super::stream::{Stream, Work};
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::links::Shape;

/// Rate of the client's link, megabits per second.
const MBIT: u64 = 200;

/// Long enough to be running still when it is protected again.
const DOWNLOAD: Work = Work::Download(40_000_000);

/// What has passed when the owner's server is killed.
const PASSED: u64 = 4_000_000;

/// What one run takes; measured, rounded up.
const RUN: Duration = Duration::from_millis(3000);

/// How often the new owner is asked.
const LOOK: Duration = Duration::from_millis(2);

/// A download that is not protected by then is not in this run.
const PATIENCE: Duration = Duration::from_secs(5);

/// A second, and what the kill itself may take.
const SAME_CAUSE: Duration = Duration::from_millis(1100);

/// `reprotect.download.p50` and what it rests on.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions {
        witness: true,
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut pair = Pair::start(&lab, options)?;
    let mut stillness = Stillness::watch(&lab, budget)?;
    let (mut samples, mut runs, mut missed) = (Samples::default(), 0, 0);
    let wanted = budget.either(40, 2);
    for run in budget.runs(80, 2, RUN) {
        if runs == wanted {
            break;
        }
        let begun = SystemTime::now();
        pair.settle()?;
        let outcome = one_run(&mut pair, run);
        if stillness.disturbed_since(begun)? {
            continue;
        }
        runs += 1;
        match outcome {
            Ok(span) => samples.push_ms(span),
            Err(error) => {
                missed += 1;
                report.progress(&format!("run {run}: {error:#}"));
            }
        }
    }
    stillness.put("reprotect", runs, report)?;
    report.put_percentiles("reprotect.download", &samples)?;
    let missed = Measured {
        value: (runs > 0).then_some(f64::from(missed)),
        control: None,
        runs,
    };
    report.put("reprotect.missed", missed)
}

fn one_run(pair: &mut Pair<'_>, run: u32) -> Result<Duration> {
    let stream = Stream::start(pair.lab, DOWNLOAD, u64::from(run))?;
    stream.wait_begun()?;
    pair.must_protect(1)?;
    stream.wait_bytes(PASSED)?;
    let killed = pair.kill_owner_server()?;
    pair.last_takeover()?;
    let since = Instant::now();
    pair.restart_server()?;
    let outcome = wait_protected_again(pair, since);
    let survived = stream.finish(killed);
    // Servers that die within a second of each other are not taken over.
    thread::sleep(SAME_CAUSE.saturating_sub(killed.elapsed()));
    survived.context("the download did not survive")?;
    outcome
}

fn wait_protected_again(pair: &Pair<'_>, since: Instant) -> Result<Duration> {
    loop {
        let flows = pair.cluster.flows(pair.owner())?.flows;
        let again =
            |flow: &crate::cluster::FlowReport| flow.protected && flow.protected_again_ms.is_some();
        if flows.iter().any(again) {
            return Ok(since.elapsed());
        }
        ensure!(since.elapsed() < PATIENCE, "not protected again: {flows:?}");
        thread::sleep(LOOK);
    }
}
