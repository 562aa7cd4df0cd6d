//! Control groups of version 1, made for some processes and removed again.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Where controllers are mounted, each in a folder of its name.
const MOUNTS: &str = "/sys/fs/cgroup";

/// How often a group is tried to be removed, and how long it is waited in between.
const REMOVALS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// A group of one controller; removed when it is dropped, its processes are then where
/// the lab's own are.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    home: PathBuf,
}

impl Group {
    /// Makes the group `name` of `controller`, below the one that this process is in.
    pub(crate) fn new(controller: &str, name: &str) -> Result<Self> {
        let home = home(controller).with_context(|| {
            format!("this machine has no {controller} controller of version 1, cgroups(7)")
        })?;
        let path = home.join(name);
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path, home })
    }

    /// Its folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value).with_context(|| format!("writing {value} to {}", path.display()))
    }

    pub(crate) fn read(&self, file: &str) -> Result<String> {
        let path = self.path.join(file);
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes that were killed are there until they have ended. Whatever else of it
        // fails, the next lab's sweep can't mend it either.
        for _ in 0..REMOVALS {
            for process in self.read("cgroup.procs").unwrap_or_default().lines() {
                let _ = fs::write(self.home.join("cgroup.procs"), process);
            }
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            thread::sleep(PAUSE);
        }
    }
}

/// The group of `controller` that this process is in.
pub(crate) fn home(controller: &str) -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let key = format!(":{controller}:");
    let mut lines = groups.lines();
    let path = lines.find_map(|line| line.split_once(&key))?.1;
    let root = Path::new(MOUNTS).join(controller);
    let home = root.join(path.trim_start_matches('/'));
    // A container sees its own group as the root.
    let home = if home.is_dir() { home } else { root };
    home.is_dir().then_some(home)
}
