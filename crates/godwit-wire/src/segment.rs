//! TCP segments over IPv4 or IPv6: built by the agent, read by tests and captures.
//!
//! Read RFC 9293 §3.1 and §3.2, RFC 7323 and RFC 2018 before editing. A segment
//! is IPv4 if both its addresses are mapped ones. Options that are not named
//! here are skipped when read.

use core::fmt;
use core::net::Ipv6Addr;

use alloc::vec::Vec;

use crate::checksum::Checksum;
use crate::cursor::{Reader, verify};
use crate::{EmitError, Endpoint, ParseError, SeqNumber};

mod options;
#[cfg(test)]
mod tests;

pub use options::{TcpOptions, TimeStamps};

const TCP: u8 = 6;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;
const TTL: u8 = 64;
const DONT_FRAGMENT: u16 = 0x4000;

/// Control bits of a segment (RFC 9293 §3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronises sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Resets the connection.
    pub const RST: Self = Self(0x04);
    /// Push function.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement field counts.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer counts.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Both together.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// As tcpdump prints them: `SYN,ACK`.
impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let mut separator = "";
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 >> bit & 1 == 1 {
                write!(f, "{separator}{name}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpFlags({self})")
    }
}

/// One segment, with the IP header it travels in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// From whom.
    pub source: Endpoint,
    /// To whom.
    pub destination: Endpoint,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: SeqNumber,
    /// Next byte expected, if ACK is set.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// The window field, not scaled.
    pub wnd: u16,
    /// The options that are understood.
    pub options: TcpOptions,
    /// The data.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The most data that fits into one packet with every option, in bytes.
    pub const MAX_PAYLOAD: usize = 65_535 - IPV4_LEN - TCP_LEN - TcpOptions::MAX_LEN;

    /// Reads an IP packet. Bytes after the packet (padding) are allowed, and
    /// checksums are left alone: in a capture at the sender they are not
    /// filled in yet. See [`Segment::verify`].
    ///
    /// # Errors
    /// If it is no whole, unfragmented TCP segment, or its headers contradict
    /// themselves.
    pub fn parse(packet: &'a [u8]) -> Result<Self, ParseError> {
        let (source, destination, at, tcp) = split_ip(packet)?;
        let shift = |error: ParseError| ParseError {
            at: error.at + at,
            ..error
        };
        Self::parse_tcp(source, destination, tcp).map_err(shift)
    }

    fn parse_tcp(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        tcp: &'a [u8],
    ) -> Result<Self, ParseError> {
        let mut reader = Reader::new(tcp);
        let source_port = reader.u16("tcp: source port")?;
        let destination_port = reader.u16("tcp: destination port")?;
        let seq = reader.seq("tcp: seq")?;
        let ack = reader.seq("tcp: ack")?;
        let [offset, flags] = reader.array("tcp: data offset")?;
        let header_len = usize::from(offset >> 4) * 4;
        verify(
            (TCP_LEN..=tcp.len()).contains(&header_len),
            "tcp: data offset",
            12,
            offset >> 4,
        )?;
        let wnd = reader.u16("tcp: window")?;
        reader.u32("tcp: checksum and urgent pointer")?;
        let options = reader.bytes(header_len - TCP_LEN, "tcp: options")?;
        Ok(Self {
            source: Endpoint::new(source, source_port),
            destination: Endpoint::new(destination, destination_port),
            seq,
            ack,
            flags: TcpFlags(flags),
            wnd,
            options: TcpOptions::parse(options).map_err(|error| ParseError {
                at: error.at + TCP_LEN,
                ..error
            })?,
            payload: reader.rest(),
        })
    }

    /// Checks the checksums of an IP packet that holds a segment.
    ///
    /// # Errors
    /// If it can't be read, or a checksum is wrong.
    pub fn verify(packet: &[u8]) -> Result<(), ParseError> {
        let (source, destination, at, tcp) = split_ip(packet)?;
        let wrong = |what, at, sum: u16| ParseError {
            what,
            at,
            got: u64::from(sum),
        };
        if let Some(header) = packet.get(..at).filter(|header| header[0] >> 4 == 4) {
            let mut sum = Checksum::new();
            sum.add(header);
            match sum.finish() {
                0 => {}
                sum => return Err(wrong("ipv4: checksum", 10, sum)),
            }
        }
        let mut sum = Checksum::pseudo_header(source, destination, TCP, tcp.len());
        sum.add(tcp);
        match sum.finish() {
            0 => Ok(()),
            sum => Err(wrong("tcp: checksum", at + 16, sum)),
        }
    }

    /// Writes the TCP checksum of an IP packet that a device was to fill in.
    ///
    /// # Errors
    /// If it is no IP packet with a whole TCP header.
    pub fn fill_checksum(packet: &mut [u8]) -> Result<(), ParseError> {
        let (source, destination, at, tcp) = split_ip(packet)?;
        let short = ParseError {
            what: "tcp: header",
            at,
            got: tcp.len() as u64,
        };
        let (head, rest) = tcp.split_at_checked(16).ok_or(short)?;
        let (_, rest) = rest.split_at_checked(4).ok_or(short)?;
        let urgent = &tcp[18..20];
        let mut sum = Checksum::pseudo_header(source, destination, TCP, tcp.len());
        sum.add(head);
        sum.add(urgent);
        sum.add(rest);
        let sum = sum.finish().to_be_bytes();
        packet
            .get_mut(at + 16..at + 18)
            .ok_or(short)?
            .copy_from_slice(&sum);
        Ok(())
    }

    /// Appends the IP packet, with its checksums.
    ///
    /// # Errors
    /// If the payload is longer than [`Segment::MAX_PAYLOAD`].
    pub fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        let too_long = EmitError {
            what: "segment: payload",
            max: Self::MAX_PAYLOAD,
            got: self.payload.len(),
        };
        if self.payload.len() > Self::MAX_PAYLOAD {
            return Err(too_long);
        }
        let tcp = self.tcp();
        // Bounded just above; the sum stays below 2^16.
        let tcp_len = u16::try_from(tcp.len()).map_err(|_| too_long)?;
        emit_ip(self.source.addr, self.destination.addr, tcp_len, out);
        out.extend_from_slice(&tcp);
        Ok(())
    }

    /// The IP packet, with its checksums.
    ///
    /// # Errors
    /// If the payload is longer than [`Segment::MAX_PAYLOAD`].
    pub fn to_packet(&self) -> Result<Vec<u8>, EmitError> {
        let mut packet = Vec::new();
        self.emit(&mut packet)?;
        Ok(packet)
    }

    /// Bytes of sequence space: the data, and one each for SYN and FIN (SEG.LEN).
    pub fn len(&self) -> u32 {
        let data = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        [TcpFlags::SYN, TcpFlags::FIN]
            .into_iter()
            .filter(|flag| self.flags.contains(*flag))
            .fold(data, |len, _| len.saturating_add(1))
    }

    /// Whether it takes up no sequence space.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn tcp(&self) -> Vec<u8> {
        let options = self.options.to_bytes();
        let header_len = TCP_LEN + options.len();
        let mut tcp = Vec::with_capacity(header_len + self.payload.len());
        tcp.extend_from_slice(&self.source.port.to_be_bytes());
        tcp.extend_from_slice(&self.destination.port.to_be_bytes());
        tcp.extend_from_slice(&self.seq.0.to_be_bytes());
        tcp.extend_from_slice(&self.ack.0.to_be_bytes());
        // In words of 4 bytes, at most 15: options have an upper bound.
        let words = u8::try_from(header_len / 4).unwrap_or(15);
        tcp.extend_from_slice(&[words << 4, self.flags.0]);
        tcp.extend_from_slice(&self.wnd.to_be_bytes());
        tcp.extend_from_slice(&[0; 4]);
        tcp.extend_from_slice(&options);
        tcp.extend_from_slice(self.payload);
        let (from, to) = (self.source.addr, self.destination.addr);
        let mut sum = Checksum::pseudo_header(from, to, TCP, tcp.len());
        sum.add(&tcp);
        tcp[16..18].copy_from_slice(&sum.finish().to_be_bytes());
        tcp
    }
}

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} -> {} [{}] seq {} ack {} wnd {} len {}",
            self.source,
            self.destination,
            self.flags,
            self.seq,
            self.ack,
            self.wnd,
            self.payload.len()
        )
    }
}

