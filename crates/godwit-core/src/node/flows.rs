//! What the owner of a share has of its flows, while a generation lasts.

use std::collections::{BTreeMap, BTreeSet};

use godwit_wire::{DigestEntry, FlowId, OutputEntry};

use super::config::FlowPolicy;
use crate::flow::Supervision;
use crate::rejoin::Rejoin;

#[derive(Debug, Clone)]
pub(super) struct Flows {
    pub(super) supervision: Supervision,
    /// Running flows that get a new twin.
    pub(super) rejoin: Rejoin,
    /// Where flows stand that the standby has not been told of.
    pub(super) untold: BTreeMap<FlowId, DigestEntry>,
    /// What flows have said that the standby has not been told.
    pub(super) unsent_output: Vec<OutputEntry>,
    /// Flows whose clients wait for a twin.
    pub(super) waited_for: BTreeSet<FlowId>,
    pub(super) policy: FlowPolicy,
}

impl Flows {
    pub(super) fn new(policy: FlowPolicy) -> Self {
        Self {
            supervision: Supervision::default(),
            rejoin: Rejoin::new(),
            untold: BTreeMap::new(),
            unsent_output: Vec::new(),
            waited_for: BTreeSet::new(),
            policy,
        }
    }

    /// The generation is over that supervision and digests were about.
    pub(super) fn clear(&mut self) {
        self.supervision.clear();
        self.rejoin.clear();
        self.untold.clear();
        self.unsent_output.clear();
        self.waited_for.clear();
    }
}
