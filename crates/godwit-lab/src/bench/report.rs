//! Prints figures: a line of JSON each, or a row of a table.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::figure::{self, Spec, Target, Theme};
use super::stats::Samples;
use crate::{Unknown, out};

/// The schema of every line.
const SCHEMA: &str = "godwit.bench/1";

/// The schema of every line with a trace.
const TRACE_SCHEMA: &str = "godwit.bench.trace/1";

/// One of a trace: a time in the trace's unit, and bytes.
pub(super) type Point = (f64, u64);

/// What was seen over time in one run, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct TraceLine<'a> {
    schema: &'static str,
    trace: &'a str,
    unit: &'a str,
    points: Vec<Point>,
}

/// One figure as `--json` prints it; fields and their order are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Line {
    schema: &'static str,
    figure: &'static str,
    /// `null` if it could not be known.
    value: Option<f64>,
    unit: &'static str,
    /// The same measured with plain TCP on both sides, where that makes sense.
    control: Option<f64>,
    target: Option<f64>,
    /// True if the target is met or there is none; `null` without a value.
    ok: Option<bool>,
    runs: u32,
}

/// What was measured for one figure.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    pub(super) value: Option<f64>,
    pub(super) control: Option<f64>,
    pub(super) runs: u32,
}

/// Where figures go; clones print to the same place, each figure once.
#[derive(Clone, Debug)]
pub(super) struct Report {
    json: bool,
    only: Option<String>,
    printed: Arc<Mutex<BTreeSet<&'static str>>>,
    started: Instant,
}

impl Report {
    /// Fails if no figure of `themes` begins with `only`.
    pub(super) fn new(json: bool, only: Option<String>, themes: &[Theme]) -> Result<Self> {
        let report = Self {
            json,
            only,
            printed: Arc::default(),
            started: Instant::now(),
        };
        ensure!(
            themes.iter().any(|theme| report.wants(*theme)),
            Unknown::new(format!(
                "no figure begins with {:?}",
                report.only.unwrap_or_default()
            ))
        );
        Ok(report)
    }

    /// Whether only some figures were asked for.
    pub(super) const fn is_choosy(&self) -> bool {
        self.only.is_some()
    }

    /// Whether any figure of `theme` was asked for.
    pub(super) fn wants(&self, theme: Theme) -> bool {
        theme.specs().any(|spec| self.wants_figure(spec.name))
    }

    /// Whether any figure that begins with `prefix` was asked for.
    pub(super) fn wants_figure(&self, prefix: &str) -> bool {
        self.only.as_deref().is_none_or(|only| {
            let mut parts = only.split(',');
            parts.any(|part| prefix.starts_with(part) || part.starts_with(prefix))
        })
    }

    /// Prints the p50 of `samples` as the figure `name`.
    pub(super) fn put_p50(&self, name: &str, samples: &Samples) -> Result<()> {
        self.put(
            name,
            Measured {
                value: samples.p50(),
                control: None,
                runs: samples.runs(),
            },
        )
    }

    /// As [`put_p50`](Self::put_p50), if there is a figure of that name.
    pub(super) fn put_known(&self, name: &str, samples: &Samples) -> Result<()> {
        if figure::spec(name).is_some() {
            self.put_p50(name, samples)?;
        }
        Ok(())
    }

    /// Prints the one value of the figure `name`.
    pub(super) fn put_value(&self, name: &str, value: f64) -> Result<()> {
        self.put(
            name,
            Measured {
                value: Some(value),
                control: None,
                runs: 1,
            },
        )
    }

    /// Prints `<prefix>.p50` and `<prefix>.p99`.
    pub(super) fn put_percentiles(&self, prefix: &str, samples: &Samples) -> Result<()> {
        self.put_p50(&format!("{prefix}.p50"), samples)?;
        self.put(
            &format!("{prefix}.p99"),
            Measured {
                value: samples.p99(),
                control: None,
                runs: samples.runs(),
            },
        )
    }

    /// Prints the figure `name`, if it was asked for.
    pub(super) fn put(&self, name: &str, measured: Measured) -> Result<()> {
        let spec = figure::spec(name).with_context(|| format!("no figure is called {name}"))?;
        // Held while printing: a line is never cut by another.
        let mut printed = self.printed.lock().unwrap_or_else(|e| e.into_inner());
        if !self.is_asked_for(spec.name) || !printed.insert(spec.name) {
            return Ok(());
        }
        let line = line(spec, measured);
        let text = if self.json {
            serde_json::to_string(&line).context("writing JSON")?
        } else {
            row(&line)
        };
        out::line(&text).context("writing a figure")
    }

