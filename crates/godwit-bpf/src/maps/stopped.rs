//! `gw_stopped`: server processes that were sent a signal that may stop them.

use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};

/// Typed access to `gw_stopped`. It outlives an agent.
#[derive(Debug)]
pub struct StoppedTable(TypedMap<u32, u64>);

impl StoppedTable {
    pub(crate) fn new(handle: MapHandle) -> Self {
        Self(TypedMap::new(handle, "gw_stopped"))
    }

    /// The numbers of those processes; some may have gone on, or be gone.
    ///
    /// # Errors
    /// If the kernel refuses to read the map.
    pub fn all(&self) -> Result<Vec<u32>, MapError> {
        self.0.keys()
    }

    /// It has gone on, or is gone.
    ///
    /// # Errors
    /// If the kernel refuses the write, or there is none.
    pub fn remove(&self, pid: u32) -> Result<(), MapError> {
        self.0.delete(&pid)
    }
}
