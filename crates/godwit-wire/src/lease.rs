//! Lease datagrams: what proposers and acceptors of leases say to each other.
//!
//! ```text
//!  4 magic "GWLS" | 1 version | 1+n sender | 8 incarnation | 8 receiver
//!  8 sequence | 8 voters | 1 count | count * message | 16 tag
//! ```
//!
//! One datagram carries messages about many shares. The tag is where a
//! heartbeat has it and is made with the same key, so
//! [`Heartbeat::signed_part`](crate::Heartbeat::signed_part) and its companions
//! serve both.
//!
//! *Receiver* is the incarnation that the message is meant for. A datagram that
//! was under way while its receiver restarted says nothing to the new one,
//! whose acceptor has forgotten everything that it would refer to.

use core::fmt;

use alloc::vec::Vec;

use crate::cursor::{Reader, verify};
use crate::{EmitError, Heartbeat, NodeName, ParseError};

mod message;
#[cfg(test)]
mod tests;

pub use message::{Lease, LeaseMessage, Refusal, Report, Standing, Stay};

const MAGIC: [u8; 4] = *b"GWLS";
const VERSION: u8 = 1;

/// Messages about leases from one node to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseDatagram {
    /// Who sends; selects the key that the tag is checked with.
    pub sender: NodeName,
    /// Start of the sending agent; a later start has a greater one.
    pub incarnation: u64,
    /// Start of the agent that this is meant for.
    pub receiver: u64,
    /// Counts the lease datagrams of this incarnation to this peer, from 1.
    pub sequence: u64,
    /// Digest of the names of all voters: those who count votes differently
    /// must not count each other's.
    pub voters: u64,
    /// What is said, in order; at most [`LeaseDatagram::MAX_MESSAGES`].
    pub messages: Vec<LeaseMessage>,
}

impl LeaseDatagram {
    /// The most messages in one datagram.
    pub const MAX_MESSAGES: usize = 128;

    /// The longest datagram, in bytes: it fits into one packet of any Ethernet.
    pub const MAX_LEN: usize = 1400;

    /// What is left of [`LeaseDatagram::MAX_LEN`] for messages, in bytes.
    pub const MAX_BODY: usize = Self::MAX_LEN - Self::FIXED_LEN - NodeName::MAX_LEN;

    const FIXED_LEN: usize = 4 + 1 + 1 + 4 * 8 + 1 + Heartbeat::TAG_LEN;

    /// Whether a datagram is one of these rather than a heartbeat.
    pub fn is_one(datagram: &[u8]) -> bool {
        datagram.starts_with(&MAGIC)
    }

    /// Reads a datagram. Does not check the tag: the caller has the keys.
    ///
    /// # Errors
    /// If it is not a lease datagram of this version, or is cut or overlong.
    pub fn parse(datagram: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(datagram);
        let magic = reader.array::<4>("lease: magic")?;
        let found = u32::from_be_bytes(magic);
        verify(magic == MAGIC, "lease: magic", 0, found)?;
        let version = reader.u8("lease: version")?;
        verify(version == VERSION, "lease: version", 4, version)?;
        let len = datagram.len();
        verify(len <= Self::MAX_LEN, "lease: length", 0, len as u64)?;
        let parsed = Self {
            sender: NodeName::parse(&mut reader)?,
            incarnation: reader.u64("lease: incarnation")?,
            receiver: reader.u64("lease: receiver")?,
            sequence: reader.u64("lease: sequence")?,
            voters: reader.u64("lease: voters")?,
            messages: Self::parse_messages(&mut reader)?,
        };
        reader.bytes(Heartbeat::TAG_LEN, "lease: tag")?;
        reader.finish("lease: trailing bytes")?;
        Ok(parsed)
    }

    fn parse_messages(reader: &mut Reader<'_>) -> Result<Vec<LeaseMessage>, ParseError> {
        let at = reader.at();
        let count = usize::from(reader.u8("lease: messages")?);
        let fits = count <= Self::MAX_MESSAGES;
        verify(fits, "lease: messages", at, count as u64)?;
        (0..count).map(|_| LeaseMessage::parse(reader)).collect()
    }

    /// Appends the datagram with a tag of zeros, to be filled through
    /// [`Heartbeat::tag_mut`](crate::Heartbeat::tag_mut).
    ///
    /// # Errors
    /// If there is more to say than fits; `out` is as before then.
    pub fn emit_unsigned(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        let count = u8::try_from(self.messages.len())
            .ok()
            .filter(|count| usize::from(*count) <= Self::MAX_MESSAGES)
            .ok_or(EmitError {
                what: "lease: messages",
                max: Self::MAX_MESSAGES,
                got: self.messages.len(),
            })?;
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        self.sender.emit(out);
        for number in [self.incarnation, self.receiver, self.sequence, self.voters] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(count);
        let emitted = self
            .messages
            .iter()
            .try_for_each(|message| message.emit(out));
        out.extend_from_slice(&[0; Heartbeat::TAG_LEN]);
        let got = out.len() - start;
        let outcome = emitted.and(if got <= Self::MAX_LEN {
            Ok(())
        } else {
            Err(EmitError {
                what: "lease: length",
                max: Self::MAX_LEN,
                got,
            })
        });
        if outcome.is_err() {
            out.truncate(start);
        }
        outcome
    }

    /// How many of `messages`, from the first on, fit into one datagram: at
    /// least one, if there is one.
    pub fn fitting(messages: &[LeaseMessage]) -> usize {
        let mut room = Self::MAX_BODY;
        let fits = |message: &&LeaseMessage| {
            let left = room.checked_sub(message.len());
            room = left.unwrap_or(0);
            left.is_some()
        };
        let most = &messages[..messages.len().min(Self::MAX_MESSAGES)];
        most.iter().take_while(fits).count().max(most.len().min(1))
    }
}

impl fmt::Display for LeaseDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "lease datagram {} from {} ({}), {} messages",
            self.sequence,
            self.sender,
            self.incarnation,
            self.messages.len()
        )
    }
}
