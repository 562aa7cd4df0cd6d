//! What processes were refused, by name, and lines about them that are not too many.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::lock;

/// Lines of one kind that are written in [`PERIOD`]; the others are counted.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// Why an agent has not done what a process wanted, or has let it go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Fault {
    /// It claims a connection that is not its own.
    NotItsOwn,
    /// It claims a connection whose addresses are another socket's.
    OtherSocket,
    /// Another process claims the same one.
    Contested,
    /// It shows a socket of another network namespace.
    OtherNetwork,
    /// It has not said who it is.
    Silent,
    /// There is no place for it, or none for more of its account.
    Full,
    /// It does not listen to what it has to hear.
    Deaf,
    /// Its commits need more memory than it may have.
    Memory,
    /// It sends too many descriptors, or such as do not close.
    Descriptors,
    /// What it says is no message, or out of turn.
    Nonsense,
}

impl Fault {
    const ALL: [Self; 10] = [
        Self::NotItsOwn,
        Self::OtherSocket,
        Self::Contested,
        Self::OtherNetwork,
        Self::Silent,
        Self::Full,
        Self::Deaf,
        Self::Memory,
        Self::Descriptors,
        Self::Nonsense,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::NotItsOwn => "not_its_own",
            Self::OtherSocket => "other_socket",
            Self::Contested => "contested",
            Self::OtherNetwork => "other_network",
            Self::Silent => "silent",
            Self::Full => "full",
            Self::Deaf => "deaf",
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
            Self::Nonsense => "nonsense",
        }
    }
}

/// What a line is about.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(super) enum Line {
    /// A process has come, or has left.
    Coming,
    /// One was refused or let go.
    Refusal,
    /// Two claims, or a false one.
    Claim,
    /// A commit that can't be made safe.
    Commit,
    /// An answer that says no.
    Answer,
}

const KINDS: usize = 5;

/// What one kind of line has had in its period.
#[derive(Debug, Clone, Copy)]
struct Period {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

/// All of an agent's.
#[derive(Debug)]
pub(super) struct Counts {
    faults: [AtomicU64; Fault::ALL.len()],
    lines: Mutex<[Period; KINDS]>,
}

impl Default for Counts {
    fn default() -> Self {
        let none = Period {
            since: None,
            lines: 0,
            left_out: 0,
        };
        Self {
            faults: Default::default(),
            lines: Mutex::new([none; KINDS]),
        }
    }
}

impl Counts {
    pub(super) fn count(&self, fault: Fault) {
        self.faults[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> BTreeMap<String, u64> {
        let all = Fault::ALL.into_iter();
        let count = |fault: Fault| self.faults[fault as usize].load(Ordering::Relaxed);
        all.map(|fault| (fault.as_str().to_owned(), count(fault)))
            .collect()
    }

    /// Whether a line may be written, and how many were left out before it.
    pub(super) fn may_log(&self, line: Line) -> Option<u64> {
        self.may_log_at(line, Instant::now())
    }

    fn may_log_at(&self, line: Line, now: Instant) -> Option<u64> {
        let period = &mut lock(&self.lines)[line as usize];
        if period.since.is_none_or(|since| now - since >= PERIOD) {
            period.since = Some(now);
            period.lines = 0;
        }
        if period.lines == LINES {
            period.left_out += 1;
            return None;
        }
        period.lines += 1;
        Some(std::mem::take(&mut period.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_few_and_say_what_was_left_out() {
        let (counts, begun) = (Counts::default(), Instant::now());
        let log = |line, seconds| {
            let now = begun + Duration::from_secs(seconds);
            counts.may_log_at(line, now)
        };
        for _ in 0..LINES {
            assert_eq!(log(Line::Coming, 0), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(log(Line::Coming, 9), None);
        }
        assert_eq!(log(Line::Refusal, 9), Some(0), "another kind");
        assert_eq!(log(Line::Coming, 10), Some(1000));
        assert_eq!(log(Line::Coming, 10), Some(0));
    }

    #[test]
    fn faults_are_counted_by_name() {
        let counts = Counts::default();
        counts.count(Fault::Silent);
        counts.count(Fault::Silent);
        let found = counts.get();
        assert_eq!(found.get("silent"), Some(&2));
        assert_eq!(found.len(), Fault::ALL.len());
        for (at, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, at);
        }
    }
}
