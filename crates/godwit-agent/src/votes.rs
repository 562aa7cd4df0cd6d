//! What the start of an agent knows of the votes of those before it.
//!
//! A voter keeps nothing on disk: one that was killed keeps quiet until whatever
//! it may have voted for is over, ten seconds with long leases (PaxosLease,
//! section 4). One that ends in order says how long its votes bind, which is
//! the rest of one lease. That is a file in the runtime directory, which does not
//! outlive a boot. It is
//!
//! * not there: no agent has voted since the host booted;
//! * empty: the last one runs, or did not end in order;
//! * a line: until when its votes bind, in nanoseconds of [`clock`].

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_core::lease::Terms;
use godwit_wire::NodeName;

use crate::clock;

/// Where the next agent will look.
#[derive(Debug, Clone)]
pub(crate) struct Votes {
    path: PathBuf,
}

impl Votes {
    /// Takes what the last agent left, so that nobody takes it again; says until
    /// when this one must not vote.
    ///
    /// # Errors
    /// If the file can't be read or written.
    pub(crate) fn take(
        run_dir: &Path,
        cookie: u64,
        node: NodeName,
        terms: &Terms,
    ) -> io::Result<(Self, MonoTime)> {
        let path = run_dir.join(format!("voted-n{cookie}-{node}"));
        let left = match fs::read(&path) {
            Ok(left) => Some(left),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        fs::write(&path, "")?;
        let now = clock::now();
        let unknown = now.saturating_add(terms.quarantine());
        let quiet_until = match left {
            None => MonoTime::ZERO.saturating_add(terms.quarantine()),
            // Further away than any vote binds, it is not of this boot.
            Some(left) => parse(&left).map_or(unknown, |bound| bound.min(unknown)),
        };
        Ok((Self { path }, quiet_until))
    }

    /// The last word of an agent that will not vote again.
    pub(crate) fn close(&self, bound: MonoTime) {
        let nanos = bound.since(MonoTime::ZERO).as_nanos();
        if let Err(error) = fs::write(&self.path, format!("{nanos}\n")) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the next agent here will vote later than it could");
        }
    }
}

/// `None` if it is not a whole line of digits.
fn parse(left: &[u8]) -> Option<MonoTime> {
    let digits = str::from_utf8(left.strip_suffix(b"\n")?).ok()?;
    let nanos = digits.parse().ok()?;
    Some(MonoTime::ZERO.saturating_add(Duration::from_nanos(nanos)))
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
        let (votes, until) = Votes::take(dir.path(), 1, node, &Terms::default()).expect("taken");
        assert_eq!(fs::read(&path).expect("there"), b"", "it is taken once");
        votes.close(until);
        (until, fs::read_to_string(&path).expect("there"))
    }

    fn quarantine() -> Duration {
        Terms::default().quarantine()
    }

    #[test]
    fn an_agent_that_ended_in_order_binds_the_next_for_a_lease_only() {
        let (until, left) = taken(Some("12345\n"));
        assert_eq!(until.since(MonoTime::ZERO), Duration::from_nanos(12345));
        assert_eq!(left, "12345\n", "and so on");
        let (until, _) = taken(None);
        assert_eq!(until.since(MonoTime::ZERO), quarantine(), "since the boot");
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
