//! Snapshots of an application's state that an owner has its standby keep.

use core::fmt;

use alloc::vec::Vec;

use crate::app::{MAX_SNAPSHOT, SnapshotKind};
use crate::cursor::{Reader, verify};
use crate::restore::{emit_input, parse_input};
use crate::{EmitError, ParseError};

/// A part of a snapshot; the parts of one follow each other in order.
#[derive(Clone, PartialEq, Eq)]
pub struct SnapshotPart {
    /// What the snapshot is good for.
    pub kind: SnapshotKind,
    /// Bytes of the client's stream that the application had read.
    pub read: u64,
    /// Bytes that the application had written.
    pub written: u64,
    /// Bytes of the whole snapshot, at most [`MAX_SNAPSHOT`].
    pub length: u32,
    /// At most [`crate::MAX_INPUT_LEN`] bytes of it.
    pub part: Vec<u8>,
}

impl SnapshotPart {
    pub(super) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        out.push(self.kind.number());
        out.extend_from_slice(&self.read.to_be_bytes());
        out.extend_from_slice(&self.written.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
        emit_input(out, &self.part)
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let kind = SnapshotKind::parse(reader)?;
        let read = reader.u64("snapshot: bytes read")?;
        let written = reader.u64("snapshot: bytes written")?;
        let at = reader.at();
        let length = reader.u32("snapshot: length")?;
        verify(length <= MAX_SNAPSHOT, "snapshot: length", at, length)?;
        let part = parse_input(reader)?;
        let inside = u32::try_from(part.len()).is_ok_and(|part| part <= length);
        verify(inside, "snapshot: part", at, length)?;
        Ok(Self {
            kind,
            read,
            written,
            length,
            part,
        })
    }
}

/// Without the bytes: they are the application's.
impl fmt::Debug for SnapshotPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            read,
            written,
            length,
            part,
        } = self;
        let bytes = part.len();
        write!(
            f,
            "{bytes} of {length} bytes of a {kind} snapshot at {read}, {written}"
        )
    }
}
