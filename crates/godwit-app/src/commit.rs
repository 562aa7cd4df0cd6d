//! Snapshots that must never be gone back from: the server waits until its standby
//! has what it takes.
//!
//! The snapshot is in the region like any other, and the only one of its connection
//! there: what is older is never used again, by no agent, also if there is none now.
//! The agent gets the socket beside its message, for the output that the client has not
//! acknowledged. Its answer is what the call returns, and says no only when the standby
//! will not serve the connection.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use godwit_wire::app::{
    AppMessage, CommitRefusal, MAX_SNAPSHOT, SnapshotKind, SnapshotPlace, Subject,
};

use crate::descriptor::{borrow, option, set_option};
use crate::error::Error;
use crate::kept::lost;
use crate::process::{Arrival, Entry, Process, lock};
use crate::served::{Served, Stage};

/// How long a server waits for an agent that says nothing. One that works answers
/// within two seconds, whatever has become of the standby.
const LIMIT: Duration = Duration::from_secs(5);

/// Between two looks at a connection that is away, or stopped.
const LOOK: Duration = Duration::from_millis(1);

/// A slot that no region has.
const NOWHERE: u32 = u32::MAX;

/// What a server waits for.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    outcome: Mutex<Option<Outcome>>,
    changed: Condvar,
}

/// What has become of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Safe,
    Refused,
    /// The agent has gone.
    Gone,
    /// It says nothing.
    Silent,
}

impl Ticket {
    fn settle(&self, outcome: Outcome) {
        lock(&self.outcome).get_or_insert(outcome);
        self.changed.notify_all();
    }

