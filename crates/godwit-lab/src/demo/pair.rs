//! The same download twice: under Godwit, and with an address that moves.

use std::fs;
use std::io;

use anyhow::{Context as _, Result};

use super::DemoOptions;
use super::arm::{self, FILE, Outcome, Protection, Trouble};
use super::line::{Facts, Row, columns, verdict};
use super::view::View;
use crate::apps::content::Digest;
use crate::lab::{Lab, LabOptions};

/// Both arms.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) godwit: Outcome,
    pub(super) control: Outcome,
}

/// What one arm is called, and what happens in it.
pub(super) type Part = (&'static str, Trouble);

impl Pair {
    /// Runs both arms, one after the other: each has the machine to itself.
    pub(super) fn run(
        options: DemoOptions,
        [with, without]: [Part; 2],
        view: &mut View,
    ) -> Result<Self> {
        let content = options.content()?;
        let lab = Lab::new(LabOptions::default())?;
        let root = lab.folder().join("www");
        fs::create_dir(&root).context("creating the folder of the web server")?;
        view.line(&format!(
            "A client, two servers and a switch, in network namespaces; {} MB to download at {} Mbit/s.",
            options.size / 1_000_000,
            options.mbit
        ))?;
        let digest = content.write_to(&root.join(FILE))?;

        view.part(with.0)?;
        let how = (Protection::Godwit, with.1);
        let godwit = arm::run(&lab, &root, content, options.mbit, how, view)?;
        say_end(&godwit, view)?;

        view.part(without.0)?;
        // The first lab stays for its file; its machines have nothing to do.
        let second = Lab::new(LabOptions::default())?;
        let how = (Protection::MovedAddress, without.1);
        let control = arm::run(&second, &root, content, options.mbit, how, view)?;
        say_end(&control, view)?;

        let pair = Self { godwit, control };
        pair.table(digest, view)?;
        Ok(pair)
    }

    pub(super) fn facts(&self) -> Facts {
        Facts {
            bytes: self.godwit.bytes,
            exact: self.godwit.exact,
            resets: self.godwit.resets,
            stall_ms: self.godwit.stall_ms(),
            control_exact: self.control.exact,
        }
    }

    fn table(&self, digest: Digest, view: &mut View) -> io::Result<()> {
        let rows: [Row<Outcome>; 5] = [
            ("bytes received", |o| o.bytes.to_string()),
            ("RST on the client's wire", |o| o.resets.to_string()),
            ("longest silence", |o| match (o.exact, o.stall) {
                (true, Some(stall)) => format!("{:.1} ms", stall.as_secs_f64() * 1e3),
                (true, None) => "below 1 ms".to_owned(),
                (false, _) => "for ever".to_owned(),
            }),
            ("service found at", |o| o.owner.to_owned()),
            ("download", |o| verdict(o.exact)),
        ];
        columns(&rows, [&self.godwit, &self.control], view)?;
        view.line(&format!("\n  sha256 of the file         {digest}"))?;
        view.line(&format!(
            "  sha256 of the download     {}",
            self.godwit.digest
        ))
    }
}

fn say_end(outcome: &Outcome, view: &mut View) -> io::Result<()> {
    if outcome.exact {
        view.event("curl is done")
    } else if outcome.said.is_empty() {
        view.event("curl got something else than the file")
    } else {
        view.event(&outcome.said)
    }
}

/// For tests of what is made of a pair: one that crossed a crash, and one that
/// did not.
#[cfg(test)]
pub(super) fn example() -> Pair {
    let outcome = |exact| Outcome {
        bytes: 1 << 30,
        exact,
        digest: String::new(),
        resets: 0,
        stall: Some(std::time::Duration::from_micros(31_240)),
        handshakes: 1,
        struck: true,
        moves: 0,
        owner: "b",
        said: String::new(),
    };
    Pair {
        godwit: outcome(true),
        control: outcome(false),
    }
}
