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
use std::sync::Arc;

use godwit_sock::{Pinned, is_in_memory};

use super::{Place, ROOM};

/// Bytes of each place.
const PLACE: usize = ROOM;

/// Where the places begin.
const PLACES: [u64; 2] = [ROOM as u64, (ROOM + PLACE) as u64];

const LENGTH: NonZeroUsize = NonZeroUsize::new(ROOM + 2 * PLACE).unwrap();

/// Where votes are kept.
#[derive(Debug)]
pub(crate) struct VoteBook {
    place: Arc<Place>,
    /// `None`: they are not.
    pages: Option<Pages>,
    /// Which of the two places is next, and with what.
    number: u64,
    boot: String,
    /// What was kept last; nothing: there is no vote.
    page: Vec<u8>,
}

#[derive(Debug)]
struct Pages {
    file: File,
    _pinned: Pinned,
}

impl VoteBook {
    /// In the file of that place, where `last` is kept until there is a vote. What an earlier
    /// agent has kept there counts no more.
    ///
    /// # Errors
    /// If the file can't be written: it may say then what is not true. Where it is not in
    /// memory, or is full, or is no file, nothing is kept.
    pub(super) fn begin(place: Arc<Place>, last: Option<String>) -> io::Result<Self> {
        let mut book = Self {
            place,
            pages: None,
            number: 0,
            boot: boot(),
            page: Vec::with_capacity(PLACE),
        };
        if let Some(last) = last {
            book.compose(&last);
        }
        if fs::metadata(&book.place.path).is_ok_and(|it| !it.is_file()) {
            let path = book.place.path.display();
            tracing::warn!(%path, "is no file: votes do not outlive this agent");
            return Ok(book);
        }
        let file = book.take()?;
        if let Err(error) = file.write_all_at(&[b' '; ROOM], 0) {
            let path = book.place.path.display();
            tracing::warn!(%path, %error, "no room for the votes of this agent");
            file.set_len(0)?;
        }
        Ok(book)
    }

    /// Somebody has taken the file away, or has put another one in its place. An agent never
    /// waits for a disk, so this is done in memory only.
    pub(crate) fn renew(&mut self) {
        let path = &self.place.path;
        let folder = path.parent().and_then(|folder| File::open(folder).ok());
        if !folder.is_some_and(|folder| is_in_memory(&folder)) {
            return;
        }
        let renewed = self
            .take()
            .and_then(|file| file.write_all_at(&[b' '; ROOM], 0));
        let path = self.place.path.display();
        match renewed {
            Ok(()) => tracing::info!(%path, "the file of votes was made anew"),
            Err(error) => tracing::warn!(%path, %error, "the file of votes can't be made anew"),
        }
    }

    /// Opens the file, and writes down what was kept last.
    fn take(&mut self) -> io::Result<File> {
        let open = || {
            let mut options = File::options();
            let options = options.read(true).write(true).create(true);
            options.truncate(false).open(&self.place.path)
        };
        let (file, other) = (open()?, open()?);
        self.place.is(&file);
        let before = read(&file, &self.boot).map_or(0, |(number, _)| number);
        self.number = self.number.max(before);
        match Pinned::new(&file, LENGTH) {
            Ok(pinned) => {
                self.pages = Some(Pages {
                    file,
                    _pinned: pinned,
                });
                self.write();
            }
            Err(error) => {
                let text = "votes do not outlive an agent that is killed";
                tracing::info!(%error, text);
                shorten(&file)?;
            }
        }
        Ok(other)
    }

    /// Keeps this in place of all before it. If that can't be, nothing is kept from here on.
    pub(crate) fn keep(&mut self, votes: &str) {
        self.compose(votes);
        self.write();
    }

    fn compose(&mut self, votes: &str) {
        self.page.clear();
        self.page.extend_from_slice(votes.as_bytes());
    }

