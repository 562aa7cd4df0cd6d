//! Processes that are frozen with their control group (cgroups(7), version 2,
//! `cgroup.freeze`).

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Where control groups of version 2 are.
#[derive(Debug, Clone, Default)]
pub(super) struct Freezer {
    /// `None`: there are none, and nobody is frozen.
    root: Option<PathBuf>,
}

impl Freezer {
    /// # Errors
    /// If they are not mounted, or mounts can't be read.
    pub(super) fn find() -> io::Result<Self> {
        let root = Some(godwit_bpf::cgroup_root()?);
        Ok(Self { root })
    }

    /// Whether all of a process's group is frozen, by itself or with one above it.
    pub(super) fn holds(&self, pid: u32) -> bool {
        let Some(root) = &self.root else {
            return false;
        };
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let Some(group) = groups.lines().find_map(group_below) else {
            return false;
        };
        // The topmost one can't be frozen, and has no such file.
        let events = fs::read_to_string(root.join(group).join("cgroup.events"));
        events.is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
    }
}

/// The group of version 2 in a line of /proc/PID/cgroup, from the topmost one that is seen
/// here. `None` for one that is not below it.
fn group_below(line: &str) -> Option<&Path> {
    let path = Path::new(line.strip_prefix("0::/")?);
    let is_below = path
        .components()
        .all(|it| matches!(it, Component::Normal(_)));
    is_below.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_that_of_version_2() {
        assert_eq!(group_below("5:freezer:/docker/1"), None);
        assert_eq!(
            group_below("0::/system.slice/nginx.service"),
            Some(Path::new("system.slice/nginx.service"))
        );
        assert_eq!(group_below("0::/"), Some(Path::new("")));
        assert_eq!(group_below("0::/../other"), None, "of another namespace");
    }
}
