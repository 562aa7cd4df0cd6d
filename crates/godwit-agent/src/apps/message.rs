//! Questions and answers.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use godwit_wire::app::region::{Connection, SlotState};
use godwit_wire::app::{AppMessage, SnapshotPlace};
use godwit_wire::{Endpoint, FlowKey, HandoffRefusal};

use super::client::{Client, Said};
use super::closing::Foreign;
use super::counts::Fault;
use super::ledger::Standing;
use super::region::Patience;
use super::{ANSWER, Answer, Asked, Desk, Held, Office};
use crate::clock;
use crate::locks::lock;
use crate::wake::Wake;

/// A process that says that it has a connection, where, and what it says of it.
pub(super) type Holder = (Arc<Client>, u32, Connection);

/// How long slots are waited for that are being written: by the processes of one account
/// together, as one could have many that never end.
#[derive(Debug, Default)]
pub(super) struct PatienceOfAll(BTreeMap<u32, Patience>);

impl PatienceOfAll {
    pub(super) fn of(&mut self, client: &Client) -> &mut Patience {
        self.0.entry(client.account.uid).or_default()
    }
}

/// A question that was put to a process.
#[derive(Debug)]
pub(super) struct Question {
    request: u32,
    answer: Receiver<Answer>,
    until: Instant,
}

impl Desk {
    /// Whether an open question is about to get what was handed out to nobody.
    fn hand_on(&mut self, held: Held) -> bool {
        let open = |asked: &&mut Asked| asked.held == Some(held) && asked.reply.is_some();
        let next = self.asked.values_mut().find(open);
        next.map(|asked| asked.is_out = true).is_some()
    }
}

/// How a question is put.
#[derive(Debug)]
pub(super) struct Terms {
    /// How long the process has for its answer.
    pub(super) limit: Duration,
    /// What is put back if it is handed out when nobody waits any more.
    pub(super) held: Option<Held>,
    /// Rung when it has answered.
    pub(super) bell: Option<Wake>,
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
    /// Puts a question to a process, if that has room for it: nobody waits for a process
    /// that hears nothing.
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
            is_out: false,
            bell: terms.bell,
        };
        lock(&self.desk).asked.insert(request, asked);
        let until = Instant::now() + terms.limit;
        if let Err(error) = client.say(&message(request), beside) {
            lock(&self.desk).asked.remove(&request);
            let full = error.kind() == io::ErrorKind::WouldBlock;
            return Err(if full {
                HandoffRefusal::NoCapacity
            } else {
                HandoffRefusal::NoServer
            });
        }
        Ok(Question {
            request,
            answer,
            until,
        })
    }

    /// Tells a process what it has to hear, and nobody waits for.
    pub(super) fn tell(&self, client: &Client, message: &AppMessage) -> io::Result<()> {
        match client.say_surely(message) {
            Ok(Said::Now) => {}
            // Its thread says it when there is room.
            Ok(Said::Later) => self.nudge.ring(),
            Err(error) => {
                if error.kind() == io::ErrorKind::QuotaExceeded {
                    self.counts.count(Fault::Deaf);
                }
                return Err(error);
            }
        }
        Ok(())
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
                self.give_up(question).ok_or(HandoffRefusal::NoServer)
            }
        }
    }

    /// Nobody waits for the answer to a question any more: it is the last look.
    pub(super) fn give_up(&self, question: &Question) -> Option<Answer> {
        let mut desk = lock(&self.desk);
        // It may be on its way.
        if let Ok(answer) = question.answer.try_recv() {
            return Some(answer);
        }
        if let Some(asked) = desk.asked.get_mut(&question.request) {
            asked.reply = None;
        }
        None
    }

    /// Takes an answer to whoever waits for it, and returns the bell to be rung, if that
    /// is how one waits. A connection that is handed out when nobody waits any more is put
    /// back.
    pub(super) fn answered(
        &self,
        client: &Client,
        request: u32,
        outcome: Result<Option<SnapshotPlace>, HandoffRefusal>,
        socket: Option<Foreign>,
    ) -> Option<Wake> {
        let mut desk = lock(&self.desk);
        let asked = desk.asked.get(&request);
        if asked.is_none_or(|asked| asked.client != client.id) {
            if let Err(reason) = outcome {
                let pid = client.pid;
                tracing::info!(pid, %reason, "a server has no use for what it was told");
            }
            return None;
        }
        let asked = desk.asked.remove(&request)?;
        let is_out = outcome.is_ok() || asked.is_out;
        let at = clock::now();
        let answer = Answer {
            outcome,
            socket,
            at,
        };
        // Under the lock: who gives up waiting looks once more.
        let is_refused = answer.outcome.is_err();
        let heard = asked.reply.is_some_and(|it| it.send(answer).is_ok());
        // Somebody else has asked for it since, and is about to get it: what is said now
        // would undo that.
        let back = asked.held.filter(|_| is_out && (!heard || is_refused));
        let back = back.filter(|held| !desk.hand_on(*held));
        // Under the lock, too: who asks from here on is heard behind this.
        if let Some(held) = back {
            let request = self.next_request.fetch_add(1, Ordering::Relaxed);
            let subject = held.subject(request);
            if let Err(error) = self.tell(client, &AppMessage::PutBack { subject }) {
                // It has gone, and its connection with it.
                tracing::info!(slot = held.slot, %error, "a connection was not put back");
            }
        }
        drop(desk);
        asked.bell.filter(|_| heard)
    }

    /// Forgets a process: what it was asked stays without an answer.
    pub(super) fn forget(&self, client: u64) {
        let mut desk = lock(&self.desk);
        desk.clients.remove(&client);
        desk.asked.retain(|_, asked| asked.client != client);
        desk.taken.retain(|_, held| held.client != client);
        drop(desk);
        lock(&self.ledger).forget_client(client);
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
    pub(super) fn likely_holder(&self, flow: FlowKey) -> Option<Holder> {
        self.clients().into_iter().find_map(|client| {
            let (slot, found) = client.seen(flow)?;
            let believed = self.believes(&client, slot, &found, &mut 1);
            believed.then_some((client, slot, found))
        })
    }

    /// Processes that say that they have a connection; those that are believed first.
    pub(super) fn holders(&self, flow: FlowKey) -> Vec<Holder> {
        let mut patience = PatienceOfAll::default();
        let (mut holders, mut others) = (Vec::new(), Vec::new());
        for client in self.clients() {
            for (slot, found) in client.look(flow, patience.of(&client)) {
                if self.believes(&client, slot, &found, &mut u32::MAX.clone()) {
                    holders.push((client.clone(), slot, found));
                } else {
                    others.push((client.clone(), slot, found));
                }
            }
        }
        holders.append(&mut others);
        holders
    }

    /// Those of which that is known.
    pub(super) fn owners(&self, flow: FlowKey) -> Vec<Holder> {
        let mut holders = self.holders(flow);
        holders.retain(|(client, slot, found)| {
            // They were asked about just now.
            self.believes(client, *slot, found, &mut 0)
        });
        holders
    }

    /// Whether one of those has the connection, even if it is not clear which.
    pub(super) fn is_known(&self, holders: &[Holder]) -> bool {
        holders.iter().any(|(client, slot, found)| {
            self.standing(client, *slot, found, &mut 0) != Standing::Unknown
        })
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
