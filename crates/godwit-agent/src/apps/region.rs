//! The memory that a process shares, read and never believed.
//!
//! It is read as a file, so that nothing the process does to it can disturb the
//! agent, and copied before it is looked at.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use godwit_wire::app::SnapshotPlace;
use godwit_wire::app::region::{
    CONNECTION_AT, Connection, Header, MAX_REGION, MAX_SLOTS, SLOT_LEN, slot_at,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};

/// A slot that is written all the time is not waited for any longer.
const MAX_LOOKS: u32 = 100;

/// Slots that are read at a time.
const BATCH: u32 = 64;

/// The region of one process.
#[derive(Debug)]
pub(super) struct Region {
    file: File,
    slots: u32,
    length: u64,
}

impl Region {
    /// The region in a file that a process has sent; `None` if it is not what the
    /// process says it is, or can be shortened.
    pub(super) fn new(file: OwnedFd, slots: u32, length: u64) -> Option<Self> {
        let seals = SealFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GET_SEALS).ok()?);
        let file = File::from(file);
        let whole = file.metadata().is_ok_and(|found| found.len() == length);
        let possible = slots <= MAX_SLOTS && (slot_at(slots)..=MAX_REGION).contains(&length);
        let region = Self {
            file,
            slots,
            length,
        };
        let sealed = seals.contains(SealFlag::F_SEAL_SHRINK);
        (sealed && whole && possible && region.used().is_some()).then_some(region)
    }

    /// Slots that there may be something in.
    fn used(&self) -> Option<u32> {
        let mut bytes = [0; Header::LEN];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        let header = Header::parse(&bytes).ok()?;
        (header.slots == self.slots).then_some(header.used)
    }

    /// Calls `found` with every connection.
    pub(super) fn each(&self, mut found: impl FnMut(u32, Connection)) {
        let used = self.used().unwrap_or(0);
        let mut bytes = vec![0; SLOT_LEN * BATCH as usize];
        for first in (0..used).step_by(BATCH as usize) {
            let count = BATCH.min(used - first) as usize;
            let part = &mut bytes[..SLOT_LEN * count];
            if self.file.read_exact_at(part, slot_at(first)).is_err() {
                return;
            }
            for (slot, bytes) in (first..).zip(part.chunks_exact(SLOT_LEN)) {
                // State: empty.
                if bytes[CONNECTION_AT] == 0 && bytes[0] & 1 == 0 {
                    continue;
                }
                if let Some(connection) = self.connection(slot) {
                    found(slot, connection);
                }
            }
        }
    }

    /// One connection, as it was at one moment.
    fn connection(&self, slot: u32) -> Option<Connection> {
        for _ in 0..MAX_LOOKS {
            let mut bytes = [0; SLOT_LEN];
            self.file.read_exact_at(&mut bytes, slot_at(slot)).ok()?;
            let (before, body) = bytes.split_first_chunk::<CONNECTION_AT>()?;
            let mut after = [0; CONNECTION_AT];
            self.file.read_exact_at(&mut after, slot_at(slot)).ok()?;
            if u64::from_ne_bytes(*before) & 1 == 0 && *before == after {
                return Connection::parse(body).ok().flatten();
            }
        }
        None
    }

    /// A copy of a snapshot; `None` if there is none at that place.
    pub(super) fn snapshot(&self, place: &SnapshotPlace) -> Option<Vec<u8>> {
        let end = place.offset.checked_add(place.length.into())?;
        let inside = place.length == 0 || end <= self.length;
        let mut bytes = vec![0; usize::try_from(place.length).ok().filter(|_| inside)?];
        self.file.read_exact_at(&mut bytes, place.offset).ok()?;
        Some(bytes)
    }
}
