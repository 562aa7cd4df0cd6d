//! The running director: inputs in, tables out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use godwit_core::detector::State;
use godwit_core::director::{BackendId, BackendState, Change, Health, Roster};
use godwit_core::{Beat, Command, MonoTime, Node, PeerId, VoterMemory};
use godwit_wire::{
    Epoch, GoodbyeReason, Heartbeat, MacAddr, Message, NetworkMessage, PeerMessage, ShareClaim,
    ShareId,
};
use tokio::sync::oneshot;

use super::backends::{Backends, serving};
use super::fellows::Fellows;
use super::install::{Installed, Remains};
use super::place::{Followed, Place};
use super::reach::Reach;
use super::tables::Tables;
use crate::bystander::Bystander;
use crate::clock;
use crate::config::{Config, DirectorConfig};
use crate::directed::{BackendDrain, DirectorReport, DrainWish};
use crate::driver::neighbours::Resolver;
use crate::edge::Edge;
use crate::facts::Seen;
use crate::flows::Flows;
use crate::heartbeat::{LeaseSender, ShareBoard};
use crate::input::{Inbox, Input, Inputs, Query};
use crate::membership::{self, Life, node_config, take_leave};
use crate::moves::MoveRefused;
use crate::reload::Fresh;
use crate::status::{DataPathReport, PeerReport, Status};
use crate::surroundings::FactBoard;
use crate::tagging::Tagging;

/// Longest wait; nothing depends on it.
const IDLE: Duration = Duration::from_secs(1);

pub(super) struct Front {
    pub(super) config: Arc<Config>,
    pub(super) own: DirectorConfig,
    node: Node,
    pub(super) roster: Roster,
    pub(super) backends: Backends,
    pub(super) fellows: Fellows,
    pub(super) claims: Claims,
    /// Entries of which the program could not tell, when they were last told of.
    pub(super) lost: u64,
    known: Known,
    /// Which back-ends what it sends does not reach.
    pub(super) reach: Reach,
    pub(super) tables: Tables,
    pub(super) tagging: Tagging,
    pub(super) place: Place,
    resolver: Resolver,
    inbox: Inbox,
    pub(super) out: Bystander,
    facts: FactBoard,
    /// Which life this is, and since when.
    born: (u64, MonoTime),
    /// The changed file, if this process goes on with it.
    next: Option<Fresh>,
}

/// What heartbeats say of this one.
pub(super) struct Claims {
    pub(super) claimed: Vec<ShareClaim>,
    pub(super) board: ShareBoard,
}

/// What was known of back-ends at the last look.
struct Known {
    /// Under which epoch the shares of back-ends are owned that stand by for each other.
    epochs: BTreeMap<ShareId, Epoch>,
    /// What these have had another one has taken over.
    away: BTreeSet<BackendId>,
    /// What the core was told last of each back-end.
    told: Vec<Option<Health>>,
    /// Who was missing.
    silent: BTreeSet<BackendId>,
}

/// How it came to its end.
pub(super) struct End {
    pub(super) reason: GoodbyeReason,
    /// Answered when all is done.
    pub(super) done: Option<oneshot::Sender<()>>,
    /// Until when its votes bind.
    pub(super) bound_until: MonoTime,
}

enum Next {
    Continue,
    Stop(GoodbyeReason, Option<oneshot::Sender<()>>),
}

