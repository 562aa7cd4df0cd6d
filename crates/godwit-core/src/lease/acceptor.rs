//! The voter's side: promises, and leases that are in force.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use godwit_wire::{Epoch, Lease, LeaseMessage, NodeName, Refusal, Report, ShareId, Standing};

mod memory;

use super::Terms;
use crate::MonoTime;

/// One life of a node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speaker {
    /// The node.
    pub node: NodeName,
    /// Start of its agent.
    pub incarnation: u64,
}

/// What an acceptor knows of a share's last lease.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The lease that it accepted last.
    pub lease: &'a Lease,
    /// When it ends here.
    pub expires: MonoTime,
    /// Whether the holder has given it back.
    pub released: bool,
    /// Start of the holder's agent that had it accepted; the latest if that is not known.
    pub life: u64,
}

impl View<'_> {
    /// Whether the lease is in force.
    pub fn is_in_force(&self, now: MonoTime) -> bool {
        !self.released && now < self.expires
    }
}

/// Votes on the leases of all shares. What it has voted for can be handed to the next
/// process ([`Acceptor::to_text`]); who keeps it where a killed process can't take it along
/// does so before any answer leaves ([`Acceptor::take_news`]).
///
/// Witnesses have one and nothing else.
#[derive(Debug, Clone)]
pub struct Acceptor {
    terms: Terms,
    /// Until then leases that it accepted in an earlier life may be in force.
    quiet_until: MonoTime,
    slots: BTreeMap<ShareId, Slot>,
    answers: VecDeque<(NodeName, LeaseMessage)>,
    /// Whether the text is another one than when it was last taken.
    news: bool,
}

/// What is remembered of one share.
#[derive(Debug, Clone, Default)]
struct Slot {
    endless: bool,
    /// Kept beyond its end: it says who was in sync last.
    last: Option<Accepted>,
    /// What this node itself holds, although an earlier life accepted it.
    inherited: Option<Accepted>,
    promise: Option<Promise>,
    /// How fast proposals of each node came.
    pace: BTreeMap<NodeName, Pace>,
}

#[derive(Debug, Clone)]
struct Accepted {
    lease: Lease,
    /// When it was accepted here.
    at: MonoTime,
    expires: MonoTime,
    /// The greatest number heard: of a release it is not that of the lease,
    /// which says who was in sync.
    latest: u64,
    released: bool,
    /// Start of the agent that has proposed it.
    life: u64,
}

/// A proposal, and when it came. Its number is the time of sending.
#[derive(Debug, Clone, Copy)]
struct Pace {
    incarnation: u64,
    number: u64,
    at: MonoTime,
    /// When that life of the node was first heard to propose.
    since: MonoTime,
}

#[derive(Debug, Clone, Copy)]
struct Promise {
    epoch: Epoch,
    to: Speaker,
    until: MonoTime,
}

/// A refusal before it knows what it answers.
#[derive(Debug)]
struct Refuse {
    refusal: Refusal,
    by: Epoch,
    holder: Option<NodeName>,
    remaining: Duration,
}

impl Acceptor {
    /// An acceptor that remembers nothing.
    ///
    /// `shares` are the shares that it votes on, and whether their leases are
    /// endless. What an earlier life of this node has voted for may be in force
    /// until `quiet_until`, see [`LeaseConfig`](crate::node::LeaseConfig).
    pub fn new(
        terms: Terms,
        shares: impl IntoIterator<Item = (ShareId, bool)>,
        quiet_until: MonoTime,
    ) -> Self {
        let slot = |(share, endless)| {
            let slot = Slot {
                endless,
                ..Slot::default()
            };
            (share, slot)
        };
        Self {
            terms,
            quiet_until,
            slots: shares.into_iter().map(slot).collect(),
            answers: VecDeque::new(),
            news: true,
        }
    }

    /// What the next process must know, if that has changed since the last call.
    pub fn take_news(&mut self) -> Option<String> {
        std::mem::take(&mut self.news).then(|| self.to_text())
    }

    /// The data path says that this node holds `lease` until `expires`, from an
    /// earlier life of its agent: nobody else is promised anything before that.
    ///
    /// No more follows from it. What an acceptor accepted last in an earlier
    /// life, after the lease of its own node had ended, nobody knows.
    pub fn handle_inherited(&mut self, share: ShareId, lease: Lease, expires: MonoTime) {
        if let Some(slot) = self.slots.get_mut(&share) {
            slot.inherited = Some(Accepted {
                latest: lease.number,
                lease,
                at: MonoTime::ZERO,
                expires,
                released: false,
                life: u64::MAX,
            });
            self.news = true;
        }
    }

