//! The memory that a server process shares with its agent: which connections it
//! has, and the snapshots of their state.
//!
//! ```text
//!      0  4 magic "GWAR" | 2 version | 2 size of a slot | 4 slots | 4 slots used
//!   4096  slots: 8 generation | connection | zeros
//!   then  snapshots, wherever the slots say
//! ```
//!
//! Only the process writes. A generation is odd while its slot is being written,
//! and never the same again: who reads it before and after has read one state.
//! Numbers are big-endian but for generations, which are the machine's own: the
//! process stores them at once.

use alloc::vec::Vec;

use super::{MAX_SESSION, SnapshotPlace};
use crate::cursor::{Reader, verify};
use crate::share::wire_enum;
use crate::{FlowKey, ParseError};

const MAGIC: [u8; 4] = *b"GWAR";
const VERSION: u16 = 1;

/// Where the first slot is, in bytes from the start.
pub const SLOTS_AT: u64 = 4096;

/// Size of a slot, in bytes.
pub const SLOT_LEN: usize = 512;

/// Where in a slot the connection is; the generation is before it.
pub const CONNECTION_AT: usize = 8;

/// The most slots of a region.
pub const MAX_SLOTS: u32 = 1 << 16;

/// The largest region, in bytes.
pub const MAX_REGION: u64 = 64 << 30;

/// Snapshots of one connection that are kept at a time.
pub const MAX_KEPT: usize = 8;

/// Snapshots of one connection that are more than this together, in bytes, are large.
const LARGE: u64 = 1 << 20;

/// Whether snapshots of one connection are large: fewer are kept, and the oldest stays for
/// a time, though its client may have acknowledged the output before later ones.
pub fn are_large(kept: &[SnapshotPlace]) -> bool {
    let lengths = kept.iter().map(|place| u64::from(place.length));
    lengths.sum::<u64>() > LARGE
}

/// The first bytes of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Slots that there are.
    pub slots: u32,
    /// Slots that have ever been used: those behind are empty.
    pub used: u32,
}

impl Header {
    /// Size in bytes.
    pub const LEN: usize = 16;

    /// Where `used` is, in bytes from the start.
    pub const USED_AT: usize = 12;

    /// Reads the header.
    ///
    /// # Errors
    /// If it is of another version, or impossible.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
        let magic = reader.array::<4>("region: magic")?;
        verify(
            magic == MAGIC,
            "region: magic",
            0,
            u32::from_be_bytes(magic),
        )?;
        reader.expect(VERSION, "region: version")?;
        let slot_len = u16::try_from(SLOT_LEN).unwrap_or(u16::MAX);
        reader.expect(slot_len, "region: size of a slot")?;
        let slots = reader.u32("region: slots")?;
        verify(slots <= MAX_SLOTS, "region: slots", 8, slots)?;
        let used = reader.u32("region: slots used")?;
        verify(used <= slots, "region: slots used", Self::USED_AT, used)?;
        Ok(Self { slots, used })
    }

    /// Appends the header.
    pub fn emit(self, out: &mut Vec<u8>) {
        out.extend(MAGIC);
        out.extend(VERSION.to_be_bytes());
        out.extend(u16::try_from(SLOT_LEN).unwrap_or(u16::MAX).to_be_bytes());
        out.extend(self.slots.to_be_bytes());
        out.extend(self.used.to_be_bytes());
    }
}

wire_enum! {
    /// What has become of a connection in a slot.
    SlotState, "slot: state" {
        /// The slot is free.
        Empty = 0, "empty";
        /// Its server uses it.
        Live = 1, "live";
        /// It was taken, and its server does not reach it.
        Parked = 2, "parked";
    }
}

/// A connection as its slot describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Whether it can be taken.
    pub state: SlotState,
    /// Its server keeps no state of it: it may be moved as it stands.
    pub stateless: bool,
    /// Its four-tuple.
    pub key: FlowKey,
    /// SO_COOKIE of its socket.
    pub cookie: u64,
    /// Name of the session that it belongs to, at most
    /// [`MAX_SESSION`] bytes; empty for none.
    pub session: Vec<u8>,
    /// Its snapshots, oldest first, at most [`MAX_KEPT`].
    pub kept: Vec<SnapshotPlace>,
}

impl Connection {
    /// The most bytes that one takes.
    pub const MAX_LEN: usize =
        2 + FlowKey::LEN + 8 + 1 + MAX_SESSION + 1 + MAX_KEPT * SnapshotPlace::LEN;

    /// Reads a slot behind its generation. Zeros are an empty slot.
    ///
    /// # Errors
    /// If it is impossible, for example because it was being written.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, ParseError> {
        let mut reader = Reader::new(bytes);
        let state = SlotState::parse(&mut reader)?;
        if state == SlotState::Empty {
            return Ok(None);
        }
        let flags = reader.u8("slot: flags")?;
        verify(flags <= 1, "slot: flags", 1, flags)?;
        let key = FlowKey::parse(&mut reader)?;
        let cookie = reader.u64("slot: cookie")?;
        let at = reader.at();
        let length = reader.u8("slot: session")?;
        let session_len = usize::from(length);
        verify(session_len <= MAX_SESSION, "slot: session", at, length)?;
        let session = reader.bytes(session_len, "slot: session")?.to_vec();
        let at = reader.at();
        let count = reader.u8("slot: snapshots")?;
        verify(usize::from(count) <= MAX_KEPT, "slot: snapshots", at, count)?;
        let mut kept = Vec::with_capacity(count.into());
        for _ in 0..count {
            kept.push(SnapshotPlace::parse(&mut reader)?);
        }
        Ok(Some(Self {
            state,
            stateless: flags == 1,
            key,
            cookie,
            session,
            kept,
        }))
    }

    /// Appends the connection, at most [`Connection::MAX_LEN`] bytes: names and
    /// snapshots beyond the limits are left out.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(self.state.number());
        out.push(self.stateless.into());
        self.key.emit(out);
        out.extend(self.cookie.to_be_bytes());
        let session = self.session.get(..MAX_SESSION).unwrap_or(&self.session);
        out.push(u8::try_from(session.len()).unwrap_or(0));
        out.extend(session);
        let kept = self.kept.get(..MAX_KEPT).unwrap_or(&self.kept);
        out.push(u8::try_from(kept.len()).unwrap_or(0));
        for place in kept {
            place.emit(out);
        }
    }
}

/// Where a slot is, in bytes from the start.
pub const fn slot_at(slot: u32) -> u64 {
    SLOTS_AT + slot as u64 * SLOT_LEN as u64
}

const _: () = assert!(CONNECTION_AT + Connection::MAX_LEN <= SLOT_LEN);
