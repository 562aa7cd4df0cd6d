//! Snapshots of an application's state that an owner has its standby keep.

use core::fmt;

use alloc::vec::Vec;

use super::kind;
use crate::app::{MAX_OUTPUT, MAX_SNAPSHOT, SnapshotKind};
use crate::cursor::{Reader, verify};
use crate::restore::{emit_input, parse_input};
use crate::{EmitError, FlowId, ParseError};

/// About the snapshots of one flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotMessage {
    /// From the owner: keep this snapshot of the state that the flow's server has of
    /// it, in place of an older one. The client has acknowledged all that the server
    /// had written then, or the rest of it comes along.
    Keep {
        /// The flow.
        flow: FlowId,
        /// A part of the snapshot.
        part: SnapshotPart,
    },
    /// From the standby: it has the whole of the last one of that flow; or, of one
    /// that must not be gone back from: its twin has come there.
    Kept {
        /// The flow.
        flow: FlowId,
        /// The number of the commit, if it is one.
        commit: Option<u64>,
    },
}

impl SnapshotMessage {
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Keep { .. } => kind::FLOW_SNAPSHOT,
            Self::Kept { .. } => kind::FLOW_SNAPSHOT_KEPT,
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        match self {
            Self::Keep { flow, part } => {
                flow.emit(out);
                part.emit(out)?;
            }
            Self::Kept { flow, commit } => {
                flow.emit(out);
                out.extend(commit.iter().flat_map(|number| number.to_be_bytes()));
            }
        }
        Ok(())
    }

    /// Another `kind` is not for this function; it reads as an answer.
    pub(super) fn parse(kind: u8, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let flow = FlowId::parse(reader)?;
        if kind == kind::FLOW_SNAPSHOT {
            let part = SnapshotPart::parse(reader)?;
            return Ok(Self::Keep { flow, part });
        }
        let commit = match reader.rest().is_empty() {
            true => None,
            false => Some(reader.u64("snapshot: number")?),
        };
        Ok(Self::Kept { flow, commit })
    }
}

/// A part of a snapshot; the parts of one follow each other in order.
#[derive(Clone, PartialEq, Eq)]
pub struct SnapshotPart {
    /// What it takes that nobody goes back from it; `None` if the application makes
    /// the same output again.
    pub commit: Option<Commit>,
    /// Bytes of the client's stream that the application had read.
    pub read: u64,
    /// Bytes that the application had written.
    pub written: u64,
    /// Bytes of the whole snapshot, at most [`MAX_SNAPSHOT`].
    pub length: u32,
    /// At most [`crate::MAX_INPUT_LEN`] bytes of the snapshot and the output behind
    /// it.
    pub part: Vec<u8>,
}

/// What a snapshot has besides from which its server must never go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Which one; the standby's answer has it, too.
    pub number: u64,
    /// Bytes of output behind the snapshot: the last ones before `written`, at most
    /// [`MAX_OUTPUT`]. The client has acknowledged all that was written before them.
    pub output: u32,
}

impl SnapshotPart {
    /// Bytes of all parts together.
    pub fn total(&self) -> u64 {
        let output = self.commit.map_or(0, |commit| commit.output);
        u64::from(self.length) + u64::from(output)
    }

    /// What it is good for.
    pub const fn kind(&self) -> SnapshotKind {
        match self.commit {
            None => SnapshotKind::Regenerable,
            Some(_) => SnapshotKind::Commit,
        }
    }

    fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        out.push(self.kind().number());
        if let Some(Commit { number, output }) = self.commit {
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(&output.to_be_bytes());
        }
        out.extend_from_slice(&self.read.to_be_bytes());
        out.extend_from_slice(&self.written.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
        emit_input(out, &self.part)
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let commit = match SnapshotKind::parse(reader)? {
            SnapshotKind::Regenerable => None,
            SnapshotKind::Commit => Some(Commit::parse(reader)?),
        };
        let read = reader.u64("snapshot: bytes read")?;
        let written = reader.u64("snapshot: bytes written")?;
        let at = reader.at();
        let length = reader.u32("snapshot: length")?;
        verify(length <= MAX_SNAPSHOT, "snapshot: length", at, length)?;
        let part = Self {
            commit,
            read,
            written,
            length,
            part: parse_input(reader)?,
        };
        let inside = part.part.len() as u64 <= part.total();
        verify(inside, "snapshot: part", at, length)?;
        Ok(part)
    }
}

impl Commit {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let number = reader.u64("snapshot: number")?;
        let at = reader.at();
        let output = reader.u32("snapshot: output")?;
        verify(output <= MAX_OUTPUT, "snapshot: output", at, output)?;
        Ok(Self { number, output })
    }
}

/// Without the bytes: they are the application's.
impl fmt::Debug for SnapshotPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, total, kind) = (self.part.len(), self.total(), self.kind());
        let (read, written) = (self.read, self.written);
        write!(
            f,
            "{bytes} of {total} bytes of a {kind} snapshot at {read}, {written}"
        )
    }
}
