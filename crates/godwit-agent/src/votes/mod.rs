//! What the start of an agent knows of the votes of those before it.
//!
//! A voter that has forgotten what it voted for keeps quiet until all of that is over, ten
//! seconds with long leases (PaxosLease, section 4). So that voters may restart one after the
//! other, or be killed, and leave a majority, each one writes it down, and the next one goes
//! on from there. That is a file in the runtime directory, which does not outlive a boot.
//! [`ROOM`] bytes of it are
//!
//! * not there: no agent has voted since the host booted; or one has, as is known from its
//!   birth ([`births`]), and somebody has deleted the file: its votes are forgotten;
//! * no file (a directory): the same, and nothing is kept as long as it is there;
//! * blank: the last one votes, or was killed. What it has voted for is behind the room
//!   ([`book`]) if the directory is in memory (tmpfs), else it is not known;
//! * a line, if the last one has ended in order: until when its votes bind, in nanoseconds of
//!   [`clock`]; and behind that, if it had votes, what they were ([`VoterMemory`]).
//!
//! While an agent votes, [`watch`] looks whether the file is where it was. If it is not, the
//! agent makes it anew.

mod book;
mod memory;
mod watch;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use godwit_core::lease::Terms;
use godwit_core::{MonoTime, VoterMemory};
use godwit_wire::NodeName;

use crate::{births, clock};

pub(crate) use book::{VoteBook, boot};
pub(crate) use memory::{forgets, votes};
pub(crate) use watch::{Place, VoteWatch, is_missed};

/// Bytes for the votes of some 150 shares.
const ROOM: usize = 64 << 10;

/// Where the next agent will look.
#[derive(Debug, Clone)]
pub(crate) struct Votes {
    path: PathBuf,
    /// What was found there.
    found: Option<VoterMemory>,
    place: Arc<Place>,
}

/// What an agent says of its votes when it ends, as the file has it. The next life of the same
/// process has it from here, for the disk may be full.
#[derive(Debug, Clone)]
pub(crate) struct LastWord(String);

impl Votes {
    /// What the last agent left: until when this one must not vote if it does not know what
    /// that has voted for, and that. It stays there until [`Votes::begin`], as long as this
    /// one may be ended without having voted. `last`: of a life before in this process.
    ///
    /// # Errors
    /// If the file can't be read.
    pub(crate) fn find(
        run_dir: &Path,
        cookie: u64,
        node: NodeName,
        terms: &Terms,
        last: Option<LastWord>,
    ) -> io::Result<(Self, MonoTime)> {
        let path = run_dir.join(format!("voted-n{cookie}-{node}"));
        let has_run = births::is_known(run_dir, cookie, node);
        let mut lost = None;
        let (left, kept) = match (last, open(&path)) {
            (Some(LastWord(text)), _) => (Some(text.into_bytes()), None),
            (None, Ok(file)) => (Some(last_word(&file)?), book::kept(&file)),
            (None, Err(error)) if is_missing(&error) && !has_run => (None, None),
            (None, Err(error)) if is_missing(&error) => {
                lost = Some(format!(
                    "{} was deleted before this agent began",
                    path.display()
                ));
                (Some(Vec::new()), None)
            }
            (None, Err(error)) if is_no_file(&error) => {
                lost = Some(format!(
                    "{} was no file when this agent began",
                    path.display()
                ));
                (Some(Vec::new()), None)
            }
            (None, Err(error)) => return Err(error),
        };
        let now = clock::now();
        let unknown = now.saturating_add(terms.quarantine());
        let quiet_until = match left {
            None => MonoTime::ZERO.saturating_add(terms.quarantine()),
            // Further away than any vote binds, it is not of this boot.
            Some(ref left) => parse(left).map_or(unknown, |(bound, _)| bound.min(unknown)),
        };
        let found = match left.as_ref().and_then(|left| parse(left)) {
            // It may be of another boot.
            Some((bound, _)) if bound > unknown => None,
            Some((_, text)) => VoterMemory::of_text(text, *terms),
            None => kept.and_then(|text| VoterMemory::of_text(&text, *terms)),
        };
        if left.is_none() {
            begin_blank(&path, quiet_until);
        }
        let lost = lost.map(|how| (how, quiet_until));
        let place = Arc::new(Place::new(path.clone(), lost));
        Ok((Self { path, found, place }, quiet_until))
    }

