//! Whether the machine itself stood still during a run.
//!
//! On each processor a thread of the agents' real-time priority does nothing but
//! sleep for a millisecond. Where it wakes up ten or more too late, the processor was
//! not there: a host that runs other guests takes it away. Three heartbeats of 10 ms
//! are missed then, and rightly so, and a stall of those milliseconds is nobody's
//! doing. Such a run is counted as disturbed, and as nothing else.

use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

use super::budget::Budget;
use super::report::{Measured, Report};
use crate::apps::command;
use crate::apps::hiccup::{self, Hiccup};
use crate::lab::Lab;
use crate::process::Process;

/// Priority of the agents' threads under SCHED_FIFO.
const PRIORITY: &str = "10";

/// Longer than any series lasts.
const LONG: Duration = Duration::from_secs(4 * 3600);

/// The control, as long as this lives.
#[derive(Debug)]
pub(super) struct Stillness {
    watch: Process,
    disturbed: u32,
    /// A quick benchmark has too few runs to do without any: it counts them only.
    excludes: bool,
}

impl Stillness {
    /// Begins to watch.
    pub(super) fn watch(lab: &Lab, budget: Budget) -> Result<Self> {
        Ok(Self {
            watch: start(lab, LONG)?,
            disturbed: 0,
            excludes: budget.either(true, false),
        })
    }

    /// Whether a run that began then is to be left out, as the machine stood still at
    /// any time since. Such a run is counted.
    pub(super) fn disturbed_since(&mut self, begun: SystemTime) -> Result<bool> {
        let begun = begun.duration_since(UNIX_EPOCH);
        let begun = begun.context("the clock is before 1970")?;
        let hiccups = parse(&self.watch.log())?;
        let disturbed = hiccups.iter().any(|hiccup| hiccup.end >= begun);
        self.disturbed += u32::from(disturbed);
        Ok(disturbed && self.excludes)
    }

    /// Prints how many runs were disturbed, as `<prefix>.disturbed`, besides those that
    /// were `counted`.
    pub(super) fn put(&self, prefix: &str, counted: u32, report: &Report) -> Result<()> {
        let left_out = if self.excludes { self.disturbed } else { 0 };
        let runs = left_out + counted;
        let measured = Measured {
            value: (runs > 0).then_some(f64::from(self.disturbed)),
            control: None,
            runs,
        };
        report.put(&format!("{prefix}.disturbed"), measured)
    }
}

/// Watches for `span`, as a process under real-time priority.
pub(super) fn start(lab: &Lab, span: Duration) -> Result<Process> {
    let program = command::program(&[hiccup::VERB, &span.as_millis().to_string()])?;
    let mut command = Command::new("chrt");
    command
        .args(["--fifo", PRIORITY])
        .arg(program.get_program());
    command.args(program.get_args());
    let watch = lab.client().spawn("hiccup", command)?;
    // It has begun before anything else has.
    thread::sleep(Duration::from_millis(20));
    Ok(watch)
}

/// What it has printed; a line that is being written is read the next time.
pub(super) fn parse(log: &str) -> Result<Vec<Hiccup>> {
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    let hiccups = whole.lines().map(str::parse).collect::<Result<_>>();
    hiccups.with_context(|| format!("no hiccup log: {log:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_whole_is_left_for_later() {
        let log = "1795375131.511936 12.500 0\n1795375131.9";
        let hiccups = parse(log).expect("a log");
        assert_eq!(hiccups.len(), 1);
        assert_eq!(hiccups[0].late, Duration::from_micros(12_500));
        assert!(parse("").expect("no hiccup yet").is_empty());
    }
}
