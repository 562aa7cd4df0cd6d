//! Pins that killed agents have left in network namespaces that are gone: their programs
//! see no frame any more, but keep places of the control group and memory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};

use crate::pin::{PinDir, PinError};
use crate::tcx;

/// Removes them; how many folders there were. `cookie` says which namespace the calling
/// thread is in.
///
/// A folder is stale only if none of its links on tcx has an interface, and no process
/// and no mount has a namespace of its cookie (`n<cookie>-<node>`).
///
/// # Errors
/// If a folder can't be removed.
pub fn remove_stale_pins(cookie: fn() -> io::Result<u64>) -> Result<usize, PinError> {
    let mut stale: Vec<_> = PinDir::all()?;
    stale.retain(|(name, pins)| cookie_of(name).is_some() && is_dead(pins));
    if stale.is_empty() {
        return Ok(0);
    }
    let Some(live) = live_cookies(cookie) else {
        return Ok(0);
    };
    stale.retain(|(name, _)| cookie_of(name).is_some_and(|cookie| !live.contains(&cookie)));
    let count = stale.len();
    for (_, pins) in stale {
        pins.remove()?;
    }
    Ok(count)
}

/// The namespace that a folder is of.
pub(crate) fn cookie_of(name: &str) -> Option<u64> {
    name.strip_prefix('n')?.split_once('-')?.0.parse().ok()
}

/// Whether it has `tap` and `gate`, and neither is on an interface.
fn is_dead(pins: &PinDir) -> bool {
    use std::os::fd::AsFd as _;

    ["tap", "gate"].iter().all(|name| {
        let link = tcx::pinned(&pins.link(name));
        link.is_ok_and(|link| tcx::interface_of(link.as_fd()).is_none())
    })
}

/// The namespaces of all processes and mounts; `None` if one can't be looked into.
fn live_cookies(cookie: fn() -> io::Result<u64>) -> Option<BTreeSet<u64>> {
    let files = namespaces()?;
    // A thread of its own: it does not come back.
    let looked = std::thread::spawn(move || {
        let mut cookies = BTreeSet::new();
        for file in files {
            setns(&file, CloneFlags::CLONE_NEWNET).ok()?;
            cookies.insert(cookie().ok()?);
        }
        Some(cookies)
    });
    looked.join().ok()?
}

fn namespaces() -> Option<Vec<File>> {
    use std::os::unix::fs::MetadataExt as _;

    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounted = mounts.lines().filter_map(namespace_mount);
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let processes = processes.map(|entry| entry.path().join("ns/net"));
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for path in mounted.chain(processes) {
        // What is no process, or has ended since.
        let Ok(file) = File::open(&path) else {
            continue;
        };
        let inode = file.metadata().ok()?.ino();
        if seen.insert(inode) {
            files.push(file);
        }
    }
    Some(files)
}

/// A line of /proc/self/mountinfo (proc(5)): the fourth field is the root of the mount, as
/// `net:[4026531840]`, the fifth where it is.
fn namespace_mount(line: &str) -> Option<PathBuf> {
    let mut fields = line.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    root.starts_with("net:[")
        .then(|| Path::new(point).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_says_which_namespace_it_is_of() {
        assert_eq!(cookie_of("n4711-a"), Some(4711));
        assert_eq!(cookie_of("n4711-web-1"), Some(4711));
        for other in ["director-4711", "n-a", "nine-a", "n4711", ""] {
            assert_eq!(cookie_of(other), None, "{other}");
        }
    }

    #[test]
    fn mounted_namespaces_are_found() {
        let line = "509 24 0:4 net:[4026532281] /run/netns/a rw shared:1 - nsfs nsfs rw";
        assert_eq!(namespace_mount(line), Some("/run/netns/a".into()));
        let line = "42 27 0:37 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw";
        assert_eq!(namespace_mount(line), None);
    }
}
