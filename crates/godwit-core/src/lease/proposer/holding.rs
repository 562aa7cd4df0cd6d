//! Holding a share: renewals, changes of the in-sync set, the end.

use std::time::Duration;

use godwit_wire::{Lease, LeaseMessage, Standing};

use super::{Holding, Phase, Proposer};
use crate::MonoTime;
use crate::lease::event::LeaseEvent;
use crate::lease::tenure::Change;

impl Proposer {
    /// What is due while this node holds the lease, or has held it last.
    pub(super) fn keep(&mut self, now: MonoTime) {
        let Phase::Holding(holding) = &mut self.phase else {
            return;
        };
        if holding.released.is_some_and(|until| now < until) {
            self.repeat_release(now);
            return;
        }
        holding.released = None;
        if holding.tenure.lapses_at().is_some_and(|end| end <= now) {
            holding.tenure.lapse(now);
            self.events.push_back(LeaseEvent::Lapsed);
        }
        if holding.tenure.next() <= now {
            self.propose(now);
            self.want_departed_fenced(now);
        }
        self.doubt(now);
    }

    /// Proposes the lease that is wished for, to begin now.
    pub(super) fn propose(&mut self, now: MonoTime) {
        let standing = match &self.phase {
            Phase::Proposing { .. } => Standing::Elected,
            Phase::Holding(holding) => holding.tenure.standing(now),
            Phase::Idle | Phase::Waiting { .. } | Phase::Preparing(_) => return,
        };
        self.propose_as(standing, now);
    }

    fn propose_as(&mut self, standing: Standing, now: MonoTime) {
        let tenure = match &mut self.phase {
            Phase::Proposing { tenure, .. } => tenure,
            Phase::Holding(holding) => &mut holding.tenure,
            Phase::Idle | Phase::Waiting { .. } | Phase::Preparing(_) => return,
        };
        let before = tenure.expiry();
        let (number, term, in_sync) = tenure.propose(self.wish.clone(), standing, now);
        if tenure.expiry() < before && tenure.is_in_force(now) {
            self.events.push_back(LeaseEvent::Moved);
        }
        let lease = Lease {
            holder: self.config.node,
            epoch: tenure.epoch,
            number,
            term_ns: nanos(term),
            in_sync,
        };
        self.messages.push_back(LeaseMessage::Propose {
            share: self.config.share,
            lease,
            standing,
            void: self.void,
        });
    }

    /// Tells what an answer changed.
    pub(super) fn follow(&mut self, change: Change, now: MonoTime) {
        let regained = match change {
            Change::None => return,
            Change::Willing => return self.propose_as(Standing::Lapsed, now),
            Change::Extended { regained } => regained,
        };
        let agreed = match &mut self.phase {
            Phase::Proposing { tenure, member, .. } => {
                let (tenure, member) = (tenure.clone(), *member);
                let epoch = tenure.epoch;
                let agreed = tenure.agreed().map(|wish| wish.revision);
                self.phase = Phase::Holding(Holding {
                    tenure,
                    released: None,
                });
                self.candidacy = None;
                self.attempts.clear();
                self.backoff.reset();
                self.events.push_back(LeaseEvent::Granted { epoch, member });
                agreed
            }
            Phase::Holding(holding) => {
                if regained {
                    self.events.push_back(LeaseEvent::Regained);
                }
                self.events.push_back(LeaseEvent::Moved);
                let agreed = holding.tenure.agreed().map(|wish| wish.revision);
                if agreed < Some(self.wish.revision) && !holding.tenure.asks(self.wish.revision) {
                    // It was kept back until a majority is heard.
                    holding.tenure.hurry(now);
                }
                agreed
            }
            Phase::Idle | Phase::Waiting { .. } | Phase::Preparing(_) => return,
        };
        if let Some(revision) = agreed.filter(|revision| *revision > self.told) {
            self.told = revision;
            self.events.push_back(LeaseEvent::Agreed { revision });
        }
    }

    /// Whether what others say means that the share is lost.
    pub(super) fn doubt(&mut self, now: MonoTime) {
        if let Phase::Holding(holding) = &self.phase
            && holding.released.is_none()
            && let Some(to) = holding.tenure.is_lost(&self.quorum, now)
        {
            self.phase = Phase::Idle;
            self.events.push_back(LeaseEvent::Lost { to });
        }
    }

    fn repeat_release(&mut self, now: MonoTime) {
        let Phase::Holding(holding) = &mut self.phase else {
            return;
        };
        self.messages.push_back(LeaseMessage::Release {
            share: self.config.share,
            epoch: holding.tenure.epoch,
            number: holding.tenure.number(now),
        });
        let next = now.saturating_add(self.config.terms.renewal());
        holding.tenure.hurry(next);
    }

    /// A standby that has left the set, and whose consent to that is needed,
    /// has to be off: it could take over with what it has.
    fn want_departed_fenced(&mut self, now: MonoTime) {
        let Phase::Holding(holding) = &self.phase else {
            return;
        };
        let overdue = self.wished_at.saturating_add(self.config.terms.term) <= now;
        let Some(agreed) = holding.tenure.agreed() else {
            return;
        };
        let helps = self.config.endless && self.quorum.can_waive();
        if !helps || !overdue || agreed.revision == self.wish.revision {
            return;
        }
        let stays = |node| self.wish.in_sync.iter().any(|stay| stay.node == node);
        for stay in &agreed.in_sync {
            if !stays(stay.node) && !self.quorum.is_fenced(stay.node) {
                let node = stay.node;
                self.events.push_back(LeaseEvent::FenceWanted { node });
            }
        }
    }
}

fn nanos(term: Duration) -> u64 {
    u64::try_from(term.as_nanos()).unwrap_or(Lease::ENDLESS)
}
