//! Servers that are stopped (SIGSTOP, SIGTSTP, a debugger) or frozen with their control group
//! (`docker pause`) stand in the middle of what they say: how far their answers have come is
//! no measure for their twins ([`super::output`]). Their clients wait, so people hear of it
//! (fact `server_stopped`).
//!
//! The data path sees the signal, and whether the process has sockets of a service
//! (`gw_signal.h`). When a group freezes, when the agent begins, and now and then, all tasks
//! are looked through (`gw_stand.h`). Whether a process stands, and until when, is looked up here.
//!
//! Where all stand that have a listener of a service, nobody accepts its clients: then what a
//! server elsewhere dies with is not taken over ([`Consequence::NoServer`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{Holder, StoppedServers};
use godwit_core::fitness::Consequence;
use godwit_sock::Listeners;
use godwit_wire::ShareId;

use super::freezer::Freezer;
use crate::config::Config;
use crate::descriptors::Sight;
use crate::facts::{Look, Wrong};
use crate::input::{DriverGone, Inbox, Input, StopHint};
use crate::realtime::be_ordinary;
use crate::wake::{self, Orders, Work};

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
pub(super) struct Standstill(Orders<StopHint>);

impl Standstill {
    pub(super) fn spawn(
        servers: Arc<StoppedServers>,
        config: &Config,
        inbox: Inbox,
    ) -> io::Result<Self> {
        let (orders, hints) = wake::queue()?;
        let mut watch = Watch::new(servers, config);
        thread::Builder::new()
            .name("gw-standstill".into())
            .spawn(move || {
                be_ordinary();
                watch.run(&hints, &inbox);
            })?;
        Ok(Self(orders))
    }

    /// Servers may stand from now on.
    pub(super) fn note(&self, hint: StopHint) {
        if self.0.give(hint).is_err() {
            tracing::error!("stopped servers are not noticed: their thread is gone");
        }
    }
}

#[derive(Debug)]
struct Watch {
    servers: Arc<StoppedServers>,
    services: Vec<(ShareId, Vec<SocketAddr>)>,
    freezer: Freezer,
    processes: BTreeMap<u32, Process>,
    /// Whether a process stands, as the driver knows; it waits for the first word.
    stands: Option<bool>,
    said: Said,
    sight: Sight,
}

/// What is said of processes that stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Said {
    /// All of them.
    pids: Vec<u32>,
    /// The services whose listeners are in the hands of such processes alone, and these.
    idle: BTreeMap<ShareId, BTreeSet<u32>>,
}

#[derive(Debug, Clone, Copy)]
struct Process {
    stands: bool,
    /// Since when; or when it was sent the signal.
    since: Instant,
}

impl Watch {
    fn new(servers: Arc<StoppedServers>, config: &Config) -> Self {
        let shares = config.own_shares();
        let services = shares.map(|(share, service)| (share, service.addresses.clone()));
        let freezer = Freezer::find().unwrap_or_else(|error| {
            tracing::warn!(%error, "servers that a control group freezes are not known");
            Freezer::default()
        });
        Self {
            servers,
            services: services.collect(),
            freezer,
            processes: BTreeMap::new(),
            stands: None,
            said: Said::default(),
            sight: Sight::new(NAME),
        }
    }

