//! Leases of all shares: what arrives about them, and who is told what.

use std::time::Duration;

use godwit_wire::{LeaseDatagram, LeaseMessage, ShareId, Standing};

use super::ballots::Ballots;
use super::context::Context;
use super::peer::Power;
use super::{Node, PeerNews, StonithFault};
use crate::lease::{Proposer, Speaker};
use crate::{Action, MonoTime, PeerAction, PeerId};

/// How long a failed attempt to power a node off is not repeated.
const STONITH_AGAIN: Duration = Duration::from_secs(1);

impl Node {
    /// An authentic lease datagram arrived at `now`, which must have been read
    /// after it arrived.
    pub fn handle_lease(&mut self, peer: PeerId, datagram: &LeaseDatagram, now: MonoTime) {
        if self.note_proposals(peer, datagram) {
            self.settle(now);
        }
        let side = self.peers.get(usize::from(peer.0));
        let (Some(ballots), Some(side)) = (&mut self.ballots, side) else {
            return;
        };
        if !ballots.admits(peer, side, datagram) {
            return;
        }
        let from = Speaker {
            node: side.name,
            incarnation: datagram.incarnation,
        };
        self.note_power(peer);
        for message in &datagram.messages {
            if let Some(believed) = self.examine(peer, message, now) {
                self.hear(from, &believed, now);
            }
        }
        self.settle(now);
    }

    /// The command of [`crate::PeerAction::Stonith`] has ended. A failure is no answer: the
    /// peer may be on, so nothing is taken over from it, and it is tried again.
    pub fn handle_stonith(
        &mut self,
        peer: PeerId,
        outcome: Result<(), StonithFault>,
        now: MonoTime,
    ) {
        let Some(side) = self.peer_mut(peer) else {
            return;
        };
        let name = side.name;
        side.stonith_fault = outcome.err();
        side.power = match outcome {
            Ok(()) => Power::Off,
            Err(_) => Power::Stuck {
                until: now.saturating_add(STONITH_AGAIN),
            },
        };
        let news = match outcome {
            Ok(()) => PeerNews::StonithSucceeded,
            Err(fault) => PeerNews::StonithFailed { fault },
        };
        self.tell_peer(peer, news, now);
        if outcome.is_ok() {
            for proposer in self.proposers() {
                proposer.handle_fenced(name, now);
            }
        }
        self.settle(now);
    }

    /// A peer is heard: it has power.
    pub(super) fn note_power(&mut self, peer: PeerId) {
        let Some(side) = self.peer_mut(peer) else {
            return;
        };
        let name = side.name;
        if side.power != Power::Cutting {
            side.power = Power::Unknown;
            side.stonith_fault = None;
        }
        for proposer in self.proposers() {
            proposer.handle_heard(name);
        }
    }

    /// Lets shares stand whose owner has no lease any more, and passes on what
    /// proposers and acceptors say until all is quiet.
    pub(super) fn settle_leases(&mut self, now: MonoTime) {
        let Some(mut ballots) = self.ballots.take() else {
            return;
        };
        for share in &mut self.shares {
            let mut context = Context::new(self.name, &self.peers, &mut self.out, now);
            share.settle_candidacy(ballots.view(share.id), &mut context);
            share.settle_role(&mut context);
        }
        while self.follow_events(now) | self.pass_requests(&mut ballots, now) {}
        self.ballots = Some(ballots);
        self.cut_power(now);
    }

    /// Sends what has been said meanwhile.
    pub(super) fn flush_leases(&mut self) {
        if let Some(ballots) = &mut self.ballots {
            ballots.flush(&self.peers, &mut self.out);
        }
    }

    /// When the lease of an owner that this node stands by for ends.
    pub(super) fn next_vacancy(&self) -> Option<MonoTime> {
        let ballots = self.ballots.as_ref()?;
        let vacancies = self.shares.iter().filter_map(|share| {
            let owner = share.owner()?;
            let side = self.peers.get(usize::from(owner.peer.0))?;
            share.vacancy_at(ballots.view(share.id), owner, side)
        });
        vacancies.min()
    }

