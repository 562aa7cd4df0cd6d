//! Neighbour solicitations: asking an IPv6 link where an address is.

use core::fmt;
use core::net::Ipv6Addr;

use alloc::vec::Vec;

use super::{BODY_LEN, IPV6_LEN, PACKET_LEN, close, framed, open};
use crate::cursor::{Reader, verify};
use crate::{MacAddr, ParseError};

const SOLICITATION: u8 = 135;
const SOURCE_LINK_LAYER: u8 = 1;

/// A neighbour solicitation (RFC 4861 §4.3): `source` at `mac` asks for `target`.
///
/// Those of duplicate address detection, which come from no address, are not
/// represented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighbourSolicitation {
    /// Who asks.
    pub source: Ipv6Addr,
    /// Where it is.
    pub mac: MacAddr,
    /// The address that it asks for.
    pub target: Ipv6Addr,
}

impl NeighbourSolicitation {
    /// Size of the IPv6 packet, in bytes.
    pub const LEN: usize = PACKET_LEN;

    /// Reads an IPv6 packet, sent to a group or to one node.
    ///
    /// # Errors
    /// If it is not a solicitation with a link-layer address, or fails a check of
    /// RFC 4861 §7.1.1.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let (source, body) = open(packet, SOLICITATION)?;
        let mut reader = Reader::new(&body);
        reader.u32("neighbour solicitation: checksum")?;
        reader.u32("neighbour solicitation: reserved")?;
        let target = Ipv6Addr::from(reader.array::<16>("neighbour solicitation: target")?);
        let option = reader.u16("neighbour solicitation: option")?;
        verify(
            option == u16::from_be_bytes([SOURCE_LINK_LAYER, 1]),
            "neighbour solicitation: option",
            IPV6_LEN + 24,
            option,
        )?;
        Ok(Self {
            source,
            mac: MacAddr(reader.array("neighbour solicitation: mac")?),
            target,
        })
    }

    /// Appends the IPv6 packet, to the group of `target`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        close(self.source, self.group(), self.body(), out);
    }

    /// A whole frame that reaches `target` wherever it is on the link.
    pub fn multicast_frame(&self) -> Vec<u8> {
        self.frame_to(MacAddr::multicast_for(self.group()))
    }

    /// As [`multicast_frame`](Self::multicast_frame), but to one machine only.
    pub fn frame_to(&self, mac: MacAddr) -> Vec<u8> {
        let mut frame = framed(mac, self.mac);
        self.emit(&mut frame);
        frame
    }

    /// The solicited-node group of the target (RFC 4291 §2.7.1).
    const fn group(&self) -> Ipv6Addr {
        let [.., high, low] = self.target.segments();
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
    }

    fn body(&self) -> [u8; BODY_LEN] {
        let mut body = [0; BODY_LEN];
        body[0] = SOLICITATION;
        body[8..24].copy_from_slice(&self.target.octets());
        body[24] = SOURCE_LINK_LAYER;
        body[25] = 1; // length in units of 8 bytes
        body[26..32].copy_from_slice(&self.mac.0);
        body
    }
}

impl fmt::Display for NeighbourSolicitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} asks for {}", self.source, self.target)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    const ASKED: NeighbourSolicitation = NeighbourSolicitation {
        source: Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x10),
        mac: MacAddr([2, 0, 0, 0, 0, 0x10]),
        target: Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0xab, 0x100),
    };

    fn bytes() -> Vec<u8> {
        let mut out = Vec::new();
        ASKED.emit(&mut out);
        out
    }

    #[test]
    fn emit() {
        let frame = ASKED.multicast_frame();
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0xab, 1, 0]);
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xffab, 0x100);
        assert_eq!(frame[38..54], group.octets());
        assert_eq!(frame[54..56], [135, 0]);
        assert_eq!(frame[78..], [1, 1, 2, 0, 0, 0, 0, 0x10]);
    }

    #[test]
    fn roundtrip() {
        assert_eq!(NeighbourSolicitation::parse(&bytes()), Ok(ASKED));
        assert_eq!(
            ASKED.to_string(),
            "2001:db8:9::10 asks for 2001:db8:9::ab:100"
        );
    }

    #[test]
    fn truncated() {
        let packet = bytes();
        for len in 0..packet.len() {
            assert!(NeighbourSolicitation::parse(&packet[..len]).is_err());
        }
    }

    #[test]
    fn impossible_length() {
        for at in 4..NeighbourSolicitation::LEN {
            let mut bad = bytes();
            bad[at] ^= 0x10;
            assert!(NeighbourSolicitation::parse(&bad).is_err(), "byte {at}");
        }
    }
}
