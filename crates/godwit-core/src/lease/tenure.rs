//! A node's hold on a share under one epoch: proposals, renewals, the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use godwit_wire::{Epoch, NodeName, Refusal, Standing, Stay};

use super::quorum::Quorum;
use super::round::Objection;
use super::{Proposer, Terms};
use crate::MonoTime;

/// Proposals that are waited for at a time. A seventh renewal is sent when the
/// first can no longer be of use; changes of the in-sync set come on top.
const MAX_PENDING: usize = 16;

/// A voter that has accepted nothing for so long, and for two terms, may have
/// forgotten, or be gone.
const STALE: Duration = Duration::from_secs(1);

/// How long a holder whose lease has ended waits for a voter that remembers it, while those
/// who answer know of no later lease. Agents that are killed one after the other leave such
/// voters: `a` was killed, `b` took over with the vote of `w`, and now `w` is killed and `a`
/// is back, whose own lease is the last that it knows of.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a proposal asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) in_sync: Vec<Stay>,
    /// Counts the changes of the set.
    pub(super) revision: u64,
}

#[derive(Debug, Clone)]
struct Proposal {
    /// Also the time of sending.
    number: u64,
    standing: Standing,
    term: Duration,
    wish: Wish,
    accepted: BTreeSet<NodeName>,
}

/// What a holder whose lease has ended hears from the others.
#[derive(Debug, Clone)]
struct Lapse {
    since: MonoTime,
    /// Who does not accept: another has leased the share since, or this voter never knew of
    /// our lease, or has forgotten it.
    against: BTreeSet<NodeName>,
    /// The latest lease that they know of, if it is in force there or later than ours.
    by: Option<(Epoch, NodeName)>,
}

/// What an answer changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A majority would accept what it was asked.
    Willing,
    /// A majority accepted: the lease is in force longer, or again.
    Extended {
        /// It had ended in between.
        regained: bool,
    },
    /// Nothing that matters.
    None,
}

/// One node's hold on a share. Its end is `expiry`, by the node's own clock.
#[derive(Debug, Clone)]
pub(super) struct Tenure {
    pub(super) epoch: Epoch,
    terms: Terms,
    endless: bool,
    /// It began without leases, and no majority has granted one yet.
    unfenced: bool,
    last_number: u64,
    pending: VecDeque<Proposal>,
    /// When we fall silent: counted from before the request was sent, less the
    /// drift and what may sit in queues.
    expiry: MonoTime,
    /// When a majority last accepted.
    confirmed: MonoTime,
    /// What a majority has accepted last.
    agreed: Option<Wish>,
    lapse: Option<Lapse>,
    /// When each node last said yes or no, since the lease ended.
    heard: BTreeMap<NodeName, MonoTime>,
    /// When each voter last accepted the lease, if it has not refused since.
    voters: BTreeMap<NodeName, MonoTime>,
    /// Whether a majority has ever accepted what this life of the node proposed.
    met: bool,
    /// Whether renewals are for the long term.
    prolonged: bool,
    /// When the next proposal is due.
    next: MonoTime,
}

impl Tenure {
    /// Of a node that a majority has promised `epoch` to.
    pub(super) fn elected(epoch: Epoch, terms: Terms, endless: bool, now: MonoTime) -> Self {
        Self {
            epoch,
            terms,
            endless,
            unfenced: false,
            last_number: 0,
            pending: VecDeque::new(),
            expiry: MonoTime::ZERO,
            confirmed: MonoTime::ZERO,
            agreed: None,
            lapse: None,
            heard: BTreeMap::new(),
            voters: BTreeMap::new(),
            met: false,
            prolonged: false,
            next: now,
        }
    }

    /// Of a node whose data path holds the lease until `expiry`.
    pub(super) fn resumed(
        epoch: Epoch,
        terms: Terms,
        (endless, expiry): (bool, MonoTime),
        agreed: Wish,
        now: MonoTime,
    ) -> Self {
        let mut this = Self {
            expiry,
            unfenced: !endless && expiry == Proposer::NO_FENCE,
            agreed: Some(agreed),
            ..Self::elected(epoch, terms, endless, now)
        };
        // An endless lease has no end that a timer would find.
        if endless && expiry <= now {
            this.lapse(now);
        }
        this
    }

    /// When we fall silent unless we hear of a renewal.
    pub(super) const fn expiry(&self) -> MonoTime {
        self.expiry
    }

    /// Whether the data path does not fall silent by itself.
    pub(super) const fn is_unfenced(&self) -> bool {
        self.endless || self.unfenced
    }

    pub(super) fn is_in_force(&self, now: MonoTime) -> bool {
        now < self.expiry
    }

    /// Whether its end has been told.
    pub(super) const fn has_lapsed(&self) -> bool {
        self.lapse.is_some()
    }