impl Front {
    pub(super) fn new(
        installed: Installed,
        roster: Roster,
        life: &Life,
        (edge, leases): (&Edge, LeaseSender),
        (resolver, inbox): (Resolver, Inbox),
    ) -> Self {
        let now = clock::now();
        let holds = installed.holds;
        Self {
            fellows: Fellows::new(&installed.config, holds, (now, installed.own.grace)),
            own: installed.own,
            claims: Claims {
                claimed: Vec::new(),
                board: edge.board.clone(),
            },
            lost: installed.programs.counters.by_name("not_shared"),
            node: membership::node(
                &installed.config,
                &node_config(&installed.config, life),
                now,
            ),
            roster,
            known: Known {
                epochs: BTreeMap::new(),
                away: BTreeSet::new(),
                told: installed.backends.iter().map(|_| None).collect(),
                silent: BTreeSet::new(),
            },
            reach: Reach::new(
                installed.config.node.name,
                installed.backends.iter().count(),
            ),
            tagging: Tagging::take_up(&installed.config, &installed.programs.trusts),
            config: installed.config,
            backends: installed.backends,
            tables: Tables::new(installed.programs, installed.numbers),
            place: Place::new(installed.interface, installed.frames, holds, now),
            resolver,
            inbox,
            out: Bystander {
                peers: edge.peers.clone(),
                leases,
                events: edge.events.clone(),
            },
            facts: FactBoard::default(),
            born: (life.incarnation, now),
            next: None,
        }
    }

    /// The same with what an earlier life has voted for.
    pub(super) fn remembering(mut self, memory: Option<VoterMemory>) -> Self {
        self.node = self.node.remembering(memory);
        self
    }

    /// The changed file, if there is one, what another life goes on with, and what this one
    /// has voted for.
    pub(super) fn into_remains(self) -> (Option<Fresh>, Remains, Option<VoterMemory>) {
        let remains = Remains {
            programs: self.tables.programs,
            frames: self.place.into_frames(),
        };
        (self.next, remains, self.node.into_memory())
    }

    pub(super) fn run(&mut self, inputs: &Inputs) -> End {
        loop {
            self.drain();
            match self.turn(inputs) {
                Next::Continue => {}
                Next::Stop(reason, done) => {
                    let now = clock::now();
                    if let Some((next, _)) = &self.next {
                        take_leave(&mut self.node, next);
                    }
                    self.node.handle_command(Command::Goodbye(reason), now);
                    self.out.drain(&mut self.node);
                    return End {
                        reason,
                        done,
                        bound_until: self.node.bound_until(now),
                    };
                }
            }
        }
    }

    /// Takes all that is queued before it lets time pass: who has been heard is not silent.
    fn turn(&mut self, inputs: &Inputs) -> Next {
        let mut waited = inputs.recv_timeout(self.patience());
        loop {
            match waited {
                Ok(Input::Stop { reason, done }) => return Next::Stop(reason, done),
                Ok(input) => self.feed(input),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    return Next::Stop(GoodbyeReason::Restart, None);
                }
            }
            self.drain();
            waited = inputs.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
        while let Some(input) = inputs.try_urgent() {
            self.feed(input);
            self.drain();
        }
        let now = clock::now();
        self.node.handle_day(clock::day(), now);
        if self.node.poll_timeout().is_some_and(|due| due <= now) {
            self.node.handle_timeout(now);
        }
        let people = (&*self.config, &self.out.events);
        self.facts.settle(people, &mut self.node, now);
        self.roster.handle_timeout(now);
        self.look(now);
        self.prove(now);
        self.look_at_fellows(now);
        self.tables
            .handle_timeout(&self.backends, &self.roster, now);
        if self.place.is_missed(now) {
            self.follow(now);
        }
        self.place.handle_timeout(&self.config, now);
        Next::Continue
    }

    fn patience(&self) -> Duration {
        let now = clock::now();
        let dues = [
            self.node.poll_timeout(),
            self.roster.poll_timeout(),
            self.place.poll_timeout(),
            self.fellows.poll_timeout(),
            self.tables.poll_timeout(),
            self.reach.poll_timeout(),
        ];
        let dues = dues.into_iter().flatten().map(|due| due.since(now));
        dues.min().map_or(IDLE, |due| due.min(IDLE))
    }

    pub(super) fn note_facts(&mut self, seen: Seen, now: MonoTime) {
        self.out.leases.note(&seen);
        let people = (&*self.config, &self.out.events);
        self.facts.note(seen, people, &mut self.node, now);
    }

