//! What directors of the same services have in common: one of them has the addresses, all
//! know where connections are.
//!
//! Whoever writes down where a connection is tells the others over their links, as it does
//! so. Whoever has the addresses tells of its slots when they change, and of everything when
//! a link comes up: the others take that on in place of what they knew.

use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use godwit_bpf::MapError;
use godwit_bpf::director::{Entry, Exception, Exceptions};
use godwit_core::detector::State;
use godwit_core::director::{BackendId, Fellow, FlowHash, answered};
use godwit_core::{Beat, MonoTime, PeerId};
use godwit_wire::{
    DirectorWord, Endpoint, EntryWord, FlowId, FlowKey, MAX_DIRECTED, Message, NodeName, SlotWord,
};

use super::fellows::Fellows;
use super::front::Front;
use crate::clock;
use crate::input::{Inbox, Input};
use crate::realtime::{Urgency, prefer};

/// How long the reader sleeps if nothing happens; nothing depends on it.
const SLEEP: Duration = Duration::from_millis(100);

/// Tells the director what its program writes down.
pub(super) fn spawn_reader(exceptions: Exceptions, inbox: Inbox) -> io::Result<JoinHandle<()>> {
    thread::Builder::new()
        .name("gw-exceptions".into())
        .spawn(move || {
            prefer("gw-exceptions", Urgency::Decisions);
            while !inbox.is_closed() {
                let came = exceptions.wait(SLEEP);
                if !came.is_empty() && inbox.send(Input::Exceptions(came)).is_err() {
                    return;
                }
            }
        })
}

impl Front {
    /// What the heartbeat of another director says of the addresses.
    pub(super) fn hear_fellow(&mut self, peer: PeerId, beat: &Beat) {
        let Some(place) = self.fellows.place_of(peer) else {
            return;
        };
        if self.liveness(peer) != State::Alive {
            return;
        }
        let is_answered = beat.shares.contains(&answered());
        let holder = &mut self.fellows.holder;
        holder.handle_fellow_answered(place, is_answered, clock::now());
        if let Some(what) = Fellows::claimed(&beat.shares) {
            holder.handle_fellow(place, what);
        }
    }

    /// Who of the others has fallen silent, and what is due.
    pub(super) fn look_at_fellows(&mut self, now: MonoTime) {
        for (place, peer) in self.fellows.peers().to_vec().into_iter().enumerate() {
            // One that restarts has said so, and its program goes on.
            if matches!(self.liveness(peer), State::Failed | State::Departed) {
                self.fellows.holder.handle_fellow(place, Fellow::Gone);
            }
        }
        self.fellows.holder.handle_timeout(now);
        self.settle_hold(now);
        self.tell_own_link(now);
        self.tell_if_lost();
        if self.fellows.is_due(now) {
            for peer in self.fellows.peers().to_vec() {
                self.tell_table(peer);
            }
        }
    }

    /// Has the addresses on this machine, or not, as it is to be.
    pub(super) fn settle_hold(&mut self, now: MonoTime) {
        if self.fellows.peers().is_empty() {
            return;
        }
        let able = self.place.is_able();
        let waits = now.saturating_add(self.own.grace);
        self.fellows.holder.handle_able(able, waits);
        let holds = self.fellows.holder.holds();
        if holds != self.place.holds() {
            match self.place.hold(&self.config, holds, now) {
                Ok(()) => self.publish_hold(holds),
                Err(error) => tracing::error!(%error, holds, "the services' addresses"),
            }
        }
        let claims = self.fellows.claims();
        if self.claims.claimed != claims {
            self.claims.claimed = claims;
            self.post_claims();
            for peer in self.fellows.peers().to_vec() {
                self.tell_all(peer);
            }
        }
    }

    fn publish_hold(&self, holds: bool) {
        let event = if holds {
            "addresses_taken"
        } else {
            "addresses_given"
        };
        let fields = [("interface", self.config.node.interface.as_str())];
        self.out.events.publish_own(event, false, fields);
    }

