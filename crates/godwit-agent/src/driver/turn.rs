//! The driver's loop: wait, feed, drain; and what is done at its end.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use godwit_core::{Command, Link, MonoTime, PeerId};
use godwit_wire::{GoodbyeReason, Message, NetworkMessage, PeerMessage, Question};
use tokio::sync::oneshot;

use super::bereft::{self, note_beginning};
use super::detach::detach;
use super::devices::{announce_owned, defend, follow_place};
use super::flow_feed::FlowFeed;
use super::ground::Ground;
use super::leash::apply_census;
use super::leave::{
    PATIENCE, hand_over_the_leaving, other_side, parting, retire_from_the_leaving, retiring,
};
use super::resets::reset_unserved;
use super::revive::go_on_reviving;
use super::snapshots::answer_held;
use super::sweep::{HOUSEKEEPING, Sweep, forget_gone};
use super::{Driver, End, Remains};
use crate::clock;
use crate::facts::Seen;
use crate::input::{Input, Inputs, Query};
use crate::membership::take_leave;

/// Inputs that are fed before the clock is looked at: about a millisecond.
const BATCH: usize = 256;

/// Inputs after which peers are told what follows, though there are more.
const GATHERED: usize = 16;

/// How the driver came to its end.
#[derive(Debug)]
enum Next {
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

    /// Goes on until that is done, but not for long: the end comes all the same. Whoever asks
    /// to stop again is served by this end.
    fn go_on_until(&mut self, inputs: &Inputs, mut is_done: impl FnMut(&Ground) -> bool) {
        let end = clock::now().saturating_add(PATIENCE);
        self.drain();
        while !is_done(&self.ground) && clock::now() < end {
            let _: Next = self.step(inputs);
            self.drain();
        }
    }

    /// Asks the voters for what the end needs: a lease that outlasts a restart.
    /// Without an answer the lease goes on to run out.
    fn get_ready(&mut self, reason: GoodbyeReason, inputs: &Inputs) {
        let next = self.ending.next.as_ref();
        if let Some(next) = next.map(|(next, _)| next.clone()) {
            let mut answers = hand_over_the_leaving(&mut self.ground, &mut self.moves, &next);
            self.go_on_until(inputs, |_| answers.are_there());
            retire_from_the_leaving(&mut self.ground, &next);
            self.go_on_until(inputs, |ground| retiring(ground, &next).is_empty());
        }
        let prepare = Command::Prepare(reason);
        self.ground.node.handle_command(prepare, clock::now());
        self.go_on_until(inputs, |ground| {
            ground.node.is_prepared(reason, clock::now())
        });
    }

    /// The last words.
    fn quit(mut self, asked: GoodbyeReason) -> End {
        let reason = parting(&self.ground, asked);
        if reason != asked {
            tracing::warn!("no standby is in sync: connections stay here, without Godwit");
        }
        self.finish_dismissals();
        self.ending.restarts = reason == GoodbyeReason::Restart;
        let shares = self.ground.node.share_status();
        let others = shares.filter_map(other_side).collect();
        let begun = self.ground.node.begun();
        if let Some((next, _)) = &self.ending.next {
            take_leave(&mut self.ground.node, next);
        }
        let goodbye = Command::Goodbye(reason);
        self.ground.node.handle_command(goodbye, clock::now());
        self.drain();
        self.ground.peers.flush();
        self.finish_dismissals();
        let kit = self.handoffs.end();
        self.snapshots.end();
        let hooks = self.lasting.follow.stop();
        let bound_until = self.ground.node.bound_until(clock::now());
        let next = self.ending.next.take();
        let reloaded = next.and_then(|(config, identity)| Some((config, identity?)));
        let Ground {
            config,
            node,
            mut datapath,
            voice,
            ..
        } = self.ground;
        if reason == GoodbyeReason::Detach {
            if let Err(error) = detach(&config, voice.ifindex, datapath) {
                tracing::error!(error = %error, "not everything could be detached");
            }
            return End {
                bound_until,
                memory: None,
                next: None,
            };
        }
        datapath.hooks = hooks;
        let remains = Remains {
            place: self.lasting.stand,
            interface: self.lasting.interface,
            datapath,
            events: self.lasting.records,
            voice,
            origins: self.lasting.origins,
            kit,
            others,
            begun,
        };
        End {
            bound_until,
            memory: node.into_memory(),
            next: reloaded.map(|fresh| (fresh, remains)),
        }
    }

