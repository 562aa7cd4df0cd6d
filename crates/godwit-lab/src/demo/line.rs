//! What all demonstrations say at their end: a line for scripts, a table for people.

use std::io;
use std::time::Duration;

use serde::Serialize;

use super::view::View;

/// The schema of [`Line`].
const SCHEMA: &str = "godwit.demo/1";

/// The last line that `--json` prints; its fields and their order are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Line<More> {
    schema: &'static str,
    demo: &'static str,
    ok: bool,
    bytes: u64,
    digest_ok: bool,
    rst: u64,
    stall_ms: f64,
    control: ControlLine,
    /// What this demonstration has besides.
    #[serde(flatten)]
    more: More,
}

/// The control arm in a [`Line`].
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ControlLine {
    digest_ok: bool,
}

/// What [`Line`] says of every download under Godwit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) bytes: u64,
    pub(super) exact: bool,
    pub(super) resets: u64,
    pub(super) stall_ms: f64,
    /// Whether the download without Godwit was the file.
    pub(super) control_exact: bool,
}

impl<More> Line<More> {
    pub(super) const fn new(demo: &'static str, ok: bool, facts: Facts, more: More) -> Self {
        Self {
            schema: SCHEMA,
            demo,
            ok,
            bytes: facts.bytes,
            digest_ok: facts.exact,
            rst: facts.resets,
            stall_ms: facts.stall_ms,
            control: ControlLine {
                digest_ok: facts.control_exact,
            },
            more,
        }
    }
}

/// A row of the table: its name, and what to say of an arm.
pub(super) type Row<Outcome> = (&'static str, fn(&Outcome) -> String);

/// Shows both arms beside each other.
pub(super) fn columns<Outcome>(
    rows: &[Row<Outcome>],
    [godwit, control]: [&Outcome; 2],
    view: &mut View,
) -> io::Result<()> {
    view.line(&format!("\n  {:<26}{:<18}{}", "", "Godwit", "plain TCP"))?;
    for (name, cell) in rows {
        let (left, right) = (cell(godwit), cell(control));
        view.line(&format!("  {name:<26}{left:<18}{right}"))?;
    }
    Ok(())
}

/// Milliseconds, to a tenth.
pub(super) fn tenths(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e4).round() / 10.0
}

/// How a download ended, in a word.
pub(super) fn verdict(exact: bool) -> String {
    if exact { "complete" } else { "dead" }.to_owned()
}
