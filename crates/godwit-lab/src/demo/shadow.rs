//! `godwit demo shadow`: a download outlives its server, and beside it the
//! same crash with plain TCP and a moved address, where it does not.

use std::fs;
use std::io;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::DemoOptions;
use super::arm::{self, FILE, Outcome, Protection, Trouble};
use super::view::View;
use crate::apps::content::{Content, Digest};
use crate::lab::{Lab, LabOptions};

/// The schema of the last line that `--json` prints.
pub(super) const SCHEMA: &str = "godwit.demo/1";

/// Bytes of the file: the same on every machine and day.
pub(super) const SEED: u64 = 0x60d_1717;

/// Below that, half of the file is gone before anyone can look.
pub(super) const SIZE_MIN: u64 = 1 << 20;

/// Both arms.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    godwit: Outcome,
    control: Outcome,
}

/// The last line that `--json` prints; its fields and their order are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Line {
    schema: &'static str,
    demo: &'static str,
    ok: bool,
    bytes: u64,
    digest_ok: bool,
    rst: u64,
    stall_ms: f64,
    control: ControlLine,
}

/// The control arm in a [`Line`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ControlLine {
    pub(super) digest_ok: bool,
}

impl Summary {
    /// True if the download survived unharmed, and the same crash ended it
    /// without Godwit.
    pub(super) const fn ok(&self) -> bool {
        let survived = self.godwit.exact && self.godwit.struck && self.godwit.resets == 0;
        survived && self.control.struck && !self.control.exact
    }

    pub(super) fn line(&self) -> Line {
        Line {
            schema: SCHEMA,
            demo: "shadow",
            ok: self.ok(),
            bytes: self.godwit.bytes,
            digest_ok: self.godwit.exact,
            rst: self.godwit.resets,
            stall_ms: self.godwit.stall_ms(),
            control: ControlLine {
                digest_ok: self.control.exact,
            },
        }
    }
}

/// Runs both arms, one after the other: each has the machine to itself.
pub(super) fn run(options: DemoOptions, view: &mut View) -> Result<Summary> {
    ensure!(
        options.size >= SIZE_MIN,
        "the download must have at least 1 MiB"
    );
    let content = Content {
        seed: SEED,
        length: options.size,
    };
    let lab = Lab::new(LabOptions::default())?;
    let root = lab.folder().join("www");
    fs::create_dir(&root).context("creating the folder of the web server")?;
    view.line(&format!(
        "A client, two servers and a switch, in network namespaces; {} MB to download at {} Mbit/s.",
        options.size / 1_000_000,
        options.mbit
    ))?;
    let digest = content.write_to(&root.join(FILE))?;

    view.part("With Godwit")?;
    let how = (Protection::Godwit, Trouble::Crash);
    let godwit = arm::run(&lab, &root, content, options.mbit, how, view)?;
    say_end(&godwit, view)?;

    view.part("The same with plain TCP and a moved address")?;
    // The first lab stays for its file; its machines have nothing to do.
    let second = Lab::new(LabOptions::default())?;
    let control = arm::run(
        &second,
        &root,
        content,
        options.mbit,
        (Protection::MovedAddress, Trouble::Crash),
        view,
    )?;
    say_end(&control, view)?;

    table(&godwit, &control, digest, view)?;
    Ok(Summary { godwit, control })
}

pub(super) fn say_end(outcome: &Outcome, view: &mut View) -> io::Result<()> {
    if outcome.exact {
        view.event("curl is done")
    } else if outcome.said.is_empty() {
        view.event("curl got something else than the file")
    } else {
        view.event(&outcome.said)
    }
}

/// A row of the table: its name, and what to say of an arm.
type Row = (&'static str, fn(&Outcome) -> String);

pub(super) fn table(
    godwit: &Outcome,
    control: &Outcome,
    digest: Digest,
    view: &mut View,
) -> io::Result<()> {
    let rows: [Row; 5] = [
        ("bytes received", |o| o.bytes.to_string()),
        ("RST on the client's wire", |o| o.resets.to_string()),
        ("longest silence", |o| match (o.exact, o.stall) {
            (true, Some(stall)) => format!("{:.1} ms", stall.as_secs_f64() * 1e3),
            (true, None) => "below 1 ms".to_owned(),
            (false, _) => "for ever".to_owned(),
        }),
        ("service found at", |o| o.owner.to_owned()),
        ("download", |o| {
            if o.exact { "complete" } else { "dead" }.to_owned()
        }),
    ];
    view.line(&format!("\n  {:<26}{:<18}{}", "", "Godwit", "plain TCP"))?;
    for (name, cell) in rows {
        let (left, right) = (cell(godwit), cell(control));
        view.line(&format!("  {name:<26}{left:<18}{right}"))?;
    }
    view.line(&format!("\n  sha256 of the file         {digest}"))?;
    view.line(&format!("  sha256 of the download     {}", godwit.digest))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn outcome(exact: bool) -> Outcome {
        Outcome {
            bytes: 1 << 30,
            exact,
            digest: String::new(),
            resets: 0,
            stall: Some(Duration::from_micros(31_240)),
            handshakes: 1,
            struck: true,
            moves: 0,
            owner: "b",
            said: String::new(),
        }
    }

    #[test]
    fn the_line_is_what_others_script_against() {
        let summary = Summary {
            godwit: outcome(true),
            control: outcome(false),
        };
        let line = serde_json::to_string(&summary.line()).expect("it is plain data");
        let expected = concat!(
            r#"{"schema":"godwit.demo/1","demo":"shadow","ok":true,"bytes":1073741824,"#,
            r#""digest_ok":true,"rst":0,"stall_ms":31.2,"control":{"digest_ok":false}}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn a_reset_or_a_surviving_control_arm_is_not_ok() {
        let good = Summary {
            godwit: outcome(true),
            control: outcome(false),
        };
        assert!(good.ok());
        let mut reset = good.clone();
        reset.godwit.resets = 1;
        assert!(!reset.ok());
        let mut survived = good;
        survived.control.exact = true;
        assert!(!survived.ok());
    }
}
