//! Agents: what `godwit-agent/src/driver` is to a real node. Feeds the core,
//! carries out its actions one by one, and can be stopped between any two.

use godwit_core::node::{PeerNews, ShareNews};
use godwit_core::{
    Action, Beat, Event, EventKind, FlowAction, LeaseAction, MonoTime, MoveAction, Node,
    PeerAction, ShareAction, StonithFault, TwinAction,
};
use godwit_wire::{Generation, LeaseDatagram, LeaseMessage, Role, ShareId};

use crate::host::{Claims, Entry, Input, Sleep, node_of, peer_of};
use crate::mutant::Mutant;
use crate::network::{Fate, Net};
use crate::plan::MS;
use crate::world::{Happening, World, slot_of};

impl World {
    /// Whether a datagram proves who sent it: its key came with the last hello.
    pub(crate) fn is_authentic(&self, from: usize, to: usize, incarnation: u64) -> bool {
        self.hosts[to].agent.is_some() && self.hosts[to].keys[from] == incarnation
    }

    pub(crate) fn beat_arrives(
        &mut self,
        (from, to): (usize, usize),
        incarnation: u64,
        (sequence, sent): (u64, MonoTime),
        claims: Claims,
    ) {
        if !self.is_authentic(from, to, incarnation) {
            return;
        }
        let host = &self.hosts[to];
        let at = host.beats().then(|| host.clock.read(self.now_ns));
        self.give(
            to,
            Input::Beat {
                from,
                incarnation,
                sequence,
                sent,
                claims,
                at,
            },
        );
    }

    /// Something arrives for an agent.
    pub(crate) fn give(&mut self, node: usize, input: Input) {
        let host = &mut self.hosts[node];
        if host.agent.is_none() {
            return;
        }
        if host.thinks() {
            self.feed(node, input);
            return;
        }
        // Sockets have room for so much; streams are held back, not lost.
        let datagram = matches!(input, Input::Beat { .. } | Input::Lease(..));
        if !datagram || host.inbox.len() < 200 {
            host.inbox.push_back(input);
        }
    }

    pub(crate) fn feed(&mut self, node: usize, input: Input) {
        match input {
            Input::Beat {
                from,
                incarnation,
                sequence,
                sent,
                claims,
                at,
            } => {
                let beat = Beat {
                    incarnation,
                    sequence,
                    sent: Some(sent),
                    shares: claims.into_iter().flatten().collect(),
                };
                let peer = peer_of(node, from);
                self.input(node, |agent, now| {
                    agent.handle_heartbeat(peer, &beat, at.unwrap_or(now));
                });
            }
            Input::Lease(from, datagram) => {
                self.trace(|_| format!("{node}: from {from}: {:?}", datagram.messages));
                self.input(node, |agent, now| {
                    agent.handle_lease(peer_of(node, from), &datagram, now);
                });
            }
            Input::Message(from, message) => {
                self.trace(|_| format!("{node}: from {from}: {message:?}"));
                self.input(node, |agent, now| {
                    agent.handle_message(peer_of(node, from), &message, now);
                });
            }
            Input::Link(other, link) => self.input(node, |agent, now| {
                agent.handle_link(peer_of(node, other), link, now);
            }),
            Input::Flow(event) => {
                self.trace(|_| format!("{node}: {event:?}"));
                self.input(node, |agent, now| agent.handle_flow_event(event, now));
            }
            Input::Exit(exit) => self.pass_exit_on(node, exit),
            Input::Handoff(share, report) => self.input(node, |agent, now| {
                agent.handle_handoff_report(share, report, now);
            }),
            Input::Listening(share) => {
                let listening = self.hosts[node].kernel.entries[share].listening;
                let id = Self::share_id(share);
                self.input(node, |agent, now| {
                    agent.handle_listening(id, listening, now)
                });
            }
            Input::Facts => {
                self.report_facts(node);
                self.carry_on(node);
            }
            Input::Stonith(target, off) => self.input(node, |agent, now| {
                let outcome = off.then_some(()).ok_or(StonithFault::CommandFailed);
                agent.handle_stonith(peer_of(node, target), outcome, now);
            }),
        }
    }

