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
//! **Snapshot.** Each queue is chosen with `TCP_REPAIR_QUEUE`, tells its end
//! with `TCP_QUEUE_SEQ`, and shows itself to one large `MSG_PEEK` (a second one
//! would begin at the head again):
//!
//! ```text
//!  receive:  copied_seq ──── peek ────► rcv_nxt
//!  send:     snd_una ── sent ──► snd_nxt ── SIOCOUTQNSD ──► write_seq
//! ```
//!
//! **Restore.** Positions are set before `connect`, which in repair mode sends
//! nothing; options after it and before any byte; then the queues, of which the
//! bytes that were sent are written in repair mode (they count as sent) and the
//! others at the release; the window last. The order is the kernel's.
//!
//! What TCP_REPAIR hides comes from the data path ([`Hidden`]): without it a
//! byte with the urgent flag would be lost in silence, and a paced socket's time
//! stamps would run backwards.

mod dump;
mod hidden;
mod options;
mod pause;
mod queue;
mod restore;
mod sys;
#[cfg(test)]
mod tests;
mod window;

pub use dump::SnapshotError;
pub use hidden::Hidden;
pub use pause::{PauseError, PausedSocket};
pub use restore::{Release, RestoreError, RestoredSocket};
pub use sys::SockOptError;
