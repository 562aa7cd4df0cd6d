//! `gw_shares`: who this node is for each share. A takeover is one write here.

use std::sync::Arc;
use std::time::Duration;

use godwit_wire::{Epoch, Generation, MacAddr, Role, ShareId};
use libbpf_rs::MapHandle;

use super::fences::{Expiry, Fences};
use super::log::LogMode;
use super::slots::Slots;
use super::{MapError, TypedMap};
use crate::skel::types;

const _: () = assert!(size_of::<types::gw_share>() == 72);

/// What the data path knows of one share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareEntry {
    /// Who this node is.
    pub role: Role,
    /// Under which this role holds.
    pub epoch: Epoch,
    /// Owner: of the standby that is in sync; none: nobody protects new flows.
    pub generation: Generation,
    /// Where mirrored segments go and where a twin's ACKs come from.
    pub peer_mac: MacAddr,
    /// Group address of a multicast tap; none: the owner mirrors.
    pub group: Option<MacAddr>,
    /// Bytes that a twin's application may lag behind the client.
    pub leash: u32,
    /// Longest time that a let-out ACK may trail the owner's own.
    pub lag_limit: Duration,
    /// Whether ACKs wait for the twin.
    pub gate: bool,
    /// How often this node has taken the share over.
    pub takeovers: u32,
    /// How often this node has become owner or shadow of the other's place:
    /// flows follow when it changes. Wraps.
    pub turn: u16,
    /// Owner: until when it may speak.
    pub expiry: Expiry,
    /// Where the log of a flow's input begins.
    pub log_mode: LogMode,
    /// The longest log of a flow, in bytes.
    pub log_cap: u32,
    /// Whether its connections go to other servers one by one.
    pub moves: Moves,
    /// Who gives it its connections.
    pub front: Front,
    /// Owner: the generation whose twins it goes on with since it took the share over, or
    /// was handed it.
    pub continued: Generation,
    /// Shadow: where twins are kept that nobody serves yet.
    pub keepers: Keepers,
}

/// Loopback ports of the listeners that get the twins of a share, in place of its
/// servers: of 127.0.0.1 and of ::1; 0: the servers have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keepers {
    /// For clients with IPv4.
    pub v4: u16,
    /// For clients with IPv6.
    pub v6: u16,
}

/// Whether the connections of a share go to other servers one by one (ADR 17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    /// Together, or not at all.
    Not,
    /// Yes, and new ones come here.
    Home,
    /// Yes, and new ones come to another server.
    Guest,
}

impl Moves {
    const fn number(self) -> u32 {
        match self {
            Self::Not => types::gw_moves::GW_MOVES_NOT.0,
            Self::Home => types::gw_moves::GW_MOVES_HOME.0,
            Self::Guest => types::gw_moves::GW_MOVES_GUEST.0,
        }
    }

    const fn from_number(number: u32) -> Self {
        match types::gw_moves(number) {
            types::gw_moves::GW_MOVES_HOME => Self::Home,
            types::gw_moves::GW_MOVES_GUEST => Self::Guest,
            _ => Self::Not,
        }
    }
}

/// Who stands before the servers of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Nobody: its owner answers for its addresses on the link.
    Nobody,
    /// Who learns nothing: none of its servers answers for them.
    Deaf,
    /// A director, which is told where a connection has gone.
    Told,
}

impl Front {
    const fn number(self) -> u32 {
        let (told, there) = (
            types::gw_front::GW_FRONT_TOLD,
            types::gw_front::GW_FRONT_THERE,
        );
        match self {
            Self::Nobody => 0,
            Self::Deaf => there.0,
            Self::Told => told.0 | there.0,
        }
    }

    /// An agent of 0.1 has written 1 where there is one that is told.
    const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Nobody,
            it if it & types::gw_front::GW_FRONT_TOLD.0 != 0 => Self::Told,
            _ => Self::Deaf,
        }
    }
}

/// Typed access to `gw_shares` and `gw_fences`.
#[derive(Debug)]
pub struct ShareTable {
    entries: TypedMap<u32, types::gw_share>,
    slots: Arc<Slots>,
    fences: Fences,
}

impl ShareTable {
    pub(crate) fn new(handle: MapHandle, slots: Arc<Slots>, fences: Fences) -> Self {
        let entries = TypedMap::new(handle, "gw_shares");
        Self {
            entries,
            slots,
            fences,
        }
    }

