//! All decisions of one node, put together.
//!
//! A driver feeds heartbeats, messages, link changes, flow events, commands
//! and time, and after each input drains [`Node::poll_action`] and then
//! [`Node::poll_event`] to `None`. The order of actions is a contract, see
//! [`Action`].
//!
//! How a standby gets in sync (each arrow is a `StandbyReady` message):
//!
//! ```text
//!  standby                                owner
//!  knows the owner, hears it, has a link
//!     ── held generation (0: none) ──────► hears the standby: new generation g
//!     ◄────────────────────────── offers g
//!  Set(shadow, g)
//!     ── g ──────────────────────────────► Set(owner, g): new flows are gated
//! ```
//!
//! The twins' place is ready before the first flow needs it. On a fresh link
//! the standby repeats what it holds; if that is what the owner has, nothing
//! changes. With leases the last step, and the way out, wait for a majority of
//! voters: see [`crate::lease`]. A node that serves no share is a witness.

use std::time::Duration;

use godwit_wire::{
    ConfigLine, DigestEntry, Epoch, FlowId, Generation, GoodbyeReason, Hello, MAX_VERSION,
    MIN_VERSION, Message, NodeName, OutputEntry, PeerMessage, Role, ShareClaim, ShareId,
    UnprotectedReason,
};

use crate::fitness::Facts;
use crate::time::earliest;
use crate::{MonoTime, PeerId, detector};

mod absence;
mod action;
mod ballots;
mod births;
mod claims;
mod config;
mod context;
mod damping;
mod differences;
mod diverge;
mod doubt;
mod ears;
mod era;
mod event;
mod failback;
mod fitness;
mod flows;
mod handoff;
mod homes;
mod input;
mod kept;
mod leased;
mod leases;
mod link;
mod moving;
mod outbox;
mod owner;
mod peer;
mod proof;
mod rejoin;
mod scrutiny;
mod server;
mod share;
mod standby;
mod status;
mod succession;
mod unleased;
mod wish;

#[cfg(test)]
mod tests;

pub use action::{
    Action, EndReason, FlowAction, LeaseAction, MoveAction, PeerAction, RejoinAction, ShareAction,
    SnapshotAction, TwinAction,
};
pub use config::{Fencing, FlowPolicy, LeaseConfig, NodeConfig, PeerConfig, Resume, ShareConfig};
pub use differences::{Difference, Side};
pub use doubt::Doubt;
pub use era::Birth;
pub use event::{Event, EventKind, Field, FlowNews, PeerNews, ShareNews};
pub use handoff::{HandoffReport, HandoffWork};
pub use input::{
    Beat, Command, FlowEvent, FlowEventKind, Link, Listening, Registration, ServerExit,
    StonithFault,
};
pub use peer::Power;
pub use proof::Proof;
pub use status::{FailbackStatus, LeaseStatus, PeerStatus, ShareStatus};
pub use wish::{FlowCheck, MoveCause, MoveError, MoveWish};

use crate::lease::{Acceptor, Terms};
use ballots::Ballots;
use config::{Mates, mates};
use context::Context;
use era::Era;
use outbox::Outbox;
use peer::{LinkState, PeerSide};
use scrutiny::Scrutiny;
use share::ShareSide;

/// What a node has voted for.
#[derive(Debug, Clone)]
pub struct VoterMemory(Acceptor);

impl VoterMemory {
    /// As text, for the next process of this boot.
    pub fn to_text(&self) -> String {
        self.0.to_text()
    }

    /// The other side of what the data path of this node, `own`, had of a share under that
    /// epoch and generation: of an owner its standby, of a standby its owner.
    pub fn other_side(
        &self,
        share: ShareId,
        own: NodeName,
        (epoch, generation): (Epoch, Generation),
    ) -> Option<NodeName> {
        let view = self.0.view(share)?;
        let lease = Some(view.lease).filter(|lease| lease.epoch == epoch)?;
        if lease.holder != own {
            return Some(lease.holder);
        }
        let mut stays = lease.in_sync.iter();
        let stay = stays.find(|stay| stay.generation == generation);
        stay.map(|stay| stay.node)
    }

    /// What [`to_text`](Self::to_text) gave; `None` if that is not whole.
    pub fn of_text(text: &str, terms: Terms) -> Option<Self> {
        Acceptor::of_text(text, terms).map(Self)
    }
}