    /// Who was stopped before is looked for first.
    fn run(&mut self, hints: &Work<StopHint>, inbox: &Inbox) {
        let (mut hint, mut next) = (Ok(StopHint::Frozen), Instant::now());
        loop {
            let around = match hint {
                Ok(StopHint::Signal(pid)) => {
                    self.watch(pid);
                    false
                }
                Ok(StopHint::Frozen) => true,
                Err(RecvTimeoutError::Timeout) => next <= Instant::now(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if around {
                next = self.look_around();
            }
            if self.look(around, inbox).is_err() {
                return;
            }
            let rest = next.saturating_duration_since(Instant::now());
            hint = hints.next_within(if self.processes.is_empty() {
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

    /// Looks at those that are watched; with `around`, at who has listeners too.
    fn look(&mut self, around: bool, inbox: &Inbox) -> Result<(), DriverGone> {
        if !self.sight.sees(inbox)? {
            return Ok(());
        }
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
        let pids: Vec<_> = long.map(|(pid, _)| *pid).collect();
        let stands = standing.count() > 0;
        if self.stands != Some(stands) {
            self.stands = Some(stands);
            inbox.send(Input::Standstill(stands))?;
        }
        if around || pids != self.said.pids {
            let idle = self.idle(&pids);
            let said = Said { pids, idle };
            if self.sight.opens() || said != self.said {
                inbox.send(Input::Facts(look(&said).into()))?;
                self.said = said;
            }
        }
        Ok(())
    }

    /// The services at which nobody goes on while those stand, and who has their listeners.
    fn idle(&self, pids: &[u32]) -> BTreeMap<ShareId, BTreeSet<u32>> {
        if pids.is_empty() {
            return BTreeMap::new();
        }
        let holders = match self.servers.holders() {
            Ok(holders) => holders,
            Err(error) => {
                tracing::warn!(%error, "can't look who has the listeners of services");
                return BTreeMap::new();
            }
        };
        let services = self.services.iter();
        let idle = services.filter_map(|(share, addresses)| {
            let queues = Listeners::queues_of(addresses).ok()?;
            let inodes = queues.iter().flatten();
            let inodes = inodes.map(|queue| u64::from(queue.inode)).collect();
            Some((*share, all_stand(&inodes, &holders)?))
        });
        idle.collect()
    }
}

/// Who has one of the listeners, if somebody has and all of these stand.
fn all_stand(listeners: &BTreeSet<u64>, holders: &[Holder]) -> Option<BTreeSet<u32>> {
    let of = holders.iter().filter(|it| listeners.contains(&it.inode));
    let stands = of.clone().all(|it| it.stands);
    let pids: BTreeSet<_> = of.map(|it| it.pid).collect();
    (stands && !pids.is_empty()).then_some(pids)
}

fn look(said: &Said) -> Look {
    let idle = said.idle.iter().map(|(share, pids)| Wrong {
        name: NAME.to_owned(),
        share: Some(*share),
        consequence: Consequence::NoServer,
        found: format!("{}: nobody else listens", stopped(pids, "its listener")),
        advice: ADVICE.to_owned(),
    });
    let idle: Vec<_> = idle.collect();
    let listen: BTreeSet<_> = said.idle.values().flatten().collect();
    let others = said.pids.iter().filter(|pid| !listen.contains(pid));
    let others: BTreeSet<_> = others.copied().collect();
    let found = (!others.is_empty()).then(|| stopped(&others, "a socket of a service"));
    let mut look = Look::of_one(NAME, Consequence::NoMoves, found, ADVICE);
    look.wrong.extend(idle);
    look
}

/// Which processes are stopped, in words.
fn stopped(pids: &BTreeSet<u32>, what: &str) -> String {
    let first = pids.first().copied().unwrap_or_default();
    let comm = fs::read_to_string(format!("/proc/{first}/comm")).unwrap_or_default();
    let first = format!("process {first} ({})", comm.trim_end());
    match pids.len() {
        1 => format!("{first} has {what}, and is stopped"),
        count => format!("{count} processes have {what}, and are stopped, such as {first}"),
    }
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
    fn nobody_listens_where_all_who_do_stand() {
        let holder = |inode, pid, stands| Holder { inode, pid, stands };
        let held = [
            holder(7, 1, true),
            holder(7, 2, true),
            holder(8, 1, true),
            holder(8, 3, false),
        ];
        let of = |listeners: &[u64]| all_stand(&listeners.iter().copied().collect(), &held);
        assert_eq!(of(&[7]), Some([1, 2].into()));
        assert_eq!(of(&[8]), None, "another accepts its clients");
        assert_eq!(of(&[7, 8]), None, "some address is served");
        assert_eq!(of(&[9]), None, "who has it is not seen");
        assert_eq!(of(&[]), None, "where nobody listens is another matter");
    }

    #[test]
    fn a_process_is_said_once() {
        let said = Said {
            pids: vec![1, 2, 4],
            idle: [(ShareId(3), [1, 2].into())].into(),
        };
        let wrong = look(&said).wrong;
        let short = wrong.iter().map(|it| (it.share, it.consequence));
        let short: Vec<_> = short.collect();
        let wanted = [
            (None, Consequence::NoMoves),
            (Some(ShareId(3)), Consequence::NoServer),
        ];
        assert_eq!(short, wanted);
        let rest = Said {
            pids: vec![1, 2],
            ..said
        };
        assert_eq!(look(&rest).wrong.len(), 1);
    }

    #[test]
    fn the_state_is_behind_the_name() {
        assert!(says_stopped("12 (a) R) T 1 12"));
        assert!(says_stopped("12 (a) t 1 12"));
        assert!(!says_stopped("12 (a) T) S 1 12"));
    }
}