    fn hear(&mut self, from: Speaker, message: &LeaseMessage, now: MonoTime) {
        if message.is_answer() {
            if let Some(proposer) = self.proposer(message.share()) {
                proposer.handle_message(from.node, message, now);
            }
            return;
        }
        self.yield_to(message);
        if let Some(refused) = self.refuse_beside_unleased(from.node, message) {
            let to = self.peer_id(from.node);
            if let (Some(peer), Some(ballots)) = (to, &mut self.ballots) {
                ballots.say(peer, refused);
            }
            return;
        }
        if let Some(ballots) = &mut self.ballots {
            ballots.acceptor().handle_message(from, message, now);
        }
    }

    /// A holder that renews its lease is not stood against. Our acceptor may have
    /// lost sight of it, and would not see it for what it promises ourselves.
    fn yield_to(&mut self, message: &LeaseMessage) {
        let LeaseMessage::Propose {
            share,
            standing: Standing::Unbroken,
            ..
        } = message
        else {
            return;
        };
        let given_up = self
            .proposer(*share)
            .is_some_and(Proposer::handle_holder_heard);
        if let (true, Some(ballots)) = (given_up, &mut self.ballots) {
            let me = ballots.me().node;
            ballots.acceptor().handle_given_up(*share, me);
        }
    }

    /// What voters have decided is acted upon before anything else is said.
    fn follow_events(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        for share in &mut self.shares {
            while let Some(event) = share
                .lease
                .as_mut()
                .and_then(|lease| lease.proposer.poll_event())
            {
                any = true;
                let mut context = Context::new(self.name, &self.peers, &mut self.out, now);
                share.handle_lease_event(event, &mut context);
                share.settle_role(&mut context);
            }
        }
        any
    }

    /// One message of each proposer to everybody, this node included, and all
    /// answers of this node's acceptor.
    fn pass_requests(&mut self, ballots: &mut Ballots, now: MonoTime) -> bool {
        let mut any = false;
        for share in &mut self.shares {
            let Some(lease) = &mut share.lease else {
                continue;
            };
            let Some(message) = lease.proposer.poll_message() else {
                continue;
            };
            any = true;
            for peer in lease.audience.peers() {
                ballots.say(peer, message.clone());
            }
            let me = ballots.me();
            ballots.acceptor().handle_message(me, &message, now);
        }
        while let Some((to, answer)) = ballots.poll_answer() {
            any = true;
            if to == self.name {
                if let Some(proposer) = self.proposer(answer.share()) {
                    proposer.handle_message(to, &answer, now);
                }
            } else if let Some(peer) = self.peer_id(to) {
                ballots.say(peer, answer);
            }
        }
        any
    }

    /// Has peers powered off that nothing can be decided without.
    fn cut_power(&mut self, now: MonoTime) {
        for peer in self.out.take_fences() {
            let Some(side) = self.peer_mut(peer) else {
                continue;
            };
            let due = match side.power {
                Power::Unknown => true,
                Power::Stuck { until } => until <= now,
                Power::Cutting | Power::Off => false,
            };
            if due {
                side.power = Power::Cutting;
                self.out.act(Action::Peer(peer, PeerAction::Stonith));
                self.tell_peer(peer, PeerNews::StonithStarted, now);
            }
        }
    }

    fn proposer(&mut self, share: ShareId) -> Option<&mut Proposer> {
        let side = self.shares.iter_mut().find(|side| side.id == share)?;
        side.lease.as_mut().map(|lease| &mut lease.proposer)
    }

    fn proposers(&mut self) -> impl Iterator<Item = &mut Proposer> {
        let leases = self
            .shares
            .iter_mut()
            .filter_map(|share| share.lease.as_mut());
        leases.map(|lease| &mut lease.proposer)
    }
}
