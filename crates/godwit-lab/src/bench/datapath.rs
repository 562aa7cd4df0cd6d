//! What a segment of a protected connection costs in the hooks, and what the verifier had to
//! look at before.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
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

/// How the names of the folders end in which `godwit datapath-load` pins.
const SUFFIX: &str = "-datapath-load";

/// `godwit datapath-load`.
#[derive(Debug, Deserialize)]
struct SegmentCosts {
    segments: BTreeMap<String, [Vec<f64>; 2]>,
    verified: BTreeMap<String, u32>,
}

/// `datapath.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    sweep()?;
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
    let pins = format!("n{cookie}{SUFFIX}");
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

/// Removes what earlier runs have pinned that were killed.
fn sweep() -> Result<()> {
    let names = listed(PIN_ROOT).map(|it| it.file_name().to_string_lossy().into_owned());
    let names: Vec<_> = names.collect();
    // Whoever makes such a folder runs before it is there, so processes are looked at last.
    let lines = listed("/proc").filter_map(|it| fs::read(it.path().join("cmdline")).ok());
    let lines: Vec<_> = lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .collect();
    for name in names.iter().filter(|it| is_orphan(it, &lines)) {
        let folder = Path::new(PIN_ROOT).join(name);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", folder.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn listed(folder: &str) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

/// Whether `name` is the folder of a `godwit datapath-load` that is none of the processes with
/// these command lines.
fn is_orphan(name: &str, lines: &[String]) -> bool {
    let cookie = name.strip_prefix('n');
    let cookie = cookie.and_then(|it| it.strip_suffix(SUFFIX));
    if cookie.is_none_or(|it| it.parse::<u64>().is_err()) {
        return false;
    }
    let mut loads = lines.iter().map(|it| it.split('\0'));
    !loads.any(|words| {
        let is = |word: &str| words.clone().any(|it| it == word);
        // One of an earlier version names its folder itself.
        is("datapath-load") && (is(name) || !is("--pins"))
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// They were there until the machine was restarted.
    #[test]
    fn pins_of_a_run_that_was_killed_are_found_and_no_others() {
        let other = "godwit\0datapath-load\0--pins\0n2-datapath-load\0--batches\09\0".to_owned();
        let earlier = "godwit\0datapath-load\0--batches\09\0".to_owned();
        let agent = "godwit\0agent\0".to_owned();
        let lines = [other, agent];
        assert!(is_orphan("n1-datapath-load", &lines));
        assert!(!is_orphan("n2-datapath-load", &lines));
        assert!(!is_orphan("n1-datapath-load", &[earlier]));
        for name in [
            "n1",
            "nx-datapath-load",
            "a-datapath-load",
            "1-datapath-load",
        ] {
            assert!(!is_orphan(name, &lines), "{name}");
        }
    }

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
