//! A server that looks at what an export costs it: to each client it says one byte and
//! exports 1 KB, again and again, or commits it; it may count itself. Its log has the percentiles ([`costs`]).

use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use godwit_app::{Error, Listener, Progress, close, commit_state, export_state, export_state_at};

use super::command;
use super::roam::{listen, start_program};
use crate::lab::Node;
use crate::process::Process;

/// Its command.
pub(crate) const VERB: &str = "exports";

/// What it is told if it is to commit, and if it is to count.
const COMMIT: &str = "--commit";
const COUNT: &str = "--count";

/// What it does with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Export,
    ExportAt,
    Commit,
}

/// Exports per client.
pub(crate) const CALLS: usize = 100_000;

/// Commits per client.
pub(crate) const COMMITS: usize = 5_000;

/// Bytes of a snapshot.
const SIZE: usize = 1 << 10;

/// What is before the percentiles in the log.
const SAID: &str = "exports: ";

/// What the log says of a commit that no standby has.
const UNPROTECTED: &str = "unprotected commit ";

/// Before such a one is tried again.
const AGAIN: Duration = Duration::from_millis(10);

/// What one export took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// The middle one.
    pub(crate) p50: Duration,
    /// What 99 of 100 did not exceed.
    pub(crate) p99: Duration,
}

/// Starts it as [`roam::start`](super::roam::start) does.
///
/// # Errors
/// Fails if it does not listen within five seconds.
pub(crate) fn start(node: &Node, port: u16, agent: &Path) -> Result<Process> {
    start_program(node, port, agent, &[VERB])
}

/// The same, and it commits.
pub(crate) fn start_committing(node: &Node, port: u16, agent: &Path) -> Result<Process> {
    start_program(node, port, agent, &[VERB, COMMIT])
}

/// The same, and it counts itself.
pub(crate) fn start_counting(node: &Node, port: u16, agent: &Path) -> Result<Process> {
    start_program(node, port, agent, &[VERB, COUNT])
}

/// What the log says of each client that has had all, in this order.
pub(crate) fn costs(log: &str) -> Vec<Cost> {
    let said = log.lines().filter_map(|line| line.strip_prefix(SAID));
    let cost = |line: &str| {
        let (p50, p99) = line.split_once(' ')?;
        Some(Cost {
            p50: Duration::from_nanos(p50.parse().ok()?),
            p99: Duration::from_nanos(p99.parse().ok()?),
        })
    };
    said.filter_map(cost).collect()
}

/// How many commits no standby had.
pub(crate) fn unprotected(log: &str) -> usize {
    let said = log.lines().filter(|line| line.starts_with(UNPROTECTED));
    said.count()
}

/// Serves at all of the addresses until the process ends.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (call, addresses) = match args {
        [first, addresses @ ..] if first == COMMIT => (Call::Commit, addresses),
        [first, addresses @ ..] if first == COUNT => (Call::ExportAt, addresses),
        addresses => (Call::Export, addresses),
    };
    let mut threads = Vec::new();
    for address in addresses {
        let listener = command::address(address).and_then(listen);
        let listener = listener.with_context(|| format!("listening at {address}"))?;
        threads.push(thread::spawn(move || accept(&listener, call)));
    }
    for thread in threads {
        thread.join().ok().context("a listener ended")??;
    }
    Ok(())
}

fn accept(listener: &Listener, call: Call) -> Result<()> {
    loop {
        let stream = listener.accept()?.stream;
        thread::spawn(move || {
            if let Err(error) = serve(stream, call) {
                // The log of the process: a client that is gone.
                let _ = writeln!(std::io::stderr(), "{error:#}");
            }
        });
    }
}

fn serve(mut stream: TcpStream, call: Call) -> Result<()> {
    stream.set_nodelay(true)?;
    let state = [0; SIZE];
    let calls = if call == Call::Commit { COMMITS } else { CALLS };
    let mut times = Vec::with_capacity(calls);
    for written in (1..).take(calls) {
        // Where the server stands must be another place each time.
        stream.write_all(b"!").context("writing")?;
        let mut since = Instant::now();
        match call {
            Call::Export => export_state(&stream, &state)?,
            Call::ExportAt => {
                let progress = Progress { read: 0, written };
                export_state_at(&stream, &state, progress)?;
            }
            Call::Commit => {
                while let Err(error) = commit_state(&stream, &state) {
                    if !matches!(error, Error::Unprotected) {
                        return Err(error.into());
                    }
                    let took = since.elapsed();
                    writeln!(std::io::stderr(), "{UNPROTECTED}{written}, after {took:?}")?;
                    thread::sleep(AGAIN);
                    since = Instant::now();
                }
            }
        }
        times.push(since.elapsed());
    }
    times.sort_unstable();
    let [p50, p99] = [50, 99].map(|percent| times[calls * percent / 100].as_nanos());
    writeln!(std::io::stderr(), "{SAID}{p50} {p99}")?;
    Ok(close(stream)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_read_as_they_are_written() {
        let log = "came: nobody\nexports: 2300 3100\nexports: 1 x\nexports: 100 150\n";
        let cost = |p50, p99| Cost {
            p50: Duration::from_nanos(p50),
            p99: Duration::from_nanos(p99),
        };
        assert_eq!(costs(log), [cost(2300, 3100), cost(100, 150)]);
        assert_eq!(unprotected(log), 0);
        assert_eq!(unprotected("unprotected commit 417, after 1ms\n"), 1);
    }
}