    /// Feeds the core, and carries out what it decides.
    pub(crate) fn input(&mut self, node: usize, act: impl FnOnce(&mut Node, MonoTime)) {
        let host = &mut self.hosts[node];
        let now = host.clock.read(self.now_ns);
        if let Some(agent) = &mut host.agent {
            act(agent, now);
        }
        self.carry_on(node);
    }

    /// As [`World::input`], while an action is carried out: what comes of it has
    /// its turn.
    pub(crate) fn answer(&mut self, node: usize, act: impl FnOnce(&mut Node, MonoTime)) {
        let host = &mut self.hosts[node];
        let now = host.clock.read(self.now_ns);
        if let Some(agent) = &mut host.agent {
            act(agent, now);
        }
    }

    /// Carries out what is left to do, unless something comes between.
    pub(crate) fn carry_on(&mut self, node: usize) {
        if let Some((share, entry)) = self.hosts[node].kernel.unwritten.take() {
            self.finish_share(node, share, entry);
        }
        while let Some(action) = self.next_action(node) {
            self.carry_out(node, action);
            if self.hosts[node].kernel.unwritten.is_some() {
                // Stopped in the middle of an action.
                return;
            }
            if self.interrupt(node) {
                return;
            }
        }
        let host = &mut self.hosts[node];
        let Some(agent) = &mut host.agent else {
            return;
        };
        let mut claims = agent.share_claims();
        host.claims = [claims.next(), claims.next(), claims.next()];
        drop(claims);
        while let Some(event) = self.next_event(node) {
            self.note(node, &event);
        }
        self.set_alarm(node);
    }

    fn next_action(&mut self, node: usize) -> Option<Action> {
        self.hosts[node].agent.as_mut()?.poll_action()
    }

    fn next_event(&mut self, node: usize) -> Option<Event> {
        self.hosts[node].agent.as_mut()?.poll_event()
    }

    fn note(&mut self, node: usize, event: &Event) {
        self.trace(|_| format!("{node}: {:?}", event.kind));
        if let EventKind::Share { share, news } = &event.kind {
            self.audit_role(node, *share, news);
        }
        match &event.kind {
            EventKind::Share {
                news: ShareNews::TakeoverStarted { generation, .. },
                ..
            } => {
                if *generation != Generation::NONE {
                    self.tally.takeovers += 1;
                }
            }
            EventKind::Share {
                share,
                news: ShareNews::StandbyJoined { .. },
            } => {
                self.audit_join(node, Self::share_at(*share));
            }
            EventKind::Share {
                news: ShareNews::StandbyLeft { reason, .. },
                ..
            } => self.note_left(*reason),
            EventKind::Peer {
                peer,
                news: PeerNews::Down { .. },
            } => {
                if self.plan.mutant == Some(Mutant::NoWait) {
                    let silent = (0..self.plan.nodes).find(|one| crate::world::name(*one) == *peer);
                    self.open_gates_at_once(node, silent);
                }
            }
            EventKind::Peer { .. } | EventKind::Share { .. } | EventKind::Flow { .. } => {}
        }
    }

    fn carry_out(&mut self, node: usize, action: Action) {
        if let Some(action) = self.carry_out_single(node, action) {
            self.carry_out_whole(node, action);
        }
    }

    /// What concerns a share, or the node.
    fn carry_out_whole(&mut self, node: usize, action: Action) {
        match action {
            Action::Share(share, action) => {
                self.carry_out_share(node, Self::share_at(share), action);
            }
            Action::Move(share, action) => self.carry_out_move(node, share, action),
            Action::Flow(_, action) => self.carry_out_flow(node, action),
            Action::Twin(_, action) => self.carry_out_twin(node, &action),
            Action::Rejoin(share, action) => self.carry_out_rejoin(node, share, action),
            Action::Lease(LeaseAction::KeepVotes { votes }) => self.keep_votes(node, votes),
            Action::Lease(LeaseAction::Send { peer, datagram }) => {
                self.send_lease(node, node_of(node, peer), datagram);
            }
            Action::Peer(peer, PeerAction::Stonith) => self.cut_power(node, node_of(node, peer)),
            Action::Peer(peer, PeerAction::Send(message)) => {
                self.commit_early(node, &message);
                self.send_message(node, node_of(node, peer), message);
            }
            // Servers export nothing here, and the other handoffs were carried out before.
            Action::Snapshot(..) | Action::Handoff(..) => {}
        }
    }

