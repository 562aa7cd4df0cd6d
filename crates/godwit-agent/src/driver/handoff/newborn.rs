//! Connections of which nobody has read a byte: the target's side. A server that knows
//! nothing of Godwit gets them from its own listener.
//!
//! The connection is this node's from the moment in which its socket is made, before it
//! has its input: an agent that dies in between leaves one that the next agent resets,
//! never one with a hole, and never two.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use godwit_bpf::{Newborn, NewbornTable, Whereabouts};
use godwit_core::MonoTime;
use godwit_sock::repair::{Release, RestoredSocket};
use godwit_sock::{AcceptQueue, FrameSender, Listeners, SocketView, destroy_tcp, view_tcp_socket};
use godwit_wire::{
    Endpoint, EthernetHeader, FlowId, HandoffRefusal, Segment, SeqNumber, TcpFlags, TcpOptions,
    TcpSnapshot, TcpState, TimeStamps,
};

use super::arriving::Coming;
use super::unread::begins;
use super::worker::Worker;
use crate::clock;
use crate::driver::follow::Place;

/// How long the socket of one that comes is waited for, and then for its input to be in
/// it. The client waits as long, so it is tried again and again.
pub(super) const BIRTH_PATIENCE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_micros(100);
/// A queue of the kernel's may have been full.
const AGAIN: Duration = Duration::from_millis(20);

/// Bytes of input said at once, less than a packet holds.
const PIECE: usize = 32 << 10;

/// The largest window of a new socket, in bytes (`tcp_select_initial_window`).
const FIRST_WINDOW: u32 = 65_535;

/// What sockets are made with.
#[derive(Debug)]
pub(in crate::driver) struct Newborns {
    pub(in crate::driver) table: Arc<NewbornTable>,
    /// Into our own stack, marked for the data path.
    pub(in crate::driver) frames: Arc<FrameSender>,
    /// Of the service interface.
    pub(in crate::driver) place: Arc<Place>,
}

/// A connection that is to get its socket.
#[derive(Debug)]
pub(super) struct Unborn {
    snapshot: Box<TcpSnapshot>,
    ts_recent: u32,
    /// When the service's clock said what the snapshot says.
    since: MonoTime,
}

impl Unborn {
    /// What is said of the service's clock is true now.
    pub(super) fn new(snapshot: Box<TcpSnapshot>, ts_recent: u32) -> Self {
        Self {
            snapshot,
            ts_recent,
            since: clock::now(),
        }
    }

    fn iss(&self) -> SeqNumber {
        self.snapshot.write_seq - 1
    }

    fn newborn(&self, flow: FlowId, now: MonoTime) -> Newborn {
        let options = &self.snapshot.options;
        Newborn {
            flow,
            iss: self.iss(),
            ts_val: options.time_stamps.then(|| self.ts_val(now)),
            mss: options.mss_clamp,
            wscale: options.wscale,
            sack: options.sack,
            ecn: options.ecn,
        }
    }

    /// What the service's clock says by now.
    fn ts_val(&self, now: MonoTime) -> u32 {
        let elapsed = now.since(self.since).as_millis();
        // A clock wraps, and nobody waits for 49 days.
        let elapsed = u32::try_from(elapsed).unwrap_or(0);
        self.snapshot.ts_val.wrapping_add(elapsed)
    }

    /// Bytes that the socket has to have, a FIN counted as one.
    fn length(&self) -> u64 {
        let fin = u64::from(self.snapshot.state == TcpState::CloseWait);
        self.snapshot.queues.recv.len() as u64 + fin
    }

    /// As the client would say it: from an offset of its input on.
    fn said(&self, at: usize, payload: &[u8], flags: TcpFlags, now: MonoTime) -> Option<Vec<u8>> {
        let snapshot = &self.snapshot;
        let shift = snapshot.options.wscale.map_or(0, |(snd, _)| snd);
        let segment = Segment {
            source: snapshot.key.client,
            destination: snapshot.key.service,
            seq: snapshot.copied_seq() + u32::try_from(at).ok()?,
            ack: snapshot.write_seq,
            flags: TcpFlags::ACK.with(flags),
            wnd: u16::try_from(snapshot.window.snd_wnd >> shift).unwrap_or(u16::MAX),
            options: TcpOptions {
                time_stamps: snapshot.options.time_stamps.then(|| TimeStamps {
                    ts_val: self.ts_recent,
                    ts_ecr: self.ts_val(now),
                }),
                ..TcpOptions::default()
            },
            payload,
        };
        segment.to_packet().ok()
    }

