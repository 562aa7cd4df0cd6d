//! From a paused socket to a snapshot of it.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use godwit_wire::snapshot::{Congestion, Queues, TcpSnapshot};
use godwit_wire::{Endpoint, FlowKey, SeqNumber, TcpState};
use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

use super::pause::PausedSocket;
use super::queue::Queue;
use super::sys::{self, Count, SockOptError};
use super::{Hidden, options, window};

/// Even: the lowest bit of TCP_TIMESTAMP says that the clock counts
/// microseconds (Linux 6.7).
const LEAST_SLACK_MS: u32 = 2;

/// Why a paused socket has no exact snapshot. It is still paused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A byte with the urgent flag came while it was being stopped.
    #[error("urgent data wait")]
    Urgent,
    /// What can be read is not all that was received, or is not acknowledged.
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
    /// An address that is neither IPv4 nor IPv6.
    #[error("its addresses are no Internet addresses")]
    Address,
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] SockOptError),
}

impl PausedSocket {
    /// All that another kernel needs to go on with the connection. `hidden` has
    /// to be read while the socket is paused.
    ///
    /// # Errors
    /// If the snapshot would not be exact.
    pub fn snapshot(&self, hidden: &Hidden) -> Result<TcpSnapshot, SnapshotError> {
        let fd = self.as_fd();
        if hidden.is_urgent {
            return Err(SnapshotError::Urgent);
        }
        let (key, ipv6) = ends(fd)?;
        let taken = Positions::take(fd, self.state())?;
        let queues = taken.queues(fd, hidden)?;
        let snapshot = TcpSnapshot {
            key,
            state: self.state(),
            options: options::dump(fd)?,
            ts_val: time_stamp(fd, hidden)?,
            write_seq: taken.write_seq,
            rcv_nxt: taken.rcv_nxt,
            window: window::dump(fd)?,
            congestion: Congestion {
                snd_cwnd: hidden.snd_cwnd,
                snd_ssthresh: hidden.snd_ssthresh,
                srtt_us: hidden.srtt_us,
                name: options::congestion_name(fd)?,
            },
            settings: options::dump_settings(fd, ipv6)?,
            queues,
        };
        Queue::leave(fd)?;
        Ok(snapshot)
    }
}

/// Ends and lengths of both queues, no FIN counted.
struct Positions {
    write_seq: SeqNumber,
    rcv_nxt: SeqNumber,
    recv: u32,
    send: u32,
    unsent: u32,
}

impl Positions {
    /// The kernel counts a FIN as a byte of the queue that it ends.
    fn take(fd: BorrowedFd<'_>, state: TcpState) -> Result<Self, SockOptError> {
        let own_fin = u32::from(state.has_own_fin());
        let peer_fin = u32::from(state.has_peer_fin());
        // A FIN that the client has acknowledged is in no queue.
        let unacknowledged = u32::from(state.has_own_fin() && state != TcpState::FinWait2);
        Ok(Self {
            rcv_nxt: Queue::Recv.end(fd)? - peer_fin,
            write_seq: Queue::Send.end(fd)? - own_fin,
            recv: Count::InQueue.get(fd)?,
            send: Count::OutQueue.get(fd)?.saturating_sub(unacknowledged),
            unsent: Count::OutQueueNotSent
                .get(fd)?
                .saturating_sub(unacknowledged),
        })
    }

    fn queues(&self, fd: BorrowedFd<'_>, hidden: &Hidden) -> Result<Queues, SnapshotError> {
        // Bytes that peek does not show: behind an urgent one, or of another layer.
        let received = self.rcv_nxt.0.wrapping_sub(hidden.copied_seq);
        Ok(Queues {
            recv: exactly(Queue::Recv, "the receive queue", fd, (self.recv, received))?,
            send: exactly(Queue::Send, "the send queue", fd, (self.send, self.send))?,
            unsent: self.unsent,
        })
    }
}

fn exactly(
    queue: Queue,
    name: &'static str,
    fd: BorrowedFd<'_>,
    (shown, counted): (u32, u32),
) -> Result<Vec<u8>, SnapshotError> {
    if usize::try_from(shown).unwrap_or(usize::MAX) > TcpSnapshot::MAX_QUEUE {
        return Err(SnapshotError::TooLarge {
            queue: name,
            counted,
        });
    }
    let bytes = queue.peek(fd, shown)?;
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
/// may have put ahead of the clock.
fn time_stamp(fd: BorrowedFd<'_>, hidden: &Hidden) -> Result<u32, SockOptError> {
    let clock = sys::TCP_TIMESTAMP.get(fd)?;
    let ahead_ms = u32::try_from(hidden.ahead_ns.div_ceil(1_000_000)).unwrap_or(0);
    let slack = ahead_ms.next_multiple_of(2) + LEAST_SLACK_MS;
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

fn endpoint(address: &SockaddrStorage) -> Option<Endpoint> {
    let v4 = address
        .as_sockaddr_in()
        .map(|v4| Endpoint::new(v4.ip().to_ipv6_mapped(), v4.port()));
    let v6 = address
        .as_sockaddr_in6()
        .map(|v6| Endpoint::new(v6.ip(), v6.port()));
    v4.or(v6)
}
