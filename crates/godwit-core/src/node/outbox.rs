//! What a node has decided and its driver has not yet fetched.

use std::collections::VecDeque;

use godwit_wire::{Message, ShareId};

use super::action::{Action, PeerAction, ShareAction};
use super::event::{Event, EventKind};
use crate::{MonoTime, PeerId};

/// Collects what a node has decided.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outbox {
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    /// Peers that nothing can be decided without unless they are off.
    fences: Vec<PeerId>,
}

impl Outbox {
    pub(crate) fn want_fence(&mut self, peer: PeerId) {
        self.fences.push(peer);
    }

    pub(crate) fn take_fences(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.fences)
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn act_on(&mut self, share: ShareId, action: ShareAction) {
        self.act(Action::Share(share, action));
    }

    pub(crate) fn send(&mut self, peer: PeerId, message: Message) {
        self.act(Action::Peer(peer, PeerAction::Send(message)));
    }

    pub(crate) fn tell(&mut self, at: MonoTime, kind: EventKind) {
        self.events.push_back(Event { at, kind });
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
