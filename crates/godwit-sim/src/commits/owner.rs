//! The owner: its servers commit, its agent does what the machine says.

use godwit_core::snapshot::commit::{CommitAction, Committed, Standing};
use godwit_core::snapshot::parcel::Exported;
use godwit_core::{FlowEvent, FlowEventKind};
use godwit_wire::FlowId;
use godwit_wire::app::{Carried, CommitRefusal, SnapshotKind, SnapshotPlace};

use super::Fault;
use super::world::{SHARE, Word, World, time};

/// A server waits no longer: a second for its standby, four for a demotion, and a look.
const BOUND: u64 = 5_000 + 50;

fn committed(made: u64) -> Committed<()> {
    let place = SnapshotPlace {
        offset: 0,
        length: 0,
        kind: SnapshotKind::Commit,
        read: made,
        written: made,
    };
    let carried = Carried {
        kind: place.kind,
        bytes: Vec::new(),
    };
    Committed {
        exported: Exported { place, carried },
        output: Vec::new(),
        weight: None,
    }
}

impl World {
    /// A server commits, unless it waits.
    pub(super) fn commit(&mut self, at: usize) {
        let can_copy = !self.random.chance(60);
        let (asker, now) = (self.askers, self.now);
        let it = &mut self.served[at];
        if it.asked.is_some() {
            return;
        }
        it.made += 1;
        it.asked = Some((asker, it.made, now));
        let state = if can_copy {
            Ok(committed(it.made))
        } else {
            Err(CommitRefusal::Unprotected)
        };
        self.askers += 1;
        let look = Some(self.look_of(at));
        let exports = &mut self.exports;
        self.commits
            .handle_commit(look, Some(asker), state, exports, time(now));
        self.carry_out();
    }

    /// Those that wait are looked after, and nobody waits for too long.
    pub(super) fn look(&mut self) {
        if !self.is(Fault::NoLook) {
            let mut exports = std::mem::replace(
                &mut self.exports,
                godwit_core::snapshot::exports::Exports::new([].into(), time(0)),
            );
            let mut commits = std::mem::take(&mut self.commits);
            let found = |_, key| {
                let at = self.served.iter().position(|it| it.flow.key == key);
                at.map(|at| self.look_of(at))
            };
            commits.handle_timeout(found, &mut exports, time(self.now));
            (self.commits, self.exports) = (commits, exports);
            self.carry_out();
        }
        let now = self.now;
        let waits = |it: &super::world::Served| it.asked.is_some_and(|it| now - it.2 > BOUND);
        if let Some(at) = self.served.iter().position(waits) {
            self.violation = Some(format!("{now} ms: a commit of {at} has no answer"));
        }
    }

    pub(super) fn carry_out(&mut self) {
        while let Some(action) = self.commits.poll_action() {
            match action {
                CommitAction::Send(look, parcel) => {
                    let (number, made) = (parcel.commit, parcel.exported.place.read);
                    if let (Some(at), Some(number)) = (self.find(look.flow), number) {
                        self.say(at, false, Word::Parcel(number, made));
                    }
                }
                CommitAction::GiveUp(_, flow, _) => self.give_up(flow),
                CommitAction::Answer(asker, refusal) => self.answer(asker, refusal),
                CommitAction::Pass(event) => self.pass(event.flow),
            }
        }
    }

    fn answer(&mut self, asker: u64, refusal: Option<CommitRefusal>) {
        let waits = |it: &&mut super::world::Served| it.asked.is_some_and(|it| it.0 == asker);
        let Some(it) = self.served.iter_mut().find(waits) else {
            self.violation = Some(format!("asker {asker} is answered, and does not wait"));
            return;
        };
        if let Some((_, made, _)) = it.asked.take() {
            it.answered = made;
        }
        if refusal.is_some() {
            self.sums.refused += 1;
        } else {
            self.sums.safe += 1;
        }
    }

