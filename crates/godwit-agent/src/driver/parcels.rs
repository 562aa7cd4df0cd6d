//! What goes to a twin: a snapshot and what may have to be said behind it, in parts.

use godwit_wire::app::{Carried, SnapshotPlace};
use godwit_wire::{Commit, SnapshotPart};

use crate::apps::{Committed, Exported};

/// Of a snapshot, in one message.
pub(super) const PART: usize = 256 << 10;

/// A snapshot on its way to a twin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parcel {
    /// Which commit, if its server must not go back behind it.
    pub(super) commit: Option<u64>,
    /// The snapshot.
    pub(super) exported: Exported,
    /// The last bytes before where it was made: all that its client has not
    /// acknowledged, if it is a commit.
    pub(super) output: Vec<u8>,
}

impl Parcel {
    pub(super) fn of_commit(number: u64, committed: Committed) -> Self {
        Self {
            commit: Some(number),
            exported: committed.exported,
            output: committed.output,
        }
    }

    /// Its size in bytes.
    pub(super) const fn len(&self) -> usize {
        self.exported.carried.bytes.len() + self.output.len()
    }

    /// Bytes of output that its client has acknowledged for sure.
    pub(super) const fn acknowledged(&self) -> u64 {
        let output = self.output.len() as u64;
        self.exported.place.written.saturating_sub(output)
    }
}

pub(super) fn is_same(a: &SnapshotPart, b: &SnapshotPart) -> bool {
    let of = |it: &SnapshotPart| (it.commit, it.read, it.written, it.length);
    of(a) == of(b)
}

pub(super) fn parcel(whole: SnapshotPart) -> Parcel {
    let kind = whole.kind();
    let length = usize::try_from(whole.length).unwrap_or(usize::MAX);
    let mut bytes = whole.part;
    let output = bytes.split_off(length.min(bytes.len()));
    Parcel {
        commit: whole.commit.map(|commit| commit.number),
        exported: Exported {
            place: SnapshotPlace {
                offset: 0,
                length: whole.length,
                kind,
                read: whole.read,
                written: whole.written,
            },
            carried: Carried { kind, bytes },
        },
        output,
    }
}

/// A snapshot in parts, and the output behind it; one that is empty has one.
pub(super) fn parts(parcel: Parcel) -> impl Iterator<Item = SnapshotPart> {
    let place = parcel.exported.place;
    let output = u32::try_from(parcel.output.len()).unwrap_or(u32::MAX);
    let commit = parcel.commit.map(|number| Commit { number, output });
    let mut bytes = parcel.exported.carried.bytes;
    bytes.extend_from_slice(&parcel.output);
    (0..part_count(bytes.len())).map(move |index| {
        let rest = bytes.get(index * PART..).unwrap_or_default();
        SnapshotPart {
            commit,
            read: place.read,
            written: place.written,
            length: place.length,
            part: rest.get(..PART).unwrap_or(rest).to_vec(),
        }
    })
}

/// One that is empty has one.
pub(super) fn part_count(bytes: usize) -> usize {
    bytes.div_ceil(PART).max(1)
}
