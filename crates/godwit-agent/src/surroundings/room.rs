//! Room that the agent needs: its folder and descriptors.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use godwit_core::fitness::Consequence;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::watch::Source;
use crate::config::Config;
use crate::control::{is_in_memory, own_files};
use crate::facts::{Look, Wrong};
use crate::votes::{forgets, votes};

/// One statvfs(2), one small folder of /proc and one small file.
const PERIOD: Duration = Duration::from_secs(1);

/// Less than these bytes: the next agent can't write down when it voted.
const LITTLE: u64 = 64 * 1024;

/// How many descriptors of a hundred may be in use.
const MOST: u64 = 90;

const FACTS: [&str; 2] = ["run_dir", "descriptors"];

/// Room of the process that this runs in.
pub(super) struct Room {
    folder: PathBuf,
    /// The agent's own files there, and which of them have been seen.
    own: Vec<(PathBuf, bool)>,
    /// Whether this node votes: its votes outlive it in memory alone.
    votes: bool,
    proc: PathBuf,
}

impl Room {
    pub(super) fn new(config: &Config) -> Self {
        let (run_dir, name) = (&config.node.run_dir, config.node.name);
        let cookie = godwit_sock::netns_cookie().ok();
        Self {
            folder: run_dir.clone(),
            own: cookie.map_or_else(Vec::new, |cookie| {
                own_files(run_dir, cookie, name)
                    .map(|path| (path, false))
                    .into()
            }),
            votes: votes(config),
            proc: PathBuf::from("/proc/self"),
        }
    }

    /// The votes of this agent bind the next one for as long as it can't be told when
    /// they end.
    fn folder(&mut self) -> Option<Wrong> {
        for (path, was_there) in &mut self.own {
            let is_there = path.exists();
            if *was_there && !is_there {
                let found = format!("{} has been deleted", path.display());
                let advice = match path.ends_with("app.sock") {
                    true => {
                        "restart the agent (systemctl restart godwit), which disturbs no \
                         connection: until then no server process finds it"
                    }
                    false => {
                        "the agent makes it anew within a second where it can; if it does not, \
                         restart it (systemctl restart godwit), which disturbs no connection: \
                         until then no command finds it, and it takes no changed file"
                    }
                };
                return Some(say(FACTS[0], found, advice));
            }
            *was_there |= is_there;
        }
        let folder = self.folder.display();
        let advice = "without it the next agent here votes 10 s late, and `godwit status` \
                      may not find the agent";
        let found = match statvfs(&self.folder) {
            Err(error) => format!("{folder}: {error}"),
            Ok(stat) if stat.flags().contains(FsFlags::ST_RDONLY) => {
                format!("{folder} is on a file system that is read-only")
            }
            Ok(stat) if stat.blocks_available() * stat.fragment_size() < LITTLE => {
                format!("{folder} is on a file system that is full")
            }
            Ok(_) => return self.votes.then(|| on_a_disk(&self.folder))?,
        };
        Some(say(FACTS[0], found, advice))
    }

    fn descriptors(&self) -> Option<Wrong> {
        let used = fs::read_dir(self.proc.join("fd")).ok()?.count() as u64;
        let limits = fs::read_to_string(self.proc.join("limits")).ok()?;
        let limit = limit(&limits, "Max open files")?;
        (used * 100 >= limit.saturating_mul(MOST)).then(|| {
            let found = format!("{used} of {limit} descriptors are in use");
            say(
                FACTS[1],
                found,
                "raise LimitNOFILE of godwit.service, and restart the agent",
            )
        })
    }
}

/// As [`Pinned`](godwit_sock::Pinned) has it: a vote must not wait for a disk.
fn on_a_disk(folder: &Path) -> Option<Wrong> {
    let (found, advice) = forgets(folder);
    (is_in_memory(folder) == Some(false)).then(|| say(FACTS[0], found, advice))
}

