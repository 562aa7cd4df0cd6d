//! Which back-ends what this director sends does not reach: by their own heartbeats, and by what
//! they do not answer.

use std::collections::BTreeSet;
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_core::detector::State;
use godwit_core::director::{Asking, BackendId, Proofs, Unheard, answered, unproved};
use godwit_core::fitness::Consequence;
use godwit_wire::{Heartbeat, NodeName, ShareClaim};

use super::backends::Known;
use super::front::Front;
use crate::facts::Look;
use crate::probes::Probe;

/// Length of a question whether notes arrive: the shortest frame.
const LENGTH: usize = 60;

/// Heartbeats come more often than it is worth to look for answers.
const PAUSE: Duration = Duration::from_millis(5);

/// Most back-ends of which a heartbeat speaks.
const MOST_TOLD: usize = Heartbeat::MAX_SHARES / 2;

/// What is known of that.
#[derive(Debug)]
pub(super) struct Reach {
    /// What they say.
    pub(super) unheard: Unheard,
    /// What they answer.
    proofs: Proofs,
    /// When it was last looked for answers.
    looked: MonoTime,
    /// Who was unproved at the last look.
    unproved: BTreeSet<BackendId>,
    /// Of whom it was said, and not yet that it answers again.
    told: BTreeSet<BackendId>,
    /// Whether any answers; `None`: that is not known.
    answered: Option<bool>,
    /// Whether it was said that this director is cut off; `None`: nothing was said.
    said: Option<bool>,
}

impl Reach {
    /// Of the director of that name, which has so many back-ends.
    pub(super) fn new(director: NodeName, backends: usize) -> Self {
        Self {
            unheard: Unheard::new(director, backends),
            proofs: Proofs::new(backends),
            looked: MonoTime::ZERO,
            unproved: BTreeSet::new(),
            told: BTreeSet::new(),
            answered: None,
            said: None,
        }
    }

    pub(super) fn is_cut_off(&self, id: BackendId, now: MonoTime) -> bool {
        self.unheard.is_cut_off(id, now)
    }

    /// Whether notes do not go there and back.
    pub(super) fn is_unproved(&self, id: BackendId) -> bool {
        self.unproved.contains(&id)
    }

    pub(super) fn poll_timeout(&self) -> Option<MonoTime> {
        let due = self.proofs.poll_timeout()?;
        Some(due.max(self.looked.saturating_add(PAUSE)))
    }

    /// The link is another one.
    pub(super) fn handle_change(&mut self) {
        self.proofs.handle_change();
    }
}

impl Front {
    /// Asks back-ends whether notes arrive, and sees who has answered.
    pub(super) fn prove(&mut self, now: MonoTime) {
        if now.since(self.reach.looked) < PAUSE {
            return;
        }
        self.reach.looked = now;
        // Any number will do that an earlier director has not just used.
        let number = now.since(MonoTime::ZERO).subsec_nanos();
        for (id, known) in self.backends.iter() {
            let asking = self.asking(known);
            self.reach.proofs.handle_asking(id, asking, number, now);
            let Asking::At(mac) = asking else {
                continue;
            };
            if !self.reach.proofs.is_waiting(id) {
                continue;
            }
            match self.tables.programs.paths.heard(mac) {
                Ok(number) => self.reach.proofs.handle_answer(id, number, now),
                Err(error) => tracing::error!(%error, "answers of back-ends can't be read"),
            }
        }
        for (_, mac, number) in self.reach.proofs.handle_timeout(now) {
            if let Err(error) = self.tables.programs.paths.expect(mac, number) {
                tracing::error!(%error, "the answer of a back-end can't be waited for");
                continue;
            }
            let (ends, key) = ((self.place.mac(), mac), self.tagging.key_for(mac));
            let frame = Probe::Note.frame(ends, number, LENGTH, key);
            if let Err(error) = self.place.send(&frame) {
                tracing::debug!(%error, "a back-end is not asked whether notes arrive");
            }
        }
        self.settle_proofs(now);
    }