    /// Where the file is to be, for who watches it.
    pub(crate) fn place(&self) -> Arc<Place> {
        self.place.clone()
    }

    /// What the agent before has voted for, if it is known.
    pub(crate) const fn found(&self) -> Option<&VoterMemory> {
        self.found.as_ref()
    }

    /// From here on this agent votes. Should it not end in order, what it voted for is in the
    /// book, or nowhere.
    ///
    /// # Errors
    /// If the file can't be written: it must not vote then.
    pub(crate) fn begin(&self) -> io::Result<VoteBook> {
        let last = self.found.as_ref().map(VoterMemory::to_text);
        VoteBook::begin(self.place.clone(), last)
    }

    /// The last word of an agent that will not vote again.
    pub(crate) fn close(&self, bound: MonoTime, memory: Option<&VoterMemory>) -> LastWord {
        let nanos = bound.since(MonoTime::ZERO).as_nanos();
        let memory = memory.map(VoterMemory::to_text).unwrap_or_default();
        let text = format!("{nanos}\n{memory}");
        if let Err(error) = write_last(&self.path, &text) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the next process here will vote later than it could");
        }
        LastWord(text)
    }
}

/// To be read; an error if it is no file. A pipe would keep whoever opens it waiting.
fn open(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    File::open(path)
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

fn is_no_file(error: &io::Error) -> bool {
    error.kind() == ErrorKind::InvalidInput
}

/// Nobody has voted since the boot, and from here on it would be missed.
fn begin_blank(path: &Path, quiet_until: MonoTime) {
    let nanos = quiet_until.since(MonoTime::ZERO).as_nanos();
    if let Err(error) = fs::write(path, format!("{nanos}\n")) {
        let path = path.display();
        tracing::warn!(%path, %error, "no room for the votes of this agent");
    }
}

/// Where there is room, without giving it back first. What is behind the text is blank, and
/// then the file ends.
fn write_last(path: &Path, text: &str) -> io::Result<()> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    let file = options.open(path)?;
    let mut word = text.as_bytes().to_vec();
    word.resize(ROOM.max(text.len()), b' ');
    file.write_all_at(&word, 0)?;
    file.set_len(word.len() as u64)
}

/// What stands in the room.
fn last_word(file: &File) -> io::Result<Vec<u8>> {
    let mut word = Vec::with_capacity(ROOM);
    file.take(ROOM as u64).read_to_end(&mut word)?;
    Ok(word)
}

