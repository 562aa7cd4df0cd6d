//! The side that wants to own: elections, renewals, changes of the in-sync set.

use std::collections::VecDeque;

use godwit_wire::{Epoch, LeaseMessage, NodeName, Refusal, Report, Stay};

use super::attempts::Attempts;
use super::backoff::Backoff;
use super::event::{Candidacy, LeaseEvent, ProposerConfig};
use super::quorum::Quorum;
use super::round::{Objection, Round};
use super::silence::Silence;
use super::tenure::{Tenure, Wish};
use crate::MonoTime;
use crate::time::earliest;

mod election;
mod holding;

/// Where a proposer stands.
///
/// ```text
///         candidacy          due                majority promised
///  Idle ────────────► Waiting ──► Preparing ────────────────────► Proposing
///   ▲                    ▲  ▲          │ refused, too late          │    │
///   │ withdraw           │  └──────────┘                            │    │
///   ├────────────────────┘  ▲            refused, too late          │    │ majority
///   │                       └───────────────────────────────────────┘    │ accepted
///   │ resign, lost                                                       ▼
///   └───────────────────────────────────────────────────────────────► Holding
/// ```
#[derive(Debug, Clone)]
enum Phase {
    /// Does not want the share.
    Idle,
    /// Will try.
    Waiting { until: MonoTime },
    /// Collects promises.
    Preparing(Round),
    /// Collects acceptances for its first lease.
    Proposing {
        round: Round,
        member: bool,
        tenure: Tenure,
    },
    /// Holds the lease, or held it last.
    Holding(Holding),
}

#[derive(Debug, Clone)]
struct Holding {
    tenure: Tenure,
    /// Given back, and when it is asked for again if nobody wants it.
    released: Option<MonoTime>,
}

/// Wants one share for this node. See [`Phase`] in the source.
///
/// All its messages go to every voter and every other server of the share, this
/// node's own acceptor included; all answers come back to
/// [`Proposer::handle_message`].
#[derive(Debug, Clone)]
pub struct Proposer {
    config: ProposerConfig,
    quorum: Quorum,
    phase: Phase,
    candidacy: Option<Candidacy>,
    /// Since when no lease has been in its way as a candidate.
    free_since: Option<MonoTime>,
    /// The greatest epoch heard of.
    learned: Epoch,
    /// The lease of a node without power.
    void: Epoch,
    /// Who is in sync with this node once it is elected.
    stay: Option<Stay>,
    wish: Wish,
    /// When it last changed.
    wished_at: MonoTime,
    /// The revision that was last told to be agreed upon.
    told: u64,
    attempts: Attempts,
    silence: Silence,
    backoff: Backoff,
    messages: VecDeque<LeaseMessage>,
    events: VecDeque<LeaseEvent>,
}

impl Proposer {
    /// The expiry of a data path that does not fall silent by itself.
    pub const NO_FENCE: MonoTime = MonoTime(u64::MAX);

    /// A proposer that does not want the share.
    pub fn new(config: ProposerConfig) -> Self {
        Self {
            quorum: Quorum::new(config.voters.clone()),
            phase: Phase::Idle,
            candidacy: None,
            free_since: None,
            learned: Epoch::NONE,
            void: Epoch::NONE,
            stay: None,
            wish: Wish {
                in_sync: Vec::new(),
                revision: 0,
            },
            wished_at: MonoTime::ZERO,
            told: 0,
            attempts: Attempts::default(),
            silence: Silence::default(),
            backoff: Backoff::new(config.seed),
            messages: VecDeque::new(),
            events: VecDeque::new(),
            config,
        }
    }

    /// A proposer whose node's data path holds the lease of `epoch` until
    /// `expiry`, from an earlier life of its agent. With [`Self::NO_FENCE`] it had none, and
    /// goes on without until a majority has granted the first.
    pub fn resume(
        config: ProposerConfig,
        epoch: Epoch,
        expiry: MonoTime,
        in_sync: Vec<Stay>,
        now: MonoTime,
    ) -> Self {
        let mut this = Self::new(config);
        this.wish.in_sync = in_sync;
        this.learned = epoch;
        let ends = (this.config.endless, expiry);
        let agreed = this.wish.clone();
        this.phase = Phase::Holding(Holding {
            tenure: Tenure::resumed(epoch, this.config.terms, ends, agreed, now),
            released: None,
        });
        this
    }

