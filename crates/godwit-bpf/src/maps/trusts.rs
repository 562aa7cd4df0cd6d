//! `gw_trusts`: the keys by which frames of other servers are proved (`gw_tag.h`).

use std::fmt;

use godwit_wire::{MacAddr, TagDemand};
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::skel::types;
use crate::skel::types::gw_trust_flags as Flags;

const _: () = assert!(size_of::<types::gw_trust>() == 56);

/// What tags are made with.
pub type TagKey = [u8; 16];

/// How frames of, and to, another server are proved.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Trust {
    /// The number of its name.
    pub node: u32,
    /// What it is sent has tags of this.
    pub out: Option<TagKey>,
    /// What it sends may have tags of this ...
    pub believed: Option<TagKey>,
    /// ... or of this.
    pub before: Option<TagKey>,
    /// Notes, probes and canaries for it have tags, too.
    pub all: bool,
    /// What it sends without a tag, and is not of it.
    pub demanded: TagDemand,
    /// It may not have heard of the key that is believed first. For the next agent.
    pub pending: bool,
}

/// Keys are secrets, so they are not printed.
impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust")
            .field("node", &self.node)
            .field("demanded", &self.demanded)
            .finish_non_exhaustive()
    }
}

/// Typed access to them, by where the other server is on the link.
#[derive(Debug)]
pub struct TrustTable(TypedMap<types::gw_mate_mac, types::gw_trust>);

impl TrustTable {
    pub(crate) fn new(map: MapHandle) -> Self {
        Self(TypedMap::new(map, "gw_trusts"))
    }

    /// From here on the frames of the server with that address are proved so.
    ///
    /// # Errors
    /// Fails if the kernel does not take it.
    pub fn set(&self, mac: MacAddr, trust: &Trust) -> Result<(), MapError> {
        self.0.update(&key_of(mac), &trust.into())
    }

    /// Nothing is known of that address any more.
    ///
    /// # Errors
    /// Fails if the kernel does not do it.
    pub fn forget(&self, mac: MacAddr) -> Result<(), MapError> {
        match self.0.lookup(&key_of(mac))? {
            Some(_) => self.0.delete(&key_of(mac)),
            None => Ok(()),
        }
    }

    /// What an earlier agent has left.
    ///
    /// # Errors
    /// Fails if the kernel does not give it.
    pub fn all(&self) -> Result<Vec<(MacAddr, Trust)>, MapError> {
        let mut all = Vec::new();
        for key in self.0.keys()? {
            let raw = self.0.lookup(&key)?;
            all.extend(raw.map(|raw| (MacAddr(key.mac), Trust::from(&raw))));
        }
        Ok(all)
    }
}

fn key_of(mac: MacAddr) -> types::gw_mate_mac {
    types::gw_mate_mac { mac: mac.0, pad: 0 }
}

/// The words of a key, as the programs have it.
fn words(key: Option<TagKey>) -> [u64; 2] {
    let number = u128::from_be_bytes(key.unwrap_or_default());
    let [high, low] = [(number >> 64), number & u128::from(u64::MAX)];
    [high, low].map(|word| u64::try_from(word).unwrap_or_default())
}

fn key([high, low]: [u64; 2]) -> TagKey {
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

impl From<&Trust> for types::gw_trust {
    fn from(trust: &Trust) -> Self {
        let flags = [
            (trust.out.is_some(), Flags::GW_TRUST_OUT),
            (trust.believed.is_some(), Flags::GW_TRUST_IN),
            (trust.before.is_some(), Flags::GW_TRUST_BEFORE),
            (
                trust.demanded != TagDemand::Nothing,
                Flags::GW_TRUST_DEMANDED,
            ),
            (trust.all, Flags::GW_TRUST_ALL),
            (
                trust.demanded == TagDemand::All,
                Flags::GW_TRUST_ALL_DEMANDED,
            ),
            (trust.pending, Flags::GW_TRUST_PENDING),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        Self {
            out: words(trust.out),
            believed: [trust.believed, trust.before].map(words),
            node: trust.node,
            flags: flags.fold(0, |all, (_, flag)| all | flag.0),
        }
    }
}

impl From<&types::gw_trust> for Trust {
    fn from(raw: &types::gw_trust) -> Self {
        let has = |flag: Flags| raw.flags & flag.0 != 0;
        Self {
            node: raw.node,
            out: has(Flags::GW_TRUST_OUT).then(|| key(raw.out)),
            believed: has(Flags::GW_TRUST_IN).then(|| key(raw.believed[0])),
            before: has(Flags::GW_TRUST_BEFORE).then(|| key(raw.believed[1])),
            all: has(Flags::GW_TRUST_ALL),
            demanded: match Flags::GW_TRUST_ALL_DEMANDED {
                all if has(all) => TagDemand::All,
                _ if has(Flags::GW_TRUST_DEMANDED) => TagDemand::Segments,
                _ => TagDemand::Nothing,
            },
            pending: has(Flags::GW_TRUST_PENDING),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let trust = Trust {
            node: 7,
            out: Some([1; 16]),
            believed: Some(*b"0123456789abcdef"),
            before: None,
            all: true,
            demanded: TagDemand::Segments,
            pending: true,
        };
        let raw = types::gw_trust::from(&trust);
        assert_eq!(raw.believed[0][0], u64::from_be_bytes(*b"01234567"));
        assert_eq!(Trust::from(&raw), trust);
        assert!(!format!("{trust:?}").contains("0123"), "keys are secrets");
    }
}
