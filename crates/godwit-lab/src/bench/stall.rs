//! The owner's machine goes dark: what clients see, and whether they keep
//! every byte.
//!
//! In each run a download, an upload and an echo session share the client's
//! link of 200 Mbit/s; at a random moment the owner vanishes. All three must
//! then end with every byte right. A run's stall is the longest silence that
//! one of them saw from that moment on.

use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Result;

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stillness::Stillness;
use super::stream::{self, Stream, Work};
use super::underway::is_bulk_under_way;
use crate::capture::ResetCounter;
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::links::{Death, Shape};

/// Rate of the client's link, megabits per second.
const MBIT: u64 = 200;

/// Bytes each way: they last longer than the latest moment of the failure.
const BYTES: u64 = 8_000_000;

/// Exchanges of the echo session, for the same reason.
const EXCHANGES: u32 = 200;

/// The failure comes so long after the flows are protected, at most.
const LATEST: Duration = Duration::from_millis(120);

/// A longer stall is told as it happens.
const WORTH_A_LINE: Duration = Duration::from_millis(100);

/// What one run takes; measured, rounded up.
const RUN: Duration = Duration::from_millis(2500);

/// What runs of one kind gave.
#[derive(Clone, Debug, Default)]
struct Seen {
    stalls: [Samples; 3],
    after_detection: [Samples; 3],
    detection: Samples,
    broken: u32,
    unprotected: u32,
    idle: u32,
    resets: u64,
    takeovers: u32,
}

const WORKS: [Work; 3] = [
    Work::Download(BYTES),
    Work::Upload(BYTES),
    Work::Echo(EXCHANGES),
];

/// `stall.machine.*` and `exact.*`.
pub(super) fn machine(budget: Budget, report: &Report) -> Result<()> {
    let seen = measure(
        "stall.machine",
        ClusterOptions::unfenced(),
        Death::Power,
        budget,
        (200, 3),
        report,
    )?;
    for (work, stalls) in WORKS.iter().zip(&seen.stalls) {
        report.put_percentiles(&format!("stall.machine.{}", work.name()), stalls)?;
    }
    for (work, after) in WORKS.iter().zip(&seen.after_detection) {
        let name = format!("stall.machine.{}.after_detection.p50", work.name());
        report.put_p50(&name, after)?;
    }
    report.put_p50("stall.machine.detection.p50", &seen.detection)?;
    let count = |value: f64| Measured {
        value: (seen.takeovers > 0).then_some(value),
        control: None,
        runs: seen.takeovers,
    };
    report.put("exact.broken", count(f64::from(seen.broken)))?;
    report.put("exact.unprotected", count(f64::from(seen.unprotected)))?;
    report.put("exact.idle", count(f64::from(seen.idle)))?;
    let resets = u32::try_from(seen.resets).unwrap_or(u32::MAX);
    report.put("exact.rst", count(f64::from(resets)))
}

/// `stall.machine50.*`: three heartbeats of 50 ms, as the paper of 2003 has.
pub(super) fn slow_heartbeat(budget: Budget, report: &Report) -> Result<()> {
    let options = ClusterOptions {
        heartbeat: Duration::from_millis(50),
        ..ClusterOptions::unfenced()
    };
    let seen = measure(
        "stall.machine50",
        options,
        Death::Power,
        budget,
        (20, 2),
        report,
    )?;
    for (work, stalls) in WORKS.iter().zip(&seen.stalls) {
        report.put_p50(&format!("stall.machine50.{}.p50", work.name()), stalls)?;
    }
    Ok(())
}

/// `stall.leased.*`: with a witness, and nobody speaks before the dead owner's
/// lease has ended.
pub(super) fn leased(budget: Budget, report: &Report) -> Result<()> {
    with_leases("stall.leased", ClusterOptions::unfenced(), budget, report)
}

/// `stall.leased.multicast.*`: the same with the tap for which the network
/// copies, so that what is said to the dead machine is heard.
pub(super) fn leased_multicast(budget: Budget, report: &Report) -> Result<()> {
    with_leases("stall.leased.multicast", heard_by_both(), budget, report)
}

fn with_leases(name: &str, options: ClusterOptions, budget: Budget, report: &Report) -> Result<()> {
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..options
    };
    let seen = measure(name, options, Death::Power, budget, (200, 2), report)?;
    for (work, stalls) in WORKS.iter().zip(&seen.stalls) {
        report.put_percentiles(&format!("{name}.{}", work.name()), stalls)?;
    }
    let broken = Measured {
        value: (seen.takeovers > 0).then_some(f64::from(seen.broken)),
        control: None,
        runs: seen.takeovers,
    };
    report.put(&format!("{name}.broken"), broken)
}

