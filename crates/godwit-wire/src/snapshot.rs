//! A live TCP socket as bytes: what its kernel must be told to go on with it.
//!
//! ```text
//!  1 version | 36 four-tuple | 1 state | 1 options | 2 mss_clamp | 1 snd_wscale
//!  1 rcv_wscale | 4 ts_val | 4 write_seq | 4 rcv_nxt | 20 window
//!  4 snd_cwnd | 4 snd_ssthresh | 4 srtt_us | 1+n congestion control
//!  1 flags | 1 traffic class | 12 keep-alive | 4 user time-out
//!  4 notsent_lowat | 4 linger | 4 sndbuf | 4 rcvbuf
//!  4+n receive queue | 4 unsent | 4+n send queue
//! ```
//!
//! That is [`TcpSnapshot::LEAST_BYTES`] and the name of the congestion control, 1
//! to 15 bytes, and what is in the queues.
//!
//! Names are those of the kernel (`struct tcp_sock`, `TCP_REPAIR`), for it is
//! its state and nothing else. Positions do not count a FIN, own or foreign:
//! the state tells whether there was one.

mod hidden;
mod moved;
mod parts;
mod state;
#[cfg(test)]
mod tests;

use core::fmt;

use alloc::vec::Vec;

pub use hidden::{Hidden, Traits};
pub use moved::{Application, Moved};
pub use parts::{Congestion, Options, Queues, Settings, Window};
pub use state::TcpState;

use crate::cursor::{Reader, verify};
use crate::{FlowKey, ParseError, SeqNumber};

const VERSION: u8 = 1;

/// A TCP socket that has been stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSnapshot {
    /// The four-tuple.
    pub key: FlowKey,
    /// Its state (RFC 9293 section 3.3.2).
    pub state: TcpState,
    /// What was negotiated.
    pub options: Options,
    /// TSval with which the socket goes on; at least the last one that it sent.
    pub ts_val: u32,
    /// End of the send queue: the next byte that the application writes.
    pub write_seq: SeqNumber,
    /// Next byte expected from the client: the end of the receive queue.
    pub rcv_nxt: SeqNumber,
    /// What each side may send.
    pub window: Window,
    /// What is known of the path.
    pub congestion: Congestion,
    /// What the application has set.
    pub settings: Settings,
    /// Bytes that are on their way to somebody.
    pub queues: Queues,
}

impl TcpSnapshot {
    /// Bytes of a snapshot without the name of its congestion control and
    /// without what is in its queues.
    pub const LEAST_BYTES: usize = 134;

    /// Most bytes in one queue that a parser accepts: the kernel's own limit on
    /// a socket buffer (`tcp_rmem`, `tcp_wmem`) is rarely above 32 MiB.
    pub const MAX_QUEUE: usize = 64 << 20;

    /// First byte that the client has not acknowledged.
    #[must_use]
    pub fn snd_una(&self) -> SeqNumber {
        self.write_seq - length(&self.queues.send)
    }

    /// Next byte that has never been sent.
    #[must_use]
    pub fn snd_nxt(&self) -> SeqNumber {
        self.write_seq - self.queues.unsent
    }

    /// Next byte that the application reads.
    #[must_use]
    pub fn copied_seq(&self) -> SeqNumber {
        self.rcv_nxt - length(&self.queues.recv)
    }

    /// Reads a snapshot, which is the whole of `bytes`.
    ///
    /// # Errors
    /// If it is of another version, cut, overlong or impossible.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8("socket: version")?;
        verify(version == VERSION, "socket: version", 0, version)?;
        let snapshot = Self {
            key: FlowKey::parse(&mut reader)?,
            state: TcpState::parse(&mut reader)?,
            options: Options::parse(&mut reader)?,
            ts_val: reader.u32("socket: ts_val")?,
            write_seq: reader.seq("socket: write_seq")?,
            rcv_nxt: reader.seq("socket: rcv_nxt")?,
            window: Window::parse(&mut reader)?,
            congestion: Congestion::parse(&mut reader)?,
            settings: Settings::parse(&mut reader)?,
            queues: Queues::parse(&mut reader)?,
        };
        reader.finish("socket: trailing bytes")?;
        Ok(snapshot)
    }

    /// Appends the snapshot.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        self.key.emit(out);
        out.push(self.state as u8);
        self.options.emit(out);
        out.extend(self.ts_val.to_be_bytes());
        out.extend(self.write_seq.0.to_be_bytes());
        out.extend(self.rcv_nxt.0.to_be_bytes());
        self.window.emit(out);
        self.congestion.emit(out);
        self.settings.emit(out);
        self.queues.emit(out);
    }
}

impl fmt::Display for TcpSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} snd_una {} snd_nxt {} write_seq {} copied_seq {} rcv_nxt {}",
            self.key,
            self.state,
            self.snd_una(),
            self.snd_nxt(),
            self.write_seq,
            self.copied_seq(),
            self.rcv_nxt
        )
    }
}

/// Sequence numbers count modulo 2^32, and a queue is far shorter.
fn length(queue: &[u8]) -> u32 {
    u32::try_from(queue.len()).unwrap_or(u32::MAX)
}
