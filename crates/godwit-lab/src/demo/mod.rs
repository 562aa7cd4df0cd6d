//! Demonstrations that a stranger can run: they build their own lab, show what
//! happens while it happens, and leave nothing behind.

mod arm;
mod gate;
mod handoff;
mod kill;
mod line;
mod migrate;
mod moves;
mod pair;
mod shadow;
mod view;

use std::env;
use std::io;

use anyhow::{Context as _, Result, ensure};

use view::View;

use crate::apps::content::Content;
use crate::{Unknown, out};

/// Bytes of the file: the same on every machine and day.
const SEED: u64 = 0x60d_1717;

/// Below that, half of the file is gone before anyone can look.
const SIZE_MIN: u64 = 1 << 20;

/// Names that [`run`] knows, with what each shows.
pub const NAMES: [(&str, &str); 5] = [
    (
        "shadow",
        "an unmodified curl finishes a download whose server went dark half-way",
    ),
    (
        "move",
        "one download, on one connection, whose server is changed twenty times",
    ),
    (
        "kill",
        "the same connection outlives kill -9 of the server process on one machine, then on the other",
    ),
    (
        "migrate",
        "a stream whose server exports its state goes on when the server's machine crashes, and moves twenty times",
    ),
    (
        "handoff",
        "one connection of curl, each of whose requests is served by the one of three Apaches that has its file",
    ),
];

/// What may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoOptions {
    /// One line of JSON on standard output, at the end; all else goes to
    /// standard error. Default: false.
    pub json: bool,
    /// Bytes to download, at least 1 MiB. Default: 1 GiB.
    pub size: u64,
    /// Rate of the client's link, megabits per second. Default: 1000.
    pub mbit: u64,
}

impl Default for DemoOptions {
    fn default() -> Self {
        Self {
            json: false,
            size: 1 << 30,
            mbit: 1000,
        }
    }
}

impl DemoOptions {
    /// The file to download.
    fn content(self) -> Result<Content> {
        ensure!(
            self.size >= SIZE_MIN,
            "the download must have at least 1 MiB"
        );
        Ok(Content {
            seed: SEED,
            length: self.size,
        })
    }
}

/// Runs the demonstration called `name`; true if it showed what it should.
///
/// # Errors
/// Fails with [`Unknown`] if there is no such demonstration; else if this machine can't have a lab,
/// or if something other than what is demonstrated goes wrong.
pub fn run(name: &str, options: DemoOptions) -> Result<bool> {
    let mut view = if options.json {
        View::new(Box::new(io::stderr()), false)
    } else {
        let is_terminal = io::IsTerminal::is_terminal(&io::stdout());
        let is_live = is_terminal && view::may_move_cursor(|name| env::var_os(name));
        View::new(Box::new(out::stdout()), is_live)
    };
    match name {
        "shadow" => {
            let summary = shadow::run(options, &mut view)?;
            print(options, &summary.line())?;
            Ok(summary.ok())
        }
        "move" => {
            let summary = moves::run(options, &mut view)?;
            print(options, &summary.line())?;
            Ok(summary.ok())
        }
        "kill" => {
            let summary = kill::run(options, &mut view)?;
            print(options, &summary.line())?;
            Ok(summary.ok())
        }
        "migrate" => {
            let summary = migrate::run(options, &mut view)?;
            print(options, &summary.line())?;
            Ok(summary.ok())
        }
        "handoff" => {
            let summary = handoff::run(&mut view)?;
            print(options, &summary.line())?;
            Ok(summary.ok())
        }
        other => {
            let known = NAMES.map(|(name, _)| name).join(", ");
            let sentence = format!("there is no demonstration {other:?}; there are: {known}");
            Err(Unknown::new(sentence).into())
        }
    }
}

/// The last line, if it is wanted.
fn print(options: DemoOptions, line: &impl serde::Serialize) -> Result<()> {
    if options.json {
        let line = serde_json::to_string(line).context("writing JSON")?;
        out::line(&line).context("writing the result")?;
    }
    Ok(())
}