    /// Prints what was seen over time in one run, if the figure of that name was
    /// asked for; only as JSON.
    pub(super) fn trace(&self, name: &str, unit: &str, points: &[Point]) -> Result<()> {
        if !self.json || !self.is_asked_for(name) {
            return Ok(());
        }
        let line = TraceLine {
            schema: TRACE_SCHEMA,
            trace: name,
            unit,
            points: points.iter().map(|(at, of)| (rounded(*at), *of)).collect(),
        };
        let text = serde_json::to_string(&line).context("writing JSON")?;
        out::line(&text).context("writing a trace")
    }

    /// Prints what was seen in one run, which has a schema of its own; only as JSON.
    pub(super) fn detail(&self, line: &impl Serialize) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let text = serde_json::to_string(line).context("writing JSON")?;
        out::line(&text).context("writing a run")
    }

    /// Prints the figures of `theme` that nobody could measure.
    pub(super) fn put_missing(&self, theme: Theme) -> Result<()> {
        theme
            .specs()
            .try_for_each(|spec| self.put(spec.name, Measured::default()))
    }

    /// Tells the person who waits what happens.
    pub(super) fn progress(&self, what: &str) {
        // Nobody to tell is fine.
        let _ = writeln!(
            io::stderr(),
            "{:8.1} s  {what}",
            self.started.elapsed().as_secs_f64()
        );
    }

    fn is_asked_for(&self, name: &str) -> bool {
        self.only
            .as_deref()
            .is_none_or(|only| only.split(',').any(|part| name.starts_with(part)))
    }
}

fn line(spec: &'static Spec, measured: Measured) -> Line {
    let target = match spec.target {
        Target::AtMost(target) | Target::AtLeast(target) => Some(target),
        Target::Control => measured.control,
        Target::None => None,
    };
    let meets = |value: f64| match (spec.target, target) {
        (Target::AtMost(_) | Target::Control, Some(target)) => value <= target,
        (Target::AtLeast(_), Some(target)) => value >= target,
        (_, None) | (Target::None, _) => true,
    };
    Line {
        schema: SCHEMA,
        figure: spec.name,
        value: measured.value.map(rounded),
        unit: spec.unit,
        control: measured.control.map(rounded),
        target: target.map(rounded),
        ok: measured.value.map(meets),
        runs: measured.runs,
    }
}

/// Three digits after the point: more would be noise.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn row(line: &Line) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| v.to_string());
    let verdict = match line.ok {
        Some(true) => "ok",
        Some(false) => "missed",
        None => "not known",
    };
    format!(
        "{:<46}{:>12} {:<12}target {:>8}  control {:>8}  {:>4} runs  {verdict}",
        line.figure,
        number(line.value),
        line.unit,
        number(line.target),
        number(line.control),
        line.runs
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_one_stable_line() {
        let spec = figure::spec("stall.machine.download.p50").expect("it is listed");
        let measured = Measured {
            value: Some(31.24),
            control: None,
            runs: 20,
        };
        let text = serde_json::to_string(&line(spec, measured)).expect("it can be written");
        assert_eq!(
            text,
            r#"{"schema":"godwit.bench/1","figure":"stall.machine.download.p50","value":31.24,"unit":"ms","control":null,"target":38.0,"ok":true,"runs":20}"#
        );
    }

    #[test]
    fn what_is_not_known_is_neither_met_nor_missed() {
        let spec = figure::spec("stall.machine.download.p99").expect("it is listed");
        let line = line(spec, Measured::default());
        assert_eq!((line.value, line.ok, line.runs), (None, None, 0));
    }

    const ALL: [Theme; 2] = [Theme::Ratio, Theme::Machine];

    #[test]
    fn a_prefix_chooses_figures_and_their_themes() {
        let report = Report::new(true, Some("ratio.bulk.up,exact".into()), &ALL);
        let report = report.expect("there are some");
        assert!(report.wants(Theme::Ratio) && report.wants(Theme::Machine));
        assert!(!report.wants(Theme::Crowd));
        assert!(report.is_asked_for("ratio.bulk.up.5m"));
        assert!(!report.is_asked_for("ratio.bulk.down.5m"));
        let wrong = Report::new(true, Some("nonsense".into()), &ALL).expect_err("there is none");
        assert!(wrong.is::<Unknown>(), "{wrong}");
    }
}
