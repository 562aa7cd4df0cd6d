//! For which part of the time something had to wait for a processor (PSI, the pressure on the
//! processors), read in a thread aside: people name the file, its file system may hang, and the
//! driver keeps leases.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use godwit_core::MonoTime;

use crate::clock;
use crate::files;
use crate::realtime::be_ordinary;

/// How long the thread rests between two looks.
const PERIOD: Duration = Duration::from_millis(50);

/// A file that has said nothing for so long does not answer.
const LATE: Duration = Duration::from_secs(1);

/// What one file says; its thread lives for as long as this does, or the file hangs.
#[derive(Debug)]
pub(super) struct Stalls {
    path: PathBuf,
    seen: Arc<Mutex<Seen>>,
}

/// What was seen last. Held for as long as it takes to copy it.
#[derive(Debug)]
struct Seen {
    at: MonoTime,
    /// In percent; 0: not known.
    part: u8,
    /// That it is not known was said.
    is_lost: bool,
}

impl Stalls {
    /// Begins to look at that file.
    pub(super) fn of(path: &Path, now: MonoTime) -> Self {
        Self::read_by(path, now, read)
    }

    fn read_by(
        path: &Path,
        now: MonoTime,
        read: impl FnMut(&Path) -> io::Result<Duration> + Send + 'static,
    ) -> Self {
        let seen = Arc::new(Mutex::new(Seen {
            at: now,
            part: 0,
            is_lost: false,
        }));
        let watch = Watch {
            path: path.to_owned(),
            seen: Arc::downgrade(&seen),
            last: None,
        };
        let thread = thread::Builder::new().name("gw-pressure".into());
        if let Err(error) = thread.spawn(move || watch.run(read)) {
            let path = path.display();
            tracing::warn!(%path, %error, "the pressure on the processors is not looked at");
        }
        Self {
            path: path.to_owned(),
            seen,
        }
    }

    /// In percent; 0 if it is not known. Never waits for the file.
    pub(super) fn now(&self, now: MonoTime) -> u8 {
        let mut seen = lock(&self.seen);
        if now.since(seen.at) < LATE {
            return seen.part;
        }
        if !std::mem::replace(&mut seen.is_lost, true) {
            let path = self.path.display();
            let error = "the file does not answer";
            tracing::warn!(%path, %error, "the pressure on the processors is not known");
        }
        0
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's own.
struct Watch {
    path: PathBuf,
    seen: Weak<Mutex<Seen>>,
    /// When the file was read last, and the time that it said.
    last: Option<(MonoTime, Duration)>,
}

impl Watch {
    fn run(mut self, mut read: impl FnMut(&Path) -> io::Result<Duration>) {
        be_ordinary();
        loop {
            let total = read(&self.path);
            // Nobody may want to know any more.
            let Some(seen) = self.seen.upgrade() else {
                return;
            };
            self.take(total, clock::now(), &seen);
            drop(seen);
            thread::sleep(PERIOD);
        }
    }

    fn take(&mut self, total: io::Result<Duration>, now: MonoTime, seen: &Mutex<Seen>) {
        let (part, error) = match total {
            Ok(total) => (self.part(total, now), None),
            Err(error) => {
                self.last = None;
                (0, Some(error))
            }
        };
        let is_lost = error.is_some();
        let mut seen = lock(seen);
        let was_lost = seen.is_lost;
        *seen = Seen {
            at: now,
            part,
            is_lost,
        };
        drop(seen);
        if let Some(error) = error.filter(|_| !was_lost) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the pressure on the processors is not known");
        }
    }

    /// In percent, since the last look.
    fn part(&mut self, total: Duration, now: MonoTime) -> u8 {
        let Some((at, before)) = self.last.replace((now, total)) else {
            return 0;
        };
        let span = now.since(at).as_micros();
        let stalled = total.saturating_sub(before).as_micros();
        let percent = (stalled * 100).checked_div(span).unwrap_or(0);
        u8::try_from(percent.min(100)).unwrap_or(100)
    }
}

/// `some ... total=MICROSECONDS` (Documentation/accounting/psi.rst).
fn read(path: &Path) -> io::Result<Duration> {
    let text = files::read_text(path)?;
    stalls(&text).ok_or_else(|| io::Error::other("no pressure stall information"))
}

fn stalls(text: &str) -> Option<Duration> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_once("total=")?.1;
    total.trim().parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime::ZERO.saturating_add(Duration::from_millis(ms))
    }

    #[test]
    fn the_kernel_s_words_are_understood() {
        let text = "some avg10=4.16 avg60=4.47 avg300=2.89 total=4822307404\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n";
        assert_eq!(stalls(text), Some(Duration::from_micros(4_822_307_404)));
        assert_eq!(stalls("full avg10=0.00 total=17\n"), None);
    }

    /// Half of the time something waited; then the file is lost.
    #[test]
    fn pressure_is_what_was_waited_since_the_last_look() {
        let seen = Arc::new(Mutex::new(Seen {
            at: at(0),
            part: 0,
            is_lost: false,
        }));
        let mut watch = Watch {
            path: "/proc/pressure/cpu".into(),
            seen: Weak::new(),
            last: None,
        };
        let mut look = |ms, micros| {
            let total = Ok(Duration::from_micros(micros));
            watch.take(total, at(ms), &seen);
            lock(&seen).part
        };
        assert_eq!(look(0, 1_000_000), 0, "nothing to compare with");
        assert_eq!(look(50, 1_025_000), 50);
        assert_eq!(look(100, 2_000_000), 100);
        watch.take(Err(io::Error::other("gone")), at(150), &seen);
        assert!(lock(&seen).is_lost && lock(&seen).part == 0);
        watch.take(Ok(Duration::from_secs(9)), at(200), &seen);
        assert!(!lock(&seen).is_lost && lock(&seen).part == 0, "it is back");
    }

    /// A file system that hangs holds up its thread alone: after a second its pressure is not
    /// known, and it is again when it answers.
    #[test]
    fn a_file_that_hangs_holds_up_nobody() {
        let (answer, answers) = mpsc::channel();
        let (asked, asks) = mpsc::channel();
        let now = clock::now();
        let stalls = Stalls::read_by("/hangs".as_ref(), now, move |_| {
            let _ = asked.send(());
            answers.recv().map_err(|_| io::Error::other("gone"))
        });
        asks.recv().expect("it is read");
        assert_eq!(stalls.now(now), 0);
        assert!(!lock(&stalls.seen).is_lost, "it may still answer");
        assert_eq!(stalls.now(now.saturating_add(LATE)), 0);
        assert!(lock(&stalls.seen).is_lost, "that was said");
        let begun = clock::now();
        let told = |secs| answer.send(Duration::from_secs(secs));
        told(1).expect("it waits");
        asks.recv().expect("it is read again");
        told(1000).expect("it waits");
        asks.recv().expect("and again");
        assert_eq!(stalls.now(begun), 100, "all of that time");
        assert!(!lock(&stalls.seen).is_lost);
        // Its thread ends with whoever wanted to know.
        drop(stalls);
        told(1001).expect("it waits");
        assert!(asks.recv().is_err());
    }
}
