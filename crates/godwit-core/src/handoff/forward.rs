//! What an origin has left of a connection: it forwards, as long as that leads to one.
//!
//! The target says when the connection is over. What is said without a link is lost, and
//! a machine that was started anew knows of nothing to say; so whoever forwards for a
//! client that has long been silent asks. It says [`Step::Settled`] once more, which
//! tells a target that knows the connection nothing new; one that does not looks for a
//! socket of it, for it may have lost its memory only, and answers [`Step::Over`] if
//! there is none.

use std::time::Duration;

use godwit_wire::{FlowId, HandoffId};

use super::{Attempt, HandoffError, Handoffs, News, Order, Place, Step};
use crate::{MonoTime, PeerId};

/// What is known of a connection that this node forwards for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// How long its client has not been heard on this node.
    pub lasted: Duration,
    /// How long a target is waited for that can't be asked.
    pub patience: Duration,
    /// Whether it can be.
    pub linked: bool,
}

impl Handoffs {
    /// Whom this node forwards to, if it does.
    pub fn forwards_to(&self, flow: &FlowId) -> Option<PeerId> {
        match self.place(flow) {
            Place::Committed { to, .. } | Place::Moved { to, .. } => Some(to),
            Place::Elsewhere | Place::Here => None,
        }
    }

    /// The client of a connection that this node forwards for is silent. It may be so
    /// for good, and it may speak in a moment: the connection is forgotten if it is over,
    /// or if nobody can say so.
    pub fn handle_silence(&mut self, flow: FlowId, silence: Silence, now: MonoTime) {
        let Some(entry) = self.flows.get_mut(&flow) else {
            return;
        };
        let (epoch, to, is_there) = match entry.place {
            Place::Moved { epoch, to } if entry.attempt == Attempt::None => (epoch, to, true),
            Place::Committed { epoch, to, .. } => (epoch, to, false),
            Place::Elsewhere | Place::Here | Place::Moved { .. } => return,
        };
        let id = HandoffId { flow, epoch };
        if silence.linked {
            entry.unreached = None;
            // What was only committed is asked for anyway.
            if is_there {
                self.say(to, id, Step::Settled);
            }
            return;
        }
        let since = *entry.unreached.get_or_insert(now);
        if now.since(since).min(silence.lasted) < silence.patience {
            return;
        }
        if is_there {
            let silent = silence.lasted;
            self.news.push_back(News::Forgotten { flow, to, silent });
            self.end(flow);
        } else {
            self.lose(id, to, HandoffError::TargetSilent);
        }
    }

    /// The target has nothing of it, or nothing any more.
    pub(super) fn handle_over(&mut self, peer: PeerId, id: HandoffId) {
        let flow = id.flow;
        let gone = Place::Moved {
            epoch: id.epoch,
            to: peer,
        };
        if self.place(&flow) == gone && !self.is_moving(&flow) {
            self.news.push_back(News::Over { flow, to: peer });
            self.end(flow);
        }
    }

    /// An origin has heard that the connection is here, or asks whether it still is.
    pub(super) fn handle_settled(&mut self, peer: PeerId, id: HandoffId) {
        let arrived = self.arrived(peer, id);
        let Some(entry) = self.flows.get_mut(&id.flow) else {
            return self.orders.push_back(Order::Look { id, from: peer });
        };
        if !arrived {
            return;
        }
        if let Some(arrival) = &mut entry.arrival {
            arrival.settled = true;
        }
        if entry.over {
            self.end(id.flow);
        }
    }

    /// [`Order::Look`] has found nothing.
    pub fn handle_absent(&mut self, id: HandoffId, from: PeerId) {
        if !self.flows.contains_key(&id.flow) {
            self.say(from, id, Step::Over);
        }
    }
}
