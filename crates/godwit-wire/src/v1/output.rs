//! What an owner's application has said, for its standby to compare.

use alloc::vec::Vec;

use super::MAX_DIGEST_ENTRIES;
use crate::cursor::{Reader, verify};
use crate::{EmitError, FlowId, ParseError, SeqNumber};

/// What an owner has said on one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputEntry {
    /// The flow.
    pub flow: FlowId,
    /// What of it.
    pub said: Said,
}

/// Something that the twin of a flow must agree with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// To everything that the client has said, this was the whole answer so
    /// far: sent and acknowledged, and nothing waits.
    Length {
        /// Next byte that the owner expects from the client.
        rcv_nxt: SeqNumber,
        /// Behind the last byte of the answer, and the FIN if it was sent.
        end: SeqNumber,
    },
    /// The sum of the output from where its block of 64 KiB begins.
    Content {
        /// Behind the last byte in the sum: offset in the stream, modulo 2^32.
        upto: u32,
        /// The sum, as the data path makes it.
        sum: u32,
    },
}

impl OutputEntry {
    /// Size on the wire, in bytes.
    pub const LEN: usize = FlowId::LEN + 1 + 2 * 4;

    fn emit(self, out: &mut Vec<u8>) {
        self.flow.emit(out);
        let (kind, numbers) = match self.said {
            Said::Length { rcv_nxt, end } => (1, [rcv_nxt.0, end.0]),
            Said::Content { upto, sum } => (2, [upto, sum]),
        };
        out.push(kind);
        for number in numbers {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let flow = FlowId::parse(reader)?;
        let at = reader.at();
        let kind = reader.u8("output: kind")?;
        let (first, second) = (reader.u32("output: first")?, reader.u32("output: second")?);
        let said = match kind {
            1 => Said::Length {
                rcv_nxt: SeqNumber(first),
                end: SeqNumber(second),
            },
            2 => Said::Content {
                upto: first,
                sum: second,
            },
            other => {
                return Err(ParseError {
                    what: "output: kind",
                    at,
                    got: u64::from(other),
                });
            }
        };
        Ok(Self { flow, said })
    }
}

/// Appends a count and the entries.
pub(super) fn emit_entries(out: &mut Vec<u8>, entries: &[OutputEntry]) -> Result<(), EmitError> {
    let count = u16::try_from(entries.len())
        .ok()
        .filter(|count| usize::from(*count) <= MAX_DIGEST_ENTRIES)
        .ok_or(EmitError {
            what: "output: entries",
            max: MAX_DIGEST_ENTRIES,
            got: entries.len(),
        })?;
    out.extend_from_slice(&count.to_be_bytes());
    for entry in entries {
        entry.emit(out);
    }
    Ok(())
}

pub(super) fn parse_entries(reader: &mut Reader<'_>) -> Result<Vec<OutputEntry>, ParseError> {
    let at = reader.at();
    let count = usize::from(reader.u16("output: entries")?);
    // Checked before the vector is made: an honest count matches what follows.
    let matches = count * OutputEntry::LEN == reader.rest().len();
    let honest = count <= MAX_DIGEST_ENTRIES && matches;
    verify(honest, "output: entries", at, count as u64)?;
    (0..count).map(|_| OutputEntry::parse(reader)).collect()
}