/// The moment, and what is behind it; `None` if it does not begin with a whole line of
/// digits.
fn parse(left: &[u8]) -> Option<(MonoTime, &str)> {
    let (digits, rest) = str::from_utf8(left).ok()?.split_once('\n')?;
    let nanos = digits.parse().ok()?;
    let bound = MonoTime::ZERO.saturating_add(Duration::from_nanos(nanos));
    Some((bound, rest.trim_end_matches(' ')))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What an agent that finds `left` is told: the end of its quarantine.
    fn taken(left: Option<&str>) -> (MonoTime, String) {
        let dir = tempfile::tempdir().expect("a folder");
        let node = "a".parse().expect("a name");
        let path = dir.path().join("voted-n1-a");
        if let Some(left) = left {
            fs::write(&path, left).expect("written");
        }
        let found = Votes::find(dir.path(), 1, node, &Terms::default(), None);
        let (votes, until) = found.expect("found");
        let kept = fs::read_to_string(&path).ok();
        let first = format!("{}\n", quarantine().as_nanos());
        assert_eq!(
            kept.as_deref(),
            left.or(Some(&first)),
            "one that never votes takes nothing away"
        );
        let book = votes.begin().expect("it may be written");
        let begun = fs::read(&path).expect("there");
        assert_eq!(begun[..ROOM], [b' '; ROOM], "it is taken once");
        drop(book);
        let LastWord(word) = votes.close(until, votes.found());
        let closed = fs::read_to_string(&path).expect("there");
        assert_eq!(closed.len(), ROOM, "no room is asked for");
        assert_eq!(closed.trim_end_matches(' '), word);
        (until, word)
    }

    fn quarantine() -> Duration {
        Terms::default().quarantine()
    }

    #[test]
    fn an_agent_that_ended_in_order_binds_the_next_for_a_lease_only() {
        let (until, left) = taken(Some("12345\n"));
        assert_eq!(until.since(MonoTime::ZERO), Duration::from_nanos(12345));
        assert_eq!(left, "12345\n", "and so on");
        let (_, left) = taken(Some("12345\nquiet 12\nshare 7 0\nend\n"));
        assert_eq!(
            left, "12345\nquiet 12\nshare 7 0\nend\n",
            "what it voted for"
        );
        let (_, left) = taken(Some("12345\nquiet 12\nshare 7 0\n"));
        assert_eq!(left, "12345\n", "half of that is as good as none");
        let (until, _) = taken(None);
        assert_eq!(until.since(MonoTime::ZERO), quarantine(), "since the boot");
    }

    /// The disk is full, perhaps.
    #[test]
    fn another_life_of_the_process_needs_no_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let node = "a".parse().expect("a name");
        let find = |last| Votes::find(dir.path(), 1, node, &Terms::default(), last);
        let (votes, _) = find(None).expect("found");
        let word = votes.close(MonoTime::from_nanos(12345), None);
        fs::write(dir.path().join("voted-n1-a"), "").expect("written");
        let (_, until) = find(Some(word)).expect("found");
        assert_eq!(until, MonoTime::from_nanos(12345));
    }

    /// In memory, which the folder of these tests may not be.
    #[test]
    fn an_agent_that_was_killed_has_forgotten_nothing() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let node = "a".parse().expect("a name");
        let find = || Votes::find(dir.path(), 1, node, &Terms::default(), None).expect("found");
        let (votes, _) = find();
        let mut book = votes.begin().expect("begun");
        assert!(find().0.found().is_none(), "it has voted for nothing");
        let votes_of = |share| format!("quiet 12\nshare {share} 0\nend\n");
        book.keep(&votes_of(7));
        book.keep(&votes_of(8));
        drop(book);
        let (votes, _) = find();
        let text = |votes: &Votes| votes.found().map(VoterMemory::to_text);
        assert_eq!(text(&votes), Some(votes_of(8)));
        let book = votes.begin().expect("begun");
        assert_eq!(text(&find().0), Some(votes_of(8)), "nor has its successor");
        drop(book);
        votes.close(MonoTime::from_nanos(12345), None);
        assert_eq!(text(&find().0), None, "the last word is the last one");
    }

    #[test]
    fn a_file_that_is_missing_is_votes_that_are_forgotten_if_an_agent_has_run() {
        let dir = tempfile::tempdir().expect("a folder");
        let node = "a".parse().expect("a name");
        let find = || Votes::find(dir.path(), 1, node, &Terms::default(), None).expect("found");
        let birth = (None, 7 << 32);
        births::take(dir.path(), 1, node, birth).expect("born");
        let before = clock::now();
        let (votes, until) = find();
        assert!(until.since(before) >= quarantine(), "it was there");
        let said = |votes: &Votes| VoteWatch::new(votes.place()).look().wrong;
        let [wrong] = &said(&votes)[..] else {
            panic!("it is not said");
        };
        assert!(wrong.found.contains("its votes are forgotten"), "{wrong:?}");
        drop(votes.begin().expect("begun"));
        let path = dir.path().join("voted-n1-a");
        fs::remove_file(&path).expect("it is there");
        fs::create_dir(&path).expect("made");
        let (votes, until) = find();
        assert!(until.since(before) >= quarantine(), "it can't be read");
        assert!(!said(&votes).is_empty());
        drop(votes.begin().expect("it votes all the same"));
    }

    #[test]
    fn of_any_other_the_worst_is_thought() {
        let before = clock::now();
        for left in ["", "1234", "x\n", "-1\n", "18446744073709551615\n"] {
            let (until, _) = taken(Some(left));
            assert!(until.since(before) >= quarantine(), "{left:?}");
        }
    }
}
