//! The helper process: runs one command after the other, each with a limit.

use std::io::{self, BufRead, PipeReader, Read as _, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::{Answer, Outcome, Request};
use crate::logging::{self, Kind, LINES};

/// How often a command is looked at: short beside any power switch.
const POLL: Duration = Duration::from_millis(20);

/// Bytes of what one run says that go into the log.
const TOLD: usize = 64 << 10;

/// Runs a helper until its standard input ends.
///
/// # Errors
/// If the agent's end of either pipe fails.
pub fn helper() -> io::Result<()> {
    let runtime = outlive_signals()?;
    let served = serve(io::stdin().lock(), io::stdout());
    drop(runtime);
    served
}

/// A service manager signals all processes of a unit at once; the helper ends
/// after its agent, when its input does. Handlers, unlike a mask or SIG_IGN, are
/// not inherited by the commands.
fn outlive_signals() -> io::Result<runtime::Runtime> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let inside = runtime.enter();
    for kind in [
        SignalKind::terminate(),
        SignalKind::quit(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ] {
        // The handler stays when its listener is dropped.
        drop(signal(kind)?);
    }
    drop(inside);
    Ok(runtime)
}

/// Answers each request with one line.
pub(super) fn serve(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    for line in input.lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let outcome = carry_out(&request);
        let mut answer = serde_json::to_vec(&Answer { outcome })?;
        answer.push(b'\n');
        output.write_all(&answer)?;
        output.flush()?;
    }
    Ok(())
}

/// What goes wrong is said on standard error, which is the agent's log.
fn carry_out(request: &Request) -> Outcome {
    let say = |what: &str| {
        if let Some(left_out) = may_say("fault", &request.node) {
            let missing = match left_out {
                0 => String::new(),
                count => format!(" (left_out={count})"),
            };
            let line = format!("stonith of {}: {what}{missing}\n", request.node);
            logging::write_or_drop(line.as_bytes());
        }
    };
    let started = start(request);
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            say(&format!("the command can't be run: {error}"));
            return Outcome::NotRun;
        }
    };
    match wait(&mut child, Duration::from_millis(request.limit_ms)) {
        Ok(Some(status)) if status.success() => Outcome::Off,
        Ok(Some(status)) => {
            say(&format!("the command failed: {status}"));
            Outcome::CommandFailed
        }
        Ok(None) => {
            say(&format!("the command took over {} ms", request.limit_ms));
            Outcome::TimedOut
        }
        Err(error) => {
            say(&format!("the command can't be waited for: {error}"));
            Outcome::NotRun
        }
    }
}

/// In a process group of its own, so that all of it can be killed. It does not get
/// this process's standard error: a log that nobody reads would keep it from its work.
fn start(request: &Request) -> io::Result<Child> {
    let (said, end) = io::pipe()?;
    let child = Command::new("/bin/sh")
        .args(["-c", &request.command])
        .env("GODWIT_NODE", &request.node)
        .stdin(Stdio::null())
        // Standard output is the way to the agent.
        .stdout(end.try_clone()?)
        .stderr(end)
        .process_group(0)
        .spawn()?;
    pass_on(said, may_say("output", &request.node).is_some())?;
    Ok(child)
}

/// Whether a line of some kind about a node may be written, and how many were left out before
/// it: a command that fails is run again and again.
fn may_say(what: &str, node: &str) -> Option<u64> {
    let kind = Kind {
        what: what.to_owned(),
        whom: node.to_owned(),
    };
    logging::may_log(kind, LINES, &String::new)
}

/// What a command says goes into the log, as far as that takes it: of a run that is told, the
/// first [`TOLD`] bytes. Ends with the last process that could say something.
fn pass_on(mut said: PipeReader, is_told: bool) -> io::Result<()> {
    let work = move || {
        let mut chunk = [0; 1024];
        let mut left = if is_told { TOLD } else { 0 };
        while let Ok(length @ 1..) = said.read(&mut chunk) {
            let told = length.min(left);
            left -= told;
            logging::write_or_drop(chunk.get(..told).unwrap_or_default());
        }
    };
    let thread = thread::Builder::new().name("gw-stonith-log".into());
    thread.spawn(work).map(drop)
}

/// `None` if it took too long; it is dead then.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            // The kernel's pid_max is 2^22.
            let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
            killpg(group, Signal::SIGKILL)?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}
