//! What directors of one cluster tell each other: which connections are not where the
//! table says, and what slots remember. Back-ends are named: each director has numbers of
//! its own.

use alloc::vec::Vec;

use crate::cursor::{Reader, verify};
use crate::{EmitError, FlowId, NodeName, ParseError};

/// The most slots or entries in one message.
pub const MAX_DIRECTED: usize = 8192;

/// The most back-ends that one message names; as many as a director has.
const MAX_BACKENDS: usize = 1024;

/// In the place of a back-end's number: none.
const NONE: u16 = 0x7fff;
/// Beside it: connections of the slot may have entries.
const MIXED: u16 = 0x8000;

/// A word from one director to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectorWord {
    /// All that the speaker knows follows, up to its [`DirectorWord::End`].
    Begin,
    /// These back-ends, and no others, are to get no new connections, as an operator
    /// wants it.
    Drained(Vec<NodeName>),
    /// Slots of a service.
    Slots {
        /// Which service, in the order of the file.
        service: u16,
        /// Number of the first slot.
        first: u32,
        /// Who is named by the numbers in `slots`.
        backends: Vec<NodeName>,
        /// The slots from there on, at most [`MAX_DIRECTED`].
        slots: Vec<SlotWord>,
    },
    /// Connections that are not where their slot says.
    Entries {
        /// Who is named by the numbers in `entries`.
        backends: Vec<NodeName>,
        /// The connections, at most [`MAX_DIRECTED`].
        entries: Vec<EntryWord>,
    },
    /// That was all.
    End,
}

/// One slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotWord {
    /// Where its connections are that have no entry: an index of `backends`.
    pub base: Option<u16>,
    /// Whether connections of it may have entries.
    pub mixed: bool,
}

/// One connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryWord {
    /// Which.
    pub flow: FlowId,
    /// Where it is: an index of `backends`; `None`: where its slot says.
    pub at: Option<u16>,
}

impl DirectorWord {
    const BEGIN: u8 = 1;
    const SLOTS: u8 = 2;
    const ENTRIES: u8 = 3;
    const END: u8 = 4;
    const DRAINED: u8 = 5;

    pub(super) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        match self {
            Self::Begin => {
                out.push(Self::BEGIN);
                Ok(())
            }
            Self::Drained(backends) => {
                out.push(Self::DRAINED);
                emit_names(out, backends)
            }
            Self::Slots {
                service,
                first,
                backends,
                slots,
            } => {
                out.push(Self::SLOTS);
                out.extend_from_slice(&service.to_be_bytes());
                out.extend_from_slice(&first.to_be_bytes());
                emit_names(out, backends)?;
                emit_count(out, "director: slots", slots.len(), MAX_DIRECTED)?;
                for slot in slots {
                    let mixed = if slot.mixed { MIXED } else { 0 };
                    let word = index(slot.base) | mixed;
                    out.extend_from_slice(&word.to_be_bytes());
                }
                Ok(())
            }
            Self::Entries { backends, entries } => {
                out.push(Self::ENTRIES);
                emit_names(out, backends)?;
                emit_count(out, "director: entries", entries.len(), MAX_DIRECTED)?;
                for entry in entries {
                    entry.flow.emit(out);
                    out.extend_from_slice(&index(entry.at).to_be_bytes());
                }
                Ok(())
            }
            Self::End => {
                out.push(Self::END);
                Ok(())
            }
        }
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        match reader.u8("director: word")? {
            Self::BEGIN => Ok(Self::Begin),
            Self::DRAINED => Ok(Self::Drained(parse_names(reader)?)),
            Self::SLOTS => Ok(Self::Slots {
                service: reader.u16("director: service")?,
                first: reader.u32("director: first slot")?,
                backends: parse_names(reader)?,
                slots: SlotWord::parse_all(reader)?,
            }),
            Self::ENTRIES => Ok(Self::Entries {
                backends: parse_names(reader)?,
                entries: EntryWord::parse_all(reader)?,
            }),
            Self::END => Ok(Self::End),
            other => Err(ParseError {
                what: "director: word",
                at,
                got: u64::from(other),
            }),
        }
    }
}

impl SlotWord {
    const LEN: usize = 2;

    fn parse_all(reader: &mut Reader<'_>) -> Result<Vec<Self>, ParseError> {
        let count = parse_count(reader, "director: slots", Self::LEN)?;
        let one = |_| {
            let word = reader.u16("director: slot")?;
            Ok(Self {
                base: backend(word & !MIXED),
                mixed: word & MIXED != 0,
            })
        };
        (0..count).map(one).collect()
    }
}

impl EntryWord {
    const LEN: usize = FlowId::LEN + 2;

    fn parse_all(reader: &mut Reader<'_>) -> Result<Vec<Self>, ParseError> {
        let count = parse_count(reader, "director: entries", Self::LEN)?;
        let one = |_| {
            Ok(Self {
                flow: FlowId::parse(reader)?,
                at: backend(reader.u16("director: back-end")?),
            })
        };
        (0..count).map(one).collect()
    }
}

/// Numbers are checked against `MAX_BACKENDS` where they are read.
fn index(backend: Option<u16>) -> u16 {
    backend.map_or(NONE, |number| number.min(NONE))
}

/// What names nobody is nobody.
fn backend(word: u16) -> Option<u16> {
    (usize::from(word) < MAX_BACKENDS).then_some(word)
}

fn emit_names(out: &mut Vec<u8>, names: &[NodeName]) -> Result<(), EmitError> {
    emit_count(out, "director: back-ends", names.len(), MAX_BACKENDS)?;
    for name in names {
        name.emit(out);
    }
    Ok(())
}

fn parse_names(reader: &mut Reader<'_>) -> Result<Vec<NodeName>, ParseError> {
    let at = reader.at();
    let count = reader.u16("director: back-ends")?;
    let fits = usize::from(count) <= MAX_BACKENDS;
    verify(fits, "director: back-ends", at, count)?;
    (0..count).map(|_| NodeName::parse(reader)).collect()
}

fn emit_count(
    out: &mut Vec<u8>,
    what: &'static str,
    got: usize,
    max: usize,
) -> Result<(), EmitError> {
    let count = u16::try_from(got).ok().filter(|_| got <= max);
    let count = count.ok_or(EmitError { what, max, got })?;
    out.extend_from_slice(&count.to_be_bytes());
    Ok(())
}

/// Checked before a vector is made: an honest count matches what follows.
fn parse_count(
    reader: &mut Reader<'_>,
    what: &'static str,
    len: usize,
) -> Result<usize, ParseError> {
    let at = reader.at();
    let count = usize::from(reader.u16(what)?);
    let honest = count <= MAX_DIRECTED && count * len == reader.rest().len();
    verify(honest, what, at, count as u64)?;
    Ok(count)
}
