//! A connection on its way to another server: its socket, and what its
//! application needs to go on with it.
//!
//! ```text
//!  4 length of the socket snapshot | socket snapshot | 0
//!  4 length of the socket snapshot | socket snapshot | 1 | kind | the application's bytes
//! ```

use alloc::vec::Vec;

use super::TcpSnapshot;
use crate::ParseError;
use crate::app::{Carried, MAX_SNAPSHOT, SnapshotKind};
use crate::cursor::{Reader, verify};

/// What an origin sends of a connection, in parts ([`crate::HandoffStep::State`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The socket as it stood when it fell silent.
    pub socket: TcpSnapshot,
    /// What the application exported there; `None` if it has no state.
    pub carried: Option<Carried>,
}

impl Moved {
    /// The most bytes of one: both queues and the application's state full.
    pub const MAX_LEN: usize = 2 * TcpSnapshot::MAX_QUEUE + MAX_SNAPSHOT as usize + 4096;

    /// Reads one, which is the whole of `bytes`.
    ///
    /// # Errors
    /// If it is of another version, cut, overlong or impossible.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
        let length = reader.u32("moved: length")?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let start = reader.at();
        let socket = TcpSnapshot::parse(reader.bytes(length, "moved: socket")?);
        let socket = socket.map_err(|error| ParseError {
            at: error.at + start,
            ..error
        })?;
        let at = reader.at();
        let has = reader.u8("moved: state")?;
        verify(has <= 1, "moved: state", at, has)?;
        let carried = if has == 1 {
            Some(parse_carried(&mut reader)?)
        } else {
            None
        };
        reader.finish("moved: trailing bytes")?;
        Ok(Self { socket, carried })
    }

    /// Appends it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 4]);
        self.socket.emit(out);
        let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
        if let Some(place) = out.get_mut(start..start + 4) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        match &self.carried {
            None => out.push(0),
            Some(carried) => {
                out.extend([1, carried.kind.number()]);
                out.extend_from_slice(&carried.bytes);
            }
        }
    }
}

/// The rest of the message.
fn parse_carried(reader: &mut Reader<'_>) -> Result<Carried, ParseError> {
    let kind = SnapshotKind::parse(reader)?;
    let at = reader.at();
    let length = reader.rest().len();
    let fits = length <= MAX_SNAPSHOT as usize;
    verify(fits, "moved: length of the state", at, length as u64)?;
    let bytes = reader.bytes(length, "moved: bytes of the state")?.to_vec();
    Ok(Carried { kind, bytes })
}
