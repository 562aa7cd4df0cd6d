//! What leaves the servers for clients, seen at the switch before any fault of
//! the network: one voice per flow, and time stamps that go on from voice to voice.
//!
//! It keeps a few words per flow and no frames, so a run may last for days. Moments
//! are those at which frames left their machines, by the kernel's wall clock: this
//! process may be late, and events of agents have the same clock.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use godwit_wire::{Endpoint, EthernetHeader, FlowKey, MacAddr, SeqNumber, TcpFlags};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::frame::{FrameSeen, SegmentSeen};
use super::question::Question;
use super::stopwatch::Tick;
use crate::host::{Host, Network, SERVICE};
use crate::lab::Lab;
use crate::packet::PacketSocket;

/// Ethernet, IPv6 and TCP with all options.
const HEADERS: usize = 134;

/// A frame of full size with a slip behind its packet.
const FRAME: usize = 2048;

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
    /// RST that servers sent to clients whose connections were not over.
    pub(crate) resets: Vec<Reset>,
    /// RST to clients that had said and heard all, see [`Farewell`].
    pub(crate) late_resets: u64,
    /// All segments.
    pub(crate) segments: u64,
    /// Frames of a [`Stopwatch`](super::Stopwatch).
    pub(crate) ticks: Vec<Tick>,
    /// Connections that servers were asked to take.
    pub(crate) questions: Vec<Question>,
}

/// A RST: of which flow, from where, and when.
#[derive(Debug)]
pub(crate) struct Reset {
    pub(crate) at: SystemTime,
    pub(crate) flow: FlowKey,
    pub(crate) from: MacAddr,
}

/// Whether a connection is over for its client: it has sent its FIN and acknowledged
/// the service's, or it has sent RST. No server can take anything from it then.
///
/// Such a client still speaks: it sends its last bytes again until it hears that they
/// have arrived, which may have been lost, and it answers from TIME-WAIT. A server
/// whose socket is gone says RST to that, as with plain TCP (RFC 9293 section
/// 3.10.7.1). Here that is seen some 200 ms, a retransmission timeout, after a standby
/// went dark: the gate had kept the acknowledgement of the client's FIN, which rides
/// on the service's FIN elsewhere. It is also seen when a new owner answers a
/// handshake anew of which it has not heard that it is long over.
#[derive(Debug, Default)]
struct Farewell {
    /// Behind the service's FIN.
    service_end: Option<SeqNumber>,
    client_fin: bool,
    over: bool,
}

impl Farewell {
    fn hear_client(&mut self, segment: &SegmentSeen) {
        if segment.flags.contains(TcpFlags::SYN) {
            *self = Self::default();
        }
        self.client_fin |= segment.flags.contains(TcpFlags::FIN);
        let has_all = self.service_end.is_some_and(|end| segment.ack.ge(end));
        self.over |= segment.flags.contains(TcpFlags::RST) || self.client_fin && has_all;
    }

    fn hear_service(&mut self, segment: &SegmentSeen) {
        if segment.flags.contains(TcpFlags::FIN) {
            self.service_end = Some(segment.seq + (segment.length + 1));
        }
    }
}

/// A time stamp of a new speaker, and the higher one of before.
#[derive(Debug)]
pub(crate) struct TsBack {
    pub(crate) at: SystemTime,
    pub(crate) from: MacAddr,
    pub(crate) before: u32,
    pub(crate) now: u32,
}

/// Who speaks for a flow. A segment that left its machine before the latest speaker
/// began is in order, whenever the switch came to look at it.
#[derive(Debug)]
pub(crate) struct Voice {
    /// When somebody began to speak, and who: one entry for each change.
    pub(crate) turns: Vec<(SystemTime, MacAddr)>,
    ts_val: Option<u32>,
    /// Segments of the first speaker after the first change.
    pub(crate) late: u64,
    /// Time stamps of new speakers that were below an earlier one.
    pub(crate) ts_back: Vec<TsBack>,
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

