//! The side that has the connection and gives it away.

use godwit_wire::{Epoch, FlowId, HandoffId, HandoffRefusal, Party};

use super::{
    ASK_PATIENCE, Attempt, COMMIT_AGAIN, COMMIT_AGAIN_LONGEST, Course, Entry, HandoffError,
    Handoffs, MAX_ASKED, MAX_FROZEN, Mark, News, Order, Place, Speaker, Step,
};
use crate::{MonoTime, PeerId};

impl Handoffs {
    /// Somebody wants a connection of this node to go to a peer. The end is told as
    /// [`News::Moved`] or [`News::Stayed`].
    ///
    /// The caller vouches for it that an unknown connection has had its handshake here.
    ///
    /// # Errors
    /// If it is not here, or under way.
    pub fn begin(&mut self, flow: FlowId, to: PeerId, now: MonoTime) -> Result<(), HandoffError> {
        self.begin_together(&[flow], to, now)
    }

    /// As [`Self::begin`], of connections that go together or not at all; each once.
    ///
    /// # Errors
    /// If one of them can't, or they are too many.
    pub fn begin_together(
        &mut self,
        flows: &[FlowId],
        to: PeerId,
        now: MonoTime,
    ) -> Result<(), HandoffError> {
        let size = u8::try_from(flows.len()).unwrap_or(u8::MAX);
        if size > Party::MAX {
            return Err(HandoffError::SessionTooLarge);
        }
        for flow in flows {
            self.may_begin(*flow)?;
        }
        let mut party = Party::ALONE;
        if size > 1 {
            self.parties = self.parties.wrapping_add(1);
            let number = self.parties;
            party = Party { number, size };
        }
        for flow in flows {
            let entry = self.flows.entry(*flow).or_insert(Entry::new(Place::Here));
            entry.spent = entry.spent.next();
            entry.attempt = Attempt::Queued { to };
            entry.party = party;
        }
        self.queued.extend(flows.first());
        self.ask_next(now);
        Ok(())
    }

    fn may_begin(&mut self, flow: FlowId) -> Result<(), HandoffError> {
        let Some(entry) = self.flows.get(&flow) else {
            return Ok(());
        };
        match entry.place {
            Place::Here if entry.over => return Err(HandoffError::Ended),
            Place::Here if entry.attempt != Attempt::None => {
                return Err(HandoffError::AlreadyMoving);
            }
            Place::Here => {}
            Place::Elsewhere | Place::Committed { .. } | Place::Moved { .. } => {
                return Err(HandoffError::NotHere);
            }
        }
        if let Some(arrival) = entry.arrival.filter(|arrival| !arrival.settled) {
            self.remind(flow, arrival);
            return Err(HandoffError::AlreadyMoving);
        }
        Ok(())
    }

    /// What became of [`Order::Freeze`]: since when it is silent, or why it is not.
    pub fn handle_frozen(
        &mut self,
        id: HandoffId,
        result: Result<MonoTime, HandoffRefusal>,
        now: MonoTime,
    ) {
        let Attempt::Freezing { to, .. } = self.current(id) else {
            return;
        };
        match result {
            Ok(since) => {
                self.mark(id.flow, Mark::Silent, since);
                self.mark(id.flow, Mark::State, now);
                self.set(id.flow, Attempt::Frozen { to, since });
                self.say(to, id, Step::State);
            }
            Err(reason) => self.call_off(id.flow, HandoffError::Refused(reason), now),
        }
    }

    pub(super) fn handle_ready(&mut self, peer: PeerId, id: HandoffId, now: MonoTime) {
        if let Attempt::Asked { to, .. } = self.current(id)
            && to == peer
        {
            self.mark(id.flow, Mark::Ready, now);
            self.set(id.flow, Attempt::Waiting { to });
            let party = self.party(id.flow);
            if self.are_all(&party, |it| matches!(it, Attempt::Waiting { .. })) {
                self.waiting.push_back(id.flow);
                self.freeze_next(now);
            }
        }
    }

