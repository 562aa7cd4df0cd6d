//! Where an agent's control socket is, and that there is one agent per place.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use godwit_wire::NodeName;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

const SOCKET: &str = "control.sock";
const APPS: &str = "app.sock";
const LOCK: &str = "lock";

/// What the lock's file says from the start of an agent until it has its socket.
const STARTING: &str = "starting\n";

/// A folder that this agent alone uses until it is dropped.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
    lock: Held,
}

/// Held, never read: the kernel gives it up when the process ends.
type Held = Arc<Mutex<Flock<File>>>;

/// Puts back what somebody has deleted of a place.
#[derive(Debug, Clone)]
pub(crate) struct Restorer {
    dir: PathBuf,
    lock: Held,
}

/// Why an agent has no place for its socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Another agent is there.
    #[error("an agent of node \"{node}\" is already running in this network namespace ({})", dir.display())]
    Taken {
        /// The node's name.
        node: NodeName,
        /// Its folder.
        dir: PathBuf,
    },
    /// Something else is where folders would be made.
    #[error("run_dir is {}, and {} is no folder: name one in memory, as /run/godwit is", run_dir.display(), path.display())]
    NoFolder {
        /// What the file says.
        run_dir: PathBuf,
        /// What is no folder: that, or one above.
        path: PathBuf,
    },
    /// Nothing can be made there.
    #[error("run_dir is {}, on a file system that is read-only: name a folder in memory, as /run/godwit is", run_dir.display())]
    ReadOnly {
        /// What the file says.
        run_dir: PathBuf,
    },
    /// A folder or file can't be made.
    #[error("{}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Why no agent was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// There is none.
    #[error("no agent answers in this network namespace (looked in {}): none runs, or its folder there was deleted", run_dir.display())]
    NoAgent {
        /// Where it would be.
        run_dir: PathBuf,
    },
    /// One has its place, and no socket yet.
    #[error("the agent of node \"{node}\" is starting, for {:.1} s by now: it answers when it has begun, and its log says what it waits for", since.as_secs_f64())]
    Starting {
        /// Its node.
        node: String,
        /// For how long.
        since: Duration,
    },
    /// One runs, and its socket was deleted.
    #[error("an agent runs, and {} was deleted: it makes it anew within a second, or says in its log why it can't", socket.display())]
    NoSocket {
        /// Where it would be.
        socket: PathBuf,
    },
    /// There are several.
    #[error("several agents are running in this network namespace; choose with --node: {}", nodes.join(", "))]
    Several {
        /// Their nodes.
        nodes: Vec<String>,
    },
    /// The folder can't be read.
    #[error("can't look for agents in {}", run_dir.display())]
    Unreadable {
        /// The folder.
        run_dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Place {
    /// Takes the place of a node in a network namespace, and clears away what
    /// agents that were killed have left.
    ///
    /// # Errors
    /// If another agent has it, or it can't be made.
    pub fn take(run_dir: &Path, cookie: u64, node: NodeName) -> Result<Self, PlaceError> {
        make_dir(run_dir, 0o755).map_err(|error| unfit(run_dir).unwrap_or(error))?;
        sweep(run_dir);
        let dir = folder(run_dir, cookie, node);
        loop {
            make_dir(&dir, 0o750)?;
            match try_lock(&dir).map_err(at(&dir.join(LOCK)))? {
                Locked::Yes(lock) => {
                    // Where there is no room it is not said.
                    let _ = note(&lock, STARTING);
                    let lock = Arc::new(Mutex::new(lock));
                    let place = Self { dir, lock };
                    place.remove_socket();
                    return Ok(place);
                }
                Locked::Taken => return Err(PlaceError::Taken { node, dir }),
                // Its last user removed it between our open and our lock.
                Locked::Gone => {}
            }
        }
    }

    /// Where the socket belongs.
    pub fn socket(&self) -> PathBuf {
        self.dir.join(SOCKET)
    }

    /// Where the socket for server processes belongs.
    pub fn app_socket(&self) -> PathBuf {
        self.dir.join(APPS)
    }

    /// What puts back what somebody has deleted of it.
    pub(crate) fn restorer(&self) -> Restorer {
        Restorer {
            dir: self.dir.clone(),
            lock: self.lock.clone(),
        }
    }

    fn remove_socket(&self) {
        remove_sockets(&self.dir);
    }
}

impl Restorer {
    /// Where the socket belongs.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join(SOCKET)
    }

    /// The socket is there: the agent has begun.
    pub(crate) fn has_begun(&self) {
        let held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever finds no socket then takes it for one that starts.
        let _ = note(&held, "");
    }

    /// Sees to it that the folder is there, and that this process holds its lock; says whether
    /// either was gone.
    ///
    /// # Errors
    /// If the folder that it was in is gone, too, if it can't be made, or if another agent has
    /// taken the place meanwhile.
    pub(crate) fn restore(&self) -> io::Result<bool> {
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.dir.join(LOCK);
        let ours = held.metadata()?;
        let is_ours = |there: &fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
        match fs::metadata(&path) {
            Ok(there) if is_ours(&there) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match DirBuilder::new().mode(0o750).create(&self.dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        match try_lock(&self.dir)? {
            Locked::Yes(lock) => *held = lock,
            Locked::Taken => return Err(io::Error::other("another agent has its place")),
            Locked::Gone => return Err(io::ErrorKind::NotFound.into()),
        }
        Ok(true)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.remove_socket();
        remove_locked(&self.dir);
    }
}

/// Why no agent has a place in such a folder, as far as this process may look.
pub(crate) fn unfit(run_dir: &Path) -> Option<PlaceError> {
    let (path, found) = first_there(run_dir)?;
    let run_dir = || run_dir.to_owned();
    match found {
        Ok(there) if !there.is_dir() => Some(PlaceError::NoFolder {
            run_dir: run_dir(),
            path: path.to_owned(),
        }),
        Ok(_) => {
            let is_read_only =
                statvfs(path).is_ok_and(|it| it.flags().contains(FsFlags::ST_RDONLY));
            is_read_only.then(|| PlaceError::ReadOnly { run_dir: run_dir() })
        }
        // A link to nothing.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(PlaceError::NoFolder {
            run_dir: run_dir(),
            path: path.to_owned(),
        }),
        Err(_) => None,
    }
}