    /// In a file that a boot takes away, if there is one.
    fn keep_votes(&mut self, node: usize, votes: String) {
        let kept = &mut self.hosts[node].voted.kept;
        let forgets = self.plan.mutant == Some(Mutant::StaleVotes) && kept.is_some();
        if self.plan.habits.keeps && !forgets {
            *kept = Some(votes);
        }
    }

    fn note_move(&mut self, node: usize, share: ShareId, moved: bool) {
        self.trace(|_| format!("{node}: {share:?} has moved: {moved}"));
        if moved {
            self.tally.moves += 1;
            self.audit_move(node, Self::share_at(share));
        }
        self.end_move(node, Self::share_at(share), moved);
    }

    fn send_lease(&mut self, from: usize, to: usize, datagram: LeaseDatagram) {
        self.note_release(from, &datagram);
        let incarnation = self.hosts[from].incarnation;
        let fate = self.send_datagram(from, to);
        let arrival = |datagram| Happening::Lease {
            from,
            to,
            incarnation,
            datagram,
        };
        if let Some(at_ns) = fate.again_ns {
            self.queue.push(at_ns, arrival(datagram.clone()));
        }
        if let Some(at_ns) = fate.at_ns {
            self.queue.push(at_ns, arrival(datagram));
        }
    }

    /// A command that powers a node off takes its time.
    fn cut_power(&mut self, by: usize, target: usize) {
        let life = self.hosts[by].life;
        let at_ns = self.now_ns + self.random.between(5 * MS, 150 * MS);
        self.trace(|_| format!("{by}: powers {target} off"));
        self.queue
            .push(at_ns, Happening::Stonith { by, life, target });
    }

    /// Nobody waits for queues to empty when a lease is given back, see
    /// [`World::audit_word`].
    fn note_release(&mut self, node: usize, datagram: &LeaseDatagram) {
        for message in &datagram.messages {
            if let LeaseMessage::Release { share, epoch, .. } = message {
                self.hosts[node].kernel.entries[Self::share_at(*share)].given_back = *epoch;
            }
        }
    }

    fn carry_out_share(&mut self, node: usize, share: usize, action: ShareAction) {
        if !matches!(
            action,
            ShareAction::Set { .. } | ShareAction::SetExpiry { .. }
        ) {
            self.trace(|_| format!("{node}: share {share}: {action:?}"));
        }
        match action {
            ShareAction::Set {
                role,
                epoch,
                generation,
                peer,
                expiry,
            } => {
                let before = self.hosts[node].kernel.entries[share];
                // The old peer's address stays, for what it may still send.
                let peer = peer.map(|peer| node_of(node, peer)).or(before.peer);
                let entry = Entry {
                    role,
                    epoch,
                    generation,
                    peer,
                    expiry,
                    latest: before.latest.max(generation),
                    ..before
                };
                self.set_share(node, share, entry);
            }
            ShareAction::SetExpiry { expiry, .. } => {
                self.hosts[node].kernel.entries[share].expiry = Some(expiry);
                self.check_voices(share);
            }
            ShareAction::Silence => {
                let now = self.hosts[node].clock.read(self.now_ns);
                self.hosts[node].kernel.entries[share].released = Some(now);
            }
            ShareAction::Reopen => self.reopen(node, share),
            ShareAction::Announce => self.announce(node, share),
            ShareAction::Revive { attempt } => self.revive(node, share, attempt),
            ShareAction::ReleaseGate { generation } => self.release_gate(node, share, generation),
            ShareAction::EndFlows { .. } => self.end_flows(node, share),
        }
    }

    fn carry_out_move(&mut self, node: usize, id: ShareId, action: MoveAction) {
        let share = Self::share_at(id);
        match action {
            MoveAction::CheckFlows { .. } => self.check_together(node, share),
            MoveAction::Ask { wish } => self.ask_move(node, id, wish),
            MoveAction::Ended { outcome } => self.note_move(node, id, outcome.is_ok()),
            MoveAction::ResetUnprotected => {
                self.trace(|_| format!("{node}: share {share}: {action:?}"));
                self.reset_unprotected(node, share);
            }
            MoveAction::HandOver => {
                self.trace(|_| format!("{node}: share {share}: {action:?}"));
                self.say_all(node, share);
            }
            MoveAction::Resume => {
                self.trace(|_| format!("{node}: share {share}: {action:?}"));
                self.resume(node, share);
            }
        }
    }

