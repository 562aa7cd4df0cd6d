//! A program that runs inside a namespace, and its end.
//!
//! Each program leads a process group of its own: a signal meant for nginx
//! reaches its workers too, and Ctrl-C at the terminal reaches only the lab.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::netns::Netns;

/// How often a wait looks again; short against every time that is measured.
const POLL: Duration = Duration::from_millis(2);

/// Servers that die within a second of each other have died of the same cause
/// for Godwit, and are not taken over: a bit more than that.
pub const SAME_CAUSE: Duration = Duration::from_millis(1200);

/// A running program; killed with all its children when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
    log: PathBuf,
}

/// What a program that ran to its end left.
#[derive(Debug, Clone)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output, invalid UTF-8 replaced.
    pub stdout: String,
    /// Its standard error, invalid UTF-8 replaced.
    pub stderr: String,
}

/// Which standard streams of a program the lab wants to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipes {
    /// None: no input, everything into the log.
    None,
    /// Standard output.
    Output,
    /// Standard input.
    Input,
}

impl Process {
    /// Starts `command` inside `netns`; what is not piped goes to `log`.
    pub(crate) fn start(
        netns: &Netns,
        name: &str,
        mut command: Command,
        log: PathBuf,
        pipes: Pipes,
    ) -> Result<Self> {
        let file = fs::File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let second = file.try_clone().context("sharing a log file")?;
        command.stdin(match pipes {
            Pipes::Input => Stdio::piped(),
            Pipes::None | Pipes::Output => Stdio::null(),
        });
        command.stdout(match pipes {
            Pipes::Output => Stdio::piped(),
            Pipes::None | Pipes::Input => Stdio::from(second),
        });
        command.stderr(file).process_group(0);
        let child = netns
            .enter(|| command.spawn())?
            .with_context(|| format!("starting {name} in {}", netns.name()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            ended: None,
            log,
        })
    }

    /// Process id; also the id of its process group.
    pub fn pid(&self) -> Pid {
        // The kernel's pid_max is 2^22.
        Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// True until the program ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.poll(), Ok(None))
    }

    /// How the program ended, if it has.
    pub const fn ended(&self) -> Option<ExitStatus> {
        self.ended
    }

    /// Sends `signal` to the program and its children.
    ///
    /// # Errors
    /// Fails if the program ended already.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.poll()? {
            bail!("{} ended already ({status})", self.name);
        }
        killpg(self.pid(), signal).with_context(|| format!("sending {signal} to {}", self.name))
    }

    /// Ends the program and its children at once, with no chance to say a word.
    ///
    /// # Errors
    /// Fails if it can't be waited for.
    pub fn kill(&mut self) -> Result<()> {
        if self.signal(Signal::SIGKILL).is_ok() {
            self.wait(Duration::from_secs(2))?;
        }
        Ok(())
    }

    /// Freezes the program (SIGSTOP).
    ///
    /// # Errors
    /// Fails if the program ended already.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets a frozen program go on (SIGCONT).
    ///
    /// # Errors
    /// Fails if the program ended already.
    pub fn cont(&mut self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Waits until the program ended by itself.
    ///
    /// # Errors
    /// Fails if it still runs after `deadline`; it then goes on running.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.poll()? {
                return Ok(status);
            }
            if Instant::now() > end {
                bail!("{} still runs after {deadline:?}", self.name);
            }
            thread::sleep(POLL);
        }
    }

    /// What the program has written so far to what was not piped.
    pub fn log(&self) -> String {
        read_lossy(&self.log)
    }

    /// Takes the program's standard output, if it was piped and not yet taken.
    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Takes the program's standard input, if it was piped and not yet taken.
    pub(crate) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self
                .child
                .try_wait()
                .with_context(|| format!("waiting for {}", self.name))?;
        }
        Ok(self.ended)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure; the lab empties the namespace.
        let _ = self.kill();
    }
}

/// Runs `command` inside `netns` until its end or `deadline`.
pub(crate) fn run(
    netns: &Netns,
    mut command: Command,
    scratch: &Path,
    deadline: Duration,
) -> Result<Output> {
    let stdout = scratch.with_extension("out");
    let stderr = scratch.with_extension("err");
    let name = format!("{command:?}");
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(fs::File::create(&stdout).context("creating an output file")?);
    command.stderr(fs::File::create(&stderr).context("creating an output file")?);
    let child = netns
        .enter(|| command.spawn())?
        .with_context(|| format!("starting {name} in {}", netns.name()))?;
    let mut process = Process {
        name,
        child,
        ended: None,
        log: stderr.clone(),
    };
    let status = process.wait(deadline)?;
    let output = Output {
        status,
        stdout: read_lossy(&stdout),
        stderr: read_lossy(&stderr),
    };
    // They have been read; the folder goes with the lab in any case.
    let _ = fs::remove_file(&stdout).and_then(|()| fs::remove_file(&stderr));
    Ok(output)
}

fn read_lossy(path: &Path) -> String {
    fs::read(path).map_or_else(
        |_| String::new(),
        |b| String::from_utf8_lossy(&b).into_owned(),
    )
}
