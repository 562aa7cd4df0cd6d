//! `gw_share_ids` and `gw_node_ids`: which name has which place in maps that are arrays.
//!
//! A share or a node has a number that is made of its name (`godwit_wire`), too large for
//! the index of an array. The data path knows it by a *slot*, which it keeps for as long
//! as anything in the maps refers to it, whatever becomes of the file. The table is pinned
//! with the others, and nothing above this crate ever sees a slot.

use std::sync::{PoisonError, RwLock};

use godwit_wire::ShareId;
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};

/// What a slot says that nobody has.
const FREE: u32 = 0;

/// Slots by the numbers of names.
#[derive(Debug)]
pub struct Slots {
    map: TypedMap<u32, u32>,
    /// A copy of the map: only this process writes there.
    ids: RwLock<Vec<u32>>,
}

impl Slots {
    pub(crate) fn new(handle: MapHandle, name: &'static str) -> Result<Self, MapError> {
        let map = TypedMap::<u32, u32>::new(handle, name);
        let mut ids = Vec::new();
        for slot in map.keys()? {
            ids.push(map.lookup(&slot)?.unwrap_or(FREE));
        }
        Ok(Self {
            map,
            ids: RwLock::new(ids),
        })
    }

    /// Whether no slot is taken: as in maps of version 0.1, which has no such table.
    pub fn are_unnamed(&self) -> bool {
        self.read().iter().all(|id| *id == FREE)
    }

    /// Every number that has a slot.
    pub fn all(&self) -> Vec<u32> {
        let ids = self.read();
        ids.iter().copied().filter(|id| *id != FREE).collect()
    }

    /// The slot of a number, if it has one.
    pub fn slot_of(&self, id: u32) -> Option<u32> {
        let slot = self.read().iter().position(|it| *it == id && id != FREE);
        slot.and_then(|slot| u32::try_from(slot).ok())
    }

    /// Whose slot this is; 0: nobody's.
    pub(crate) fn id_at(&self, slot: u32) -> u32 {
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        self.read().get(slot).copied().unwrap_or(FREE)
    }

    /// Gives a number the first free slot, unless it has one. `None`: all are taken.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn take(&self, id: u32) -> Result<Option<u32>, MapError> {
        if let Some(slot) = self.slot_of(id) {
            return Ok(Some(slot));
        }
        let free = self.read().iter().position(|it| *it == FREE);
        let Some(slot) = free.and_then(|slot| u32::try_from(slot).ok()) else {
            return Ok(None);
        };
        self.put(slot, id)?;
        Ok(Some(slot))
    }

    /// Gives a number this slot, whoever has it.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn put(&self, slot: u32, id: u32) -> Result<(), MapError> {
        self.map.update(&slot, &id)?;
        let at = usize::try_from(slot).unwrap_or(usize::MAX);
        let mut ids = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = ids.get_mut(at) {
            *place = id;
        }
        Ok(())
    }

    /// Takes the slot from a number: nothing in the maps may refer to it any more.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn free(&self, id: u32) -> Result<(), MapError> {
        match self.slot_of(id) {
            Some(slot) => self.put(slot, FREE),
            None => Ok(()),
        }
    }

    /// The slot of a share.
    ///
    /// # Errors
    /// If it has none.
    pub(crate) fn of(&self, share: ShareId) -> Result<u32, MapError> {
        let none = || self.map.error("find the share in", no_entry());
        self.slot_of(share.0).ok_or_else(none)
    }

    /// Whose slot this is: of no share, if it is free.
    pub(crate) fn share_at(&self, slot: u32) -> ShareId {
        ShareId(self.id_at(slot))
    }

    fn read(&self) -> impl std::ops::Deref<Target = Vec<u32>> {
        self.ids.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_entry() -> libbpf_rs::Error {
    std::io::Error::from_raw_os_error(libc::ENOENT).into()
}
