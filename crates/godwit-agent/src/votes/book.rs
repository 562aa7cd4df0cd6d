//! What an agent votes for, kept where a kill does not reach it.
//!
//! Behind the room for the last word, the same file has two places that are written in turn,
//! before any word about a vote leaves the node. The process may die in the middle of it: the
//! other place then has what was true before, and of the new vote nobody has heard.
//!
//! ```text
//! 7c3b09f2-... 17 212 9f86d081884c7d65
//! quiet 81000000000
//! share 3839256262 0
//! end
//! ```
//!
//! The first line is the boot, a number that grows, the length of what follows in bytes, and
//! a sum over all of that.

use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;

use godwit_sock::Pinned;

use super::ROOM;

/// Bytes of each place.
const PLACE: usize = ROOM;

/// Where the places begin.
const PLACES: [u64; 2] = [ROOM as u64, (ROOM + PLACE) as u64];

const LENGTH: NonZeroUsize = NonZeroUsize::new(ROOM + 2 * PLACE).unwrap();

/// Where votes are kept.
#[derive(Debug)]
pub(crate) struct VoteBook {
    /// `None`: they are not.
    pages: Option<Pages>,
    /// Which of the two places is next, and with what.
    number: u64,
    boot: String,
    page: Vec<u8>,
}

#[derive(Debug)]
struct Pages {
    file: File,
    _pinned: Pinned,
}

impl VoteBook {
    /// In this file, where `last` is kept until there is a vote. What an earlier agent has
    /// kept there counts no more.
    ///
    /// # Errors
    /// If the file can't be shortened: it may say then what is not true. Where it is not in
    /// memory, or is full, nothing is kept.
    pub(super) fn begin(file: File, last: Option<&str>) -> io::Result<Self> {
        let pages = Pinned::new(&file, LENGTH);
        if let Err(error) = &pages {
            let text = "votes do not outlive an agent that is killed";
            tracing::info!(%error, text);
        }
        let mut book = Self {
            number: read(&file, &boot()).map_or(0, |(number, _)| number),
            boot: boot(),
            page: Vec::with_capacity(PLACE),
            pages: None,
        };
        match pages {
            Ok(pinned) => {
                book.pages = Some(Pages {
                    file,
                    _pinned: pinned,
                });
                match last {
                    Some(last) => book.keep(last),
                    None => book.forget(),
                }
            }
            Err(_) => shorten(&file)?,
        }
        Ok(book)
    }

    /// Keeps this in place of all before it. If that can't be, nothing is kept from here on.
    pub(crate) fn keep(&mut self, votes: &str) {
        let Some(pages) = &self.pages else {
            return;
        };
        self.number += 1;
        let head = head(&self.boot, self.number, votes);
        self.page.clear();
        self.page.extend_from_slice(head.as_bytes());
        self.page.extend_from_slice(votes.as_bytes());
        let place = PLACES[usize::from(self.number.is_multiple_of(2))];
        let written = if self.page.len() <= PLACE {
            pages.file.write_all_at(&self.page, place)
        } else {
            Err(io::ErrorKind::FileTooLarge.into())
        };
        if let Err(error) = written {
            tracing::warn!(%error, "votes do not outlive this agent if it is killed");
            self.forget();
            self.pages = None;
        }
    }

    fn forget(&self) {
        let Some(pages) = &self.pages else {
            return;
        };
        for place in PLACES {
            if let Err(error) = pages.file.write_all_at(&[0], place) {
                tracing::error!(%error, "old votes can't be taken away");
            }
        }
    }
}

/// Leaves the last word alone there.
pub(super) fn shorten(file: &File) -> io::Result<()> {
    let length = file.metadata()?.len();
    if length > ROOM as u64 {
        file.set_len(ROOM as u64)?;
    }
    Ok(())
}

/// What was kept last in this boot.
pub(super) fn kept(file: &File) -> Option<String> {
    read(file, &boot()).map(|(_, votes)| votes)
}

fn read(file: &File, boot: &str) -> Option<(u64, String)> {
    let places = PLACES
        .iter()
        .filter_map(|place| read_at(file, *place, boot));
    places.max_by_key(|(number, _)| *number)
}