    fn hear(&mut self, segment: &SegmentSeen, ts_val: Option<u32>, over: bool) {
        let (at, from) = (moment(segment), segment.from_mac);
        let key = FlowKey {
            client: segment.to,
            service: segment.from,
        };
        self.segments += 1;
        if segment.flags.contains(TcpFlags::RST) {
            if over {
                self.late_resets += 1;
            } else {
                let flow = key;
                self.resets.push(Reset { at, flow, from });
            }
            return;
        }
        // The same four-tuple with a new SYN-ACK is another connection.
        if segment.flags.contains(TcpFlags::SYN) {
            self.voices.remove(&key);
        }
        let voice = self.voices.entry(key).or_insert_with(|| Voice {
            turns: vec![(at, from)],
            ts_val: None,
            late: 0,
            ts_back: Vec::new(),
        });
        voice.hear(at, from, ts_val);
    }
}

#[cfg(test)]
impl Books {
    /// One flow of the service at `port`, spoken for by these.
    pub(crate) fn spoken(port: u16, words: &[(SystemTime, MacAddr)]) -> Self {
        let mut books = Self::default();
        for (at, from_mac) in words {
            let mut segment = tests::said(TcpFlags::ACK, 1, 1, 0);
            segment.from.port = port;
            segment.from_mac = *from_mac;
            segment.at_ns = nanoseconds(*at);
            books.hear(&segment, None, false);
        }
        books
    }

    /// A connection with the service at `port` that `from` reset.
    pub(crate) fn reset(port: u16, at: SystemTime, from: MacAddr) -> Self {
        let mut segment = tests::said(TcpFlags::RST, 1, 1, 0);
        segment.from.port = port;
        segment.from_mac = from;
        segment.at_ns = nanoseconds(at);
        let mut books = Self::default();
        books.hear(&segment, None, false);
        books
    }
}

impl Voice {
    fn hear(&mut self, at: SystemTime, from: MacAddr, ts_val: Option<u32>) {
        let is_new = self
            .turns
            .last()
            .is_none_or(|(since, speaker)| *speaker != from && at >= *since);
        if is_new {
            self.turns.push((at, from));
            if let (Some(before), Some(now)) = (self.ts_val, ts_val)
                && is_before(now, before)
            {
                self.ts_back.push(TsBack {
                    at,
                    from,
                    before,
                    now,
                });
            }
        }
        let first = self.turns.first().map(|(_, first)| *first);
        let is_late = self.turns.get(1).is_some_and(|(change, _)| at >= *change);
        if is_late && first == Some(from) {
            self.late += 1;
        }
        // The latest, which need not be the last: an agent's own ACK may carry
        // one that is some milliseconds old, and a client does without it.
        if let Some(now) = ts_val
            && self.ts_val.is_none_or(|before| is_before(before, now))
        {
            self.ts_val = ts_val;
        }
    }
}

fn listen(socket: &PacketSocket, books: &Mutex<Books>, stop: &AtomicBool) -> Result<()> {
    let client = Host::Client.mac(Network::Data);
    let mut frame = [0; FRAME];
    // Over all rounds: a client may speak long after its connection was over.
    let mut farewells = BTreeMap::<FlowKey, Farewell>::new();
    while !stop.load(Ordering::Relaxed) {
        let Some((length, at)) = socket.receive_at(&mut frame)? else {
            let mut fds = [PollFd::new(socket.fd().as_fd(), PollFlags::POLLIN)];
            // Interrupted or not: the socket is looked at next.
            let _ = poll(&mut fds, PollTimeout::from(IDLE_MS));
            continue;
        };
        if let Some(question) = Question::parse(&frame[..length], at) {
            lock(books).questions.push(question);
            continue;
        }
        let frame = &frame[..length.min(HEADERS)];
        let FrameSeen::Segment(segment) = FrameSeen::parse(nanoseconds(at), frame) else {
            if let Some(tick) = Tick::parse(frame, at) {
                lock(books).ticks.push(tick);
            }
            continue;
        };
        if segment.from_mac == client && is_service(segment.to) {
            let (client, service) = (segment.from, segment.to);
            let farewell = farewells.entry(FlowKey { client, service }).or_default();
            farewell.hear_client(&segment);
        } else if segment.to_mac == client && is_service(segment.from) {
            let (client, service) = (segment.to, segment.from);
            let farewell = farewells.entry(FlowKey { client, service }).or_default();
            farewell.hear_service(&segment);
            let over = farewell.over;
            lock(books).hear(&segment, ts_val(frame), over);
        }
    }
    Ok(())
}