/// `stall.hung.*`: the owner's kernel hangs and its link stays up, so nobody
/// hears what the client says to it; the client says it again, 200 ms later.
pub(super) fn hung(budget: Budget, report: &Report) -> Result<()> {
    let seen = measure(
        "stall.hung",
        ClusterOptions::unfenced(),
        Death::Hang,
        budget,
        (20, 1),
        report,
    )?;
    for (work, stalls) in WORKS.iter().zip(&seen.stalls) {
        report.put_p50(&format!("stall.hung.{}.p50", work.name()), stalls)?;
    }
    Ok(())
}

/// `stall.multicast.*`: the same with the tap for which the network copies.
pub(super) fn multicast(budget: Budget, report: &Report) -> Result<()> {
    let seen = measure(
        "stall.multicast",
        heard_by_both(),
        Death::Hang,
        budget,
        (200, 1),
        report,
    )?;
    for (work, stalls) in WORKS.iter().zip(&seen.stalls) {
        report.put_percentiles(&format!("stall.multicast.{}", work.name()), stalls)?;
    }
    Ok(())
}

/// Services whose segments the network brings to both nodes.
fn heard_by_both() -> ClusterOptions {
    let mut options = ClusterOptions::unfenced();
    for service in &mut options.services {
        service.extra = "tap = \"multicast\"".to_owned();
    }
    options
}

fn measure(
    prefix: &str,
    options: ClusterOptions,
    death: Death,
    budget: Budget,
    (full, quick): (u32, u32),
    report: &Report,
) -> Result<Seen> {
    let lab = Lab::new(LabOptions {
        witness: options.fencing == Fencing::Lease,
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let mut pair = Pair::start(&lab, options)?;
    let resets = ResetCounter::start(lab.client())?;
    let mut stillness = Stillness::watch(&lab, budget)?;
    let mut seen = Seen::default();
    // Some more than wanted, for those that end without a takeover.
    let wanted = budget.either(full, quick);
    for run in budget.runs(full * 2, quick + 1, RUN) {
        if seen.takeovers == wanted {
            break;
        }
        if run > 0 {
            pair.reboot_standby()?;
        }
        let (before, begun) = (seen.clone(), SystemTime::now());
        one_run(&mut pair, death, run, &mut seen, report)?;
        if stillness.disturbed_since(begun)? {
            seen = before;
            pair.find_owner();
        }
    }
    stillness.put(prefix, seen.takeovers, report)?;
    let resets = resets.read()?;
    seen.resets = resets.received + resets.sent;
    Ok(seen)
}

/// One failure; a stream that breaks is counted, not an error, and so is a run
/// whose flows are not protected in time, which goes on without a failure.
fn one_run(
    pair: &mut Pair<'_>,
    death: Death,
    run: u32,
    seen: &mut Seen,
    report: &Report,
) -> Result<()> {
    let mut streams = Vec::new();
    for (number, work) in (0..).zip(WORKS) {
        streams.push(Stream::start(pair.lab, work, u64::from(run) * 3 + number)?);
    }
    streams.iter().try_for_each(Stream::wait_begun)?;
    if let Err(error) = pair.must_protect(streams.len() as u64) {
        seen.unprotected += 1;
        report.progress(&format!("run {run}: {error:#}"));
        return Ok(());
    }
    thread::sleep(moment());
    let owner = pair.lab.node(pair.owner());
    seen.idle += u32::from(!is_bulk_under_way(pair.lab.client(), owner)?);
    let crash = pair.crash_owner(death)?;
    seen.takeovers += 1;
    let stalls = streams.into_iter().map(|s| s.finish(crash.from));
    let stalls = stalls.collect::<Vec<_>>();
    let detection = pair.last_takeover()?.detection_ms;
    seen.detection.push(detection);
    for (kind, stall) in stalls.into_iter().enumerate() {
        match stall {
            Ok(stall) => {
                if stall > WORTH_A_LINE {
                    report.progress(&format!(
                        "run {run}: {} waited {stall:?}",
                        WORKS[kind].name()
                    ));
                }
                seen.stalls[kind].push_ms(stall);
                seen.after_detection[kind].push(stall.as_secs_f64() * 1e3 - detection);
            }
            Err(error) => {
                // It waited so long, and would have longer.
                seen.stalls[kind].push_ms(stream::PATIENCE);
                seen.broken += 1;
                report.progress(&format!("run {run}: {error:#}"));
            }
        }
    }
    Ok(())
}

/// A moment between now and [`LATEST`]; the low digits of a clock are as
/// random as this needs.
fn moment() -> Duration {
    let noise = SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    LATEST.mul_f64(f64::from(noise % 10_007) / 10_007.0)
}
