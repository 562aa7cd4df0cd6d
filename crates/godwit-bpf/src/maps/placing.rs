//! `gw_placings`, `gw_mates` and what rules are made of: by which server each request of
//! a share is best served (`gw_rules.h`).

use std::sync::Arc;

use godwit_wire::{MacAddr, ShareId};
use libbpf_rs::MapHandle;

use super::paths::PathTable;
use super::slots::Slots;
use super::{MapError, TypedMap};
use crate::skel::types;
use crate::skel::types::gw_mate_state as State;
use crate::skel::types::gw_placing_flags as Flags;

const _: () = assert!(size_of::<types::gw_placing>() == 8);
const _: () = assert!(size_of::<types::gw_mate>() == 8);
const _: () = assert!(size_of::<types::gw_prefix_key>() == 64);
const _: () = assert!(size_of::<types::gw_suffix_key>() == 24);

/// Servers that rules can name: their numbers are below this.
pub const MAX_PLACED_NODES: u16 = 64;
/// Bytes of a path that a prefix can have.
pub const MAX_RULE_PREFIX: usize = 48;
/// Bytes of a suffix, without its dot.
pub const MAX_RULE_SUFFIX: usize = 12;

/// With a server's number: the key of its own address.
const ITSELF: u32 = types::gw_mate_place::GW_MATE_ITSELF.0;

/// Which paths a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RulePath {
    /// Those that begin so; the longest one counts. Empty: all.
    Prefix(String),
    /// Those whose last part ends in a dot and this.
    Suffix(String),
}

/// Where requests of one kind are served best.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacingRule {
    /// Of one host only, without port; its case is of no account.
    pub host: Option<String>,
    /// Of these paths.
    pub path: RulePath,
    /// Servers by the numbers of their names; several share the paths.
    pub nodes: Vec<u32>,
}

/// Whether another server is to be asked for a share's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mate {
    /// It is.
    Open(MacAddr),
    /// Not now; what it has stays there.
    Closed(MacAddr),
    /// Not now: no probe has come back from it (`gw_path.h`).
    Unproved(MacAddr),
    /// It is without power: what it has is lost, what it was asked for is not.
    Dead(MacAddr),
    /// Not now; what it had another one has taken over.
    TakenOver {
        /// Where it is on the link.
        own: MacAddr,
        /// Where that one is.
        by: MacAddr,
    },
}

impl Mate {
    /// Where it is on the link.
    pub const fn mac(self) -> MacAddr {
        match self {
            Self::Open(mac) | Self::Closed(mac) | Self::Unproved(mac) | Self::Dead(mac) => mac,
            Self::TakenOver { own, .. } => own,
        }
    }
}

/// Typed access to what the data path knows of placing requests.
#[derive(Debug)]
pub struct PlacingTable {
    placings: TypedMap<u32, types::gw_placing>,
    mates: TypedMap<types::gw_mate_key, types::gw_mate>,
    macs: TypedMap<types::gw_mate_mac, u32>,
    paths: PathTable,
    prefixes: TypedMap<types::gw_prefix_key, types::gw_rule>,
    suffixes: TypedMap<types::gw_suffix_key, types::gw_rule>,
    shares: Arc<Slots>,
    nodes: Arc<Slots>,
}

/// The maps of a [`PlacingTable`].
pub(crate) struct PlacingMaps {
    pub(crate) placings: MapHandle,
    pub(crate) mates: MapHandle,
    pub(crate) macs: MapHandle,
    pub(crate) paths: MapHandle,
    pub(crate) paths_asked: MapHandle,
    pub(crate) prefixes: MapHandle,
    pub(crate) suffixes: MapHandle,
}

impl PlacingTable {
    pub(crate) fn new(maps: PlacingMaps, shares: Arc<Slots>, nodes: Arc<Slots>) -> Self {
        Self {
            placings: TypedMap::new(maps.placings, "gw_placings"),
            mates: TypedMap::new(maps.mates, "gw_mates"),
            macs: TypedMap::new(maps.macs, "gw_mate_macs"),
            paths: PathTable::new(maps.paths, maps.paths_asked),
            prefixes: TypedMap::new(maps.prefixes, "gw_prefixes"),
            suffixes: TypedMap::new(maps.suffixes, "gw_suffixes"),
            shares,
            nodes,
        }
    }

