//! The memory that this process shares with its agent.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use godwit_wire::app::region::{CONNECTION_AT, Connection, Header, SLOT_LEN, SLOTS_AT, slot_at};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::unistd::ftruncate;

/// A file in memory, as long as this process lives, and mapped. Pages that were
/// never written take no memory. A child process does not have the mapping.
#[derive(Debug)]
pub(crate) struct Region {
    file: OwnedFd,
    start: NonNull<u8>,
    length: usize,
    slots: u32,
}

// SAFETY: the mapping belongs to no thread; who may write where is said at the
// methods.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A region with so many slots and at least so many bytes for snapshots.
    ///
    /// # Errors
    /// If the kernel has no memfd (3.17), or the address space is limited.
    pub(crate) fn new(slots: u32, snapshots: u64) -> io::Result<Self> {
        let length = slot_at(slots) + snapshots;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"godwit", flags)?;
        ftruncate(&file, length.try_into().map_err(io::Error::other)?)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let size = usize::try_from(length).ok().and_then(NonZeroUsize::new);
        let size = size.ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
        // SAFETY: a fresh mapping that nothing else refers to, of a file that
        // cannot be shortened.
        let start = unsafe { mmap(None, size, protection, flags, &file, 0)? };
        // SAFETY: the range is the one just mapped.
        unsafe { madvise(start, size.get(), MmapAdvise::MADV_DONTFORK)? };
        let region = Self {
            file,
            start: start.cast(),
            length: size.get(),
            slots,
        };
        region.set_used(0);
        Ok(region)
    }

    /// The file, for the agent.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// How many slots there are.
    pub(crate) const fn slots(&self) -> u32 {
        self.slots
    }

    /// Size in bytes.
    pub(crate) const fn length(&self) -> u64 {
        self.length as u64
    }

    /// Where snapshots may be.
    pub(crate) const fn snapshots_at(&self) -> u64 {
        slot_at(self.slots)
    }

    /// Says how many slots the agent has to look at. By one caller at a time.
    pub(crate) fn set_used(&self, used: u32) {
        let mut header = Vec::with_capacity(Header::LEN);
        let slots = self.slots;
        Header { slots, used }.emit(&mut header);
        self.write(0, &header);
    }

    /// Copies bytes to their place. Nothing else may write there meanwhile.
    ///
    /// # Panics
    /// If the place is not in the region.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        let target = self.pointer(at, bytes.len());
        // SAFETY: the target is in the mapping, and the mapping is no Rust value:
        // the source is elsewhere.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Enters a connection into its slot, or empties it. By one caller per slot at
    /// a time.
    ///
    /// # Panics
    /// If there is no such slot.
    pub(crate) fn write_slot(&self, slot: u32, connection: Option<&Connection>) {
        let at = slot_at(slot);
        let generation = self.generation(slot);
        let before = generation.load(Ordering::Relaxed);
        generation.store(before | 1, Ordering::Relaxed);
        // Whoever sees a part of what follows sees that it is not whole.
        fence(Ordering::Release);
        let mut bytes = Vec::with_capacity(SLOT_LEN);
        match connection {
            Some(connection) => connection.emit(&mut bytes),
            None => bytes.push(0),
        }
        self.write(at + CONNECTION_AT as u64, &bytes);
        generation.store((before | 1).wrapping_add(1), Ordering::Release);
    }

    fn generation(&self, slot: u32) -> &AtomicU64 {
        let pointer = self.pointer(slot_at(slot), size_of::<u64>());
        // SAFETY: slots begin at multiples of eight bytes in a mapping that begins
        // with a page; it is only ever used as an atomic, and lives as long as
        // this.
        unsafe { AtomicU64::from_ptr(pointer.cast().as_ptr()) }
    }

    fn pointer(&self, at: u64, length: usize) -> NonNull<u8> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let end = at.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "in the region");
        // SAFETY: in the mapping, as was just checked.
        unsafe { self.start.add(at) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped; no reference outlives this.
        let unmapped = unsafe { munmap(self.start.cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "it was mapped");
    }
}

const _: () = assert!(SLOTS_AT.is_multiple_of(8) && SLOT_LEN.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use godwit_wire::app::region::SlotState;

    use super::*;

    #[test]
    fn what_is_written_is_read_from_the_file() {
        let region = Region::new(4, 1 << 20).expect("a memfd");
        let file = File::from(region.file().try_clone_to_owned().expect("a descriptor"));
        region.set_used(3);
        let connection = Connection {
            state: SlotState::Live,
            stateless: false,
            key: godwit_wire::FlowKey {
                client: "10.9.0.10:40000".parse().expect("a literal"),
                service: "10.9.0.100:80".parse().expect("a literal"),
            },
            cookie: 7,
            session: Vec::new(),
            kept: Vec::new(),
        };
        region.write_slot(2, Some(&connection));
        let mut header = [0; Header::LEN];
        file.read_exact_at(&mut header, 0).expect("it is there");
        assert_eq!(Header::parse(&header), Ok(Header { slots: 4, used: 3 }));
        let mut slot = [0; SLOT_LEN];
        file.read_exact_at(&mut slot, slot_at(2))
            .expect("it is there");
        let (generation, body) = slot.split_at(CONNECTION_AT);
        assert_eq!(generation, 2_u64.to_ne_bytes());
        assert_eq!(Connection::parse(body), Ok(Some(connection)));
        region.write_slot(2, None);
        file.read_exact_at(&mut slot, slot_at(2))
            .expect("it is there");
        assert_eq!(Connection::parse(&slot[CONNECTION_AT..]), Ok(None));
    }

    #[test]
    #[should_panic(expected = "in the region")]
    fn nothing_is_written_outside() {
        let region = Region::new(1, 0).expect("a memfd");
        region.write(region.length() - 1, b"ab");
    }
}
