//! ARP: telling an IPv4 link where an address is now.
//!
//! Read RFC 826, RFC 5227 §2.3 and RFC 5944 §4.6 before editing. Hosts differ
//! in which form of a gratuitous ARP they believe, so a new owner sends both.

use core::fmt;
use core::net::Ipv4Addr;

use alloc::vec::Vec;

use crate::cursor::Reader;
use crate::{EthernetHeader, MacAddr, ParseError};

const ETHERNET: u16 = 1;
const MAC_LEN: u8 = 6;
const IP_LEN: u8 = 4;

/// Which of the two ARP packets it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ArpOperation {
    /// Asks who has the target address.
    Request = 1,
    /// Says who has the sender address.
    Reply = 2,
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// Link-layer address of the sender.
    pub sender_mac: MacAddr,
    /// Address of the sender.
    pub sender: Ipv4Addr,
    /// Link-layer address of the target; zero in a request.
    pub target_mac: MacAddr,
    /// Address of the target.
    pub target: Ipv4Addr,
}

impl ArpPacket {
    /// Size in bytes, without the Ethernet header and its padding.
    pub const LEN: usize = 28;

    /// A gratuitous ARP: `addr` is at `mac` now.
    pub const fn gratuitous(operation: ArpOperation, addr: Ipv4Addr, mac: MacAddr) -> Self {
        Self {
            operation,
            sender_mac: mac,
            sender: addr,
            // RFC 5944 §4.6: a reply names the address to be learnt, in a
            // request the field is not used.
            target_mac: match operation {
                ArpOperation::Request => MacAddr::ZERO,
                ArpOperation::Reply => mac,
            },
            target: addr,
        }
    }

    /// Whether it is a gratuitous ARP.
    pub fn is_gratuitous(&self) -> bool {
        self.sender == self.target
    }

    /// Reads a packet; padding after it is allowed.
    ///
    /// # Errors
    /// If it is too short or not for IPv4 over Ethernet.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(packet);
        reader.expect(ETHERNET, "arp: hardware type")?;
        reader.expect(EthernetHeader::IPV4, "arp: protocol type")?;
        reader.expect(
            u16::from_be_bytes([MAC_LEN, IP_LEN]),
            "arp: address lengths",
        )?;
        let operation = match reader.u16("arp: operation")? {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            other => {
                return Err(ParseError {
                    what: "arp: operation",
                    at: 6,
                    got: u64::from(other),
                });
            }
        };
        Ok(Self {
            operation,
            sender_mac: MacAddr(reader.array("arp: sender mac")?),
            sender: Ipv4Addr::from(reader.array::<4>("arp: sender")?),
            target_mac: MacAddr(reader.array("arp: target mac")?),
            target: Ipv4Addr::from(reader.array::<4>("arp: target")?),
        })
    }

    /// Appends the packet.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&ETHERNET.to_be_bytes());
        out.extend_from_slice(&EthernetHeader::IPV4.to_be_bytes());
        out.extend_from_slice(&[MAC_LEN, IP_LEN]);
        out.extend_from_slice(&(self.operation as u16).to_be_bytes());
        out.extend_from_slice(&self.sender_mac.0);
        out.extend_from_slice(&self.sender.octets());
        out.extend_from_slice(&self.target_mac.0);
        out.extend_from_slice(&self.target.octets());
    }

    /// A whole frame that reaches every host of the link.
    pub fn broadcast_frame(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(EthernetHeader::LEN + Self::LEN);
        let header = EthernetHeader {
            destination: MacAddr::BROADCAST,
            source: self.sender_mac,
            ether_type: EthernetHeader::ARP,
        };
        header.emit(&mut frame);
        self.emit(&mut frame);
        frame
    }
}

impl fmt::Display for ArpPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sender, mac) = (self.sender, self.sender_mac);
        match self.operation {
            ArpOperation::Request => write!(f, "who has {}, tell {sender} at {mac}", self.target),
            ArpOperation::Reply => write!(f, "{sender} is at {mac}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    const ADDR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 100);
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);

    fn bytes(packet: &ArpPacket) -> Vec<u8> {
        let mut out = Vec::new();
        packet.emit(&mut out);
        out
    }

    #[test]
    fn emit() {
        let request = ArpPacket::gratuitous(ArpOperation::Request, ADDR, MAC);
        #[rustfmt::skip]
        assert_eq!(
            request.broadcast_frame(),
            [
                0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0xb, 0x08, 0x06,
                0, 1, 0x08, 0, 6, 4, 0, 1,
                2, 0, 0, 0, 0, 0xb, 10, 9, 0, 100,
                0, 0, 0, 0, 0, 0, 10, 9, 0, 100,
            ]
        );
        let reply = bytes(&ArpPacket::gratuitous(ArpOperation::Reply, ADDR, MAC));
        assert_eq!(reply[6..8], [0, 2]);
        assert_eq!(reply[18..24], MAC.0);
    }

    #[test]
    fn roundtrip() {
        for operation in [ArpOperation::Request, ArpOperation::Reply] {
            let packet = ArpPacket::gratuitous(operation, ADDR, MAC);
            assert!(packet.is_gratuitous());
            let mut padded = bytes(&packet);
            padded.extend_from_slice(&[0; 18]);
            assert_eq!(ArpPacket::parse(&padded), Ok(packet));
        }
        let reply = ArpPacket::gratuitous(ArpOperation::Reply, ADDR, MAC);
        assert_eq!(reply.to_string(), "10.9.0.100 is at 02:00:00:00:00:0b");
    }

    #[test]
    fn truncated() {
        let packet = bytes(&ArpPacket::gratuitous(ArpOperation::Reply, ADDR, MAC));
        for len in 0..packet.len() {
            assert!(ArpPacket::parse(&packet[..len]).is_err());
        }
    }

    #[test]
    fn impossible_length() {
        let good = bytes(&ArpPacket::gratuitous(ArpOperation::Reply, ADDR, MAC));
        for at in [0, 2, 4, 5, 7] {
            let mut bad = good.clone();
            bad[at] = 0x77;
            assert!(ArpPacket::parse(&bad).is_err(), "byte {at}");
        }
    }
}
