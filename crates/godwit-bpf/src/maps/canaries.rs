//! `gw_canaries` and what belongs to it: proof that twins can be born at a standby
//! (`gw_canary.h`).

use godwit_wire::MacAddr;
use libbpf_rs::MapHandle;

use super::shares::Keepers;
use super::{MapError, TypedMap};
use crate::skel::types;

const _: () = assert!(size_of::<types::gw_canary>() == 24);
const _: () = assert!(size_of::<types::gw_canary_answer>() == 8);
const _: () = assert!(size_of::<types::gw_canary_home>() == 4);

/// How many paths can be asked about at a time (`GW_CANARY_SLOTS`).
pub const CANARY_SLOTS: u32 = 1024;

/// Canaries come from ports below this (`GW_CANARY_PORTS`).
pub const CANARY_PORTS: u16 = 256;

/// TSecr of every canary (`GW_CANARY_MAGIC`).
pub const CANARY_MAGIC: u32 = 0x6777_4341;

/// How many of the latest nonces of a slot are answered for.
pub const CANARY_NONCES: usize = 4;

/// The latest nonces of one slot that came back; 0: none did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CanaryAnswer {
    /// The standby's tap had it.
    pub heard: u32,
    /// Its kernel made a socket of it.
    pub born: u32,
}

/// Typed access to the maps of canaries. They are this agent's own: the next one begins
/// anew.
#[derive(Debug)]
pub struct CanaryTable {
    asked: TypedMap<u32, types::gw_canary>,
    answers: TypedMap<u32, types::gw_canary_answer>,
    homes: TypedMap<u32, types::gw_canary_home>,
    peers: TypedMap<types::gw_canary_peer, u32>,
}

impl CanaryTable {
    pub(crate) fn new(
        asked: MapHandle,
        answers: MapHandle,
        homes: MapHandle,
        peers: MapHandle,
    ) -> Self {
        Self {
            asked: TypedMap::new(asked, "gw_canaries"),
            answers: TypedMap::new(answers, "gw_canary_answers"),
            homes: TypedMap::new(homes, "gw_canary_homes"),
            peers: TypedMap::new(peers, "gw_canary_peers"),
        }
    }

    /// Where sockets of other nodes' canaries are born: ports on the loopback.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn set_home(&self, ports: Keepers) -> Result<(), MapError> {
        let home = types::gw_canary_home {
            v4: ports.v4,
            v6: ports.v6,
        };
        self.homes.update(&0, &home)
    }

    /// A MAC address that canaries may come from.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn know_peer(&self, mac: MacAddr) -> Result<(), MapError> {
        let mut key = types::gw_canary_peer { mac: [0; 8] };
        key.mac
            .iter_mut()
            .zip(mac.0)
            .for_each(|(to, from)| *to = from);
        self.peers.update(&key, &1)
    }

    /// From here on answers of `mac` to these nonces, the latest first, are booked.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn ask(
        &self,
        slot: u32,
        mac: MacAddr,
        nonces: [u32; CANARY_NONCES],
    ) -> Result<(), MapError> {
        let raw = types::gw_canary {
            nonces,
            mac: mac.0,
            pad: 0,
        };
        self.asked.update(&slot, &raw)
    }

    /// What has come back.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn answer(&self, slot: u32) -> Result<CanaryAnswer, MapError> {
        let raw = self.answers.lookup(&slot)?;
        Ok(raw.map_or_else(CanaryAnswer::default, |raw| CanaryAnswer {
            heard: raw.heard,
            born: raw.born,
        }))
    }
}
