//! Disks that are full and memory that is short.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::Pid;

/// Room for logs, and for what nginx keeps.
const DISK: &str = "size=8m";

/// Memory that processes may take in addition, in bytes.
const CRUMB: &str = "262144";

/// Where the memory controller of version 1 is mounted, whose processes wait for memory
/// instead of being killed. Version 2 kills or slows down (`memory.high`), and is not
/// used here.
const CONTROLLER: &str = "/sys/fs/cgroup/memory";

/// A file system of its own at a folder, gone when it is dropped.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
}

/// A memory limit on some processes, lifted when it is dropped.
#[derive(Debug)]
pub(super) struct Shortage {
    group: PathBuf,
    home: PathBuf,
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
        home().is_some_and(|home| {
            home.join("memory.oom_control").exists() || home.join("cgroup.procs").exists()
        })
    }

    /// From now on `processes` wait when they need more memory.
    pub(super) fn new(name: &str, processes: &[Pid]) -> Result<Self> {
        let home = home().context("no memory controller")?;
        let group = home.join(name);
        fs::create_dir(&group).with_context(|| format!("creating {}", group.display()))?;
        let shortage = Self { group, home };
        for process in processes {
            shortage.write("cgroup.procs", &process.to_string())?;
        }
        shortage.write("memory.oom_control", "1")?;
        shortage.write("memory.limit_in_bytes", CRUMB)?;
        Ok(shortage)
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.group.join(file);
        fs::write(&path, value).with_context(|| format!("writing {value} to {}", path.display()))
    }
}

impl Drop for Shortage {
    fn drop(&mut self) {
        // Whatever of it fails, the next lab's sweep can't mend it either.
        let _ = self.write("memory.limit_in_bytes", "-1");
        let processes = fs::read_to_string(self.group.join("cgroup.procs"));
        for process in processes.unwrap_or_default().lines() {
            let _ = fs::write(self.home.join("cgroup.procs"), process);
        }
        let _ = fs::remove_dir(&self.group);
    }
}

/// The group that this process is in, cgroups(7).
fn home() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut lines = groups.lines();
    let path = lines.find_map(|line| line.split_once(":memory:"))?.1;
    let home = Path::new(CONTROLLER).join(path.trim_start_matches('/'));
    // A container sees its own group as the root.
    let home = if home.is_dir() {
        home
    } else {
        CONTROLLER.into()
    };
    home.is_dir().then_some(home)
}
