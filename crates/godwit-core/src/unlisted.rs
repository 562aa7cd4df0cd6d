//! Connections that the kernel serves and no list of ours has: nobody protects them, and
//! nobody could say so.
//!
//! Two tables are compared that change meanwhile, so one that is missing once may be on
//! its way into a list or out of the kernel. One that is missing twice in a row is not.

use std::collections::BTreeSet;

/// What was missing when it was last looked. `K` tells a socket from all others that there
/// ever were, not only from those with other addresses.
#[derive(Debug, Clone)]
pub struct Unlisted<K>(BTreeSet<K>);

impl<K> Default for Unlisted<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Copy> Unlisted<K> {
    /// All that are missing now; those that were when it was last looked, too.
    pub fn note(&mut self, missing: BTreeSet<K>) -> BTreeSet<K> {
        let twice = missing.intersection(&self.0).copied().collect();
        self.0 = missing;
        twice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_twice_in_a_row_is_unlisted() {
        let mut unlisted = Unlisted::default();
        let mut note = |missing: &[u32]| {
            let twice = unlisted.note(missing.iter().copied().collect());
            twice.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(note(&[1, 2]), []);
        assert_eq!(note(&[2, 3]), [2]);
        assert_eq!(note(&[2, 3]), [2, 3]);
        assert_eq!(note(&[]), []);
        assert_eq!(note(&[2]), [], "it was listed in between");
    }
}
