//! Control messages between agents: framing, and which version is spoken.
//!
//! ```text
//!  2 magic "GW" | 1 version | 1 kind | 4 length of the body | 8 epoch | body
//! ```
//!
//! Each version is a module whose types are frozen. The rest of Godwit imports
//! the latest from the crate root; conversions from older ones belong here.
//! `Hello` is always sent in version 1, so that any two agents can find out
//! what both speak.

use alloc::vec::Vec;

use crate::cursor::{Reader, verify};
use crate::{Epoch, Message, ParseError, v1};

/// Oldest version that this build speaks.
pub const MIN_VERSION: u8 = v1::VERSION;

/// Latest version that this build speaks. All have the messages of version 1. From version 2
/// on a share is called by the number of its name; version 1 calls it by its place in the file.
/// Version 3 has other keys for heartbeats, version 4 has tags on the data network, and from
/// version 5 on directors have them, too, and nodes say where they are.
pub const MAX_VERSION: u8 = 5;

/// The first version in which a share has the number of its name.
pub const NAMED_SHARES: u8 = 2;

/// The first version in which a node's data path answers canaries.
pub const CANARY_VERSION: u8 = 2;

/// The first version in which a node's data path says of a SYN whether it has its connection.
pub const ASKED_VERSION: u8 = 3;

/// The first version in which the key of heartbeats and lease datagrams is bound to the life
/// of their receiver.
pub const BOUND_KEYS: u8 = 3;

/// The first version in which servers prove on the data network whose their frames are.
pub const TAGS_VERSION: u8 = 4;

/// The first version in which directors do, too, and in which all that servers and directors say
/// to each other there in frames of their own is proved.
pub const ALL_TAGS_VERSION: u8 = 5;

/// The first version in which nodes tell each other where they are on the data network.
pub const PLACE_VERSION: u8 = 5;

pub(crate) const MAGIC: [u8; 2] = *b"GW";

/// The longest body, in bytes. A greater length is an error at once.
pub(crate) const MAX_BODY_LEN: usize = 1 << 20;

/// What stands in front of each body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) body_len: usize,
    pub(crate) epoch: Epoch,
}

impl Header {
    pub(crate) const LEN: usize = 16;

    /// Position of the length, for writers that learn it last.
    pub(crate) const LEN_AT: core::ops::Range<usize> = 4..8;

    fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
        let magic = reader.array::<2>("message: magic")?;
        let found = u16::from_be_bytes(magic);
        verify(magic == MAGIC, "message: magic", 0, found)?;
        let version = reader.u8("message: version")?;
        let spoken = (MIN_VERSION..=MAX_VERSION).contains(&version);
        verify(spoken, "message: version", 2, version)?;
        let kind = reader.u8("message: kind")?;
        let known = v1::kind::KNOWN.contains(&kind);
        verify(known, "message: kind", 3, kind)?;
        let length = reader.u32("message: length")?;
        let body_len = usize::try_from(length).unwrap_or(usize::MAX);
        verify(body_len <= MAX_BODY_LEN, "message: length", 4, length)?;
        Ok(Self {
            kind,
            body_len,
            epoch: reader.epoch("message: epoch")?,
        })
    }
}

/// Turns the bytes of a control stream into messages.
///
/// Feed it with [`Decoder::push`], then call [`Decoder::next_message`] until it
/// returns `None`. It holds what was pushed and not yet consumed, at most one
/// message more than one `push`, and never allocates by a length that a peer
/// claims. After an error the stream is of no use: the error is repeated.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    consumed: usize,
    failed: Option<ParseError>,
}

impl Decoder {
    /// A decoder at the start of a stream.
    pub const fn new() -> Self {
        Self {
            buffer: Vec::new(),
            consumed: 0,
            failed: None,
        }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next whole message; `None` until more bytes are pushed.
    ///
    /// # Errors
    /// If the stream is not one of messages; offsets count from the start of
    /// the message, its header included.
    pub fn next_message(&mut self) -> Result<Option<Message>, ParseError> {
        match self.failed {
            Some(error) => Err(error),
            None => self.decode().inspect_err(|error| {
                self.failed = Some(*error);
                self.buffer = Vec::new();
                self.consumed = 0;
            }),
        }
    }

    fn decode(&mut self) -> Result<Option<Message>, ParseError> {
        let rest = self.buffer.get(self.consumed..).unwrap_or_default();
        let Some((header, after)) = rest.split_first_chunk::<{ Header::LEN }>() else {
            return Ok(None);
        };
        let header = Header::parse(header)?;
        let Some(body) = after.get(..header.body_len) else {
            return Ok(None);
        };
        let message = v1::parse_body(&header, body).map_err(|error| ParseError {
            at: error.at + Header::LEN,
            ..error
        })?;
        let epoch = header.epoch;
        let agrees = message.epoch() == epoch;
        verify(agrees, "message: epoch of no share", 8, epoch.0)?;
        self.consumed += Header::LEN + header.body_len;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests;