    /// What is queued first, then time: a heartbeat that has arrived must not
    /// be judged as missing. A steady stream of input can't stop the clock.
    fn step(&mut self, inputs: &Inputs) -> Next {
        self.ground.peers.flush();
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
                self.ground.peers.flush();
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
        self.ground.peers.flush();
        let now = clock::now();
        self.look_at_the_clock(now);
        if self
            .ground
            .node
            .poll_timeout()
            .is_some_and(|due| due <= now)
        {
            self.ground.node.handle_timeout(now);
        }
        self.tick(now);
        Next::Continue
    }

    /// An agent that was started at another time gives way to one of now.
    fn look_at_the_clock(&mut self, now: MonoTime) {
        if let Some(look) = self
            .era
            .look(&mut self.ground.node, &self.ground.config, now)
        {
            let people = (&*self.ground.config, &self.ground.events);
            self.outside
                .facts
                .note(look.into(), people, &mut self.ground.node, now);
        }
    }

    fn patience(&mut self) -> Duration {
        let now = clock::now();
        if self.ground.shares.revival_under_way().is_some() || self.dismissals.are_under_way() {
            return Duration::ZERO;
        }
        let sometimes = [
            self.ground.node.poll_timeout(),
            self.snapshots.due(),
            self.requests.due(),
        ];
        let always = [
            self.digest.due(),
            self.twins.due(now),
            self.rejoins.due(),
            self.servers.due(),
            self.canaries.due(),
            self.sweep.due(),
        ];
        let first = sometimes.into_iter().flatten().chain(always).min();
        first.map_or(HOUSEKEEPING, |due| due.since(now))
    }

    fn feed(&mut self, input: Input) -> Next {
        let now = clock::now();
        match input {
            Input::Heartbeat { peer, beat, at } => {
                self.requests.note_beat(peer, &beat);
                self.servers.note_beat(peer, &beat);
                self.ground.node.handle_heartbeat(peer, &beat, at);
            }
            Input::Lease { peer, datagram } => self.ground.node.handle_lease(peer, &datagram, now),
            Input::Stonith { peer, outcome } => self.ground.node.handle_stonith(peer, outcome, now),
            Input::Unanswered(question) => self.requests.ask_after(&self.ground, question),
            Input::Message { peer, message } => self.hear(peer, &message, now),
            Input::Link { peer, link } => self.feed_link(peer, link, now),
            Input::Flow(event) => self.flow_feed().feed(event, now),
            Input::Exit(exit) => self.servers.feed_exit(&mut self.ground, &exit, now),
            Input::ListenerClosed => self.servers.note_closed(now),
            Input::Stopped(hint) => self.standstill.note(hint),
            Input::Standstill(stands) => {
                self.digest.note_standstill(stands);
                self.twins.note_standstill(stands);
            }
            Input::Neighbour { peer, mac } => self.find_peer(peer, mac),
            Input::Census(census) => apply_census(&mut self.ground, &census, now),
            Input::Gone(gone) => forget_gone(&mut self.flow_feed(), gone, now),
            Input::Facts(seen) => self.feed_facts(seen, now),
            Input::Place { ifindex, mac } => {
                follow_place(&mut self.ground, ifindex, mac);
                self.canaries.follow_origins(&self.ground);
            }
            Input::LinkChanged => self.requests.doubt_paths(now),
            Input::Announce => announce_owned(&self.ground),
            Input::Claimed { address, mac } => defend(&self.ground, address, mac),
            // Of a director.
            Input::Devices | Input::Exceptions(_) => {}
            Input::Query(Query::Status(answer)) => self.answer_status(answer, now),
            Input::Query(Query::Flows(answer)) => self.answer_flows(answer, now),
            Input::Move(wish) => self.moves.start(&mut self.ground, wish, now),
            Input::Drain(wish) => wish.refuse(),
            Input::MoveFlows(wish) => self.handoffs.start(&mut self.ground, wish, now),
            Input::Handoff { share, report } => {
                self.ground.node.handle_handoff_report(share, report, now);
            }
            Input::Several(inputs) => {
                for input in inputs {
                    if let stop @ Next::Stop(..) = self.feed(input) {
                        return stop;
                    }
                    self.drain();
                }
            }
            Input::Commit(commit) => {
                self.snapshots.begin_commit(&mut self.ground, *commit, now);
            }
            Input::CommitHeld {
                share,
                flow,
                number,
            } => answer_held(&mut self.ground, share, flow, number),
            Input::Unserved { share, flow } => reset_unserved(&mut self.ground, share, flow),
            Input::Next { config, identity } => self.ending.next = Some((config, identity)),
            Input::Stop { reason, done } => return Next::Stop(reason, done),
        }
        Next::Continue
    }