    /// Goes on where an earlier life has stopped: nothing that it voted for is forgotten, so
    /// there is nothing to keep quiet for that it did not.
    pub fn remember(&mut self, earlier: Self) {
        self.news = true;
        self.quiet_until = earlier.quiet_until;
        for (share, old) in earlier.slots {
            let endless = self.slots.get(&share).map(|slot| slot.endless);
            let endless = endless.unwrap_or(old.endless);
            // That a lease was given back may be kept before the data path has heard of it.
            let found = self.slots.remove(&share).and_then(|slot| slot.inherited);
            let slot = Slot {
                endless,
                inherited: found.or(old.inherited),
                ..old
            };
            // Of a share that is no longer in the file, too: it may come back.
            self.slots.insert(share, slot);
        }
    }

    /// An authentic message of a proposer arrived, that was meant for this life
    /// of this node. Answers are ignored.
    pub fn handle_message(&mut self, from: Speaker, message: &LeaseMessage, now: MonoTime) {
        let share = message.share();
        let quiet = now < self.quiet_until;
        let Some(slot) = self.slots.get_mut(&share) else {
            return;
        };
        let (epoch, number, outcome) = match message {
            LeaseMessage::Prepare { epoch, void, .. } if !quiet => {
                let promised = slot.prepare(from, *epoch, *void, &self.terms, now);
                (*epoch, 0, promised.map(Some))
            }
            LeaseMessage::Propose {
                lease,
                standing,
                void,
                ..
            } if !quiet => {
                if lease.holder != from.node {
                    return;
                }
                let accepted = slot.propose(from, lease, (*standing, *void), &self.terms, now);
                (lease.epoch, lease.number, accepted)
            }
            LeaseMessage::Prepare { epoch, .. } => (*epoch, 0, Err(self.quarantine(now))),
            LeaseMessage::Propose { lease, .. } => {
                if lease.holder == from.node {
                    slot.is_fresh(from, lease.number, &self.terms, now);
                }
                (lease.epoch, lease.number, Err(self.quarantine(now)))
            }
            LeaseMessage::Release { epoch, number, .. } => {
                slot.release(from.node, *epoch, *number);
                self.news = true;
                return;
            }
            LeaseMessage::Promise { .. }
            | LeaseMessage::Accepted { .. }
            | LeaseMessage::Refused { .. } => return,
        };
        self.news |= outcome.is_ok();
        if let Some(answer) = answer(share, epoch, number, outcome) {
            self.answers.push_back((from.node, answer));
        }
    }

    /// The candidate of this node has given its round up. What it was promised
    /// would keep the holder out, who might have been forgotten here.
    pub fn handle_given_up(&mut self, share: ShareId, node: NodeName) {
        if let Some(slot) = self.slots.get_mut(&share) {
            slot.promise = slot.promise.filter(|promise| promise.to.node != node);
            self.news = true;
        }
    }

    /// The next answer, and who it is for.
    pub fn poll_answer(&mut self) -> Option<(NodeName, LeaseMessage)> {
        self.answers.pop_front()
    }

    /// What is known here of a share's last lease.
    pub fn view(&self, share: ShareId) -> Option<View<'_>> {
        let last = self.slots.get(&share)?.last.as_ref()?;
        Some(View {
            lease: &last.lease,
            expires: last.expires,
            released: last.released,
            life: last.life,
        })
    }

    /// Until when a vote of this life or an earlier one binds, if none follows:
    /// the leases and promises that are in force here are over then. Never later
    /// than a quarantine from `now`.
    ///
    /// Leases of `own`, the node that this acceptor is of, do not count. The next
    /// life finds such a lease in its data path ([`Acceptor::handle_inherited`]) and
    /// refuses all others until it ends. If it finds none, this node does not speak
    /// under that lease, and nobody is hurt by another one. Else an owner that takes
    /// a long lease for its restart would have no vote for itself, and one more
    /// restart within that time would cost it the majority.
    pub fn bound_until(&self, own: NodeName, now: MonoTime) -> MonoTime {
        let votes = self.slots.values().map(|slot| slot.bound_until(own));
        let last = votes.fold(self.quiet_until, MonoTime::max);
        last.min(now.saturating_add(self.terms.quarantine()))
    }

    /// Until when it does not vote.
    pub const fn quiet_until(&self) -> MonoTime {
        self.quiet_until
    }

    fn quarantine(&self, now: MonoTime) -> Refuse {
        Refuse {
            refusal: Refusal::Quarantine,
            by: Epoch::NONE,
            holder: None,
            remaining: self.quiet_until.since(now),
        }
    }
}