    fn give_up(&mut self, flow: FlowId) {
        let Some(at) = self.find(flow) else { return };
        let it = &mut self.served[at];
        let is_unsaid = self.fault == Some(Fault::GivenUpUnsaid);
        if it.standing == Standing::Alone || self.generation.is_none() || is_unsaid {
            it.standing = Standing::Alone;
            return self.commits.handle_given_up(flow.key);
        }
        it.given_up = true;
        self.say(at, false, Word::GiveUp);
    }

    fn pass(&mut self, flow: FlowId) {
        if let Some(at) = self.find(flow)
            && self.served[at].standing == Standing::Answering
        {
            self.served[at].passed = true;
            self.say(at, false, Word::Counts);
        }
    }

    /// Another node's word does not count any more: the data path has found bytes missing.
    pub(super) fn distrust(&mut self, at: usize) {
        if self.served[at].standing != Standing::Alone && !self.served[at].given_up {
            self.sums.faults += 1;
            self.served[at].given_up = true;
            self.say(at, false, Word::GiveUp);
        }
    }

    /// Where there is no twin a new one is made.
    pub(super) fn renew(&mut self, at: usize) {
        let generation = self.generation;
        let it = &mut self.served[at];
        if generation.is_none() || it.standing != Standing::Alone || it.given_up {
            return;
        }
        let key = it.flow.key;
        (it.standing, it.generation, it.passed) = (Standing::Rejoining, generation, false);
        if !self.is(Fault::HeldStays) {
            self.commits.forget(key);
        }
        self.exports.note_rejoin(key);
        self.say(at, false, Word::Install);
    }

    /// What the connections have exported is known, once in a while: a new twin that lacks a
    /// commit gets the last one.
    pub(super) fn look_at_exports(&mut self, at: usize) {
        let it = &self.served[at];
        let (made, flow, now) = (it.made, it.flow, time(self.now));
        if it.standing != Standing::Answering || it.given_up {
            return;
        }
        let look = self.look_of(at);
        let lacks = made > 0 && !self.commits.is_held(flow, look.generation);
        if lacks && !self.commits.is_under_way(flow.key) {
            // Without an answer to what it wrote before that it can't be had.
            if self.random.chance(300) {
                self.commits.handle_lack(look, now);
            } else {
                let (look, state) = (Some(look), Ok(committed(made)));
                let exports = &mut self.exports;
                self.commits.handle_commit(look, None, state, exports, now);
            }
        }
        self.commits.handle_exports(&[flow.key], |_| made > 0);
        self.carry_out();
    }

    pub(super) fn hear_standby(&mut self, at: usize, word: Word) {
        let it = &mut self.served[at];
        let flow = it.flow;
        match (word, it.standing) {
            (Word::Installed, Standing::Confirming) if !it.given_up => {
                it.standing = Standing::Served;
            }
            (Word::Installed, Standing::Rejoining) if !it.given_up => {
                it.standing = Standing::Answering;
                let event = FlowEvent {
                    share: SHARE,
                    flow,
                    generation: it.generation,
                    kind: FlowEventKind::Whole,
                };
                self.commits.handle_whole(event);
                if self.is(Fault::CountsAtOnce) {
                    self.pass(flow);
                }
            }
            (Word::Held(number), _) => {
                let look = Some(self.look_of(at));
                let exports = &mut self.exports;
                self.commits.handle_held(flow, number, look, exports);
                self.carry_out();
            }
            (Word::Counted, Standing::Answering) if !it.given_up => it.standing = Standing::Served,
            (Word::GivenUp, _) => {
                (it.standing, it.given_up, it.passed) = (Standing::Alone, false, false);
                self.commits.handle_given_up(flow.key);
                self.carry_out();
            }
            (
                Word::Installed
                | Word::Counted
                | Word::Install
                | Word::Parcel(..)
                | Word::Counts
                | Word::GiveUp,
                _,
            ) => {}
        }
    }

    /// The link is there again.
    pub(super) fn say_again(&mut self, at: usize) {
        let it = &self.served[at];
        let word = match it.standing {
            _ if it.given_up => Word::GiveUp,
            Standing::Confirming | Standing::Rejoining => Word::Install,
            Standing::Answering if it.passed => Word::Counts,
            Standing::Alone | Standing::Answering | Standing::Served => return,
        };
        self.say(at, false, word);
    }
}