    fn write(&mut self) {
        if self.page.is_empty() {
            return self.forget();
        }
        let Some(pages) = &self.pages else {
            return;
        };
        self.number += 1;
        let votes = str::from_utf8(&self.page).unwrap_or_default();
        let mut page = head(&self.boot, self.number, votes).into_bytes();
        page.extend_from_slice(&self.page);
        let place = PLACES[usize::from(self.number.is_multiple_of(2))];
        let written = if page.len() <= PLACE {
            pages.file.write_all_at(&page, place)
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
pub(crate) fn boot() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tempfile::TempDir;

    use super::super::{VoteWatch, is_missed};
    use super::*;

    fn in_memory() -> TempDir {
        tempfile::tempdir_in("/dev/shm").expect("a folder")
    }

    fn place(folder: &Path) -> Arc<Place> {
        Arc::new(Place::new(folder.join("votes"), None))
    }

    fn begin(folder: &Path, last: Option<&str>) -> VoteBook {
        let last = last.map(str::to_owned);
        VoteBook::begin(place(folder), last).expect("begun")
    }

    fn file(folder: &Path) -> File {
        let mut options = File::options();
        let opened = options.read(true).write(true).open(folder.join("votes"));
        opened.expect("a file")
    }

    fn found(folder: &Path) -> Option<String> {
        kept(&file(folder))
    }

    #[test]
    fn what_was_kept_last_is_found() {
        let folder = in_memory();
        let folder = folder.path();
        let mut book = begin(folder, None);
        assert_eq!(found(folder), None);
        for votes in ["quiet 1\nend\n", "quiet 2\nend\n", "quiet 3\nend\n"] {
            book.keep(votes);
            assert_eq!(found(folder).as_deref(), Some(votes));
        }
        drop(book);
        let again = begin(folder, Some("quiet 3\nend\n"));
        assert_eq!(found(folder).as_deref(), Some("quiet 3\nend\n"));
        drop(again);
        drop(begin(folder, None));
        assert_eq!(
            found(folder),
            None,
            "who does not know it must not leave it"
        );
    }

    #[test]
    fn half_of_it_is_what_was_before() {
        let folder = in_memory();
        let folder = folder.path();
        let mut book = begin(folder, None);
        book.keep("quiet 1\nend\n");
        book.keep("quiet 2\nshare 7 0\nend\n");
        let (file, at) = (file(folder), PLACES[1] + 60);
        file.write_all_at(b"#", at).expect("written");
        assert_eq!(kept(&file).as_deref(), Some("quiet 1\nend\n"));
        file.write_all_at(b"#", PLACES[0] + 60).expect("written");
        assert_eq!(kept(&file), None);
    }

    #[test]
    fn nothing_is_believed_of_another_boot() {
        let folder = in_memory();
        let mut book = begin(folder.path(), None);
        book.keep("quiet 1\nend\n");
        let file = file(folder.path());
        assert!(read(&file, &boot()).is_some());
        assert!(read(&file, "another").is_none());
    }

    #[test]
    fn what_is_too_long_leaves_nothing() {
        let folder = in_memory();
        let folder = folder.path();
        let mut book = begin(folder, None);
        book.keep("quiet 1\nend\n");
        book.keep(&"share 1 0\n".repeat(PLACE));
        assert_eq!(found(folder), None, "it would not be the truth");
        book.keep("quiet 2\nend\n");
        assert_eq!(found(folder), None);
    }

    #[test]
    fn a_file_that_somebody_shortens_costs_what_was_kept() {
        let folder = in_memory();
        let folder = folder.path();
        let mut book = begin(folder, None);
        book.keep("quiet 1\nend\n");
        file(folder).set_len(0).expect("shortened");
        assert_eq!(found(folder), None);
        book.keep("quiet 2\nend\n");
        assert_eq!(found(folder).as_deref(), Some("quiet 2\nend\n"));
    }

    #[test]
    fn a_file_that_somebody_deletes_is_made_anew() {
        let folder = in_memory();
        let folder = folder.path();
        let place = place(folder);
        let watch = VoteWatch::new(place.clone());
        let mut book = VoteBook::begin(place, None).expect("begun");
        book.keep("quiet 1\nend\n");
        assert_eq!(watch.look().wrong, []);
        let path = folder.join("votes");
        for replace in [false, true] {
            fs::remove_file(&path).expect("it is there");
            if replace {
                fs::write(&path, "12345\n").expect("written");
            }
            assert!(is_missed(&watch.look()), "replaced: {replace}");
            book.renew();
            assert_eq!(watch.look().wrong, []);
            assert_eq!(found(folder).as_deref(), Some("quiet 1\nend\n"));
            let word = fs::read(&path).expect("there");
            assert_eq!(word[..ROOM], [b' '; ROOM], "it has not ended");
        }
        book.keep("quiet 2\nend\n");
        assert_eq!(found(folder).as_deref(), Some("quiet 2\nend\n"));
    }

    #[test]
    fn a_folder_in_its_place_is_said_and_keeps_nobody_from_voting() {
        let folder = in_memory();
        let folder = folder.path();
        let path = folder.join("votes");
        fs::create_dir(&path).expect("made");
        let place = place(folder);
        let watch = VoteWatch::new(place.clone());
        let mut book = VoteBook::begin(place, None).expect("begun");
        book.keep("quiet 1\nend\n");
        let look = watch.look();
        let [wrong] = &look.wrong[..] else {
            panic!("{look:?}");
        };
        assert_eq!(wrong.name, "votes");
        assert!(wrong.found.ends_with("is no file"), "{wrong:?}");
        book.renew();
        assert!(is_missed(&watch.look()), "it is there still");
        fs::remove_dir(&path).expect("it is empty");
        book.renew();
        assert_eq!(watch.look().wrong, []);
        assert_eq!(found(folder).as_deref(), Some("quiet 1\nend\n"));
    }

    #[test]
    fn on_a_disk_nothing_is_kept() {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let folder = folder.path();
        fs::write(folder.join("votes"), [b' '; ROOM + 5]).expect("written");
        if is_in_memory(&file(folder)) {
            eprintln!("skipped: this is a file system in memory");
            return;
        }
        let mut book = begin(folder, None);
        book.keep("quiet 1\nend\n");
        assert_eq!(found(folder), None);
        assert_eq!(file(folder).metadata().expect("there").len(), ROOM as u64);
        fs::remove_file(folder.join("votes")).expect("it is there");
        book.renew();
        assert!(!folder.join("votes").exists(), "it would wait for the disk");
    }
}
