//! Where programs and maps stay while no agent runs: a folder in bpffs.
//!
//! `ip netns exec` gives its child a fresh `/sys` without bpffs. An agent
//! started that way would lose its pins with the mount, so it first joins the
//! mount namespace of process 1, where they last.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use thiserror::Error;

const BPFFS: &str = "/sys/fs/bpf";

/// Why there is no place to pin to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PinError {
    /// bpffs is not mounted and could not be.
    #[error("can't mount bpffs on {BPFFS}, which needs the rights of root")]
    Mount(#[source] nix::Error),
    /// This process may not look there, or change what is there.
    #[error("can't use {path}, which needs the rights of root")]
    NotAllowed {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The folder in bpffs could not be made, read or removed.
    #[error("can't use {path}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl PinError {
    /// Of something in bpffs.
    pub(crate) fn at(path: PathBuf, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::PermissionDenied {
            Self::NotAllowed { path, source }
        } else {
            Self::Folder { path, source }
        }
    }
}

/// The pins of one agent.
#[derive(Debug, Clone)]
pub struct PinDir(PathBuf);

impl PinDir {
    /// Makes bpffs available and returns the folder `name` in it.
    ///
    /// May move the calling thread to the mount namespace of process 1; call
    /// it after all files have been read and before other threads exist.
    ///
    /// # Errors
    /// Fails if bpffs can't be mounted (root is needed) or the folder made.
    pub fn open(name: &str) -> Result<Self, PinError> {
        ensure_bpffs()?;
        let dir = Self(Path::new(BPFFS).join("godwit").join(name));
        for path in [dir.0.clone(), dir.maps(), dir.links()] {
            fs::create_dir_all(&path).map_err(|source| PinError::at(path, source))?;
        }
        Ok(dir)
    }

    /// The folder, or `None` where no agent has pinned under that name.
    ///
    /// # Errors
    /// As [`PinDir::open`].
    pub fn existing(name: &str) -> Result<Option<Self>, PinError> {
        ensure_bpffs()?;
        let path = Path::new(BPFFS).join("godwit").join(name);
        // Nothing is there, or nobody knows: not the same.
        match path.try_exists() {
            Ok(is_there) => Ok(is_there.then_some(Self(path))),
            Err(source) => Err(PinError::at(path, source)),
        }
    }

    /// The folders of all agents of this machine, with their names.
    pub(crate) fn all() -> Result<Vec<(String, Self)>, PinError> {
        ensure_bpffs()?;
        let path = Path::new(BPFFS).join("godwit");
        let folders = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            folders => folders.map_err(|source| PinError::at(path, source))?,
        };
        let named = folders.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name, Self(entry.path())))
        });
        Ok(named.collect())
    }

    /// The names of those folders; there may be none. Mounts nothing.
    pub(crate) fn names() -> io::Result<Vec<String>> {
        let root = Path::new(BPFFS);
        if statfs(root)?.filesystem_type() != BPF_FS_MAGIC {
            return Err(io::ErrorKind::NotFound.into());
        }
        let folders = match fs::read_dir(root.join("godwit")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            folders => folders?,
        };
        let names = folders.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    /// Gives the folder another name.
    pub(crate) fn rename(&self, name: &str) -> Result<(), PinError> {
        let renamed = fs::rename(&self.0, self.0.with_file_name(name));
        renamed.map_err(|source| PinError::at(self.0.clone(), source))
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.links().join(name)
    }

    /// Puts the pin `name` in place of the pin `earlier`, at once.
    pub(crate) fn rename_link(&self, name: &str, earlier: &str) -> io::Result<()> {
        fs::rename(self.link(name), self.link(earlier))
    }

    pub(crate) fn link_names(&self) -> Vec<String> {
        fs::read_dir(self.links())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Removes every pin; programs without another reference detach.
    ///
    /// # Errors
    /// Fails if the folder can't be removed.
    pub fn remove(self) -> Result<(), PinError> {
        // bpffs has no recursive removal: entries, then folders.
        for dir in [self.links(), self.maps()] {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                remove(&entry.path(), fs::remove_file)?;
            }
            remove(&dir, fs::remove_dir)?;
        }
        remove(&self.0, fs::remove_dir)
    }

    fn maps(&self) -> PathBuf {
        self.0.join("maps")
    }

    fn links(&self) -> PathBuf {
        self.0.join("links")
    }
}

fn remove(path: &Path, how: fn(PathBuf) -> io::Result<()>) -> Result<(), PinError> {
    match how(path.to_owned()) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(PinError::at(path.to_owned(), source))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn is_bpffs() -> bool {
    statfs(BPFFS).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC)
}

fn ensure_bpffs() -> Result<(), PinError> {
    if is_bpffs() {
        return Ok(());
    }
    // A failure leaves us where we are: then the mount below is private, and
    // the pins live as long as this mount namespace.
    let _ = join_init_mounts();
    if is_bpffs() {
        return Ok(());
    }
    mount(
        Some("bpf"),
        BPFFS,
        Some("bpf"),
        MsFlags::empty(),
        None::<&str>,
    )
    .map_err(PinError::Mount)
}

fn join_init_mounts() -> io::Result<()> {
    let namespace = File::open("/proc/1/ns/mnt")?;
    // setns(2) wants a file system context that no other thread shares.
    unshare(CloneFlags::CLONE_FS)?;
    setns(namespace, CloneFlags::CLONE_NEWNS)?;
    Ok(())
}
