//! Powers other nodes off, by the command of the configuration.
//!
//! The agent does not run the command itself. A small helper process per peer
//! does, which is started before the agent gives any privilege up, and without
//! its real-time priority. The two speak JSON, a line each:
//!
//! ```text
//!  agent ── {"node":"a","command":"...","limit_ms":30000} ─► helper ── /bin/sh -c
//!        ◄─ {"outcome":"timed_out"} ──────────────────────
//! ```
//!
//! One thread `gw-stonith` per peer waits for the answer; it ends when the driver
//! is gone. A command that is under way when its agent dies runs to its end or
//! its limit: half a power-off would be worse.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use godwit_core::{PeerId, StonithFault};
use serde::{Deserialize, Serialize};

use crate::config::{Config, PeerRole};
use crate::input::{Inbox, Input};
use crate::wake::{self, Orders, Work};

mod helper;
#[cfg(test)]
mod tests;

pub use helper::helper;

/// The hidden subcommand that a helper is.
pub const SUBCOMMAND: &str = "stonith-helper";

/// What a helper is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Request {
    /// Whom to power off; in the command's environment as `GODWIT_NODE`.
    node: String,
    /// For `/bin/sh -c`.
    command: String,
    /// How long that may take, milliseconds.
    limit_ms: u64,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// The command returned 0.
    Off,
    /// It returned something else, or was killed.
    CommandFailed,
    /// It ran for too long, and was killed with all that it had started.
    TimedOut,
    /// It could not be started.
    NotRun,
}

impl Outcome {
    const fn result(self) -> Result<(), StonithFault> {
        match self {
            Self::Off => Ok(()),
            Self::CommandFailed => Err(StonithFault::CommandFailed),
            Self::TimedOut => Err(StonithFault::TimedOut),
            Self::NotRun => Err(StonithFault::NotRun),
        }
    }
}

/// The agent's end of all helpers; none without a command.
#[derive(Debug, Default)]
pub struct Stonith {
    orders: BTreeMap<PeerId, Orders<()>>,
}

impl Stonith {
    /// Starts what `fencing = "stonith"` needs, nothing with any other fencing.
    /// To be called before the caller gets a real-time priority.
    ///
    /// # Errors
    /// If there can be no thread or no helper.
    pub fn start(config: &Config, inbox: &Inbox) -> io::Result<Self> {
        // This very program, whatever has become of its file since.
        Self::start_program(Path::new("/proc/self/exe"), config, inbox)
    }

    fn start_program(program: &Path, config: &Config, inbox: &Inbox) -> io::Result<Self> {
        let mut stonith = Self::default();
        let Some((command, limit)) = config.stonith_in_force() else {
            return Ok(stonith);
        };
        for (peer, node) in (0..).map(PeerId).zip(config.others()) {
            if node.role != PeerRole::Server {
                continue;
            }
            let line = Line {
                peer,
                request: Request {
                    node: node.name.to_string(),
                    command: command.to_owned(),
                    limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
                },
                program: program.to_owned(),
                inbox: inbox.clone(),
                helper: Some(Helper::start(program)?),
            };
            let (order, orders) = wake::queue()?;
            thread::Builder::new()
                .name("gw-stonith".into())
                .spawn(move || line.run(&orders))?;
            stonith.orders.insert(peer, order);
        }
        Ok(stonith)
    }

    /// Asks for `peer` to be powered off; an [`Input::Stonith`] answers. False if
    /// it is no server, or there is no command.
    pub fn power_off(&self, peer: PeerId) -> bool {
        let order = self.orders.get(&peer);
        order.is_some_and(|order| order.give(()).is_ok())
    }
}

/// The way to one peer's power switch.
#[derive(Debug)]
struct Line {
    peer: PeerId,
    request: Request,
    program: PathBuf,
    inbox: Inbox,
    /// `None` after it has died; the next order starts another one.
    helper: Option<Helper>,
}

impl Line {
    fn run(mut self, orders: &Work<()>) {
        while let Some(()) = orders.wait() {
            let outcome = self.ask().unwrap_or_else(|error| {
                tracing::error!(node = self.request.node, %error, "the stonith helper has ended");
                self.helper = None;
                Outcome::NotRun
            });
            let answer = Input::Stonith {
                peer: self.peer,
                outcome: outcome.result(),
            };
            if self.inbox.send(answer).is_err() {
                return;
            }
        }
    }

    fn ask(&mut self) -> io::Result<Outcome> {
        let helper = match &mut self.helper {
            Some(helper) => helper,
            none => none.insert(Helper::start(&self.program)?),
        };
        helper.ask(&self.request)
    }
}

/// A running helper; it ends when this is dropped.
#[derive(Debug)]
struct Helper {
    child: Child,
    /// `None` only while it is being dropped.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Helper {
    fn start(program: &Path) -> io::Result<Self> {
        let mut child = Command::new(program)
            .arg(SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Self {
            child,
            input: Some(input),
            output: BufReader::new(output),
        })
    }

    fn ask(&mut self, request: &Request) -> io::Result<Outcome> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        input.write_all(&line)?;
        let mut text = String::new();
        if self.output.read_line(&mut text)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let answer: Answer = serde_json::from_str(&text)?;
        Ok(answer.outcome)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It reads the end of its input, and ends.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
