//! `gw_events`: what the data path tells the agent.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use godwit_wire::{FlowId, FlowKey, Generation, SeqNumber, ShareId};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use crate::convert::value_of;
use crate::skel::types;

const _: () = assert!(size_of::<types::gw_event>() == 72);

/// One record of the ring buffer.
#[derive(Debug, Clone, Copy)]
pub struct RawEvent {
    /// When, CLOCK_BOOTTIME nanoseconds.
    pub ns: u64,
    /// Which flow.
    pub flow: FlowId,
    /// Of which share.
    pub share: ShareId,
    /// Of the standby that saw its handshake.
    pub generation: Generation,
    /// `enum gw_event_kind`, equal to the core's flow event kinds.
    pub kind: u32,
    /// Error number, where there is one.
    pub detail: i32,
}

/// The reading end. Belongs to one thread.
pub struct Events {
    ring: RingBuffer<'static>,
    records: Receiver<RawEvent>,
    // The ring reads from it.
    _map: MapHandle,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn new(map: MapHandle) -> libbpf_rs::Result<Self> {
        let (sender, records) = channel();
        let mut builder = RingBufferBuilder::new();
        builder.add(&map, move |bytes| {
            if let Some(raw) = value_of(bytes) {
                // The receiver lives beside the ring: it can't be gone.
                let _ = sender.send(raw_event(&raw));
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

    /// Waits at most `timeout` and returns what came, oldest first.
    pub fn wait(&self, timeout: Duration) -> Vec<RawEvent> {
        // EINTR is the only error of a wait; what came is read all the same.
        let _ = self.ring.poll(timeout);
        self.records.try_iter().collect()
    }

    /// For an event loop: readable when there are records.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self._map.as_fd()
    }
}

fn raw_event(raw: &types::gw_event) -> RawEvent {
    RawEvent {
        ns: raw.ns,
        flow: FlowId {
            key: FlowKey::from(raw.key),
            irs: SeqNumber(raw.irs),
        },
        share: ShareId(raw.share),
        generation: Generation(raw.generation),
        kind: raw.kind,
        detail: raw.detail,
    }
}
