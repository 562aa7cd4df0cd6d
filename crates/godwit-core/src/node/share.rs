//! One share on one node: role machine, schedules, and what peers claim.
//!
//! What only an owner does is in `owner.rs`, what only a standby does in
//! `standby.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_wire::{
    Epoch, Generation, GoodbyeReason, LeaveReason, Message, NodeName, Role, ShareClaim, ShareId,
};

use super::absence::Tenancy;
use super::action::{Action, EndReason, MoveAction, ShareAction};
use super::claims::{Claims, Known};
use super::config::{NodeConfig, Resume, ShareConfig};
use super::context::Context;
use super::damping::Damping;
use super::event::ShareNews;
use super::failback::Failback;
use super::fitness::Condition;
use super::flows::Flows;
use super::handoff::Singles;
use super::leased::{self, ShareLease};
use super::moving::Moving;
use super::outbox::Outbox;
use super::peer::PeerSide;
use super::proof::Proofs;
use super::server::Server;
use super::status::ShareStatus;
use super::succession::Succession;
use crate::announce::AnnounceSchedule;
use crate::insync::InSyncSet;
use crate::probe::ProbeSchedule;
use crate::share::{self, Ballot, Change, Claiming, Ownership, PeerClaim, ShareMachine, State};
use crate::time::earliest;
use crate::{MonoTime, PeerId};

/// How long a resumed role is believed in without hearing the other side.
const RESUME_ALLOWANCE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub(super) struct ShareSide {
    pub(super) id: ShareId,
    name: String,
    members: Vec<PeerId>,
    pub(super) machine: ShareMachine,
    claims: Claims,
    schedules: Schedules,
    /// When a resumed role needs to have heard the other side.
    resumed_until: Option<MonoTime>,
    /// The right to own it; `None` without fencing.
    pub(super) lease: Option<ShareLease>,
    // As the owner:
    pub(super) in_sync: InSyncSet,
    pub(super) flows: Flows,
    pub(super) standbys: Standbys,
    /// How long what this node sends may sit in its queues.
    pub(super) egress_residence: Duration,
    /// Of either part.
    pub(super) damping: Damping,
    pub(super) succession: Succession,
    // As a standby:
    pub(super) asked: bool,
    pub(super) server: Server,
    // Of either part:
    pub(super) moves: Moves,
    pub(super) condition: Condition,
    /// Connections that go to other servers; `None` if they stay with the share.
    pub(super) singles: Option<Singles>,
}

/// When an owner says again that it is there.
#[derive(Debug, Clone)]
struct Schedules {
    /// On the link, by ARP and ND.
    announce: Option<AnnounceSchedule>,
    /// To the clients of its flows.
    revive: Option<ProbeSchedule>,
}

/// As the owner: what there is from standbys.
#[derive(Debug, Clone)]
pub(super) struct Standbys {
    /// What they say that they hold, until it is dealt with.
    pub(super) requests: BTreeMap<PeerId, Generation>,
    /// What they have proved.
    pub(super) proofs: Proofs,
    /// A new generation does not begin before.
    pub(super) rejoin_after: MonoTime,
}

/// The moves of a share, as planned.
#[derive(Debug, Clone)]
pub(super) struct Moves {
    pub(super) moving: Moving,
    /// Of one that begins: whether flows that can't move are to be reset.
    pub(super) forced: bool,
    /// The share was handed to us, and its twins are to go on.
    pub(super) resuming: bool,
    /// Back to the primary by itself; `None` if it does not, or this node is it.
    pub(super) failback: Option<Failback>,
}