    fn feed(&mut self, input: Input) {
        let now = clock::now();
        match input {
            Input::Heartbeat { peer, beat, at } => {
                self.node.handle_heartbeat(peer, &beat, at);
                self.hear(peer, &beat, at);
                self.hear_fellow(peer, &beat);
            }
            Input::Lease { peer, datagram } => self.node.handle_lease(peer, &datagram, now),
            Input::Message { peer, message } => self.hear_message(peer, &message, now),
            Input::Exceptions(exceptions) => self.share(&exceptions),
            Input::Several(inputs) => {
                for input in inputs {
                    self.feed(input);
                    self.drain();
                }
            }
            Input::Link { peer, link } => {
                self.resolver.hurry();
                self.node.handle_link(peer, link, now);
            }
            Input::Neighbour { peer, mac } => self.find(peer, mac),
            Input::Query(Query::Status(answer)) => {
                // Whoever asked may have gone.
                let _ = answer.send(self.status(now));
            }
            Input::Query(Query::Flows(answer)) => {
                let _ = answer.send(Flows::new(self.config.node.name.as_str(), Vec::new()));
            }
            Input::Drain(wish) => self.drain_backend(wish),
            Input::Facts(seen) => self.note_facts(seen, now),
            Input::Devices => self.follow(now),
            Input::Move(wish) => {
                let _ = wish.reply.send(Err(nothing_moves()));
            }
            Input::MoveFlows(wish) => {
                let _ = wish.reply.send(Err(nothing_moves()));
            }
            // Of a server, which a director is not.
            Input::Flow(_)
            | Input::Exit(_)
            | Input::ListenerClosed
            | Input::Stopped(_)
            | Input::Standstill(_)
            | Input::Place { .. }
            | Input::LinkChanged
            | Input::Announce
            | Input::Claimed { .. }
            | Input::Unanswered(_)
            | Input::Census(_)
            | Input::Gone(_)
            | Input::Handoff { .. }
            | Input::Stonith { .. }
            | Input::Commit(_)
            | Input::CommitHeld { .. }
            | Input::Unserved { .. }
            | Input::Stop { .. } => {}
            Input::Next { config, identity } => self.next = identity.map(|it| (config, it)),
        }
    }

    fn hear_message(&mut self, peer: PeerId, message: &Message, now: MonoTime) {
        if let Message::Director(word) = message {
            return self.hear_word(peer, word);
        }
        if let Message::Network(message) = *message {
            return match message {
                NetworkMessage::Tags(word) => self.hear_of_tags(peer, word),
                NetworkMessage::Place(mac) => self.resolver.hear(peer, mac),
            };
        }
        let Message::Peer(PeerMessage::Hello(hello)) = message else {
            return self.node.handle_message(peer, message, now);
        };
        let places = &self.resolver.places;
        places.greet(peer, hello, self.place.mac(), &self.out.peers);
        self.offer_tags(peer, hello);
        self.node.handle_message(peer, message, now);
        self.follow_version(peer);
        if self.fellows.place_of(peer).is_some() {
            self.tell_all(peer);
        }
    }

    /// Another version may tell less of its connections.
    fn follow_version(&mut self, peer: PeerId) {
        let status = self.node.peer_status().nth(usize::from(peer.0));
        let tells = status.is_some_and(|status| status.tells_connections);
        let Some(id) = self.backends.of_peer(peer) else {
            return;
        };
        if let Some(known) = self.backends.get_mut(id) {
            known.tells = tells;
        }
    }

    /// Only who is heard is asked about connections: a client waits for the answer.
    fn follow_tellers(&mut self) {
        let state = |id| self.roster.state(id);
        let now = clock::now();
        let is_heard = |id| {
            let is_alive = matches!(state(id), BackendState::Taking | BackendState::Draining);
            is_alive && !self.reach.is_cut_off(id, now) && !self.reach.is_unproved(id)
        };
        let all = self.backends.iter();
        let changed = all.filter(|(id, it)| it.is_asked != (it.tells && is_heard(*id)));
        let changed: Vec<_> = changed.map(|(id, _)| id).collect();
        for id in changed {
            if let Some(known) = self.backends.get_mut(id) {
                known.is_asked = !known.is_asked;
            }
            self.write_backend(id);
        }
    }