    pub(super) fn handle_prepared(&mut self, by: Speaker, id: HandoffId, now: MonoTime) {
        let Attempt::Frozen { to, since } = self.current(id) else {
            return;
        };
        if to != by.peer {
            return;
        }
        let life = by.life;
        self.mark(id.flow, Mark::Agreed, now);
        self.set(id.flow, Attempt::Agreed { to, since, life });
        let party = self.party(id.flow);
        if self.are_all(&party, |it| matches!(it, Attempt::Agreed { .. })) {
            self.commit(&party, now);
        }
    }

    /// The only point of no return. All is written down before anything is said.
    fn commit(&mut self, party: &[FlowId], now: MonoTime) {
        let mut said = Vec::new();
        for flow in party {
            let Some(entry) = self.flows.get_mut(flow) else {
                continue;
            };
            let Attempt::Agreed { to, life, .. } = entry.attempt else {
                continue;
            };
            let (flow, epoch) = (*flow, entry.spent);
            entry.place = Place::Committed { epoch, to, life };
            let again = now.saturating_add(COMMIT_AGAIN);
            entry.attempt = Attempt::answering(again);
            self.answering.insert(flow, again);
            let id = HandoffId { flow, epoch };
            self.orders.push_back(Order::Commit { id, to });
            said.push((to, id));
        }
        for (to, id) in said {
            self.say(to, id, Step::Commit);
        }
        self.thawed(party, now);
    }

    pub(super) fn handle_done(&mut self, peer: PeerId, id: HandoffId, now: MonoTime) {
        if let Some((to, _)) = self.committed_to(id)
            && to == peer
        {
            self.settle(id, to, now);
        }
        self.say(peer, id, Step::Settled);
    }

    pub(super) fn handle_refused(
        &mut self,
        by: Speaker,
        id: HandoffId,
        reason: HandoffRefusal,
        now: MonoTime,
    ) {
        if self.current(id).peer() == Some(by.peer) {
            return self.call_off(id.flow, HandoffError::Refused(reason), now);
        }
        match self.committed_to(id) {
            Some((to, life)) if to == by.peer && life == by.life && life != Epoch::NONE => {
                self.reclaim(id, to, HandoffError::Refused(reason));
            }
            Some((to, _)) if to == by.peer => {
                self.lose(id, to, HandoffError::TargetRestarted);
            }
            Some(_) | None => {}
        }
    }

    /// The target has it.
    fn settle(&mut self, id: HandoffId, to: PeerId, now: MonoTime) {
        let Some(entry) = self.flows.get_mut(&id.flow) else {
            return;
        };
        if !matches!(entry.attempt, Attempt::Answering { .. }) {
            return;
        }
        entry.course.note(Mark::Done, now);
        let course = entry.course;
        self.answering.remove(&id.flow);
        entry.place = Place::Moved {
            epoch: id.epoch,
            to,
        };
        entry.attempt = Attempt::None;
        self.orders.push_back(Order::Release(id));
        self.news.push_back(News::Moved { id, to, course });
    }

    /// Before the commit: the connection goes on here, and those that were to go with
    /// it do, too.
    pub(super) fn call_off(&mut self, flow: FlowId, reason: HandoffError, now: MonoTime) {
        let others = match reason {
            HandoffError::LinkLost | HandoffError::TargetSilent => reason,
            HandoffError::NotHere
            | HandoffError::AlreadyMoving
            | HandoffError::Refused(_)
            | HandoffError::TargetRestarted
            | HandoffError::Ended
            | HandoffError::CompanyStayed
            | HandoffError::SessionTooLarge => HandoffError::CompanyStayed,
        };
        let party = self.party(flow);
        for one in &party {
            self.call_off_one(*one, if *one == flow { reason } else { others });
        }
        self.thawed(&party, now);
    }

    fn call_off_one(&mut self, flow: FlowId, reason: HandoffError) {
        let Some(entry) = self.flows.get_mut(&flow) else {
            return;
        };
        let Some(to) = entry.attempt.peer() else {
            return;
        };
        let silent = matches!(
            entry.attempt,
            Attempt::Freezing { .. } | Attempt::Frozen { .. } | Attempt::Agreed { .. }
        );
        let epoch = entry.spent;
        let id = HandoffId { flow, epoch };
        entry.attempt = Attempt::None;
        self.queued.retain(|queued| *queued != flow);
        self.waiting.retain(|waiting| *waiting != flow);
        if silent {
            self.orders.push_back(Order::Thaw(id));
        }
        self.say(to, id, Step::Abort);
        self.news.push_back(News::Stayed { flow, to, reason });
    }

