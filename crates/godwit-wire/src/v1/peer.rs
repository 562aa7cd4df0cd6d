//! What two nodes say of themselves, whatever they share.

use core::fmt;

use alloc::vec::Vec;

use super::{ConfigLine, kind, lines};
use crate::cursor::{Reader, verify};
use crate::{EmitError, GoodbyeReason, NodeName, ParseError};

/// About the speaker itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMessage {
    /// Introduces the sender.
    Hello(Hello),
    /// The sender ends.
    Goodbye {
        /// Why.
        reason: GoodbyeReason,
    },
    /// What the sender's file says, to a peer with another one.
    ConfigLines(Vec<ConfigLine>),
}

impl PeerMessage {
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => kind::HELLO,
            Self::Goodbye { .. } => kind::GOODBYE,
            Self::ConfigLines(_) => kind::CONFIG_LINES,
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        match self {
            Self::Hello(hello) => hello.emit(out),
            Self::Goodbye { reason } => out.push(reason.number()),
            Self::ConfigLines(lines) => lines::emit(out, lines)?,
        }
        Ok(())
    }

    /// Another `kind` is not for this function; it reads as lines.
    pub(super) fn parse(kind: u8, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(match kind {
            kind::HELLO => Self::Hello(Hello::parse(reader)?),
            kind::GOODBYE => Self::Goodbye {
                reason: GoodbyeReason::parse(reader)?,
            },
            _ => Self::ConfigLines(lines::parse(reader)?),
        })
    }
}

/// First message of each side on a new link.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// Who speaks; the link's certificate must say the same.
    pub name: NodeName,
    /// Start of the speaking agent; a later start has a greater one.
    pub incarnation: u64,
    /// Oldest version that it speaks.
    pub min_version: u8,
    /// Latest version that it speaks.
    pub max_version: u8,
    /// Key of the tags in the heartbeats that it will send.
    pub heartbeat_key: [u8; 32],
    /// SHA-256 of the part of the configuration that all nodes must share.
    pub config_digest: [u8; 32],
}

/// The key is a secret, so it is not printed.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("name", &self.name)
            .field("incarnation", &self.incarnation)
            .field("min_version", &self.min_version)
            .field("max_version", &self.max_version)
            .field("config_digest", &self.config_digest)
            .finish_non_exhaustive()
    }
}

impl Hello {
    fn emit(&self, out: &mut Vec<u8>) {
        self.name.emit(out);
        out.extend_from_slice(&self.incarnation.to_be_bytes());
        out.push(self.min_version);
        out.push(self.max_version);
        out.extend_from_slice(&self.heartbeat_key);
        out.extend_from_slice(&self.config_digest);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let name = NodeName::parse(reader)?;
        let incarnation = reader.u64("hello: incarnation")?;
        let min_version = reader.u8("hello: min_version")?;
        let at = reader.at();
        let max_version = reader.u8("hello: max_version")?;
        let ordered = min_version <= max_version;
        let what = "hello: max_version below min_version";
        verify(ordered, what, at, max_version)?;
        Ok(Self {
            name,
            incarnation,
            min_version,
            max_version,
            heartbeat_key: reader.array("hello: heartbeat_key")?,
            config_digest: reader.array("hello: config_digest")?,
        })
    }
}
