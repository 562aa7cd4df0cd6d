//! The load of WebStone, and files for it.
//!
//! Sizes and weights are those of the list that WebStone 2 comes with. Its two largest
//! sizes are class 3 of Olaru and Tichy's paper on clusters: classes are asked for in 35,
//! 50, 14 and 1 % of requests. Where WebStone has one file of each size, a [`FileSet`] has
//! as many as its weight says, times a factor: it can be larger than a page cache, and
//! each file of it is asked for as often as any other.

pub mod load;
mod reply;
mod tally;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

pub use load::Load;
pub use tally::{Tally, Times};

use super::content::Content;

/// Its command.
pub(crate) const VERB: &str = "webstone";

/// Classes of requests.
pub const CLASSES: usize = 4;

/// Files of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The class that they belong to.
    pub class: usize,
    /// As their names begin.
    pub name: &'static str,
    /// Bytes of each.
    pub bytes: u64,
    /// Requests for one of them, of a thousand.
    pub weight: u32,
}

/// WebStone's sizes.
pub const KINDS: [Kind; 5] = [
    kind(0, "500", 500, 350),
    kind(1, "5k", 5 << 10, 500),
    kind(2, "50k", 50 << 10, 140),
    kind(3, "500k", 500 << 10, 9),
    kind(3, "5m", 5 << 20, 1),
];

/// What a page cache holds files in.
const PAGE: u64 = 4096;

const fn kind(class: usize, name: &'static str, bytes: u64, weight: u32) -> Kind {
    Kind {
        class,
        name,
        bytes,
        weight,
    }
}

/// Files that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSet {
    /// Files of each kind are this times its weight.
    pub factor: u32,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Index in [`KINDS`].
    pub(crate) kind: usize,
    pub(crate) number: u32,
}

impl FileSet {
    /// How many there are of a kind.
    pub(crate) const fn count(self, kind: usize) -> u32 {
        self.factor * KINDS[kind].weight
    }

    /// How many there are of all kinds.
    pub fn files(self) -> u32 {
        (0..KINDS.len()).map(|kind| self.count(kind)).sum()
    }

    /// What they take in a page cache, in bytes.
    pub fn cached(self) -> u64 {
        let of = |kind: Kind| {
            let pages = kind.bytes.div_ceil(PAGE) * PAGE;
            pages * u64::from(kind.weight * self.factor)
        };
        KINDS.into_iter().map(of).sum()
    }

    /// Writes them all below `root`, which is made.
    ///
    /// # Errors
    /// Fails if one can't be written.
    pub fn write(self, root: &Path) -> Result<()> {
        (0..CLASSES).try_for_each(|class| self.write_class(class, root))
    }

    /// Writes those of one class below `root`, which is made.
    pub(crate) fn write_class(self, class: usize, root: &Path) -> Result<()> {
        let folder = root.join(format!("class{class}"));
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let mut path = String::new();
        let kinds = (0..KINDS.len()).filter(|kind| KINDS[*kind].class == class);
        for name in kinds.flat_map(|kind| self.names(kind)) {
            path.clear();
            name.put_path(&mut path);
            let file = root.join(path.trim_start_matches('/'));
            name.content().write_to(&file)?;
        }
        Ok(())
    }

    fn names(self, kind: usize) -> impl Iterator<Item = Name> {
        (0..self.count(kind)).map(move |number| Name { kind, number })
    }
}

impl Name {
    /// What every byte of it should be.
    pub(crate) fn content(self) -> Content {
        Content {
            seed: (self.kind as u64) << 32 | u64::from(self.number),
            length: KINDS[self.kind].bytes,
        }
    }

    /// Appends its path in a URL: `/class2/50k-17.html`.
    pub(crate) fn put_path(self, to: &mut String) {
        let Kind { class, name, .. } = KINDS[self.kind];
        // Nothing is written but memory.
        let _ = write!(to, "/class{class}/{name}-{}.html", self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_asked_for_as_in_the_paper() {
        let mut shares = [0; CLASSES];
        for kind in KINDS {
            shares[kind.class] += kind.weight;
        }
        assert_eq!(shares, [350, 500, 140, 10]);
    }

    #[test]
    fn a_set_has_a_size_in_pages() {
        // 350 + 500 x 2 + 140 x 13 + 9 x 125 + 1280
        assert_eq!(FileSet { factor: 2 }.cached(), 2 * 5575 * 4096);
    }
}
