//! Handoffs between nodes: connections that go to another server one by one.
//!
//! A share whose connections have twins moves as a whole ([`super::moving`]), and
//! none of them comes or goes by itself.

mod work;

use godwit_wire::{
    Epoch, FlowId, HandoffId, HandoffMessage, HandoffRefusal, HandoffStep, Message, ShareId,
};

use super::Node;
use super::action::Action;
use super::context::Context;
use super::event::{EventKind, FlowNews};
use super::input::{FlowEvent, FlowEventKind};
use super::share::ShareSide;
use crate::handoff::{Course, HandoffError, Handoffs, News, Order, Silence, Speaker, Step};
use crate::{MonoTime, PeerId};

pub use work::{HandoffReport, HandoffWork};

/// The connections of a share that go one by one.
#[derive(Debug, Clone)]
pub(super) struct Singles {
    /// What this share and those of the other servers have in common.
    within: ShareId,
    handoffs: Handoffs,
}

impl Singles {
    pub(super) fn new(within: ShareId) -> Self {
        Self {
            within,
            handoffs: Handoffs::new(),
        }
    }
}

impl Node {
    /// Something is known of a connection that goes to another server by itself.
    pub fn handle_handoff_report(&mut self, share: ShareId, report: HandoffReport, now: MonoTime) {
        self.with_share(share, now, |share, context| {
            share.note_report(report, context);
        });
        self.settle(now);
    }

    /// A peer speaks of a handoff: to the share of this node that is for the same
    /// connections, or to one that has none of that kind.
    pub(super) fn handle_handoff(
        &mut self,
        by: Speaker,
        (within, id): (ShareId, HandoffId),
        step: &HandoffStep,
        now: MonoTime,
    ) {
        let is_within = |share: &&ShareSide| share.moves_within() == Some(within);
        let ours = self.shares.iter().find(is_within).map(|share| share.id);
        let known = self.with_share(ours.unwrap_or(within), now, |share, context| {
            share.hear_step(by, id, step, context);
        });
        if !known {
            self.blame(by.peer, "spoke of a share that is not common", now);
        }
    }

    /// What was under way on an old link is void, also when a new one takes its place
    /// before it was missed.
    pub(super) fn lose_handoffs(&mut self, peer: PeerId, now: MonoTime) {
        self.with_shares(now, |share, context| {
            share.end_handoffs(peer, context.now);
            share.settle_handoffs(context);
        });
    }
}

impl ShareSide {
    pub(super) fn moves_within(&self) -> Option<ShareId> {
        self.singles.as_ref().map(|singles| singles.within)
    }

    /// Somebody wants connections of this share to go to a peer, together.
    pub(super) fn move_flows(&mut self, flows: &[FlowId], to: PeerId, context: &mut Context<'_>) {
        let begun = match &mut self.singles {
            None => Err(HandoffError::Refused(HandoffRefusal::WrongService)),
            Some(_) if !context.is_linked(to) => Err(HandoffError::LinkLost),
            Some(singles) => singles.handoffs.begin_together(flows, to, context.now),
        };
        if let Err(reason) = begun {
            for flow in flows {
                self.stay(*flow, to, reason, context);
            }
        }
    }

    pub(super) fn handoffs_due(&self) -> Option<MonoTime> {
        self.singles.as_ref()?.handoffs.poll_timeout()
    }

    pub(super) fn handle_handoffs_timeout(&mut self, now: MonoTime) {
        if let Some(singles) = &mut self.singles {
            singles.handoffs.handle_timeout(now);
        }
    }

    /// This agent ends: each connection is whole on one side or the other.
    pub(super) fn quit_handoffs(&mut self, context: &mut Context<'_>) {
        for peer in (0..).map(PeerId).take(context.peers.len()) {
            self.end_handoffs(peer, context.now);
        }
        self.settle_handoffs(context);
    }

    fn end_handoffs(&mut self, peer: PeerId, now: MonoTime) {
        if let Some(singles) = &mut self.singles {
            singles.handoffs.handle_link_lost(peer, now);
        }
    }

    /// One that has its home here, and ends here; not what is left here of one that
    /// is elsewhere.
    pub(super) fn note_single_event(&mut self, event: FlowEvent, context: &Context<'_>) {
        let singles = self.singles.as_ref();
        let is_here = singles.is_some_and(|it| it.handoffs.is_here(&event.flow));
        if is_here && event.kind == FlowEventKind::Ended {
            self.note_report(HandoffReport::Ended(event.flow), context);
        }
    }

