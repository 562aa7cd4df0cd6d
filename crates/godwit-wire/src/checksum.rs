//! The Internet checksum (RFC 1071).

use core::net::Ipv6Addr;

/// Sums 16-bit words in one's complement.
///
/// Pieces may be added one after the other as long as each but the last has
/// an even length.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Checksum(u64);

impl Checksum {
    pub(crate) const fn new() -> Self {
        Self(0)
    }

    /// The pseudo-header of TCP and ICMPv6.
    ///
    /// RFC 8200 §8.1 for IPv6; the one of RFC 9293 §3.1 sums the same fields,
    /// with addresses of four bytes.
    pub(crate) fn pseudo_header(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        protocol: u8,
        len: usize,
    ) -> Self {
        let mut sum = Self::new();
        match (source.to_ipv4_mapped(), destination.to_ipv4_mapped()) {
            (Some(source), Some(destination)) => {
                sum.add(&source.octets());
                sum.add(&destination.octets());
            }
            _ => {
                sum.add(&source.octets());
                sum.add(&destination.octets());
            }
        }
        sum.0 += len as u64;
        sum.0 += u64::from(protocol);
        sum
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<2>();
        for word in words {
            self.0 += u64::from(u16::from_be_bytes(*word));
        }
        if let [last] = rest {
            self.0 += u64::from(u16::from_be_bytes([*last, 0]));
        }
    }

    /// The value for the checksum field; zero if the field was summed and is right.
    pub(crate) const fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits above")]
        let folded = sum as u16;
        !folded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        let mut sum = Checksum::new();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.finish(), !0xddf2);
    }

    #[test]
    fn an_odd_byte_is_padded_on_the_right() {
        let (mut odd, mut even) = (Checksum::new(), Checksum::new());
        odd.add(&[0x12, 0x34, 0x56]);
        even.add(&[0x12, 0x34, 0x56, 0x00]);
        assert_eq!(odd.finish(), even.finish());
    }
}
