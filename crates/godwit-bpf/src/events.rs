//! `gw_events` and `gw_exits`: what the data path tells the agent.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use godwit_wire::{FlowId, FlowKey, Generation, SeqNumber, ShareId};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use crate::convert::value_of;
use crate::maps::questions::Unanswered;
use crate::maps::slots::Slots;
use crate::skel::types;
use crate::skel::types::gw_exit_flags as Flag;

const _: () = assert!(size_of::<types::gw_event>() == 72);
const _: () = assert!(size_of::<types::gw_exit>() == 48);

/// One record of a ring buffer.
#[derive(Debug, Clone)]
pub enum Record {
    /// Of a flow.
    Flow(RawEvent),
    /// A client has sent a RST of which the kernel knows better whether it counts.
    Reset(RawEvent),
    /// Of a question that has no answer.
    Unanswered(Unanswered),
    /// A listening socket of this machine is being closed; which is not known.
    ListenerClosed,
    /// The process of this number, which serves clients, was sent a signal that may stop it.
    Stopped(u32),
    /// A control group is being frozen: some that serve clients may be in it, see
    /// [`StoppedServers`](crate::StoppedServers).
    Frozen,
    /// Of a process that has died.
    Exit(ProcessExit),
}

/// A process that has died, as far as it concerns one share. Its flows and, if
/// nobody listens any more, the share are silent already, see
/// [`ShareTable::hold`](crate::ShareTable::hold).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessExit {
    /// Which share.
    pub share: ShareId,
    /// The process.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`), at most 15 bytes.
    pub comm: String,
    /// How it ended, as wait(2) has it: a signal in the lower 7 bits, or a code
    /// in the second byte; never 0.
    pub code: u32,
    /// Sockets of flows that it held.
    pub flows: u32,
    /// How many of these are silent until another node serves them.
    pub kept: u32,
    /// Whether it held a listener, perhaps with others.
    pub listened: bool,
    /// Whether nobody listens there any more.
    pub last_listener: bool,
    /// Whether a server died, and not only the one connection that the process had.
    pub server: bool,
    /// Whether it has only begun to die and still has its files: a core dump may take
    /// seconds. Another record follows when it is gone.
    pub dying: bool,
    /// Whether not all of its files were looked at.
    pub cut: bool,
}

/// A flow's record of a ring buffer.
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
    records: Receiver<Record>,
    // The ring reads from them.
    map: MapHandle,
    _exits: MapHandle,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn new(
        map: MapHandle,
        exits: MapHandle,
        slots: Arc<Slots>,
        nodes: Arc<Slots>,
    ) -> libbpf_rs::Result<Self> {
        let (sender, records) = channel();
        let (flows, names) = (sender.clone(), slots.clone());
        let mut builder = RingBufferBuilder::new();
        // The receiver lives beside the ring: it can't be gone.
        builder.add(&map, move |bytes| {
            if let Some(raw) = value_of(bytes) {
                let _ = flows.send(record(&raw, &names, &nodes));
            }
            0
        })?;
        builder.add(&exits, move |bytes| {
            if let Some(raw) = value_of(bytes) {
                let _ = sender.send(Record::Exit(process_exit(&raw, &slots)));
            }
            0
        })?;
        let ring = builder.build()?;
        Ok(Self {
            ring,
            records,
            map,
            _exits: exits,
        })
    }

    /// Waits at most `timeout` and returns what came, the oldest of each kind
    /// first.
    pub fn wait(&self, timeout: Duration) -> Vec<Record> {
        // EINTR is the only error of a wait; what came is read all the same.
        let _ = self.ring.poll(timeout);
        self.records.try_iter().collect()
    }

    /// For an event loop: readable when there are records of flows.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

fn process_exit(raw: &types::gw_exit, slots: &Slots) -> ProcessExit {
    let comm: Vec<u8> = raw
        .comm
        .iter()
        .map(|byte| byte.cast_unsigned())
        .take_while(|byte| *byte != 0)
        .collect();
    let has = |flag: Flag| raw.flags & flag.0 != 0;
    ProcessExit {
        share: slots.share_at(raw.share),
        pid: raw.pid,
        comm: String::from_utf8_lossy(&comm).into_owned(),
        code: raw.code,
        flows: raw.flows,
        kept: raw.kept,
        listened: has(Flag::GW_EXIT_LISTENED),
        last_listener: has(Flag::GW_EXIT_LAST_LISTENER),
        server: has(Flag::GW_EXIT_SERVER),
        dying: has(Flag::GW_EXIT_DYING),
        cut: has(Flag::GW_EXIT_CUT),
    }
}

fn record(raw: &types::gw_event, slots: &Slots, nodes: &Slots) -> Record {
    let event = raw_event(raw, slots);
    if raw.kind == types::gw_event_kind::GW_EVENT_LISTENER.0 {
        return Record::ListenerClosed;
    }
    if raw.kind == types::gw_event_kind::GW_EVENT_STOPPED.0 {
        return Record::Stopped(raw.detail.cast_unsigned());
    }
    if raw.kind == types::gw_event_kind::GW_EVENT_FROZEN.0 {
        return Record::Frozen;
    }
    if raw.kind == types::gw_event_kind::GW_EVENT_RESET.0 {
        return Record::Reset(event);
    }
    if raw.kind != types::gw_event_kind::GW_EVENT_UNANSWERED.0 {
        return Record::Flow(event);
    }
    Record::Unanswered(Unanswered {
        share: event.share,
        flow: event.flow,
        number: event.detail.cast_unsigned(),
        node: nodes.id_at(raw.generation),
        put_ns: raw.ns,
        place: raw.place,
    })
}

fn raw_event(raw: &types::gw_event, slots: &Slots) -> RawEvent {
    RawEvent {
        ns: raw.ns,
        flow: FlowId {
            key: FlowKey::from(raw.key),
            irs: SeqNumber(raw.irs),
        },
        share: slots.share_at(raw.share),
        generation: Generation(raw.generation),
        kind: raw.kind,
        detail: raw.detail,
    }
}
