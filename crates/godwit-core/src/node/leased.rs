//! What a lease has to do with a share: when to want one, and what follows.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_wire::{Epoch, Generation, Lease, LeaveReason, NodeName, Role, Stay};

use super::action::{Action, ShareAction};
use super::ballots::Audience;
use super::config::{NodeConfig, Resume, ShareConfig};
use super::context::Context;
use super::ears::Ears;
use super::event::ShareNews;
use super::peer::PeerSide;
use super::share::ShareSide;
use super::status::LeaseStatus;
use crate::lease::{Candidacy, LeaseEvent, Proposer, ProposerConfig, Terms, View};
use crate::share::{Ballot, COLD_START, Ownership, Reason, State};
use crate::{MonoTime, PeerId, detector};

/// The precedence that a server leaves the one before it when all begin anew. No
/// connection waits for that, and the first may be slow: a virtual machine that has just been started.
const COLD_STEP: Duration = Duration::from_millis(500);

/// The lease of a share, and changes of the in-sync set that wait for voters.
#[derive(Debug, Clone)]
pub(super) struct ShareLease {
    pub(super) proposer: Proposer,
    pub(super) audience: Audience,
    ears: Ears,
    /// As a standby: the stay that it was offered last, and by which life of the owner's agent.
    pub(super) offer: Option<(Generation, u64)>,
    /// Until then an owner that was not heard yet may be about to say that it is there.
    greets_until: MonoTime,
    terms: Terms,
    endless: bool,
    /// The servers of the share in the order of precedence.
    servers: Vec<NodeName>,
    wished_at: Option<MonoTime>,
    /// The epoch of the owner whose lease was last seen to be free.
    vacant: Epoch,
    /// Standbys that are in sync when a majority knows, and by which revision.
    joins: BTreeMap<PeerId, (Generation, u64)>,
    /// Standbys that are not when a majority knows.
    leaves: BTreeMap<PeerId, (LeaveReason, u64)>,
    lapsed_at: Option<MonoTime>,
}

impl ShareLease {
    /// `None` if the share needs no lease.
    pub(super) fn new(
        share: &ShareConfig,
        config: &NodeConfig,
        ballot: Ballot,
        resumed: Option<(Resume, Vec<Stay>)>,
        now: MonoTime,
    ) -> Option<Self> {
        let endless = share.fencing.endless()?;
        let terms = config.lease.terms;
        let servers: Vec<_> = std::iter::once(share.primary)
            .chain(share.backups.iter().copied())
            .collect();
        let others = servers.iter().copied().filter(|name| *name != config.name);
        let proposer_config = ProposerConfig {
            share: share.id,
            node: config.name,
            voters: config.lease.voters.clone(),
            others: others.collect(),
            ballot,
            endless,
            terms,
            // Shares of one node must not wait in step either.
            seed: config.lease.seed ^ u64::from(share.id.0).rotate_left(32),
        };
        let proposer = match resumed {
            Some((from, stays)) => {
                let expiry = expiry(&from);
                Proposer::resume(proposer_config, from.epoch, expiry, stays, now)
            }
            None => Proposer::new(proposer_config),
        };
        Some(Self {
            proposer,
            audience: Audience::new(config, &servers),
            ears: Ears::new(config),
            offer: None,
            greets_until: now.saturating_add(config.startup_grace),
            terms,
            endless,
            servers,
            wished_at: None,
            vacant: Epoch::NONE,
            joins: BTreeMap::new(),
            leaves: BTreeMap::new(),
            lapsed_at: None,
        })
    }

    /// When the data path falls silent by itself; `None` if it does not.
    pub(super) fn fence(&self) -> Option<MonoTime> {
        self.proposer.expiry()
    }

    pub(super) fn is_leaving(&self, peer: PeerId) -> bool {
        self.leaves.contains_key(&peer)
    }

