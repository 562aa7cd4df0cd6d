//! Taking a live TCP connection out of one kernel and putting it into another
//! (TCP_REPAIR: Linux 3.5, windows 4.8).
//!
//! ```text
//!  a socket ──pause──► PausedSocket ──snapshot──► TcpSnapshot ───► another node
//!      ▲                 │   │                                        │
//!      └─────resume──────┘   └─discard──► nothing, silently        restore
//!                                                                     │
//!  a socket ◄──release── RestoredSocket ◄─────────────────────────────┘
//!                            └─abandon──► nothing, silently
//! ```
//!
//! Each step consumes the value of the one before, so a paused socket can be
//! neither resumed twice nor forgotten: if it is dropped it resumes, which is
//! safe as long as no other node has been told to go on. A restored socket that
//! is dropped ends without a word, which is safe for the same reason.
//!
//! **Pause.** `TCP_REPAIR` takes the socket lock, which lets what waits in the
//! backlog in, and stops timers that would probe. Retransmissions still leave:
//! the node's gate has to drop what the socket says from here to the end.
//!
//! **Snapshot.** Each queue is chosen with `TCP_REPAIR_QUEUE` and shows itself to
//! one large `MSG_PEEK` (a second one would begin at the head again). Its ends are
//! among what TCP_REPAIR hides ([`Hidden`]), so that bytes which the kernel counts
//! and does not show are noticed:
//!
//! ```text
//!  receive:  copied_seq ──── peek ────► rcv_nxt
//!  send:     snd_una ── sent ──► snd_nxt ── unsent ──► write_seq
//! ```
//!
//! Segments that come in meanwhile are noticed too, and all is read again. The
//! application has to stand still: what it reads from a paused socket fails with
//! `EPERM`, what it writes with `EINVAL`, and what it writes in the moment in which
//! a queue is chosen goes into that queue.
//!
//! **Restore.** Positions are set before `connect`, which in repair mode sends
//! nothing; options after it and before any byte; then the queues, of which the
//! bytes that were sent are written in repair mode (they count as sent) and the
//! others at the release; the window last. The order is the kernel's.
//!
//! What TCP_REPAIR hides comes from a BPF program (`KernelView` of godwit-bpf):
//! without it a byte with the urgent flag would be lost in silence, and a paced
//! socket's time stamps would run backwards. The congestion window and slow start
//! threshold go back the same way, before the release.
//!
//! [`Hidden`]: godwit_wire::snapshot::Hidden

mod dump;
mod options;
mod output;
mod pause;
mod queue;
mod restore;
mod sys;
#[cfg(test)]
mod tests;
mod window;

pub use dump::SnapshotError;
pub use output::{OutputError, Unacknowledged, mend, unacknowledged};
pub use pause::{PauseError, PausedSocket, available};
pub use restore::{Release, RestoreError, RestoredSocket};
pub use sys::SockOptError;