/// Since 1970, as [`SegmentSeen::at_ns`]: enough until 2554.
fn nanoseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn moment(segment: &SegmentSeen) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(segment.at_ns)
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

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn said(flags: TcpFlags, seq: u32, ack: u32, length: u32) -> SegmentSeen {
        let nobody = Endpoint::from(std::net::SocketAddr::from(([0, 0, 0, 0], 0)));
        SegmentSeen {
            at_ns: 0,
            from_mac: MacAddr::ZERO,
            to_mac: MacAddr::ZERO,
            from: nobody,
            to: nobody,
            flags,
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            window: 0,
            length,
            wscale: None,
            ts_val: None,
            ecn: 0,
        }
    }

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x11]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x12]);

    fn heard(words: &[(u64, MacAddr, u32)]) -> Voice {
        let mut books = Books::default();
        for (at_ms, from_mac, ts_val) in words {
            let segment = SegmentSeen {
                at_ns: at_ms * 1_000_000,
                from_mac: *from_mac,
                ..said(TcpFlags::ACK, 1, 1, 0)
            };
            books.hear(&segment, Some(*ts_val), false);
        }
        books.voices.pop_first().expect("one flow").1
    }

    /// Two processors may look at two frames in another order than they left in.
    #[test]
    fn a_change_of_voice_is_in_the_order_in_which_frames_left() {
        let voice = heard(&[(1, A, 10), (9, B, 20), (8, A, 18), (9, B, 20)]);
        assert_eq!(voice.turns.len(), 2);
        assert_eq!((voice.late, voice.ts_back.len()), (0, 0));
        let voice = heard(&[(1, A, 10), (9, B, 20), (10, A, 18), (11, B, 21)]);
        let order: Vec<_> = voice.turns.iter().map(|(_, who)| *who).collect();
        assert_eq!(order, [A, B, A, B]);
        assert_eq!((voice.late, voice.ts_back.len()), (1, 1));
        assert_eq!((voice.ts_back[0].before, voice.ts_back[0].now), (20, 18));
    }

    #[test]
    fn a_connection_is_over_when_its_client_has_said_and_heard_all() {
        const ACK: TcpFlags = TcpFlags::ACK;
        let end = TcpFlags::FIN.with(ACK);
        let mut farewell = Farewell::default();
        farewell.hear_client(&said(ACK, 1, 1, 30));
        farewell.hear_client(&said(end, 31, 1, 0));
        assert!(!farewell.over, "the service has not ended");
        farewell.hear_service(&said(end, 1, 31, 100));
        assert!(!farewell.over, "and its client has not heard it");
        farewell.hear_client(&said(ACK, 32, 101, 0));
        assert!(!farewell.over, "but the last bytes only");
        farewell.hear_client(&said(ACK, 32, 102, 0));
        assert!(farewell.over, "whether its own FIN has arrived or not");
        farewell.hear_client(&said(TcpFlags::SYN, 77, 0, 0));
        assert!(!farewell.over, "its port is used again");
        farewell.hear_client(&said(TcpFlags::RST, 78, 0, 0));
        assert!(farewell.over);
    }
}
