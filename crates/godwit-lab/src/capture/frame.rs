//! The little of a captured frame that the lab asks about.
//!
//! Lenient where [`godwit_wire::Segment`] is strict: captured frames are cut off
//! after their headers, and what can't be read is skipped, not refused.

use std::net::{Ipv4Addr, Ipv6Addr};

use godwit_wire::{
    ArpPacket, Endpoint, EthernetHeader, FlowKey, MacAddr, SeqNumber, TcpFlags, TcpOptions,
};

/// One captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSeen {
    /// A TCP segment.
    Segment(SegmentSeen),
    /// An ARP packet.
    Arp(ArpSeen),
    /// A neighbour advertisement.
    Advertisement(AdvertisementSeen),
    /// Anything else.
    Other,
}

/// One captured TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSeen {
    /// When it passed, in nanoseconds of the wall clock since 1970.
    pub at_ns: u64,
    /// Hardware address that it came from.
    pub from_mac: MacAddr,
    /// Hardware address that it went to.
    pub to_mac: MacAddr,
    /// Address and port that it came from.
    pub from: Endpoint,
    /// Address and port that it went to.
    pub to: Endpoint,
    /// Its control bits.
    pub flags: TcpFlags,
    /// SEG.SEQ.
    pub seq: SeqNumber,
    /// SEG.ACK; meaningless without the ACK bit.
    pub ack: SeqNumber,
    /// SEG.WND, not scaled.
    pub window: u16,
    /// Payload bytes, also those that the capture left out.
    pub length: u32,
    /// Window scale option (RFC 7323 §2), which only a SYN may carry.
    pub wscale: Option<u8>,
    /// TSval (RFC 7323 §3), if it has time stamps.
    pub ts_val: Option<u32>,
    /// ECN field of the IP header (RFC 3168 §5); 0 is not ECN-capable.
    pub ecn: u8,
}

/// One captured ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpSeen {
    /// When it passed, in nanoseconds of the wall clock since 1970.
    pub at_ns: u64,
    /// What it says.
    pub packet: ArpPacket,
}

/// One captured neighbour advertisement (RFC 4861 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertisementSeen {
    /// When it passed, in nanoseconds of the wall clock since 1970.
    pub at_ns: u64,
    /// Hardware address that it came from.
    pub from_mac: MacAddr,
    /// The address that it speaks of.
    pub target: Ipv6Addr,
}

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_ICMPV6: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

impl SegmentSeen {
    /// The flow it belongs to if `service` is one of its ends.
    pub fn flow(&self, service: Endpoint) -> Option<FlowKey> {
        let client = match (self.from == service, self.to == service) {
            (true, _) => self.to,
            (false, true) => self.from,
            (false, false) => return None,
        };
        Some(FlowKey { client, service })
    }
}

impl FrameSeen {
    /// Reads a frame that passed at `at_ns`.
    pub(crate) fn parse(at_ns: u64, frame: &[u8]) -> Self {
        let Ok((ethernet, payload)) = EthernetHeader::parse(frame) else {
            return Self::Other;
        };
        let ip = match ethernet.ether_type {
            EthernetHeader::IPV4 => ipv4(payload),
            EthernetHeader::IPV6 => {
                if let Some(target) = advertised(payload) {
                    return Self::Advertisement(AdvertisementSeen {
                        at_ns,
                        from_mac: ethernet.source,
                        target,
                    });
                }
                ipv6(payload)
            }
            EthernetHeader::ARP => {
                return ArpPacket::parse(payload)
                    .map_or(Self::Other, |packet| Self::Arp(ArpSeen { at_ns, packet }));
            }
            _ => None,
        };
        ip.and_then(|ip| segment(at_ns, &ethernet, &ip))
            .map_or(Self::Other, Self::Segment)
    }
}

/// An IP packet that carries TCP.
struct Ip<'a> {
    from: Ipv6Addr,
    to: Ipv6Addr,
    ecn: u8,
    /// From the TCP header on, as far as captured.
    tcp: &'a [u8],
    /// Length of that as the IP header says.
    length: u32,
}

fn ipv4(packet: &[u8]) -> Option<Ip<'_>> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    if *packet.get(9)? != PROTOCOL_TCP {
        return None;
    }
    let total = u32::from(be16(packet, 2)?);
    Some(Ip {
        from: Ipv4Addr::from(be32(packet, 12)?).to_ipv6_mapped(),
        to: Ipv4Addr::from(be32(packet, 16)?).to_ipv6_mapped(),
        ecn: *packet.get(1)? & 3,
        tcp: packet.get(header..)?,
        length: total.checked_sub(u32::try_from(header).ok()?)?,
    })
}

