//! From wanting a share to holding it.

use godwit_wire::LeaseMessage;

use super::{Phase, Proposer};
use crate::MonoTime;
use crate::lease::event::{Candidacy, LeaseEvent};
use crate::lease::round::{Awaits, Outcome, Round};
use crate::lease::tenure::Tenure;

impl Proposer {
    /// Begins a round with an epoch that nobody has used.
    pub(super) fn prepare(&mut self, now: MonoTime) {
        let epoch = self.config.ballot.above(self.learned);
        self.learned = epoch;
        let terms = &self.config.terms;
        let deadline = now.saturating_add(terms.own(terms.round()));
        let resend = now.saturating_add(terms.renewal());
        self.phase = Phase::Preparing(Round::new(epoch, deadline, resend));
        self.ask();
    }

    /// Asks for promises. Who has promised does so again.
    pub(super) fn ask(&mut self) {
        if let Phase::Preparing(round) = &self.phase {
            self.messages.push_back(LeaseMessage::Prepare {
                share: self.config.share,
                epoch: round.epoch,
                void: self.void,
            });
        }
    }

    /// Looks what the answers so far come to.
    pub(super) fn judge(&mut self, now: MonoTime) {
        let (Phase::Preparing(round), Some(candidacy)) = (&self.phase, self.candidacy) else {
            return;
        };
        if round.deadline <= now {
            return;
        }
        let others = if self.config.endless {
            &*self.config.others
        } else {
            &[]
        };
        match round.outcome(self.config.node, &candidacy, &self.quorum, others) {
            Outcome::Open => {}
            Outcome::Blocked => {
                self.free_since = None;
                match round.void(&self.quorum) {
                    Some(void) if void != self.void => {
                        self.void = void;
                        self.prepare(now);
                    }
                    Some(_) | None => self.retry(now),
                }
            }
            Outcome::Elected { member: true, .. } => self.stand(true, now),
            Outcome::Elected {
                member: false,
                awaits,
            } => {
                let until = self.fresh_at(awaits, candidacy, now);
                if now < until {
                    self.phase = Phase::Waiting { until };
                } else {
                    self.stand(false, now);
                }
            }
        }
    }

    /// When a candidate without the connections may begin anew.
    fn fresh_at(&mut self, awaits: Awaits, candidacy: Candidacy, now: MonoTime) -> MonoTime {
        let free_since = *self.free_since.get_or_insert(now);
        match awaits {
            Awaits::Nobody => now,
            Awaits::Owner => free_since.saturating_add(candidacy.owner_has),
            Awaits::Standby => candidacy.fresh_after,
        }
    }

    /// A majority has promised: now it is to accept a lease. Nobody is in sync
    /// with an owner that has only just begun, but the one that handed it the
    /// share, if it goes on with the connections.
    fn stand(&mut self, member: bool, now: MonoTime) {
        let Phase::Preparing(round) = &self.phase else {
            return;
        };
        let (epoch, deadline) = (round.epoch, round.deadline);
        self.attempts.note(epoch, round.promises());
        self.wish.in_sync = self.stay.into_iter().filter(|_| member).collect();
        self.wish.revision += 1;
        self.phase = Phase::Proposing {
            round: Round::new(epoch, deadline, deadline),
            member,
            tenure: Tenure::elected(epoch, self.config.terms, self.config.endless, now),
        };
        self.propose(now);
    }

    /// Whether too many have refused the first lease.
    pub(super) fn is_blocked(&self) -> bool {
        match &self.phase {
            Phase::Proposing { round, .. } => self.quorum.blocks(|node| round.has_answered(node)),
            Phase::Idle | Phase::Waiting { .. } | Phase::Preparing(_) | Phase::Holding(_) => false,
        }
    }

    /// Frees the voters that have accepted a lease which comes to nothing.
    pub(super) fn give_back(&mut self, now: MonoTime) {
        if let Phase::Proposing { tenure, .. } = &mut self.phase {
            self.messages.push_back(LeaseMessage::Release {
                share: self.config.share,
                epoch: tenure.epoch,
                number: tenure.number(now),
            });
        }
    }

    /// Waits until it may help to try again.
    pub(super) fn retry(&mut self, now: MonoTime) {
        let Some(candidacy) = self.candidacy else {
            self.phase = Phase::Idle;
            return;
        };
        let terms = &self.config.terms;
        let free_at = match &self.phase {
            Phase::Preparing(round) => round.free_at(&self.quorum),
            Phase::Idle | Phase::Waiting { .. } | Phase::Proposing { .. } | Phase::Holding(_) => {
                None
            }
        };
        // A long lease may be given back, and a quarantined voter outvoted.
        let longest = now.saturating_add(terms.term);
        let at = match free_at {
            Some(at) => at.min(longest),
            None => now.saturating_add(self.backoff.next(terms.renewal() * 2)),
        };
        let until = at.saturating_add(candidacy.stagger);
        self.phase = Phase::Waiting {
            until: self.yielded(until, candidacy),
        };
    }

    /// A round that ends before a majority may vote does no harm; but one that is under way
    /// in that instant leaves others no precedence.
    pub(super) fn yielded(&self, until: MonoTime, candidacy: Candidacy) -> MonoTime {
        let over = self.silence.over(&self.quorum);
        if until.saturating_add(self.config.terms.round()) < over {
            until
        } else {
            until.max(over.saturating_add(candidacy.yields))
        }
    }

    /// Nobody can be sure of a server that does not answer, unless it is off.
    pub(super) fn want_fence(&mut self, now: MonoTime) {
        let (Phase::Preparing(round), Some(candidacy)) = (&self.phase, self.candidacy) else {
            return;
        };
        if !self.config.endless || now < candidacy.fence_after {
            return;
        }
        for node in &self.config.others {
            if !round.has_answered(*node) && !self.quorum.is_fenced(*node) {
                let node = *node;
                self.events.push_back(LeaseEvent::FenceWanted { node });
            }
        }
    }
}
