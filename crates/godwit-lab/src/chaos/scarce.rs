//! Disks that are full and memory that is short.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::Pid;

use crate::cgroup::{Group, home};

/// Room for logs, and for what nginx keeps.
const DISK: &str = "size=8m";

/// Memory that processes may take in addition, in bytes.
const CRUMB: &str = "262144";

/// A file system of its own at a folder, gone when it is dropped.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
}

/// A memory limit on some processes, lifted when it is dropped.
///
/// The controller is that of version 1, whose processes wait for memory instead of being
/// killed. Version 2 kills or slows down (`memory.high`), and is not used here.
#[derive(Debug)]
pub(super) struct Shortage {
    group: Group,
}

impl Disk {
    pub(super) fn new(folder: &Path) -> Result<Self> {
        mount(
            Some("godwit-lab"),
            folder,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(DISK),
        )
        .with_context(|| format!("mounting a disk at {}", folder.display()))?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// Leaves no byte free.
    pub(super) fn fill(&self) -> Result<()> {
        let path = self.ballast();
        let file = fs::File::create(&path);
        let mut file = file.with_context(|| format!("creating {}", path.display()))?;
        for size in [65_536, 4096] {
            let block = vec![0; size];
            // The error is what is wanted: no space left.
            while file.write_all(&block).is_ok() {}
        }
        Ok(())
    }

    pub(super) fn clear(&self) -> Result<()> {
        let path = self.ballast();
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Files may be open; the lab's watchdog tries again if this fails.
        let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
    }
}

impl Shortage {
    /// Whether this machine lets us limit memory so that nobody is killed.
    pub(super) fn is_possible() -> bool {
        home("memory").is_some_and(|home| {
            home.join("memory.oom_control").exists() || home.join("cgroup.procs").exists()
        })
    }

    /// From now on `processes` wait when they need more memory.
    pub(super) fn new(name: &str, processes: &[Pid]) -> Result<Self> {
        let group = Group::new("memory", name)?;
        for process in processes {
            group.write("cgroup.procs", &process.to_string())?;
        }
        group.write("memory.oom_control", "1")?;
        group.write("memory.limit_in_bytes", CRUMB)?;
        Ok(Self { group })
    }
}

impl Drop for Shortage {
    fn drop(&mut self) {
        // Whatever of it fails, the next lab's sweep can't mend it either.
        let _ = self.group.write("memory.limit_in_bytes", "-1");
    }
}
