//! How workers are woken up: threads that do what others must not wait for.
//!
//! Whoever has work for a worker [gives](Orders::give) it, which wakes it. It sleeps until then,
//! or until something is due, or until one of its descriptors is ready. There is one kind of
//! bell for that, [`Wake`], a descriptor too (eventfd(2)): a worker that listens to sockets polls
//! it with them.
//!
//! ```text
//!   Orders ── give ──► queue ──► Work ──► the worker
//!      └───── ring ──► Wake  ──►   (poll)
//! ```
//!
//! First the work is queued, then the bell is rung. A worker hears the bell first, and looks
//! into the queue then. So it misses nothing, and may be woken for nothing. When the last
//! [`Orders`] is gone, the bell is rung, and the worker finds that out behind what was queued.
//!
//! Others are no workers. The driver, a director and a witness have their inputs
//! (`input/queue.rs`). `gw-log` has a queue that loses lines (`logging/queue.rs`). `gw-close` is
//! several threads that wait for the same (`apps/closing.rs`), and `gw-edge` has tasks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

/// A worker's bell. Rung several times before it is heard, it wakes the worker once.
#[derive(Debug, Clone)]
pub struct Wake(Arc<EventFd>);

impl Wake {
    fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(Arc::new(EventFd::from_flags(flags)?)))
    }

    /// Wakes the worker. Never waits.
    pub fn ring(&self) {
        // One that can't be rung any more is being rung.
        let _ = self.0.write(1);
    }

    /// Whether it was rung since it was asked last.
    fn was_rung(&self) -> bool {
        self.0.read().is_ok()
    }
}

/// The same bell.
impl PartialEq for Wake {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The worker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerGone;

/// The way to a worker, which ends when the last of these is gone.
#[derive(Debug)]
pub(crate) struct Orders<T> {
    /// `None` only while it is being dropped.
    queue: Option<Sender<T>>,
    wake: Wake,
}

/// A worker's end of it.
#[derive(Debug)]
pub(crate) struct Work<T> {
    queue: Receiver<T>,
    wake: Wake,
}

/// A queue without a limit, and its bell.
///
/// # Errors
/// If there is no descriptor for it.
pub(crate) fn queue<T>() -> io::Result<(Orders<T>, Work<T>)> {
    let wake = Wake::new()?;
    let (sender, receiver) = channel();
    let orders = Orders {
        queue: Some(sender),
        wake: wake.clone(),
    };
    let work = Work {
        queue: receiver,
        wake,
    };
    Ok((orders, work))
}

impl<T> Orders<T> {
    /// Queues something to do, and wakes the worker. Never waits.
    pub(crate) fn give(&self, order: T) -> Result<(), WorkerGone> {
        let queue = self.queue.as_ref().ok_or(WorkerGone)?;
        queue.send(order).map_err(|_| WorkerGone)?;
        self.wake.ring();
        Ok(())
    }
}

/// Another way to the same worker.
impl<T> Clone for Orders<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            wake: self.wake.clone(),
        }
    }
}

impl<T> Drop for Orders<T> {
    fn drop(&mut self) {
        // In this order: who is woken by it looks into the queue.
        self.queue = None;
        self.wake.ring();
    }
}

impl<T> Work<T> {
    /// The bell, for those who have no work for the worker, but something to look at.
    pub(crate) fn wake(&self) -> Wake {
        self.wake.clone()
    }

    /// Whether the bell was rung since it was heard last. What is queued is to be looked for
    /// behind this.
    pub(crate) fn was_rung(&self) -> bool {
        self.wake.was_rung()
    }

    /// What is queued, without waiting.
    pub(crate) fn next(&self) -> Result<T, TryRecvError> {
        self.queue.try_recv()
    }

