//! A whole hash map in few system calls (`BPF_MAP_LOOKUP_BATCH`).
//!
//! The kernel copies whole buckets, so a batch that is not full says nothing
//! about the end of the map: only ENOENT does. libbpf-rs takes a short batch
//! for the last one and would miss entries, so the calls are made here.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr;

use libbpf_rs::MapHandle;
use libbpf_rs::libbpf_sys::{bpf_map_batch_opts, bpf_map_get_next_key, bpf_map_lookup_batch};

use crate::convert::Plain;

/// Entries per call; more are asked for if a bucket alone holds more.
const BATCH: usize = 1024;

/// Position in a hash map: a bucket number.
type Position = u32;

/// A look at a whole map in steps, between which others may use the thread. Entries that come or
/// go meanwhile may be missed or seen; all others are seen once.
#[derive(Debug)]
pub struct Scan {
    room: usize,
    position: Option<Position>,
}

impl Default for Scan {
    fn default() -> Self {
        Self {
            room: BATCH,
            position: None,
        }
    }
}

impl Scan {
    /// Calls `each` for the next entries, some thousand; whether these were the last ones. The
    /// next step then begins anew.
    ///
    /// # Errors
    /// If the kernel refuses; the next step begins anew.
    pub(super) fn step<K: Plain, V: Plain>(
        &mut self,
        map: &MapHandle,
        mut each: impl FnMut(K, V),
    ) -> io::Result<bool> {
        let position = self.position.take();
        let (mut keys, mut values) = (Vec::<K>::new(), Vec::<V>::new());
        let (count, next, last) = loop {
            keys.reserve(self.room);
            values.reserve(self.room);
            match batch(map, position, &mut keys, &mut values, self.room) {
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => self.room *= 2,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome?,
            }
        };
        // SAFETY: the kernel has written `count` keys and values, at most `room`.
        unsafe { keys.set_len(count) };
        // SAFETY: as above.
        unsafe { values.set_len(count) };
        for (key, value) in keys.into_iter().zip(values) {
            each(key, value);
        }
        self.position = (!last).then_some(next);
        Ok(last)
    }
}

/// Calls `each` for every entry. Entries that come or go meanwhile may be
/// missed or seen; all others are seen once.
///
/// # Errors
/// If the kernel refuses; what came before was passed to `each`.
pub(super) fn for_each<K: Plain, V: Plain>(
    map: &MapHandle,
    mut each: impl FnMut(K, V),
) -> io::Result<()> {
    let mut scan = Scan::default();
    while !scan.step(map, &mut each)? {}
    Ok(())
}

/// Every key of a map of any type, or `most` of them. libbpf-rs takes each error for the end,
/// and so a map that may not be read for an empty one: only ENOENT is the end.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn keys<K: Plain>(map: &MapHandle, most: usize) -> io::Result<Vec<K>> {
    let fd = map.as_fd().as_raw_fd();
    let mut keys = Vec::new();
    while keys.len() < most {
        let last = keys.last().map_or(ptr::null(), ptr::from_ref::<K>);
        let mut next = MaybeUninit::<K>::uninit();
        // SAFETY: `last` is null or a key, and `next` has room for one.
        let refused =
            unsafe { bpf_map_get_next_key(fd, last.cast(), next.as_mut_ptr().cast()) } != 0;
        match refused.then(io::Error::last_os_error) {
            // SAFETY: the kernel has written it.
            None => keys.push(unsafe { next.assume_init() }),
            Some(end) if end.raw_os_error() == Some(libc::ENOENT) => return Ok(keys),
            Some(error) => return Err(error),
        }
    }
    Ok(keys)
}

/// One call: how many entries were written, where to go on, and whether that
/// was the end. `keys` and `values` are empty and have `room`.
fn batch<K: Plain, V: Plain>(
    map: &MapHandle,
    mut position: Option<Position>,
    keys: &mut Vec<K>,
    values: &mut Vec<V>,
    room: usize,
) -> io::Result<(usize, Position, bool)> {
    let options = bpf_map_batch_opts {
        sz: size_of::<bpf_map_batch_opts>() as u64,
        ..bpf_map_batch_opts::default()
    };
    let mut next: Position = 0;
    let mut count = u32::try_from(room).unwrap_or(u32::MAX);
    let from = position.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: the pointers are to positions and to `room` entries of the map's
    // own layouts, and outlive the call.
    let err = unsafe {
        bpf_map_lookup_batch(
            map.as_fd().as_raw_fd(),
            from.cast(),
            ptr::from_mut(&mut next).cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &raw mut count,
            &raw const options,
        )
    };
    let last = match err {
        0 => false,
        _ => match io::Error::last_os_error() {
            end if end.raw_os_error() == Some(libc::ENOENT) => true,
            error => return Err(error),
        },
    };
    Ok((count as usize, next, last))
}