    /// Whether a back-end can be asked.
    fn asking(&self, known: &Known) -> Asking {
        match self.liveness(known.peer) {
            State::Alive => {}
            // Its agent starts anew, and its data path answers on.
            State::Excused => return Asking::NotNow,
            State::Unknown | State::Failed | State::Departed => return Asking::Never,
        }
        match (known.mac, self.tagging.proves_notes(known.peer)) {
            (None, _) | (_, None) => Asking::Never,
            (Some(mac), Some(true)) if self.place.is_attached() => Asking::At(mac),
            (Some(_), Some(_)) => Asking::NotNow,
        }
    }

    fn settle_proofs(&mut self, now: MonoTime) {
        let all: Vec<_> = self.backends.iter().map(|(id, _)| id).collect();
        for id in &all {
            let yields = self.reach.proofs.yields(*id);
            self.roster.handle_yielding(*id, yields);
        }
        let proofs = &self.reach.proofs;
        let unproved = all.iter().filter(|id| proofs.is_unproved(**id, now));
        let unproved: BTreeSet<_> = unproved.copied().collect();
        let before = std::mem::replace(&mut self.reach.unproved, unproved);
        let answered = self.reach.proofs.is_answered(now);
        let was_answered = std::mem::replace(&mut self.reach.answered, answered);
        if (before, was_answered) != (self.reach.unproved.clone(), answered) {
            self.post_claims();
        }
        self.fellows.holder.handle_answered(answered, now);
        for id in all {
            self.tell_proof(id);
        }
    }

    /// Says that one does not answer, and that it does again: one that falls silent meanwhile has
    /// not.
    fn tell_proof(&mut self, id: BackendId) {
        let is_unproved = self.reach.is_unproved(id);
        let is_news = match is_unproved {
            true => self.reach.told.insert(id),
            false => self.reach.proofs.is_proved(id) && self.reach.told.remove(&id),
        };
        if !is_news {
            return;
        }
        let name = self.backends.get(id).map(|known| known.name.to_string());
        let fields = [("backend", name.as_deref().unwrap_or_default())];
        let event = match is_unproved {
            true => "backend_unproved",
            false => "backend_proved",
        };
        self.out.events.publish_own(event, is_unproved, fields);
    }

    /// Says whether its own link to the back-ends is lost, as others show that theirs is not.
    pub(super) fn tell_own_link(&mut self, now: MonoTime) {
        let is_cut_off = self.fellows.holder.is_cut_off();
        if self.fellows.peers().is_empty() || self.reach.said == Some(is_cut_off) {
            return;
        }
        self.reach.said = Some(is_cut_off);
        let found = is_cut_off.then(|| {
            "no back-end answers this director, and one answers another director: what this \
             machine sends on the data network, or hears there, is lost"
                .to_owned()
        });
        let advice = "look at this machine's own link (its port, cable and VLAN, an ACL for \
                      EtherType 0x88b5); another director has the services' addresses meanwhile";
        let look = Look::of_one("cut_off", Consequence::Say, found, advice);
        self.note_facts(look.into(), now);
    }

    /// What heartbeats say: of the addresses, whether any back-end answers, and to back-ends that
    /// they are unproved.
    pub(super) fn post_claims(&self) {
        let own = self.claims.claimed.iter().copied();
        let any = (self.reach.answered == Some(true)).then(answered);
        let unproved = self.unproved_claims().take(MOST_TOLD);
        let all = own.chain(any).chain(unproved);
        self.claims.board.post(all.collect());
    }

    fn unproved_claims(&self) -> impl Iterator<Item = ShareClaim> + '_ {
        let ids = self.reach.unproved.iter();
        let known = ids.filter_map(|id| self.backends.get(*id));
        known.map(|known| unproved(known.name))
    }
}