    /// This node hands the share over. The data path is silent already.
    pub(super) fn hand_over(&mut self, now: MonoTime) {
        self.proposer.handle_hand_over(now);
        self.joins.clear();
        self.leaves.clear();
        self.lapsed_at = None;
    }

    /// This node is no owner any more.
    pub(super) fn end(&mut self) {
        self.proposer.handle_resignation();
        self.joins.clear();
        self.leaves.clear();
        self.lapsed_at = None;
    }

    pub(super) const fn term(&self) -> Duration {
        self.terms.term
    }

    pub(super) fn status(&self) -> LeaseStatus {
        LeaseStatus {
            lapsed: self.proposer.has_lapsed(),
            expiry: self.proposer.expiry(),
            wanted: self.wished_at.is_some(),
        }
    }

    /// How long this node leaves others the precedence: standbys in sync come
    /// first, in the order of configuration, then all others but the holder.
    fn stagger(
        &self,
        name: NodeName,
        holder: Option<NodeName>,
        view: Option<View<'_>>,
    ) -> Duration {
        let in_sync = |node: &NodeName| {
            view.is_some_and(|view| view.lease.in_sync.iter().any(|stay| stay.node == *node))
        };
        let (first, last): (Vec<NodeName>, Vec<NodeName>) = self
            .servers
            .iter()
            .filter(|node| Some(**node) != holder)
            .partition(|node| in_sync(node));
        let place = first.iter().chain(&last).position(|node| *node == name);
        let place = u32::try_from(place.unwrap_or(self.servers.len())).unwrap_or(u32::MAX);
        (self.terms.term / 6).saturating_mul(place)
    }

    /// How much longer this node leaves them that when voters that were silent may vote
    /// again, and all want the share since before that.
    fn yields(&self, name: NodeName, reason: Reason) -> Duration {
        if reason != Reason::ColdStart {
            return Duration::ZERO;
        }
        let place = self.servers.iter().position(|node| *node == name);
        COLD_STEP.saturating_mul(u32::try_from(place.unwrap_or(0)).unwrap_or(u32::MAX))
    }

    /// When the lease of an owner that ends at `expires` is not waited for any more. One that
    /// is heard may yet go on: it is left half a term. One that was not heard since this agent
    /// was started may own without leases.
    fn over_at(&self, expires: MonoTime, owner: detector::State) -> MonoTime {
        let patient = expires.saturating_add(self.terms.term / 2);
        match owner {
            detector::State::Failed => expires,
            detector::State::Unknown if !self.endless => patient.max(self.greets_until),
            detector::State::Unknown
            | detector::State::Alive
            | detector::State::Excused
            | detector::State::Departed => patient,
        }
    }
}

impl ShareSide {
    /// When the lease of the owner that we stand by for is due to end.
    pub(super) fn vacancy_at(
        &self,
        view: Option<View<'_>>,
        owner: Ownership,
        side: &PeerSide,
    ) -> Option<MonoTime> {
        let lease = self.lease.as_ref().filter(|lease| !lease.endless)?;
        let view = view.filter(|view| view.lease.holder == side.name)?;
        let liveness = side.detector.state();
        let failed = liveness == detector::State::Failed;
        let spoken_for = view.released || (!failed && self.is_unleased(owner, side));
        let waits = self.machine.wish().is_none() && !spoken_for;
        waits.then(|| lease.over_at(view.expires, liveness))
    }

    /// Looks whether the owner's lease is over, and stands for the share or
    /// gives up to.
    pub(super) fn settle_candidacy(&mut self, view: Option<View<'_>>, context: &mut Context<'_>) {
        if self.lease.is_none() {
            return;
        }
        if let Some(owner) = self.owner() {
            self.judge_owner(owner, view, context);
        }
        self.stand(view, context);
    }