fn read_at(file: &File, place: u64, boot: &str) -> Option<(u64, String)> {
    let mut page = vec![0; PLACE];
    let mut got = 0;
    while let Ok(more @ 1..) = file.read_at(&mut page[got..], place + got as u64) {
        got += more;
    }
    let line = page.iter().position(|byte| *byte == b'\n')?;
    let first = str::from_utf8(&page[..line]).ok()?;
    let mut words = first.split(' ');
    let number = words.nth(1)?.parse().ok()?;
    let length: usize = words.next()?.parse().ok()?;
    let votes = page.get(line + 1..)?.get(..length)?;
    let votes = str::from_utf8(votes).ok()?;
    (head(boot, number, votes) == format!("{first}\n")).then(|| (number, votes.to_owned()))
}

fn head(boot: &str, number: u64, votes: &str) -> String {
    let start = format!("{boot} {number} {}", votes.len());
    let sum = sum(start.bytes().chain(votes.bytes()));
    format!("{start} {sum:016x}\n")
}

/// FNV-1a.
fn sum(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The name of this boot; without one nothing is believed.
fn boot() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    fn in_memory() -> File {
        let file = memfd_create(c"votes", MFdFlags::MFD_CLOEXEC).expect("a file");
        file.into()
    }

    fn begin(file: &File, last: Option<&str>) -> VoteBook {
        VoteBook::begin(file.try_clone().expect("cloned"), last).expect("begun")
    }

    #[test]
    fn what_was_kept_last_is_found() {
        let file = in_memory();
        let mut book = begin(&file, None);
        assert_eq!(kept(&file), None);
        for votes in ["quiet 1\nend\n", "quiet 2\nend\n", "quiet 3\nend\n"] {
            book.keep(votes);
            assert_eq!(kept(&file).as_deref(), Some(votes));
        }
        drop(book);
        let again = begin(&file, Some("quiet 3\nend\n"));
        assert_eq!(kept(&file).as_deref(), Some("quiet 3\nend\n"));
        drop(again);
        drop(begin(&file, None));
        assert_eq!(kept(&file), None, "who does not know it must not leave it");
    }

    #[test]
    fn half_of_it_is_what_was_before() {
        let file = in_memory();
        let mut book = begin(&file, None);
        book.keep("quiet 1\nend\n");
        book.keep("quiet 2\nshare 7 0\nend\n");
        let place = PLACES[1];
        let at = place + 60;
        file.write_all_at(b"#", at).expect("written");
        assert_eq!(kept(&file).as_deref(), Some("quiet 1\nend\n"));
        file.write_all_at(b"#", PLACES[0] + 60).expect("written");
        assert_eq!(kept(&file), None);
    }

    #[test]
    fn nothing_is_believed_of_another_boot() {
        let file = in_memory();
        let mut book = begin(&file, None);
        book.keep("quiet 1\nend\n");
        assert!(read(&file, &boot()).is_some());
        assert!(read(&file, "another").is_none());
    }

    #[test]
    fn what_is_too_long_leaves_nothing() {
        let file = in_memory();
        let mut book = begin(&file, None);
        book.keep("quiet 1\nend\n");
        book.keep(&"share 1 0\n".repeat(PLACE));
        assert_eq!(kept(&file), None, "it would not be the truth");
        book.keep("quiet 2\nend\n");
        assert_eq!(kept(&file), None);
    }

    #[test]
    fn a_file_that_somebody_shortens_costs_what_was_kept() {
        let file = in_memory();
        let mut book = begin(&file, None);
        book.keep("quiet 1\nend\n");
        file.set_len(0).expect("shortened");
        assert_eq!(kept(&file), None);
        book.keep("quiet 2\nend\n");
        assert_eq!(kept(&file).as_deref(), Some("quiet 2\nend\n"));
    }

    #[test]
    fn on_a_disk_nothing_is_kept() {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let path = folder.path().join("votes");
        let mut options = File::options();
        let options = options.read(true).write(true).create_new(true);
        let file = options.open(path).expect("a file");
        if Pinned::new(&file, LENGTH).is_ok() {
            eprintln!("skipped: this is a file system in memory");
            return;
        }
        file.write_all_at(&[b' '; ROOM + 5], 0).expect("written");
        let mut book = begin(&file, None);
        book.keep("quiet 1\nend\n");
        assert_eq!(kept(&file), None);
        assert_eq!(file.metadata().expect("there").len(), ROOM as u64);
    }
}
