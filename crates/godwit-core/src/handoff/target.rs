//! The side that takes the connection.

use godwit_wire::{FlowId, HandoffId, HandoffRefusal, Party};

use super::{Arrival, Attempt, Course, Entry, Handoffs, Mark, News, Order, Place, Step};
use crate::{MonoTime, PeerId};

impl Handoffs {
    /// What became of [`Order::Hold`].
    pub fn handle_held(
        &mut self,
        id: HandoffId,
        result: Result<(), HandoffRefusal>,
        now: MonoTime,
    ) {
        let Attempt::Looking { from } = self.current(id) else {
            return;
        };
        match result {
            Ok(()) => {
                self.mark(id.flow, Mark::Ready, now);
                self.set(id.flow, Attempt::Holding { from });
                self.say(from, id, Step::Ready);
            }
            Err(reason) => self.refuse(id, from, reason),
        }
    }

    /// What became of [`Order::Restore`].
    pub fn handle_restored(
        &mut self,
        id: HandoffId,
        result: Result<(), HandoffRefusal>,
        now: MonoTime,
    ) {
        let Attempt::Restoring { from } = self.current(id) else {
            return;
        };
        match result {
            Ok(()) => {
                self.mark(id.flow, Mark::Agreed, now);
                self.set(id.flow, Attempt::Prepared { from });
                self.say(from, id, Step::Prepared);
            }
            Err(reason) => {
                self.discard(id.flow, from);
                self.say(from, id, Step::Refused(reason));
            }
        }
    }

    pub(super) fn handle_prepare(
        &mut self,
        peer: PeerId,
        id: HandoffId,
        party: Party,
        now: MonoTime,
    ) {
        let elsewhere = Entry::new(Place::Elsewhere);
        let entry = self.flows.entry(id.flow).or_insert(elsewhere);
        let away = match entry.place {
            Place::Elsewhere | Place::Moved { .. } => true,
            Place::Here | Place::Committed { .. } => false,
        };
        if !away || entry.attempt != Attempt::None || id.epoch <= entry.spent {
            return self.say(peer, id, Step::Refused(HandoffRefusal::InUse));
        }
        entry.spent = id.epoch;
        entry.attempt = Attempt::Looking { from: peer };
        entry.course = Course::begun(now);
        entry.party = party;
        self.orders.push_back(Order::Hold { id, from: peer });
    }

    pub(super) fn handle_state(&mut self, peer: PeerId, id: HandoffId, now: MonoTime) {
        if self.current(id) == (Attempt::Holding { from: peer }) {
            self.mark(id.flow, Mark::State, now);
            self.set(id.flow, Attempt::Restoring { from: peer });
            self.orders.push_back(Order::Restore(id));
        }
    }

    pub(super) fn handle_commit(&mut self, peer: PeerId, id: HandoffId, now: MonoTime) {
        if self.current(id) == (Attempt::Prepared { from: peer }) {
            self.mark(id.flow, Mark::Committed, now);
            self.set(id.flow, Attempt::Consented { from: peer });
            let party = self.party(id.flow);
            if self.are_all(&party, |it| matches!(it, Attempt::Consented { .. })) {
                for flow in party {
                    self.arrive(peer, flow);
                }
            }
        } else if [
            Attempt::Consented { from: peer },
            Attempt::Placing { from: peer },
        ]
        .contains(&self.current(id))
        {
            // It hears when it speaks.
        } else if self.arrived(peer, id) {
            self.say(peer, id, Step::Done);
        } else {
            self.refuse(id, peer, HandoffRefusal::Forgotten);
        }
    }

    /// [`Order::Place`] has been carried out: the connection speaks here.
    pub fn handle_placed(&mut self, id: HandoffId, now: MonoTime) {
        if let Attempt::Placing { from } = self.current(id)
            && let Some(entry) = self.flows.get_mut(&id.flow)
        {
            entry.attempt = Attempt::None;
            entry.course.note(Mark::Done, now);
            let course = entry.course;
            self.say(from, id, Step::Done);
            self.news.push_back(News::Arrived { id, from, course });
        }
    }

    pub(super) fn handle_abort(&mut self, peer: PeerId, id: HandoffId) {
        match self.current(id) {
            Attempt::Looking { from }
            | Attempt::Holding { from }
            | Attempt::Restoring { from }
            | Attempt::Prepared { from }
                if from == peer =>
            {
                self.discard(id.flow, peer);
            }
            Attempt::None
            | Attempt::Queued { .. }
            | Attempt::Asked { .. }
            | Attempt::Waiting { .. }
            | Attempt::Freezing { .. }
            | Attempt::Frozen { .. }
            | Attempt::Agreed { .. }
            | Attempt::Answering { .. }
            | Attempt::Looking { .. }
            | Attempt::Holding { .. }
            | Attempt::Restoring { .. }
            | Attempt::Prepared { .. }
            | Attempt::Consented { .. }
            | Attempt::Placing { .. } => {}
        }
    }

    /// Ends an attempt that was not committed: this node has not spoken.
    pub(super) fn discard(&mut self, flow: FlowId, from: PeerId) {
        let Some(entry) = self.flows.get_mut(&flow) else {
            return;
        };
        entry.attempt = Attempt::None;
        let epoch = entry.spent;
        let moved = match entry.place {
            Place::Moved { to, .. } => Some(to),
            Place::Elsewhere | Place::Here | Place::Committed { .. } => None,
        };
        if entry.place == Place::Elsewhere {
            self.flows.remove(&flow);
        }
        let id = HandoffId { flow, epoch };
        self.orders.push_back(Order::Discard { id, from, moved });
    }

    fn arrive(&mut self, from: PeerId, flow: FlowId) {
        let Some(entry) = self.flows.get_mut(&flow) else {
            return;
        };
        let epoch = entry.spent;
        entry.place = Place::Here;
        entry.arrival = Some(Arrival {
            from,
            epoch,
            settled: false,
        });
        entry.attempt = Attempt::Placing { from };
        let id = HandoffId { flow, epoch };
        self.orders.push_back(Order::Place(id));
    }

    /// Whether a connection is here under that number, or was until it ended.
    pub(super) fn arrived(&self, from: PeerId, id: HandoffId) -> bool {
        let arrival = self.flows.get(&id.flow).and_then(|entry| entry.arrival);
        arrival.is_some_and(|arrival| arrival.from == from && arrival.epoch == id.epoch)
    }

    /// Says that this node has not spoken under that number in this life and never will.
    fn refuse(&mut self, id: HandoffId, peer: PeerId, reason: HandoffRefusal) {
        if self.current(id).peer() == Some(peer) {
            self.discard(id.flow, peer);
        }
        self.say(peer, id, Step::Refused(reason));
    }
}
