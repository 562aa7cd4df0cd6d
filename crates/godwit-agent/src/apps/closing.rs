//! Descriptors that processes have sent, and their own sockets, closed where that can
//! hold up nobody.
//!
//! close(2) waits for whomever a file is of: the daemon of a FUSE file system, a file
//! server that is gone, the peer of a socket that lingers (`SO_LINGER`), and for all
//! that is in the queue of a Unix socket. What a descriptor is can't be asked without
//! waiting either (`fstat`), nor does the answer last: the process still has it. So none
//! is closed by a thread that others wait for.
//!
//! Threads `gw-close`, a few per account, come when there is something to be closed and
//! go when there is nothing: an account holds up its own only.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::locks::lock;
use crate::realtime::be_ordinary;

/// Threads that close for one account at a time.
const THREADS: usize = 4;

/// For how long one of them waits for more: to start one takes longer than most closings.
const IDLE: Duration = Duration::from_secs(5);

/// What one account may have that is not closed yet, before nothing more is taken from it.
const MOST: usize = 1024;

/// The same of all accounts: then nobody is let in.
const MOST_OF_ALL: usize = 8192;

/// Closes what came from one account.
#[derive(Debug)]
pub(super) struct Closer {
    lane: Mutex<Lane>,
    more: Condvar,
    /// Of all accounts, what is not closed.
    total: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    idle: usize,
    /// What waits, and what is being closed.
    unclosed: usize,
}

/// A descriptor of a process's: never closed by the thread that lets go of it.
#[derive(Debug)]
pub(super) struct Foreign {
    // `None` only on the way out.
    fd: Option<OwnedFd>,
    closer: Arc<Closer>,
}

impl Closer {
    pub(super) fn new(total: Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self {
            lane: Mutex::default(),
            more: Condvar::new(),
            total,
        })
    }

    /// Has it closed, soon.
    fn close(self: &Arc<Self>, fd: OwnedFd) {
        let mut lane = lock(&self.lane);
        lane.waiting.push_back(fd);
        lane.unclosed += 1;
        self.total.fetch_add(1, Ordering::Relaxed);
        if lane.idle > 0 {
            self.more.notify_one();
        } else if lane.threads < THREADS {
            let closer = self.clone();
            let name = "gw-close".into();
            let started = thread::Builder::new().name(name).spawn(move || {
                // It can take as much of a processor as whoever sent it likes.
                be_ordinary();
                closer.run();
            });
            // It waits for a thread that there is, or for the next that comes.
            lane.threads += usize::from(started.is_ok());
        }
    }

    /// Whether nothing more should be taken: it does not close.
    pub(super) fn is_full(&self) -> bool {
        lock(&self.lane).unclosed >= MOST
    }

    /// Whether anything is not closed yet.
    pub(super) fn is_busy(&self) -> bool {
        lock(&self.lane).unclosed > 0
    }

    fn run(&self) {
        let mut lane = lock(&self.lane);
        loop {
            if let Some(fd) = lane.waiting.pop_front() {
                drop(lane);
                drop(fd);
                self.total.fetch_sub(1, Ordering::Relaxed);
                lane = lock(&self.lane);
                lane.unclosed -= 1;
                continue;
            }
            lane.idle += 1;
            let waited = self.more.wait_timeout(lane, IDLE);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            lane = woken;
            lane.idle -= 1;
            if timeout.timed_out() && lane.waiting.is_empty() {
                lane.threads -= 1;
                return;
            }
        }
    }
}

/// Whether so much does not close that nobody new is let in.
pub(super) fn is_overfull(total: &AtomicUsize) -> bool {
    total.load(Ordering::Relaxed) >= MOST_OF_ALL
}

impl Foreign {
    pub(super) fn new(fd: OwnedFd, closer: &Arc<Closer>) -> Self {
        Self {
            fd: Some(fd),
            closer: closer.clone(),
        }
    }

    /// For somebody who may wait while it is closed, or knows that it does not take long.
    pub(super) fn into_inner(mut self) -> OwnedFd {
        self.fd.take().expect("it is taken once")
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is not taken").as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.closer.close(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _};
    use std::time::Instant;

    use super::*;

    fn closer() -> (Arc<Closer>, Arc<AtomicUsize>) {
        let total = Arc::new(AtomicUsize::new(0));
        (Closer::new(total.clone()), total)
    }

    fn until(mut done: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !done() {
            assert!(Instant::now() < end, "it takes too long");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_let_go_of_is_closed() {
        let (closer, total) = closer();
        for _ in 0..3 * MOST {
            let (mut reader, writer) = io::pipe().expect("descriptors are left");
            drop(Foreign::new(writer.into(), &closer));
            assert_eq!(reader.read(&mut [0]).expect("it is closed"), 0);
        }
        until(|| total.load(Ordering::Relaxed) == 0);
        assert!(!closer.is_full());
        assert!(lock(&closer.lane).threads <= THREADS);
    }

    /// One that nobody may close is whoever took it.
    #[test]
    fn what_is_taken_out_stays_open() {
        let (closer, total) = closer();
        let (mut reader, writer) = io::pipe().expect("descriptors are left");
        let kept = Foreign::new(writer.into(), &closer).into_inner();
        assert_eq!(total.load(Ordering::Relaxed), 0);
        drop(kept);
        assert_eq!(reader.read(&mut [0]).expect("it is closed"), 0);
    }

    /// As of an account whose files do not close.
    #[test]
    fn an_account_whose_threads_are_busy_is_full_at_last() {
        let (closer, total) = closer();
        // As many as would start are stuck already.
        lock(&closer.lane).threads = THREADS;
        let (_reader, writer) = io::pipe().expect("descriptors are left");
        for _ in 0..MOST {
            assert!(!closer.is_full());
            let fd = writer.try_clone().expect("descriptors are left");
            drop(Foreign::new(fd.into(), &closer));
        }
        assert!(closer.is_full() && !is_overfull(&total));
        assert_eq!(lock(&closer.lane).waiting.len(), MOST);
    }
}
