//! Voters that have said that they do not vote yet ([`super::Terms::quarantine`]).
//!
//! All candidates hear of it, and all would try at the instant in which that is over: the
//! first of them by chance. So who is not the first in precedence remembers it.

use std::collections::BTreeMap;

use godwit_wire::{NodeName, Refusal};

use super::quorum::Quorum;
use super::round::Objection;
use crate::MonoTime;

/// Until when voters keep silent, as far as they have said so.
#[derive(Debug, Clone, Default)]
pub(super) struct Silence {
    until: BTreeMap<NodeName, MonoTime>,
}

impl Silence {
    /// `voter` has refused to vote.
    pub(super) fn note(&mut self, voter: NodeName, objection: Objection) {
        if let (Refusal::Quarantine, Some(until)) = (objection.refusal, objection.until) {
            self.until.insert(voter, until);
        }
    }

    /// When a majority may vote: [`MonoTime::ZERO`] if nobody has said otherwise.
    pub(super) fn over(&self, quorum: &Quorum) -> MonoTime {
        let until = |voter| self.until.get(&voter).copied().unwrap_or(MonoTime::ZERO);
        quorum.reached(until).unwrap_or(MonoTime::ZERO)
    }
}
