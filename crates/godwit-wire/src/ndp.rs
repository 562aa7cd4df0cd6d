//! Neighbour discovery: telling an IPv6 link where an address is now.
//!
//! Read RFC 4861 §4.4 (format), §7.1.2 (checks) and §7.2.6 (unsolicited
//! advertisements) before editing.

use core::fmt;
use core::net::Ipv6Addr;

use alloc::vec::Vec;

use crate::checksum::Checksum;
use crate::cursor::{Reader, verify};
use crate::{EthernetHeader, MacAddr, ParseError};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ICMPV6: u8 = 58;
const ADVERTISEMENT: u8 = 136;
const TARGET_LINK_LAYER: u8 = 2;
const OVERRIDE: u32 = 1 << 29;
const IPV6_LEN: usize = 40;
const BODY_LEN: usize = 32;
/// RFC 4861 §7.1.2: proves that the packet has not been routed.
const HOP_LIMIT: u8 = 255;

/// A neighbour advertisement that nobody asked for: `target` is at `mac` now.
///
/// Sent from the address itself to all nodes, with the override flag, so that
/// caches replace what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighbourAdvertisement {
    /// The address.
    pub target: Ipv6Addr,
    /// Where it is.
    pub mac: MacAddr,
}

impl NeighbourAdvertisement {
    /// Size of the IPv6 packet, in bytes.
    pub const LEN: usize = IPV6_LEN + BODY_LEN;

    /// Reads an IPv6 packet.
    ///
    /// # Errors
    /// If it is not an unsolicited advertisement with the override flag and a
    /// link-layer address, or fails a check of RFC 4861 §7.1.2.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(packet);
        let version = reader.u32("neighbour advertisement: version")? >> 28;
        verify(version == 6, "neighbour advertisement: version", 0, version)?;
        let body_len = usize::from(reader.u16("neighbour advertisement: length")?);
        verify(
            body_len == BODY_LEN,
            "neighbour advertisement: length",
            4,
            body_len as u64,
        )?;
        let [next_header, hop_limit] = reader.array("neighbour advertisement: hop limit")?;
        verify(
            next_header == ICMPV6 && hop_limit == HOP_LIMIT,
            "neighbour advertisement: hop limit",
            6,
            u16::from_be_bytes([next_header, hop_limit]),
        )?;
        let source = Ipv6Addr::from(reader.array::<16>("neighbour advertisement: source")?);
        let to = Ipv6Addr::from(reader.array::<16>("neighbour advertisement: destination")?);
        let body = reader.array::<BODY_LEN>("neighbour advertisement: body")?;
        let mut sum = Checksum::pseudo_header(source, to, ICMPV6, BODY_LEN);
        sum.add(&body);
        let sum = sum.finish();
        verify(
            sum == 0,
            "neighbour advertisement: checksum",
            IPV6_LEN + 2,
            sum,
        )?;
        Self::parse_body(&body)
    }

    fn parse_body(body: &[u8; BODY_LEN]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(body);
        let kind = reader.u16("neighbour advertisement: type")?;
        verify(
            kind == u16::from_be_bytes([ADVERTISEMENT, 0]),
            "neighbour advertisement: type",
            IPV6_LEN,
            kind,
        )?;
        reader.u16("neighbour advertisement: checksum")?;
        let flags = reader.u32("neighbour advertisement: flags")?;
        verify(
            flags & OVERRIDE != 0,
            "neighbour advertisement: flags",
            IPV6_LEN + 4,
            flags,
        )?;
        let target = Ipv6Addr::from(reader.array::<16>("neighbour advertisement: target")?);
        let option = reader.u16("neighbour advertisement: option")?;
        verify(
            option == u16::from_be_bytes([TARGET_LINK_LAYER, 1]),
            "neighbour advertisement: option",
            IPV6_LEN + 24,
            option,
        )?;
        Ok(Self {
            target,
            mac: MacAddr(reader.array("neighbour advertisement: mac")?),
        })
    }

    /// Appends the IPv6 packet.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let body = self.body();
        out.extend_from_slice(&[0x60, 0, 0, 0, 0]);
        #[expect(clippy::cast_possible_truncation, reason = "32")]
        out.push(BODY_LEN as u8);
        out.extend_from_slice(&[ICMPV6, HOP_LIMIT]);
        out.extend_from_slice(&self.target.octets());
        out.extend_from_slice(&ALL_NODES.octets());
        out.extend_from_slice(&body);
    }

    /// A whole frame that reaches every IPv6 node of the link.
    pub fn multicast_frame(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(EthernetHeader::LEN + Self::LEN);
        let header = EthernetHeader {
            destination: MacAddr::multicast_for(ALL_NODES),
            source: self.mac,
            ether_type: EthernetHeader::IPV6,
        };
        header.emit(&mut frame);
        self.emit(&mut frame);
        frame
    }

    fn body(&self) -> [u8; BODY_LEN] {
        let mut body = [0; BODY_LEN];
        body[0] = ADVERTISEMENT;
        body[4..8].copy_from_slice(&OVERRIDE.to_be_bytes());
        body[8..24].copy_from_slice(&self.target.octets());
        body[24] = TARGET_LINK_LAYER;
        body[25] = 1; // length in units of 8 bytes
        body[26..32].copy_from_slice(&self.mac.0);
        let mut sum = Checksum::pseudo_header(self.target, ALL_NODES, ICMPV6, BODY_LEN);
        sum.add(&body);
        body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        body
    }
}

impl fmt::Display for NeighbourAdvertisement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is at {}", self.target, self.mac)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    const ADVERT: NeighbourAdvertisement = NeighbourAdvertisement {
        target: Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x100),
        mac: MacAddr([2, 0, 0, 0, 0, 0xb]),
    };

    fn bytes() -> Vec<u8> {
        let mut out = Vec::new();
        ADVERT.emit(&mut out);
        out
    }

    #[test]
    fn emit() {
        let frame = ADVERT.multicast_frame();
        #[rustfmt::skip]
        assert_eq!(
            frame[..54],
            [
                0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xb, 0x86, 0xdd,
                0x60, 0, 0, 0, 0, 32, 58, 255,
                0x20, 1, 0x0d, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0,
                0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
            ]
        );
        assert_eq!(frame[54..56], [136, 0]);
        assert_eq!(frame[58..62], [0x20, 0, 0, 0], "override only");
        assert_eq!(frame[78..], [2, 1, 2, 0, 0, 0, 0, 0xb]);
    }

    #[test]
    fn roundtrip() {
        assert_eq!(NeighbourAdvertisement::parse(&bytes()), Ok(ADVERT));
        assert_eq!(
            ADVERT.to_string(),
            "2001:db8:9::100 is at 02:00:00:00:00:0b"
        );
    }

    #[test]
    fn truncated() {
        let packet = bytes();
        for len in 0..packet.len() {
            assert!(NeighbourAdvertisement::parse(&packet[..len]).is_err());
        }
    }

    #[test]
    fn impossible_length() {
        for at in 4..packet_len() {
            let mut bad = bytes();
            bad[at] ^= 0x10;
            assert!(NeighbourAdvertisement::parse(&bad).is_err(), "byte {at}");
        }
    }

    fn packet_len() -> usize {
        NeighbourAdvertisement::LEN
    }
}