    /// This node wants the share, or still wants it with other twins.
    pub fn handle_candidacy(&mut self, candidacy: Candidacy, now: MonoTime) {
        self.learned = self.learned.max(candidacy.above);
        self.void = candidacy.void.unwrap_or(self.void);
        match self.phase {
            Phase::Holding(_) => {}
            Phase::Idle => {
                self.candidacy = Some(candidacy);
                self.free_since = None;
                let until = now.saturating_add(candidacy.stagger);
                self.phase = Phase::Waiting {
                    until: self.yielded(until, candidacy),
                };
            }
            Phase::Waiting { .. } | Phase::Preparing(_) | Phase::Proposing { .. } => {
                self.candidacy = Some(candidacy);
            }
        }
    }

    /// The share may be free now: a candidate that waits need not wait longer
    /// than it leaves others the precedence.
    pub fn handle_vacancy(&mut self, now: MonoTime) {
        if let (Phase::Waiting { until }, Some(candidacy)) = (&mut self.phase, self.candidacy) {
            *until = (*until).min(now.saturating_add(candidacy.stagger));
        }
    }

    /// This node does not want the share any more.
    pub fn handle_withdrawal(&mut self, now: MonoTime) {
        match self.phase {
            Phase::Idle | Phase::Holding(_) => return,
            Phase::Waiting { .. } | Phase::Preparing(_) => {}
            Phase::Proposing { .. } => self.give_back(now),
        }
        self.phase = Phase::Idle;
        self.candidacy = None;
    }

