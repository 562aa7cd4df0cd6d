//! The queue between those who speak and the thread that writes.

use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use godwit_core::MonoTime;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::clock;

/// Lines that may wait: what a node says when a thousand connections are demoted at
/// once, and some.
pub(super) const CAPACITY: usize = 4096;

/// For how long `status` remembers that lines were lost.
const REMEMBERED: Duration = Duration::from_secs(10);

/// A line that takes longer than this to be written is stuck.
const STUCK: Duration = Duration::from_millis(500);

/// How often what was left out is looked for.
const SUM_UP: Duration = Duration::from_secs(30);

/// How often a flush looks.
const LOOK: Duration = Duration::from_millis(1);

/// Lines on their way to standard error, and counts of them.
#[derive(Debug)]
pub(super) struct Queue {
    sender: SyncSender<Vec<u8>>,
    /// Until there is a thread that takes them.
    lines: Mutex<Option<Receiver<Vec<u8>>>>,
    /// Whether there is such a thread.
    has_writer: AtomicBool,
    queued: AtomicU64,
    /// Taken from the queue, and written or lost.
    done: AtomicU64,
    lost: AtomicU64,
    /// Lost ones that no line has told of.
    untold: AtomicU64,
    /// When a line was lost last, in nanoseconds of the clock; 0: never.
    lost_at: AtomicU64,
    /// Since when the writer has been at the present line; 0: it is at none.
    writes_since: AtomicU64,
}

impl Default for Queue {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl Queue {
    pub(super) fn new(capacity: usize) -> Self {
        let (sender, lines) = sync_channel(capacity);
        Self {
            sender,
            lines: Mutex::new(Some(lines)),
            has_writer: AtomicBool::new(false),
            queued: AtomicU64::new(0),
            done: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            untold: AtomicU64::new(0),
            lost_at: AtomicU64::new(0),
            writes_since: AtomicU64::new(0),
        }
    }

    /// Takes a line, or loses and counts it; never waits.
    pub(super) fn push(&self, line: Vec<u8>) {
        if !self.has_writer.load(Ordering::Acquire) && self.is_empty() && takes_a_line() {
            if io::stderr().write_all(&line).is_err() {
                self.lose(1);
            }
            return;
        }
        let untold = self.untold.swap(0, Ordering::Relaxed);
        let line = if untold == 0 {
            line
        } else {
            [&told(untold), &line[..]].concat()
        };
        // Counted first: a flush must wait for it.
        self.queued.fetch_add(1, Ordering::Relaxed);
        match self.sender.try_send(line) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.done.fetch_add(1, Ordering::Relaxed);
                self.untold.fetch_add(untold, Ordering::Relaxed);
                self.lose(1);
            }
        }
    }

    /// The reading end, once.
    pub(super) fn take_lines(&self) -> Option<Receiver<Vec<u8>>> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = lines.take();
        if taken.is_some() {
            self.has_writer.store(true, Ordering::Release);
        }
        taken
    }

    /// Writes what comes, for as long as the process lives. Now and then it has what was left
    /// out summed up: [`SUM_UP`].
    pub(super) fn write_all(
        &self,
        lines: &Receiver<Vec<u8>>,
        out: &mut impl Write,
        sum_up: impl Fn(),
    ) {
        let mut summed_up = Instant::now();
        loop {
            if summed_up.elapsed() >= SUM_UP {
                summed_up = Instant::now();
                sum_up();
            }
            let line = match lines.recv_timeout(SUM_UP) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.writes_since.store(moment(), Ordering::Relaxed);
            if out.write_all(&line).and_then(|()| out.flush()).is_err() {
                self.lose(1);
            }
            self.writes_since.store(0, Ordering::Relaxed);
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    /// Waits until all that is queued now has been written, or has waited long enough.
    pub(super) fn flush(&self, longest: Duration) {
        let end = Instant::now() + longest;
        let queued = self.queued.load(Ordering::Relaxed);
        while self.done.load(Ordering::Acquire) < queued && Instant::now() < end {
            thread::sleep(LOOK);
        }
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// A sentence, while the log does not get out.
    pub(super) fn warning(&self) -> Option<String> {
        let now = clock::now();
        let ago = |since: u64| (since != 0).then(|| now.since(MonoTime(since)));
        let stuck = ago(self.writes_since.load(Ordering::Relaxed)).filter(|ago| *ago > STUCK);
        let recent = ago(self.lost_at.load(Ordering::Relaxed)).filter(|ago| *ago < REMEMBERED);
        let lost = self.lost();
        match (stuck, recent) {
            (Some(_), _) => Some(format!(
                "nobody reads this agent's standard error: {lost} lines of its log are lost \
                 so far"
            )),
            (None, Some(_)) => Some(format!(
                "standard error of this agent is slow or full: {lost} lines of its log are lost"
            )),
            (None, None) => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.queued.load(Ordering::Relaxed) == self.done.load(Ordering::Relaxed)
    }

    fn lose(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        self.untold.fetch_add(count, Ordering::Relaxed);
        self.lost_at.store(moment(), Ordering::Relaxed);
    }
}

/// What stands in the log where lines are missing.
fn told(lost: u64) -> Vec<u8> {
    format!("WARN {lost} lines are lost here\n").into_bytes()
}

fn moment() -> u64 {
    clock::now().as_nanos()
}

/// Whether a line written to standard error now would not wait. A pipe that has room
/// takes a page at once.
pub(super) fn takes_a_line() -> bool {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
