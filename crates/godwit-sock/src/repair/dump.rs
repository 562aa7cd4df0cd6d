//! From a paused socket to a snapshot of it.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use godwit_wire::snapshot::{Congestion, Hidden, Queues, TcpSnapshot};
use godwit_wire::{FlowKey, SeqNumber, TcpState};
use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

use super::pause::{PauseError, PausedSocket, state_of};
use super::queue::Queue;
use super::sys::{self, SockOptError};
use super::{options, window};
use crate::ends::endpoint;

/// Between the look at the socket and the reading of its clock a segment may
/// still have been stamped.
const LEAST_SLACK_NS: u64 = 2_000_000;

/// How often a socket is read again because a segment came in between. More
/// than a few means that nobody keeps its segments away.
const TRIES: u32 = 8;

/// Why a paused socket has no exact snapshot. It is still paused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It has ended since it was paused.
    #[error(transparent)]
    State(PauseError),
    /// A byte with the urgent flag waits: TCP_REPAIR would lose it.
    #[error("urgent data wait")]
    Urgent,
    /// Its segments are signed, with keys that stay in the kernel.
    #[error("its segments are signed (TCP-MD5 or TCP-AO)")]
    Signed,
    /// A layer above TCP keeps state of its own in the kernel.
    #[error("the kernel runs another protocol on top of it")]
    UpperLayer,
    /// Bytes may wait in the kernel where TCP_REPAIR does not see them.
    #[error("the kernel itself uses it (a sockmap or a network file system)")]
    Taken,
    /// What can be read is not what the kernel counts.
    #[error("{queue} shows {got} bytes, the kernel counts {counted}")]
    Mismatch {
        /// Which queue.
        queue: &'static str,
        /// Bytes that it shows.
        got: usize,
        /// Bytes between its ends.
        counted: u32,
    },
    /// It holds more than a snapshot may.
    #[error("{queue} holds {counted} bytes, more than {max}", max = TcpSnapshot::MAX_QUEUE)]
    TooLarge {
        /// Which queue.
        queue: &'static str,
        /// Bytes between its ends.
        counted: u32,
    },
    /// Its segments still reach it: they have to be kept away first.
    #[error("segments keep coming in")]
    Restless,
    /// Its application wrote while a queue was open. What it wrote may be among
    /// the bytes received: such a connection must be reset, not resumed.
    #[error("its application wrote to it while it was read")]
    Written,
    /// An address that is neither IPv4 nor IPv6.
    #[error("its addresses are no Internet addresses")]
    Address,
    /// Nobody could tell what TCP_REPAIR hides.
    #[error("its hidden fields can't be read")]
    Hidden(#[source] io::Error),
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] SockOptError),
}

