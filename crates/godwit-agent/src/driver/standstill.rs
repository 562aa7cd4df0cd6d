//! Servers that are stopped (SIGSTOP, SIGTSTP, a debugger) stand in the middle of what they
//! say: how far their answers have come is no measure for their twins ([`super::output`]).
//! Their clients wait, so people hear of it (fact `server_stopped`).
//!
//! The data path sees the signal, and whether the process has sockets of a service
//! (`gw_signal.h`). Whether it stands, and until when, is looked up here. One that a control
//! group freezes (`cgroup.freeze`) is sent no signal, and is not noticed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::StoppedTable;

use crate::input::{DriverGone, Inbox, Input};
use crate::realtime::be_ordinary;
use crate::surroundings::Look;

/// How often is looked while a process stands, or may be about to.
const PERIOD: Duration = Duration::from_millis(20);

/// A signal is acted upon within this time, or was caught.
const PATIENCE: Duration = Duration::from_millis(500);

/// Who stands for so long is said: debuggers stop a process for moments.
const SAID_AFTER: Duration = Duration::from_millis(500);

/// Without a signal. The end of the driver is noticed at once.
const FOREVER: Duration = Duration::from_secs(3600);

/// Processes that are watched, at most: anybody may stop as many as they like.
const MAX_WATCHED: usize = 256;

const NAME: &str = "server_stopped";

const ADVICE: &str = "let it go on (`kill -CONT PID`) or end it: until then its clients wait, and \
                      lengths of answers are not compared with those of twins";

/// The way to the thread that looks; it ends with this.
#[derive(Debug)]
pub(super) struct Standstill(Sender<u32>);

impl Standstill {
    /// `stopped` has what was stopped before this agent began.
    pub(super) fn spawn(stopped: Arc<StoppedTable>, inbox: Inbox) -> io::Result<Self> {
        let (sender, signals) = channel();
        let mut watch = Watch::new(stopped);
        thread::Builder::new()
            .name("gw-standstill".into())
            .spawn(move || {
                be_ordinary();
                watch.run(&signals, &inbox);
            })?;
        Ok(Self(sender))
    }

    /// A process was sent a signal that may stop it.
    pub(super) fn look_at(&self, pid: u32) {
        if self.0.send(pid).is_err() {
            tracing::error!("stopped servers are not noticed: their thread is gone");
        }
    }
}

#[derive(Debug)]
struct Watch {
    stopped: Arc<StoppedTable>,
    processes: BTreeMap<u32, Process>,
    /// What the driver knows: whether one stands, and which are said.
    told: (bool, Vec<u32>),
}

#[derive(Debug, Clone, Copy)]
struct Process {
    stands: bool,
    /// Since when; or when it was sent the signal.
    since: Instant,
}

impl Process {
    fn new() -> Self {
        Self {
            stands: false,
            since: Instant::now(),
        }
    }
}

impl Watch {
    fn new(stopped: Arc<StoppedTable>) -> Self {
        let before = stopped.all().unwrap_or_else(|error| {
            tracing::warn!(%error, "servers that were stopped before are not known");
            Vec::new()
        });
        Self {
            stopped,
            processes: before
                .into_iter()
                .map(|pid| (pid, Process::new()))
                .collect(),
            told: (false, Vec::new()),
        }
    }

    fn run(&mut self, signals: &Receiver<u32>, inbox: &Inbox) {
        loop {
            let patience = if self.processes.is_empty() {
                FOREVER
            } else {
                PERIOD
            };
            match signals.recv_timeout(patience) {
                Ok(pid) if self.processes.len() < MAX_WATCHED => {
                    self.processes.entry(pid).or_insert_with(Process::new);
                }
                Ok(pid) => tracing::warn!(pid, "more servers are stopped than are watched"),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.look(inbox).is_err() {
                return;
            }
        }
    }

    fn look(&mut self, inbox: &Inbox) -> Result<(), DriverGone> {
        self.processes.retain(|pid, process| {
            let stood = std::mem::replace(&mut process.stands, stands(*pid));
            if process.stands && !stood {
                process.since = Instant::now();
            }
            // One that was caught, or that goes on, is over.
            let stays = process.stands || !stood && process.since.elapsed() < PATIENCE;
            // Somebody else may have taken it out: there is another agent, perhaps.
            if !stays && let Err(error) = self.stopped.remove(*pid) {
                tracing::debug!(pid, %error, "not in the list of stopped servers");
            }
            stays
        });
        let standing = self.processes.iter().filter(|(_, it)| it.stands);
        let long = standing
            .clone()
            .filter(|(_, it)| it.since.elapsed() >= SAID_AFTER);
        let long: Vec<_> = long.map(|(pid, _)| *pid).collect();
        let stands = standing.count() > 0;
        if stands != self.told.0 {
            self.told.0 = stands;
            inbox.send(Input::Standstill(stands))?;
        }
        if long != self.told.1 {
            let look = look(&long);
            self.told.1 = long;
            inbox.send(Input::Facts(look))?;
        }
        Ok(())
    }
}

fn look(stopped: &[u32]) -> Look {
    let found = stopped.first().map(|pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let first = format!("process {pid} ({})", comm.trim_end());
        match stopped.len() {
            1 => format!("{first} serves clients, and is stopped"),
            count => format!("{count} processes serve clients, and are stopped, such as {first}"),
        }
    });
    Look::of_one(NAME, found, ADVICE)
}

/// Whether all of a process is stopped, or traced and stopped.
fn stands(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| is_stopped(&stat))
}

/// By the state behind the name, which may have any characters (proc_pid_stat(5)).
fn is_stopped(stat: &str) -> bool {
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    state.starts_with(['T', 't'])
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_process_stands_from_its_signal_to_the_next() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it runs");
        let pid = child.id();
        let number = Pid::from_raw(i32::try_from(pid).expect("they are small"));
        for (signal, expected) in [(Signal::SIGSTOP, true), (Signal::SIGCONT, false)] {
            kill(number, signal).expect("it is ours");
            let deadline = Instant::now() + Duration::from_secs(10);
            while stands(pid) != expected {
                assert!(Instant::now() < deadline, "{signal}");
                thread::sleep(Duration::from_millis(1));
            }
        }
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
        assert!(!stands(pid));
    }

    #[test]
    fn the_state_is_behind_the_name() {
        assert!(is_stopped("12 (a) R) T 1 12"));
        assert!(is_stopped("12 (a) t 1 12"));
        assert!(!is_stopped("12 (a) T) S 1 12"));
    }
}
