//! Where a director sends a new connection, and where it leaves an old one.
//!
//! A director stands in front of many back-ends of one service address. It keeps no
//! table of connections: a hash of the four-tuple ([`FlowHash`]) gives a slot, and the
//! slot a back-end ([`lookup_table`]). Directors that know the same back-ends fill the
//! same table, whatever the order in which they learnt of them.
//!
//! A back-end that comes or goes changes some slots, and a connection must not notice:
//!
//! ```text
//!              ┌ SYN ──────────────────────────► now       and an entry, if now is not base
//!   slot ──────┤
//!              └ any other ── with an entry? ──► the entry's
//!                             without one ─────► base
//! ```
//!
//! *now* is what the table says; *base* is where the connections of the slot are that
//! have no entry. They differ from the moment the table changes until the base is gone
//! ([`Slots`]). So an entry is needed only for a connection that began in a slot whose
//! older ones are elsewhere.
//!
//! Which back-ends are in the table is decided by what is heard of them ([`Roster`]), and
//! which of several directors answers for the addresses by what they hear of each other
//! ([`Holder`]).

mod hash;
mod holder;
mod maglev;
mod proofs;
mod roster;
mod slots;
#[cfg(test)]
mod tests;
mod unheard;

pub use hash::FlowHash;
pub use holder::{Fellow, Holder};
pub use maglev::{Member, TableSize, lookup_table};
pub use proofs::{Asking, Proofs, answered, unproved};
pub use roster::{BackendState, Change, Config, HOLD, Health, Roster, Serving};
pub use slots::{Entry, Placed, Route, Slot, Slots, Word};
pub use unheard::{Unheard, unheard};

/// A back-end: its number at this director. Other directors may number otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(pub u16);
