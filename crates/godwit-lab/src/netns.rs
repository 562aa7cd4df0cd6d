//! One network namespace: made, entered, configured, emptied, deleted.
//!
//! A namespace is entered by a thread (setns is per thread), never by the
//! process: several labs share one process, and the mounts of the host stay
//! visible inside, above all `/sys/fs/bpf`, which `ip netns exec` would hide.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::panic;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::tool;

/// Where iproute2 keeps named namespaces.
pub(crate) const RUN_NETNS: &str = "/run/netns";

/// A named network namespace; the name, not a reference that keeps it alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes the namespace and brings its loopback up.
    ///
    /// # Errors
    /// Fails without root, or if the name is taken.
    pub(crate) fn create(name: String) -> Result<Self> {
        tool::run("ip", &["netns", "add", &name])?;
        let netns = Self { name };
        netns.ip(&["link set lo up".to_owned()])?;
        Ok(netns)
    }

    /// The namespace called `name`, which something else made.
    pub(crate) const fn named(name: String) -> Self {
        Self { name }
    }

    /// Name as in `ip netns list`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// File to hand to `nsenter --net=`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(RUN_NETNS).join(&self.name)
    }

    /// Runs `work` on a thread inside the namespace and returns its value.
    ///
    /// Sockets that `work` opens and processes that it starts stay inside.
    ///
    /// # Errors
    /// Fails if the namespace is gone.
    ///
    /// # Panics
    /// Goes on with a panic of `work`.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            let worker = scope.spawn(|| -> Result<T> {
                self.join_current_thread()?;
                Ok(work())
            });
            worker
                .join()
                .unwrap_or_else(|cause| panic::resume_unwind(cause))
        })
    }

    /// Moves the calling thread into the namespace for the rest of its life.
    pub(crate) fn join_current_thread(&self) -> Result<()> {
        let file = fs::File::open(self.path())
            .with_context(|| format!("opening the namespace {}", self.name))?;
        setns(file, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("entering the namespace {}", self.name))
    }

    /// Runs a batch of `ip` commands, one per line, inside.
    pub(crate) fn ip(&self, lines: &[String]) -> Result<()> {
        self.batch("ip", lines)
    }

    /// As [`ip`](Self::ip) for `tc` and `bridge`, which take the same options.
    pub(crate) fn batch(&self, program: &str, lines: &[String]) -> Result<()> {
        let args = ["-n", self.name.as_str(), "-batch", "-"];
        tool::feed(program, &args, &(lines.join("\n") + "\n")).map(drop)
    }

    /// Loads an nftables rule set inside; a rule set is one transaction.
    pub(crate) fn nft(&self, rules: &str) -> Result<()> {
        self.enter(|| tool::feed("nft", &["-f", "-"], rules))?
            .map(drop)
    }

    /// Writes `value` to `/proc/sys/net/<key>` inside; dots may be slashes.
    ///
    /// # Errors
    /// Fails if the kernel has no such key or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = PathBuf::from("/proc/sys/net").join(key.replace('.', "/"));
        self.enter(|| fs::write(&path, value))?
            .with_context(|| format!("setting {key}={value} in {}", self.name))
    }

    /// Processes inside, without the calling one.
    ///
    /// # Errors
    /// Fails if the namespace is gone.
    pub fn pids(&self) -> Result<Vec<Pid>> {
        let inode = fs::metadata(self.path())
            .with_context(|| format!("looking at the namespace {}", self.name))?
            .ino();
        let own = Pid::this();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").context("reading /proc")? {
            let Some(pid) = entry
                .ok()
                .and_then(|e| e.file_name().to_str()?.parse().ok())
            else {
                continue;
            };
            // A process may end meanwhile, and a dead one has no namespace.
            let inside =
                fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|m| m.ino() == inode);
            if inside && Pid::from_raw(pid) != own {
                found.push(Pid::from_raw(pid));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Sends SIGKILL to every process inside until none is left.
    ///
    /// # Errors
    /// Fails if a process survives for two seconds.
    pub(crate) fn kill_all(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let pids = self.pids()?;
            if pids.is_empty() {
                return Ok(());
            }
            for &pid in &pids {
                // It may have ended by itself in between.
                let _ = kill(pid, Signal::SIGKILL);
            }
            if Instant::now() > deadline {
                return Err(anyhow!("{} still has processes {pids:?}", self.name));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills what runs inside and removes the name; an absent one is fine.
    pub(crate) fn delete(&self) -> Result<()> {
        match fs::metadata(self.path()) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e).context("looking at a namespace"),
        }
        self.kill_all()?;
        // Orphaned sockets would keep a nameless namespace for minutes. What
        // this sends, and whether it finds any, makes no difference any more.
        let _ = self.enter(|| tool::run("ss", &["--kill", "--all", "--tcp"]))?;
        tool::run("ip", &["netns", "del", &self.name]).map(drop)
    }
}