    fn judge_owner(&mut self, owner: Ownership, view: Option<View<'_>>, context: &mut Context<'_>) {
        let (now, name) = (context.now, context.peer_name(owner.peer));
        let Some(side) = context.peer(owner.peer) else {
            return;
        };
        let liveness = side.detector.state();
        let failed = liveness == detector::State::Failed;
        if !failed && self.is_unleased(owner, side) {
            return self.leave_to_unleased(owner);
        }
        let Some(lease) = &mut self.lease else {
            return;
        };
        let blank = view.is_none();
        let Some(view) = view.filter(|view| view.lease.holder == name) else {
            if failed {
                self.machine.handle_lapse(owner.peer, Reason::OwnerFailed);
            } else if blank {
                // Our own candidacy would keep our acceptor blank for ever.
                self.machine.handle_owner_seen(owner.peer);
            }
            return;
        };
        let over = lease.over_at(view.expires, liveness) <= now;
        let expected = self.moves.moving.is_expected() && !failed;
        let reluctant = !self.condition.takes_lost() && !failed;
        if view.released && (!self.server.may_claim(now) || expected || reluctant) {
            // Its owner takes it back, or says in a moment that it is handed over.
        } else if view.released {
            self.machine.handle_lapse(owner.peer, Reason::OwnerReleased);
            if lease.vacant != view.lease.epoch {
                lease.vacant = view.lease.epoch;
                lease.proposer.handle_vacancy(now);
            }
        } else if failed && (over || lease.endless) {
            self.machine.handle_lapse(owner.peer, Reason::OwnerFailed);
        } else if over {
            self.machine.handle_lapse(owner.peer, Reason::LeaseLapsed);
        } else if view.is_in_force(now) {
            self.machine.handle_owner_seen(owner.peer);
        }
    }

    fn stand(&mut self, view: Option<View<'_>>, context: &Context<'_>) {
        let held = match self.machine.state() {
            State::Shadow { owner, generation } => Some((owner.epoch, generation)),
            State::Starting { .. } | State::Standby { .. } | State::Owner | State::Quitting => None,
        };
        let (wish, now) = (self.machine.wish(), context.now);
        let stay = self.stay_to_be(context);
        let kept = self.moves.moving.kept_epoch();
        let forgotten = self.forgotten(view, context);
        let unvoted = self.is_unvoted(context);
        let holder = self.owner().map(|owner| context.peer_name(owner.peer));
        let Some(lease) = &mut self.lease else {
            return;
        };
        let Some(reason) = wish else {
            lease.wished_at = None;
            lease.proposer.handle_withdrawal(now);
            return;
        };
        let since = *lease.wished_at.get_or_insert(now);
        // Of two voters the silent one is to be powered off.
        if !lease.endless && !lease.ears.hear_majority(context) {
            lease.proposer.handle_withdrawal(now);
            return;
        }
        let patient = since.saturating_add(COLD_START);
        let candidacy = Candidacy {
            above: self.machine.epoch(),
            held,
            unvoted,
            kept,
            void: stay.and(held).map(|(epoch, _)| epoch).or(forgotten),
            stagger: lease.stagger(context.name, holder, view),
            yields: lease.yields(context.name, reason),
            fresh_after: patient,
            owner_has: patience_with_owner(reason),
            fence_after: if reason.is_takeover() { since } else { patient },
        };
        lease.proposer.handle_stay(stay);
        lease.proposer.handle_candidacy(candidacy, now);
        lease.proposer.handle_timeout(now);
    }

    /// The endless lease of an owner that says in a later life of its agent that it does
    /// nothing for the share. It would have it again for the asking; where it does not ask,
    /// because the share is to begin here, the lease would be in the way for ever.
    fn forgotten(&self, view: Option<View<'_>>, context: &Context<'_>) -> Option<Epoch> {
        let endless = self.lease.as_ref().is_some_and(|lease| lease.endless);
        let view = view.filter(|_| endless)?;
        let mut members = self.members();
        let holder = members.find(|peer| context.peer_name(*peer) == view.lease.holder)?;
        let said = self.said(holder)?;
        let forgot = said.role == Role::None && view.life < said.incarnation;
        forgot.then_some(view.lease.epoch)
    }

