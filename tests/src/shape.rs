//! Pinned maps: what is in them, and as an agent of another version would have pinned them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, libbpf_sys};

/// All values of a pinned map, in the order of its keys.
///
/// # Errors
/// If the map is not pinned below that folder, or the kernel refuses to read it.
pub fn values(pins: &Path, name: &str) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let path = pins.join("maps").join(name);
    let pinned = MapHandle::from_pinned_path(&path).context("opening a pinned map")?;
    let value = |key: Vec<u8>| {
        let value = pinned.lookup(&key, MapFlags::ANY)?;
        Ok(value.map(|value| (key, value)))
    };
    pinned
        .keys()
        .filter_map(|key| value(key).transpose())
        .collect()
}

/// How much longer values are in the other version.
const LONGER: usize = 8;

/// Pins, in the place of a map, one with the same keys and longer values: the
/// programs that are attached keep theirs.
///
/// # Errors
/// If the map is not pinned below that folder, or the kernel refuses another.
pub fn change_shape(pins: &Path, name: &str) -> Result<()> {
    let path = pins.join("maps").join(name);
    let pinned = MapHandle::from_pinned_path(&path).context("opening a pinned map")?;
    let info = pinned.info().context("asking the kernel for it")?.info;
    let value_size = pinned.value_size() as usize + LONGER;
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        map_flags: info.map_flags,
        ..libbpf_sys::bpf_map_create_opts::default()
    };
    let mut other = MapHandle::create(
        pinned.map_type(),
        Some(name),
        info.key_size,
        u32::try_from(value_size)?,
        info.max_entries,
        &options,
    )
    .context("making another map")?;
    if pinned.map_type() == MapType::Hash {
        for key in pinned.keys() {
            other.update(&key, &vec![0; value_size], MapFlags::ANY)?;
        }
    }
    fs::remove_file(&path).context("unpinning a map")?;
    other.pin(&path).context("pinning a map")
}