    /// A back-end's word counts while its heartbeats do, and once it is found on the link.
    fn hear(&mut self, peer: PeerId, beat: &Beat, at: MonoTime) {
        let Some(id) = self.backends.of_peer(peer) else {
            return;
        };
        if self.liveness(peer) != State::Alive {
            return;
        }
        let Some(known) = self.backends.get_mut(id).filter(|it| it.mac.is_some()) else {
            return;
        };
        let was_taking = self.known.told.get(usize::from(id.0)) == Some(&Some(Health::Taking));
        let settles = known.life.settles(beat.incarnation, was_taking, at);
        let shares = known.shares.clone();
        // One that has more shares than fit tells of them in turn.
        let is_whole = beat.shares.len() < Heartbeat::MAX_SHARES;
        let owned = self.believed(peer, beat, at);
        for (service, share) in shares {
            let is_all = is_whole && !settles;
            if let Some(serving) = serving(share, &beat.shares, &owned, is_all) {
                self.roster.handle_serving(id, service, serving);
            }
            let mut posts = owned
                .iter()
                .filter_map(|it| self.backends.post_of(it.share));
            let has = posts.any(|(of, _)| of == service);
            if has || is_all {
                self.roster.handle_having(id, service, has);
            }
        }
        self.hear_owner(id, &owned);
        let was_cut_off = self.reach.is_cut_off(id, at);
        let unheard = &mut self.reach.unheard;
        unheard.handle_beat(id, &beat.shares, is_whole, at);
        let is_cut_off = self.reach.is_cut_off(id, at);
        // What it is given would not arrive.
        let health = match is_cut_off {
            true => Health::Draining,
            false => Health::Taking,
        };
        if self.tell(id, health) && (is_cut_off || was_cut_off) {
            self.tell_cut_off(id, is_cut_off);
        }
        // Also if it is as before: who is heard shows that others are not.
        self.roster.handle_health(id, health, at);
    }

    fn tell_cut_off(&self, id: BackendId, is_cut_off: bool) {
        let name = self.backends.get(id).map(|known| known.name.to_string());
        let fields = [("backend", name.as_deref().unwrap_or_default())];
        let event = match is_cut_off {
            true => "backend_cut_off",
            false => "backend_reached",
        };
        self.out.events.publish_own(event, is_cut_off, fields);
    }

    /// What it says that it owns, and may: shares of which it is the home or a standby. One
    /// back-end's key must not bring the clients of another service to it.
    fn believed(&self, peer: PeerId, beat: &Beat, at: MonoTime) -> Vec<ShareClaim> {
        let owned = beat.shares.iter();
        let may_own = |claim: &&ShareClaim| self.node.may_own(peer, claim, at);
        owned.filter(may_own).copied().collect()
    }

    /// It may have taken over what another one had, or have its own back.
    fn hear_owner(&mut self, by: BackendId, owned: &[ShareClaim]) {
        for claim in owned {
            let Some((service, id)) = self.backends.post_of(claim.share) else {
                continue;
            };
            let known = self.known.epochs.entry(claim.share).or_insert(claim.epoch);
            if claim.epoch >= *known {
                *known = claim.epoch;
                self.roster.handle_owner(service, id, by);
            }
        }
    }

    /// What another one takes over stays where it is until that has happened.
    fn farewell(&self, id: BackendId) -> Health {
        let followed = self.backends.get(id).is_some_and(|known| known.followed);
        if followed {
            Health::Silent
        } else {
            Health::Gone
        }
    }

    /// Who has fallen silent, or has said goodbye.
    fn look(&mut self, now: MonoTime) {
        let silent: Vec<_> = self
            .backends
            .iter()
            .filter_map(|(id, known)| match self.liveness(known.peer) {
                State::Failed => Some((id, Health::Silent)),
                State::Departed => Some((id, self.farewell(id))),
                // An agent that restarts has said so, and its server goes on.
                State::Unknown | State::Alive | State::Excused => None,
            })
            .collect();
        for (id, health) in silent {
            if self.tell(id, health) {
                self.roster.handle_health(id, health, now);
            }
        }
    }

