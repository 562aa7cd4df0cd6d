//! What nodes need to know of each other on the data network.

use alloc::vec::Vec;

use super::{TagWord, kind};
use crate::cursor::{Reader, verify};
use crate::{MacAddr, ParseError};

/// About the speaker's frames on the data network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkMessage {
    /// Between servers: how what they send each other on the data network is proved.
    Tags(TagWord),
    /// Where the sender is on the data network: the MAC address of its service interface.
    Place(MacAddr),
}

impl NetworkMessage {
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Tags(_) => kind::TAGS,
            Self::Place(_) => kind::PLACE,
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Tags(word) => word.emit(out),
            Self::Place(mac) => out.extend_from_slice(&mac.0),
        }
    }

    /// Another `kind` is not for this function; it reads as a place.
    pub(super) fn parse(kind: u8, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(match kind {
            kind::TAGS => Self::Tags(TagWord::parse(reader)?),
            _ => Self::Place(parse_place(reader)?),
        })
    }
}

/// Nobody is at no address, or at one of many (RFC 7042 section 2.1).
fn parse_place(reader: &mut Reader<'_>) -> Result<MacAddr, ParseError> {
    let at = reader.at();
    let mac = MacAddr(reader.array("place: mac")?);
    let is_one = !mac.is_zero() && !mac.is_multicast();
    verify(is_one, "place: mac of nobody", at, mac.0[0])?;
    Ok(mac)
}
