//! The memory that a process shares, read and never believed.
//!
//! It is read as a file, so that nothing the process does to it can disturb the
//! agent, and copied before it is looked at.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::Duration;

use godwit_wire::app::SnapshotPlace;
use godwit_wire::app::region::{
    CONNECTION_AT, Connection, Header, MAX_REGION, MAX_SLOTS, SLOT_LEN, slot_at,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use super::closing::Foreign;

/// A slot that is written all the time is not waited for any longer.
const MAX_LOOKS: u32 = 100;

/// Of those, the last ones are so far apart: a process that has lost its processor
/// while it writes is not one without the connection.
const PATIENT_LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Slots that are read at a time.
const BATCH: u32 = 64;

/// How many looks at slots that are being written may be far apart.
#[derive(Debug)]
pub(super) struct Patience(u32);

impl Default for Patience {
    fn default() -> Self {
        Self(PATIENT_LOOKS)
    }
}

impl Patience {
    /// Where another look follows soon.
    pub(super) const fn none() -> Self {
        Self(0)
    }
}

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
    pub(super) fn new(file: Foreign, slots: u32, length: u64) -> Option<Self> {
        // Only a file in memory has them: nothing waits for anybody from here on.
        let seals = fcntl(file.as_fd(), FcntlArg::F_GET_SEALS).ok()?;
        let seals = SealFlag::from_bits_retain(seals);
        let file = File::from(file.into_inner());
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

    /// Calls `found` with every connection. There is as much patience as is left, for all
    /// slots together, and for all processes of one account: what they write must not keep
    /// an agent busy.
    pub(super) fn each(
        &self,
        Patience(patient_looks): &mut Patience,
        mut found: impl FnMut(u32, Connection),
    ) {
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
                match self.look(slot, *patient_looks) {
                    Some((_, Some(connection))) => found(slot, connection),
                    Some((_, None)) => {}
                    None => *patient_looks = 0,
                }
            }
        }
    }

    /// One connection, if it is not written just now: nobody is waited for.
    pub(super) fn glance(&self, slot: u32) -> Option<Connection> {
        self.look(slot, 0)?.1
    }

    /// One connection, as it was at one moment.
    pub(super) fn connection(&self, slot: u32) -> Option<Connection> {
        self.versioned(slot).map(|(_, connection)| connection)
    }

    /// The same, with its generation.
    fn versioned(&self, slot: u32) -> Option<(u64, Connection)> {
        let (generation, found) = self.look(slot, PATIENT_LOOKS)?;
        Some((generation, found?))
    }

    /// What is in a slot, and its generation; `None` if that is not to be known.
    fn look(&self, slot: u32, patient_looks: u32) -> Option<(u64, Option<Connection>)> {
        for look in 0..MAX_LOOKS {
            if look >= MAX_LOOKS - patient_looks {
                thread::sleep(BETWEEN_LOOKS);
            }
            let mut bytes = [0; SLOT_LEN];
            self.file.read_exact_at(&mut bytes, slot_at(slot)).ok()?;
            let (before, body) = bytes.split_first_chunk::<CONNECTION_AT>()?;
            let mut after = [0; CONNECTION_AT];
            self.file.read_exact_at(&mut after, slot_at(slot)).ok()?;
            let generation = u64::from_ne_bytes(after);
            if generation & 1 == 0 && *before == after {
                let found = Connection::parse(body).ok()?;
                return Some((generation, found));
            }
        }
        None
    }

    /// A copy of a snapshot of a connection, whole; `None` if its server has thrown it
    /// away, or does so meanwhile. Only the latest may be written anew for the same
    /// place in the streams: then nothing must have changed.
    pub(super) fn copy(&self, slot: u32, cookie: u64, place: &SnapshotPlace) -> Option<Vec<u8>> {
        let has = |found: &Connection| found.cookie == cookie && found.kept.contains(place);
        let (before, _) = self.versioned(slot).filter(|(_, found)| has(found))?;
        let bytes = self.snapshot(place)?;
        let (after, found) = self.versioned(slot).filter(|(_, found)| has(found))?;
        (before == after || found.kept.last() != Some(place)).then_some(bytes)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use godwit_wire::app::region::SlotState;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::super::closing::Closer;
    use super::*;

    const SLOTS: u32 = 128;

    /// A region as a process makes it, and its file.
    fn region() -> (Region, File) {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"godwit", flags).expect("a memfd"));
        let length = slot_at(SLOTS);
        file.set_len(length).expect("it grows");
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("it is sealed");
        let mut header = Vec::new();
        let (slots, used) = (SLOTS, SLOTS);
        Header { slots, used }.emit(&mut header);
        file.write_all_at(&header, 0).expect("there is room");
        let shared = file.as_fd().try_clone_to_owned().expect("a descriptor");
        let shared = Foreign::new(shared, &Closer::new(Arc::default()));
        let region = Region::new(shared, SLOTS, length).expect("it is one");
        (region, file)
    }

    fn write(file: &File, slot: u32, generation: u64) {
        let connection = Connection {
            state: SlotState::Live,
            stateless: false,
            key: godwit_wire::FlowKey {
                client: "10.9.0.10:40000".parse().expect("a literal"),
                service: "10.9.0.100:80".parse().expect("a literal"),
            },
            cookie: 7,
            session: Vec::new(),
            kept: Vec::new(),
        };
        let mut bytes = generation.to_ne_bytes().to_vec();
        connection.emit(&mut bytes);
        file.write_all_at(&bytes, slot_at(slot))
            .expect("there is room");
    }

    /// Whoever writes may lose its processor in the middle.
    #[test]
    fn a_slot_that_is_half_written_is_waited_for() {
        let (region, file) = region();
        write(&file, 3, 1);
        let writer = thread::spawn(move || {
            thread::sleep(BETWEEN_LOOKS * 3);
            write(&file, 3, 2);
        });
        let mut found = Vec::new();
        region.each(&mut Patience::default(), |slot, connection| {
            found.push((slot, connection.cookie))
        });
        assert_eq!(found, [(3, 7)]);
        writer.join().expect("it has written");
    }

    /// A process that never finishes costs one such wait, not one for each slot.
    #[test]
    fn slots_that_stay_half_written_are_not_waited_for_one_by_one() {
        let (region, file) = region();
        for slot in 0..SLOTS - 1 {
            write(&file, slot, 1);
        }
        write(&file, SLOTS - 1, 2);
        let (begun, mut found) = (Instant::now(), Vec::new());
        region.each(&mut Patience::default(), |slot, _| found.push(slot));
        assert_eq!(found, [SLOTS - 1]);
        let all = BETWEEN_LOOKS * PATIENT_LOOKS * SLOTS;
        assert!(begun.elapsed() < all / 2, "{:?}", begun.elapsed());
    }
}
