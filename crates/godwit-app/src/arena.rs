//! Which part of the region belongs to which snapshot.
//!
//! Blocks have sizes that are powers of two. A block that is given back is used
//! again for a snapshot of the same class; nothing is ever split or joined, so
//! giving out is a few instructions however long the process has run.

/// The smallest block, in bytes.
const LEAST: u64 = 256;
/// Classes from [`LEAST`] up to 16 MiB.
const CLASSES: usize = 17;

/// Hands out blocks of a range of the region.
#[derive(Debug)]
pub(crate) struct Arena {
    next: u64,
    end: u64,
    free: [Vec<u64>; CLASSES],
}

impl Arena {
    /// Blocks from `start` up to `end`, in bytes from the start of the region.
    pub(crate) const fn new(start: u64, end: u64) -> Self {
        Self {
            next: start,
            end,
            free: [const { Vec::new() }; CLASSES],
        }
    }

    /// A block for so many bytes; `None` if the range is used up, or for more than
    /// the largest class.
    pub(crate) fn take(&mut self, length: u32) -> Option<u64> {
        let (class, size) = class(length)?;
        if let Some(block) = self.free[class].pop() {
            return Some(block);
        }
        let block = self.next;
        let next = block.checked_add(size).filter(|next| *next <= self.end)?;
        self.next = next;
        Some(block)
    }

    /// Takes a block back that was handed out for `length` bytes.
    pub(crate) fn give_back(&mut self, block: u64, length: u32) {
        if let Some((class, _)) = class(length) {
            self.free[class].push(block);
        }
    }
}

/// The class of blocks that `length` bytes fit into, and their size.
fn class(length: u32) -> Option<(usize, u64)> {
    let size = u64::from(length).max(LEAST).next_power_of_two();
    let class = usize::try_from((size / LEAST).trailing_zeros()).ok()?;
    (class < CLASSES).then_some((class, size))
}

#[cfg(test)]
mod tests {
    use godwit_wire::app::MAX_SNAPSHOT;

    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_are_used_again() {
        let mut arena = Arena::new(4096, 4096 + 2048);
        assert_eq!(arena.take(0), Some(4096));
        assert_eq!(arena.take(257), Some(4096 + 256));
        assert_eq!(arena.take(1024), Some(4096 + 768));
        assert_eq!(arena.take(512), None, "256 are left");
        arena.give_back(4096 + 256, 257);
        assert_eq!(arena.take(512), Some(4096 + 256));
    }

    #[test]
    fn the_largest_snapshot_has_a_class() {
        let mut arena = Arena::new(0, 64 << 20);
        assert_eq!(arena.take(MAX_SNAPSHOT), Some(0));
        assert_eq!(arena.take(MAX_SNAPSHOT + 1), None);
        assert_eq!(arena.take(u32::MAX), None);
    }
}
