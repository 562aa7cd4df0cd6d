//! A connection on its way to another server: its socket, and what its
//! application needs to go on with it.
//!
//! ```text
//!  4 length of the socket snapshot | socket snapshot | 0
//!  4 length of the socket snapshot | socket snapshot | 1 | kind | the application's bytes
//!  4 length of the socket snapshot | socket snapshot | 2 | 4 ts_recent
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
    /// What its application there had made of it.
    pub application: Application,
}

/// What the application of a connection has, as far as another server needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Application {
    /// No state: whoever gets the socket goes on.
    Stateless,
    /// What it has exported.
    Carried(Carried),
    /// It has not read a byte and not written one, so that any server can begin: it
    /// gets the connection from its own listener.
    Unread {
        /// Latest TSval of the client; 0 without time stamps.
        ts_recent: u32,
    },
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
        verify(has <= 2, "moved: state", at, has)?;
        let application = match has {
            0 => Application::Stateless,
            1 => Application::Carried(parse_carried(&mut reader)?),
            _ => Application::Unread {
                ts_recent: reader.u32("moved: ts_recent")?,
            },
        };
        reader.finish("moved: trailing bytes")?;
        Ok(Self {
            socket,
            application,
        })
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
        match &self.application {
            Application::Stateless => out.push(0),
            Application::Carried(carried) => {
                out.extend([1, carried.kind.number()]);
                out.extend_from_slice(&carried.bytes);
            }
            Application::Unread { ts_recent } => {
                out.push(2);
                out.extend(ts_recent.to_be_bytes());
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
