//! What voters knew before a candidate's attempts that came to nothing.
//!
//! A voter that accepts a lease forgets the one before, and with it who was in
//! sync. An attempt that a majority does not accept in time leaves such voters
//! behind: the candidate's own at least, and whoever was only slow. Nobody ever
//! spoke under that epoch, so the connections are where they were. But of all
//! that the voters remember now nothing says so, and by rule 3 of the module the
//! next attempt of the same candidate would give them up.
//!
//! So the candidate keeps what each voter reported with its promise. Between that
//! and its acceptance a voter has accepted nothing else: an epoch is promised
//! once, and a first lease is accepted under a promise that is in force
//! ([`super::Acceptor`]).

use std::collections::{BTreeMap, VecDeque};

use godwit_wire::{Epoch, NodeName, Report};

/// Attempts that are kept. A voter remembers one lease, and a candidate has a
/// few voters; the oldest is forgotten, which is as if it had not been kept.
const MAX: usize = 16;

/// One node's attempts since it last held the lease.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempts {
    kept: VecDeque<Attempt>,
}

#[derive(Debug, Clone)]
struct Attempt {
    epoch: Epoch,
    /// What those who promised had accepted last, not counting earlier attempts.
    before: BTreeMap<NodeName, Option<Report>>,
}

impl Attempts {
    /// A lease of `epoch` will be proposed to voters that promised with these
    /// reports, each as [`Self::before`] gave it.
    pub(super) fn note(
        &mut self,
        epoch: Epoch,
        before: impl IntoIterator<Item = (NodeName, Option<Report>)>,
    ) {
        if self.kept.len() == MAX {
            self.kept.pop_front();
        }
        let before = before.into_iter().collect();
        self.kept.push_back(Attempt { epoch, before });
    }

    /// One more has promised `epoch`, when a majority had.
    pub(super) fn add(&mut self, epoch: Epoch, voter: NodeName, before: Option<Report>) {
        let attempt = self.kept.iter_mut().find(|one| one.epoch == epoch);
        if let Some(attempt) = attempt {
            attempt.before.entry(voter).or_insert(before);
        }
    }

    /// What `voter`, which reports `last`, would report if no attempt of `node`
    /// had reached it.
    pub(super) fn before(
        &self,
        voter: NodeName,
        last: Option<Report>,
        node: NodeName,
    ) -> Option<Report> {
        let of_ours = last.as_ref().filter(|report| report.lease.holder == node);
        let attempt = of_ours.and_then(|report| {
            let epoch = report.lease.epoch;
            self.kept.iter().find(|attempt| attempt.epoch == epoch)
        });
        match attempt.and_then(|attempt| attempt.before.get(&voter)) {
            Some(before) => before.clone(),
            None => last,
        }
    }

    /// The node holds the lease: whoever reports that says what is.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }
}