    /// The in-sync set that a majority has accepted.
    pub(super) fn agreed(&self) -> Option<&Wish> {
        self.agreed.as_ref()
    }

    /// Whether voters without this `node` know enough to elect who is in sync.
    pub(super) fn can_be_succeeded(&self, node: NodeName, quorum: &Quorum, now: MonoTime) -> bool {
        let patience = STALE.max(self.terms.term * 2);
        quorum.elects_without(node, |voter| {
            self.voters
                .get(&voter)
                .is_some_and(|accepted| now.since(*accepted) < patience)
        })
    }

    /// Whether a majority has accepted a long lease.
    pub(super) fn is_prolonged(&self, now: MonoTime) -> bool {
        let least = self.terms.end(now, self.terms.longest());
        let least = least.saturating_sub(self.terms.term);
        self.prolonged && (self.endless || self.expiry >= least)
    }

    pub(super) const fn prolong(&mut self, now: MonoTime) {
        self.prolonged = true;
        self.next = now;
    }

    /// Asks for a proposal at once.
    pub(super) const fn hurry(&mut self, now: MonoTime) {
        self.next = now;
    }

    /// Whether a proposal of that set is under way, and not taken back since.
    pub(super) fn asks(&self, revision: u64) -> bool {
        let latest = self.pending.back();
        latest.is_some_and(|one| one.wish.revision == revision)
    }

    /// When the next proposal is due.
    pub(super) const fn next(&self) -> MonoTime {
        self.next
    }

    /// When its end is to be told.
    pub(super) fn lapses_at(&self) -> Option<MonoTime> {
        (!self.endless && self.lapse.is_none()).then_some(self.expiry)
    }

    /// On what ground a proposal would stand that is made of our own accord.
    ///
    /// Once the lease has ended we ask first: whoever can be heard but can't
    /// hear would keep all others out with what it proposes.
    pub(super) fn standing(&self, now: MonoTime) -> Standing {
        if self.is_in_force(now) {
            Standing::Unbroken
        } else {
            Standing::Asking
        }
    }

    /// A new proposal: its number and its term.
    ///
    /// May shorten our own lease: voters will count from this one.
    pub(super) fn propose(
        &mut self,
        wish: Wish,
        standing: Standing,
        now: MonoTime,
    ) -> (u64, Duration, Vec<Stay>) {
        self.next = now.saturating_add(self.patience(wish.revision));
        let wish = self.sayable(wish, now);
        let number = self.number(now);
        let term = self.term(now);
        if !self.is_unfenced() {
            let ends = self.terms.end(now, term);
            self.expiry = self.expiry.min(ends);
            if self.pending.iter().any(|earlier| self.end(earlier) > ends) {
                self.pending.clear();
            }
        }
        if self.pending.len() == MAX_PENDING {
            self.pending.pop_front();
        }
        self.pending.push_back(Proposal {
            number,
            standing,
            term,
            wish: wish.clone(),
            accepted: BTreeSet::new(),
        });
        (number, term, wish.in_sync)
    }

    /// How long until the next proposal. An endless lease needs renewals only
    /// for voters that restart.
    fn patience(&self, revision: u64) -> Duration {
        let agreed = self.agreed.as_ref().map(|agreed| agreed.revision);
        if self.endless && agreed == Some(revision) {
            self.terms.term
        } else {
            self.terms.renewal()
        }
    }

    /// A change of the set is proposed only while a majority is heard. Else it
    /// might be accepted without our knowing, and bar from taking over whoever
    /// has all the bytes.
    fn sayable(&self, wish: Wish, now: MonoTime) -> Wish {
        let lately = if self.endless {
            self.terms.term
        } else {
            self.terms.renewal()
        };
        let heard = now.since(self.confirmed) <= lately * 2;
        match &self.agreed {
            Some(agreed) if !heard => agreed.clone(),
            Some(_) | None => wish,
        }
    }

    /// A number above all others of this epoch.
    pub(super) fn number(&mut self, now: MonoTime) -> u64 {
        self.last_number = now.as_nanos().max(self.last_number.saturating_add(1));
        self.last_number
    }

    /// A long lease of before a restart is not given up for a short one until
    /// a majority has been heard: it bridges the time until then.
    fn term(&self, now: MonoTime) -> Duration {
        if self.endless {
            Duration::MAX
        } else if self.prolonged {
            self.terms.longest()
        } else if !self.met {
            let left = self
                .expiry
                .since(now)
                .saturating_add(self.terms.egress_residence);
            // Voters count our nanoseconds with clocks that may be faster.
            let enough = left.saturating_add(left.saturating_sub(self.terms.own(left)) * 2);
            self.terms.term.max(enough).min(self.terms.longest())
        } else {
            self.terms.term
        }
    }

    fn end(&self, proposal: &Proposal) -> MonoTime {
        self.terms.end(MonoTime(proposal.number), proposal.term)
    }