    /// Sleeps until the bell rings, or one of those is readable, or for so long. A signal ends
    /// that early.
    pub(crate) fn sleep(&self, patience: Option<Duration>, beside: &[BorrowedFd<'_>]) {
        let sources = beside.iter().copied().chain([self.wake.as_fd()]);
        let mut polled: Vec<_> = sources
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let _ = ppoll(&mut polled, patience.map(TimeSpec::from), None);
    }

    /// Waits for something to do, for so long.
    pub(crate) fn next_within(&self, patience: Duration) -> Result<T, RecvTimeoutError> {
        let begun = Instant::now();
        loop {
            self.was_rung();
            match self.next() {
                Ok(order) => return Ok(order),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            self.sleep(Some(left), &[]);
        }
    }

    /// Waits for something to do; `None` when nobody has any more.
    pub(crate) fn wait(&self) -> Option<T> {
        loop {
            self.was_rung();
            match self.next() {
                Ok(order) => return Some(order),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => self.sleep(None, &[]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn who_sleeps_is_woken_by_work() {
        let (orders, work) = queue().expect("a descriptor");
        let worker = thread::spawn(move || (work.next_within(LONG), work.next_within(LONG)));
        let begun = Instant::now();
        thread::sleep(Duration::from_millis(20));
        orders.give(7).expect("it waits");
        orders.give(8).expect("it is queued");
        assert_eq!(worker.join().expect("it ends"), (Ok(7), Ok(8)));
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert_eq!(orders.give(9), Err(WorkerGone));
    }

    /// The work before it is done.
    #[test]
    fn the_end_of_all_who_have_work_wakes_too() {
        let (orders, work) = queue().expect("a descriptor");
        let other = orders.clone();
        other.give(7).expect("it is queued");
        drop(other);
        assert_eq!(work.next_within(LONG), Ok(7));
        let brief = Duration::from_millis(1);
        let nothing = work.next_within(brief);
        assert_eq!(nothing, Err(RecvTimeoutError::Timeout), "one is left");
        let begun = Instant::now();
        let worker = thread::spawn(move || (work.next_within(LONG), work.wait()));
        thread::sleep(brief);
        drop(orders);
        let ended = (Err(RecvTimeoutError::Disconnected), None);
        assert_eq!(worker.join().expect("it ends"), ended);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_bell_is_heard_once_and_not_missed() {
        let (_orders, work) = queue::<u8>().expect("a descriptor");
        assert!(!work.was_rung());
        work.wake().ring();
        work.wake().ring();
        let begun = Instant::now();
        work.sleep(Some(LONG), &[]);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert!(work.was_rung());
        assert!(!work.was_rung(), "it is heard");
        // Nor does an old one cut short the wait for work.
        work.wake().ring();
        let brief = Duration::from_millis(50);
        let begun = Instant::now();
        assert_eq!(work.next_within(brief), Err(RecvTimeoutError::Timeout));
        assert!(begun.elapsed() >= brief, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_descriptor_wakes_as_the_bell_does() {
        let (_orders, work) = queue::<u8>().expect("a descriptor");
        let (mut line, end) = UnixStream::pair().expect("descriptors");
        line.write_all(&[1]).expect("there is room");
        let begun = Instant::now();
        work.sleep(Some(LONG), &[end.as_fd()]);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert!(!work.was_rung());
    }

    /// Files that have another way to wake a thread, and what for.
    const OTHERS: [(&str, &str); 7] = [
        (
            "apps/closing.rs",
            "several threads of one account wait for the same",
        ),
        ("apps/message.rs", "one answer each, for who waits for it"),
        ("descriptors.rs", "a spare descriptor"),
        ("edge/mod.rs", "once, at the start"),
        ("input/queue.rs", "of the driver, a director, a witness"),
        ("logging/queue.rs", "a full queue loses lines"),
        ("wake.rs", "this one"),
    ];

    fn others_in(folder: &Path, source: &Path, found: &mut Vec<String>) {
        const WAYS: [&str; 5] = [
            "channel()",
            "sync_channel(",
            "UnixStream::pair(",
            "EventFd::",
            "Condvar::new(",
        ];
        for entry in fs::read_dir(folder).expect("it is a folder") {
            let path = entry.expect("it is listed").path();
            let name = path.strip_prefix(source).expect("it is in there");
            let is_test =
                |part: &str| part == "tests" || part == "tests.rs" || part == "testing.rs";
            if name.iter().any(|part| is_test(&part.to_string_lossy())) {
                continue;
            }
            if path.is_dir() {
                others_in(&path, source, found);
                continue;
            }
            let text = fs::read_to_string(&path).expect("it is text");
            let code = text
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default();
            let mut lines = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let is_one = |line: &str| {
                let answers = line.contains("oneshot::channel()");
                !answers && WAYS.iter().any(|way| line.contains(way))
            };
            if lines.any(is_one) {
                found.push(name.to_string_lossy().into_owned());
            }
        }
    }

    #[test]
    fn workers_have_no_other_way_to_be_woken() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = Vec::new();
        others_in(&source, &source, &mut found);
        found.sort();
        let known: Vec<_> = OTHERS.iter().map(|(file, _)| (*file).to_owned()).collect();
        assert_eq!(found, known);
    }
}