    fn carry_out_flow(&mut self, node: usize, action: FlowAction) {
        self.trace(|_| format!("{node}: {action:?}"));
        match action {
            FlowAction::Ungate { flow, .. } => {
                let (slot, irs) = slot_of(flow);
                self.ungate(node, slot, irs);
            }
            FlowAction::ResendHandshake { flow } => {
                let (slot, irs) = slot_of(flow);
                self.resend_handshake(node, slot, irs);
            }
        }
    }

    fn carry_out_twin(&mut self, node: usize, action: &TwinAction) {
        self.trace(|_| format!("{node}: {action:?}"));
        match *action {
            TwinAction::MarkDemoted { flow, .. } => {
                let (slot, irs) = slot_of(flow);
                self.mark_demoted(node, slot, irs);
            }
            TwinAction::End { flow, .. } => {
                let (slot, irs) = slot_of(flow);
                self.end_twin(node, slot, irs);
            }
            TwinAction::Poke { flow, snd_una } => {
                let (slot, irs) = slot_of(flow);
                self.poke_twin(node, slot, irs, snd_una.0);
            }
            // All servers say the same here.
            TwinAction::Compare { .. } => {}
        }
    }

    fn send_datagram(&mut self, from: usize, to: usize) -> Fate {
        let path = (Net::Control, from, to);
        self.network.fate(path, self.now_ns, &mut self.random)
    }

    /// Heartbeats to all peers, and what twins may have missed.
    pub(crate) fn tick(&mut self, node: usize, life: u64) {
        let host = &mut self.hosts[node];
        if host.life != life || host.agent.is_none() {
            return;
        }
        let next_ns = self.now_ns + self.plan.heartbeat_ns;
        self.queue.push(next_ns, Happening::Tick { node, life });
        if !host.beats() || !host.up {
            return;
        }
        host.beats += 1;
        let (incarnation, sequence, claims) = (host.incarnation, host.beats, host.claims);
        let decides = host.rest.sleep == Sleep::No;
        let sent = host.clock.read(self.now_ns);
        for to in (0..self.plan.nodes).filter(|to| *to != node) {
            let fate = self.send_datagram(node, to);
            for at_ns in [fate.at_ns, fate.again_ns].into_iter().flatten() {
                self.queue.push(
                    at_ns,
                    Happening::Beat {
                        from: node,
                        to,
                        incarnation,
                        sent: (sequence, sent),
                        claims,
                    },
                );
            }
        }
        if decides {
            self.digest(node);
        }
    }

    /// Where flows stand that have changed.
    fn digest(&mut self, node: usize) {
        for share in 0..self.plan.shares {
            let entry = &self.hosts[node].kernel.entries[share];
            if entry.role != Role::Owner || entry.generation.is_none() {
                continue;
            }
            let changes = self.changed_flows(node, share);
            if !changes.is_empty() {
                let id = Self::share_id(share);
                self.input(node, |agent, now| agent.handle_changes(id, &changes, now));
            }
            self.offer_candidates(node, share);
        }
    }

    /// Queues the next deadline of an agent.
    pub(crate) fn set_alarm(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        let due = host.agent.as_ref().and_then(Node::poll_timeout);
        let Some(due) = due else {
            return;
        };
        // A thread does not wake up at once.
        let at_ns = host.clock.reaches(due).max(self.now_ns + 5_000);
        if at_ns < host.rest.wake_ns {
            host.rest.wake_ns = at_ns;
            let life = host.life;
            self.queue.push(at_ns, Happening::Wake { node, life });
        }
    }

    pub(crate) fn wake(&mut self, node: usize, life: u64) {
        let host = &mut self.hosts[node];
        if host.life != life || host.rest.wake_ns > self.now_ns {
            return;
        }
        host.rest.wake_ns = u64::MAX;
        if !host.thinks() {
            return;
        }
        let now = host.clock.read(self.now_ns);
        let due = host.agent.as_ref().and_then(Node::poll_timeout);
        if due.is_some_and(|due| due <= now) {
            self.input(node, Node::handle_timeout);
        } else {
            self.set_alarm(node);
        }
    }
}
