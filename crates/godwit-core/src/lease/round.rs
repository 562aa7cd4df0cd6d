//! One attempt to be elected: promises, refusals, and what they say.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_wire::{Epoch, Generation, NodeName, Refusal, Report};

use super::event::Candidacy;
use super::quorum::Quorum;
use crate::MonoTime;

/// Twins that a candidate holds: of which owner's epoch, and of which generation.
pub(super) type Held = (Epoch, Generation);

/// What an acceptor answered.
#[derive(Debug, Clone)]
enum Answer {
    Promised(Option<Report>),
    Refused(Objection),
}

/// Why an acceptor does not promise, or does not accept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Objection {
    pub(super) refusal: Refusal,
    pub(super) by: Epoch,
    pub(super) holder: Option<NodeName>,
    /// When it may be gone, if that is known.
    pub(super) until: Option<MonoTime>,
}

/// What a round has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nobody knows yet.
    Open,
    /// A majority has promised.
    Elected {
        /// A majority knows that this node holds all that the last owner promised.
        member: bool,
        /// Who else may have the connections.
        awaits: Awaits,
    },
    /// A majority can't be reached any more.
    Blocked,
}

/// Who may have the connections that a candidate lacks, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaits {
    /// Nobody.
    Nobody,
    /// The last owner itself: its lease has ended, and nothing else.
    Owner,
    /// A standby that was in sync.
    Standby,
}

/// The votes for one epoch.
#[derive(Debug, Clone)]
pub(super) struct Round {
    pub(super) epoch: Epoch,
    /// When it has come to nothing.
    pub(super) deadline: MonoTime,
    /// When those who have not answered are asked again.
    pub(super) resend: MonoTime,
    answers: BTreeMap<NodeName, Answer>,
    /// Whether everyone has had the time to answer.
    pub(super) patient: bool,
}

impl Round {
    pub(super) const fn new(epoch: Epoch, deadline: MonoTime, resend: MonoTime) -> Self {
        Self {
            epoch,
            deadline,
            resend,
            answers: BTreeMap::new(),
            patient: false,
        }
    }

    pub(super) fn handle_promise(&mut self, from: NodeName, last: Option<Report>) {
        self.answers.insert(from, Answer::Promised(last));
    }

    pub(super) fn handle_refusal(&mut self, from: NodeName, objection: Objection) {
        self.answers.insert(from, Answer::Refused(objection));
    }

    /// Whether `node` has promised.
    pub(super) fn has_promised(&self, node: NodeName) -> bool {
        matches!(self.answers.get(&node), Some(Answer::Promised(_)))
    }