/// Decides everything that one node does. Pure: feed it, then drain it.
///
/// Invariants, over all nodes of a cluster with one configuration:
///
/// - no two nodes ever own a share under the same epoch; with leases, no two
///   data paths let segments out at one time;
/// - a node that owns a share and hears of an owner with a greater epoch steps
///   down at once;
/// - a flow is let out unprotected only after its standby has confirmed that it
///   will not serve it, or has left the in-sync set;
/// - generations of one share only grow.
#[derive(Debug, Clone)]
pub struct Node {
    name: NodeName,
    hello: Hello,
    peers: Vec<PeerSide>,
    shares: Vec<ShareSide>,
    mates: Mates,
    /// `None` if no share needs a lease.
    ballots: Option<Ballots>,
    scrutiny: Scrutiny,
    era: Era,
    /// What is wrong around this node.
    facts: Facts,
    quitting: bool,
    /// What the file of this node says, for peers with another one.
    lines: Vec<ConfigLine>,
    out: Outbox,
}

impl Node {
    /// A node that has just been started. Actions are ready to be drained.
    pub fn new(config: &NodeConfig, now: MonoTime) -> Self {
        let detection = detector::Config {
            interval: config.heartbeat,
            misses: config.misses,
            drift_ppm: config.lease.terms.drift_ppm,
        };
        let side = |peer: &PeerConfig| PeerSide::new(peer.name, detection);
        let mut node = Self {
            name: config.name,
            hello: Hello {
                name: config.name,
                incarnation: config.incarnation,
                min_version: MIN_VERSION,
                max_version: MAX_VERSION,
                heartbeat_key: config.heartbeat_key,
                config_digest: config.config_digest,
            },
            peers: config.peers.iter().map(side).collect(),
            shares: Vec::new(),
            ballots: Ballots::new(config),
            scrutiny: Scrutiny::new(config, now),
            era: Era::new(config.incarnation),
            facts: Facts::default(),
            mates: mates(config),
            quitting: false,
            lines: Vec::new(),
            out: Outbox::default(),
        };
        for share in &config.shares {
            if let Some(side) = ShareSide::new(share, config, now, &mut node.out) {
                node.shares.push(side);
                node.inherit(share, config);
            }
        }
        node.settle(now);
        node
    }

    /// What it has voted for, for another life in this process or the next one.
    pub fn into_memory(self) -> Option<VoterMemory> {
        self.ballots.map(|it| VoterMemory(it.into_acceptor()))
    }

    /// The same with what an earlier life has voted for: it need not keep quiet.
    #[must_use]
    pub fn remembering(mut self, memory: Option<VoterMemory>) -> Self {
        if let (Some(ballots), Some(VoterMemory(earlier))) = (&mut self.ballots, memory) {
            ballots.acceptor().remember(earlier);
        }
        self
    }

    /// The same with what its file says, which peers with another file are told.
    #[must_use]
    pub fn with_lines(mut self, lines: Vec<ConfigLine>) -> Self {
        self.lines = lines;
        self
    }

    /// At start: flows of an earlier agent are in the data path, and `latest`
    /// is the greatest generation among them. None of them may be taken for a
    /// flow of a later stay.
    pub fn handle_inherited_flows(&mut self, share: ShareId, latest: Generation, now: MonoTime) {
        self.with_share(share, now, |share, _| share.in_sync.raise(latest));
    }

    /// An authentic heartbeat arrived at `now`.
    pub fn handle_heartbeat(&mut self, peer: PeerId, beat: &Beat, now: MonoTime) {
        let Some(side) = self.peer_mut(peer) else {
            return;
        };
        let is_late = |sent| side.detector.handle_sent(beat.incarnation, sent, now);
        if beat.sent.is_some_and(is_late) {
            return;
        }
        let ignored = side.detector.ignored();
        side.detector
            .handle_heartbeat(beat.incarnation, beat.sequence, now);
        if side.detector.ignored() != ignored {
            return;
        }
        let departed = side.detector.state().is_departed();
        self.note_power(peer);
        self.follow_detector(peer, now);
        if !departed {
            for claim in &beat.shares {
                self.note_named(peer, claim.share);
                if !self.considers(peer, beat.incarnation, claim, now) {
                    continue;
                }
                self.with_share(claim.share, now, |share, context| {
                    share.handle_claim(peer, beat.incarnation, *claim, context);
                });
            }
        }
        self.settle(now);
    }

    /// The data path noticed something about a flow.
    pub fn handle_flow_event(&mut self, event: FlowEvent, now: MonoTime) {
        self.with_share(event.share, now, |share, context| {
            share.note_single_event(event, context);
            share.handle_flow_event(event, context);
        });
        self.settle(now);
    }

