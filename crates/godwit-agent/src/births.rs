//! That each agent of a node is a later one than those before it.
//!
//! An incarnation is the clock of day, and epochs and heartbeats go by it. The clock may
//! be set back while the host runs, so the last incarnation is kept in the runtime
//! directory, and the next one is above it. After a boot the file is gone; then peers
//! follow a lesser incarnation once that has said hello. So they do if the last one was more
//! than a day ahead of the clock: it was of another time, and gives way.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use godwit_wire::NodeName;

/// The upper half of an incarnation is in seconds.
const SECOND: u64 = 1 << 32;

/// Voters consider nothing that is so far ahead (`godwit-core/src/node/scrutiny.rs`).
const FAR: u64 = 24 * 3600 * SECOND;

/// The incarnation of an agent that starts now, which `clock` says is that moment. `before`: of
/// a life before in this process. Where the disk is full only a clock that is set back later
/// could make it matter.
///
/// # Errors
/// If the file can't be read.
pub(crate) fn take(
    run_dir: &Path,
    cookie: u64,
    node: NodeName,
    (before, clock): (Option<u64>, u64),
) -> io::Result<u64> {
    let path = path(run_dir, cookie, node);
    let written = match fs::read_to_string(&path) {
        // Torn or strange: nothing is known of it.
        Ok(text) => text.trim().parse().unwrap_or(0),
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let last = written.max(before.unwrap_or(0));
    let incarnation = after(last, clock);
    if last.saturating_sub(clock) > FAR {
        let ahead = (last - clock) / SECOND;
        tracing::warn!(
            ahead,
            "the last agent was started in days to come, by seconds"
        );
    } else if incarnation != clock {
        let behind = (last - clock) / SECOND;
        tracing::warn!(
            behind,
            "the clock of day is behind the start of the last agent, by seconds"
        );
    }
    if let Err(error) = fs::write(&path, format!("{incarnation}\n")) {
        let path = path.display();
        tracing::warn!(%path, %error, "the next agent will not know when this one has begun");
    }
    Ok(incarnation)
}

/// Whether an agent of this node has begun before, in this boot.
pub(crate) fn is_known(run_dir: &Path, cookie: u64, node: NodeName) -> bool {
    path(run_dir, cookie, node).exists()
}

fn path(run_dir: &Path, cookie: u64, node: NodeName) -> PathBuf {
    run_dir.join(format!("born-n{cookie}-{node}"))
}

/// In another second, for epochs know nothing less.
const fn after(last: u64, clock: u64) -> u64 {
    if clock > last || last.saturating_sub(clock) > FAR {
        clock
    } else {
        (last / SECOND).saturating_add(1).saturating_mul(SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_while_it_goes_on() {
        for (last, clock, expected) in [
            (0, 7, 7),
            (5 * SECOND, 9 * SECOND + 3, 9 * SECOND + 3),
            (5 * SECOND, 5 * SECOND + 1, 5 * SECOND + 1),
            (5 * SECOND, 5 * SECOND, 6 * SECOND),
            (5 * SECOND + 9, 2 * SECOND, 6 * SECOND),
            (FAR + 2 * SECOND, 2 * SECOND, FAR + 3 * SECOND),
            (FAR + 2 * SECOND + 1, 2 * SECOND, 2 * SECOND),
            (u64::MAX, 2 * SECOND, 2 * SECOND),
        ] {
            assert_eq!(after(last, clock), expected, "{last}, {clock}");
        }
    }

    #[test]
    fn an_agent_is_a_later_one_though_the_clock_was_set_back() {
        let dir = tempfile::tempdir().expect("a folder");
        let node = "a".parse().expect("a name");
        let born = |clock| take(dir.path(), 1, node, (None, clock)).expect("taken");
        assert_eq!(born(100 * SECOND), 100 * SECOND);
        assert_eq!(born(40 * SECOND), 101 * SECOND);
        assert_eq!(born(40 * SECOND), 102 * SECOND);
        assert_eq!(born(200 * SECOND), 200 * SECOND);
        fs::write(dir.path().join("born-n1-a"), "x").expect("written");
        assert_eq!(born(3 * SECOND), 3 * SECOND, "nothing is known");
        let again = take(dir.path(), 1, node, (Some(9 * SECOND), 3 * SECOND));
        assert_eq!(again.expect("taken"), 10 * SECOND, "of this process");
        let nowhere = take(&dir.path().join("gone"), 1, node, (None, 7));
        assert_eq!(nowhere.expect("taken"), 7, "it can't be written");
    }
}