    /// Whether that is news.
    fn tell(&mut self, id: BackendId, health: Health) -> bool {
        let told = self.known.told.get_mut(usize::from(id.0));
        told.is_some_and(|told| told.replace(health) != Some(health))
    }

    pub(super) fn liveness(&self, peer: PeerId) -> State {
        let mut peers = self.node.peer_status();
        let status = peers.nth(usize::from(peer.0));
        status.map_or(State::Unknown, |status| status.liveness)
    }

    fn find(&mut self, peer: PeerId, mac: MacAddr) {
        let Some(id) = self.backends.of_peer(peer) else {
            return;
        };
        if mac == self.place.mac() {
            // Frames would come back here for ever.
            let name = self.backends.get(id).map(|known| known.name.to_string());
            let fields = [
                ("backend", name.as_deref().unwrap_or_default()),
                ("reason", "own_address"),
            ];
            return self.out.events.publish_own("backend_refused", true, fields);
        }
        self.find_tagged(peer, mac);
        if self.backends.find(id, mac) && self.roster.is_there(id) {
            self.write_backend(id);
        }
    }

    /// The interface may be another one now.
    fn follow(&mut self, now: MonoTime) {
        let before = self.place.ifindex();
        let programs = &mut self.tables.programs;
        match self.place.follow(&self.config, programs, now) {
            Followed::Same => {}
            Followed::Lost => {
                let fields = [("interface", self.config.node.interface.as_str())];
                self.out.events.publish_own("interface_lost", true, fields);
            }
            Followed::Changed => {
                let fields = [("interface", self.config.node.interface.as_str())];
                let events = &self.out.events;
                events.publish_own("interface_changed", false, fields);
                self.tagging.lift(&self.tables.programs.trusts);
                self.reach.handle_change();
                let places = &self.resolver.places;
                places.tell_all(self.place.mac(), &self.out.peers);
                self.search_again(before);
            }
        }
    }

    /// Back-ends are looked for where the interface is now.
    fn search_again(&mut self, before: u32) {
        let index = self.place.ifindex();
        if index == before {
            return self.resolver.hurry();
        }
        let (places, inbox) = (self.resolver.places.clone(), self.inbox.clone());
        match Resolver::of_backends(&self.config, index, places, inbox) {
            Ok(resolver) => self.resolver = resolver,
            Err(error) => tracing::error!(%error, "back-ends are not looked for any more"),
        }
    }

    fn drain(&mut self) {
        self.out.drain(&mut self.node);
        while let Some(change) = self.roster.poll_change() {
            match change {
                Change::Backend { id, there: _ } => {
                    self.write_backend(id);
                    let lives = self.roster.lives(id);
                    let event = if lives {
                        "backend_there"
                    } else {
                        "backend_gone"
                    };
                    let name = self.backends.get(id).map(|known| known.name.to_string());
                    let fields = [("backend", name.as_deref().unwrap_or_default())];
                    self.out.events.publish_own(event, !lives, fields);
                }
                Change::Owner { service, id, owner } => {
                    self.tables
                        .write_owner(&self.backends, service, (id, owner));
                    self.tell_owner(id, owner);
                }
                Change::Slots { service, slots } => {
                    self.fellows.hurry(clock::now());
                    let slots = slots.into_iter();
                    self.tables.write_slots(&self.backends, service, slots);
                }
            }
        }
        self.tell_silent();
        self.follow_tellers();
    }

