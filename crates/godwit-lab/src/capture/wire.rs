//! What leaves the servers for clients, seen at the switch before any fault of
//! the network: one voice per flow, and time stamps that go on from voice to voice.
//!
//! It keeps a few words per flow and no frames, so a run may last for days.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use godwit_wire::{Endpoint, EthernetHeader, FlowKey, MacAddr, TcpFlags};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::frame::{FrameSeen, SegmentSeen};
use crate::host::{Host, Network, SERVICE};
use crate::lab::Lab;
use crate::packet::PacketSocket;

/// Ethernet, IPv6 and TCP with all options.
const HEADERS: usize = 134;

/// How long the thread waits before it looks whether it shall end.
const IDLE_MS: u16 = 50;

/// A running check; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Wire {
    books: Arc<Mutex<Books>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// What was heard since it was last taken.
#[derive(Debug, Default)]
pub(crate) struct Books {
    voices: BTreeMap<FlowKey, Voice>,
    /// RST that servers sent to clients: of which flow, from where, and when.
    pub(crate) resets: Vec<(Instant, FlowKey, MacAddr)>,
    /// All segments.
    pub(crate) segments: u64,
}

/// Who speaks for a flow.
#[derive(Debug)]
pub(crate) struct Voice {
    speaker: MacAddr,
    ts_val: Option<u32>,
    /// Each change of the speaker: when, and who it was from then on.
    pub(crate) changes: Vec<(Instant, MacAddr)>,
    /// Segments of the first speaker after the first change.
    pub(crate) late: u64,
    first: MacAddr,
    /// The first time stamp of a new speaker that was below an earlier one: both.
    pub(crate) ts_back: Option<(u32, u32)>,
}

impl Wire {
    /// Starts listening at all ports of the switch.
    pub(crate) fn start(lab: &Lab) -> Result<Self> {
        let socket = lab.switch.enter(PacketSocket::open_everywhere)??;
        let books = Arc::<Mutex<Books>>::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, ended) = (Arc::clone(&books), Arc::clone(&stop));
        let builder = thread::Builder::new().name("wire".to_owned());
        let thread = builder.spawn(move || listen(&socket, &seen, &ended));
        Ok(Self {
            books,
            stop,
            thread: Some(thread.context("starting a thread")?),
        })
    }

    /// Hands over what was heard and begins anew: a connection of before is
    /// over, or unknown from now on.
    ///
    /// # Errors
    /// Fails if the check has ended.
    pub(crate) fn take(&self) -> Result<Books> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(anyhow!("nobody listens at the switch any more"));
        }
        Ok(std::mem::take(&mut *lock(&self.books)))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported already.
            let _ = thread.join();
        }
    }
}

impl Books {
    /// The flows, and who spoke for each.
    pub(crate) fn voices(&self) -> impl Iterator<Item = (&FlowKey, &Voice)> {
        self.voices.iter()
    }

    fn hear(&mut self, segment: &SegmentSeen, ts_val: Option<u32>, now: Instant) {
        let key = FlowKey {
            client: segment.to,
            service: segment.from,
        };
        self.segments += 1;
        if segment.flags.contains(TcpFlags::RST) {
            self.resets.push((now, key, segment.from_mac));
            return;
        }
        // The same four-tuple with a new SYN-ACK is another connection.
        if segment.flags.contains(TcpFlags::SYN) {
            self.voices.remove(&key);
        }
        let voice = self.voices.entry(key).or_insert(Voice {
            speaker: segment.from_mac,
            ts_val: None,
            changes: Vec::new(),
            late: 0,
            first: segment.from_mac,
            ts_back: None,
        });
        if !voice.changes.is_empty() && voice.first == segment.from_mac {
            voice.late += 1;
        }
        if voice.speaker != segment.from_mac {
            voice.speaker = segment.from_mac;
            voice.changes.push((now, segment.from_mac));
            if let (Some(before), Some(now)) = (voice.ts_val, ts_val)
                && is_before(now, before)
            {
                voice.ts_back.get_or_insert((before, now));
            }
        }
        // The latest, which need not be the last: an agent's own ACK may carry
        // one that is some milliseconds old, and a client does without it.
        if let Some(now) = ts_val
            && voice.ts_val.is_none_or(|before| is_before(before, now))
        {
            voice.ts_val = ts_val;
        }
    }
}

fn listen(socket: &PacketSocket, books: &Mutex<Books>, stop: &AtomicBool) -> Result<()> {
    let client = Host::Client.mac(Network::Data);
    let mut frame = [0; HEADERS];
    while !stop.load(Ordering::Relaxed) {
        let Some(length) = socket.receive(&mut frame)? else {
            let mut fds = [PollFd::new(socket.fd().as_fd(), PollFlags::POLLIN)];
            // Interrupted or not: the socket is looked at next.
            let _ = poll(&mut fds, PollTimeout::from(IDLE_MS));
            continue;
        };
        let frame = &frame[..length.min(HEADERS)];
        if frame.get(..6) != Some(&client.0) {
            continue;
        }
        if let FrameSeen::Segment(segment) = FrameSeen::parse(0, frame)
            && is_service(segment.from)
        {
            lock(books).hear(&segment, ts_val(frame), Instant::now());
        }
    }
    Ok(())
}

fn is_service(from: Endpoint) -> bool {
    SERVICE.contains(&from.ip())
}

/// TSval of a TCP segment, if it has one (RFC 7323 section 3.2).
fn ts_val(frame: &[u8]) -> Option<u32> {
    let (ethernet, packet) = EthernetHeader::parse(frame).ok()?;
    let header = match ethernet.ether_type {
        EthernetHeader::IPV4 => usize::from(packet.first()? & 0x0f) * 4,
        EthernetHeader::IPV6 => 40,
        _ => return None,
    };
    let tcp = packet.get(header..)?;
    let mut options = tcp.get(20..usize::from(tcp.get(12)? >> 4) * 4)?;
    loop {
        match options {
            [8, 10, rest @ ..] => return Some(u32::from_be_bytes(rest.get(..4)?.try_into().ok()?)),
            [0, ..] | [] | [_] => return None,
            [1, rest @ ..] => options = rest,
            [_, length, ..] => options = options.get(usize::from(*length).max(2)..)?,
        }
    }
}

/// In the arithmetic of RFC 7323 section 5.2.
const fn is_before(one: u32, other: u32) -> bool {
    one != other && other.wrapping_sub(one) < 1 << 31
}

fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(|e| e.into_inner())
}
