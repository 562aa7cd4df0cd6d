//! From the core's actions to what the kernel is asked for.

use godwit_bpf::{Order, Phase};
use godwit_core::{Action, FlowAction, LeaseAction, PeerAction, PeerId, ShareAction};
use godwit_wire::{FlowId, MacAddr, Message, Role, ShareId, UnprotectedReason};

use super::addresses::announce;
use super::fence::{power_off, renew, to_expiry};
use super::flow_feed::FlowFeed;
use super::revive::{let_go, release_gate, revive};
use super::servers::{end_old_silence, reopen, silence};
use super::shares::Part;
use super::{Driver, moves, segments};
use crate::clock;
use crate::config::PeerRole;

impl Driver {
    pub(super) fn carry_out(&mut self, action: Action) {
        if let Some(action) = self.dismissals.postpone(action) {
            self.carry_out_now(action);
        }
    }

    fn carry_out_all(&mut self, actions: impl IntoIterator<Item = Action>) {
        for action in actions {
            self.carry_out(action);
        }
    }

    /// Ends some more sockets of shares that have gone.
    pub(super) fn go_on_dismissing(&mut self) {
        let then = self.dismissals.go_on(&self.ground);
        self.carry_out_all(then);
    }

    /// Before something is said about leases.
    fn settle_dismissals(&mut self) {
        if self.dismissals.keep_a_voice_waiting() {
            self.finish_dismissals();
        }
    }

    /// At the end of the agent nothing is left for later.
    pub(super) fn finish_dismissals(&mut self) {
        while self.dismissals.are_under_way() {
            self.go_on_dismissing();
        }
    }

    fn carry_out_now(&mut self, action: Action) {
        match action {
            Action::Share(share, action) => self.carry_out_share(share, action),
            Action::Move(share, action) => {
                let mut lent = moves::Lent {
                    feed: FlowFeed {
                        ground: &mut self.ground,
                        digest: &mut self.digest,
                        snapshots: &mut self.snapshots,
                    },
                    sweep: &self.sweep,
                };
                self.moves.carry_out(&mut lent, share, action);
            }
            Action::Flow(share, action) => self.carry_out_flow(share, action),
            Action::Twin(share, action) => self.twins.carry_out(&self.ground, share, action),
            Action::Rejoin(share, action) => {
                let with = (&mut self.ground, &mut self.snapshots);
                self.rejoins.carry_out(with, share, action);
            }
            Action::Snapshot(share, action) => {
                let with = (&mut self.ground, &mut self.rejoins.replays);
                self.snapshots.carry_out(with, share, action);
            }
            Action::Handoff(share, work) => {
                self.handoffs.carry_out(&mut self.ground, share, work);
            }
            Action::Lease(action) => self.carry_out_lease(action),
            Action::Peer(peer, PeerAction::Stonith) => {
                power_off(&mut self.ground, &self.outside.stonith, peer)
            }
            Action::Peer(peer, PeerAction::Send(message)) => self.send(peer, message),
        }
    }

    fn carry_out_share(&mut self, share: ShareId, action: ShareAction) {
        match action {
            ShareAction::Set {
                role,
                epoch,
                generation,
                peer,
                expiry,
            } => {
                let part = Part {
                    role,
                    epoch,
                    generation,
                    peer,
                    expiry: to_expiry(expiry),
                };
                self.set_share(share, part);
            }
            ShareAction::SetExpiry { expiry, .. } => renew(&mut self.ground, share, expiry),
            ShareAction::Silence => silence(&self.ground, share),
            ShareAction::Reopen => reopen(&mut self.ground, share),
            ShareAction::Announce => announce(&self.ground, share),
            ShareAction::Revive { attempt } => revive(&mut self.ground, share, attempt),
            ShareAction::ReleaseGate { generation } => {
                release_gate(&mut self.ground, share, generation)
            }
            ShareAction::EndFlows { reason } => {
                let then = self.dismissals.dismiss(&mut self.ground, share, reason);
                self.carry_out_all(then);
            }
        }
    }