    /// Says whose connections are another one's now.
    fn tell_owner(&mut self, id: BackendId, owner: BackendId) {
        let is_news = if id == owner {
            self.known.away.remove(&id)
        } else {
            self.known.away.insert(id)
        };
        if !is_news {
            return;
        }
        let name = |id| self.backends.get(id).map(|known| known.name.to_string());
        let (Some(name), Some(owner)) = (name(id), name(owner)) else {
            return;
        };
        let fields = [("backend", name.as_str()), ("owner", owner.as_str())];
        let events = &self.out.events;
        events.publish_own("backend_owner", name != owner, fields);
    }

    /// Says who is missing since the last look.
    fn tell_silent(&mut self) {
        let is_silent = |id: &BackendId| self.roster.state(*id) == BackendState::Silent;
        let all = self.backends.iter().map(|(id, _)| id);
        let silent: BTreeSet<_> = all.filter(is_silent).collect();
        for id in silent.difference(&self.known.silent) {
            let name = self.backends.get(*id).map(|known| known.name.to_string());
            let fields = [("backend", name.as_deref().unwrap_or_default())];
            let events = &self.out.events;
            events.publish_own("backend_silent", true, fields);
        }
        self.known.silent = silent;
    }

    pub(super) fn write_backend(&mut self, id: BackendId) {
        let known = (&self.backends, &self.roster);
        self.tables.write_backend(known, id);
    }

    fn drain_backend(&mut self, wish: DrainWish) {
        let Some(id) = self.backends.named(&wish.node) else {
            let sentence = format!("no back-end is called {:?}", wish.node);
            let reason = "unknown_node";
            // Whoever asked may have gone.
            let _ = wish.reply.send(Err(MoveRefused { reason, sentence }));
            return;
        };
        if self.fellows.holder.is_held_elsewhere() && !self.fellows.holder.holds() {
            let sentence = "another director has the addresses: tell that one".into();
            let reason = "standby";
            let _ = wish.reply.send(Err(MoveRefused { reason, sentence }));
            return;
        }
        self.roster.handle_drain(id, wish.drained);
        self.fellows.hurry(clock::now());
        // For the director after this one, too.
        self.write_backend(id);
        self.drain();
        if self.tables.is_behind() {
            let sentence = "the kernel did not take it: the director tries again".into();
            let reason = "not_written";
            let _ = wish.reply.send(Err(MoveRefused { reason, sentence }));
            return;
        }
        let event = if wish.drained {
            "backend_drained"
        } else {
            "backend_taken_back"
        };
        let fields = [("backend", wish.node.as_str())];
        self.out.events.publish_own(event, false, fields);
        let _ = wish.reply.send(Ok(BackendDrain {
            schema: BackendDrain::SCHEMA.into(),
            node: self.config.node.name.to_string(),
            drained: wish.drained,
            backend: wish.node,
        }));
    }

    fn status(&self, now: MonoTime) -> Status {
        let (incarnation, started) = self.born;
        let mut status = Status::new(&self.config, incarnation, now.since(started));
        let own = self.config.own_peer().role;
        let peers = self.config.others().zip(self.node.peer_status());
        let reports = peers
            .zip((0..).map(PeerId))
            .map(|((config, peer), id)| PeerReport {
                tags: self.tagging.of(id).map(ToOwned::to_owned),
                ..PeerReport::new(own, config, &peer, now).with_absence(self.out.peers.absence(id))
            });
        status.peers = reports.collect();
        let counters = self.tables.programs.counters.read().into_iter();
        let reasons = counters.filter(|(_, count)| *count > 0);
        status.data_path = DataPathReport {
            interface: self.config.node.interface.to_string(),
            attached: self.place.is_attached(),
            version: env!("CARGO_PKG_VERSION").into(),
            reasons: reasons
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        };
        let known = (&self.backends, &self.roster);
        status.director = Some(DirectorReport::new(
            &self.config,
            known,
            &self.tables,
            (&self.reach, now),
            self.place.holds(),
        ));
        status.facts = self.facts.reports(&self.config);
        status.conclude();
        status
    }
}

fn nothing_moves() -> MoveRefused {
    MoveRefused {
        reason: "director",
        sentence: "a director has no connections, so nothing can move".into(),
    }
}
