//! One process that uses the library.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use godwit_sock::Listener;
use godwit_wire::app::region::Connection;
use godwit_wire::{Endpoint, FlowKey};

use super::lock;
use super::region::Region;

/// Listeners that one process may have.
pub(super) const MAX_LISTENERS: usize = 64;

/// A process that has said who it is.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: u64,
    /// Its process, as the kernel knew it when it connected.
    pub(super) pid: i32,
    pub(super) socket: OwnedFd,
    pub(super) region: Region,
    listeners: Mutex<BTreeMap<u32, Listener>>,
    /// Where connections were when all slots were looked at last.
    seen: Mutex<BTreeMap<FlowKey, u32>>,
}

impl Client {
    pub(super) fn new(id: u64, pid: i32, socket: OwnedFd, region: Region) -> Self {
        Self {
            id,
            pid,
            socket,
            region,
            listeners: Mutex::default(),
            seen: Mutex::default(),
        }
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
    pub(super) fn look(&self, flow: FlowKey) -> Vec<(u32, Connection)> {
        let (mut found, mut seen) = (Vec::new(), BTreeMap::new());
        self.region.each(|slot, connection| {
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
