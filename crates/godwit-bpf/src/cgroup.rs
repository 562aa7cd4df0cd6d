//! What the programs that belong to sockets need: the place where they see all of
//! them, and names for congestion controls.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many this process has named: each needs a name.
static NAMED: AtomicU32 = AtomicU32::new(0);

/// A name for a congestion control, which the whole machine shares: fits
/// `TCP_CA_NAME_MAX`, the process and how many it had before.
pub(crate) fn congestion_name() -> String {
    let nth = NAMED.fetch_add(1, Ordering::Relaxed) % 1000;
    format!("gw{}.{nth}", process::id())
}

/// Where the topmost control group of version 2 is that this process sees.
///
/// # Errors
/// If control groups of version 2 are not mounted, or mounts can't be read.
pub fn cgroup_root() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let path = mounts.lines().find_map(cgroup2_mount);
    path.ok_or_else(|| io::ErrorKind::NotFound.into())
}

pub(crate) fn root() -> io::Result<File> {
    File::open(cgroup_root()?)
}

/// A line of /proc/self/mountinfo (proc(5)): five fields, of which the last is
/// the mount point, some more, a dash, the type.
fn cgroup2_mount(line: &str) -> Option<PathBuf> {
    let (mount, kind) = line.split_once(" - ")?;
    let point = mount.split(' ').nth(4)?;
    kind.starts_with("cgroup2 ").then(|| PathBuf::from(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_tree_is_found_among_the_mounts() {
        let v1 = "33 27 0:28 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu";
        assert_eq!(cgroup2_mount(v1), None);
        let v2 = "42 27 0:37 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw";
        assert_eq!(cgroup2_mount(v2), Some("/sys/fs/cgroup".into()));
        assert_eq!(cgroup2_mount("cgroup2"), None);
    }

    #[test]
    fn a_congestion_control_has_a_name_of_its_own() {
        let (one, other) = (congestion_name(), congestion_name());
        assert!(one != other && one.len() < 16, "{one} {other}");
    }
}