    fn note_report(&mut self, report: HandoffReport, context: &Context<'_>) {
        let now = context.now;
        let Some(Singles { handoffs, .. }) = &mut self.singles else {
            return;
        };
        match report {
            HandoffReport::Resumed(flow, written) => handoffs.handle_resumed(flow, written, now),
            HandoffReport::Held(id, result) => handoffs.handle_held(id, result, now),
            HandoffReport::Frozen(id, result) => handoffs.handle_frozen(id, result, now),
            HandoffReport::Restored(id, result) => handoffs.handle_restored(id, result, now),
            HandoffReport::Placed(id) => handoffs.handle_placed(id, now),
            HandoffReport::Ended(flow) => handoffs.handle_ended(flow, now),
            HandoffReport::Silent {
                flow,
                lasted,
                patience,
            } => {
                let to = handoffs.forwards_to(&flow);
                let silence = Silence {
                    lasted,
                    patience,
                    linked: to.is_some_and(|to| context.is_linked(to)),
                };
                handoffs.handle_silence(flow, silence, now);
            }
            HandoffReport::Absent { id, from } => handoffs.handle_absent(id, from),
        }
    }

    fn hear_step(
        &mut self,
        by: Speaker,
        id: HandoffId,
        step: &HandoffStep,
        context: &mut Context<'_>,
    ) {
        let (share, now) = (self.id, context.now);
        let Some(Singles { handoffs, .. }) = &mut self.singles else {
            return self.refuse_step(by.peer, id, step, context);
        };
        match step {
            HandoffStep::Held { packet } => {
                if handoffs.is_here(&id.flow) {
                    let (flow, packet) = (id.flow, packet.clone());
                    let work = HandoffWork::Held { flow, packet };
                    context.out.act(Action::Handoff(share, work));
                }
            }
            HandoffStep::State { last, part } => {
                if !handoffs.is_holding(by.peer, id) {
                    return;
                }
                let part = part.clone();
                let work = HandoffWork::State { id, part };
                context.out.act(Action::Handoff(share, work));
                if *last {
                    handoffs.handle_step(by, id, Step::State, now);
                }
            }
            HandoffStep::Prepare { party } => {
                handoffs.handle_step(by, id, Step::Prepare(*party), now);
            }
            HandoffStep::Ready => handoffs.handle_step(by, id, Step::Ready, now),
            HandoffStep::Prepared => handoffs.handle_step(by, id, Step::Prepared, now),
            HandoffStep::Commit => handoffs.handle_step(by, id, Step::Commit, now),
            HandoffStep::Done => handoffs.handle_step(by, id, Step::Done, now),
            HandoffStep::Settled => handoffs.handle_step(by, id, Step::Settled, now),
            HandoffStep::Abort => handoffs.handle_step(by, id, Step::Abort, now),
            HandoffStep::Refused { reason } => {
                handoffs.handle_step(by, id, Step::Refused(*reason), now);
            }
            HandoffStep::Over => handoffs.handle_step(by, id, Step::Over, now),
        }
    }

    /// Nothing comes here; what an earlier agent had is not known.
    fn refuse_step(
        &self,
        peer: PeerId,
        id: HandoffId,
        step: &HandoffStep,
        context: &mut Context<'_>,
    ) {
        let refused = |reason| HandoffStep::Refused { reason };
        let answer = match step {
            HandoffStep::Prepare { .. } => refused(HandoffRefusal::WrongService),
            HandoffStep::Commit => refused(HandoffRefusal::Forgotten),
            // Or it would be forwarded to this node for ever.
            HandoffStep::Settled => HandoffStep::Over,
            HandoffStep::Ready
            | HandoffStep::State { .. }
            | HandoffStep::Prepared
            | HandoffStep::Done
            | HandoffStep::Abort
            | HandoffStep::Held { .. }
            | HandoffStep::Refused { .. }
            | HandoffStep::Over => return,
        };
        self.say_step((peer, Epoch::NONE), id, answer, context);
    }