impl PausedSocket {
    /// All that another kernel needs to go on with the connection. `look` tells
    /// what TCP_REPAIR hides of the socket, and is asked more than once.
    ///
    /// # Errors
    /// If the snapshot would not be exact.
    pub fn snapshot(
        &self,
        look: impl Fn(BorrowedFd<'_>) -> io::Result<Hidden>,
    ) -> Result<TcpSnapshot, SnapshotError> {
        let fd = self.as_fd();
        for _ in 0..TRIES {
            let before = Look::take(fd, &look)?;
            before.refuse()?;
            let queues = before.queues(fd);
            // In any case: what the application writes goes into an open queue.
            Queue::leave(fd)?;
            let after = Look::take(fd, &look)?;
            if before.is_written(&after) {
                return Err(SnapshotError::Written);
            }
            if before.stands_as(&after) {
                return before.snapshot(fd, queues?);
            }
        }
        Err(SnapshotError::Restless)
    }
}

/// A socket at one moment.
struct Look {
    state: TcpState,
    hidden: Hidden,
}

impl Look {
    fn take(
        fd: BorrowedFd<'_>,
        look: &impl Fn(BorrowedFd<'_>) -> io::Result<Hidden>,
    ) -> Result<Self, SnapshotError> {
        Ok(Self {
            state: state_of(fd).map_err(SnapshotError::State)?,
            hidden: look(fd).map_err(SnapshotError::Hidden)?,
        })
    }

    fn refuse(&self) -> Result<(), SnapshotError> {
        let traits = self.hidden.traits;
        let reasons = [
            (traits.is_urgent, SnapshotError::Urgent),
            (traits.is_signed, SnapshotError::Signed),
            (traits.is_layered, SnapshotError::UpperLayer),
            (traits.is_taken, SnapshotError::Taken),
        ];
        let refused = reasons.into_iter().find(|(holds, _)| *holds);
        refused.map_or(Ok(()), |(_, reason)| Err(reason))
    }

    /// The end of the receive queue: the client's FIN is none of its bytes.
    fn rcv_nxt(&self) -> SeqNumber {
        self.hidden.rcv_nxt - u32::from(self.state.has_peer_fin())
    }

    /// The end of the send queue, our FIN not counted.
    fn write_seq(&self) -> SeqNumber {
        self.hidden.write_seq - u32::from(self.state.has_own_fin())
    }

    /// Both queues; nothing that was read before a FIN or acknowledged with one.
    fn queues(&self, fd: BorrowedFd<'_>) -> Result<Queues, SnapshotError> {
        let left = |end: SeqNumber, start| end.checked_distance(start).unwrap_or(0);
        let received = left(self.rcv_nxt(), self.hidden.copied_seq);
        let written = left(self.write_seq(), self.hidden.snd_una);
        Ok(Queues {
            recv: exactly(Queue::Recv, fd, received)?,
            send: exactly(Queue::Send, fd, written)?,
            unsent: left(self.write_seq(), self.hidden.snd_nxt),
        })
    }

    fn stands_as(&self, other: &Self) -> bool {
        let ends = |look: &Self| {
            let hidden = &look.hidden;
            let received = (hidden.copied_seq, hidden.rcv_nxt);
            let sent = (hidden.snd_una, hidden.snd_nxt, hidden.write_seq);
            (look.state, received, sent)
        };
        ends(self) == ends(other)
    }

    /// Whether bytes came that were neither a segment's nor there before.
    fn is_written(&self, after: &Self) -> bool {
        let (own, foreign) = (
            self.write_seq() != after.write_seq(),
            self.rcv_nxt() != after.rcv_nxt(),
        );
        own || foreign && self.hidden.data_segs_in == after.hidden.data_segs_in
    }

    fn snapshot(&self, fd: BorrowedFd<'_>, queues: Queues) -> Result<TcpSnapshot, SnapshotError> {
        let (key, ipv6) = ends(fd)?;
        Ok(TcpSnapshot {
            key,
            state: self.state,
            options: options::dump(fd)?,
            ts_val: time_stamp(fd, &self.hidden)?,
            write_seq: self.write_seq(),
            rcv_nxt: self.rcv_nxt(),
            window: window::dump(fd)?,
            congestion: Congestion {
                snd_cwnd: self.hidden.snd_cwnd,
                snd_ssthresh: self.hidden.snd_ssthresh,
                srtt_us: self.hidden.srtt_us,
                name: options::congestion_name(fd)?,
            },
            settings: options::dump_settings(fd, ipv6, !key.service.is_ipv4())?,
            queues,
        })
    }
}

fn exactly(queue: Queue, fd: BorrowedFd<'_>, counted: u32) -> Result<Vec<u8>, SnapshotError> {
    let name = queue.name();
    if usize::try_from(counted).unwrap_or(usize::MAX) > TcpSnapshot::MAX_QUEUE {
        return Err(SnapshotError::TooLarge {
            queue: name,
            counted,
        });
    }
    let bytes = queue.peek(fd, counted)?;
    if u32::try_from(bytes.len()).is_ok_and(|got| got == counted) {
        return Ok(bytes);
    }
    Err(SnapshotError::Mismatch {
        queue: name,
        got: bytes.len(),
        counted,
    })
}

/// TSval for the next kernel: not below the last one that left, which pacing
/// may have put ahead of the clock. Bit 0 says that the clock counts microseconds
/// instead of milliseconds (Linux 6.7).
fn time_stamp(fd: BorrowedFd<'_>, hidden: &Hidden) -> Result<u32, SockOptError> {
    let clock = sys::TCP_TIMESTAMP.get(fd)?;
    let tick_ns = if clock & 1 == 0 { 1_000_000 } else { 1_000 };
    let slack = (hidden.ahead_ns + LEAST_SLACK_NS).div_ceil(tick_ns);
    // As far ahead as 2^31 no segment is.
    let slack = u32::try_from(slack.next_multiple_of(2)).unwrap_or(0);
    Ok(clock.wrapping_add(slack))
}

/// The four-tuple, and whether the socket is one of IPv6 (IPv4 clients of a
/// server that listens to both have one too).
fn ends(fd: BorrowedFd<'_>) -> Result<(FlowKey, bool), SnapshotError> {
    let raw = fd.as_raw_fd();
    let own: SockaddrStorage = getsockname(raw).map_err(|e| sys::refused("getsockname", e))?;
    let peer: SockaddrStorage = getpeername(raw).map_err(|e| sys::refused("getpeername", e))?;
    let ipv6 = own.as_sockaddr_in6().is_some();
    let (Some(service), Some(client)) = (endpoint(&own), endpoint(&peer)) else {
        return Err(SnapshotError::Address);
    };
    Ok((FlowKey { client, service }, ipv6))
}