impl ShareSide {
    /// `None` if this node has no part in the share.
    pub(super) fn new(
        share: &ShareConfig,
        config: &NodeConfig,
        now: MonoTime,
        out: &mut Outbox,
    ) -> Option<Self> {
        let nodes = || std::iter::once(&share.primary).chain(&share.backups);
        let rank = nodes().position(|node| *node == config.name)?;
        let members = (0..)
            .map(PeerId)
            .zip(&config.peers)
            .filter(|(_, peer)| nodes().any(|node| *node == peer.name))
            .map(|(peer, _)| peer)
            .collect::<Vec<_>>();
        let ballot = ballot(config, rank, nodes().count());
        let machine_config = share::Config {
            claiming: match share.fencing.endless() {
                None => Claiming::Bare,
                Some(_) => Claiming::Leased,
            },
            ballot,
            primary: rank == 0,
            peers: members.clone(),
            startup_grace: config.startup_grace,
        };
        let other = share.resume.and_then(|from| other(from, &members, config));
        let known = |from| Some((from, resumed_state(from, other, &members)?));
        let resume = share.resume.and_then(known);
        let owned = resume
            .filter(|(_, state)| *state == State::Owner)
            .map(|(from, _)| (from, leased::stays(from, other, config)));
        let mut side = Self {
            id: share.id,
            lease: ShareLease::new(share, config, ballot, owned, now),
            name: share.name.clone(),
            machine: match resume {
                Some((from, state)) => ShareMachine::resume(machine_config, state, from.epoch),
                None => ShareMachine::new(machine_config, now),
            },
            members,
            claims: Claims::default(),
            schedules: Schedules {
                announce: None,
                revive: None,
            },
            resumed_until: resume.map(|_| now.saturating_add(RESUME_ALLOWANCE)),
            in_sync: InSyncSet::new(),
            flows: Flows::new(share.policy),
            standbys: Standbys {
                requests: BTreeMap::new(),
                proofs: Proofs::new(share.paths),
                rejoin_after: now,
            },
            egress_residence: config.lease.terms.egress_residence,
            damping: Damping::new(share.flap_limit),
            succession: Succession::default(),
            asked: false,
            server: Server::new(share.server_lost_hold),
            moves: Moves {
                moving: Moving::default(),
                forced: false,
                resuming: false,
                failback: Failback::new(share, config),
            },
            condition: Condition::new(),
            singles: share.moves_within.map(Singles::new),
        };
        if let Some(from) = share.resume {
            side.take_up(from, other, now);
        }
        side.write_share(out);
        if resume.is_none() {
            // An agent may have died between silence and the end of its sockets.
            side.end_flows(EndReason::NotInSync, out);
        }
        Some(side)
    }

    /// What follows from the pinned maps of an earlier agent, besides the role.
    fn take_up(&mut self, from: Resume, other: Option<PeerId>, now: MonoTime) {
        if self.machine.state() == State::Owner
            && let Some(standby) = other
        {
            self.in_sync.join(standby, from.generation);
            self.await_failback(standby, now);
        }
        self.machine.handle_used(from.epoch);
        // Whether the tap was shut just now, nobody remembers.
        self.let_mirrored_pass(now);
    }

    /// What this node says of the share.
    pub(super) const fn claim(&self) -> ShareClaim {
        ShareClaim {
            share: self.id,
            role: self.machine.state().role(),
            epoch: self.machine.epoch(),
        }
    }

    pub(super) fn members(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.members.iter().copied()
    }

    /// What a peer said last of the share.
    pub(super) fn said(&self, peer: PeerId) -> Option<Known> {
        self.claims.of(peer)
    }

    pub(super) fn has_member(&self, peer: PeerId) -> bool {
        self.members.contains(&peer)
    }

    pub(super) fn handle_claim(
        &mut self,
        peer: PeerId,
        incarnation: u64,
        claim: ShareClaim,
        context: &mut Context<'_>,
    ) {
        let known = Known {
            incarnation,
            epoch: claim.epoch,
            role: claim.role,
        };
        let before = self.said(peer);
        let is_leased = self.lease.is_some();
        if !self.has_member(peer) || !self.claims.take(peer, known, is_leased, context.now) {
            return;
        }
        if self.follow_move(peer, claim, context) {
            return;
        }
        let wins_ties = context.peer_name(peer) < context.name;
        self.machine.handle_claim(
            PeerClaim {
                peer,
                role: claim.role,
                epoch: claim.epoch,
                wins_ties,
            },
            context.now,
        );
        let disputed = claim.role == Role::Owner && self.machine.state() == State::Owner;
        if disputed && before != Some(known) {
            let epoch = self.machine.epoch();
            let news = ShareNews::ClaimDisputed {
                peer: context.peer_name(peer),
                peer_epoch: claim.epoch,
                epoch,
            };
            context.tell(self.id, news);
            context.send(peer, Message::Claim(self.claim()));
        }
    }

    /// A peer's agent was started anew: its clock may have been set back.
    pub(super) fn forget_claim(&mut self, peer: PeerId) {
        self.claims.forget(peer);
    }

    /// As the owner: an agent that begins anew may have had our addresses in the file before,
    /// and clients may have heard them there.
    pub(super) fn announce_again(&mut self, now: MonoTime) {
        if self.machine.state() == State::Owner {
            self.schedules.announce = Some(AnnounceSchedule::new(now));
        }
    }

    pub(super) fn handle_failed(&mut self, peer: PeerId, context: &mut Context<'_>) {
        // With a lease, an owner is followed when that ends: `settle_candidacy`.
        if self.lease.is_none() || self.owner().is_none() {
            self.machine.handle_failed(peer);
        }
        self.lose_standby(peer, LeaveReason::StandbySilent, context);
    }