    /// Its whole input, as packets.
    fn input(&self, now: MonoTime) -> Vec<Vec<u8>> {
        let recv = &self.snapshot.queues.recv;
        let pieces = recv.chunks(PIECE).enumerate();
        let said = pieces.map(|(index, piece)| (index * PIECE, piece, TcpFlags::PSH));
        let fin = self.snapshot.state == TcpState::CloseWait;
        let fin = fin.then_some((recv.len(), &[][..], TcpFlags::FIN));
        said.chain(fin)
            .filter_map(|(at, piece, flags)| self.said(at, piece, flags, now))
            .collect()
    }
}

impl Worker {
    /// Where such a connection would wait to be accepted; empty if none may come.
    pub(super) fn queues_for(&self, service: Endpoint) -> Vec<AcceptQueue> {
        if !self.terms.unread.contains(&service) {
            return Vec::new();
        }
        let queues = Listeners::queues(SocketAddr::from(service));
        queues.unwrap_or_else(|error| {
            tracing::warn!(error = %error, "can't look for listeners");
            Vec::new()
        })
    }

    /// Looks whether a new socket could take all that the old one had.
    pub(super) fn prepare_unread(
        &self,
        flow: FlowId,
        snapshot: Box<TcpSnapshot>,
        ts_recent: u32,
    ) -> Result<Coming, HandoffRefusal> {
        if !begins(flow, &snapshot) {
            return Err(HandoffRefusal::Corrupt);
        }
        let queues = self.queues_for(flow.key.service);
        // Whichever of several the kernel chooses.
        let room = queues.iter().map(|queue| room(queue, &snapshot)).min();
        let room = room.ok_or(HandoffRefusal::NoServer)?;
        if !queues.iter().all(AcceptQueue::has_room) {
            return Err(HandoffRefusal::NoCapacity);
        }
        if snapshot.queues.recv.len() > room {
            return Err(HandoffRefusal::TooLarge);
        }
        Ok(Coming::Unread(Unborn::new(snapshot, ts_recent)))
    }

    /// It gets its socket, with all that its client has said. If that can't be it goes on
    /// as it was, in a socket of our own; and its client is reset if its server may have
    /// read from the new one.
    pub(super) fn bear(
        &mut self,
        flow: FlowId,
        unborn: &Unborn,
        patience: Duration,
    ) -> Option<OwnedFd> {
        let device = self.waiting.device();
        let newborn = unborn.newborn(flow, clock::now());
        let placed = self.places.set(flow, Whereabouts::Born { device });
        let born = match placed.and_then(|()| self.arriving.newborns.table.set(&newborn)) {
            Ok(()) => self.bring_up(flow, unborn, patience),
            Err(error) => {
                tracing::error!(flow = %flow.key, error = %error, "no socket can be made");
                Err("not_born")
            }
        };
        // Gone already if it could not be written.
        let _ = self.arriving.newborns.table.remove(flow.key);
        self.arriving.begun.insert(flow, unborn.iss());
        let kept = match born {
            Ok(()) => {
                self.waiting.release(flow.key, &unborn.snapshot);
                self.stay(flow);
                None
            }
            Err(reason) => {
                let kept = self.take_back(flow, unborn);
                if kept.is_none() {
                    self.stay(flow);
                    self.tell_closed(flow.key, reason);
                    self.end_unborn(flow, unborn);
                }
                kept
            }
        };
        if kept.is_some() || born.is_ok() {
            // What was redirected a moment ago, and is in the device by now.
            self.waiting.release(flow.key, &unborn.snapshot);
        }
        self.waiting.end(flow.key);
        kept
    }

