//! Ethernet: what stands in front of a packet on the link.

use core::fmt;

use alloc::vec::Vec;

use crate::cursor::Reader;
use crate::{MacAddr, ParseError};

/// The header of an Ethernet frame, without a VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EthernetHeader {
    /// To whom.
    pub destination: MacAddr,
    /// From whom.
    pub source: MacAddr,
    /// What follows, for example [`EthernetHeader::IPV4`].
    pub ether_type: u16,
}

impl EthernetHeader {
    /// Size in bytes.
    pub const LEN: usize = 14;

    /// An IPv4 packet follows.
    pub const IPV4: u16 = 0x0800;

    /// An ARP packet follows.
    pub const ARP: u16 = 0x0806;

    /// An IPv6 packet follows.
    pub const IPV6: u16 = 0x86dd;

    /// Reads the header and gives back what follows it.
    ///
    /// # Errors
    /// If the frame is too short.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let mut reader = Reader::new(frame);
        let header = Self {
            destination: MacAddr(reader.array("ethernet: destination")?),
            source: MacAddr(reader.array("ethernet: source")?),
            ether_type: reader.u16("ethernet: type")?,
        };
        Ok((header, reader.rest()))
    }

    /// Appends the header.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.destination.0);
        out.extend_from_slice(&self.source.0);
        out.extend_from_slice(&self.ether_type.to_be_bytes());
    }

    /// A whole frame around an IP packet, whose version gives the type.
    pub fn frame_ip(destination: MacAddr, source: MacAddr, packet: &[u8]) -> Vec<u8> {
        let is_ipv4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
        let header = Self {
            destination,
            source,
            ether_type: if is_ipv4 { Self::IPV4 } else { Self::IPV6 },
        };
        let mut frame = Vec::with_capacity(Self::LEN + packet.len());
        header.emit(&mut frame);
        frame.extend_from_slice(packet);
        frame
    }
}

impl fmt::Display for EthernetHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            destination,
            source,
            ether_type,
        } = self;
        write!(f, "{source} -> {destination} type {ether_type:#06x}")
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    const HEADER: EthernetHeader = EthernetHeader {
        destination: MacAddr([2, 0, 0, 0, 0, 1]),
        source: MacAddr([2, 0, 0, 0, 0, 2]),
        ether_type: EthernetHeader::IPV6,
    };

    #[test]
    fn roundtrip() {
        let mut bytes = Vec::new();
        HEADER.emit(&mut bytes);
        bytes.push(7);
        assert_eq!(EthernetHeader::parse(&bytes), Ok((HEADER, &[7][..])));
        assert_eq!(
            HEADER.to_string(),
            "02:00:00:00:00:02 -> 02:00:00:00:00:01 type 0x86dd"
        );
    }

    #[test]
    fn truncated() {
        let mut bytes = Vec::new();
        HEADER.emit(&mut bytes);
        for len in 0..EthernetHeader::LEN {
            assert!(EthernetHeader::parse(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn the_type_follows_the_version_of_the_packet() {
        let frame = EthernetHeader::frame_ip(HEADER.destination, HEADER.source, &[0x45]);
        assert_eq!(frame[12..], [0x08, 0x00, 0x45]);
        let frame = EthernetHeader::frame_ip(HEADER.destination, HEADER.source, &[0x60]);
        assert_eq!(frame[12..], [0x86, 0xdd, 0x60]);
    }
}
