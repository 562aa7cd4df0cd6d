//! Where the agent's words go: standard error, one line each.
//!
//! Standard error may be a pipe that nobody reads, a journal that is stuck or a file on
//! a full disk. A thread that renews a lease must not wait for any of them, so lines go
//! through a bounded queue (`queue`) to a thread of their own,
//! `gw-log` (`docs/threads.md`). Any thread formats a line and queues it. When the queue is
//! full, lines are lost and counted, as are those that can't be written.
//!
//! How often a line of one kind is written is bounded (`bounds`).
//!
//! Until [`start`] there is no such thread, because a thread must not be there before
//! privileges are given up. Lines are written at once then, if that does not block.

mod bounds;
mod queue;
#[cfg(test)]
mod tests;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::bucket::Rate;
use crate::realtime::be_ordinary;
use bounds::{Bounded, Bounds};
use queue::Queue;

pub(crate) use bounds::{EVENTS, EVENTS_OF_FLOWS, Kind, LINES};

/// The variable that sets what is logged, as in `GODWIT_LOG=godwit_agent=debug`.
pub const VARIABLE: &str = "GODWIT_LOG";

/// How long the end of the process waits for its last lines.
const LAST_LINES: Duration = Duration::from_millis(200);

/// What poll(2) promises of a pipe with room: PIPE_BUF.
const PAGE: usize = 4096;

static QUEUE: LazyLock<Queue> = LazyLock::new(Queue::default);

/// Of this process.
static BOUNDS: Bounds = Bounds::new();

/// Whether [`VARIABLE`] asks for more than is written usually: then nothing is left out.
static ASKED_FOR_ALL: AtomicBool = AtomicBool::new(false);

/// Starts logging; does nothing if it has been started.
pub fn init() {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    let is_verbose = filter.max_level_hint() > Some(LevelFilter::INFO);
    ASKED_FOR_ALL.store(is_verbose, Ordering::Relaxed);
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(ToQueue)
        .with_ansi(false)
        .with_target(false)
        // A log that can't be written must not be reported on the same standard error:
        // that panics, and would end the agent.
        .log_internal_errors(false)
        .map_event_format(|inner| Bounded {
            inner,
            admit: may_log,
        })
        .try_init();
    godwit_bpf::report_with(|line| tracing::warn!("{}", line.trim_end()));
}

/// Starts the thread that writes. Call it when privileges have been given up.
///
/// # Errors
/// If there can be no thread.
pub(crate) fn start() -> io::Result<()> {
    let Some(lines) = QUEUE.take_lines() else {
        return Ok(());
    };
    thread::Builder::new()
        .name("gw-log".into())
        .spawn(move || {
            be_ordinary();
            let sum_up = || bounds::say(BOUNDS.sum_up(Instant::now()));
            QUEUE.write_all(&lines, &mut io::stderr(), sum_up);
        })
        .map(drop)
}

/// Waits until what was said is written, for a moment at most. Call it before the
/// process ends.
pub fn flush() {
    QUEUE.flush(LAST_LINES);
}

/// Makes a panic on any thread end the process.
///
/// An agent that has lost a thread would hold a place that a whole one could
/// fill: its peers must see it die, and its supervisor start it anew. Nor may its
/// last words keep it alive.
pub fn die_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        QUEUE.push(obituary(panic).into_bytes());
        flush();
        std::process::abort();
    }));
}

fn obituary(panic: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or("?");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        return format!("thread '{name}' {panic}\n{backtrace}\n");
    }
    format!("thread '{name}' {panic}\n")
}

/// Writes to standard error at once if that does not block, and drops the text
/// otherwise: for a process that has no [`start`].
pub(crate) fn write_or_drop(text: &[u8]) {
    // A page, which a pipe that has room takes at once.
    for part in text.chunks(PAGE) {
        if !queue::takes_a_line() || io::stderr().write_all(part).is_err() {
            return;
        }
    }
}

/// Lines that nobody will read, since the process started.
pub fn lost() -> u64 {
    QUEUE.lost()
}

/// Lines that were not written because there were many of their kind, since the process
/// started.
pub fn left_out() -> u64 {
    BOUNDS.left_out()
}

/// Whether a line may be written, and how many of its kind were left out before it.
pub(crate) fn may_log(kind: Kind, rate: Rate, example: &dyn Fn() -> String) -> Option<u64> {
    if ASKED_FOR_ALL.load(Ordering::Relaxed) {
        return Some(0);
    }
    BOUNDS.admit(kind, rate, Instant::now(), example)
}

/// What there is to say of the log itself, in `status`; nothing while lines get out.
pub(crate) fn warning() -> Option<String> {
    QUEUE.warning()
}

/// Hands out the way into the queue.
struct ToQueue;

/// The way of one line; it is handed over whole.
struct Line;

impl<'a> MakeWriter<'a> for ToQueue {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line
    }
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