    /// The connection as it was before a new socket was tried, if nothing has come of that.
    fn take_back(&mut self, flow: FlowId, unborn: &Unborn) -> Option<OwnedFd> {
        // What it has more than the old one had it has acknowledged.
        let is_new =
            |view: SocketView| view.waits_to_be_accepted() && view.received <= unborn.length();
        let nobody_has_it = || {
            let view = view_tcp_socket(self.kernel.stand.ifindex(), flow.key).ok()?;
            view.is_none_or(is_new).then_some(())
        };
        // An agent that dies behind the next line leaves one that has said nothing here.
        nobody_has_it()?;
        // From here on nothing leaves that a server says, which nobody knew of.
        let held = self.places.held(flow, self.waiting.device(), None);
        held.inspect_err(|error| tracing::error!(flow = %flow.key, error = %error, "not held"))
            .ok()?;
        nobody_has_it()?;
        destroy_tcp(self.kernel.stand.ifindex(), flow.key).ok()?;
        let mut snapshot = unborn.snapshot.clone();
        // It does not go back; bit 0 would say that it counts microseconds.
        snapshot.ts_val = unborn.ts_val(clock::now()).wrapping_add(1) & !1;
        let restored = RestoredSocket::restore(&snapshot, self.kernel.stand.ifindex());
        let restored = restored.inspect_err(|error| {
            tracing::warn!(flow = %flow.key, error = %error, "its old socket is not made anew");
        });
        let restored = restored.ok()?;
        self.waiting.release(flow.key, &snapshot);
        self.stay(flow);
        let released = restored.release(Release::Probe, |fin| self.waiting.inject(fin));
        released
            .inspect_err(|error| tracing::error!(flow = %flow.key, error = %error, "not released"))
            .ok()
    }

    /// Says all until it has arrived; the reason if it does not.
    fn bring_up(
        &self,
        flow: FlowId,
        unborn: &Unborn,
        patience: Duration,
    ) -> Result<(), &'static str> {
        let begun = clock::now();
        let (mut seen, mut due) = (false, begun);
        loop {
            let now = clock::now();
            let view =
                view_tcp_socket(self.kernel.stand.ifindex(), flow.key).unwrap_or_else(|error| {
                    tracing::warn!(error = %error, "can't look at a new socket");
                    None
                });
            match view {
                Some(view) if view.received == unborn.length() => return Ok(()),
                Some(view) if view.received > unborn.length() => return Err("input_differs"),
                // Its server has ended it, for which it has reasons of its own.
                None if seen => return Ok(()),
                Some(_) if !seen => (seen, due) = (true, now),
                Some(_) | None => {}
            }
            if now.since(begun) >= patience {
                return Err(if seen { "input_lost" } else { "not_born" });
            }
            if now >= due {
                due = now.saturating_add(AGAIN);
                self.say_on(seen, unborn, now);
            }
            thread::sleep(LOOK);
        }
    }

    fn say_on(&self, seen: bool, unborn: &Unborn, now: MonoTime) {
        if !seen {
            return self.say_first(unborn, now);
        }
        for packet in unborn.input(now) {
            self.waiting.put_back(&packet);
        }
    }

    /// The segment that makes the socket.
    fn say_first(&self, unborn: &Unborn, now: MonoTime) {
        let Some(packet) = unborn.said(0, &[], TcpFlags(0), now) else {
            return;
        };
        let mac = self.arriving.newborns.place.mac();
        let frame = EthernetHeader::frame_ip(mac, mac, &packet);
        if let Err(error) = self.arriving.newborns.frames.send(&frame) {
            tracing::debug!(error = %error, "own kernel not told");
        }
    }

    /// Nobody serves it: its socket ends, and where there is none our kernel resets
    /// whoever speaks to it.
    fn end_unborn(&self, flow: FlowId, unborn: &Unborn) {
        match destroy_tcp(self.kernel.stand.ifindex(), flow.key) {
            Ok(true) => {}
            Ok(false) => {
                let at = unborn.snapshot.queues.recv.len();
                if let Some(packet) = unborn.said(at, &[], TcpFlags(0), clock::now()) {
                    self.waiting.put_back(&packet);
                }
            }
            Err(error) => tracing::warn!(flow = %flow.key, error = %error, "socket not ended"),
        }
    }

    /// One that an earlier agent was about to make, here or anew: nobody knows how much of
    /// its input it has.
    pub(super) fn end_half_born(&self, flow: FlowId) {
        self.stay(flow);
        self.tell_closed(flow.key, "agent_died");
        if let Err(error) = destroy_tcp(self.kernel.stand.ifindex(), flow.key) {
            tracing::warn!(flow = %flow.key, error = %error, "socket not ended");
        }
    }
}

/// Bytes that fit into the first window of a socket that a listener accepts: half of its
/// buffer is for what surrounds them, and a window is whole segments.
pub(super) fn room(queue: &AcceptQueue, snapshot: &TcpSnapshot) -> usize {
    let window = first_window(queue);
    let segment = u32::from(snapshot.options.mss_clamp).max(1);
    // One that holds no segment is not cut.
    let cut = if window > segment {
        window / segment * segment
    } else {
        window
    };
    cut as usize
}