    /// What was under way on the old link is lost.
    fn feed_link(&mut self, peer: PeerId, link: Link, now: MonoTime) {
        self.digest.forget();
        self.snapshots.note_link_change();
        self.ground.resolver.hurry();
        self.ground.node.handle_link(peer, link, now);
    }

    fn feed_facts(&mut self, seen: Seen, now: MonoTime) {
        self.outside.leases.note(&seen);
        let people = (&*self.ground.config, &self.ground.events);
        let node = &mut self.ground.node;
        self.outside.facts.note(seen, people, node, now);
    }

    /// What a peer says over its link: about the data paths to them, all else to the core.
    fn hear(&mut self, peer: PeerId, message: &Message, now: MonoTime) {
        if let Message::Question(Question { flow, number, word }) = *message {
            let question = (flow, number);
            return self
                .requests
                .hear_of_question(&self.ground, peer, question, word);
        }
        if let Message::Network(message) = *message {
            return match message {
                NetworkMessage::Tags(word) => self.requests.hear_of_tags(&self.ground, peer, word),
                NetworkMessage::Place(mac) => self.ground.resolver.hear(peer, mac),
            };
        }
        if let Message::Peer(PeerMessage::Hello(hello)) = message {
            let places = &self.ground.resolver.places;
            places.greet(peer, hello, self.ground.voice.mac, &self.ground.peers);
            self.requests.greet(&self.ground, peer, hello, now);
        }
        self.ground.node.handle_message(peer, message, now);
    }

    fn flow_feed(&mut self) -> FlowFeed<'_> {
        let (_, feed) = self.sweep();
        feed
    }

    fn sweep(&mut self) -> (&mut Sweep, FlowFeed<'_>) {
        let feed = FlowFeed {
            ground: &mut self.ground,
            digest: &mut self.digest,
            snapshots: &mut self.snapshots,
        };
        (&mut self.sweep, feed)
    }

    /// What is due by the clock and is none of the core's business.
    fn tick(&mut self, now: MonoTime) {
        let people = (&*self.ground.config, &self.ground.events);
        self.outside
            .facts
            .settle(people, &mut self.ground.node, now);
        self.digest.tick(&mut self.ground, now);
        self.requests.tick(&self.ground, now);
        go_on_reviving(&mut self.ground, now);
        self.go_on_dismissing();
        self.twins.tick(&mut self.ground, now);
        let is_idle = self.digest.is_idle();
        self.rejoins
            .tick(&mut self.ground, &self.snapshots, is_idle, now);
        self.snapshots.tick(&mut self.ground, now);
        if self.servers.due() <= now {
            self.servers.look_for_listeners(&mut self.ground, now);
        }
        if self.canaries.due() <= now {
            self.canaries.send_canaries(&mut self.ground, now);
        }
        if self.sweep.due() <= now {
            let (sweep, mut feed) = self.sweep();
            sweep.tick(&mut feed, now);
            self.canaries.follow_origins(&self.ground);
            self.ground.events.sum_up();
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.ground.node.poll_action() {
            self.carry_out(action);
        }
        let mut event = self.ground.node.poll_event();
        if event.is_some() {
            // People are told afterwards: it takes longer, and clients do not wait for them.
            self.ground.peers.flush();
        }
        while let Some(told) = event {
            self.note_takeover(&told);
            if let Some(lost) = note_beginning(&mut self.ground, &told) {
                // Nothing is said before this node owns.
                self.finish_dismissals();
                bereft::tell(&mut self.ground, &lost);
            }
            self.ground.events.publish(&told);
            event = self.ground.node.poll_event();
        }
        if !self.ending.restarts {
            self.servers.post_claims(&self.ground, &self.outside.board);
        };
    }
}