    pub(super) fn handle_goodbye(
        &mut self,
        peer: PeerId,
        reason: GoodbyeReason,
        context: &mut Context<'_>,
    ) {
        self.machine.handle_goodbye(peer, reason);
        self.standbys.requests.remove(&peer);
        if reason != GoodbyeReason::Restart {
            self.lose_standby(peer, LeaveReason::StandbyQuit, context);
        }
    }

    /// The link came or went: what was under way on the old one is void.
    pub(super) fn handle_link_change(&mut self, peer: PeerId) {
        self.standbys.requests.remove(&peer);
        self.standbys.proofs.forget(peer);
        self.in_sync.withdraw(peer);
        if self.owner().is_some_and(|owner| owner.peer == peer) {
            self.asked = false;
        }
    }

    /// See [`crate::Command::Prepare`].
    pub(super) fn prepare(&mut self, reason: GoodbyeReason, context: &mut Context<'_>) {
        let owns = self.machine.state() == State::Owner;
        let Some(lease) = self.lease.as_mut().filter(|_| owns) else {
            return;
        };
        match reason {
            GoodbyeReason::Restart => {
                lease.proposer.handle_prolongation(context.now);
                lease.proposer.handle_timeout(context.now);
            }
            GoodbyeReason::Detach => self.prepare_detach(context),
            GoodbyeReason::Shutdown => {}
        }
    }

    /// Whether that has been done.
    pub(super) fn is_prepared(&self, reason: GoodbyeReason, now: MonoTime) -> bool {
        let owns = self.machine.state() == State::Owner;
        let Some(lease) = self.lease.as_ref().filter(|_| owns) else {
            return true;
        };
        match reason {
            GoodbyeReason::Restart => lease.proposer.is_prolonged(now),
            GoodbyeReason::Detach => self.in_sync.generation().is_none(),
            GoodbyeReason::Shutdown => true,
        }
    }

    pub(super) fn quit(&mut self, reason: GoodbyeReason, context: &mut Context<'_>) {
        match (self.machine.state(), reason) {
            // The data path goes on, and the next agent resumes.
            (_, GoodbyeReason::Restart)
            | (State::Starting { .. } | State::Standby { .. } | State::Quitting, _) => {}
            (State::Shadow { .. }, _) => {
                self.fall_silent(context.out);
                self.end_flows(EndReason::Quit, context.out);
            }
            (State::Owner, GoodbyeReason::Detach) => self.dismiss_all(context),
            (State::Owner, GoodbyeReason::Shutdown) => {
                // Without a standby the kernel had better say goodbye to the clients.
                if !self.in_sync.generation().is_none() {
                    self.fall_silent(context.out);
                    self.release(context.now);
                }
            }
        }
        self.machine.handle_quit();
        self.schedules.announce = None;
        self.schedules.revive = None;
        self.flows.clear();
    }

    pub(super) fn poll_timeout(&self, peers: &[PeerSide]) -> Option<MonoTime> {
        earliest([
            self.machine.poll_timeout(),
            self.flows.supervision.poll_timeout(),
            self.flows.rejoin.poll_timeout(),
            self.resumed_until,
            self.server.released_until,
            self.schedules
                .announce
                .as_ref()
                .filter(|_| !self.has_lapsed())
                .and_then(AnnounceSchedule::poll_timeout),
            self.schedules
                .revive
                .as_ref()
                .filter(|_| !self.has_lapsed())
                .and_then(ProbeSchedule::poll_timeout),
            self.next_admission(peers),
            self.absence_due(peers),
            self.moves.moving.poll_timeout(),
            self.failback_at(),
            self.condition.poll_timeout(),
            self.handoffs_due(),
            self.lease
                .as_ref()
                .and_then(|lease| lease.proposer.poll_timeout()),
        ])
    }

    pub(super) fn handle_timeout(&mut self, context: &mut Context<'_>) {
        self.machine.handle_timeout(context.now);
        if let Some(lease) = &mut self.lease {
            lease.proposer.handle_timeout(context.now);
        }
        self.flows.supervision.handle_timeout(context.now);
        self.flows.rejoin.handle_timeout(context.now);
        self.handle_release_timeout(context);
        self.handle_move_timeout(context);
        self.handle_handoffs_timeout(context.now);
        if self.resumed_until.is_some_and(|until| until <= context.now) {
            self.resumed_until = None;
            self.doubt_resumed(context);
        }
    }