/// The target of a neighbour advertisement.
fn advertised(packet: &[u8]) -> Option<Ipv6Addr> {
    if *packet.get(6)? != PROTOCOL_ICMPV6 || *packet.get(40)? != NEIGHBOUR_ADVERTISEMENT {
        return None;
    }
    ipv6_at(packet, 48)
}

/// Extension headers are not followed: no peer in a lab sends them.
fn ipv6(packet: &[u8]) -> Option<Ip<'_>> {
    if *packet.get(6)? != PROTOCOL_TCP {
        return None;
    }
    Some(Ip {
        from: ipv6_at(packet, 8)?,
        to: ipv6_at(packet, 24)?,
        ecn: *packet.get(1)? >> 4 & 3,
        tcp: packet.get(40..)?,
        length: u32::from(be16(packet, 4)?),
    })
}

fn segment(at_ns: u64, ethernet: &EthernetHeader, ip: &Ip<'_>) -> Option<SegmentSeen> {
    let offset = u32::from(ip.tcp.get(12)? >> 4) * 4;
    let options = ip.tcp.get(20..usize::try_from(offset).ok()?);
    let options = options.and_then(|bytes| TcpOptions::parse(bytes).ok());
    Some(SegmentSeen {
        at_ns,
        from_mac: ethernet.source,
        to_mac: ethernet.destination,
        from: Endpoint::new(ip.from, be16(ip.tcp, 0)?),
        to: Endpoint::new(ip.to, be16(ip.tcp, 2)?),
        flags: TcpFlags(*ip.tcp.get(13)?),
        seq: SeqNumber(be32(ip.tcp, 4)?),
        ack: SeqNumber(be32(ip.tcp, 8)?),
        window: be16(ip.tcp, 14)?,
        length: ip.length.checked_sub(offset)?,
        wscale: options.and_then(|options| options.wscale),
        ts_val: options.and_then(|options| Some(options.time_stamps?.ts_val)),
        ecn: ip.ecn,
    })
}

fn ipv6_at(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(octets.into())
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.9.0.10:4660 -> 10.9.0.100:80, FIN and ACK, 100 bytes of which none captured.
    const FRAME: [u8; 54] = [
        2, 0, 0, 0, 0, 0x11, 2, 0, 0, 0, 0, 0x10, 8, 0, //
        0x45, 0, 0, 140, 0, 0, 0, 0, 64, 6, 0, 0, 10, 9, 0, 10, 10, 9, 0, 100, //
        0x12, 0x34, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, 0x11, 1, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn a_cut_off_segment_keeps_its_length() {
        let FrameSeen::Segment(seen) = FrameSeen::parse(5, &FRAME) else {
            panic!("not read as a segment");
        };
        assert_eq!(seen.from.to_string(), "10.9.0.10:4660");
        assert_eq!(seen.to.to_string(), "10.9.0.100:80");
        assert_eq!(seen.from_mac, MacAddr([2, 0, 0, 0, 0, 0x10]));
        assert_eq!(seen.to_mac, MacAddr([2, 0, 0, 0, 0, 0x11]));
        assert_eq!(
            (seen.seq, seen.ack, seen.length),
            (SeqNumber(7), SeqNumber(9), 100)
        );
        assert_eq!(seen.flags, TcpFlags::FIN.with(TcpFlags::ACK));
        assert_eq!((seen.wscale, seen.ecn), (None, 0));
    }

    #[test]
    fn a_syn_shows_its_window_scale_and_a_packet_its_ecn_field() {
        let mut frame = FRAME.to_vec();
        (frame[15], frame[46]) = (0xff, 0x60);
        frame.extend([1, 3, 3, 7]);
        let FrameSeen::Segment(seen) = FrameSeen::parse(0, &frame) else {
            panic!("not read as a segment");
        };
        assert_eq!((seen.wscale, seen.ecn), (Some(7), 3));
    }

    #[test]
    fn a_segment_shows_its_time_stamp() {
        let mut frame = FRAME.to_vec();
        (frame[15], frame[46]) = (0, 0x80);
        frame.extend([1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 0, 3]);
        let FrameSeen::Segment(seen) = FrameSeen::parse(0, &frame) else {
            panic!("not read as a segment");
        };
        assert_eq!((seen.ts_val, seen.length), (Some(0x102), 88));
    }

    #[test]
    fn no_cut_makes_it_panic() {
        for length in 0..FRAME.len() {
            let _ = FrameSeen::parse(0, &FRAME[..length]);
        }
        let mut v6 = FRAME;
        (v6[12], v6[13]) = (0x86, 0xdd);
        for length in 0..v6.len() {
            assert_eq!(FrameSeen::parse(0, &v6[..length]), FrameSeen::Other);
        }
    }
}
