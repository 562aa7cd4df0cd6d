//! What the start of an agent knows of the votes of those before it.
//!
//! A voter keeps nothing on disk: one that was killed keeps quiet until whatever
//! it may have voted for is over, ten seconds with long leases (PaxosLease,
//! section 4). One that ends in order says what it has voted for, and the next one goes on
//! from there: voters that restart one after the other would leave no majority otherwise.
//! That is a file in the runtime directory, which does not outlive a boot. It is
//!
//! * not there: no agent has voted since the host booted;
//! * empty: the last one votes, or did not end in order;
//! * blank: the same, with room for what the last one will say, for the disk may be full then;
//! * a line: until when its votes bind, in nanoseconds of [`clock`]; and behind that, if it
//!   had votes, what they were ([`VoterMemory`]).

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use godwit_core::lease::Terms;
use godwit_core::{MonoTime, VoterMemory};
use godwit_wire::NodeName;

use crate::clock;

/// Bytes for the votes of some 40 shares.
const ROOM: usize = 16 << 10;

/// Where the next agent will look.
#[derive(Debug, Clone)]
pub(crate) struct Votes {
    path: PathBuf,
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
    ) -> io::Result<(Self, MonoTime, Option<VoterMemory>)> {
        let path = run_dir.join(format!("voted-n{cookie}-{node}"));
        let left = match (last, fs::read(&path)) {
            (Some(LastWord(text)), _) => Some(text.into_bytes()),
            (None, Ok(left)) => Some(left),
            (None, Err(error)) if error.kind() == ErrorKind::NotFound => None,
            (None, Err(error)) => return Err(error),
        };
        let now = clock::now();
        let unknown = now.saturating_add(terms.quarantine());
        let quiet_until = match left {
            None => MonoTime::ZERO.saturating_add(terms.quarantine()),
            // Further away than any vote binds, it is not of this boot.
            Some(ref left) => parse(left).map_or(unknown, |(bound, _)| bound.min(unknown)),
        };
        let memory = left.as_ref().and_then(|left| parse(left)).and_then(|read| {
            // It may be of another boot.
            let is_near = read.0 <= unknown;
            VoterMemory::of_text(read.1, *terms).filter(|_| is_near)
        });
        Ok((Self { path }, quiet_until, memory))
    }

    /// From here on this agent votes: should it not end in order, nobody knows for what.
    ///
    /// # Errors
    /// If the file can't be written: it must not vote then.
    pub(crate) fn begin(&self) -> io::Result<()> {
        fs::write(&self.path, "")?;
        if let Err(error) = fs::write(&self.path, [b' '; ROOM]) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "no room for the votes of this agent");
            fs::write(&self.path, "")?;
        }
        Ok(())
    }

    /// The last word of an agent that will not vote again.
    pub(crate) fn close(&self, bound: MonoTime, memory: Option<&VoterMemory>) -> LastWord {
        let nanos = bound.since(MonoTime::ZERO).as_nanos();
        let memory = memory.map(VoterMemory::to_text).unwrap_or_default();
        let text = format!("{nanos}\n{memory}");
        if let Err(error) = write_over(&self.path, &text) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the next process here will vote later than it could");
        }
        LastWord(text)
    }
}

/// Where there is room, without giving it back first. What is behind the text is blank.
fn write_over(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let room = usize::try_from(file.metadata()?.len()).unwrap_or_default();
    file.write_all(format!("{text:<room$}").as_bytes())?;
    file.set_len(room.max(text.len()) as u64)
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
        let (votes, until, memory) = found.expect("found");
        let kept = fs::read_to_string(&path).ok();
        assert_eq!(
            kept.as_deref(),
            left,
            "one that never votes takes nothing away"
        );
        votes.begin().expect("it may be written");
        let begun = fs::read_to_string(&path).expect("there");
        assert!(begun.trim().is_empty(), "it is taken once");
        assert_eq!(begun.len(), ROOM);
        let LastWord(word) = votes.close(until, memory.as_ref());
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
        let (votes, ..) = find(None).expect("found");
        let word = votes.close(MonoTime::from_nanos(12345), None);
        fs::write(dir.path().join("voted-n1-a"), "").expect("written");
        let (_, until, _) = find(Some(word)).expect("found");
        assert_eq!(until, MonoTime::from_nanos(12345));
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
