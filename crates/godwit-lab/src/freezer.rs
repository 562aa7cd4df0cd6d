//! A control group of version 2 that can be frozen, as `docker pause` does.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::Pid;

/// For a group to be frozen, and for processes to leave one.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// A group with some processes; when it is dropped they go on, where the lab's own are.
#[derive(Debug)]
pub struct FrozenGroup {
    path: PathBuf,
    root: PathBuf,
}

impl FrozenGroup {
    /// An empty group, not frozen yet; `None` on a machine without control groups of
    /// version 2.
    ///
    /// # Errors
    /// If there is one of that name.
    pub fn new(name: &str) -> Result<Option<Self>> {
        let Some(root) = root() else {
            return Ok(None);
        };
        let path = root.join(name);
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Some(Self { path, root }))
    }

    /// Puts a process into it.
    ///
    /// # Errors
    /// If it has ended.
    pub fn take(&self, process: Pid) -> Result<()> {
        self.write("cgroup.procs", &process.to_string())
    }

    /// Freezes it, and waits until all in it are.
    ///
    /// # Errors
    /// If the kernel refuses it, or does not get there.
    pub fn freeze(&self) -> Result<()> {
        self.write("cgroup.freeze", "1")?;
        let deadline = Instant::now() + PATIENCE;
        let events = self.path.join("cgroup.events");
        while !fs::read_to_string(&events)?.contains("frozen 1") {
            ensure!(Instant::now() < deadline, "they are not frozen");
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Lets them go on.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn thaw(&self) -> Result<()> {
        self.write("cgroup.freeze", "0")
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value).with_context(|| format!("writing {value} to {}", path.display()))
    }
}

impl Drop for FrozenGroup {
    fn drop(&mut self) {
        let _ = self.thaw();
        let deadline = Instant::now() + PATIENCE;
        // Those that were killed are there until they have ended.
        while fs::remove_dir(&self.path).is_err() && Instant::now() < deadline {
            let processes = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
            for process in processes.lines() {
                let _ = fs::write(self.root.join("cgroup.procs"), process);
            }
            thread::sleep(PAUSE);
        }
    }
}

/// The topmost group of version 2: alone, or beside version 1.
fn root() -> Option<PathBuf> {
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let mut places = places.into_iter().map(Path::new);
    let root = places.find(|it| it.join("cgroup.controllers").exists())?;
    Some(root.to_owned())
}