    /// From here on a share's requests are placed by these rules: `own` is this node, and
    /// `members` are all servers of the share; or they stay (`None`). Of two rules about the
    /// same paths the later one counts. Nodes are told by the numbers of their names.
    ///
    /// # Errors
    /// Fails if the kernel refuses a change.
    pub fn set(
        &self,
        share: ShareId,
        own: Option<u32>,
        members: &[u32],
        rules: &[PlacingRule],
    ) -> Result<(), MapError> {
        let slot = self.shares.of(share)?;
        let mut prefixes = Vec::new();
        let mut suffixes = Vec::new();
        for rule in rules {
            let value = types::gw_rule {
                nodes: self.bits(&rule.nodes),
            };
            match &rule.path {
                RulePath::Prefix(path) => {
                    prefixes.push((prefix(slot, rule.host.as_deref(), path), value));
                }
                RulePath::Suffix(suffix) => {
                    suffixes.push((suffix_key(slot, rule.host.as_deref(), suffix), value));
                }
            }
        }
        for (key, value) in &prefixes {
            self.prefixes.update(key, value)?;
        }
        for (key, value) in &suffixes {
            self.suffixes.update(key, value)?;
        }
        let own = own.and_then(|own| self.number(own));
        let numbers = members.iter().filter_map(|node| self.number(*node));
        let raw = types::gw_placing {
            flags: own.map_or(0, |_| flags(rules)),
            node: own.unwrap_or_default(),
            nodes: numbers.max().map_or(0, |most| most + 1),
        };
        self.placings.update(&slot, &raw)?;
        for key in self.prefixes.keys()? {
            let is_kept = prefixes.iter().any(|(kept, _)| is_same(kept, &key));
            if key.share == slot && !is_kept {
                self.prefixes.delete(&key)?;
            }
        }
        for key in self.suffixes.keys()? {
            let of = |key: &types::gw_suffix_key| (key.host, key.suffix);
            let is_kept = suffixes.iter().any(|(kept, _)| of(kept) == of(&key));
            if key.share == slot && !is_kept {
                self.suffixes.delete(&key)?;
            }
        }
        Ok(())
    }

    /// What is known of another server of a share. Its address on the link is one from
    /// which connections may be offered, until [`PlacingTable::forget`].
    ///
    /// # Errors
    /// Fails if the kernel refuses a change.
    pub fn set_mate(&self, share: ShareId, node: u32, mate: Mate) -> Result<(), MapError> {
        let (slot, Some(node)) = (self.shares.of(share)?, self.number(node)) else {
            return Ok(());
        };
        let (mac, state) = match mate {
            Mate::Closed(mac) => (mac, State::GW_MATE_CLOSED),
            Mate::Open(mac) => (mac, State::GW_MATE_OPEN),
            Mate::Unproved(mac) => (mac, State::GW_MATE_UNPROVED),
            Mate::Dead(mac) => (mac, State::GW_MATE_DEAD),
            Mate::TakenOver { by, .. } => (by, State::GW_MATE_CLOSED),
        };
        let pad = 0;
        let own = mate.mac().0;
        let by_mac = types::gw_mate_mac { mac: own, pad };
        self.macs.update(&by_mac, &u32::from(node))?;
        let key = types::gw_mate_key {
            share: slot,
            node: node.into(),
        };
        let state = u16::try_from(state.0).unwrap_or(0);
        // Before anybody is sent to who has taken over: a director is told whose it was.
        let itself = types::gw_mate_key {
            node: key.node | ITSELF,
            ..key
        };
        if let Mate::TakenOver { own, .. } = mate {
            let mac = own.0;
            self.mates.update(&itself, &types::gw_mate { mac, state })?;
        }
        self.mates
            .update(&key, &types::gw_mate { mac: mac.0, state })?;
        let is_taken_over = matches!(mate, Mate::TakenOver { .. });
        if is_taken_over || self.mates.lookup(&itself)?.is_none() {
            return Ok(());
        }
        self.mates.delete(&itself)
    }

