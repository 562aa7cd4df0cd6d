//! One process that uses the library.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::{Arc, Mutex};

use godwit_sock::{Listener, send_with};
use godwit_wire::app::region::Connection;
use godwit_wire::app::{AppMessage, MAX_MESSAGE};
use godwit_wire::{Endpoint, FlowKey};
use nix::sys::socket::{Shutdown, shutdown};

use super::account::{Account, Budget, Weight};
use super::closing::Foreign;
use super::ledger::{Doubts, Shown};
use super::region::{Patience, Region};
use crate::locks::lock;

/// Listeners that one process may have.
pub(super) const MAX_LISTENERS: usize = 64;

/// Bytes of words that wait for one process: one for each of its connections, and as many
/// for what it asks itself, are 32,768 words.
const UNSAID: usize = 3 << 20;

/// What a word takes besides its bytes.
const WORD: usize = size_of::<(Vec<u8>, Weight)>() + 2 * 16;

/// Bytes of commits under way of one process.
const COMMITS: usize = 128 << 20;

/// A process that has said who it is.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: u64,
    /// Its process, as the kernel knew it when it connected.
    pub(super) pid: i32,
    pub(super) socket: Foreign,
    pub(super) account: Arc<Account>,
    pub(super) region: Region,
    /// Sockets that it has for sure.
    pub(super) shown: Mutex<Shown>,
    /// What it has claimed, and has not.
    pub(super) doubts: Mutex<Doubts>,
    listeners: Mutex<BTreeMap<u32, Listener>>,
    /// Where connections were when all slots were looked at last.
    seen: Mutex<BTreeMap<FlowKey, u32>>,
    /// What it has to hear and had no room for, oldest first.
    unsaid: Mutex<VecDeque<(Vec<u8>, Weight)>>,
    unsaid_budget: Arc<Budget>,
    commits_budget: Arc<Budget>,
}

/// How far a message has come that must not be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Now,
    /// It waits for room, with [`Client::say_unsaid`].
    Later,
}

impl Client {
    pub(super) fn new(
        id: u64,
        pid: i32,
        (socket, account): (Foreign, Arc<Account>),
        region: Region,
    ) -> Self {
        Self {
            id,
            pid,
            socket,
            account,
            region,
            shown: Mutex::default(),
            doubts: Mutex::default(),
            unsaid_budget: Budget::new(UNSAID),
            commits_budget: Budget::new(COMMITS),
            listeners: Mutex::default(),
            seen: Mutex::default(),
            unsaid: Mutex::default(),
        }
    }

    /// Sends one message, if there is room for it.
    ///
    /// # Errors
    /// If the process has gone, or has much to hear yet (`WouldBlock`).
    pub(super) fn say(&self, message: &AppMessage, beside: &[BorrowedFd<'_>]) -> io::Result<()> {
        let unsaid = lock(&self.unsaid);
        if !unsaid.is_empty() {
            // It would overtake them.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        send_with(self.socket.as_fd(), &bytes_of(message), beside)
    }

    /// Sends one message, now or when there is room.
    ///
    /// # Errors
    /// If the process has gone, or has been told too much that it does not hear: then it
    /// is let go, and its library goes on by itself.
    pub(super) fn say_surely(&self, message: &AppMessage) -> io::Result<Said> {
        let mut unsaid = lock(&self.unsaid);
        let bytes = bytes_of(message);
        if unsaid.is_empty() {
            match send_with(self.socket.as_fd(), &bytes, &[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                said => return said.map(|()| Said::Now),
            }
        }
        let budgets = [&self.unsaid_budget, &self.account.unsaid];
        let Some(weight) = Weight::take(WORD + bytes.len(), &budgets) else {
            // Its thread sees that, and forgets it.
            shutdown(self.socket.as_fd().as_raw_fd(), Shutdown::Both)?;
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        unsaid.push_back((bytes, weight));
        Ok(Said::Later)
    }

    pub(super) fn has_unsaid(&self) -> bool {
        !lock(&self.unsaid).is_empty()
    }

    /// Sends as much as there is room for of what waits.
    ///
    /// # Errors
    /// If the process has gone.
    pub(super) fn say_unsaid(&self) -> io::Result<()> {
        let mut unsaid = lock(&self.unsaid);
        while let Some((bytes, _)) = unsaid.front() {
            match send_with(self.socket.as_fd(), bytes, &[]) {
                Ok(()) => drop(unsaid.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Memory for a commit; `None` if too much of this process, or of its account, is under
    /// way.
    pub(super) fn weigh_commit(&self, bytes: usize) -> Option<Weight> {
        Weight::take(bytes, &[&self.commits_budget, &self.account.commits])
    }

    /// Where the process has a connection, as the last look at all slots would have
    /// it; it is looked at again.
    pub(super) fn seen(&self, flow: FlowKey) -> Option<(u32, Connection)> {
        let slot = *lock(&self.seen).get(&flow)?;
        let connection = self.region.connection(slot)?;
        (connection.key == flow).then_some((slot, connection))
    }

    /// Looks at all slots: where it has a connection; it may have an earlier one with
    /// the same addresses, too.
    pub(super) fn look(&self, flow: FlowKey, patience: &mut Patience) -> Vec<(u32, Connection)> {
        let (mut found, mut seen) = (Vec::new(), BTreeMap::new());
        self.region.each(patience, |slot, connection| {
            seen.insert(connection.key, slot);
            if connection.key == flow {
                found.push((slot, connection));
            }
        });
        *lock(&self.seen) = seen;
        found
    }

    /// Its name for a listener that connections to this address come to.
    pub(super) fn listener(&self, endpoint: Endpoint) -> Option<u32> {
        let address = SocketAddr::from(endpoint);
        let listeners = lock(&self.listeners);
        let mut serving = listeners.iter().filter(|(_, at)| at.serves(address));
        serving.next().map(|(number, _)| *number)
    }

    /// Takes note of a listener; whether there is room for it.
    pub(super) fn add(&self, number: u32, listener: Listener) -> bool {
        let mut listeners = lock(&self.listeners);
        let room = listeners.len() < MAX_LISTENERS || listeners.contains_key(&number);
        if room {
            listeners.insert(number, listener);
        }
        room
    }

    /// Forgets a listener.
    pub(super) fn remove(&self, number: u32) {
        lock(&self.listeners).remove(&number);
    }
}

fn bytes_of(message: &AppMessage) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAX_MESSAGE);
    message.emit(&mut bytes);
    bytes.shrink_to_fit();
    bytes
}