    /// The program has written down where connections are.
    pub(super) fn share(&mut self, exceptions: &[Exception]) {
        for exception in exceptions {
            self.fellows.note(exception.key);
        }
        for few in exceptions.chunks(MAX_DIRECTED) {
            let entries = few
                .iter()
                .map(|it| self.entry_word(it.key, it.irs, it.entry));
            let entries: Vec<_> = entries.collect();
            for peer in self.fellows.peers().to_vec() {
                self.tell_entries(peer, entries.clone());
            }
        }
    }

    fn entry_word(
        &self,
        key: FlowKey,
        irs: godwit_wire::SeqNumber,
        entry: Option<Entry>,
    ) -> EntryWord {
        let flow = FlowId { key, irs };
        let known = |entry: Entry| {
            let mut all = self.backends.iter();
            let found = all.find(|(_, known)| u32::from(known.number) == entry.backend);
            found.map(|(id, _)| id.0)
        };
        let at = entry.and_then(known);
        EntryWord { flow, at }
    }

    fn names(&self) -> Vec<NodeName> {
        self.backends.iter().map(|(_, known)| known.name).collect()
    }

    fn say(&self, peer: PeerId, word: DirectorWord) {
        // Without a link there is nobody to hear it; the next one begins with everything.
        let _ = self.out.peers.send(peer, Message::Director(word));
    }

    fn tell_entries(&self, peer: PeerId, entries: Vec<EntryWord>) {
        let backends = self.names();
        self.say(peer, DirectorWord::Entries { backends, entries });
    }

    /// What operators want of back-ends, and the slots of all services.
    fn tell_table(&self, peer: PeerId) {
        let all = self.backends.iter();
        let drained = all.filter(|(id, _)| self.roster.is_drained(*id));
        let drained = drained.map(|(_, known)| known.name).collect();
        self.say(peer, DirectorWord::Drained(drained));
        for service in 0..self.roster.services() {
            let (Some(number), mut first) = (self.spoken_of(service), 0) else {
                return;
            };
            for few in self.roster.slots(service).chunks(MAX_DIRECTED) {
                let slots = few.iter().map(|slot| SlotWord {
                    base: slot.base.map(|id| id.0),
                    mixed: slot.mixed,
                });
                let word = DirectorWord::Slots {
                    service: number,
                    first,
                    backends: self.names(),
                    slots: slots.collect(),
                };
                self.say(peer, word);
                first += u32::try_from(few.len()).unwrap_or(0);
            }
        }
    }

    /// Everything, if this one has the addresses: the other one knows less.
    pub(super) fn tell_all(&self, peer: PeerId) {
        if !self.fellows.has_hold() || !self.out.peers.is_linked(peer) {
            return;
        }
        self.say(peer, DirectorWord::Begin);
        self.tell_table(peer);
        let mut few = Vec::new();
        let told = self.tables.programs.entries.for_each(|key, entry| {
            few.push(self.entry_word(key, entry.irs, Some(entry)));
            if few.len() == MAX_DIRECTED {
                self.tell_entries(peer, std::mem::take(&mut few));
            }
        });
        self.tell_entries(peer, few);
        match told {
            Ok(()) => self.say(peer, DirectorWord::End),
            // Without its end it takes nothing away from the other one.
            Err(error) => tracing::error!(%error, "entries not told to another director"),
        }
    }

    /// Of what the program could not say, everything is told.
    fn tell_if_lost(&mut self) {
        if self.fellows.peers().is_empty() {
            return;
        }
        let lost = self.tables.programs.counters.by_name("not_shared");
        if lost != self.lost {
            self.lost = lost;
            for peer in self.fellows.peers().to_vec() {
                self.tell_all(peer);
            }
        }
    }

    /// A word of another director.
    pub(super) fn hear_word(&mut self, peer: PeerId, word: &DirectorWord) {
        if self.fellows.place_of(peer).is_none() {
            return;
        }
        match word {
            DirectorWord::Begin => self.fellows.begin(peer),
            DirectorWord::Drained(backends) => self.adopt_drained(backends),
            DirectorWord::Slots {
                service,
                first,
                backends,
                slots,
            } => {
                if let Some(service) = self.meant(*service) {
                    self.adopt_slots((service, *first), backends, slots);
                }
            }
            DirectorWord::Entries { backends, entries } => {
                for entry in entries {
                    self.adopt_entry(peer, backends, *entry);
                }
            }
            DirectorWord::End => self.forget_others(peer),
        }
    }

