//! The driver's loop: wait, feed, drain.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use godwit_core::{FlowEvent, FlowEventKind, MonoTime, PeerId};
use godwit_wire::{GoodbyeReason, Message};
use tokio::sync::oneshot;

use super::{Driver, End};
use crate::clock;
use crate::input::{Input, Inputs, Query};

/// How often is looked for what was not heard: flows that ended.
const HOUSEKEEPING: Duration = Duration::from_secs(10);

/// Inputs that are fed before the clock is looked at: about a millisecond.
const BATCH: usize = 256;

/// Inputs after which peers are told what follows, though there are more.
const GATHERED: usize = 16;

/// How the driver came to its end.
#[derive(Debug)]
pub(super) enum Next {
    Continue,
    Stop(GoodbyeReason, Option<oneshot::Sender<()>>),
}

impl Driver {
    /// Runs until it is told to stop.
    pub fn run(mut self, inputs: &Inputs) -> End {
        self.drain();
        loop {
            let next = self.step(inputs);
            self.drain();
            if let Next::Stop(reason, done) = next {
                self.get_ready(reason, inputs);
                let end = self.quit(reason);
                if let Some(done) = done {
                    // Whoever asked may have gone.
                    let _ = done.send(());
                }
                return end;
            }
        }
    }

    /// What is queued first, then time: a heartbeat that has arrived must not
    /// be judged as missing. A steady stream of input can't stop the clock.
    pub(super) fn step(&mut self, inputs: &Inputs) -> Next {
        self.peers.flush();
        let mut waited = inputs.recv_timeout(self.patience());
        let (mut fed, mut told) = (0, 0);
        while fed < BATCH {
            match waited {
                Ok(input) => {
                    fed += input.count();
                    if let stop @ Next::Stop(..) = self.feed(input) {
                        return stop;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    return Next::Stop(GoodbyeReason::Shutdown, None);
                }
            }
            self.drain();
            if fed - told >= GATHERED {
                self.peers.flush();
                told = fed;
            }
            waited = inputs.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
        // Who was heard while the last of these was fed is not silent.
        while let Some(input) = inputs.try_urgent() {
            if let stop @ Next::Stop(..) = self.feed(input) {
                return stop;
            }
            self.drain();
        }
        self.peers.flush();
        let now = clock::now();
        self.look_at_the_clock(now);
        if self.node.poll_timeout().is_some_and(|due| due <= now) {
            self.node.handle_timeout(now);
        }
        self.tick(now);
        Next::Continue
    }

    /// An agent that was started at another time gives way to one of now.
    fn look_at_the_clock(&mut self, now: MonoTime) {
        if let Some(look) = self.era.look(&mut self.node, &self.config, now) {
            let people = (&*self.config, &self.events);
            self.facts.note(look.into(), people, &mut self.node, now);
        }
    }

    fn patience(&mut self) -> Duration {
        let now = clock::now();
        if self.shares.revival_under_way().is_some() || self.dismissals.are_under_way() {
            return Duration::ZERO;
        }
        let core = self
            .node
            .poll_timeout()
            .map_or(HOUSEKEEPING, |due| due.since(now));
        core.min(self.digest.due().since(now))
            .min(self.servers.due().since(now))
            .min(self.canaries.due().since(now))
            .min(self.comparisons.due(now).since(now))
            .min(self.rejoins.due().since(now))
            .min(
                self.replays
                    .due()
                    .map_or(HOUSEKEEPING, |due| due.since(now)),
            )
            .min(
                self.exports
                    .due()
                    .map_or(HOUSEKEEPING, |due| due.since(now)),
            )
            .min(
                self.commits
                    .poll_timeout()
                    .map_or(HOUSEKEEPING, |due| due.since(now)),
            )
            .min(self.loads.due().map_or(HOUSEKEEPING, |due| due.since(now)))
            .min(self.housekeeping.since(now))
    }

    fn feed(&mut self, input: Input) -> Next {
        let now = clock::now();
        match input {
            Input::Heartbeat { peer, beat, at } => {
                self.placing.note_beat(peer, &beat);
                self.servers.note_beat(peer, &beat);
                self.node.handle_heartbeat(peer, &beat, at);
            }
            Input::Lease { peer, datagram } => self.node.handle_lease(peer, &datagram, now),
            Input::Stonith { peer, outcome } => self.node.handle_stonith(peer, outcome, now),
            Input::Unanswered(question) => self.ask_after(question),
            Input::Message { peer, message } => self.hear(peer, &message, now),
            Input::Link { peer, link } => {
                // What was under way on the old link is lost.
                self.digest.forget();
                self.exports.forget();
                self.awaited_twins.forget();
                self.commits.handle_link_change();
                self.resolver.hurry();
                self.node.handle_link(peer, link, now);
            }
            Input::Flow(event) => self.feed_flow(event, now),
            Input::Exit(exit) => self.feed_exit(&exit, now),
            Input::ListenerClosed => self.servers.note_closed(now),
            Input::Stopped(hint) => self.standstill.note(hint),
            Input::Standstill(stands) => {
                self.digest.note_standstill(stands);
                self.comparisons.note_standstill(stands);
            }
            Input::Neighbour { peer, mac } => self.find_peer(peer, mac),
            Input::Census(census) => self.apply_census(&census, now),
            Input::Gone(gone) => self.forget_gone(gone, now),
            Input::Facts(seen) => {
                self.leases.note(&seen);
                let people = (&*self.config, &self.events);
                self.facts.note(seen, people, &mut self.node, now);
            }
            Input::Place { ifindex, mac } => self.follow_place(ifindex, mac),
            Input::LinkChanged => self.placing.doubt_paths(now),
            Input::Announce => self.announce_owned(),
            Input::Claimed { address, mac } => self.defend(address, mac),
            // Of a director.
            Input::Devices | Input::Exceptions(_) => {}
            Input::Query(Query::Status(answer)) => self.answer_status(answer, now),
            Input::Query(Query::Flows(answer)) => self.answer_flows(answer, now),
            Input::Move(wish) => self.start_move(wish, now),
            Input::Drain(wish) => wish.refuse(),
            Input::MoveFlows(wish) => self.start_flow_moves(wish, now),
            Input::Handoff { share, report } => {
                self.node.handle_handoff_report(share, report, now);
            }
            Input::Several(inputs) => {
                for input in inputs {
                    if let stop @ Next::Stop(..) = self.feed(input) {
                        return stop;
                    }
                    self.drain();
                }
            }
            Input::Commit(commit) => self.begin_commit(*commit, now),
            Input::CommitHeld {
                share,
                flow,
                number,
            } => self.answer_held(share, flow, number),
            Input::Next { config, identity } => self.next = Some((config, identity)),
            Input::Stop { reason, done } => return Next::Stop(reason, done),
        }
        Next::Continue
    }

    /// What a peer says over its link: about the data paths to them, all else to the core.
    fn hear(&mut self, peer: PeerId, message: &Message, now: MonoTime) {
        if let Message::Question { flow, number, word } = *message {
            return self.hear_of_question(peer, (flow, number), word);
        }
        if let Message::Tags(word) = *message {
            return self.hear_of_tags(peer, word);
        }
        if let Message::Place(mac) = *message {
            return self.resolver.hear(peer, mac);
        }
        if let Message::Hello(hello) = message {
            let places = &self.resolver.places;
            places.greet(peer, hello, self.mac, &self.peers);
            self.offer_tags(peer, hello);
        }
        self.node.handle_message(peer, message, now);
    }

    pub(super) fn feed_flow(&mut self, event: FlowEvent, now: MonoTime) {
        if event.kind == FlowEventKind::Ended {
            self.digest.note_end(event);
            self.exports.note_end(event.flow);
            self.apps.note_end(event.flow.key);
            self.awaited_twins.note_end(event.flow);
            self.commits.forget(event.flow.key);
            self.end_commits(|_, flow| flow == event.flow);
        }
        if event.kind == FlowEventKind::Left {
            self.awaited_twins.note_end(event.flow);
        }
        if self.holds_back(event) {
            return;
        }
        self.node.handle_flow_event(event, now);
    }

    /// What is due by the clock and is none of the core's business.
    fn tick(&mut self, now: MonoTime) {
        let people = (&*self.config, &self.events);
        self.facts.settle(people, &mut self.node, now);
        if self.digest.due() <= now {
            let ifindex = self.ifindex;
            let (datapath, shares) = (&self.datapath, &self.shares);
            for (share, changes) in self.digest.collect(datapath, shares, ifindex, now) {
                self.node.handle_changes(share, &changes, now);
            }
            for (share, entries) in self.digest.output(&self.datapath, &self.shares, now) {
                self.node.handle_output(share, &entries, now);
            }
            for event in self.digest.overdue() {
                tracing::debug!(flow = %event.flow.key, kind = ?event.kind, "not reported by the data path");
                self.node.handle_flow_event(event, now);
            }
        }
        self.place(now);
        if self.loads.due().is_some_and(|due| due <= now) {
            self.weigh(now);
        }
        self.go_on_reviving(now);
        self.go_on_dismissing();
        self.compare(now);
        self.farewells.carry_out(self.ifindex, &self.datapath, now);
        if self.rejoins.due() <= now {
            self.offer_candidates(now);
        }
        if self.replays.due().is_some_and(|due| due <= now) {
            self.replay(now);
        }
        if self.exports.due().is_some_and(|due| due <= now) {
            self.send_snapshots(now);
        }
        self.look_after_commits(now);
        if self.servers.due() <= now {
            self.look_for_listeners(now);
        }
        if self.canaries.due() <= now {
            self.send_canaries(now);
        }
        if self.housekeeping <= now {
            self.housekeeping = now.saturating_add(HOUSEKEEPING);
            self.find_lost_ends(now);
            self.follow_origins();
            self.events.sum_up();
        }
    }

    pub(super) fn drain(&mut self) {
        while let Some(action) = self.node.poll_action() {
            self.carry_out(action);
        }
        let mut event = self.node.poll_event();
        if event.is_some() {
            // People are told afterwards: it takes longer, and clients do not wait for them.
            self.peers.flush();
        }
        while let Some(told) = event {
            self.note_takeover(&told);
            self.note_beginning(&told);
            self.events.publish(&told);
            event = self.node.poll_event();
        }
        self.post_claims();
    }
}
