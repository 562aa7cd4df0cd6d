//! From the core's actions to what the kernel is asked for.

use godwit_bpf::{Order, Phase};
use godwit_core::{Action, MonoTime, PeerId};
use godwit_wire::{FlowId, MacAddr, Message, Role, ShareId, UnprotectedReason};

use super::fence::to_expiry;
use super::shares::Part;
use super::{Driver, segments};
use crate::clock;
use crate::config::PeerRole;

impl Driver {
    pub(super) fn carry_out(&mut self, action: Action) {
        if let Some(action) = self.dismissals.postpone(action) {
            self.carry_out_now(action);
        }
    }

    fn carry_out_now(&mut self, action: Action) {
        match action {
            Action::SetShare {
                share,
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
            Action::KeepVotes { votes } => self.leases.keep(&votes),
            Action::SetExpiry { share, expiry, .. } => self.renew(share, expiry),
            Action::SendLease { peer, datagram } => {
                self.settle_dismissals();
                if let Err(error) = self.leases.send(peer, &datagram) {
                    tracing::debug!(peer = peer.0, error = %error, "lease datagram not sent");
                }
            }
            Action::Stonith { peer } => self.power_off(peer),
            Action::Silence { share } => self.silence(share),
            Action::Reopen { share } => self.reopen(share),
            Action::Announce { share } => self.announce(share),
            Action::Revive { share, attempt } => self.revive(share, attempt),
            Action::CheckFlows { share, peer: _ } => self.check_flows(share),
            Action::ResetUnprotected { share } => self.reset_unprotected(share),
            Action::HandOver { share } => self.hand_over(share),
            Action::Resume { share } => self.resume(share),
            Action::AskMove { share, wish } => self.ask_move(share, wish),
            Action::MoveEnded { share, outcome } => self.end_move(share, outcome),
            Action::ReleaseGate { share, generation } => self.release_gate(share, generation),
            Action::UngateFlow { .. }
            | Action::MarkDemoted { .. }
            | Action::EndTwin { .. }
            | Action::PokeTwin { .. } => self.change_flow(action),
            Action::ResendHandshake { share, flow } => self.resend_handshake(share, flow),
            Action::Compare { share, entry } => self.comparisons.expect(share, entry, clock::now()),
            Action::EndFlows { share, reason } => self.dismiss(share, reason),
            Action::BeginRejoin {
                share,
                flow,
                generation,
            } => self.begin_rejoin(share, flow, generation),
            Action::FeedLog { share, flow } => self.feed_log(share, flow),
            Action::ProtectFlow { share, flow } => self.protect(share, flow),
            Action::RestoreTwin {
                share,
                generation,
                restore,
            } => self.expect_twin(share, generation, &restore),
            Action::FeedTwin {
                flow,
                seq,
                fin,
                input,
                ..
            } => self.feed_twin(flow, seq, fin, input),
            Action::AdmitTwin { share, flow } => self.admit_twin(share, flow),
            Action::KeepSnapshot { share, flow, part } => self.keep_snapshot(share, flow, part),
            Action::SnapshotKept { flow, commit, .. } => self.note_kept(flow, commit),
            Action::Handoff { share, work } => self.work_on_handoff(share, work),
            Action::Send { peer, message } => self.send(peer, message),
        }
    }

    /// What is wanted of one flow of a share, if it is that share's still.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "its caller has named those that come here"
    )]
    fn change_flow(&mut self, action: Action) {
        match action {
            Action::UngateFlow {
                share,
                flow,
                reason,
            } => self.ungate(share, flow, reason),
            Action::MarkDemoted {
                share,
                flow,
                reason,
            } => self.give(share, flow, Order::NotInSync(reason)),
            Action::EndTwin {
                share,
                flow,
                reason,
            } => self.end_twin(share, flow, reason),
            Action::PokeTwin {
                share,
                flow,
                snd_una,
            } => self.poke_twin(share, flow, snd_una),
            _ => debug_assert!(false, "not of one flow: {action:?}"),
        }
    }

    fn send(&self, peer: PeerId, message: Message) {
        if let Err(error) = self.peers.send(peer, message) {
            tracing::debug!(peer = peer.0, error = %error, "message not sent");
        }
    }

    fn set_share(&mut self, share: ShareId, part: Part) {
        if part.role != Role::Owner || part.generation.is_none() {
            self.end_commits(|of, _| of == share);
            let exports = &self.exports;
            self.commits
                .forget_all(|key| exports.share_of(key) == Some(share));
        }
        if part.role == Role::Owner {
            self.end_old_silence(share);
        }
        let takes_over = self.shares.is_takeover(share, part);
        let Some(set) = self.shares.set(share, part) else {
            return tracing::error!(share = share.0, "no such share");
        };
        let (name, lost) = (set.name.clone(), set.unresolved());
        let kept = set.kept;
        self.write_share(share);
        self.note_locals();
        if takes_over {
            self.shares.note_takeover(share, clock::now());
        }
        if let Some(keeper) = self.keeper.as_ref().filter(|_| kept) {
            keeper.serve(share, part.role == Role::Owner);
        }
        if let Some(peer) = lost {
            self.tell_peer_place("peer_unresolved", peer, &[("service", &name)]);
            self.resolver.hurry();
        }
    }

    /// The moment from which a role holds.
    pub(super) fn write_share(&self, share: ShareId) {
        let Some(state) = self.shares.get(share) else {
            return;
        };
        if let Err(error) = self.datapath.shares.set(share, &state.entry) {
            tracing::error!(share = share.0, error = %error, "role not set");
        }
    }

    /// What waited for this peer's place on the link is in force now.
    pub(super) fn find_peer(&mut self, peer: PeerId, mac: MacAddr) {
        self.find_tagged(peer, mac);
        if self.is_director(peer) {
            return;
        }
        let concerned = self.shares.learn(peer, mac);
        if let Err(error) = self.datapath.canaries.know_peer(mac) {
            tracing::warn!(%error, "canaries of a peer are not answered");
        }
        self.follow_peer(peer, mac);
        for share in &concerned {
            self.write_share(*share);
        }
        let was_missing = self.canaries.find(peer);
        if was_missing || !concerned.is_empty() {
            self.tell_peer_place("peer_resolved", peer, &[("mac", &mac.to_string())]);
        }
    }

    /// Of which nothing else has to be known on the link.
    fn is_director(&self, peer: PeerId) -> bool {
        let mut others = self.config.others();
        let peer = others.nth(usize::from(peer.0));
        peer.is_some_and(|peer| peer.role == PeerRole::Director)
    }

    pub(super) fn tell_peer_place(&self, event: &str, peer: PeerId, more: &[(&str, &str)]) {
        let Some(config) = self.config.others().nth(usize::from(peer.0)) else {
            return;
        };
        let (name, data) = (config.name.to_string(), config.data.to_string());
        let fields = [("peer", name.as_str()), ("data", data.as_str())];
        let warning = event == "peer_unresolved";
        let fields = fields.into_iter().chain(more.iter().copied());
        self.events.publish_own(event, warning, fields);
    }

    /// The gate opens first, then both sides hear what it kept from them.
    fn ungate(&mut self, share: ShareId, flow: FlowId, reason: UnprotectedReason) {
        self.end_commits(|_, of| of == flow);
        self.give(share, flow, Order::Ungate(reason));
        if let Some(state) = self.flow(flow).filter(|state| state.share == share) {
            self.let_go(&state, clock::now());
        }
    }

    /// A flow that has ended meanwhile had better have no twin.
    fn resend_handshake(&self, share: ShareId, flow: FlowId) {
        let Some(peer) = self.shares.get(share).map(|share| share.entry.peer_mac) else {
            return;
        };
        let runs = self.flow(flow).filter(|flow| flow.phase != Phase::Ended);
        let Some(packets) = runs.as_ref().and_then(segments::handshake) else {
            return;
        };
        for packet in &packets {
            if let Err(error) = self.frames.send(&segments::frame(peer, self.mac, packet)) {
                tracing::debug!(flow = %flow.key, error = %error, "handshake not sent again");
            }
        }
    }

    /// When this node last took a share over; the start if it never did.
    pub(super) fn taken_over_at(&self, share: ShareId) -> MonoTime {
        self.shares
            .get(share)
            .and_then(|share| share.taken_over)
            .unwrap_or(self.started)
    }
}
