//! Server processes that have begun to die and still have their files.
//!
//! A core dump takes seconds, and so does giving back much memory. The kernel closes the
//! files behind both, so until then sock_diag(7) shows a listener that serves nobody.

use std::collections::BTreeMap;
use std::fs;

use godwit_bpf::ProcessExit;
use godwit_wire::ShareId;

/// Processes that die, by share and number.
#[derive(Debug, Default)]
pub(super) struct DyingServers(BTreeMap<(ShareId, u32), Dying>);

#[derive(Debug, Clone, Copy)]
struct Dying {
    /// Whether nobody else listens for the share.
    last_listener: bool,
    /// Whether its end was told. It gives its files back soon after.
    ended: bool,
    /// Whether this agent sees the process at all: it may be in another PID namespace.
    visible: bool,
}

impl DyingServers {
    /// Takes a record in. Whether it says anything that an earlier one did not.
    pub(super) fn note(&mut self, exit: &ProcessExit) -> bool {
        let before = self.0.get(&(exit.share, exit.pid)).copied();
        let known = before.is_some_and(|it| it.last_listener);
        let now = Dying {
            last_listener: exit.last_listener || known,
            ended: !exit.dying,
            visible: has_files(exit.pid),
        };
        if now.last_listener || exit.dying {
            self.0.insert((exit.share, exit.pid), now);
        } else {
            self.0.remove(&(exit.share, exit.pid));
        }
        before.is_none() || exit.kept > 0 || (exit.last_listener && !known)
    }

    /// Whether what seems to listen for a share is of a process that dies.
    pub(super) fn have_listener(&self, share: ShareId) -> bool {
        let mut all = self.0.iter();
        all.any(|((of, _), dying)| *of == share && dying.last_listener)
    }

    /// Forgets those that have closed their files.
    pub(super) fn forget_dead(&mut self) {
        self.0.retain(|(_, pid), dying| {
            if dying.visible {
                has_files(*pid)
            } else {
                !dying.ended
            }
        });
    }
}

/// Whether a thread of the process is not yet a zombie, which has no files.
fn has_files(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat"));
        stat.is_ok_and(|stat| !is_zombie(&stat))
    })
}

/// By the state behind the name, which may have any characters (proc_pid_stat(5)).
fn is_zombie(stat: &str) -> bool {
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    state.starts_with(['Z', 'X'])
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    const SHARE: ShareId = ShareId(3);

    fn exit(pid: u32, dying: bool, last_listener: bool, kept: u32) -> ProcessExit {
        ProcessExit {
            share: SHARE,
            pid,
            comm: "server".to_owned(),
            code: 11,
            flows: 1,
            kept,
            listened: true,
            last_listener,
            server: true,
            dying,
            cut: false,
        }
    }

    #[test]
    fn a_record_is_news_if_it_says_more_than_the_one_before() {
        let pid = std::process::id();
        for (first, second, is_new) in [
            ((true, 1), (true, 0), false),
            ((false, 1), (false, 0), false),
            ((false, 1), (true, 0), true),
            ((true, 1), (true, 2), true),
        ] {
            let mut dying = DyingServers::default();
            assert!(dying.note(&exit(pid, true, first.0, first.1)));
            let second = exit(pid, false, second.0, second.1);
            assert_eq!(dying.note(&second), is_new, "{first:?}");
        }
        assert!(DyingServers::default().note(&exit(pid, false, false, 0)));
    }

    /// A process that lives stands for one that dumps core.
    #[test]
    fn a_listener_counts_again_when_its_process_has_no_files() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it runs");
        let mut dying = DyingServers::default();
        for told in [true, false] {
            dying.note(&exit(child.id(), told, true, 0));
            dying.forget_dead();
            assert!(dying.have_listener(SHARE), "it has its files");
            assert!(!dying.have_listener(ShareId(4)));
        }
        child.kill().expect("it runs");
        let deadline = Instant::now() + Duration::from_secs(10);
        while dying.have_listener(SHARE) {
            assert!(Instant::now() < deadline, "a zombie has no files");
            dying.forget_dead();
        }
        child.wait().expect("it was killed");
    }

    #[test]
    fn a_zombie_is_known_whatever_its_name() {
        assert!(is_zombie("12 (a) R) Z 1 12"));
        assert!(!is_zombie("12 (a) Z) S 1 12"));
    }
}
