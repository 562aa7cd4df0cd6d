//! Addresses of frames and of connections.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use crate::ParseError;

/// A link-layer address of Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Every host of the link.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// No address: not resolved, or not to be filled in.
    pub const ZERO: Self = Self([0; 6]);

    /// The group address that carries an IPv6 multicast packet (RFC 2464 §7).
    pub const fn multicast_for(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Whether frames to this address may reach more than one host.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether this is [`MacAddr::ZERO`].
    pub const fn is_zero(self) -> bool {
        matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddr {
    type Err = ParseError;

    /// Reads `02:00:00:00:00:0a`, as the kernel prints it.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut octets = [0; 6];
        let mut at = 0;
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().unwrap_or_default();
            let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            *octet = Some(part)
                .filter(|_| digits)
                .and_then(|part| u8::from_str_radix(part, 16).ok())
                .ok_or_else(|| mac_error(at, part.len()))?;
            at += part.len() + 1;
        }
        match parts.next() {
            None => Ok(Self(octets)),
            Some(more) => Err(mac_error(at, more.len())),
        }
    }
}

const fn mac_error(at: usize, got: usize) -> ParseError {
    ParseError {
        what: "MAC address: six pairs of hexadecimal digits",
        at,
        got: got as u64,
    }
}

/// Half of a connection: an address and a port.
///
/// An IPv4 address is held as `::ffff:a.b.c.d`. Build one from a `SocketAddr`
/// to have that done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The address, IPv4 as mapped.
    pub addr: Ipv6Addr,
    /// The port, host byte order.
    pub port: u16,
}

impl Endpoint {
    /// Size on the wire, in bytes: address, port.
    pub const LEN: usize = 18;

    /// Takes an address that is already mapped if it is IPv4.
    pub const fn new(addr: Ipv6Addr, port: u16) -> Self {
        Self { addr, port }
    }

    /// Whether packets of this endpoint are IPv4.
    pub const fn is_ipv4(self) -> bool {
        self.addr.to_ipv4_mapped().is_some()
    }

    /// The address as people write it: a mapped one as IPv4.
    pub const fn ip(self) -> IpAddr {
        self.addr.to_canonical()
    }

    pub(crate) fn emit(self, out: &mut alloc::vec::Vec<u8>) {
        out.extend_from_slice(&self.addr.octets());
        out.extend_from_slice(&self.port.to_be_bytes());
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&SocketAddr::from(*self), f)
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(socket: SocketAddr) -> Self {
        let addr = match socket.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self::new(addr, socket.port())
    }
}

impl From<Endpoint> for SocketAddr {
    fn from(endpoint: Endpoint) -> Self {
        Self::new(endpoint.ip(), endpoint.port)
    }
}

impl FromStr for Endpoint {
    type Err = core::net::AddrParseError;

    /// Reads `10.9.0.100:80` or `[2001:db8::1]:80`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<SocketAddr>().map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn endpoints_print_as_people_write_them() {
        for text in ["10.9.0.100:80", "[2001:db8::1]:80", "[::1]:65535"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn ipv4_is_held_as_mapped() {
        let endpoint: Endpoint = "10.9.0.100:80".parse().unwrap();
        assert_eq!(endpoint.addr.to_string(), "::ffff:10.9.0.100");
        assert!(endpoint.is_ipv4());
        let mapped: Endpoint = "[::ffff:10.9.0.100]:80".parse().unwrap();
        assert_eq!(mapped, endpoint);
    }

    #[test]
    fn mac_addresses_round_trip() {
        let mac: MacAddr = "02:00:00:00:0a:ff".parse().unwrap();
        assert_eq!(mac, MacAddr([2, 0, 0, 0, 10, 255]));
        assert_eq!(mac.to_string(), "02:00:00:00:0a:ff");
    }

    #[test]
    fn malformed_mac_addresses_are_refused() {
        for text in [
            "",
            "02:00",
            "02:00:00:00:00:00:00",
            "0x:00:00:00:00:00",
            "+2:00:00:00:00:00",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn all_nodes_is_the_group_of_neighbour_advertisements() {
        let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let mac = MacAddr::multicast_for(all_nodes);
        assert_eq!(mac.to_string(), "33:33:00:00:00:01");
        assert!(mac.is_multicast() && !MacAddr::ZERO.is_multicast() && MacAddr::ZERO.is_zero());
    }
}
