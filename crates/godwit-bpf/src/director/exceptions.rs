//! What the program has written down of connections, as it does so: for other directors.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use godwit_wire::{FlowKey, SeqNumber};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use super::Entry;
use super::maps::flow_key;
use super::skel::types;
use crate::convert::{Plain, value_of};

const _: () = assert!(size_of::<types::gw_exception>() == 48);

// SAFETY: integers and arrays of integers only.
unsafe impl Plain for types::gw_exception {}

/// `GW_NO_ENTRY` of `gw_director.h`.
const NO_ENTRY: u32 = u32::MAX;

/// What has become of the entry of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exception {
    /// Which connection.
    pub key: FlowKey,
    /// Its client's initial sequence number.
    pub irs: SeqNumber,
    /// The entry; `None`: it has none any more.
    pub entry: Option<Entry>,
}

/// The reading end. Belongs to one thread.
pub struct Exceptions {
    ring: RingBuffer<'static>,
    records: Receiver<Exception>,
    // The ring reads from it.
    _map: MapHandle,
}

impl std::fmt::Debug for Exceptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exceptions").finish_non_exhaustive()
    }
}

impl Exceptions {
    pub(super) fn new(map: MapHandle) -> libbpf_rs::Result<Self> {
        let (sender, records) = channel();
        let mut builder = RingBufferBuilder::new();
        // The receiver lives beside the ring: it can't be gone.
        builder.add(&map, move |bytes| {
            if let Some(raw) = value_of(bytes) {
                let _ = sender.send(exception(&raw));
            }
            0
        })?;
        let ring = builder.build()?;
        Ok(Self {
            ring,
            records,
            _map: map,
        })
    }

    /// Waits at most `timeout` and returns what came, the oldest first.
    pub fn wait(&self, timeout: Duration) -> Vec<Exception> {
        // EINTR is the only error of a wait; what came is read all the same.
        let _ = self.ring.poll(timeout);
        self.records.try_iter().collect()
    }
}

fn exception(raw: &types::gw_exception) -> Exception {
    let irs = SeqNumber(raw.irs);
    Exception {
        key: flow_key(&raw.key),
        irs,
        entry: (raw.backend != NO_ENTRY).then_some(Entry {
            backend: raw.backend,
            irs,
        }),
    }
}