    fn wait(&self, until: Instant) -> Outcome {
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(outcome) = *outcome {
                return outcome;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Outcome::Silent;
            }
            let waited = self.changed.wait_timeout(outcome, left);
            outcome = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How a commit begins.
enum Begun {
    /// The agent has been told.
    Asked(u32, Arc<Ticket>),
    /// There is none. The next one sees it.
    Alone,
    /// The connection is away, or another thread commits it.
    Busy,
    /// The number means another socket than before.
    Other,
}

impl Process {
    /// Keeps a snapshot that must never be gone back from.
    pub(crate) fn commit(&self, number: i32, bytes: &[u8]) -> Result<(), Error> {
        loop {
            let entry = match self.find(number) {
                Some(entry) => entry,
                None if self.is_connected() => self.enter(number, false, Arrival::Inherited)?,
                None if bytes.len() > MAX_SNAPSHOT as usize => return Err(Error::TooLarge),
                None => return Err(Error::Unprotected),
            };
            let (begun, error) = self.begin_commit(&entry, bytes)?;
            match begun {
                Begun::Asked(request, ticket) => {
                    let outcome = self.await_commit(&entry, request, &ticket);
                    return error.map_or(outcome, Err);
                }
                Begun::Alone => return Err(error.unwrap_or(Error::Unprotected)),
                Begun::Other => {
                    self.enter(number, false, Arrival::Inherited)?;
                }
                // As a read or a write would wait.
                Begun::Busy => thread::sleep(LOOK),
            }
        }
    }

    /// Tells the agent. One that can't be kept is told, too: its server has left the
    /// one before, and no standby may go back to it.
    fn begin_commit(&self, entry: &Entry, bytes: &[u8]) -> Result<(Begun, Option<Error>), Error> {
        let mut served = lock(entry);
        let connected = self.is_connected();
        match served.stage {
            Stage::Parked(_) if connected => return Ok((Begun::Busy, None)),
            // Who had it has died: it comes back, and nobody else has it meanwhile.
            Stage::Parked(_) => {}
            Stage::Serving | Stage::Emigrated if !served.is_current() => {
                return Ok((Begun::Other, None));
            }
            Stage::Emigrated => return Err(Error::Emigrated),
            Stage::Serving if served.committing.is_some() => return Ok((Begun::Busy, None)),
            Stage::Serving => {}
        }
        let (place, error) = self.keep_commit(&mut served, bytes)?;
        if !connected {
            return Ok((Begun::Alone, error));
        }
        let socket = borrow(served.number)?.try_clone_to_owned()?;
        let (request, ticket) = self.new_ticket();
        let subject = Subject {
            request,
            slot: match (&error, served.entry) {
                (None, Some((slot, _))) => slot,
                _ => NOWHERE,
            },
            cookie: served.cookie,
        };
        served.committing = Some(request);
        self.post(AppMessage::Commit { subject, place }, Some(socket));
        // It may have gone before the ticket was there to be given up.
        if !self.is_connected() {
            ticket.settle(Outcome::Gone);
        }
        Ok((Begun::Asked(request, ticket), error))
    }

    /// Nothing older is kept from here on, also if this one can't be.
    fn keep_commit(
        &self,
        served: &mut Served,
        bytes: &[u8],
    ) -> Result<(SnapshotPlace, Option<Error>), Error> {
        let now = served.position()?;
        // Whoever counts goes on from here; what he said before is dropped below.
        served.count.check(None, now, Instant::now());
        let position = (now.read, now.written);
        let stored = match bytes.len() > MAX_SNAPSHOT as usize {
            true => Err(Error::TooLarge),
            false => self.store(SnapshotKind::Commit, bytes, position),
        };
        served.missed = stored.is_err();
        let (place, error) = match stored {
            Ok(place) => (place, None),
            Err(error) => (lost(position), Some(error)),
        };
        served.imported = None;
        let dropped = served.kept.commit(place);
        self.publish(served);
        self.forget(&dropped);
        Ok((place, error))
    }

    fn await_commit(&self, entry: &Entry, request: u32, ticket: &Ticket) -> Result<(), Error> {
        let until = Instant::now() + LIMIT;
        let outcome = ticket.wait(until);
        self.drop_ticket(request);
        let mut served = lock(entry);
        if outcome == Outcome::Gone {
            // It may have died while it read what the socket has: the server could
            // neither read nor write until another agent is there.
            while is_stopped(&served) && !resume(&served) && Instant::now() < until {
                drop(served);
                thread::sleep(LOOK);
                served = lock(entry);
            }
        }
        served.committing = None;
        if let Some(request) = served.wanted.take() {
            self.take_or_refuse(&mut served, request);
        }
        match outcome {
            Outcome::Safe => Ok(()),
            Outcome::Refused | Outcome::Gone | Outcome::Silent => Err(Error::Unprotected),
        }
    }

    /// The agent's answer.
    pub(crate) fn committed(&self, request: u32, refusal: Option<CommitRefusal>) {
        if let Some(ticket) = self.ticket(request) {
            ticket.settle(match refusal {
                None => Outcome::Safe,
                Some(_) => Outcome::Refused,
            });
        }
    }

    /// The agent has gone: nobody else answers.
    pub(crate) fn give_up_commits(&self) {
        for ticket in self.tickets() {
            ticket.settle(Outcome::Gone);
        }
    }

    /// Shows the agent what one before it has left in repair mode.
    pub(crate) fn have_mended(&self) {
        for entry in self.all() {
            let served = lock(&entry);
            if !is_stopped(&served) {
                continue;
            }
            let socket = borrow(served.number).and_then(|socket| socket.try_clone_to_owned());
            if let Ok(socket) = socket {
                self.post(AppMessage::Mend, Some(socket));
            }
        }
    }
}

/// Whether a connection of the server's stands still.
fn is_stopped(served: &Served) -> bool {
    if !matches!(served.stage, Stage::Serving) || !served.is_current() {
        return false;
    }
    let Ok(socket) = borrow(served.number) else {
        return false;
    };
    let repair = option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR);
    repair.is_ok_and(|repair| repair != 0)
}

/// Whether this process may have it go on: without CAP_NET_ADMIN only an agent may.
fn resume(served: &Served) -> bool {
    // TCP_REPAIR_OFF_NO_WP.
    let off = |socket| set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, -1);
    borrow(served.number).and_then(off).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answer_counts() {
        let ticket = Ticket::default();
        assert_eq!(ticket.wait(Instant::now()), Outcome::Silent);
        ticket.settle(Outcome::Refused);
        ticket.settle(Outcome::Safe);
        assert_eq!(ticket.wait(Instant::now() + LIMIT), Outcome::Refused);
    }
}
