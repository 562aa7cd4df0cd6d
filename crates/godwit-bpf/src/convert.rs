//! Between the C layouts and Rust values. Byte order is handled here only.

use std::net::{IpAddr, Ipv6Addr};

use godwit_wire::{Endpoint, FlowKey};

use crate::skel::types;

/// What the fields of a type take together, all the way down: if that is its size, there
/// is no padding in it. For layouts of the programs `build.rs` writes it.
pub(crate) trait Fields {
    const SIZE: usize;
}

impl<T: Fields, const N: usize> Fields for [T; N] {
    const SIZE: usize = N * T::SIZE;
}

/// The programs' own, which nothing here follows.
impl<T> Fields for *mut T {
    const SIZE: usize = size_of::<Self>();
}

/// Integers are their own fields.
macro_rules! integers {
    ($($integer:ty)*) => {
        $(impl Fields for $integer {
            const SIZE: usize = size_of::<Self>();
        })*
    };
}

integers!(u8 u16 u32 u64 i8 i16 i32 i64);

/// Types of which any bit pattern is a value: plain integers all the way.
///
/// # Safety
/// No enums, no references. That there is no padding the compiler sees.
pub(crate) unsafe trait Plain: Copy + Fields {}

// SAFETY: integers and arrays of integers only, with explicit padding.
unsafe impl Plain for types::gw_endpoint {}
// SAFETY: as above.
unsafe impl Plain for types::gw_canary {}
// SAFETY: as above.
unsafe impl Plain for types::gw_canary_answer {}
// SAFETY: as above.
unsafe impl Plain for types::gw_canary_home {}
// SAFETY: as above.
unsafe impl Plain for types::gw_canary_peer {}
// SAFETY: as above.
unsafe impl Plain for types::gw_flow_key {}
// SAFETY: as above.
unsafe impl Plain for types::gw_flow {}
// SAFETY: as above.
unsafe impl Plain for types::gw_half_open {}
// SAFETY: as above.
unsafe impl Plain for types::gw_share {}
// SAFETY: as above.
unsafe impl Plain for types::gw_event {}
// SAFETY: as above.
unsafe impl Plain for types::gw_exit {}
// SAFETY: as above.
unsafe impl Plain for types::gw_order {}
// SAFETY: as above.
unsafe impl Plain for types::gw_fence {}
// SAFETY: as above.
unsafe impl Plain for types::gw_fence_order {}
// SAFETY: as above.
unsafe impl Plain for types::gw_verify {}
// SAFETY: as above.
unsafe impl Plain for types::gw_output {}
// SAFETY: as above.
unsafe impl Plain for types::gw_address {}
// SAFETY: as above.
unsafe impl Plain for types::gw_install {}
// SAFETY: as above.
unsafe impl Plain for types::gw_handoff {}
// SAFETY: as above.
unsafe impl Plain for types::gw_newborn {}
// SAFETY: as above.
unsafe impl Plain for types::gw_log_key {}
// SAFETY: as above.
unsafe impl Plain for types::gw_log_chunk {}
// SAFETY: as above.
unsafe impl Plain for types::gw_placing {}
// SAFETY: as above.
unsafe impl Plain for types::gw_mate_key {}
// SAFETY: as above.
unsafe impl Plain for types::gw_mate {}
// SAFETY: as above.
unsafe impl Plain for types::gw_mate_mac {}
// SAFETY: as above.
unsafe impl Plain for types::gw_trust {}
// SAFETY: as above.
unsafe impl Plain for types::gw_steering {}
// SAFETY: see above.
unsafe impl Plain for types::gw_kept {}
/// It ends with a union of bytes, of which no list of fields is written. What its fields take
/// together is asserted beside the type.
impl Fields for types::gw_transfer {
    const SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<types::gw_target>() == 8);
// SAFETY: 16 + 2 * 8 + 4 * 4 + 8 + 4 + 2 + 2 * 1 bytes are its 64: there is no padding.
unsafe impl Plain for types::gw_transfer {}
// SAFETY: as above.
unsafe impl Plain for types::gw_prefix_key {}
// SAFETY: as above.
unsafe impl Plain for types::gw_suffix_key {}
// SAFETY: as above.
unsafe impl Plain for types::gw_rule {}
// SAFETY: as above.
unsafe impl Plain for crate::socket_skel::types::gw_hidden {}
// SAFETY: as above.
unsafe impl Plain for crate::socket_skel::types::gw_congestion {}

/// The bytes of a value, as map calls want them.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    const { assert!(T::SIZE == size_of::<T>(), "there is no padding") };
    // SAFETY: all its bytes are of integers, as was just seen, and u8 has no alignment.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value in `bytes`, which may be longer than it (ring buffer records are).
pub(crate) fn value_of<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: long enough, any bit pattern is a value, unaligned read.
    Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// IPv4 as the data path has it.
pub(crate) fn mapped(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

pub(crate) fn addr_words(addr: Ipv6Addr) -> [u32; 4] {
    let octets = addr.octets();
    std::array::from_fn(|i| {
        u32::from_ne_bytes([
            octets[4 * i],
            octets[4 * i + 1],
            octets[4 * i + 2],
            octets[4 * i + 3],
        ])
    })
}

pub(crate) fn addr_from_words(words: [u32; 4]) -> Ipv6Addr {
    let mut octets = [0; 16];
    for (chunk, word) in octets.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(octets)
}

impl From<Endpoint> for types::gw_endpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            addr: addr_words(endpoint.addr),
            port: endpoint.port.to_be(),
            pad: 0,
        }
    }
}

impl From<types::gw_endpoint> for Endpoint {
    fn from(raw: types::gw_endpoint) -> Self {
        Self::new(addr_from_words(raw.addr), u16::from_be(raw.port))
    }
}

impl From<FlowKey> for types::gw_flow_key {
    fn from(key: FlowKey) -> Self {
        Self {
            client: key.client.into(),
            service: key.service.into(),
        }
    }
}

impl From<types::gw_flow_key> for FlowKey {
    fn from(raw: types::gw_flow_key) -> Self {
        Self {
            client: raw.client.into(),
            service: raw.service.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_the_way_to_the_kernel_and_back() {
        let key = FlowKey {
            client: Endpoint::new("2001:db8::7".parse().expect("an address"), 40_000),
            service: Endpoint::new("::ffff:10.9.0.100".parse().expect("an address"), 80),
        };
        let raw = types::gw_flow_key::from(key);
        assert_eq!(bytes_of(&raw)[16..18], 40_000u16.to_be_bytes());
        assert_eq!(bytes_of(&raw)[32..36], [10, 9, 0, 100]);
        assert_eq!(FlowKey::from(raw), key);
    }

    /// As it would be with a field of four bytes between two of eight.
    #[test]
    fn padding_is_seen() {
        assert_eq!(<types::gw_flow_key as Fields>::SIZE, 40);
        assert_eq!(<[[u16; 3]; 2] as Fields>::SIZE, 12);
        #[repr(C)]
        struct Padded(u64, u32);
        let fields = <u64 as Fields>::SIZE + <u32 as Fields>::SIZE;
        assert_ne!(fields, size_of::<Padded>());
    }

    #[test]
    fn a_short_record_is_no_value() {
        assert!(value_of::<types::gw_event>(&[0; 8]).is_none());
    }
}
