//! Heartbeats: one UDP datagram per interval and peer.
//!
//! ```text
//!  4 magic "GWHB" | 1 version | 1+n sender | 8 incarnation | 8 sequence
//!  8 sent_ns | 1 count | count * (4 share, 1 role, 8 epoch) | 16 tag
//! ```
//!
//! The tag is the truncated HMAC-SHA256 of everything before it. The agent
//! computes and checks it: this module only says where it is.

use core::fmt;

use alloc::vec::Vec;

use crate::cursor::{Reader, verify};
use crate::{EmitError, NodeName, ParseError, ShareClaim};

const MAGIC: [u8; 4] = *b"GWHB";
const VERSION: u8 = 1;

/// What a node says in each interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who sends; selects the key that the tag is checked with.
    pub sender: NodeName,
    /// Start of the sending agent; a later start has a greater one.
    pub incarnation: u64,
    /// Counts the heartbeats of this incarnation to this peer.
    pub sequence: u64,
    /// When it was sent, nanoseconds of the sender's monotonic clock.
    pub sent_ns: u64,
    /// The sender's part in each share, at most [`Heartbeat::MAX_SHARES`].
    pub shares: Vec<ShareClaim>,
}

impl Heartbeat {
    /// The most shares that one datagram tells of.
    pub const MAX_SHARES: usize = 64;

    /// Size of the authentication tag at the end, in bytes.
    pub const TAG_LEN: usize = 16;

    /// The longest datagram, in bytes: a receive buffer of this size is enough.
    pub const MAX_LEN: usize =
        Self::FIXED_LEN + NodeName::MAX_LEN + Self::MAX_SHARES * ShareClaim::LEN;

    const FIXED_LEN: usize = 4 + 1 + 1 + 8 + 8 + 8 + 1 + Self::TAG_LEN;

    /// Reads a datagram. Does not check the tag: the caller has the keys.
    ///
    /// # Errors
    /// If it is not a heartbeat of this version, or is cut or overlong.
    pub fn parse(datagram: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(datagram);
        let magic = reader.array::<4>("heartbeat: magic")?;
        let found = u32::from_be_bytes(magic);
        verify(magic == MAGIC, "heartbeat: magic", 0, found)?;
        let version = reader.u8("heartbeat: version")?;
        verify(version == VERSION, "heartbeat: version", 4, version)?;
        let heartbeat = Self {
            sender: NodeName::parse(&mut reader)?,
            incarnation: reader.u64("heartbeat: incarnation")?,
            sequence: reader.u64("heartbeat: sequence")?,
            sent_ns: reader.u64("heartbeat: sent_ns")?,
            shares: Self::parse_shares(&mut reader)?,
        };
        reader.bytes(Self::TAG_LEN, "heartbeat: tag")?;
        reader.finish("heartbeat: trailing bytes")?;
        Ok(heartbeat)
    }

    fn parse_shares(reader: &mut Reader<'_>) -> Result<Vec<ShareClaim>, ParseError> {
        let at = reader.at();
        let count = usize::from(reader.u8("heartbeat: shares")?);
        let fits = count <= Self::MAX_SHARES;
        verify(fits, "heartbeat: shares", at, count as u64)?;
        (0..count).map(|_| ShareClaim::parse(reader)).collect()
    }

    /// Appends the datagram with a tag of zeros, to be filled through [`Heartbeat::tag_mut`].
    ///
    /// # Errors
    /// If there are too many shares; `out` is as before then.
    pub fn emit_unsigned(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        let count = u8::try_from(self.shares.len())
            .ok()
            .filter(|count| usize::from(*count) <= Self::MAX_SHARES)
            .ok_or(EmitError {
                what: "heartbeat: shares",
                max: Self::MAX_SHARES,
                got: self.shares.len(),
            })?;
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        self.sender.emit(out);
        for number in [self.incarnation, self.sequence, self.sent_ns] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(count);
        for claim in &self.shares {
            claim.emit(out);
        }
        out.extend_from_slice(&[0; Self::TAG_LEN]);
        Ok(())
    }

    /// What the tag of `datagram` is computed over; `None` if it is too short to have one.
    pub fn signed_part(datagram: &[u8]) -> Option<&[u8]> {
        datagram
            .split_last_chunk::<{ Self::TAG_LEN }>()
            .map(|(signed, _)| signed)
    }

    /// The tag of `datagram`; `None` if it is too short to have one.
    pub fn tag(datagram: &[u8]) -> Option<&[u8; Self::TAG_LEN]> {
        datagram.last_chunk()
    }

    /// Where the sender puts the tag; `None` if `datagram` is too short to have one.
    pub fn tag_mut(datagram: &mut [u8]) -> Option<&mut [u8; Self::TAG_LEN]> {
        datagram.last_chunk_mut()
    }
}

impl fmt::Display for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "heartbeat {} from {} ({}), {} shares",
            self.sequence,
            self.sender,
            self.incarnation,
            self.shares.len()
        )
    }
}

#[cfg(test)]
mod tests;