/// Whether a folder is in memory (tmpfs), or would be: one that is not there is made.
pub(crate) fn is_in_memory(run_dir: &Path) -> Option<bool> {
    let (path, _) = first_there(run_dir)?;
    Some(statfs(path).ok()?.filesystem_type() == TMPFS_MAGIC)
}

/// The path, or the first above it, at which there is something, and what.
fn first_there(path: &Path) -> Option<(&Path, io::Result<fs::Metadata>)> {
    let is_there = |path: &&Path| fs::symlink_metadata(path).is_ok();
    let first = path.ancestors().find(is_there)?;
    Some((first, fs::metadata(first)))
}

/// The folder of a node in a network namespace.
fn folder(run_dir: &Path, cookie: u64, node: NodeName) -> PathBuf {
    run_dir.join(format!("n{cookie}-{node}"))
}

/// The file that the agent of a node keeps locked. Without it another one could start, and
/// no command finds this one.
pub(crate) fn lock_file(run_dir: &Path, cookie: u64, node: NodeName) -> PathBuf {
    folder(run_dir, cookie, node).join(LOCK)
}

/// Whether an agent of a node holds its place there.
pub(crate) fn is_taken(run_dir: &Path, cookie: u64, node: NodeName) -> bool {
    matches!(try_lock(&folder(run_dir, cookie, node)), Ok(Locked::Taken))
}

/// What an agent has of its own there: that file, and its sockets for people and for servers.
pub(crate) fn own_files(run_dir: &Path, cookie: u64, node: NodeName) -> [PathBuf; 3] {
    let dir = folder(run_dir, cookie, node);
    [LOCK, SOCKET, APPS].map(|name| dir.join(name))
}

/// The socket of the one agent in a network namespace, or of the one that is named.
///
/// # Errors
/// If there is none, or more than one and none is named.
pub fn find(run_dir: &Path, cookie: u64, node: Option<NodeName>) -> Result<PathBuf, FindError> {
    let places = places(run_dir, cookie)?.into_iter();
    let places = places.filter(|(name, _)| node.is_none_or(|node| node.as_str() == name));
    // Somebody else may not see whether it is there.
    let is_there = |(_, socket): &(String, PathBuf)| socket.try_exists().unwrap_or(true);
    let (mut found, bare): (Vec<_>, Vec<_>) = places.partition(is_there);
    found.sort();
    match found.as_slice() {
        [] => match bare.into_iter().find(|(_, socket)| is_held(socket)) {
            Some((node, socket)) => Err(match starting_for(&socket) {
                Some(since) => FindError::Starting { node, since },
                None => FindError::NoSocket { socket },
            }),
            None => Err(FindError::NoAgent {
                run_dir: run_dir.to_owned(),
            }),
        },
        [(_, socket)] => Ok(socket.clone()),
        several => {
            let nodes = several.iter().map(|(name, _)| name.clone()).collect();
            Err(FindError::Several { nodes })
        }
    }
}