    /// As the owner: that no twin of this flow was born has its reason in the connection, not
    /// in the standby. To be said right behind [`FlowEventKind::NotConfirmed`].
    pub fn handle_odd_flow(&mut self, share: ShareId, flow: FlowId, now: MonoTime) {
        self.with_share(share, now, |share, _| share.excuse_birth(flow));
    }

    /// A server process of this node has died.
    pub fn handle_server_exit(&mut self, exit: ServerExit, now: MonoTime) {
        self.with_share(exit.share, now, |share, context| {
            share.handle_server_exit(exit, context);
        });
        self.settle(now);
    }

    /// At which addresses of a share something listens on this node. A node stands by
    /// only while that is so at all of them; assumed until this is called.
    pub fn handle_listening(
        &mut self,
        share: ShareId,
        listening: impl Into<Listening>,
        now: MonoTime,
    ) {
        let listening = listening.into();
        self.with_share(share, now, |share, context| {
            share.handle_listening(listening, context);
        });
        self.settle(now);
    }

    /// Whether the server processes of a share have registered on this node. Twins that wait
    /// for a server can't be served without, so nothing is protected then: neither where this
    /// node owns the share (nobody has its servers' snapshots) nor where it stands by. Assumed
    /// until this is called.
    pub fn handle_registration(
        &mut self,
        share: ShareId,
        registration: Registration,
        now: MonoTime,
    ) {
        self.with_share(share, now, |share, context| {
            share.handle_registration(registration, context);
        });
        self.settle(now);
    }

    /// As the owner: so many flows of the share are protected, of all that there are. Without
    /// one a standby may have to prove more than by canaries.
    pub fn handle_protected_count(&mut self, share: ShareId, protected: u32, now: MonoTime) {
        self.with_share(share, now, |share, context| {
            share.note_protected_count(protected, context);
        });
        self.settle(now);
    }

    /// What has come of a canary that was sent to `peer` along one path of a share; see
    /// [`Node::to_prove`].
    pub fn handle_proof(
        &mut self,
        share: ShareId,
        peer: PeerId,
        path: u8,
        proof: Proof,
        now: MonoTime,
    ) {
        self.with_share(share, now, |share, context| {
            share.handle_proof(peer, path, proof, context);
        });
        self.settle(now);
    }