    pub(super) fn overdue(&mut self, flow: FlowId, now: MonoTime) {
        let Some(entry) = self.flows.get_mut(&flow) else {
            return;
        };
        match (entry.place, &mut entry.attempt) {
            (Place::Committed { epoch, to, .. }, Attempt::Answering { again, gap, .. }) => {
                *again = now.saturating_add(*gap);
                *gap = (*gap * 2).min(COMMIT_AGAIN_LONGEST);
                self.answering.insert(flow, *again);
                self.say(to, HandoffId { flow, epoch }, Step::Commit);
            }
            _ => self.call_off(flow, HandoffError::TargetSilent, now),
        }
    }

    fn reclaim(&mut self, id: HandoffId, to: PeerId, reason: HandoffError) {
        let Some(entry) = self.flows.get_mut(&id.flow) else {
            return;
        };
        entry.place = Place::Here;
        entry.attempt = Attempt::None;
        self.answering.remove(&id.flow);
        self.orders.push_back(Order::Reclaim(id));
        let flow = id.flow;
        self.news.push_back(News::Stayed { flow, to, reason });
    }

    /// Its client may know more than the own socket does.
    pub(super) fn lose(&mut self, id: HandoffId, to: PeerId, reason: HandoffError) {
        self.answering.remove(&id.flow);
        self.orders.push_back(Order::Lose(id));
        let flow = id.flow;
        self.news.push_back(News::Lost { flow, to, reason });
        self.end(flow);
    }

    /// Whom an attempt was committed to, and in which life.
    fn committed_to(&self, id: HandoffId) -> Option<(PeerId, Epoch)> {
        match self.place(&id.flow) {
            Place::Committed { epoch, to, life } if epoch == id.epoch => Some((to, life)),
            Place::Elsewhere | Place::Here | Place::Committed { .. } | Place::Moved { .. } => None,
        }
    }

    /// Attempts are committed or over: there is room for the next.
    fn thawed(&mut self, flows: &[FlowId], now: MonoTime) {
        for flow in flows {
            self.asked.remove(flow);
            self.frozen.remove(flow);
        }
        self.freeze_next(now);
        // Several at a time: what is said and done for them is then, too.
        if self.asked.len() <= MAX_ASKED / 2 {
            self.ask_next(now);
        }
    }

    fn ask_next(&mut self, now: MonoTime) {
        while self.asked.len() < MAX_ASKED
            && let Some(flow) = self.queued.pop_front()
        {
            for one in self.party(flow) {
                self.ask(one, now);
            }
        }
    }

    fn ask(&mut self, flow: FlowId, now: MonoTime) {
        let Some(entry) = self.flows.get_mut(&flow) else {
            return;
        };
        let Attempt::Queued { to } = entry.attempt else {
            return;
        };
        let until = now.saturating_add(ASK_PATIENCE);
        entry.attempt = Attempt::Asked { to, until };
        entry.course = Course::begun(now);
        let (epoch, party) = (entry.spent, entry.party);
        self.asked.insert(flow, Some(until));
        self.say(to, HandoffId { flow, epoch }, Step::Prepare(party));
    }

    fn freeze_next(&mut self, now: MonoTime) {
        while self.frozen.len() < MAX_FROZEN
            && let Some(flow) = self.waiting.pop_front()
        {
            for one in self.party(flow) {
                self.freeze(one, now);
            }
        }
    }

    fn freeze(&mut self, flow: FlowId, now: MonoTime) {
        let Some(entry) = self.flows.get(&flow) else {
            return;
        };
        let Attempt::Waiting { to } = entry.attempt else {
            return;
        };
        let epoch = entry.spent;
        let id = HandoffId { flow, epoch };
        self.set(flow, Attempt::Freezing { to, since: now });
        self.frozen.insert(flow);
        self.orders.push_back(Order::Freeze { id, to });
    }
}
