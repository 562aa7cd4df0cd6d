//! Leases: who may speak for a share, and until when.
//!
//! PaxosLease (Trencseni, Gazso, Reinhardt, 2012): diskless, a majority of
//! voters, no synchronised clocks. Two machines, which talk in
//! [`LeaseMessage`](godwit_wire::LeaseMessage)s:
//!
//! ```text
//!  Proposer                                    Acceptor, one per voter
//!  stands for a share
//!    Prepare(epoch) ──────────────────────────► nobody holds a lease here
//!    ◄──────────────── Promise(the last lease)
//!  a majority promised
//!    Propose(lease: epoch, term, in-sync set) ─► nobody holds a lease here
//!    ◄──────────────────────────────── Accepted  starts a timer of one term
//!  a majority accepted: owner until one term after it *sent*, less drift
//!    Propose(renewal, or another in-sync set) ─► same epoch: the timer again
//! ```
//!
//! Four rules carry the proof; `docs/protocol.md` has it.
//!
//! 1. An acceptor accepts nothing from another node while a lease is in force
//!    at it. So two majorities would need a common voter at two times a term
//!    apart, and the first holder, whose timer started earlier, is silent then.
//! 2. An acceptor that restarted has forgotten what it accepted: it keeps quiet
//!    until the longest lease of before is over ([`Terms::quarantine`]).
//! 3. The lease carries the in-sync set, and acceptors remember the last one
//!    beyond its end. A candidate continues connections only if a majority says
//!    that the last lease was of the epoch that it shadows, and it was in the set.
//!    Its own attempts that came to nothing do not count as leases ([`attempts`]).
//! 4. A holder whose lease has ended goes on only where a majority remembers
//!    it as the last one. Else somebody may have owned in between.
//!
//! With `fencing = "stonith"` leases are *endless*. Rule 1 is then kept by power
//! switches: every other server either consents or has been powered off.
//!
//! The machines count time by `now` only. The clock behind it must go on while
//! the host is suspended (CLOCK_BOOTTIME), or must never be (stonith).

mod acceptor;
mod attempts;
mod backoff;
mod event;
mod proposer;
mod quorum;
mod round;
mod silence;
mod tenure;
mod terms;
#[cfg(test)]
mod tests;

pub use acceptor::{Acceptor, Speaker, View};
pub use event::{Candidacy, LeaseEvent, ProposerConfig};
pub use proposer::Proposer;
pub use quorum::voters_digest;
pub use terms::Terms;
