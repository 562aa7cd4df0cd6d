//! Questions and answers.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use godwit_sock::send_with;
use godwit_wire::app::region::{Connection, SlotState};
use godwit_wire::app::{AppMessage, MAX_MESSAGE, SnapshotPlace};
use godwit_wire::{Endpoint, FlowKey, HandoffRefusal};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::client::Client;
use super::{ANSWER, Answer, Asked, Bell, Held, Office, lock};
use crate::clock;

/// A question that was put to a process.
#[derive(Debug)]
pub(super) struct Question {
    request: u32,
    answer: Receiver<Answer>,
    until: Instant,
}

/// How a question is put.
#[derive(Debug)]
pub(super) struct Terms {
    /// How long the process has for its answer.
    pub(super) limit: Duration,
    /// What is put back if it is handed out when nobody waits any more.
    pub(super) held: Option<Held>,
    /// Rung when it has answered.
    pub(super) bell: Option<Bell>,
}

impl Terms {
    /// Of a question that is answered at once, and about nothing that is handed out.
    pub(super) const fn plain() -> Self {
        Self {
            limit: ANSWER,
            held: None,
            bell: None,
        }
    }
}

impl Office {
    /// Puts a question to a process.
    pub(super) fn put(
        &self,
        client: &Client,
        terms: Terms,
        message: impl FnOnce(u32) -> AppMessage,
        beside: &[BorrowedFd<'_>],
    ) -> Result<Question, HandoffRefusal> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = mpsc::channel();
        let asked = Asked {
            client: client.id,
            reply: Some(reply),
            held: terms.held,
            bell: terms.bell,
        };
        lock(&self.desk).asked.insert(request, asked);
        let until = Instant::now() + terms.limit;
        if say_until(until, client, &message(request), beside).is_err() {
            lock(&self.desk).asked.remove(&request);
            return Err(HandoffRefusal::NoServer);
        }
        Ok(Question {
            request,
            answer,
            until,
        })
    }

    /// The answer to a question, if it has come or does not come any more.
    pub(super) fn look_for(&self, question: &Question) -> Option<Result<Answer, HandoffRefusal>> {
        match question.answer.try_recv() {
            Ok(answer) => Some(Ok(answer)),
            Err(TryRecvError::Empty) if Instant::now() < question.until => None,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Some(self.wait_for(question)),
        }
    }

    /// Waits for the answer to a question.
    pub(super) fn wait_for(&self, question: &Question) -> Result<Answer, HandoffRefusal> {
        let left = question.until.saturating_duration_since(Instant::now());
        match question.answer.recv_timeout(left) {
            Ok(answer) => Ok(answer),
            // It has gone.
            Err(RecvTimeoutError::Disconnected) => Err(HandoffRefusal::NoServer),
            Err(RecvTimeoutError::Timeout) => {
                let mut desk = lock(&self.desk);
                // It may be on its way.
                if let Ok(answer) = question.answer.try_recv() {
                    return Ok(answer);
                }
                if let Some(asked) = desk.asked.get_mut(&question.request) {
                    asked.reply = None;
                }
                Err(HandoffRefusal::NoServer)
            }
        }
    }

    /// Takes an answer to whoever waits for it. A connection that is handed out when
    /// nobody does any more is put back.
    pub(super) fn answered(
        &self,
        client: &Client,
        request: u32,
        outcome: Result<Option<SnapshotPlace>, HandoffRefusal>,
        socket: Option<OwnedFd>,
    ) {
        let mut desk = lock(&self.desk);
        let asked = desk.asked.get(&request);
        if asked.is_none_or(|asked| asked.client != client.id) {
            return;
        }
        let Some(asked) = desk.asked.remove(&request) else {
            return;
        };
        let is_handed_out = outcome.is_ok();
        let at = clock::now();
        let answer = Answer {
            outcome,
            socket,
            at,
        };
        // Under the lock: who gives up waiting looks once more.
        let heard = asked.reply.is_some_and(|it| it.send(answer).is_ok());
        drop(desk);
        match (heard, asked.bell, asked.held) {
            (true, bell, _) => bell.iter().for_each(Bell::ring),
            (false, _, Some(held)) if is_handed_out => {
                let request = self.next_request.fetch_add(1, Ordering::Relaxed);
                let subject = held.subject(request);
                if let Err(error) = say(client, &AppMessage::PutBack { subject }, &[]) {
                    // It has gone, or reads nothing: then its connection stands still.
                    tracing::warn!(slot = held.slot, %error, "a connection was not put back");
                }
            }
            (false, ..) => {}
        }
    }