/// What an acceptor says to a request, if anything.
enum Answer {
    Promise(Option<Report>),
    Accepted,
}

impl Slot {
    /// When the last of what was accepted and promised ends, but for what `own`
    /// holds for a while.
    fn bound_until(&self, own: NodeName) -> MonoTime {
        let accepted = [&self.last, &self.inherited].into_iter().flatten();
        let in_force = accepted.filter(|accepted| {
            let inherits = accepted.lease.holder == own && !self.endless;
            !accepted.released && !inherits
        });
        let promised = self.promise.map_or(MonoTime::ZERO, |promise| promise.until);
        in_force.fold(promised, |end, accepted| end.max(accepted.expires))
    }

    fn prepare(
        &mut self,
        from: Speaker,
        epoch: Epoch,
        void: Epoch,
        terms: &Terms,
        now: MonoTime,
    ) -> Result<Answer, Refuse> {
        self.refuse_while_held(from.node, void, now)?;
        if let Some(promise) = self.promise.filter(|promise| epoch <= promise.epoch) {
            // One that is over is not given again: something else may have been
            // accepted since, of which the candidate has not heard.
            if !promise.is_kept(from, epoch, now) {
                return Err(promise.refuse(now));
            }
        }
        if let Some(last) = self.last.as_ref().filter(|last| epoch <= last.lease.epoch) {
            return Err(last.refuse(Refusal::Superseded, now));
        }
        self.promise = Some(Promise {
            epoch,
            to: from,
            until: now.saturating_add(terms.promise()),
        });
        let report = |last: &Accepted| Report {
            lease: last.lease.clone(),
            released: last.released,
        };
        Ok(Answer::Promise(self.last.as_ref().map(report)))
    }

    /// `None`: nothing is to be said.
    fn propose(
        &mut self,
        from: Speaker,
        lease: &Lease,
        (standing, void): (Standing, Epoch),
        terms: &Terms,
        now: MonoTime,
    ) -> Result<Option<Answer>, Refuse> {
        let fresh = self.is_fresh(from, lease.number, terms, now);
        self.refuse_while_held(lease.holder, void, now)?;
        let term = self.term(lease, terms)?;
        let promise = self.promise.filter(|promise| now < promise.until);
        if let Some(promise) = promise.filter(|promise| lease.epoch < promise.epoch) {
            return Err(promise.refuse(now));
        }
        if let Some(last) = &self.last {
            let same = last.lease.epoch == lease.epoch && last.lease.holder == lease.holder;
            if last.lease.epoch == lease.epoch && !same {
                // An epoch is one node's. Else this one would seem to have owned all the time.
                return Err(last.refuse(Refusal::Superseded, now));
            }
            if same && lease.number <= last.latest {
                // Repeated by the network, or overtaken: the timer runs already.
                let repeated = lease.number == last.lease.number && !last.released;
                return Ok(repeated.then_some(Answer::Accepted));
            }
        }
        self.refuse_without_history(from, lease.epoch, (standing, fresh), now)?;
        if standing == Standing::Asking {
            return Ok(Some(Answer::Accepted));
        }
        self.inherited = None;
        self.last = Some(Accepted {
            lease: lease.clone(),
            at: now,
            expires: now.saturating_add(term),
            latest: lease.number,
            released: false,
            life: from.incarnation,
        });
        Ok(Some(Answer::Accepted))
    }

    /// Whether a proposal took about as long as one before it from the same life
    /// of that node. One that was held up, because its host was stopped when it
    /// was to be sent, speaks of a lease that was in force then.
    ///
    /// What is heard first may have been held up itself. So it counts against
    /// nothing that was accepted before: an acceptor that has just been started
    /// listens while it keeps quiet, and knows how fast a healthy holder is heard.
    fn is_fresh(&mut self, from: Speaker, number: u64, terms: &Terms, now: MonoTime) -> bool {
        let known = self.pace.get(&from.node).copied();
        let known = known.filter(|known| known.incarnation == from.incarnation);
        let pace = Pace {
            incarnation: from.incarnation,
            number,
            at: now,
            since: known.map_or(now, |known| known.since),
        };
        let Some(known) = known else {
            self.pace.insert(from.node, pace);
            return false;
        };
        let sent = Duration::from_nanos(number.saturating_sub(known.number));
        let drift = sent.saturating_sub(terms.own(sent));
        let in_time = now.since(known.at) <= sent + drift + terms.round();
        if in_time && known.number < number {
            self.pace.insert(from.node, pace);
        }
        let heard_before = |last: &Accepted| known.since < last.at;
        in_time && self.last.as_ref().is_none_or(heard_before)
    }

