//! Loss on the tap: what the standby misses, the client must send again.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stream::connect;
use crate::cluster::ClusterOptions;
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::links::{Loss, Shape};

/// Rate of the client's link, megabits per second.
const MBIT: u64 = 1000;

const BYTES: u64 = 40_000_000;

/// 1 %.
const PER_MYRIAD: u16 = 100;

const PATIENCE: Duration = Duration::from_secs(10);

/// `tap.*`: time of a lossless upload / time of one with loss.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions::default())?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let _pair = Pair::start(&lab, ClusterOptions::unfenced())?;
    let mut seconds = [(); 3].map(|()| Samples::default());
    for _ in budget.runs(20, 1, Duration::from_secs(3)) {
        for (per_myriad, samples) in [0, PER_MYRIAD, 0].into_iter().zip(&mut seconds) {
            lab.lose(Loss {
                from: Host::A,
                to: Host::B,
                per_myriad,
            })?;
            samples.push(upload(&lab)?);
        }
    }
    let [lossless, lossy, again] = seconds.map(|samples| (samples.p50(), samples.runs()));
    let speed = |time: Option<f64>| Some(lossless.0? / time?);
    let measured = Measured {
        value: speed(lossy.0),
        control: speed(again.0),
        runs: lossy.1,
    };
    report.put("tap.loss1.upload", measured)
}

fn upload(lab: &Lab) -> Result<f64> {
    lab.client().enter(|| {
        let mut client = connect(PATIENCE)?;
        let start = Instant::now();
        client.pour(BYTES)?;
        Ok(start.elapsed().as_secs_f64())
    })?
}