    /// Passes on what has been decided.
    pub(super) fn settle_handoffs(&mut self, context: &mut Context<'_>) {
        while let Some(order) = self
            .singles
            .as_mut()
            .and_then(|it| it.handoffs.poll_order())
        {
            match order {
                Order::Say { to, id, step } if step != Step::State => {
                    let life = self.machine.epoch();
                    self.say_step((to, life), id, spoken(step), context);
                }
                Order::Say { .. }
                | Order::Hold { .. }
                | Order::Freeze { .. }
                | Order::Restore(_)
                | Order::Commit { .. }
                | Order::Place(_)
                | Order::Thaw(_)
                | Order::Reclaim(_)
                | Order::Lose(_)
                | Order::Release(_)
                | Order::Discard { .. }
                | Order::Forget(_)
                | Order::Look { .. } => self.obey(order, context),
            }
        }
        while let Some(news) = self.singles.as_mut().and_then(|it| it.handoffs.poll_news()) {
            match news {
                News::Moved { id, to, course } => {
                    let to = context.peer_name(to);
                    self.tell_flow(id.flow, FlowNews::Moved { to, course }, context);
                    self.answer_move(id.flow, Ok(course), context);
                }
                News::Stayed { flow, to, reason } => self.stay(flow, to, reason, context),
                News::Lost { flow, to, reason } => {
                    let to = context.peer_name(to);
                    self.tell_flow(flow, FlowNews::Lost { to, reason }, context);
                    self.answer_move(flow, Err(reason), context);
                }
                News::Over { flow, to } => {
                    let to = context.peer_name(to);
                    self.tell_flow(flow, FlowNews::Over { to }, context);
                }
                News::Forgotten { flow, to, silent } => {
                    let to = context.peer_name(to);
                    self.tell_flow(flow, FlowNews::Forgotten { to, silent }, context);
                }
                News::Arrived { id, from, course } => {
                    let from = context.peer_name(from);
                    self.tell_flow(id.flow, FlowNews::Arrived { from, course }, context);
                }
            }
        }
    }

    fn obey(&self, order: Order, context: &mut Context<'_>) {
        let handoffs = self.singles.as_ref().map(|singles| &singles.handoffs);
        let written = handoffs.and_then(|handoffs| handoffs.written(&order.flow()));
        let work = HandoffWork::Obey { order, written };
        let share = self.id;
        context.out.act(Action::Handoff(share, work));
    }

    fn stay(&self, flow: FlowId, to: PeerId, reason: HandoffError, context: &mut Context<'_>) {
        let to = context.peer_name(to);
        self.tell_flow(flow, FlowNews::Stayed { to, reason }, context);
        self.answer_move(flow, Err(reason), context);
    }

    fn answer_move(
        &self,
        flow: FlowId,
        outcome: Result<Course, HandoffError>,
        context: &mut Context<'_>,
    ) {
        let work = HandoffWork::Ended { flow, outcome };
        let share = self.id;
        context.out.act(Action::Handoff(share, work));
    }

    fn tell_flow(&self, flow: FlowId, news: FlowNews, context: &mut Context<'_>) {
        let share = self.id;
        context
            .out
            .tell(context.now, EventKind::Flow { share, flow, news });
    }

    /// In a life of this node's; [`Epoch::NONE`] if it can't speak for what it was told.
    fn say_step(
        &self,
        (to, life): (PeerId, Epoch),
        id: HandoffId,
        step: HandoffStep,
        context: &mut Context<'_>,
    ) {
        let said = Message::Handoff(HandoffMessage {
            share: self.moves_within().unwrap_or(self.id),
            epoch: life,
            id,
            step,
        });
        context.send(to, said);
    }
}

/// As a message. The state has bytes, which only the driver has; by itself it
/// is the end of nothing.
const fn spoken(step: Step) -> HandoffStep {
    match step {
        Step::Prepare(party) => HandoffStep::Prepare { party },
        Step::Ready => HandoffStep::Ready,
        Step::State => HandoffStep::State {
            last: true,
            part: Vec::new(),
        },
        Step::Prepared => HandoffStep::Prepared,
        Step::Commit => HandoffStep::Commit,
        Step::Done => HandoffStep::Done,
        Step::Settled => HandoffStep::Settled,
        Step::Abort => HandoffStep::Abort,
        Step::Refused(reason) => HandoffStep::Refused { reason },
        Step::Over => HandoffStep::Over,
    }
}
