//! What the agent asks for, and what becomes of it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use godwit_wire::HandoffRefusal;
use godwit_wire::app::{AppMessage, Carried, SnapshotKind, Subject};

use super::{Take, Worker};
use crate::listener::Given;
use crate::process::lock;
use crate::served::Stage;

/// Longer than any move has patience for.
const MAX_PATIENCE: Duration = Duration::from_secs(10);

impl Worker {
    /// Hands a connection out, now or at the server's next export.
    pub(super) fn take(&mut self, subject: Subject, patience: Duration) {
        let request = subject.request;
        let Some(entry) = self.process.at_slot(subject.slot) else {
            return self.refuse(request, HandoffRefusal::Ended);
        };
        let mut served = lock(&entry);
        if served.cookie != subject.cookie {
            return self.refuse(request, HandoffRefusal::Ended);
        }
        match served.stage {
            Stage::Emigrated => return self.refuse(request, HandoffRefusal::Ended),
            Stage::Parked(_) => {
                // An agent that knows nothing of it, after another that did.
                let (outcome, socket) = match served.hand_out() {
                    Ok((snapshot, socket)) => (Ok(snapshot), Some(socket)),
                    Err(refusal) => (Err(refusal), None),
                };
                let taken = AppMessage::Taken { request, outcome };
                return self.process.post(taken, socket);
            }
            Stage::Serving => {}
        }
        if !served.is_current() {
            drop(served);
            self.process.sweep();
            return self.refuse(request, HandoffRefusal::Ended);
        }
        let stands = served.stateless || matches!(served.at_its_snapshot(), Ok(Some(_)));
        let ready = stands && served.committing.is_none();
        if ready || patience.is_zero() {
            return self.process.take_or_refuse(&mut served, request);
        }
        if let Some(other) = served.wanted.replace(request) {
            self.refuse(other, HandoffRefusal::SnapshotBehind);
        }
        drop(served);
        self.takes.push(Take {
            request,
            served: entry,
            until: Instant::now() + patience.min(MAX_PATIENCE),
        });
    }

    fn refuse(&self, request: u32, refusal: HandoffRefusal) {
        let outcome = Err(refusal);
        self.process
            .post(AppMessage::Taken { request, outcome }, None);
    }

    /// Has the server go on with a connection.
    pub(super) fn put_back(&mut self, subject: Subject) -> Option<HandoffRefusal> {
        let entry = self.process.at_slot(subject.slot);
        let Some(entry) = entry.filter(|entry| lock(entry).cookie == subject.cookie) else {
            return Some(HandoffRefusal::Ended);
        };
        let mut served = lock(&entry);
        let leftover = self.process.put_back(&mut served);
        let is_there = served.is_current();
        drop(served);
        self.leftovers.extend(leftover);
        if !is_there {
            self.process.let_go(&entry);
            return Some(HandoffRefusal::Ended);
        }
        None
    }

    /// Has the server know that a connection is another's.
    pub(super) fn emigrated(&mut self, subject: Subject) -> Option<HandoffRefusal> {
        let entry = self.process.at_slot(subject.slot);
        let Some(entry) = entry.filter(|entry| lock(entry).cookie == subject.cookie) else {
            return Some(HandoffRefusal::Ended);
        };
        let mut served = lock(&entry);
        self.process.end(&mut served);
        drop(served);
        self.process.let_go(&entry);
        None
    }

    /// Has the server accept a connection of another one.
    pub(super) fn given(
        &mut self,
        number: u32,
        snapshot: Option<(SnapshotKind, u32)>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), HandoffRefusal> {
        let mut descriptors = descriptors.into_iter();
        let socket = descriptors.next().ok_or(HandoffRefusal::Corrupt)?;
        let file = descriptors.next();
        let carried = match snapshot {
            None => None,
            Some((kind, length)) => {
                let bytes = match file {
                    Some(file) => read(file, length).ok_or(HandoffRefusal::Corrupt)?,
                    None if length == 0 => Vec::new(),
                    None => return Err(HandoffRefusal::Corrupt),
                };
                Some(Carried { kind, bytes })
            }
        };
        let listeners = self.process.listeners();
        let listener = listeners
            .into_iter()
            .find(|listener| listener.name == number);
        let listener = listener.ok_or(HandoffRefusal::NoServer)?;
        let given = Given { socket, carried };
        listener.give(given).map_err(|_| HandoffRefusal::NoCapacity)
    }
}

fn read(file: OwnedFd, length: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    File::from(file).read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}
