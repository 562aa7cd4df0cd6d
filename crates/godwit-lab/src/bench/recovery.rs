//! Retransmissions after a takeover, against a plain TCP start.
//!
//! The new owner goes on without knowing the path. It may not lose more than a
//! connection that starts with ten segments and sends what was left. The
//! client is behind 100 Mbit/s; a tenth of a second of queue.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::arms::{Arm, Arms, Labs};
use super::budget::Budget;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stream::{Stream, Work};
use crate::host::Host;
use crate::lab::Lab;
use crate::links::{Death, Shape};

const LINK: Shape = Shape {
    rate_bits: 100_000_000,
    queue: Duration::from_millis(100),
};

/// What is left at the failure lasts for longer than the slow start of either side.
const PATHS: [Path; 2] = [
    Path {
        figure: "recovery.20ms.retransmissions",
        round_trip: Duration::from_millis(20),
        left: 12_000_000,
        run: Duration::from_secs(8),
    },
    Path {
        figure: "recovery.300ms.retransmissions",
        round_trip: Duration::from_millis(300),
        left: 16_000_000,
        run: Duration::from_secs(30),
    },
];

/// One of the paths to the client.
struct Path {
    figure: &'static str,
    round_trip: Duration,
    /// Bytes that are left at the failure.
    left: u64,
    /// What one run takes; measured, rounded up.
    run: Duration,
}

/// `recovery.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    for path in PATHS {
        if !report.wants_figure(path.figure) || !budget.has(path.run) {
            continue;
        }
        let labs = Labs::new(|lab| {
            lab.shape(Host::Client, Some(LINK))?;
            lab.delay(Host::Client, path.round_trip / 2)
        })?;
        let mut arms = labs.start()?;
        let (mut taken_over, mut started) = (Samples::default(), Samples::default());
        for run in budget.runs(20, 1, path.run) {
            if run > 0 {
                arms.pair.reboot_standby()?;
            }
            taken_over.push(after_takeover(&mut arms, path.left)?);
            started.push(after_start(arms.lab(Arm::Plain), path.left)?);
        }
        let measured = Measured {
            value: taken_over.p50(),
            control: started.p50(),
            runs: taken_over.runs(),
        };
        report.put(path.figure, measured)?;
    }
    Ok(())
}

/// Segments that the new owner sent twice for the second half of a download.
fn after_takeover(arms: &mut Arms<'_>, left: u64) -> Result<f64> {
    let lab = arms.pair.lab;
    let stream = Stream::start(lab, Work::Download(2 * left), 1)?;
    stream.wait_bytes(left)?;
    arms.pair.must_protect(1)?;
    let heir = arms.pair.standby();
    let before = retransmitted(lab, heir)?;
    let crash = arms.pair.crash_owner(Death::Power)?;
    stream.finish(crash.from)?;
    Ok(retransmitted(lab, heir)? - before)
}

/// The same for a plain connection that begins with what was left.
fn after_start(lab: &Lab, left: u64) -> Result<f64> {
    let before = retransmitted(lab, Host::A)?;
    let now = Instant::now();
    Stream::start(lab, Work::Download(left), 1)?.finish(now)?;
    Ok(retransmitted(lab, Host::A)? - before)
}

/// `RetransSegs` of a machine, RFC 4022.
fn retransmitted(lab: &Lab, host: Host) -> Result<f64> {
    let read = || fs::read_to_string("/proc/thread-self/net/snmp");
    let text = lab.node(host).enter(read)?.context("reading net/snmp")?;
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (rows.next(), rows.next());
    let (names, values) = names.zip(values).context("net/snmp has two rows for TCP")?;
    let at = names.split(' ').position(|name| name == "RetransSegs");
    let value = at.and_then(|at| values.split(' ').nth(at)?.parse::<u32>().ok());
    let value = value.context("net/snmp has no RetransSegs")?;
    Ok(f64::from(value))
}