    /// Rule 1 of the module.
    fn refuse_while_held(&self, from: NodeName, void: Epoch, now: MonoTime) -> Result<(), Refuse> {
        let known = [&self.last, &self.inherited].into_iter().flatten();
        for held in known {
            let elsewhere = held.is_in_force(now) && held.lease.holder != from;
            if elsewhere && held.lease.epoch != void {
                return Err(held.refuse(Refusal::Held, now));
            }
        }
        Ok(())
    }

    /// Rule 4 of the module. A holder whose lease goes on may overrule whatever
    /// came to nothing here, unless it says so late; one whose lease has ended
    /// needs to be remembered. A first lease is accepted while the promise is in
    /// force: its holder knows what was accepted before that, and nothing has been since.
    fn refuse_without_history(
        &self,
        from: Speaker,
        epoch: Epoch,
        (standing, fresh): (Standing, bool),
        now: MonoTime,
    ) -> Result<(), Refuse> {
        let promise = self.promise;
        let promised = promise.is_some_and(|promise| promise.is_kept(from, epoch, now));
        let fits = match (&self.last, standing) {
            // Of one that was asked in an earlier life here, that tells nothing.
            (None, Standing::Elected) => promised,
            (None, Standing::Unbroken) => true,
            (Some(last), Standing::Unbroken) => fresh || last.lease.epoch <= epoch,
            (None, Standing::Lapsed | Standing::Asking) => {
                promise.is_some_and(|own| own.epoch == epoch)
            }
            (Some(last), Standing::Elected) => {
                last.lease.epoch == epoch || promised && last.lease.epoch < epoch
            }
            (Some(last), Standing::Lapsed | Standing::Asking) => last.lease.epoch == epoch,
        };
        if fits {
            return Ok(());
        }
        Err(self.last.as_ref().map_or(
            Refuse {
                refusal: Refusal::Forgotten,
                by: Epoch::NONE,
                holder: None,
                remaining: Duration::ZERO,
            },
            |last| last.refuse(Refusal::Superseded, now),
        ))
    }

    /// A lease longer than the quarantine would outlive our memory of it.
    fn term(&self, lease: &Lease, terms: &Terms) -> Result<Duration, Refuse> {
        let endless = lease.term_ns == Lease::ENDLESS;
        let term = Duration::from_nanos(lease.term_ns);
        let fits = if self.endless {
            endless
        } else {
            term <= terms.longest()
        };
        if fits {
            return Ok(if endless { Duration::MAX } else { term });
        }
        Err(Refuse {
            refusal: Refusal::TooLong,
            by: Epoch::NONE,
            holder: None,
            remaining: Duration::ZERO,
        })
    }

    fn release(&mut self, from: NodeName, epoch: Epoch, number: u64) {
        for held in [&mut self.last, &mut self.inherited].into_iter().flatten() {
            let same = held.lease.holder == from && held.lease.epoch == epoch;
            if same && held.latest < number {
                held.latest = number;
                held.released = true;
            }
        }
    }
}

impl Accepted {
    fn is_in_force(&self, now: MonoTime) -> bool {
        !self.released && now < self.expires
    }

    fn refuse(&self, refusal: Refusal, now: MonoTime) -> Refuse {
        Refuse {
            refusal,
            by: self.lease.epoch,
            holder: Some(self.lease.holder),
            remaining: if self.is_in_force(now) {
                self.expires.since(now)
            } else {
                Duration::ZERO
            },
        }
    }
}

impl Promise {
    /// Whether it is this one, and in force.
    fn is_kept(self, to: Speaker, epoch: Epoch, now: MonoTime) -> bool {
        now < self.until && epoch == self.epoch && to == self.to
    }

    fn refuse(self, now: MonoTime) -> Refuse {
        Refuse {
            refusal: Refusal::Promised,
            by: self.epoch,
            holder: Some(self.to.node),
            remaining: self.until.since(now),
        }
    }
}

fn answer(
    share: ShareId,
    epoch: Epoch,
    number: u64,
    outcome: Result<Option<Answer>, Refuse>,
) -> Option<LeaseMessage> {
    Some(match outcome {
        Ok(None) => return None,
        Ok(Some(Answer::Promise(last))) => LeaseMessage::Promise { share, epoch, last },
        Ok(Some(Answer::Accepted)) => LeaseMessage::Accepted {
            share,
            epoch,
            number,
        },
        Err(refuse) => LeaseMessage::Refused {
            share,
            epoch,
            number,
            refusal: refuse.refusal,
            by: refuse.by,
            holder: refuse.holder,
            remaining_ns: u64::try_from(refuse.remaining.as_nanos()).unwrap_or(u64::MAX),
        },
    })
}