/// Source, destination, where TCP begins, and TCP without padding.
fn split_ip(packet: &[u8]) -> Result<(Ipv6Addr, Ipv6Addr, usize, &[u8]), ParseError> {
    let version = packet.first().map(|byte| byte >> 4);
    match version {
        Some(4) => split_ipv4(packet),
        Some(6) => split_ipv6(packet),
        other => Err(ParseError {
            what: "ip: version",
            at: 0,
            got: u64::from(other.unwrap_or_default()),
        }),
    }
}

fn split_ipv4(packet: &[u8]) -> Result<(Ipv6Addr, Ipv6Addr, usize, &[u8]), ParseError> {
    let mut reader = Reader::new(packet);
    let header_len = usize::from(reader.u8("ipv4: header length")? & 0x0f) * 4;
    reader.u8("ipv4: type of service")?;
    let total = reader.u16("ipv4: total length")?;
    let total_len = usize::from(total);
    verify(
        (IPV4_LEN..=total_len).contains(&header_len) && total_len <= packet.len(),
        "ipv4: total length",
        2,
        total,
    )?;
    reader.u16("ipv4: identification")?;
    let fragment = reader.u16("ipv4: fragment")?;
    let whole = fragment & !DONT_FRAGMENT == 0;
    verify(whole, "ipv4: fragment", 6, fragment)?;
    let [_ttl, protocol] = reader.array("ipv4: protocol")?;
    verify(protocol == TCP, "ipv4: protocol", 9, protocol)?;
    reader.u16("ipv4: checksum")?;
    let [source, destination] = [
        reader.array::<4>("ipv4: source")?,
        reader.array::<4>("ipv4: destination")?,
    ]
    .map(|octets| core::net::Ipv4Addr::from(octets).to_ipv6_mapped());
    let tcp = packet.get(header_len..total_len).unwrap_or_default();
    Ok((source, destination, header_len, tcp))
}

