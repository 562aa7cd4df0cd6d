//! One machine of a lab: a namespace, a folder for logs, programs inside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::host::{Host, Network};
use crate::netns::Netns;
use crate::packet::PacketSocket;
use crate::process::{self, Output, Pipes, Process};

/// A machine of a lab; cheap to clone, but only as alive as its lab.
#[derive(Clone, Debug)]
pub struct Node {
    host: Host,
    netns: Netns,
    folder: PathBuf,
    started: Arc<AtomicU32>,
}

impl Node {
    pub(super) fn new(host: Host, lab: &str, folder: &Path) -> Self {
        Self {
            host,
            netns: Netns::named(format!("{lab}-{host}")),
            folder: folder.join(host.name()),
            started: Arc::default(),
        }
    }

    /// Which machine this is.
    pub const fn host(&self) -> Host {
        self.host
    }

    /// Its network namespace.
    pub const fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Folder for this machine's files and logs; made when first asked for.
    ///
    /// # Errors
    /// Fails if it can't be made.
    pub fn folder(&self) -> Result<&Path> {
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("creating {}", self.folder.display()))?;
        Ok(&self.folder)
    }

    /// Starts a program here; its output goes to `<name>-<n>.log` in the folder.
    ///
    /// # Errors
    /// Fails if it can't be started.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        self.start(name, command, Pipes::None)
    }

    /// As [`spawn`](Self::spawn), with some standard streams as pipes.
    pub(crate) fn start(&self, name: &str, command: Command, pipes: Pipes) -> Result<Process> {
        let log = self.scratch(name)?.with_extension("log");
        Process::start(&self.netns, name, command, log, pipes)
    }

    /// Runs a program here to its end.
    ///
    /// # Errors
    /// Fails if it can't be started or still runs after `deadline`; it is then
    /// killed. Another exit status than 0 is not an error here.
    pub fn run(&self, command: Command, deadline: Duration) -> Result<Output> {
        process::run(&self.netns, command, &self.scratch("run")?, deadline)
    }

    /// Runs `work` on a thread that is on this machine, and returns its value.
    ///
    /// # Errors
    /// Fails if the machine is gone.
    ///
    /// # Panics
    /// Goes on with a panic of `work`.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.netns.enter(work)
    }

    /// Puts whole frames on the data network, as they are.
    ///
    /// # Errors
    /// Fails if the machine is gone, or its interface.
    pub fn send_frames(&self, frames: &[Vec<u8>]) -> Result<()> {
        self.enter(|| {
            let socket = PacketSocket::open(Network::Data.interface())?;
            frames.iter().try_for_each(|frame| socket.send(frame))
        })?
    }

    fn scratch(&self, name: &str) -> Result<PathBuf> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        Ok(self.folder()?.join(format!("{name}-{number}")))
    }
}