    /// Who has promised, and with what report.
    pub(super) fn promises(&self) -> impl Iterator<Item = (NodeName, Option<Report>)> + '_ {
        self.answers
            .iter()
            .filter_map(|(node, answer)| match answer {
                Answer::Promised(last) => Some((*node, last.clone())),
                Answer::Refused(_) => None,
            })
    }

    /// Whether `node` has said anything.
    pub(super) fn has_answered(&self, node: NodeName) -> bool {
        self.answers.contains_key(&node)
    }

    /// `others` must consent one by one where leases are endless.
    pub(super) fn outcome(
        &self,
        node: NodeName,
        candidacy: &Candidacy,
        quorum: &Quorum,
        others: &[NodeName],
    ) -> Outcome {
        let refused = |node| {
            self.objection(node)
                .is_some_and(|objection| !self.may_fall(objection, quorum, others))
        };
        if quorum.blocks(refused) || others.iter().any(|other| refused(*other)) {
            return Outcome::Blocked;
        }
        let consents = |node: &NodeName| self.has_promised(*node) || quorum.is_fenced(*node);
        if !quorum.consents(|node| self.has_promised(node)) || !others.iter().all(consents) {
            return Outcome::Open;
        }
        let Candidacy {
            held,
            kept,
            unvoted,
            ..
        } = *candidacy;
        let member = held.is_some_and(|held| self.is_member(node, held, quorum))
            || held.is_some_and(|(epoch, _)| unvoted && self.is_latest(epoch))
            || kept.is_some_and(|epoch| self.is_last_of(epoch, quorum));
        // Who has not answered yet may know more.
        let hopes = held.is_some() && !member && !self.patient;
        if hopes && quorum.any(|voter| !self.has_answered(voter)) {
            return Outcome::Open;
        }
        Outcome::Elected {
            member,
            awaits: self
                .reports()
                .map(|report| awaits(report, node, quorum))
                .max()
                .unwrap_or(Awaits::Nobody),
        }
    }

    /// Whether an objection falls if a silent server is powered off.
    fn may_fall(&self, objection: Objection, quorum: &Quorum, others: &[NodeName]) -> bool {
        let silent = |holder| {
            others.contains(&holder) && !self.has_answered(holder) && !quorum.is_fenced(holder)
        };
        objection.refusal == Refusal::Held && objection.holder.is_some_and(silent)
    }

    /// Rule 3 of the module: a majority remembers the epoch that we shadow as
    /// the last one, and what it accepted last has us in the in-sync set.
    fn is_member(&self, node: NodeName, (epoch, generation): Held, quorum: &Quorum) -> bool {
        let of_epoch = |voter| {
            self.report(voter)
                .is_some_and(|report| report.lease.epoch == epoch)
        };
        let latest = self
            .reports()
            .filter(|report| report.lease.epoch == epoch)
            .max_by_key(|report| report.lease.number);
        quorum.remembers(of_epoch)
            && latest.is_some_and(|report| {
                let stays = &report.lease.in_sync;
                stays
                    .iter()
                    .any(|stay| stay.node == node && stay.generation == generation)
            })
    }

    /// Whether nobody has owned since this node did, under `epoch`.
    fn is_last_of(&self, epoch: Epoch, quorum: &Quorum) -> bool {
        quorum.remembers(|voter| {
            self.report(voter)
                .is_some_and(|report| report.lease.epoch == epoch)
        })
    }

    /// Whether nobody who has promised knows of an owner after that of `epoch`.
    fn is_latest(&self, epoch: Epoch) -> bool {
        self.reports().all(|report| report.lease.epoch <= epoch)
    }

    /// When it is worth to try again, if leases of another node or quarantines
    /// were in the way; `None` if it was another candidate.
    pub(super) fn free_at(&self, quorum: &Quorum) -> Option<MonoTime> {
        const NEVER: MonoTime = MonoTime(u64::MAX);
        let free = quorum.reached(|voter| match self.answers.get(&voter) {
            Some(Answer::Promised(_)) => MonoTime::ZERO,
            Some(Answer::Refused(objection)) => objection.timed().unwrap_or(MonoTime::ZERO),
            None => NEVER,
        });
        free.filter(|at| (MonoTime::ZERO < *at) && (*at < NEVER))
    }

    /// The lease of a node without power that is in the way.
    pub(super) fn void(&self, quorum: &Quorum) -> Option<Epoch> {
        self.objections()
            .filter(|objection| objection.refusal == Refusal::Held)
            .find(|objection| {
                objection
                    .holder
                    .is_some_and(|holder| quorum.is_fenced(holder))
            })
            .map(|objection| objection.by)
    }

    fn objection(&self, node: NodeName) -> Option<Objection> {
        match self.answers.get(&node) {
            Some(Answer::Refused(objection)) => Some(*objection),
            Some(Answer::Promised(_)) | None => None,
        }
    }

    fn report(&self, node: NodeName) -> Option<&Report> {
        match self.answers.get(&node) {
            Some(Answer::Promised(last)) => last.as_ref(),
            Some(Answer::Refused(_)) | None => None,
        }
    }

    fn objections(&self) -> impl Iterator<Item = Objection> + '_ {
        self.answers.keys().filter_map(|node| self.objection(*node))
    }

    fn reports(&self) -> impl Iterator<Item = &Report> {
        self.answers.keys().filter_map(|node| self.report(*node))
    }
}

impl Objection {
    pub(super) fn new(
        (refusal, by, holder): (Refusal, Epoch, Option<NodeName>),
        remaining_ns: u64,
        now: MonoTime,
    ) -> Self {
        let known = remaining_ns > 0 && remaining_ns < u64::MAX;
        Self {
            refusal,
            by,
            holder,
            until: known.then(|| now.saturating_add(Duration::from_nanos(remaining_ns))),
        }
    }

    /// When it will be gone by itself.
    const fn timed(&self) -> Option<MonoTime> {
        match self.refusal {
            Refusal::Held | Refusal::Quarantine => self.until,
            Refusal::Promised | Refusal::Superseded | Refusal::Forgotten | Refusal::TooLong => None,
        }
    }
}

/// Whom `node` had better wait for, as far as that report goes.
fn awaits(report: &Report, node: NodeName, quorum: &Quorum) -> Awaits {
    let Report { lease, released } = report;
    if lease.in_sync.iter().any(|stay| stay.node != node) {
        Awaits::Standby
    } else if *released || lease.holder == node || quorum.is_fenced(lease.holder) {
        Awaits::Nobody
    } else {
        Awaits::Owner
    }
}
