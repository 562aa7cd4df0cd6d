//! What a segment of a protected connection costs in the hooks, and what the verifier had to
//! look at before.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::budget::Budget;
use super::load;
use super::report::{Measured, Report};
use super::stats::Samples;
use crate::cluster;
use crate::host::Host;
use crate::lab::{Lab, LabOptions};

const BATCHES: u32 = 4000;
const QUICK_BATCHES: u32 = 400;

/// What the kernel may take for all of them.
const LIMIT: Duration = Duration::from_secs(120);

/// `godwit datapath-load`.
#[derive(Debug, Deserialize)]
struct SegmentCosts {
    segments: BTreeMap<String, [Vec<f64>; 2]>,
    verified: BTreeMap<String, u32>,
}

/// `datapath.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    load::DATAPATH.sweep()?;
    let lab = Lab::new(LabOptions::default())?;
    let batches = budget.either(BATCHES, QUICK_BATCHES);
    let mut command = Command::new(cluster::binary()?);
    command.args(load::DATAPATH.on(&lab, Host::A)?);
    command.args(["--batches", &batches.to_string()]);
    let output = lab.node(Host::A).run(command, LIMIT)?;
    ensure!(output.status.success(), "{}", output.stderr.trim());
    let costs: SegmentCosts = serde_json::from_str(&output.stdout).context("reading costs")?;
    for (name, arms) in costs.segments {
        let [value, control] = arms.map(|arm| arm.into_iter().collect::<Samples>());
        for (percentile, of) in [
            ("p50", Samples::p50 as fn(&Samples) -> Option<f64>),
            ("p99", Samples::p99),
        ] {
            let measured = Measured {
                value: of(&value),
                control: of(&control),
                runs: batches,
            };
            report.put(&format!("datapath.{name}.{percentile}"), measured)?;
        }
    }
    for (name, verified) in costs.verified {
        report.put_value(&format!("datapath.verified.{name}"), f64::from(verified))?;
    }
    Ok(())
}