/// The first window of such a socket, in bytes, before it is cut to whole segments.
pub(super) fn first_window(queue: &AcceptQueue) -> u32 {
    (queue.rcvbuf / 2).min(FIRST_WINDOW)
}

#[cfg(test)]
mod tests {
    use godwit_wire::FlowKey;

    use super::*;

    fn unborn(recv: &[u8], state: TcpState) -> Unborn {
        let hex = include_str!("../../../../godwit-wire/src/snapshot/golden.txt").trim_end();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        let bytes: Vec<_> = (0..hex.len()).step_by(2).map(byte).collect();
        let mut snapshot = TcpSnapshot::parse(&bytes).expect("as in godwit-wire");
        snapshot.state = state;
        snapshot.queues.send.clear();
        snapshot.queues.unsent = 0;
        let begin = snapshot.copied_seq();
        snapshot.queues.recv = recv.to_vec();
        snapshot.rcv_nxt = begin + u32::try_from(recv.len()).expect("short");
        Unborn {
            snapshot: Box::new(snapshot),
            ts_recent: 7,
            since: MonoTime(0),
        }
    }

    fn flow(unborn: &Unborn) -> FlowId {
        FlowId {
            key: unborn.snapshot.key,
            irs: unborn.snapshot.copied_seq() - 1,
        }
    }

    /// The input is said as the client has said it, whole and in order, its end last.
    #[test]
    fn the_input_is_said_from_its_first_byte() {
        let recv: Vec<u8> = (0..PIECE + 5).map(|at| at.to_le_bytes()[0]).collect();
        for state in [TcpState::Established, TcpState::CloseWait] {
            let unborn = unborn(&recv, state);
            let FlowKey { client, service } = unborn.snapshot.key;
            let mut next = flow(&unborn).irs + 1;
            let (mut said, mut fins) = (Vec::new(), 0);
            for packet in unborn.input(MonoTime(2_000_000)) {
                let segment = Segment::parse(&packet).expect("it is one");
                assert_eq!((segment.source, segment.destination), (client, service));
                assert_eq!((segment.seq, segment.ack), (next, unborn.iss() + 1));
                let stamps = segment.options.time_stamps.expect("both do that");
                assert_eq!(stamps.ts_val, 7);
                assert_eq!(stamps.ts_ecr, unborn.snapshot.ts_val + 2);
                said.extend_from_slice(segment.payload);
                let length = u32::try_from(segment.payload.len()).expect("short");
                next += length;
                fins += usize::from(segment.flags.contains(TcpFlags::FIN));
            }
            assert!(said == recv);
            assert_eq!(fins, usize::from(state == TcpState::CloseWait));
            assert_eq!(unborn.length(), (recv.len() + fins) as u64);
        }
    }

    #[test]
    fn what_has_begun_has_said_and_read_nothing() {
        let fresh = unborn(b"GET", TcpState::Established);
        let flow = flow(&fresh);
        assert!(begins(flow, &fresh.snapshot));
        for state in TcpState::ALL {
            let fits = matches!(state, TcpState::Established | TcpState::CloseWait);
            let snapshot = unborn(b"GET", state).snapshot;
            assert_eq!(begins(flow, &snapshot), fits, "{state}");
        }
        let mut read = fresh.snapshot.clone();
        read.queues.recv.pop();
        assert!(!begins(flow, &read));
        let mut written = fresh.snapshot.clone();
        written.queues.send.push(1);
        assert!(!begins(flow, &written));
    }

    #[test]
    fn as_much_fits_as_a_new_socket_offers() {
        let snapshot = unborn(b"", TcpState::Established).snapshot;
        let queue = |rcvbuf| AcceptQueue {
            inode: 1,
            cookie: 1,
            waiting: 0,
            most: 1,
            rcvbuf,
            is_mptcp: false,
        };
        assert_eq!(snapshot.options.mss_clamp, 1440);
        assert_eq!(room(&queue(131_072), &snapshot), 64_800);
        assert_eq!(room(&queue(1 << 20), &snapshot), 64_800);
        assert_eq!(room(&queue(4096), &snapshot), 1440);
        assert_eq!(room(&queue(2304), &snapshot), 1152, "less than a segment");
    }
}
