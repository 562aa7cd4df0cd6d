//! Numbers that stand for names: the same on every node, whatever the order of its file.
//!
//! Messages and maps have no room for names. A number is a hash of a name and of what the
//! name is for. Two names of one file can have the same number; the configuration check
//! refuses such a file. The function is frozen: nodes of all versions must agree.

use core::num::NonZeroU32;

use crate::{NodeName, ShareId};

/// No stable number is below this, so that none is taken for a place in a file, which is
/// what versions up to 0.1 have sent.
pub const FIRST_STABLE_ID: u32 = 1 << 16;

/// FNV-1a, 64 bits.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// What a name is for: the first byte of what is hashed.
const NODE: &[u8] = b"n";
const SERVICE: &[u8] = b"s";
const PAUSE: &[u8] = b"p";

/// The number of a node.
pub fn node_id(name: NodeName) -> NonZeroU32 {
    stable(&[NODE, name.as_str().as_bytes()])
}

impl ShareId {
    /// The share of a service that has one, by the name of the service.
    pub const fn of_service(service: &str) -> Self {
        Self(stable(&[SERVICE, service.as_bytes()]).get())
    }

    /// The share that one server has of a service that is divided among its servers.
    pub fn of_home(service: &str, home: NodeName) -> Self {
        let home = home.as_str().as_bytes();
        Self(stable(&[SERVICE, service.as_bytes(), home]).get())
    }

    /// What a heartbeat speaks of, beside a share itself, while all processes stand still that
    /// listen for the share on the sender. No service has it.
    pub const fn pause_of(self) -> Self {
        let number = self.0.to_be_bytes();
        Self(stable(&[PAUSE, &number]).get())
    }

    /// Whether this is the number of a name, and not a place in the file of a node of
    /// version 0.1.
    pub const fn is_stable(self) -> bool {
        self.0 >= FIRST_STABLE_ID
    }
}

/// Hashes parts with a zero byte after each, and folds the result to 32 bits.
const fn stable(parts: &[&[u8]]) -> NonZeroU32 {
    let (mut hash, mut part) = (OFFSET, 0);
    while part < parts.len() {
        let (bytes, mut at) = (parts[part], 0);
        while at < bytes.len() {
            hash = step(hash, bytes[at]);
            at += 1;
        }
        hash = step(hash, 0);
        part += 1;
    }
    let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
    let folded = u32::from_be_bytes([a ^ e, b ^ f, c ^ g, d ^ h]);
    // All ones is reserved, as is what is small.
    let id = match folded {
        ..FIRST_STABLE_ID => folded | FIRST_STABLE_ID,
        u32::MAX => u32::MAX - 1,
        _ => folded,
    };
    match NonZeroU32::new(id) {
        Some(id) => id,
        None => NonZeroU32::MIN,
    }
}

const fn step(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(PRIME)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::format;

    use super::*;

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    /// Frozen: another value would part a cluster of two versions.
    #[test]
    fn golden_numbers() {
        assert_eq!(node_id(node("a")).get(), 0x6747_840e);
        assert_eq!(node_id(node("db-1.example")).get(), 0x5532_74fe);
        assert_eq!(ShareId::of_service("web").0, 0xe269_eafa);
        assert_eq!(ShareId::of_service("web").pause_of().0, 0x7df9_f4f9);
        assert_eq!(ShareId::of_service("a").0, 0xf60a_a3a7);
        assert_eq!(ShareId::of_home("web", node("a")).0, 0xe4d6_66c6);
        assert_eq!(ShareId::of_home("web", node("b")).0, 0xe4d3_3d9d);
    }

    #[test]
    fn ten_thousand_names_have_ten_thousand_numbers() {
        let mut seen = BTreeSet::new();
        for number in 0..2500 {
            let name = format!("s{number}");
            assert!(seen.insert(node_id(node(&name)).get()), "node {name}");
            assert!(seen.insert(ShareId::of_service(&name).0), "{name}");
            for home in ["a", "b"] {
                let share = ShareId::of_home(&name, node(home));
                assert!(seen.insert(share.0), "{name}@{home}");
            }
        }
        assert!(seen.iter().all(|id| ShareId(*id).is_stable()));
    }

    #[test]
    fn where_a_name_ends_counts() {
        assert_ne!(
            ShareId::of_home("web", node("ab")),
            ShareId::of_home("weba", node("b"))
        );
        assert_ne!(
            ShareId::of_service("weba"),
            ShareId::of_home("web", node("a"))
        );
    }
}