    /// Forgets a process: what it was asked stays without an answer.
    pub(super) fn forget(&self, client: u64) {
        let mut desk = lock(&self.desk);
        desk.clients.remove(&client);
        desk.asked.retain(|_, asked| asked.client != client);
        desk.taken.retain(|_, held| held.client != client);
    }

    pub(super) fn clients(&self) -> Vec<Arc<Client>> {
        lock(&self.desk).clients.values().cloned().collect()
    }

    pub(super) fn client(&self, held: Held) -> Option<Arc<Client>> {
        self.client_by_id(held.client)
    }

    pub(super) fn client_by_id(&self, id: u64) -> Option<Arc<Client>> {
        lock(&self.desk).clients.get(&id).cloned()
    }

    /// A process that had a connection when all were looked at last, and says so
    /// still: of many connections only the first is looked for everywhere.
    pub(super) fn likely_holder(&self, flow: FlowKey) -> Option<(Arc<Client>, u32, Connection)> {
        self.clients().into_iter().find_map(|client| {
            let (slot, connection) = client.seen(flow)?;
            Some((client, slot, connection))
        })
    }

    /// Processes that say that they have a connection.
    pub(super) fn holders(&self, flow: FlowKey) -> Vec<(Arc<Client>, u32, Connection)> {
        let mut holders = Vec::new();
        for client in self.clients() {
            let found = client.look(flow).into_iter();
            holders.extend(found.map(|(slot, connection)| (client.clone(), slot, connection)));
        }
        holders
    }

    /// A connection that was taken by an agent before this one.
    pub(super) fn parked(&self, flow: FlowKey) -> Option<Held> {
        let holders = self.holders(flow).into_iter();
        let mut parked = holders.filter(|(_, _, found)| found.state == SlotState::Parked);
        parked.next().map(|(client, slot, connection)| Held {
            client: client.id,
            slot,
            cookie: connection.cookie,
        })
    }

    /// Processes that accept connections to an address, and their name for the
    /// listener; whoever was served last comes last.
    pub(super) fn accepting(&self, endpoint: Endpoint) -> Vec<(Arc<Client>, u32)> {
        let last = lock(&self.desk).served;
        let mut accepting: Vec<_> = self
            .clients()
            .into_iter()
            .filter_map(|client| {
                let number = client.listener(endpoint)?;
                Some((client, number))
            })
            .collect();
        accepting.sort_by_key(|(client, _)| (client.id <= last, client.id));
        accepting
    }
}

/// Sends one message to a process. One that has much to read yet is waited for: what
/// it is not told it never learns.
fn say_until(
    until: Instant,
    client: &Client,
    message: &AppMessage,
    beside: &[BorrowedFd<'_>],
) -> io::Result<()> {
    loop {
        let said = say(client, message, beside);
        let full = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        let left = until.saturating_duration_since(Instant::now());
        if !said.as_ref().is_err_and(full) || left.is_zero() {
            return said;
        }
        let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut room = [PollFd::new(client.socket.as_fd(), PollFlags::POLLOUT)];
        // Whatever comes of it is seen by the next try.
        let _ = poll(&mut room, limit);
    }
}

/// Sends one message to a process.
pub(super) fn say(
    client: &Client,
    message: &AppMessage,
    beside: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(MAX_MESSAGE);
    message.emit(&mut bytes);
    send_with(client.socket.as_fd(), &bytes, beside)
}
