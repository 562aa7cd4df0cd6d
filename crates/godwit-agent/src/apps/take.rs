//! Connections that are taken out of their servers' hands, one after the other or
//! several at a time: each answer takes as long as a process needs to be woken up.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use godwit_wire::app::region::Connection;
use godwit_wire::app::{AppMessage, Carried, SnapshotPlace};
use godwit_wire::{FlowKey, HandoffRefusal};

use super::client::Client;
use super::message::{Question, Terms};
use super::{ANSWER, Answer, AppSnapshot, Apps, Held, Taken};
use crate::locks::lock;
use crate::wake::Wake;

#[cfg(test)]
mod tests;

/// How often an answer is looked for.
const GLANCE: Duration = Duration::from_millis(1);

/// A connection that its server is asked for. Whoever does not want it any more
/// [gives it up](Apps::give_up).
#[derive(Debug)]
#[must_use]
pub struct Take {
    flow: FlowKey,
    patience: Duration,
    /// Rung when there may be an answer, by the thread that has heard it.
    bell: Option<Wake>,
    /// Who is asked if the one before does not have it.
    next: VecDeque<(Arc<Client>, u32, Connection)>,
    /// Who was: a second answer of the same could be undone by what follows from a late
    /// first one.
    asked: Vec<Held>,
    /// Whether all processes were looked at.
    searched: bool,
    /// Whether an earlier agent has stopped its socket.
    is_stopped: bool,
    pending: Option<Pending>,
    refusal: HandoffRefusal,
}

impl Take {
    /// Of which nobody has been asked, but one process may be next.
    fn of(flow: FlowKey, next: Option<(Arc<Client>, u32, Connection)>) -> Self {
        Self {
            flow,
            patience: Duration::ZERO,
            bell: None,
            next: next.into_iter().collect(),
            asked: Vec::new(),
            searched: false,
            is_stopped: false,
            pending: None,
            refusal: HandoffRefusal::NoServer,
        }
    }
}

/// A process that was asked.
#[derive(Debug)]
struct Pending {
    question: Question,
    client: Arc<Client>,
    held: Held,
}

impl Apps {
    /// Takes a connection out of its server's hands. If the server has read or
    /// written since it exported its state, its next export is waited for, so
    /// long. Waits up to two seconds longer for a process that says nothing.
    ///
    /// # Errors
    /// `NoServer` if no process has it; `Ended`, `SnapshotBehind`, `InSession`;
    /// `NotMovable` if what the process hands out is another connection, `Corrupt`
    /// if the snapshot is not where it says. The server goes on with it then.
    pub fn take(&self, flow: FlowKey, patience: Duration) -> Result<Taken, HandoffRefusal> {
        self.wait_until_taken(self.ask_for(flow, patience, None))
    }

