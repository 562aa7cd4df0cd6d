//! From a four-tuple to a slot. The data path computes the same (`gw_place.h`).

use core::net::Ipv6Addr;

use godwit_wire::FlowKey;

use super::TableSize;

/// Odd, and its bits look random: the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of a four-tuple under a seed.
///
/// The seed is all that a client does not know of it: one who does can open connections
/// that all go to one back-end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowHash(u64);

impl FlowHash {
    /// Hashes addresses and ports.
    pub fn new(key: &FlowKey, seed: u64) -> Self {
        let [a, b] = halves(key.client.addr);
        let [c, d] = halves(key.service.addr);
        let ports = u64::from(key.client.port) << 16 | u64::from(key.service.port);
        let hash = [a, b, c, d, ports].into_iter().fold(seed, absorb);
        Self(absorb(hash, STEP))
    }

    /// The slot of the flow in a table: its upper half, scaled.
    pub fn slot(self, size: TableSize) -> u32 {
        let scaled = (self.0 >> 32) * u64::from(size.get());
        u32::try_from(scaled >> 32).unwrap_or(u32::MAX)
    }
}

const fn absorb(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(STEP);
    mixed ^ (mixed >> 32)
}

fn halves(addr: Ipv6Addr) -> [u64; 2] {
    let bits = addr.to_bits();
    let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0);
    [half(bits >> 64), half(bits)]
}
