//! What processes were refused, by name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// All of an agent's.
#[derive(Debug, Default)]
pub(super) struct Counts {
    faults: [AtomicU64; Fault::ALL.len()],
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
