//! Files whose pages are in memory, and stay there.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd as _;
use std::ptr::NonNull;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

/// The first bytes of a file on tmpfs. As long as this lives, and where memory is locked
/// (mlockall(2), `MCL_FUTURE`), a write there waits for neither a disk nor swap.
///
/// Nothing is read or written by way of the mapping: a file that somebody shortens hurts
/// nobody.
#[derive(Debug)]
pub struct Pinned {
    start: NonNull<libc::c_void>,
    length: usize,
}

// SAFETY: nothing is accessed through the mapping; it is only taken away, once.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Makes room for `length` bytes, and keeps it in memory.
    ///
    /// # Errors
    /// `Unsupported` if the file is not on tmpfs; `StorageFull` if there is no room.
    pub fn new(file: &File, length: NonZeroUsize) -> io::Result<Self> {
        if !is_in_memory(file) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let bytes = length.get().try_into().map_err(io::Error::other)?;
        fallocate(file, FallocateFlags::empty(), 0, bytes)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a fresh mapping that nothing refers to.
        let start = unsafe { mmap(None, length, ProtFlags::PROT_READ, flags, file.as_fd(), 0)? };
        Ok(Self {
            start,
            length: length.get(),
        })
    }
}

/// Whether a file or folder is on tmpfs.
pub fn is_in_memory(file: &File) -> bool {
    fstatfs(file).is_ok_and(|it| it.filesystem_type() == TMPFS_MAGIC)
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which nothing refers.
        let unmapped = unsafe { munmap(self.start, self.length) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_file_in_memory_gets_its_room() {
        let file = memfd_create(c"pinned", MFdFlags::MFD_CLOEXEC).expect("a file");
        let file = File::from(file);
        let length = NonZeroUsize::new(12_000).expect("not zero");
        let pinned = Pinned::new(&file, length).expect("pinned");
        assert_eq!(file.metadata().expect("it is there").len(), 12_000);
        file.set_len(0).expect("shortened");
        drop(pinned);
    }

    #[test]
    fn a_file_on_disk_is_refused() {
        let file = File::open("/proc/self/status").expect("a file");
        let length = NonZeroUsize::new(1).expect("not zero");
        let refused = Pinned::new(&file, length).expect_err("refused");
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    }
}
