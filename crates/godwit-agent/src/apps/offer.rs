//! Connections that server processes are given, one after the other or several at a
//! time: each answer takes as long as a process needs to be woken up.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use godwit_sock::socket_cookie;
use godwit_wire::app::{AppMessage, Carried, SnapshotKind};
use godwit_wire::{FlowKey, HandoffRefusal};

use super::client::Client;
use super::message::{Question, Terms};
use super::{ANSWER, Apps, file_of};
use crate::locks::lock;

/// How often a process is looked at that has no room.
const ROOM: Duration = Duration::from_millis(1);

/// A connection that a process is asked to accept.
#[derive(Debug)]
pub struct Offer {
    flow: FlowKey,
    socket: OwnedFd,
    snapshot: Option<(SnapshotKind, u32)>,
    file: Option<File>,
    /// Who is asked if the one before does not take it, and who had no room to hear of it.
    next: VecDeque<(Arc<Client>, u32)>,
    /// Until when room is waited for.
    until: Instant,
    question: Option<Question>,
    outcome: Result<(), HandoffRefusal>,
}

impl Apps {
    /// Has a process accept a connection that another server had, with the
    /// snapshot that it came with; without one it has no state.
    ///
    /// # Errors
    /// `NoServer` if nobody takes it, `NoCapacity` if too many wait already. A
    /// process may have the socket all the same: disconnect it.
    pub fn give(
        &self,
        flow: FlowKey,
        socket: OwnedFd,
        snapshot: Option<Carried>,
    ) -> Result<(), HandoffRefusal> {
        self.wait_for(self.offer(flow, socket, snapshot)?)
    }

    /// Waits until a process has taken up what it was offered.
    ///
    /// # Errors
    /// As [`Self::give`].
    pub fn wait_for(&self, mut offer: Offer) -> Result<(), HandoffRefusal> {
        loop {
            if let Some(question) = offer.question.take() {
                let answer = self.office.wait_for(&question);
                self.go_on_offering(&mut offer, answer.and_then(|it| it.outcome.map(drop)));
            } else if offer.waits_for_room() {
                thread::sleep(ROOM);
                self.offer_to_next(&mut offer);
            } else {
                return offer.outcome;
            }
        }
    }

    /// As [`Self::give`], without waiting for the answer: [`Self::taken_up`] has it.
    ///
    /// # Errors
    /// If there is no room to copy the snapshot for the process.
    pub fn offer(
        &self,
        flow: FlowKey,
        socket: OwnedFd,
        snapshot: Option<Carried>,
    ) -> Result<Offer, HandoffRefusal> {
        let file = match &snapshot {
            Some(carried) if !carried.bytes.is_empty() => Some(file_of(&carried.bytes)?),
            Some(_) | None => None,
        };
        let size = snapshot.map(|carried| {
            let length = u32::try_from(carried.bytes.len()).unwrap_or(u32::MAX);
            (carried.kind, length)
        });
        let mut offer = Offer {
            flow,
            socket,
            snapshot: size,
            file,
            next: self.office.accepting(flow.service).into(),
            until: Instant::now() + ANSWER,
            question: None,
            outcome: Err(HandoffRefusal::NoServer),
        };
        self.offer_to_next(&mut offer);
        Ok(offer)
    }

    /// Whether a process has taken up what it was offered, or why none has; `None` as
    /// long as one is waited for.
    pub fn taken_up(&self, offer: &mut Offer) -> Option<Result<(), HandoffRefusal>> {
        if let Some(question) = &offer.question {
            let answer = self.office.look_for(question)?;
            offer.question = None;
            self.go_on_offering(offer, answer.and_then(|it| it.outcome.map(drop)));
        } else if offer.waits_for_room() {
            self.offer_to_next(offer);
        }
        let is_over = offer.question.is_none() && !offer.waits_for_room();
        is_over.then_some(offer.outcome)
    }

    fn go_on_offering(&self, offer: &mut Offer, outcome: Result<(), HandoffRefusal>) {
        offer.outcome = outcome;
        if outcome.is_err() {
            self.offer_to_next(offer);
        }
    }

    fn offer_to_next(&self, offer: &mut Offer) {
        for _ in 0..offer.next.len() {
            let Some((client, number)) = offer.next.pop_front() else {
                return;
            };
            let snapshot = offer.snapshot;
            let message = |request| AppMessage::Give {
                request,
                number,
                snapshot,
            };
            // It belongs to the agent's account. Before its server may enter it.
            if let Ok(cookie) = socket_cookie(offer.socket.as_fd()) {
                self.office.note_shown(&client, offer.flow, cookie);
            }
            let mut beside = vec![offer.socket.as_fd()];
            beside.extend(offer.file.as_ref().map(File::as_fd));
            match self.office.put(&client, Terms::plain(), message, &beside) {
                Ok(question) => {
                    lock(&self.office.desk).served = client.id;
                    offer.question = Some(question);
                    return;
                }
                // It is another node's no more: it is not ended for a process that is slow.
                Err(HandoffRefusal::NoCapacity) if Instant::now() < offer.until => {
                    offer.outcome = Err(HandoffRefusal::NoCapacity);
                    offer.next.push_back((client, number));
                }
                Err(refusal) => offer.outcome = Err(refusal),
            }
        }
    }
}

impl Offer {
    fn waits_for_room(&self) -> bool {
        self.outcome.is_err() && !self.next.is_empty()
    }
}
