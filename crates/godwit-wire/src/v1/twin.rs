//! What an owner says of its flows, for the twins to follow.

use alloc::vec::Vec;

use super::{OutputEntry, kind, output};
use crate::cursor::{Reader, verify};
use crate::{EmitError, FlowId, ParseError, SeqNumber};

/// The most flows that one [`TwinMessage`] tells of.
pub const MAX_DIGEST_ENTRIES: usize = 512;

/// From the owner, about all twins of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TwinMessage {
    /// Where the flows stand that changed since the last one: at most
    /// [`MAX_DIGEST_ENTRIES`].
    Digest(Vec<DigestEntry>),
    /// What its application has said, to be compared, of at most [`MAX_DIGEST_ENTRIES`]
    /// flows.
    Output(Vec<OutputEntry>),
}

impl TwinMessage {
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Digest(_) => kind::DIGEST,
            Self::Output(_) => kind::OUTPUT,
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        match self {
            Self::Digest(entries) => emit_entries(out, entries),
            Self::Output(entries) => output::emit_entries(out, entries),
        }
    }

    /// Another `kind` is not for this function; it reads as output.
    pub(super) fn parse(kind: u8, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(match kind {
            kind::DIGEST => Self::Digest(parse_entries(reader)?),
            _ => Self::Output(output::parse_entries(reader)?),
        })
    }
}

/// Where one changed flow stands, as its owner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DigestEntry {
    /// The flow.
    pub flow: FlowId,
    /// First byte that the client has not acknowledged.
    pub snd_una: SeqNumber,
    /// Next byte that the owner will send.
    pub snd_nxt: SeqNumber,
    /// Next byte that the owner expects from the client.
    pub rcv_nxt: SeqNumber,
    /// Whether the connection is over.
    pub ended: bool,
}

impl DigestEntry {
    /// Size on the wire, in bytes.
    pub const LEN: usize = FlowId::LEN + 3 * 4 + 1;
}

fn emit_entries(out: &mut Vec<u8>, entries: &[DigestEntry]) -> Result<(), EmitError> {
    let count = u16::try_from(entries.len())
        .ok()
        .filter(|count| usize::from(*count) <= MAX_DIGEST_ENTRIES)
        .ok_or(EmitError {
            what: "digest: entries",
            max: MAX_DIGEST_ENTRIES,
            got: entries.len(),
        })?;
    out.extend_from_slice(&count.to_be_bytes());
    for entry in entries {
        entry.flow.emit(out);
        for number in [entry.snd_una, entry.snd_nxt, entry.rcv_nxt] {
            out.extend_from_slice(&number.0.to_be_bytes());
        }
        out.push(u8::from(entry.ended));
    }
    Ok(())
}

fn parse_entries(reader: &mut Reader<'_>) -> Result<Vec<DigestEntry>, ParseError> {
    let at = reader.at();
    let count = usize::from(reader.u16("digest: entries")?);
    // Checked before the vector is made: an honest count matches what follows.
    let matches = count * DigestEntry::LEN == reader.rest().len();
    let honest = count <= MAX_DIGEST_ENTRIES && matches;
    verify(honest, "digest: entries", at, count as u64)?;
    (0..count).map(|_| parse_entry(reader)).collect()
}

fn parse_entry(reader: &mut Reader<'_>) -> Result<DigestEntry, ParseError> {
    Ok(DigestEntry {
        flow: FlowId::parse(reader)?,
        snd_una: reader.seq("digest: snd_una")?,
        snd_nxt: reader.seq("digest: snd_nxt")?,
        rcv_nxt: reader.seq("digest: rcv_nxt")?,
        ended: parse_bool(reader, "digest: ended")?,
    })
}

fn parse_bool(reader: &mut Reader<'_>, what: &'static str) -> Result<bool, ParseError> {
    let at = reader.at();
    match reader.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(ParseError {
            what,
            at,
            got: u64::from(other),
        }),
    }
}