    /// Takes one that an earlier agent has stopped and its server has let go of, and waits
    /// no longer than this.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_within(&self, flow: FlowKey, limit: Duration) -> Result<Taken, HandoffRefusal> {
        let end = Instant::now() + limit;
        let mut take = Take::of(flow, self.office.likely_holder(flow));
        // It is in nobody's hands, and stays so if the answer is late: the server could do
        // nothing with a socket that is stopped.
        take.is_stopped = true;
        self.ask_next(&mut take);
        loop {
            if let Some(outcome) = self.taken(&mut take) {
                return outcome;
            }
            if Instant::now() >= end {
                self.give_up(take);
                return Err(HandoffRefusal::NoServer);
            }
            thread::sleep(GLANCE);
        }
    }

    /// As [`Self::take`], without waiting: [`Self::taken`] has it when the bell has
    /// rung, or later, as no bell is rung for a process that ends.
    pub fn ask_for(&self, flow: FlowKey, patience: Duration, bell: Option<Wake>) -> Take {
        let mut take = Take {
            patience,
            bell,
            ..Take::of(flow, self.office.likely_holder(flow))
        };
        self.ask_next(&mut take);
        take
    }

    /// Waits until a connection is taken, or is not.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn wait_until_taken(&self, mut take: Take) -> Result<Taken, HandoffRefusal> {
        while let Some(pending) = take.pending.take() {
            let answer = self.office.wait_for(&pending.question);
            match self.receive(take.flow, &pending, answer) {
                Ok(taken) => return Ok(taken),
                Err(refusal) => self.go_on_asking(&mut take, refusal),
            }
        }
        Err(take.refusal)
    }

    /// Nobody wants a connection any more: it is put back if it was handed out, or when
    /// it is.
    pub fn give_up(&self, mut take: Take) {
        if let Some(pending) = take.pending.take()
            && let Some(answer) = self.office.give_up(&pending.question)
            && let Ok(taken) = self.receive(take.flow, &pending, Ok(answer))
        {
            drop(taken.socket);
            self.put_back(take.flow);
        }
    }

    /// Whether a connection is taken, or why it is not; `None` as long as its server
    /// has time for an answer.
    pub fn taken(&self, take: &mut Take) -> Option<Result<Taken, HandoffRefusal>> {
        while let Some(pending) = &take.pending {
            let answer = self.office.look_for(&pending.question)?;
            let outcome = self.receive(take.flow, pending, answer);
            take.pending = None;
            match outcome {
                Ok(taken) => return Some(Ok(taken)),
                Err(refusal) => self.go_on_asking(take, refusal),
            }
        }
        Some(Err(take.refusal))
    }

    fn go_on_asking(&self, take: &mut Take, refusal: HandoffRefusal) {
        take.refuse(refusal);
        self.ask_next(take);
    }

    fn ask_next(&self, take: &mut Take) {
        loop {
            while let Some((client, slot, connection)) = take.next.pop_front() {
                let held = Held {
                    client: client.id,
                    slot,
                    cookie: connection.cookie,
                };
                if take.asked.contains(&held) {
                    continue;
                }
                take.asked.push(held);
                let company = &connection.session;
                if self.office.has_company(company, take.flow, held) {
                    take.refuse(HandoffRefusal::InSession);
                    continue;
                }
                let patience_ms = u32::try_from(take.patience.as_millis()).unwrap_or(u32::MAX);
                let message = |request| AppMessage::Take {
                    subject: held.subject(request),
                    patience_ms,
                };
                let terms = Terms {
                    limit: take.patience + ANSWER,
                    held: (!take.is_stopped).then_some(held),
                    bell: take.bell.clone(),
                };
                match self.office.put(&client, terms, message, &[]) {
                    Ok(question) => {
                        take.pending = Some(Pending {
                            question,
                            client,
                            held,
                        });
                        return;
                    }
                    Err(refusal) => take.refuse(refusal),
                }
            }
            if take.searched {
                return;
            }
            take.searched = true;
            take.next = self.office.holders(take.flow).into();
        }
    }

    /// What a process has answered.
    fn receive(
        &self,
        flow: FlowKey,
        pending: &Pending,
        answer: Result<Answer, HandoffRefusal>,
    ) -> Result<Taken, HandoffRefusal> {
        let Answer {
            outcome,
            socket,
            at,
        } = answer?;
        let place = outcome?;
        let client = &pending.client;
        let taken = (|| {
            let socket = socket.ok_or(HandoffRefusal::NotMovable)?;
            let named = (flow, pending.held.cookie);
            if !self.office.is_shown(client, socket.as_fd(), named) {
                return Err(HandoffRefusal::NotMovable);
            }
            let snapshot = place.map(|place| snapshot(&pending.client, place));
            Ok(Taken {
                socket: socket.into_inner(),
                snapshot: snapshot.transpose()?,
                since: at,
            })
        })();
        lock(&self.office.desk).taken.insert(flow, pending.held);
        if taken.is_err() {
            self.put_back(flow);
        }
        taken
    }
}

impl Take {
    /// A process does not hand it out. Another one may have it if this has left its
    /// slot, or has had a connection with the same addresses before.
    fn refuse(&mut self, refusal: HandoffRefusal) {
        self.refusal = refusal;
        let has_left = refusal == HandoffRefusal::NoServer && !self.searched;
        if !has_left && refusal != HandoffRefusal::Ended {
            self.next.clear();
            self.searched = true;
        }
    }
}

fn snapshot(client: &Client, place: SnapshotPlace) -> Result<AppSnapshot, HandoffRefusal> {
    let bytes = client.region.snapshot(&place);
    Ok(AppSnapshot {
        carried: Carried {
            kind: place.kind,
            bytes: bytes.ok_or(HandoffRefusal::Corrupt)?,
        },
        read: place.read,
        written: place.written,
    })
}