    /// What the voters have decided.
    pub(super) fn handle_lease_event(&mut self, event: LeaseEvent, context: &mut Context<'_>) {
        match event {
            LeaseEvent::Granted { .. } if self.machine.is_elsewhere() => {
                if let Some(lease) = &mut self.lease {
                    lease.hand_over(context.now);
                }
            }
            LeaseEvent::Granted { epoch, member } => {
                if let Some(lease) = &mut self.lease {
                    lease.wished_at = None;
                }
                if !member {
                    self.machine.handle_not_in_sync();
                    // Twins end before anything of this node is let out.
                    self.settle_role(context);
                }
                self.machine.handle_granted(epoch);
            }
            LeaseEvent::Moved => self.write_expiry(context),
            LeaseEvent::Agreed { revision } => self.settle_agreed(revision, context),
            LeaseEvent::Lapsed => {
                if let Some(lease) = &mut self.lease {
                    lease.lapsed_at = Some(context.now);
                }
                self.write_expiry(context);
                context.tell(self.id, ShareNews::LeaseLapsed);
            }
            LeaseEvent::Regained => {
                let lapsed_at = self.lease.as_mut().and_then(|lease| lease.lapsed_at.take());
                let silent_for = lapsed_at
                    .map(|at| context.now.since(at))
                    .unwrap_or_default();
                self.write_share(context.out);
                context.tell(self.id, ShareNews::LeaseRegained { silent_for });
                self.note_lapse(context);
            }
            LeaseEvent::Lost { to } => {
                let owner = to.and_then(|(epoch, name)| {
                    let peer = self
                        .members()
                        .find(|peer| context.peer_name(*peer) == name)?;
                    Some(Ownership { peer, epoch })
                });
                self.machine.handle_lost(owner, context.now);
            }
            LeaseEvent::FenceWanted { node } => {
                if let Some(peer) = self.members().find(|peer| context.peer_name(*peer) == node) {
                    context.out.want_fence(peer);
                }
            }
        }
    }

    fn write_expiry(&self, context: &mut Context<'_>) {
        let expiry = self.lease.as_ref().and_then(ShareLease::fence);
        if let (State::Owner, Some(expiry)) = (self.machine.state(), expiry) {
            context.out.act(Action::Share(
                self.id,
                ShareAction::SetExpiry {
                    epoch: self.machine.epoch(),
                    expiry,
                },
            ));
        }
    }

    /// A majority knows the set of that revision.
    fn settle_agreed(&mut self, revision: u64, context: &mut Context<'_>) {
        let Some(lease) = &mut self.lease else {
            return;
        };
        let agreed_leaves: Vec<_> = lease
            .leaves
            .iter()
            .filter(|(_, (_, asked))| *asked <= revision)
            .map(|(peer, (reason, _))| (*peer, *reason))
            .collect();
        let agreed_joins: Vec<_> = lease
            .joins
            .iter()
            .filter(|(_, (_, asked))| *asked <= revision)
            .map(|(peer, (generation, _))| (*peer, *generation))
            .collect();
        lease.leaves.retain(|_, (_, asked)| *asked > revision);
        lease.joins.retain(|_, (_, asked)| *asked > revision);
        for (peer, reason) in agreed_leaves {
            self.part_with(peer, reason, context);
        }
        self.settle_reopening(context);
        for (peer, generation) in agreed_joins {
            self.complete_join(peer, generation, context);
        }
    }

    /// Has the voters told that a standby is no longer in sync. True if that
    /// has to be waited for.
    pub(super) fn ask_leave(
        &mut self,
        peer: PeerId,
        reason: LeaveReason,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(lease) = self.lease.as_mut() else {
            return false;
        };
        let joining = lease.joins.remove(&peer);
        if let Some((generation, _)) = joining {
            // It believes that it is in already, and has to ask again.
            self.in_sync.withdraw(peer);
            self.tell_left(peer, generation, reason, context);
        }
        let Some(lease) = self.lease.as_mut() else {
            return true;
        };
        let leaves = self.in_sync.contains(peer) && !lease.leaves.contains_key(&peer);
        if leaves {
            lease.leaves.insert(peer, (reason, u64::MAX));
        }
        if joining.is_some() || leaves {
            let revision = self.propose_set(context);
            if let Some((_, asked)) = self
                .lease
                .as_mut()
                .and_then(|own| own.leaves.get_mut(&peer))
            {
                *asked = revision;
            }
        }
        true
    }