    /// The number of the last probe that a server has sent back, and 0 if none has been.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn heard(&self, mac: MacAddr) -> Result<u32, MapError> {
        self.paths.heard(mac)
    }

    /// The answer to the probe of that number is waited for, and no other one's.
    ///
    /// # Errors
    /// Fails if the kernel does not take it.
    pub fn expect(&self, mac: MacAddr, number: u32) -> Result<(), MapError> {
        self.paths.expect(mac, number)
    }

    /// Forgets servers of a share that are none of these, by the numbers of their names.
    ///
    /// # Errors
    /// Fails if the kernel refuses a change.
    pub fn forget_mates(&self, share: ShareId, but: &[u32]) -> Result<(), MapError> {
        let slot = self.shares.of(share)?;
        let but: Vec<_> = but.iter().filter_map(|node| self.number(*node)).collect();
        for key in self.mates.keys()? {
            let is_kept = u16::try_from(key.node & !ITSELF).is_ok_and(|node| but.contains(&node));
            if key.share == slot && !is_kept {
                self.mates.delete(&key)?;
            }
        }
        Ok(())
    }

    /// Forgets addresses on the link that are none of these.
    ///
    /// # Errors
    /// Fails if the kernel refuses a change.
    pub fn forget(&self, but: &[MacAddr]) -> Result<(), MapError> {
        for key in self.macs.keys()? {
            if !but.contains(&MacAddr(key.mac)) {
                self.macs.delete(&key)?;
            }
        }
        Ok(())
    }

    /// How the data path calls a node; `None`: it has no place for it.
    fn number(&self, node: u32) -> Option<u16> {
        u16::try_from(self.nodes.slot_of(node)?).ok()
    }

    fn bits(&self, nodes: &[u32]) -> u64 {
        let numbers = nodes.iter().filter_map(|node| self.number(*node));
        numbers.fold(0, |bits, number| bits | 1 << number)
    }
}

fn flags(rules: &[PlacingRule]) -> u32 {
    let is_suffix = |rule: &PlacingRule| matches!(rule.path, RulePath::Suffix(_));
    let mut flags = Flags::GW_PLACING_ON.0;
    if rules.iter().any(|rule| rule.host.is_some()) {
        flags |= Flags::GW_PLACING_HOSTS.0;
    }
    if rules.iter().any(is_suffix) {
        flags |= Flags::GW_PLACING_SUFFIXES.0;
    }
    flags
}

/// FNV-1a, as `gw_fnv`, of a host in lower case; 0: any.
fn host_hash(host: Option<&str>) -> u64 {
    host.map_or(0, |host| {
        host.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3)
        })
    })
}

fn prefix(share: u32, host: Option<&str>, path: &str) -> types::gw_prefix_key {
    let mut raw = [0; MAX_RULE_PREFIX];
    let len = path.len().min(MAX_RULE_PREFIX);
    raw[..len].copy_from_slice(&path.as_bytes()[..len]);
    let bytes = size_of::<u32>() + size_of::<u64>() + len;
    types::gw_prefix_key {
        prefixlen: u32::try_from(bytes * 8).unwrap_or(u32::MAX),
        share,
        host: host_hash(host),
        path: raw,
    }
}

fn suffix_key(share: u32, host: Option<&str>, suffix: &str) -> types::gw_suffix_key {
    let mut raw = [0; MAX_RULE_SUFFIX];
    let len = suffix.len().min(MAX_RULE_SUFFIX);
    raw[..len].copy_from_slice(&suffix.as_bytes()[..len]);
    types::gw_suffix_key {
        host: host_hash(host),
        share,
        suffix: raw,
    }
}

fn is_same(a: &types::gw_prefix_key, b: &types::gw_prefix_key) -> bool {
    let of = |key: &types::gw_prefix_key| (key.prefixlen, key.share, key.host, key.path);
    of(a) == of(b)
}
