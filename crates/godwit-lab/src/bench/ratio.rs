//! Total times over a wide-area path, without a failure: Godwit / plain TCP.
//!
//! The client is 9 ms of round trip away, behind a link of 1 Gbit/s. A time
//! runs from the client's first SYN until it has the whole answer.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::arms::{Arm, Compared, Labs};
use super::budget::Budget;
use super::report::Report;
use super::stream::connect;
use crate::apps::client::Rounds;
use crate::apps::content::Content;
use crate::host::Host;
use crate::lab::Lab;
use crate::links::Shape;
use crate::meter::Meter;

const ROUND_TRIP: Duration = Duration::from_millis(9);

/// A queue that holds all that a sender may have under way (4 MiB on a Debian):
/// with a short one, when and how often cubic loses decides over every time.
const LINK: Shape = Shape {
    rate_bits: 1_000_000_000,
    queue: Duration::from_millis(40),
};

const PATIENCE: Duration = Duration::from_secs(20);

/// What is timed.
#[derive(Clone, Copy, Debug)]
enum Job {
    Echo,
    Interactive,
    Down(u64),
    Up(u64),
}

const MEGABYTE: u64 = 1_000_000;

/// Figure, job, and what must be left of a quick benchmark's time to do it, in
/// milliseconds; the longest would leave none for anything else.
const JOBS: [(&str, Job, u64); 10] = [
    ("ratio.echo.100x150", Job::Echo, 3300),
    ("ratio.interactive.100x10k", Job::Interactive, 3600),
    ("ratio.bulk.down.1m", Job::Down(MEGABYTE), 400),
    ("ratio.bulk.down.5m", Job::Down(5 * MEGABYTE), 600),
    ("ratio.bulk.down.20m", Job::Down(20 * MEGABYTE), 1200),
    ("ratio.bulk.down.100m", Job::Down(100 * MEGABYTE), 34_000),
    ("ratio.bulk.up.1m", Job::Up(MEGABYTE), 400),
    ("ratio.bulk.up.5m", Job::Up(5 * MEGABYTE), 600),
    ("ratio.bulk.up.20m", Job::Up(20 * MEGABYTE), 1200),
    ("ratio.bulk.up.100m", Job::Up(100 * MEGABYTE), 34_000),
];

/// `ratio.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let labs = Labs::new(|lab| {
        lab.shape(Host::Client, Some(LINK))?;
        lab.delay(Host::Client, ROUND_TRIP / 2)
    })?;
    let arms = labs.start()?;
    let jobs = JOBS.map(|(name, job, cost)| (name, job, Duration::from_millis(cost)));
    let mut all = jobs.map(|_| Compared::default());
    let order = budget.either(Arm::ROUND, Arm::SHORT_ROUND);
    // All jobs by turns: what changes over minutes hits every figure alike.
    for _ in budget.runs(20, 1, Duration::ZERO) {
        for ((name, job, cost), compared) in jobs.iter().zip(&mut all) {
            if report.wants_figure(name) && budget.has(budget.either(Duration::ZERO, *cost)) {
                arms.round(order, compared, |lab| seconds(lab, *job))?;
            }
        }
    }
    for ((name, ..), compared) in jobs.iter().zip(&all) {
        report.put(name, compared.ratio())?;
    }
    Ok(())
}

fn seconds(lab: &Lab, job: Job) -> Result<f64> {
    lab.client().enter(|| {
        let start = Instant::now();
        perform(job)?;
        Ok(start.elapsed().as_secs_f64())
    })?
}

fn perform(job: Job) -> Result<()> {
    let mut client = connect(PATIENCE)?;
    let meter = Meter::default();
    let content = |length| Content { seed: 3, length };
    let rounds = |reply| Rounds {
        count: 100,
        request: 150,
        reply,
        pause: Duration::ZERO,
    };
    match job {
        Job::Echo => client.exchange(rounds(None), &meter).map(drop),
        Job::Interactive => client.exchange(rounds(Some(10_000)), &meter).map(drop),
        Job::Down(length) => {
            let verdict = client.get(content(length), &meter)?;
            ensure!(verdict.exact, "a byte is wrong or missing: {verdict:?}");
            Ok(())
        }
        Job::Up(length) => client.put(content(length), &meter),
    }
}