    /// Writes each change of role; runs after every input.
    pub(super) fn settle_role(&mut self, context: &mut Context<'_>) {
        while let Some(change) = self.machine.poll_change() {
            self.resumed_until = None;
            self.standbys.proofs.clear();
            self.server.released_until = None;
            self.server.reopening = false;
            if change.state == State::Owner && change.prev.owner().is_some() {
                self.server.tenancy = Tenancy::new(context.now);
            }
            self.note_absence(context.now);
            self.end_move(change, context);
            self.note_move(change, context);
            match change.state {
                State::Owner => self.become_owner(change, context),
                State::Shadow { owner, generation } => {
                    self.become_shadow(change, owner, generation, context);
                }
                State::Starting { .. } | State::Standby { .. } => {
                    self.become_standby(change, context);
                }
                State::Quitting => {}
            }
            self.tell_change(change, context);
        }
    }

    /// First step of settling: where the addresses are.
    pub(super) fn settle_announcement(&mut self, context: &mut Context<'_>) {
        if self.is_silent(context.now) {
            return;
        }
        if let Some(schedule) = &mut self.schedules.announce
            && schedule.handle_timeout(context.now)
        {
            context.out.act_on(self.id, ShareAction::Announce);
        }
    }

    /// Second step: flows that wait.
    pub(super) fn settle_revival(&mut self, context: &mut Context<'_>) {
        if self.is_silent(context.now) {
            return;
        }
        if std::mem::take(&mut self.moves.resuming) {
            context.out.act(Action::Move(self.id, MoveAction::Resume));
        }
        let attempt = self
            .schedules
            .revive
            .as_mut()
            .and_then(|schedule| schedule.handle_timeout(context.now));
        if let Some(attempt) = attempt {
            let revive = ShareAction::Revive { attempt };
            context.out.act_on(self.id, revive);
        }
    }

    /// Last step: the in-sync set, seen from either side.
    pub(super) fn settle_standby(&mut self, context: &mut Context<'_>) {
        if self.machine.state() != State::Owner {
            self.condition.settle_down();
        }
        match self.machine.state() {
            State::Owner => {
                self.settle_in_sync(context);
                self.settle_move(context);
                self.settle_failback(context);
                self.settle_unfit_owner(context);
                self.settle_absence(context);
                self.settle_succession(context);
            }
            State::Standby { owner: Some(owner) } => self.ask(owner, context),
            State::Shadow { owner, generation } => {
                self.ask(owner, context);
                self.settle_unfit_standby(owner, generation, context);
            }
            State::Starting { .. } | State::Standby { owner: None } | State::Quitting => {}
        }
    }

    pub(super) const fn owner(&self) -> Option<Ownership> {
        self.machine.state().owner()
    }

    /// Tells the other nodes of the share where we stand.
    pub(super) fn broadcast(&self, context: &mut Context<'_>) {
        for peer in &self.members {
            context.send(*peer, Message::Claim(self.claim()));
        }
    }

    /// Writes the share's entry as the state says.
    pub(super) fn write_share(&self, out: &mut Outbox) {
        let (generation, peer) = match self.machine.state() {
            State::Owner => (self.in_sync.generation(), self.in_sync.members().next()),
            State::Shadow { owner, generation } => (generation, Some(owner.peer)),
            State::Starting { .. } | State::Standby { .. } | State::Quitting => {
                (Generation::NONE, None)
            }
        };
        let entry = ShareAction::Set {
            role: self.machine.state().role(),
            epoch: self.data_path_epoch(),
            generation,
            peer,
            expiry: self.fence(),
        };
        out.act_on(self.id, entry);
    }

    /// The owner's epoch. With leases it may be below the greatest heard of,
    /// if all voters that knew of that have forgotten it.
    fn data_path_epoch(&self) -> Epoch {
        let owner = self.owner().filter(|_| self.lease.is_some());
        owner.map_or_else(|| self.machine.epoch(), |owner| owner.epoch)
    }

    /// Gives the lease back. The data path is silent already.
    pub(super) fn release(&mut self, now: MonoTime) {
        if let Some(lease) = &mut self.lease {
            lease.proposer.handle_release(now);
            lease.proposer.handle_timeout(now);
        }
    }