    fn carry_out_flow(&mut self, share: ShareId, action: FlowAction) {
        match action {
            FlowAction::Ungate { flow, reason } => self.ungate(share, flow, reason),
            FlowAction::ResendHandshake { flow } => self.resend_handshake(share, flow),
        }
    }

    fn carry_out_lease(&mut self, action: LeaseAction) {
        match action {
            LeaseAction::KeepVotes { votes } => self.outside.leases.keep(&votes),
            LeaseAction::Send { peer, datagram } => {
                self.settle_dismissals();
                if let Err(error) = self.outside.leases.send(peer, &datagram) {
                    tracing::debug!(peer = peer.0, error = %error, "lease datagram not sent");
                }
            }
        }
    }

    fn send(&self, peer: PeerId, message: Message) {
        if let Err(error) = self.ground.peers.send(peer, message) {
            tracing::debug!(peer = peer.0, error = %error, "message not sent");
        }
    }

    fn set_share(&mut self, share: ShareId, part: Part) {
        if part.role != Role::Owner || part.generation.is_none() {
            self.snapshots.note_standing_alone(&mut self.ground, share);
        }
        if part.role == Role::Owner {
            end_old_silence(&self.ground, share);
        }
        let takes_over = self.ground.shares.is_takeover(share, part);
        let Some(set) = self.ground.shares.set(share, part) else {
            return tracing::error!(share = share.0, "no such share");
        };
        let (name, lost) = (set.name.clone(), set.unresolved());
        let kept = set.kept;
        self.ground.write_share(share);
        self.locals.note_locals(&self.ground);
        if takes_over {
            self.ground.shares.note_takeover(share, clock::now());
        }
        if kept {
            self.snapshots.serve(share, part.role == Role::Owner);
        }
        if let Some(peer) = lost {
            self.ground
                .tell_peer_place("peer_unresolved", peer, &[("service", &name)]);
            self.ground.resolver.hurry();
        }
    }

    /// What waited for this peer's place on the link is in force now.
    pub(super) fn find_peer(&mut self, peer: PeerId, mac: MacAddr) {
        self.requests.find(&self.ground, peer, mac);
        if self.is_director(peer) {
            return;
        }
        let concerned = self.ground.shares.learn(peer, mac);
        if let Err(error) = self.ground.datapath.twins.canaries.know_peer(mac) {
            tracing::warn!(%error, "canaries of a peer are not answered");
        }
        self.handoffs.follow_peer(peer, mac);
        for share in &concerned {
            self.ground.write_share(*share);
        }
        let was_missing = self.canaries.find(peer);
        if was_missing || !concerned.is_empty() {
            self.ground
                .tell_peer_place("peer_resolved", peer, &[("mac", &mac.to_string())]);
        }
    }

    /// Of which nothing else has to be known on the link.
    fn is_director(&self, peer: PeerId) -> bool {
        let mut others = self.ground.config.others();
        let peer = others.nth(usize::from(peer.0));
        peer.is_some_and(|peer| peer.role == PeerRole::Director)
    }

    /// The gate opens first, then both sides hear what it kept from them.
    fn ungate(&mut self, share: ShareId, flow: FlowId, reason: UnprotectedReason) {
        self.snapshots
            .end_commits(&mut self.ground, |_, of| of == flow);
        self.ground.give(share, flow, Order::Ungate(reason));
        if let Some(state) = self.ground.flow(flow).filter(|state| state.share == share) {
            let_go(&self.ground, &state, clock::now());
        }
    }

    /// A flow that has ended meanwhile had better have no twin.
    fn resend_handshake(&self, share: ShareId, flow: FlowId) {
        let Some(peer) = self
            .ground
            .shares
            .get(share)
            .map(|share| share.entry.peer_mac)
        else {
            return;
        };
        let runs = self
            .ground
            .flow(flow)
            .filter(|flow| flow.phase != Phase::Ended);
        let Some(packets) = runs.as_ref().and_then(segments::handshake) else {
            return;
        };
        for packet in &packets {
            if let Err(error) =
                self.ground
                    .voice
                    .frames
                    .send(&segments::frame(peer, self.ground.voice.mac, packet))
            {
                tracing::debug!(flow = %flow.key, error = %error, "handshake not sent again");
            }
        }
    }
}
