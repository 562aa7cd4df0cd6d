//! Neighbour discovery: telling an IPv6 link where an address is now, and asking.
//!
//! Read RFC 4861 §4.3 and §4.4 (formats), §7.1 (checks), §7.2.4 and §7.2.6
//! (solicited and unsolicited advertisements) before editing.

use core::fmt;
use core::net::Ipv6Addr;

use alloc::vec::Vec;

use crate::checksum::Checksum;
use crate::cursor::{Reader, verify};
use crate::{EthernetHeader, MacAddr, ParseError};

mod solicitation;

pub use solicitation::NeighbourSolicitation;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ICMPV6: u8 = 58;
const ADVERTISEMENT: u8 = 136;
const TARGET_LINK_LAYER: u8 = 2;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;
const IPV6_LEN: usize = 40;
const BODY_LEN: usize = 32;
const PACKET_LEN: usize = IPV6_LEN + BODY_LEN;
/// RFC 4861 §7.1.2: proves that the packet has not been routed.
const HOP_LIMIT: u8 = 255;

/// A neighbour advertisement: `target` is at `mac` now.
///
/// Sent from the address itself, with the override flag, so that caches replace
/// what they hold; to all nodes unless one has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighbourAdvertisement {
    /// The address.
    pub target: Ipv6Addr,
    /// Where it is.
    pub mac: MacAddr,
}

impl NeighbourAdvertisement {
    /// Size of the IPv6 packet, in bytes.
    pub const LEN: usize = PACKET_LEN;

    /// Reads an IPv6 packet.
    ///
    /// # Errors
    /// If it is not an advertisement with the override flag and a link-layer
    /// address, or fails a check of RFC 4861 §7.1.2.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let (_, body) = open(packet, ADVERTISEMENT)?;
        let mut reader = Reader::new(&body);
        reader.u32("neighbour advertisement: checksum")?;
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
        close(self.target, ALL_NODES, self.body(OVERRIDE), out);
    }

    /// A whole frame that reaches every IPv6 node of the link.
    pub fn multicast_frame(&self) -> Vec<u8> {
        let mut frame = framed(MacAddr::multicast_for(ALL_NODES), self.mac);
        self.emit(&mut frame);
        frame
    }

    /// A whole frame that answers one node (RFC 4861 §7.2.4).
    pub fn answer_frame(&self, asked: &NeighbourSolicitation) -> Vec<u8> {
        let mut frame = framed(asked.mac, self.mac);
        let body = self.body(SOLICITED | OVERRIDE);
        close(self.target, asked.source, body, &mut frame);
        frame
    }

    fn body(&self, flags: u32) -> [u8; BODY_LEN] {
        let mut body = [0; BODY_LEN];
        body[0] = ADVERTISEMENT;
        body[4..8].copy_from_slice(&flags.to_be_bytes());
        body[8..24].copy_from_slice(&self.target.octets());
        body[24] = TARGET_LINK_LAYER;
        body[25] = 1; // length in units of 8 bytes
        body[26..32].copy_from_slice(&self.mac.0);
        body
    }
}

impl fmt::Display for NeighbourAdvertisement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is at {}", self.target, self.mac)
    }
}

/// Source and body of a packet of neighbour discovery, after the checks that
/// are the same for all of them (RFC 4861 §7.1).
fn open(packet: &[u8], kind: u8) -> Result<(Ipv6Addr, [u8; BODY_LEN]), ParseError> {
    let mut reader = Reader::new(packet);
    let version = reader.u32("neighbour discovery: version")? >> 28;
    verify(version == 6, "neighbour discovery: version", 0, version)?;
    let body_len = usize::from(reader.u16("neighbour discovery: length")?);
    verify(
        body_len == BODY_LEN,
        "neighbour discovery: length",
        4,
        body_len as u64,
    )?;
    let [next_header, hop_limit] = reader.array("neighbour discovery: hop limit")?;
    verify(
        next_header == ICMPV6 && hop_limit == HOP_LIMIT,
        "neighbour discovery: hop limit",
        6,
        u16::from_be_bytes([next_header, hop_limit]),
    )?;
    let source = Ipv6Addr::from(reader.array::<16>("neighbour discovery: source")?);
    let to = Ipv6Addr::from(reader.array::<16>("neighbour discovery: destination")?);
    let body = reader.array::<BODY_LEN>("neighbour discovery: body")?;
    let mut sum = Checksum::pseudo_header(source, to, ICMPV6, BODY_LEN);
    sum.add(&body);
    let sum = sum.finish();
    verify(sum == 0, "neighbour discovery: checksum", IPV6_LEN + 2, sum)?;
    let [found, code, ..] = body;
    let found = u16::from_be_bytes([found, code]);
    let wanted = u16::from_be_bytes([kind, 0]);
    verify(
        found == wanted,
        "neighbour discovery: type",
        IPV6_LEN,
        found,
    )?;
    Ok((source, body))
}

/// Appends an IPv6 packet around a body whose checksum is not set yet.
fn close(source: Ipv6Addr, to: Ipv6Addr, mut body: [u8; BODY_LEN], out: &mut Vec<u8>) {
    let mut sum = Checksum::pseudo_header(source, to, ICMPV6, BODY_LEN);
    sum.add(&body);
    body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    out.extend_from_slice(&[0x60, 0, 0, 0, 0]);
    #[expect(clippy::cast_possible_truncation, reason = "32")]
    out.push(BODY_LEN as u8);
    out.extend_from_slice(&[ICMPV6, HOP_LIMIT]);
    out.extend_from_slice(&source.octets());
    out.extend_from_slice(&to.octets());
    out.extend_from_slice(&body);
}

/// The start of a frame for one packet.
fn framed(destination: MacAddr, source: MacAddr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(EthernetHeader::LEN + PACKET_LEN);
    let header = EthernetHeader {
        destination,
        source,
        ether_type: EthernetHeader::IPV6,
    };
    header.emit(&mut frame);
    frame
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
    fn an_answer_goes_to_who_asked() {
        let asked = NeighbourSolicitation {
            source: Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x10),
            mac: MacAddr([2, 0, 0, 0, 0, 0x10]),
            target: ADVERT.target,
        };
        let frame = ADVERT.answer_frame(&asked);
        assert_eq!(frame[..6], asked.mac.0);
        assert_eq!(frame[38..54], asked.source.octets());
        assert_eq!(frame[58], 0x60, "solicited and override");
        assert_eq!(NeighbourAdvertisement::parse(&frame[14..]), Ok(ADVERT));
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