/// The folders of nodes of a network namespace: their names, and where their sockets belong.
fn places(run_dir: &Path, cookie: u64) -> Result<Vec<(String, PathBuf)>, FindError> {
    let prefix = format!("n{cookie}-");
    let entries = match fs::read_dir(run_dir) {
        Ok(entries) => entries,
        // Nor is anybody in what is no folder.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(source) => {
            return Err(FindError::Unreadable {
                run_dir: run_dir.to_owned(),
                source,
            });
        }
    };
    let places = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let name = name.strip_prefix(&prefix)?.to_owned();
        Some((name, entry.path().join(SOCKET)))
    });
    Ok(places.collect())
}

/// The sockets of all agents, witnesses and directors that run in a network namespace, with the
/// names of their nodes.
///
/// # Errors
/// If the folder can't be read.
pub(crate) fn running(run_dir: &Path, cookie: u64) -> Result<Vec<(String, PathBuf)>, FindError> {
    let mut all = places(run_dir, cookie)?;
    all.retain(|(_, socket)| is_held(socket));
    all.sort();
    Ok(all)
}

/// The processes that have an agent's lock open, by its socket, as far as this process may look.
pub(crate) fn holders(socket: &Path) -> Vec<u32> {
    let id = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    let Some(lock) = id(&socket.with_file_name(LOCK)) else {
        return Vec::new();
    };
    let has_it = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        files.flatten().any(|file| id(&file.path()) == Some(lock))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|it| it.file_name().to_str()?.parse().ok());
    processes.filter(has_it).collect()
}

/// Whether an agent runs whose socket belongs there.
pub(crate) fn is_held(socket: &Path) -> bool {
    let dir = socket.parent().filter(|dir| dir.join(LOCK).exists());
    dir.is_some_and(|dir| matches!(try_lock(dir), Ok(Locked::Taken)))
}

/// For how long an agent has been starting whose socket belongs there.
fn starting_for(socket: &Path) -> Option<Duration> {
    let lock = socket.with_file_name(LOCK);
    if fs::read_to_string(&lock).ok()? != STARTING {
        return None;
    }
    let since = fs::metadata(&lock).ok()?.modified().ok()?;
    Some(since.elapsed().unwrap_or_default())
}

/// Writes what the lock's file says.
fn note(lock: &File, word: &str) -> io::Result<()> {
    lock.set_len(0)?;
    lock.write_all_at(word.as_bytes(), 0)
}

enum Locked {
    Yes(Flock<File>),
    Taken,
    Gone,
}

fn try_lock(dir: &Path) -> io::Result<Locked> {
    let path = dir.join(LOCK);
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Locked::Gone),
        Err(error) => return Err(error),
    };
    let inode = file.metadata()?.ino();
    let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((_, Errno::EWOULDBLOCK)) => return Ok(Locked::Taken),
        Err((_, errno)) => return Err(errno.into()),
    };
    let still_there = fs::metadata(&path).is_ok_and(|metadata| metadata.ino() == inode);
    Ok(if still_there {
        Locked::Yes(lock)
    } else {
        Locked::Gone
    })
}

/// Removes the folders of agents that are dead: their locks can be taken.
pub fn sweep(run_dir: &Path) {
    for entry in fs::read_dir(run_dir).into_iter().flatten().flatten() {
        let dir = entry.path();
        let is_place = entry.file_name().to_str().is_some_and(is_place_name);
        if !is_place || !dir.join(LOCK).exists() {
            continue;
        }
        if let Ok(Locked::Yes(lock)) = try_lock(&dir) {
            remove_sockets(&dir);
            remove_locked(&dir);
            drop(lock);
        }
    }
}

fn is_place_name(name: &str) -> bool {
    name.strip_prefix('n')
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(cookie, _)| cookie.parse::<u64>().is_ok())
}

/// Not there is as good as removed; anything else shows at bind.
fn remove_sockets(dir: &Path) {
    for name in [SOCKET, APPS] {
        let _ = fs::remove_file(dir.join(name));
    }
}

/// Removes a folder whose lock is held. One that holds more than we know of stays.
fn remove_locked(dir: &Path) {
    let _ = fs::remove_file(dir.join(LOCK));
    let _ = fs::remove_dir(dir);
}

fn make_dir(dir: &Path, mode: u32) -> Result<(), PlaceError> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(dir)
        .map_err(at(dir))
}

fn at(path: &Path) -> impl Fn(io::Error) -> PlaceError {
    move |source| PlaceError::File {
        path: path.to_owned(),
        source,
    }
}