fn split_ipv6(packet: &[u8]) -> Result<(Ipv6Addr, Ipv6Addr, usize, &[u8]), ParseError> {
    let mut reader = Reader::new(packet);
    reader.u32("ipv6: version")?;
    let payload = reader.u16("ipv6: payload length")?;
    let [next_header, _hop_limit] = reader.array("ipv6: next header")?;
    verify(next_header == TCP, "ipv6: next header", 6, next_header)?;
    let source = Ipv6Addr::from(reader.array::<16>("ipv6: source")?);
    let destination = Ipv6Addr::from(reader.array::<16>("ipv6: destination")?);
    let tcp = reader.bytes(usize::from(payload), "ipv6: payload")?;
    Ok((source, destination, IPV6_LEN, tcp))
}

fn emit_ip(source: Ipv6Addr, destination: Ipv6Addr, tcp_len: u16, out: &mut Vec<u8>) {
    if let (Some(source), Some(destination)) =
        (source.to_ipv4_mapped(), destination.to_ipv4_mapped())
    {
        let mut header = [0; IPV4_LEN];
        header[0] = 0x45;
        #[expect(clippy::cast_possible_truncation, reason = "20")]
        let total = tcp_len.saturating_add(IPV4_LEN as u16);
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
        header[8..10].copy_from_slice(&[TTL, TCP]);
        header[12..16].copy_from_slice(&source.octets());
        header[16..20].copy_from_slice(&destination.octets());
        let mut sum = Checksum::new();
        sum.add(&header);
        header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
        out.extend_from_slice(&header);
    } else {
        out.extend_from_slice(&[0x60, 0, 0, 0]);
        out.extend_from_slice(&tcp_len.to_be_bytes());
        out.extend_from_slice(&[TCP, TTL]);
        out.extend_from_slice(&source.octets());
        out.extend_from_slice(&destination.octets());
    }
}
