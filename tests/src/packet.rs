//! IP packets with TCP in them, changed by hand: no options of IP, no extension headers.

/// Where the header of TCP begins.
///
/// # Panics
/// If the packet is empty.
pub fn tcp_at(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 4 { 20 } else { 40 }
}

/// Overwrites bytes of the header of TCP from `at` on, in a segment whose checksum is right
/// afterwards.
///
/// # Panics
/// If the packet is no longer than that.
pub fn set_tcp(packet: &mut [u8], at: usize, bytes: &[u8]) {
    let start = tcp_at(packet) + at;
    packet[start..start + bytes.len()].copy_from_slice(bytes);
    set_tcp_checksum(packet);
}

/// Makes the checksum of TCP right (RFC 9293 section 3.1).
///
/// # Panics
/// If the packet is too short, or longer than 64 KiB.
pub fn set_tcp_checksum(packet: &mut [u8]) {
    let tcp = tcp_at(packet);
    packet[tcp + 16..tcp + 18].fill(0);
    let addresses = if tcp == 20 { 12..20 } else { 8..40 };
    let length = u32::try_from(packet.len() - tcp).expect("a short packet");
    let sum = fold(sum_of(&packet[addresses]) + 6 + length + sum_of(&packet[tcp..]));
    packet[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
}

/// The sum of RFC 1071, not folded yet.
pub fn sum_of(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    bytes.chunks(2).map(word).sum()
}

/// The checksum that belongs to a sum.
pub fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(u16::MAX)
}
