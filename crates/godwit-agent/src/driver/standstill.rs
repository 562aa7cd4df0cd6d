//! Servers that are stopped (SIGSTOP, SIGTSTP, a debugger) or frozen with their control group
//! (`docker pause`) stand in the middle of what they say: how far their answers have come is
//! no measure for their twins ([`super::output`]). Their clients wait, so people hear of it
//! (fact `server_stopped`).
//!
//! The data path sees the signal, and whether the process has sockets of a service
//! (`gw_signal.h`). When a group freezes, when the agent begins, and now and then, all tasks
//! are looked through (`gw_stand.h`). Whether a process stands, and until when, is looked up here.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::StoppedServers;
use godwit_core::fitness::Consequence;

use super::freezer::Freezer;
use crate::input::{DriverGone, Inbox, Input, StopHint};
use crate::realtime::be_ordinary;
use crate::surroundings::Look;

/// How often is looked while a process stands, or may be about to.
const PERIOD: Duration = Duration::from_millis(20);

/// A signal is acted upon within this time, or was caught.
const PATIENCE: Duration = Duration::from_millis(500);

/// Who stands for so long is said: debuggers stop a process for moments.
const SAID_AFTER: Duration = Duration::from_millis(500);

/// Nothing tells of a tracer that takes hold of a process (PTRACE_SEIZE), or of one that is
/// moved into a frozen group: all tasks are looked through so often, or as often as
/// [`REST`] allows.
const ROUND: Duration = Duration::from_millis(400);

/// After a look through all tasks it rests at least so many times as long as that took.
const REST: u32 = 500;

/// Processes that are watched, at most: anybody may stop as many as they like.
const MAX_WATCHED: usize = 256;

const NAME: &str = "server_stopped";

const ADVICE: &str = "let it go on (`kill -CONT PID`, or `docker unpause`) or end it: until then \
                      its clients wait, and lengths of answers are not compared with those of \
                      twins";

/// The way to the thread that looks; it ends with this.
#[derive(Debug)]
pub(super) struct Standstill(Sender<StopHint>);

impl Standstill {
    pub(super) fn spawn(servers: Arc<StoppedServers>, inbox: Inbox) -> io::Result<Self> {
        let (sender, hints) = channel();
        let mut watch = Watch::new(servers);
        thread::Builder::new()
            .name("gw-standstill".into())
            .spawn(move || {
                be_ordinary();
                watch.run(&hints, &inbox);
            })?;
        Ok(Self(sender))
    }

    /// Servers may stand from now on.
    pub(super) fn note(&self, hint: StopHint) {
        if self.0.send(hint).is_err() {
            tracing::error!("stopped servers are not noticed: their thread is gone");
        }
    }
}

#[derive(Debug)]
struct Watch {
    servers: Arc<StoppedServers>,
    freezer: Freezer,
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

impl Watch {
    fn new(servers: Arc<StoppedServers>) -> Self {
        let freezer = Freezer::find().unwrap_or_else(|error| {
            tracing::warn!(%error, "servers that a control group freezes are not known");
            Freezer::default()
        });
        Self {
            servers,
            freezer,
            processes: BTreeMap::new(),
            told: (false, Vec::new()),
        }
    }

    /// Who was stopped before is looked for first.
    fn run(&mut self, hints: &Receiver<StopHint>, inbox: &Inbox) {
        let (mut hint, mut next) = (Ok(StopHint::Frozen), Instant::now());
        loop {
            match hint {
                Ok(StopHint::Signal(pid)) => self.watch(pid),
                Ok(StopHint::Frozen) => next = self.look_around(),
                Err(RecvTimeoutError::Timeout) if next <= Instant::now() => {
                    next = self.look_around();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.look(inbox).is_err() {
                return;
            }
            let rest = next.saturating_duration_since(Instant::now());
            hint = hints.recv_timeout(if self.processes.is_empty() {
                rest
            } else {
                rest.min(PERIOD)
            });
        }
    }

    fn watch(&mut self, pid: u32) {
        if self.processes.len() < MAX_WATCHED {
            let process = Process {
                stands: false,
                since: Instant::now(),
            };
            self.processes.entry(pid).or_insert(process);
        } else {
            tracing::warn!(pid, "more servers are stopped than are watched");
        }
    }

    /// Looks through all tasks; when to do so again. Anybody may freeze groups of their own:
    /// it rests behind that.
    fn look_around(&mut self) -> Instant {
        let began = Instant::now();
        match self.servers.look() {
            Ok(found) => found.into_iter().for_each(|pid| self.watch(pid)),
            Err(error) => tracing::warn!(%error, "can't look for servers that are stopped"),
        }
        let took = began.elapsed();
        thread::sleep(PERIOD);
        began + ROUND.max(took * REST)
    }

    fn look(&mut self, inbox: &Inbox) -> Result<(), DriverGone> {
        let freezer = &self.freezer;
        self.processes.retain(|pid, process| {
            let stands = is_stopped(*pid) || freezer.holds(*pid);
            let stood = std::mem::replace(&mut process.stands, stands);
            if process.stands && !stood {
                process.since = Instant::now();
            }
            // One that was caught, or that goes on, is over.
            process.stands || !stood && process.since.elapsed() < PATIENCE
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
            1 => format!("{first} has a socket of a service, and is stopped"),
            count => {
                format!(
                    "{count} processes have sockets of services, and are stopped, such as {first}"
                )
            }
        }
    });
    Look::of_one(NAME, Consequence::NoMoves, found, ADVICE)
}

/// Whether all of a process is stopped, or traced and stopped.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| says_stopped(&stat))
}

/// By the state behind the name, which may have any characters (proc_pid_stat(5)).
fn says_stopped(stat: &str) -> bool {
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
            while is_stopped(pid) != expected {
                assert!(Instant::now() < deadline, "{signal}");
                thread::sleep(Duration::from_millis(1));
            }
        }
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
        assert!(!is_stopped(pid));
    }

    #[test]
    fn the_state_is_behind_the_name() {
        assert!(says_stopped("12 (a) R) T 1 12"));
        assert!(says_stopped("12 (a) t 1 12"));
        assert!(!says_stopped("12 (a) T) S 1 12"));
    }
}