    /// Moves the end of an owner's right to speak, and nothing else: one store.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn renew(&self, share: ShareId, expiry: Expiry) -> Result<(), MapError> {
        self.fences.expire(share, expiry)
    }

    /// For how long the flows of a server process that dies are kept silent, and
    /// with its last listener the share; zero: not at all. If the agent does not
    /// [`open`](Self::open) the share then, it opens by itself half as long
    /// again after that.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn hold(&self, share: ShareId, hold: Duration) -> Result<(), MapError> {
        self.fences.hold(share, hold)
    }

    /// Silences a share that this node owns, so that another node may serve it.
    /// It opens by itself as flows do, see [`hold`](Self::hold).
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn release(&self, share: ShareId) -> Result<(), MapError> {
        self.fences.release(share)
    }

    /// Ends that silence, and that of flows whose process has died.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn open(&self, share: ShareId) -> Result<(), MapError> {
        self.fences.open(share)
    }

    /// Writes the entry: an owner's expiry before its role, for a role never
    /// comes with the expiry of the one before; any other role before the
    /// expiry, which opens the fence. Whoever is stopped between the two writes
    /// leaves nobody who may speak. A segment on another CPU may see some fields
    /// old and some new; each field by itself is whole.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn set(&self, share: ShareId, entry: &ShareEntry) -> Result<(), MapError> {
        let slot = self.slots.of(share)?;
        let raw = types::gw_share {
            epoch: entry.epoch.0,
            lag_limit_ns: u64::try_from(entry.lag_limit.as_nanos()).unwrap_or(u64::MAX),
            role: u16::from(entry.role.number()),
            turn: entry.turn,
            generation: entry.generation.0,
            leash: entry.leash,
            gate: u32::from(entry.gate),
            takeovers: entry.takeovers,
            peer_mac: entry.peer_mac.0,
            service_mac: entry.group.unwrap_or(MacAddr::ZERO).0,
            log_cap: match entry.log_mode {
                LogMode::Off => 0,
                LogMode::Connection | LogMode::Request | LogMode::Latest => entry.log_cap,
            },
            log_mode: entry.log_mode.number(),
            moves: entry.moves.number(),
            continued: entry.continued.0,
            keep_v4: entry.keepers.v4,
            keep_v6: entry.keepers.v6,
            front: entry.front.number(),
        };
        if entry.role == Role::Owner {
            self.fences.expire(share, entry.expiry)?;
            return self.entries.update(&slot, &raw);
        }
        self.entries.update(&slot, &raw)?;
        self.fences.expire(share, entry.expiry)
    }

    /// Slots with a role that have no name: left by an agent of version 0.1.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn unnamed(&self) -> Result<Vec<u32>, MapError> {
        let mut found = Vec::new();
        for slot in self.entries.keys()? {
            let role = self.entries.lookup(&slot)?.map_or(0, |raw| raw.role);
            if role != 0 && self.slots.id_at(slot) == 0 {
                found.push(slot);
            }
        }
        Ok(found)
    }

    /// The entry that an earlier agent left, if it has a role.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn left_over(&self, share: ShareId) -> Result<Option<ShareEntry>, MapError> {
        let Some(slot) = self.slots.slot_of(share.0) else {
            return Ok(None);
        };
        let expiry = self.fences.expiry(share)?;
        Ok(self.entries.lookup(&slot)?.and_then(|raw| {
            let role = Role::try_from(u8::try_from(raw.role).ok()?).ok()?;
            let group = MacAddr(raw.service_mac);
            let entry = ShareEntry {
                role,
                epoch: Epoch(raw.epoch),
                generation: Generation(raw.generation),
                peer_mac: MacAddr(raw.peer_mac),
                group: (group != MacAddr::ZERO).then_some(group),
                leash: raw.leash,
                lag_limit: Duration::from_nanos(raw.lag_limit_ns),
                gate: raw.gate != 0,
                takeovers: raw.takeovers,
                turn: raw.turn,
                expiry,
                log_mode: LogMode::from_number(raw.log_mode),
                log_cap: raw.log_cap,
                moves: Moves::from_number(raw.moves),
                front: Front::from_number(raw.front),
                continued: Generation(raw.continued),
                // Those were the earlier agent's.
                keepers: Keepers::default(),
            };
            (role != Role::None).then_some(entry)
        }))
    }
}
