//! What identifies a flow: its four-tuple, and which use of that four-tuple.

use core::cmp::Ordering;
use core::fmt;

use alloc::vec::Vec;

use crate::cursor::Reader;
use crate::{Endpoint, ParseError, SeqNumber};

/// The four-tuple, as the data path keys it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Who opened the connection.
    pub client: Endpoint,
    /// The service address and port that it was opened to.
    pub service: Endpoint,
}

impl FlowKey {
    /// Size on the wire, in bytes.
    pub const LEN: usize = 2 * Endpoint::LEN;

    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        self.client.emit(out);
        self.service.emit(out);
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            client: reader.endpoint("flow: client")?,
            service: reader.endpoint("flow: service")?,
        })
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.client, self.service)
    }
}

/// One connection: a four-tuple may be used again, with another `irs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// The four-tuple.
    pub key: FlowKey,
    /// Initial receive sequence number: that of the client's SYN.
    pub irs: SeqNumber,
}

impl FlowId {
    /// Size on the wire, in bytes.
    pub const LEN: usize = FlowKey::LEN + 4;

    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        self.key.emit(out);
        out.extend_from_slice(&self.irs.0.to_be_bytes());
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            key: FlowKey::parse(reader)?,
            irs: reader.seq("flow: irs")?,
        })
    }
}

/// An order for tables only: `irs` counts as a plain number here.
impl Ord for FlowId {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.key, self.irs.0).cmp(&(other.key, other.irs.0))
    }
}

impl PartialOrd for FlowId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} irs {}", self.key, self.irs)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn flows_print_client_first() {
        let key = FlowKey {
            client: "10.9.0.10:40000".parse().unwrap(),
            service: "10.9.0.100:80".parse().unwrap(),
        };
        assert_eq!(key.to_string(), "10.9.0.10:40000 -> 10.9.0.100:80");
        let id = FlowId {
            key,
            irs: SeqNumber(7),
        };
        assert_eq!(id.to_string(), "10.9.0.10:40000 -> 10.9.0.100:80 irs 7");
    }
}
