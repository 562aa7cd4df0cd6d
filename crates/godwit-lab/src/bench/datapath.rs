//! What a segment of a protected connection costs in the hooks, and what the verifier had to
//! look at before.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::budget::Budget;
use super::report::{Measured, Report};
use super::stats::Samples;
use crate::cluster::{self, PIN_ROOT};
use crate::host::{Host, Network};
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
    let lab = Lab::new(LabOptions::default())?;
    let batches = budget.either(BATCHES, QUICK_BATCHES);
    let cookie = lab.node(Host::A).enter(godwit_sock::netns_cookie)?;
    let cookie = cookie.context("asking for the namespace's cookie")?;
    let mut command = Command::new(cluster::binary()?);
    command.args(load(cookie, batches, |pins| lab.remove_at_end(pins))?);
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

/// What `godwit` is told, after `at_end` got its pins: they must go with the lab if it is killed.
fn load(
    cookie: u64,
    batches: u32,
    at_end: impl FnOnce(&Path) -> Result<()>,
) -> Result<Vec<String>> {
    let pins = format!("n{cookie}-datapath-load");
    at_end(&Path::new(PIN_ROOT).join(&pins))?;
    let batches = batches.to_string();
    let interface = Network::Data.interface();
    let args = ["datapath-load", "--interface", interface, "--pins", &pins];
    Ok(args
        .into_iter()
        .chain(["--batches", &batches])
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Ctrl-C ends the process that has pinned: the lab's watchdog removes that folder.
    #[test]
    fn pins_go_with_the_lab() {
        let mut removed = PathBuf::new();
        let args = load(77, 9, |pins| {
            removed = pins.to_owned();
            Ok(())
        });
        let args = args.expect("nothing fails");
        let at = args
            .iter()
            .position(|arg| arg == "--pins")
            .expect("it is told");
        assert_eq!(removed, Path::new("/sys/fs/bpf/godwit").join(&args[at + 1]));
        assert!(args[at + 1].starts_with("n77-"), "{args:?}");
    }
}