    /// Whether we owned last, and know that we may not speak at present.
    fn has_lapsed(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| lease.proposer.has_lapsed())
    }

    pub(super) fn is_silent(&self, now: MonoTime) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| !lease.proposer.is_in_force(now))
    }

    fn fence(&self) -> Option<MonoTime> {
        let owns = self.machine.state() == State::Owner;
        self.lease
            .as_ref()
            .filter(|_| owns)
            .and_then(ShareLease::fence)
    }

    pub(super) fn fall_silent(&self, out: &mut Outbox) {
        let silence = ShareAction::Set {
            role: Role::None,
            epoch: self.machine.epoch(),
            generation: Generation::NONE,
            peer: None,
            expiry: None,
        };
        out.act_on(self.id, silence);
    }

    pub(super) fn end_flows(&self, reason: EndReason, out: &mut Outbox) {
        out.act_on(self.id, ShareAction::EndFlows { reason });
    }

    pub(super) fn start_schedules(&mut self, takeover: bool, now: MonoTime) {
        self.schedules.announce = Some(AnnounceSchedule::new(now));
        self.schedules.revive = takeover.then(|| ProbeSchedule::new(now));
    }

    pub(super) fn stop_schedules(&mut self) {
        self.schedules.announce = None;
        self.schedules.revive = None;
    }

    pub(super) fn status(&self, name: NodeName, peers: &[PeerSide]) -> ShareStatus {
        let named = |peer: PeerId| peers.get(usize::from(peer.0)).map(|side| side.name);
        let state = self.machine.state();
        let (generation, owner, in_sync) = match state {
            State::Owner => (
                self.in_sync.generation(),
                Some(name),
                self.in_sync.members().filter_map(named).collect(),
            ),
            State::Shadow { owner, generation } => (generation, named(owner.peer), vec![name]),
            State::Starting { .. } | State::Standby { .. } | State::Quitting => {
                let owner = state.owner().and_then(|owner| named(owner.peer));
                (Generation::NONE, owner, Vec::new())
            }
        };
        ShareStatus {
            id: self.id,
            name: self.name.clone(),
            state,
            role: state.role(),
            epoch: self.machine.epoch(),
            generation,
            owner,
            in_sync,
            supervised: self.flows.supervision.counts(),
            lease: self.lease.as_ref().map(|lease| lease.status()),
            unproved: self.unproved(peers),
            no_quorum: state == State::Owner && self.succession.is_doubtful(),
            failback: self.failback_status(peers),
            held_off_until: self.damping.held_until().filter(|_| state == State::Owner),
        }
    }

    fn tell_change(&self, change: Change, context: &mut Context<'_>) {
        let news = ShareNews::RoleChanged {
            prev: change.prev,
            state: change.state,
            reason: change.reason,
            epoch: self.machine.epoch(),
        };
        context.tell(self.id, news);
    }

    /// A resumed role that nobody has confirmed is given up. An owner that nobody has
    /// superseded tells clients again: the agent before may have died in the middle of a
    /// takeover, and who is not served would wait for ever.
    fn doubt_resumed(&mut self, context: &mut Context<'_>) {
        if self.machine.state() == State::Owner && !self.members.is_empty() {
            self.schedules.announce = Some(AnnounceSchedule::new(context.now));
            self.schedules.revive = Some(ProbeSchedule::once(context.now));
        }
        if let Some(owner) = self.owner()
            && !context.is_alive(owner.peer)
        {
            self.machine.handle_failed(owner.peer);
        }
        for peer in self.in_sync.members().collect::<Vec<_>>() {
            if !context.is_alive(peer) {
                self.lose_standby(peer, LeaveReason::StandbySilent, context);
            }
        }
    }
}

/// The other side of a generation that pinned maps stand for. The maps do not name it: if nobody
/// else does, it is the only other node.
fn other(from: Resume, members: &[PeerId], config: &NodeConfig) -> Option<PeerId> {
    if from.generation.is_none() {
        return None;
    }
    match (from.other, members) {
        // The list may have been edited since: it need not be a member any more.
        (Some(name), _) => {
            let mut peers = (0..).map(PeerId).zip(&config.peers);
            peers.find_map(|(peer, it)| (it.name == name).then_some(peer))
        }
        (None, [peer]) => Some(*peer),
        (None, _) => None,
    }
}

/// The state that pinned maps stand for. A shadow whose owner is not known, or is no other
/// node of the share any more, starts anew.
fn resumed_state(from: Resume, other: Option<PeerId>, members: &[PeerId]) -> Option<State> {
    match from.role {
        Role::Owner => Some(State::Owner),
        Role::Shadow => {
            let peer = other.filter(|peer| members.contains(peer))?;
            Some(State::Shadow {
                owner: Ownership {
                    peer,
                    epoch: from.epoch,
                },
                generation: from.generation,
            })
        }
        Role::None => None,
    }
}

/// What the node of that rank, of so many, claims with.
fn ballot(config: &NodeConfig, rank: usize, nodes: usize) -> Ballot {
    let incarnation = u32::try_from(config.incarnation >> 32).unwrap_or(u32::MAX);
    Ballot::new(incarnation, count(rank), count(nodes))
}

fn count(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(u32::MAX)
}
