//! What goes to a twin: a snapshot and what may have to be said behind it, in parts.

use godwit_wire::app::{Carried, SnapshotPlace};
use godwit_wire::{Commit, SnapshotPart};

use super::{PART, part_count};

/// A snapshot, and where in the region of its server it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Where it was, and where in both streams it belongs.
    pub place: SnapshotPlace,
    /// The snapshot.
    pub carried: Carried,
}

/// A snapshot on its way to a twin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parcel {
    /// Which commit, if its server must not go back behind it.
    pub commit: Option<u64>,
    /// The snapshot.
    pub exported: Exported,
    /// The last bytes before where it was made: all that its client has not
    /// acknowledged, if it is a commit.
    pub output: Vec<u8>,
}

impl Parcel {
    /// Its size in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.exported.carried.bytes.len() + self.output.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of output that its client has acknowledged for sure.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        let output = self.output.len() as u64;
        self.exported.place.written.saturating_sub(output)
    }
}

/// Whether these are parts of one snapshot.
#[must_use]
pub fn is_same(a: &SnapshotPart, b: &SnapshotPart) -> bool {
    let of = |it: &SnapshotPart| (it.commit, it.read, it.written, it.length);
    of(a) == of(b)
}

/// What all parts of one make.
#[must_use]
pub fn parcel(whole: SnapshotPart) -> Parcel {
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
pub fn parts(parcel: Parcel) -> impl Iterator<Item = SnapshotPart> {
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