    /// How directors speak of a service: by its place among all of them in the order of
    /// their names, which is the same at all.
    fn spoken_of(&self, service: usize) -> Option<u16> {
        let name = self.config.directed().nth(service)?.name;
        let before = self.config.directed().filter(|it| it.name < name);
        u16::try_from(before.count()).ok()
    }

    /// The place in the file of the service that another director speaks of.
    fn meant(&self, spoken: u16) -> Option<usize> {
        let mut places = 0..self.config.directed().count();
        places.find(|place| self.spoken_of(*place) == Some(spoken))
    }

    fn adopt_drained(&mut self, backends: &[NodeName]) {
        if self.fellows.has_hold() {
            return;
        }
        let known: Vec<_> = self.backends.iter().map(|(id, it)| (id, it.name)).collect();
        for (id, name) in known {
            let drained = backends.contains(&name);
            if self.roster.is_drained(id) != drained {
                self.roster.handle_drain(id, drained);
                self.write_backend(id);
            }
        }
    }

    fn adopt_slots(&mut self, at: (usize, u32), backends: &[NodeName], slots: &[SlotWord]) {
        if self.fellows.has_hold() {
            return;
        }
        let ids = self.ids(backends);
        let told = slots.iter().map(|slot| {
            let base = slot.base.and_then(|base| *ids.get(usize::from(base))?);
            (base, slot.mixed)
        });
        self.roster.handle_slots(at.0, at.1, told);
    }

    fn ids(&self, backends: &[NodeName]) -> Vec<Option<BackendId>> {
        let id = |name: &NodeName| self.backends.named(name.as_str());
        backends.iter().map(id).collect()
    }

    /// Where a connection is, as another director has written it down. What this one, which
    /// has the addresses, has written itself is newer than what is told again.
    fn adopt_entry(&mut self, peer: PeerId, backends: &[NodeName], word: EntryWord) {
        let (key, irs) = (word.flow.key, word.flow.irs);
        let Some(service) = self.service_of(key.service) else {
            return;
        };
        let entries = &self.tables.programs.entries;
        let is_old = self.fellows.has_hold() && self.fellows.tells(peer);
        if is_old && entries.get(key).is_ok_and(|known| known.is_some()) {
            return;
        }
        let name = word.at.and_then(|at| backends.get(usize::from(at)));
        let id = name.and_then(|name| self.backends.named(name.as_str()));
        let known = id.and_then(|id| self.backends.get(id));
        let Some(backend) = known.map(|known| u32::from(known.number)) else {
            return lament(entries.remove(key));
        };
        let slot = FlowHash::new(&key, self.own.seed.0).slot(self.own.table_size);
        let written = entries.set(key, Entry { backend, irs });
        let written = written.and_then(|()| self.tables.programs.slots.mix(service, slot));
        lament(written);
        self.fellows.note(key);
    }

    fn service_of(&self, at: Endpoint) -> Option<u32> {
        let mut services = self.config.directed().enumerate();
        let has = |(_, service): &(usize, &crate::config::ServiceConfig)| {
            service
                .addresses
                .iter()
                .any(|own| Endpoint::from(*own) == at)
        };
        let (place, _) = services.find(has)?;
        self.tables.number_of(place)
    }

    /// The other one has told all: what it has not spoken of has ended.
    fn forget_others(&mut self, peer: PeerId) {
        let Some(told) = self.fellows.end(peer) else {
            return;
        };
        if self.fellows.has_hold() {
            return;
        }
        let entries = &self.tables.programs.entries;
        let mut gone = Vec::new();
        let read = entries.for_each(|key, _| {
            if !told.contains(&key) {
                gone.push(key);
            }
        });
        if let Err(error) = read {
            tracing::warn!(%error, "entries that have ended may be there still");
        }
        for key in gone {
            lament(entries.remove(key));
        }
    }
}

fn lament(done: Result<(), MapError>) {
    if let Err(error) = done {
        tracing::warn!(%error, "what another director knows of a connection is lost");
    }
}