    /// `from` holds the lease as in proposal `number`.
    pub(super) fn handle_accepted(
        &mut self,
        from: NodeName,
        number: u64,
        quorum: &Quorum,
        now: MonoTime,
    ) -> Change {
        self.voters.insert(from, now);
        if let Some(lapse) = &mut self.lapse {
            lapse.against.remove(&from);
            self.heard.insert(from, now);
        }
        let Some(index) = self.pending.iter().position(|one| one.number == number) else {
            return Change::None;
        };
        if let Some(proposal) = self.pending.get_mut(index) {
            proposal.accepted.insert(from);
        }
        self.count(index, quorum, now)
    }

    /// Counts again after a node was powered off: its consent is not needed.
    pub(super) fn recount(&mut self, quorum: &Quorum, now: MonoTime) -> Change {
        match self.pending.len().checked_sub(1) {
            Some(latest) => self.count(latest, quorum, now),
            None => Change::None,
        }
    }

    fn count(&mut self, index: usize, quorum: &Quorum, now: MonoTime) -> Change {
        let Some(proposal) = self.pending.get(index) else {
            return Change::None;
        };
        let end = if self.endless {
            MonoTime(u64::MAX)
        } else {
            self.end(proposal)
        };
        if !quorum.consents(|node| proposal.accepted.contains(&node)) || end <= now {
            return Change::None;
        }
        if proposal.standing == Standing::Asking {
            self.pending.drain(..=index);
            return Change::Willing;
        }
        let wish = proposal.wish.clone();
        self.met = true;
        self.confirmed = now;
        if !self.is_taken_back(index, &wish) {
            self.agreed = Some(wish);
        }
        self.expiry = if std::mem::take(&mut self.unfenced) {
            end
        } else {
            self.expiry.max(end)
        };
        self.pending.drain(..=index);
        let regained = self.lapse.take().is_some();
        Change::Extended { regained }
    }

    /// Whether a later proposal has gone back to an earlier set ([`Self::sayable`]). Who
    /// has accepted this one may have accepted that since, and voters go by the latest.
    fn is_taken_back(&self, index: usize, wish: &Wish) -> bool {
        let is_older = |later: &Proposal| {
            later.standing != Standing::Asking && later.wish.revision < wish.revision
        };
        self.pending.iter().skip(index + 1).any(is_older)
    }

    /// `from` does not accept a proposal.
    pub(super) fn handle_refused(&mut self, from: NodeName, objection: Objection, now: MonoTime) {
        self.voters.remove(&from);
        let Some(lapse) = &mut self.lapse else {
            return;
        };
        match objection.refusal {
            Refusal::Held | Refusal::Superseded | Refusal::Forgotten => {
                self.heard.insert(from, now);
                lapse.against.insert(from);
                // A voter may know of an earlier lease only, which says nothing.
                let is_news = objection.refusal == Refusal::Held || self.epoch < objection.by;
                if let Some(holder) = objection.holder.filter(|_| is_news) {
                    lapse.by = lapse.by.max(Some((objection.by, holder)));
                    // It has accepted its own lease before anybody else.
                    lapse.against.insert(holder);
                }
            }
            // The candidate that is promised may fail, the quarantine ends.
            Refusal::Promised | Refusal::Quarantine | Refusal::TooLong => {}
        }
    }

    /// The lease is over, by time or because it is given back.
    pub(super) fn lapse(&mut self, now: MonoTime) {
        self.expiry = self.expiry.min(now);
        self.unfenced = false;
        self.pending.clear();
        self.heard.clear();
        self.lapse = Some(Lapse {
            since: now,
            against: BTreeSet::new(),
            by: None,
        });
    }

    /// Whether the lease can't be had back, and whose it is if that is known.
    pub(super) fn is_lost(
        &self,
        quorum: &Quorum,
        now: MonoTime,
    ) -> Option<Option<(Epoch, NodeName)>> {
        let lapse = self.lapse.as_ref()?;
        let proven = quorum.blocks(|node| lapse.against.contains(&node));
        let recently = |node| {
            self.heard
                .get(&node)
                .is_some_and(|heard| now.since(*heard) < self.terms.term)
        };
        // While all who answer say yes nobody else has it; they may only be slow.
        let in_vain = !lapse.against.is_empty() && quorum.consents(recently);
        let hopeless = now >= self.give_up_at(lapse) && in_vain;
        (proven || hopeless).then_some(lapse.by)
    }

    /// Whoever answers now had the time to accept, even if a few were lost.
    fn give_up_at(&self, lapse: &Lapse) -> MonoTime {
        let patience = match lapse.by {
            Some(_) => self.terms.term,
            None => PATIENCE.max(self.terms.term),
        };
        lapse.since.saturating_add(patience)
    }
}