/// `Max open files            1024                 524288               files`
fn limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn say(name: &str, found: String, advice: &str) -> Wrong {
    Wrong {
        name: name.into(),
        share: None,
        consequence: Consequence::Say,
        found,
        advice: advice.into(),
    }
}

impl Source for Room {
    fn name(&self) -> &'static str {
        "room"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn look(&mut self) -> Look {
        let wrong = [self.folder(), self.descriptors()];
        Look {
            source: "room",
            watched: FACTS.map(str::to_owned).into(),
            wrong: wrong.into_iter().flatten().collect(),
            days_left: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::statfs::{TMPFS_MAGIC, statfs};

    use super::*;

    /// What is wrong with `used` descriptors of `limit`.
    fn wrong(used: usize, limit: &str) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: String| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        };
        for number in 0..used {
            write(&format!("fd/{number}"), String::new());
        }
        write(
            "limits",
            format!("Limit\nMax open files    {limit}   4096  files\n"),
        );
        let mut room = Room {
            folder: dir.path().to_owned(),
            own: Vec::new(),
            votes: false,
            proc: dir.path().to_owned(),
        };
        let wrong = room.look().wrong.into_iter();
        wrong.map(|wrong| wrong.name).collect()
    }

    #[test]
    fn what_is_short_is_said() {
        let none: [&str; 0] = [];
        assert_eq!(wrong(89, "100"), none);
        assert_eq!(wrong(90, "100"), ["descriptors"]);
        assert_eq!(wrong(3, "unlimited"), none);
    }

    /// Not before it was there: this runs without an agent's place, too.
    #[test]
    fn a_place_that_is_deleted_is_said() {
        let dir = tempfile::tempdir().expect("a folder");
        let [lock, app] = ["lock", "app.sock"].map(|name| dir.path().join(name));
        let mut room = Room {
            folder: dir.path().to_owned(),
            own: [&lock, &app].map(|path| (path.clone(), false)).into(),
            votes: false,
            proc: dir.path().to_owned(),
        };
        assert_eq!(room.folder(), None);
        fs::write(&lock, "").expect("written");
        assert_eq!(room.folder(), None);
        fs::remove_file(&lock).expect("it is there");
        let wrong = room.folder().expect("it is gone");
        assert_eq!(wrong.name, "run_dir");
        assert!(wrong.found.contains("has been deleted"), "{wrong:?}");
        assert!(wrong.advice.contains("makes it anew"), "{wrong:?}");
        // It is put back; what no agent can put back is another matter.
        for path in [&lock, &app] {
            fs::write(path, "").expect("written");
        }
        assert_eq!(room.folder(), None);
        fs::remove_file(&app).expect("it is there");
        let wrong = room.folder().expect("it is gone");
        assert!(wrong.advice.starts_with("restart the agent"), "{wrong:?}");
    }

    /// It matters to who votes.
    #[test]
    fn votes_are_kept_in_memory_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let memory = Path::new("/dev/shm");
        for folder in [dir.path(), memory] {
            let Ok(found) = statfs(folder) else {
                eprintln!("skipped: no {}", folder.display());
                continue;
            };
            let forgets = found.filesystem_type() != TMPFS_MAGIC;
            for votes in [true, false] {
                let mut room = Room {
                    folder: folder.to_owned(),
                    own: Vec::new(),
                    votes,
                    proc: folder.to_owned(),
                };
                let said = room.folder().map(|wrong| wrong.found);
                assert_eq!(said.is_some(), forgets && votes, "{said:?}");
                let is_it = |said: &String| said.contains("forgets its votes");
                assert!(said.iter().all(is_it), "{said:?}");
            }
        }
    }

    #[test]
    fn a_folder_that_is_gone_is_said() {
        let mut room = Room {
            folder: PathBuf::from("/nowhere/at/all"),
            own: Vec::new(),
            votes: false,
            proc: PathBuf::from("/nowhere"),
        };
        let wrong = room.look().wrong;
        assert!(
            matches!(&wrong[..], [it] if it.name == "run_dir"),
            "{wrong:?}"
        );
    }
}