    /// Has the voters told that a standby is in sync. True if that has to be
    /// waited for.
    pub(super) fn ask_join(
        &mut self,
        peer: PeerId,
        generation: Generation,
        context: &Context<'_>,
    ) -> bool {
        let Some(lease) = self.lease.as_mut() else {
            return false;
        };
        if lease.joins.get(&peer).map(|(joins, _)| *joins) == Some(generation) {
            return true;
        }
        lease.joins.insert(peer, (generation, u64::MAX));
        let revision = self.propose_set(context);
        if let Some((_, asked)) = self.lease.as_mut().and_then(|own| own.joins.get_mut(&peer)) {
            *asked = revision;
        }
        true
    }

    fn propose_set(&mut self, context: &Context<'_>) -> u64 {
        let Some(lease) = self.lease.as_mut() else {
            return 0;
        };
        let stays = self
            .in_sync
            .stays()
            .filter(|(peer, _)| !lease.leaves.contains_key(peer))
            .chain(lease.joins.iter().map(|(peer, (joins, _))| (*peer, *joins)))
            .map(|(peer, generation)| Stay {
                node: context.peer_name(peer),
                generation,
            });
        let revision = lease.proposer.handle_in_sync(stays.collect(), context.now);
        lease.proposer.handle_timeout(context.now);
        revision
    }
}

/// How long a lapsed owner without a standby may take to have its lease back before
/// its connections are given up: it comes back from most of what it can suffer.
const fn patience_with_owner(reason: Reason) -> Duration {
    match reason {
        // It has none, or ends them.
        Reason::OwnerForgot | Reason::OwnerShutdown | Reason::OwnerDetached => Duration::ZERO,
        Reason::ColdStart
        | Reason::PeerOwns
        | Reason::OwnerFailed
        | Reason::OwnerServerLost
        | Reason::OwnerReleased
        | Reason::LeaseLapsed
        | Reason::LeaseLost
        | Reason::Superseded
        | Reason::Raised
        | Reason::Admitted
        | Reason::Dismissed
        | Reason::ServerLost
        | Reason::Moved
        | Reason::MovedBack
        | Reason::Unfit
        | Reason::Quit => Duration::from_secs(1),
    }
}

/// The in-sync set that pinned maps stand for, if `standby` is in sync.
pub(super) fn stays(from: Resume, standby: Option<PeerId>, config: &NodeConfig) -> Vec<Stay> {
    let standby = standby.and_then(|peer| config.peers.get(usize::from(peer.0)));
    let stay = standby.map(|peer| Stay {
        node: peer.name,
        generation: from.generation,
    });
    stay.into_iter().collect()
}

/// The lease that pinned maps stand for, as this node's acceptor keeps it.
pub(super) fn inherited(
    share: &ShareConfig,
    config: &NodeConfig,
    from: &Resume,
) -> Option<(Lease, MonoTime)> {
    share.fencing.endless()?;
    let lease = Lease {
        holder: config.name,
        epoch: from.epoch,
        number: 0,
        term_ns: 0,
        in_sync: Vec::new(),
    };
    let over = expiry(from).saturating_add(config.lease.terms.egress_residence);
    Some((lease, over))
}

/// When the data path falls silent. With an endless lease it never does, unless
/// the lease was given back: another node may have it by now. Nor does one whose file had no
/// fence, before its first lease.
fn expiry(from: &Resume) -> MonoTime {
    from.expiry.unwrap_or(Proposer::NO_FENCE)
}