    /// The standbys that canaries are to be sent to, share by share.
    pub fn to_prove(&self) -> impl Iterator<Item = (ShareId, PeerId)> + '_ {
        self.shares.iter().flat_map(|share| {
            let peers = share.to_prove(&self.peers);
            peers.into_iter().map(|peer| (share.id, peer))
        })
    }

    /// What [`crate::MoveAction::CheckFlows`] has found.
    pub fn handle_flow_check(&mut self, share: ShareId, check: FlowCheck, now: MonoTime) {
        self.with_share(share, now, |share, context| {
            share.handle_flow_check(check, context);
        });
        self.settle(now);
    }

    /// Where flows of a share that this node owns stand, if they changed since
    /// the last call. To be called every 10 ms. Kept until there is a link to
    /// the standby; what was under way when a link broke is lost.
    pub fn handle_changes(&mut self, share: ShareId, changes: &[DigestEntry], now: MonoTime) {
        self.with_share(share, now, |share, context| {
            share.note_changes(changes, context);
        });
        self.settle(now);
    }

    /// What the applications of flows have said that this node owns, for the
    /// standby to compare. A loss does no harm: it is said again, or something
    /// later is.
    pub fn handle_output(&mut self, share: ShareId, entries: &[OutputEntry], now: MonoTime) {
        self.with_share(share, now, |share, _| share.note_output(entries));
        self.settle(now);
    }

    /// A twin of this node says something else than its owner, which
    /// [`crate::TwinAction::Compare`] was about. `reason`: length or content.
    pub fn handle_divergence(
        &mut self,
        share: ShareId,
        flow: FlowId,
        reason: UnprotectedReason,
        now: MonoTime,
    ) {
        self.with_share(share, now, |share, context| {
            share.handle_divergence(flow, reason, context);
        });
        self.settle(now);
    }

    /// Somebody asks for something.
    pub fn handle_command(&mut self, command: Command, now: MonoTime) {
        if self.quitting {
            return;
        }
        match command {
            Command::Prepare(reason) => {
                self.with_shares(now, |share, context| share.prepare(reason, context));
                self.settle(now);
            }
            Command::Release(share) => {
                self.with_share(share, now, |share, context| share.release(context.now));
                self.settle(now);
            }
            Command::Move { share, to, force } => {
                self.with_share(share, now, |share, context| {
                    share.handle_move(to, force, context);
                });
                self.settle(now);
            }
            Command::MoveFlows { share, flows, to } => {
                self.with_share(share, now, |share, context| {
                    share.move_flows(&flows, to, context)
                });
                self.settle(now);
            }
            Command::Goodbye(reason) => self.say_goodbye(reason, now),
        }
    }

    fn say_goodbye(&mut self, reason: GoodbyeReason, now: MonoTime) {
        self.quitting = true;
        self.with_shares(now, |share, context| share.quit_handoffs(context));
        self.with_shares(now, |share, context| share.quit(reason, context));
        for (peer, side) in peers(&self.peers) {
            if side.is_linked() {
                self.out
                    .send(peer, Message::Peer(PeerMessage::Goodbye { reason }));
            }
        }
        self.settle_leases(now);
        self.flush_leases();
    }

    /// Whether what [`Command::Prepare`] asked for has been done.
    pub fn is_prepared(&self, reason: GoodbyeReason, now: MonoTime) -> bool {
        self.shares
            .iter()
            .all(|share| share.is_prepared(reason, now))
    }

    /// Until when votes of this node bind, if it casts no other:
    /// [`LeaseConfig::quiet_until`] of the agent that comes after this one. The
    /// last thing to ask a node that has quit.
    pub fn bound_until(&self, now: MonoTime) -> MonoTime {
        let ballots = self.ballots.as_ref();
        ballots.map_or(MonoTime::ZERO, |ballots| ballots.bound_until(now))
    }

    /// When [`Node::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        if self.quitting {
            return None;
        }
        let detectors = self.peers.iter().map(|peer| peer.detector.poll_timeout());
        let shares = self
            .shares
            .iter()
            .map(|share| share.poll_timeout(&self.peers));
        earliest(detectors.chain(shares).chain([self.next_vacancy()]))
    }

    /// Time has passed. Feed everything that has arrived before.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        if self.quitting {
            return;
        }
        for side in &mut self.peers {
            side.detector.handle_timeout(now);
        }
        for peer in (0..).map(PeerId).take(self.peers.len()) {
            self.follow_detector(peer, now);
        }
        self.with_shares(now, ShareSide::handle_timeout);
        self.settle(now);
    }

    /// The next thing to do, in the order of [`Action`].
    ///
    /// What this node has voted for comes first: none of the others is carried out before
    /// that is kept.
    pub fn poll_action(&mut self) -> Option<Action> {
        let news = self.ballots.as_mut().and_then(Ballots::take_news);
        let kept = news.map(|votes| Action::Lease(LeaseAction::KeepVotes { votes }));
        kept.or_else(|| self.out.next_action())
    }

    /// The next thing to tell people.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.next_event()
    }

    /// What this node says of its shares in each heartbeat.
    pub fn share_claims(&self) -> impl Iterator<Item = ShareClaim> + '_ {
        self.shares.iter().map(ShareSide::claim)
    }

    /// Whether a peer should be heard, and is not.
    pub fn misses(&self, peer: PeerId) -> bool {
        let side = self.peers.get(usize::from(peer.0));
        side.is_some_and(|side| side.detector.state() == detector::State::Failed)
    }

    /// The peer of that name.
    pub fn peer_id(&self, name: NodeName) -> Option<PeerId> {
        peers(&self.peers).find_map(|(peer, side)| (side.name == name).then_some(peer))
    }

    /// The name of a peer.
    pub fn peer_name(&self, peer: PeerId) -> Option<NodeName> {
        self.peers.get(usize::from(peer.0)).map(|side| side.name)
    }

    /// All peers, in the order of the configuration.
    pub fn peer_status(&self) -> impl Iterator<Item = PeerStatus> + '_ {
        self.peers.iter().map(|side| PeerStatus {
            name: side.name,
            liveness: side.detector.state(),
            linked: side.link == LinkState::Ready,
            incarnation: side.detector.incarnation(),
            heard: side.detector.heard(),
            max_interval: side.detector.max_interval(),
            ignored: side.detector.ignored(),
            late: side.detector.late(),
            config_differs: side.config_differs,
            differences: side.differences.clone(),
            lease_ignored: self
                .peer_id(side.name)
                .and_then(|peer| Some(self.ballots.as_ref()?.ignored(peer)))
                .unwrap_or_default(),
            tells_connections: side.tells_connections,
            doubts: side.doubts.counts().collect(),
            power: side.power,
            stonith_fault: side.stonith_fault,
        })
    }

    /// All shares, in the order of the configuration.
    pub fn share_status(&self) -> impl Iterator<Item = ShareStatus> + '_ {
        self.shares
            .iter()
            .map(|share| share.status(self.name, &self.peers))
    }

    /// Who holds the lease of a share, as far as this node has voted; `None` if it is not in
    /// force.
    pub fn lease_holder(&self, share: ShareId, now: MonoTime) -> Option<NodeName> {
        let view = self.ballots.as_ref()?.view(share)?;
        view.is_in_force(now).then_some(view.lease.holder)
    }

    /// The end of every flow under supervision, to be fed back
    /// ([`handle_flow_event`](Self::handle_flow_event)) where it has come and was
    /// not reported.
    pub fn supervised_flows(&self) -> impl Iterator<Item = FlowEvent> + '_ {
        self.shares.iter().flat_map(ShareSide::supervised_flows)
    }

    /// How long a peer may be silent before it fails.
    pub fn detection_time(config: &NodeConfig) -> Duration {
        detector::Config {
            interval: config.heartbeat,
            misses: config.misses,
            drift_ppm: config.lease.terms.drift_ppm,
        }
        .patience()
    }

    fn follow_detector(&mut self, peer: PeerId, now: MonoTime) {
        while let Some(event) = self
            .peer_mut(peer)
            .and_then(|side| side.detector.poll_event())
        {
            match event {
                detector::Event::Up { silent_for } => {
                    self.tell_peer(peer, PeerNews::Up { silent_for }, now);
                }
                detector::Event::Restarted => self.tell_peer(peer, PeerNews::Restarted, now),
                detector::Event::Failed { silent_for } => {
                    self.tell_peer(peer, PeerNews::Down { silent_for }, now);
                    self.with_shares(now, |share, context| share.handle_failed(peer, context));
                }
            }
        }
    }

    /// Acts on what the machines have decided. All shares change hands before
    /// the first announcement, and all are announced before the first flow is
    /// revived: a map write is short, a thousand probes are not.
    fn settle(&mut self, now: MonoTime) {
        self.settle_fitness();
        self.settle_homes(now);
        self.settle_first_homes();
        self.settle_leases(now);
        self.with_shares(now, ShareSide::settle_handoffs);
        self.with_shares(now, ShareSide::settle_announcement);
        self.with_shares(now, ShareSide::settle_revival);
        self.with_shares(now, ShareSide::settle_standby);
        // What the owner has asked of the voters goes out with the rest.
        self.settle_leases(now);
        self.flush_leases();
    }

    /// What an earlier agent of this node holds, nobody else is promised.
    fn inherit(&mut self, share: &ShareConfig, config: &NodeConfig) {
        let held = share
            .resume
            .filter(|from| from.role == Role::Owner)
            .and_then(|from| leased::inherited(share, config, &from));
        if let (Some(ballots), Some((lease, expires))) = (&mut self.ballots, held) {
            ballots
                .acceptor()
                .handle_inherited(share.id, lease, expires);
        }
    }

    /// Runs `act` on every share, and has each change of role written at once.
    fn with_shares(&mut self, now: MonoTime, act: impl Fn(&mut ShareSide, &mut Context<'_>)) {
        for share in &mut self.shares {
            let mut context = Context::new(self.name, &self.peers, &mut self.out, now);
            act(share, &mut context);
            share.settle_role(&mut context);
        }
    }

    /// Runs `act` on one share; false if this node has no part in it.
    fn with_share(
        &mut self,
        id: ShareId,
        now: MonoTime,
        act: impl FnOnce(&mut ShareSide, &mut Context<'_>),
    ) -> bool {
        let Some(share) = self.shares.iter_mut().find(|share| share.id == id) else {
            return false;
        };
        let mut context = Context::new(self.name, &self.peers, &mut self.out, now);
        act(share, &mut context);
        share.settle_role(&mut context);
        true
    }

    fn peer_mut(&mut self, peer: PeerId) -> Option<&mut PeerSide> {
        self.peers.get_mut(usize::from(peer.0))
    }

    fn blame(&mut self, peer: PeerId, what: &'static str, now: MonoTime) {
        self.tell_peer(peer, PeerNews::Misbehaved { what }, now);
    }

    fn tell_peer(&mut self, peer: PeerId, news: PeerNews, now: MonoTime) {
        if let Some(peer) = self.peer_name(peer) {
            self.out.tell(now, EventKind::Peer { peer, news });
        }
    }
}

fn peers(sides: &[PeerSide]) -> impl Iterator<Item = (PeerId, &PeerSide)> {
    (0..).map(PeerId).zip(sides)
}
