//! The maps, a type each: raw keys and values never leave their file.

pub(crate) mod canaries;
pub(crate) mod counters;
pub(crate) mod crowds;
pub(crate) mod fences;
pub(crate) mod flows;
pub(crate) mod half_open;
pub(crate) mod handoffs;
pub(crate) mod log;
pub(crate) mod newborns;
pub(crate) mod outputs;
pub(crate) mod paths;
pub(crate) mod placing;
pub(crate) mod questions;
pub(crate) mod scan;
pub(crate) mod services;
pub(crate) mod shares;
pub(crate) mod slots;
pub(crate) mod steering;
pub(crate) mod transfers;
pub(crate) mod trusts;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use thiserror::Error;

use self::scan::Scan;
use crate::convert::{Plain, bytes_of, value_of};

/// A map call that failed; the maps of the data path hold no optional state,
/// so this is a broken installation or exhausted memory.
#[derive(Debug, Error)]
#[error("can't {op} map {map}")]
pub struct MapError {
    op: &'static str,
    map: &'static str,
    #[source]
    source: libbpf_rs::Error,
}

impl MapError {
    pub(crate) const fn new(op: &'static str, map: &'static str, source: libbpf_rs::Error) -> Self {
        Self { op, map, source }
    }
}

/// A map with the types of its keys and values.
#[derive(Debug)]
pub(crate) struct TypedMap<K, V> {
    handle: MapHandle,
    name: &'static str,
    types: std::marker::PhantomData<fn(K) -> V>,
}

impl<K: Plain, V: Plain> TypedMap<K, V> {
    /// # Panics
    /// If the map has keys or values of another size: each call would read or write behind
    /// one.
    pub(crate) fn new(handle: MapHandle, name: &'static str) -> Self {
        let sizes = (handle.key_size() as usize, handle.value_size() as usize);
        let expected = (size_of::<K>(), size_of::<V>());
        assert_eq!(sizes, expected, "sizes of keys and values of {name}");
        Self {
            handle,
            name,
            types: std::marker::PhantomData,
        }
    }

    pub(crate) fn max_entries(&self) -> u32 {
        self.handle.max_entries()
    }

    pub(crate) fn lookup(&self, key: &K) -> Result<Option<V>, MapError> {
        let bytes = self
            .handle
            .lookup(bytes_of(key), MapFlags::ANY)
            .map_err(|source| self.error("read", source))?;
        Ok(bytes.and_then(|bytes| value_of(&bytes)))
    }

    pub(crate) fn update(&self, key: &K, value: &V) -> Result<(), MapError> {
        self.handle
            .update(bytes_of(key), bytes_of(value), MapFlags::ANY)
            .map_err(|source| self.error("write", source))
    }

    /// Writes many entries, each as a whole.
    pub(crate) fn update_all(&self, entries: &[(K, V)]) -> Result<(), MapError> {
        let Ok(count @ 1..) = u32::try_from(entries.len()) else {
            return Ok(());
        };
        let keys: Vec<u8> = entries
            .iter()
            .flat_map(|(key, _)| bytes_of(key))
            .copied()
            .collect();
        let values = entries.iter().flat_map(|(_, value)| bytes_of(value));
        let values: Vec<u8> = values.copied().collect();
        self.handle
            .update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
            .map_err(|source| self.error("write", source))
    }

    /// Every key, one call each. Those that come or go meanwhile may be missed or seen.
    pub(crate) fn keys(&self) -> Result<Vec<K>, MapError> {
        self.some_keys(usize::MAX)
    }

    /// At most so many keys.
    pub(crate) fn some_keys(&self, most: usize) -> Result<Vec<K>, MapError> {
        scan::keys(&self.handle, most).map_err(|source| self.error("read", source.into()))
    }

    pub(crate) fn delete(&self, key: &K) -> Result<(), MapError> {
        self.handle
            .delete(bytes_of(key))
            .map_err(|source| self.error("delete from", source))
    }

    /// Every entry. Those that come or go meanwhile may be missed or seen.
    pub(crate) fn for_each(&self, each: impl FnMut(K, V)) -> Result<(), MapError> {
        scan::for_each(&self.handle, each).map_err(|source| self.error("read", source.into()))
    }

    /// The next entries of a look in steps; whether these were the last ones.
    pub(crate) fn step(&self, scan: &mut Scan, each: impl FnMut(K, V)) -> Result<bool, MapError> {
        let stepped = scan.step(&self.handle, each);
        stepped.map_err(|source| self.error("read", source.into()))
    }

    fn error(&self, op: &'static str, source: libbpf_rs::Error) -> MapError {
        MapError::new(op, self.name, source)
    }
}

// SAFETY: an integer.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
