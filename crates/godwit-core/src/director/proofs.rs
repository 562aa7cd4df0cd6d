//! Which back-ends get what a director says to them under the EtherType of notes, and answer.
//!
//! Heartbeats do not say that: they are IP, and perhaps on another network. So a director asks
//! each back-end that can answer, and proves the path to it as servers prove theirs ([`Path`]).
//! One that does not answer is *unproved*. It is not asked about SYNs, and it *yields*: it gets
//! new connections only where nobody else does
//! ([`Roster::handle_yielding`](super::Roster::handle_yielding)). A path that has been lost while
//! no other one was sound says nothing of its back-end: what keeps all notes back may well let
//! clients' segments pass, so all serve as before.

use std::time::Duration;

use godwit_wire::{Epoch, MacAddr, NodeName, Role, ShareClaim, ShareId, node_id};

use super::BackendId;
use crate::MonoTime;
use crate::path::Path;

/// The share that heartbeats of a director speak of, under the number of a back-end's name as an
/// epoch. No service has it.
const UNPROVED: ShareId = ShareId(u32::MAX - 1);

/// The share by which a director says in its heartbeats that a back-end answers it. No service
/// has it.
const ANSWERED: ShareId = ShareId(u32::MAX - 2);

/// So long a path that has never been proved is not called unproved: keys are being agreed on.
const SETTLING: Duration = Duration::from_millis(300);

/// What a director says in its heartbeats of a back-end that is unproved.
pub fn unproved(backend: NodeName) -> ShareClaim {
    ShareClaim {
        share: UNPROVED,
        role: Role::None,
        epoch: Epoch(node_id(backend).get().into()),
    }
}

/// What a director says in its heartbeats while at least one back-end answers its notes.
pub const fn answered() -> ShareClaim {
    ShareClaim {
        share: ANSWERED,
        role: Role::None,
        epoch: Epoch::NONE,
    }
}

/// Whether a back-end can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// It can't: it is silent, its version knows no such question, or it is not on the link.
    Never,
    /// Not now: keys are being agreed on. What is known of it stays.
    NotNow,
    /// It can, at that address on the link.
    At(MacAddr),
}

/// The paths to the back-ends of one director.
#[derive(Debug, Clone)]
pub struct Proofs(Vec<Option<Proof>>);

#[derive(Debug, Clone)]
struct Proof {
    path: Path,
    at: MacAddr,
    is_asked: bool,
    was_proved: bool,
    yields: bool,
}

impl Proof {
    fn new(at: MacAddr, number: u32, now: MonoTime) -> Self {
        Self {
            path: Path::new(number, now),
            at,
            is_asked: true,
            was_proved: false,
            yields: false,
        }
    }

    fn is_unproved(&self, now: MonoTime) -> bool {
        let span = self.path.unproved_for(now);
        span.is_some_and(|span| self.was_proved || span >= SETTLING)
    }
}

impl Proofs {
    /// Of a director with so many back-ends.
    pub fn new(backends: usize) -> Self {
        Self(vec![None; backends])
    }

    /// Whether a back-end can be asked now. Numbers of questions follow `number`.
    pub fn handle_asking(&mut self, id: BackendId, asking: Asking, number: u32, now: MonoTime) {
        let Some(place) = self.0.get_mut(usize::from(id.0)) else {
            return;
        };
        match (asking, &mut *place) {
            (Asking::Never, _) => *place = None,
            (Asking::NotNow, None) => {}
            (Asking::NotNow, Some(proof)) => proof.is_asked = false,
            (Asking::At(at), Some(proof)) if proof.at == at => proof.is_asked = true,
            (Asking::At(at), _) => *place = Some(Proof::new(at, number, now)),
        }
    }

    /// Whether an answer of a back-end is waited for.
    pub fn is_waiting(&self, id: BackendId) -> bool {
        let proof = self.0.get(usize::from(id.0)).and_then(Option::as_ref);
        proof.is_some_and(|proof| proof.path.is_waiting())
    }

    /// The number of the last question that a back-end has answered.
    pub fn handle_answer(&mut self, id: BackendId, number: u32, now: MonoTime) {
        if let Some(Some(proof)) = self.0.get_mut(usize::from(id.0)) {
            proof.path.handle_answer(number, now);
            proof.was_proved |= proof.path.is_proved();
        }
    }

    /// The link is another one: nothing is known of any path.
    pub fn handle_change(&mut self) {
        self.0.fill(None);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        let asked = self.0.iter().flatten().filter(|proof| proof.is_asked);
        asked.map(|proof| proof.path.poll_timeout()).min()
    }

    /// Whom to ask now, where, and with which number.
    pub fn handle_timeout(&mut self, now: MonoTime) -> Vec<(BackendId, MacAddr, u32)> {
        let mut due = Vec::new();
        self.ask(&mut due, now);
        if self.0.iter().flatten().any(|it| it.path.is_failing()) {
            for proof in self.0.iter_mut().flatten() {
                proof.path.hurry(now);
            }
            self.ask(&mut due, now);
        }
        self.settle(now);
        due
    }

    fn ask(&mut self, due: &mut Vec<(BackendId, MacAddr, u32)>, now: MonoTime) {
        for (proof, id) in self.0.iter_mut().zip(0..) {
            let Some(proof) = proof.as_mut().filter(|proof| proof.is_asked) else {
                continue;
            };
            if let Some(number) = proof.path.poll_probe(now) {
                due.push((BackendId(id), proof.at, number));
            }
        }
    }

    /// Who yields now. One that is unproved begins to while another path is sound, and goes on
    /// to while another one is proved.
    fn settle(&mut self, now: MonoTime) {
        let all = || self.0.iter().flatten();
        let is_any_sound = all().any(|it| it.path.is_sound());
        let is_any_proved = all().any(|it| it.path.is_proved());
        for proof in self.0.iter_mut().flatten() {
            let has_other = match proof.yields {
                true => is_any_proved,
                false => is_any_sound,
            };
            proof.yields = has_other && proof.is_unproved(now);
        }
    }

    /// Whether a back-end answers.
    pub fn is_proved(&self, id: BackendId) -> bool {
        let proof = self.0.get(usize::from(id.0)).and_then(Option::as_ref);
        proof.is_some_and(|proof| proof.path.is_proved())
    }

    /// Whether a back-end should have answered, and has not.
    pub fn is_unproved(&self, id: BackendId, now: MonoTime) -> bool {
        let proof = self.0.get(usize::from(id.0)).and_then(Option::as_ref);
        proof.is_some_and(|proof| proof.is_unproved(now))
    }

    /// Whether any back-end answers: not if all that are asked should have, and have not;
    /// `None` if that is not known, or nobody is asked.
    pub fn is_answered(&self, now: MonoTime) -> Option<bool> {
        let mut asked = self.0.iter().flatten().filter(|it| it.is_asked).peekable();
        asked.peek()?;
        if self.0.iter().flatten().any(|it| it.path.is_proved()) {
            return Some(true);
        }
        asked.all(|it| it.is_unproved(now)).then_some(false)
    }

    /// Whether a back-end gets new connections only where nobody else does.
    pub fn yields(&self, id: BackendId) -> bool {
        let proof = self.0.get(usize::from(id.0)).and_then(Option::as_ref);
        proof.is_some_and(|proof| proof.yields)
    }
}

#[cfg(test)]
mod tests;