    /// Another node says that it holds the lease: a round that has not come to a
    /// proposal is given up. Whether it was.
    pub fn handle_holder_heard(&mut self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Holding(_) | Phase::Proposing { .. } => false,
            Phase::Waiting { .. } | Phase::Preparing(_) => {
                self.phase = Phase::Idle;
                self.candidacy = None;
                true
            }
        }
    }

    /// This node has lost the share to another: nothing is given back.
    pub fn handle_resignation(&mut self) {
        self.phase = Phase::Idle;
        self.candidacy = None;
    }

    /// These standbys are in sync. `Agreed` follows when a majority knows.
    /// Returns the revision that it will name.
    pub fn handle_in_sync(&mut self, in_sync: Vec<Stay>, now: MonoTime) -> u64 {
        if in_sync != self.wish.in_sync {
            self.wish.in_sync = in_sync;
            self.wish.revision += 1;
            self.wished_at = now;
            if let Phase::Holding(holding) = &mut self.phase {
                holding.tenure.hurry(now);
            }
        }
        self.wish.revision
    }

    /// The agent is about to restart: the lease is to last until it is back.
    pub fn handle_prolongation(&mut self, now: MonoTime) {
        if let Phase::Holding(holding) = &mut self.phase {
            holding.tenure.prolong(now);
        }
    }

    /// This node gives the share up, and wants it back only if nobody else does
    /// within two terms. The data path must be silent before any message that
    /// follows is sent.
    pub fn handle_release(&mut self, now: MonoTime) {
        let Phase::Holding(holding) = &mut self.phase else {
            return;
        };
        let terms = &self.config.terms;
        holding.released = Some(now.saturating_add(terms.term * 2));
        holding.tenure.lapse(now);
        holding.tenure.hurry(now);
        self.events.push_back(LeaseEvent::Lapsed);
    }

    /// A candidate that is handed the share has a standby in sync from the first
    /// moment: the owner that was.
    pub const fn handle_stay(&mut self, stay: Option<Stay>) {
        self.stay = stay;
    }

    /// This node has handed the share over, and stands by for its new owner. The
    /// data path must be silent before any message that follows is sent.
    pub fn handle_hand_over(&mut self, now: MonoTime) {
        if let Phase::Holding(holding) = &mut self.phase {
            self.messages.push_back(LeaseMessage::Release {
                share: self.config.share,
                epoch: holding.tenure.epoch,
                number: holding.tenure.number(now),
            });
        }
        self.handle_resignation();
    }

    /// Nobody else can take what this node gave up: it wants it back now.
    pub fn handle_reclaim(&mut self, now: MonoTime) {
        if let Phase::Holding(holding) = &mut self.phase
            && holding.released.take().is_some()
        {
            holding.tenure.hurry(now);
        }
    }

    /// `node` has been powered off. Only of use where leases are endless.
    pub fn handle_fenced(&mut self, node: NodeName, now: MonoTime) {
        if !self.config.endless {
            return;
        }
        self.quorum.fence(node);
        match &mut self.phase {
            Phase::Idle => {}
            Phase::Waiting { until } => *until = now,
            Phase::Preparing(_) => self.judge(now),
            Phase::Proposing { tenure, .. } => {
                let change = tenure.recount(&self.quorum, now);
                self.follow(change, now);
            }
            Phase::Holding(holding) => {
                let change = holding.tenure.recount(&self.quorum, now);
                self.follow(change, now);
            }
        }
    }

    /// `node` has been heard: it has power.
    pub fn handle_heard(&mut self, node: NodeName) {
        self.quorum.unfence(node);
    }

    /// An answer arrived. Requests are ignored.
    pub fn handle_message(&mut self, from: NodeName, message: &LeaseMessage, now: MonoTime) {
        match message {
            LeaseMessage::Promise { epoch, last, .. } => {
                if let Some(Report { lease, .. }) = last {
                    self.learned = self.learned.max(lease.epoch);
                    self.quorum.note_lease(lease.holder, lease.epoch);
                }
                let before = self.attempts.before(from, last.clone(), self.config.node);
                match &mut self.phase {
                    Phase::Preparing(round) if round.epoch == *epoch => {
                        round.handle_promise(from, before);
                        self.judge(now);
                    }
                    // It may accept, too late for this attempt.
                    Phase::Proposing { round, .. } if round.epoch == *epoch => {
                        self.attempts.add(*epoch, from, before);
                    }
                    Phase::Idle
                    | Phase::Waiting { .. }
                    | Phase::Preparing(_)
                    | Phase::Proposing { .. }
                    | Phase::Holding(_) => {}
                }
            }
            LeaseMessage::Accepted { epoch, number, .. } => {
                self.handle_accepted(from, *epoch, *number, now);
            }
            LeaseMessage::Refused {
                epoch,
                number,
                refusal,
                by,
                holder,
                remaining_ns,
                ..
            } => {
                self.learned = self.learned.max(*by);
                if let (Refusal::Held | Refusal::Superseded, Some(holder)) = (refusal, holder) {
                    self.quorum.note_lease(*holder, *by);
                }
                let objection = Objection::new((*refusal, *by, *holder), *remaining_ns, now);
                self.silence.note(from, objection);
                self.handle_refused(from, *epoch, *number, objection, now);
            }
            LeaseMessage::Prepare { .. }
            | LeaseMessage::Propose { .. }
            | LeaseMessage::Release { .. } => {}
        }
    }

    fn handle_accepted(&mut self, from: NodeName, epoch: Epoch, number: u64, now: MonoTime) {
        let tenure = match &mut self.phase {
            Phase::Proposing { tenure, .. } => tenure,
            Phase::Holding(Holding {
                tenure,
                released: None,
            }) => tenure,
            Phase::Holding(_) | Phase::Idle | Phase::Waiting { .. } | Phase::Preparing(_) => return,
        };
        if tenure.epoch == epoch {
            let change = tenure.handle_accepted(from, number, &self.quorum, now);
            self.follow(change, now);
        }
    }

    fn handle_refused(
        &mut self,
        from: NodeName,
        epoch: Epoch,
        number: u64,
        objection: Objection,
        now: MonoTime,
    ) {
        match &mut self.phase {
            Phase::Preparing(round) => {
                if round.epoch == epoch && number == 0 {
                    round.handle_refusal(from, objection);
                    self.judge(now);
                }
            }
            Phase::Proposing { round, .. } => {
                if round.epoch == epoch && number != 0 {
                    round.handle_refusal(from, objection);
                    if self.is_blocked() {
                        self.give_back(now);
                        self.retry(now);
                    }
                }
            }
            Phase::Holding(holding) => {
                if holding.tenure.epoch == epoch {
                    holding.tenure.handle_refused(from, objection, now);
                    self.doubt(now);
                }
            }
            Phase::Idle | Phase::Waiting { .. } => {}
        }
    }

    /// When [`Proposer::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        match &self.phase {
            Phase::Idle => None,
            Phase::Waiting { until } => Some(*until),
            Phase::Preparing(round) => Some(round.deadline.min(round.resend)),
            Phase::Proposing { round, tenure, .. } => Some(round.deadline.min(tenure.next())),
            Phase::Holding(holding) => {
                earliest([Some(holding.tenure.next()), holding.tenure.lapses_at()])
            }
        }
    }

    /// Time has passed. Feed all answers that have arrived before.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        match &mut self.phase {
            Phase::Idle => {}
            Phase::Waiting { .. } => self.prepare(now),
            Phase::Preparing(round) if now < round.deadline => {
                round.resend = now.saturating_add(self.config.terms.renewal());
                round.patient = true;
                self.ask();
                self.judge(now);
            }
            Phase::Preparing(_) => {
                self.want_fence(now);
                self.retry(now);
            }
            Phase::Proposing { round, .. } if now < round.deadline => self.propose(now),
            Phase::Proposing { .. } => {
                self.give_back(now);
                self.retry(now);
            }
            Phase::Holding(_) => self.keep(now),
        }
    }

    /// The next message, for every voter and every other server of the share.
    pub fn poll_message(&mut self) -> Option<LeaseMessage> {
        self.messages.pop_front()
    }

    /// The next thing that happened, oldest first. Acted upon before any
    /// message that follows is sent.
    pub fn poll_event(&mut self) -> Option<LeaseEvent> {
        self.events.pop_front()
    }

    /// When this node falls silent unless its lease is renewed: the end of the
    /// lease less drift and [`super::Terms::egress_residence`]. `None` if it holds
    /// none, or one that does not end by itself and was not given back.
    pub fn expiry(&self) -> Option<MonoTime> {
        match &self.phase {
            Phase::Holding(Holding { tenure, .. }) => {
                let ends = !tenure.is_unfenced() || tenure.has_lapsed();
                ends.then(|| tenure.expiry())
            }
            Phase::Idle | Phase::Waiting { .. } | Phase::Preparing(_) | Phase::Proposing { .. } => {
                None
            }
        }
    }

    /// Whether this node may speak.
    pub fn is_in_force(&self, now: MonoTime) -> bool {
        self.holding()
            .is_some_and(|holding| holding.tenure.is_in_force(now))
    }

    /// Whether it held the lease last, and its end has been told.
    pub fn has_lapsed(&self) -> bool {
        self.holding()
            .is_some_and(|holding| holding.tenure.has_lapsed())
    }

    /// As the holder: whether the voters without this node know the lease, so that
    /// they could elect a standby. A voter that was restarted does not vote yet.
    pub fn can_be_succeeded(&self, now: MonoTime) -> bool {
        self.holding().is_some_and(|holding| {
            holding
                .tenure
                .can_be_succeeded(self.config.node, &self.quorum, now)
        })
    }

    /// Whether a majority has accepted a long lease.
    pub fn is_prolonged(&self, now: MonoTime) -> bool {
        self.holding()
            .is_some_and(|holding| holding.tenure.is_prolonged(now))
    }

    /// Whether a first lease is being asked for: who is in sync under it is settled.
    pub const fn is_proposing(&self) -> bool {
        matches!(self.phase, Phase::Proposing { .. })
    }

    /// Whether it holds the lease or wants to.
    pub const fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    const fn holding(&self) -> Option<&Holding> {
        match &self.phase {
            Phase::Holding(holding) => Some(holding),
            Phase::Idle | Phase::Waiting { .. } | Phase::Preparing(_) | Phase::Proposing { .. } => {
                None
            }
        }
    }
}
