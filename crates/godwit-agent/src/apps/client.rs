//! One process that uses the library.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use godwit_sock::Listener;
use godwit_wire::Endpoint;

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
}

impl Client {
    pub(super) fn new(id: u64, pid: i32, socket: OwnedFd, region: Region) -> Self {
        Self {
            id,
            pid,
            socket,
            region,
            listeners: Mutex::default(),
        }
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
