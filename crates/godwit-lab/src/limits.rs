//! A server's page cache and its disk: how much of the one, and how fast the other.
//!
//! Two control groups of version 1: `memory`, whose limit follows what its processes have
//! besides the page cache, so that the cache is what is limited; and `blkio`, which holds
//! back their reads from a [`Volume`].

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::cgroup::Group;
use crate::host::Host;
use crate::lab::Lab;
use crate::volume::Volume;

/// How often the limit follows what is no page cache.
const FOLLOW: Duration = Duration::from_millis(50);

/// What programs may need before it is looked at for the first time.
const FIRST: u64 = 64 << 20;

/// Enters the groups whose folders are the first two words, and becomes the rest.
const ENTER: &str = r#"for group in "$1" "$2"; do echo $$ >"$group/cgroup.procs" || exit; done
shift 2
exec "$@""#;

/// A disk, as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Bytes per second.
    pub bytes: u64,
    /// Reads per second.
    pub reads: u64,
}

/// Limits on the processes that [`command`](Self::command) starts; lifted when dropped.
#[derive(Debug)]
pub struct Limits {
    memory: Arc<Group>,
    blkio: Group,
    _follower: Sender<()>,
}

impl Limits {
    /// Limits on a machine of `lab`: so many bytes of page cache, and disks as fast as they
    /// are until [`slow_down`](Self::slow_down).
    ///
    /// # Errors
    /// Fails if the kernel or the way it was set up has no such limits.
    pub fn new(lab: &Lab, host: Host, page_cache: u64) -> Result<Self> {
        let name = format!("{}-{host}", lab.id());
        let memory = Arc::new(Group::new("memory", &name)?);
        let blkio = Group::new("blkio", &name)?;
        for group in [&*memory, &blkio] {
            lab.remove_at_end(group.path())?;
        }
        memory.write("memory.limit_in_bytes", &(page_cache + FIRST).to_string())?;
        let (follower, ended) = mpsc::channel::<()>();
        let followed = Arc::clone(&memory);
        let follow = move || {
            while ended.recv_timeout(FOLLOW) == Err(RecvTimeoutError::Timeout) {
                // It can't be lowered below what is in use and can't be given up.
                let _ = set(&followed, page_cache);
            }
        };
        thread::Builder::new()
            .name("limits".to_owned())
            .spawn(follow)
            .context("starting a thread")?;
        Ok(Self {
            memory,
            blkio,
            _follower: follower,
        })
    }

    /// From now on `volume` is like `disk`.
    ///
    /// # Errors
    /// Fails if the kernel can't hold back reads from it.
    pub fn slow_down(&self, volume: &Volume, disk: Disk) -> Result<()> {
        for (file, rate) in [
            ("blkio.throttle.read_bps_device", disk.bytes),
            ("blkio.throttle.read_iops_device", disk.reads),
        ] {
            self.blkio
                .write(file, &format!("{} {rate}", volume.device()))?;
        }
        Ok(())
    }

    /// How to start `program` under these limits; arguments are to be added.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", ENTER, "limits"]);
        command.arg(self.memory.path()).arg(self.blkio.path());
        command.arg(program);
        command
    }

    /// Bytes in the page cache.
    ///
    /// # Errors
    /// Fails if the kernel does not say.
    pub fn cached(&self) -> Result<u64> {
        cached(&self.memory)
    }
}

/// Room for so much page cache beside all else that is there now.
fn set(memory: &Group, page_cache: u64) -> Result<()> {
    let used = memory.read("memory.usage_in_bytes")?;
    let used: u64 = used.trim().parse().context("reading the memory in use")?;
    let limit = page_cache + used.saturating_sub(cached(memory)?);
    memory.write("memory.limit_in_bytes", &limit.to_string())
}

fn cached(memory: &Group) -> Result<u64> {
    let stat = memory.read("memory.stat")?;
    let mut lines = stat.lines();
    let cached = lines.find_map(|line| line.strip_prefix("cache "));
    let cached = cached.context("the kernel says nothing of its page cache")?;
    cached.trim().parse().context("reading the page cache")
}
