//! Where the agent is, and what one that has gone has left.

use std::env;
use std::fs;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use godwit_sock::{StreamPosition, netns_cookie};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_to, socket,
};

use crate::descriptor::option;

/// Names the agent's socket.
const VARIABLE: &str = "GODWIT_APP_SOCKET";

/// Where agents have their sockets: `n<network namespace>-<node>/app.sock`.
const RUN_DIR: &str = "/run/godwit";

/// A connection to the agent of this network namespace, if there is one.
pub(crate) fn connect() -> Option<OwnedFd> {
    match env::var_os(VARIABLE) {
        Some(path) => connect_at(Path::new(&path)),
        None => places().iter().find_map(|path| connect_at(path)),
    }
}

fn places() -> Vec<PathBuf> {
    let Ok(cookie) = netns_cookie() else {
        return Vec::new();
    };
    let prefix = format!("n{cookie}-");
    let entries = fs::read_dir(RUN_DIR).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    ours.map(|entry| entry.path().join("app.sock")).collect()
}

fn connect_at(path: &Path) -> Option<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).ok()?;
    let address = UnixAddr::new(path).ok()?;
    connect_to(socket.as_raw_fd(), &address).ok()?;
    Some(socket)
}

/// What became of a connection that an agent had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is in repair mode: only an agent may end or resume it.
    Stopped,
    /// It runs.
    Running,
    /// It was disconnected: another server has it.
    Over,
}

/// Looks at a connection without an agent.
pub(crate) fn fate(socket: BorrowedFd<'_>) -> Fate {
    let repair = option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR);
    if repair.is_ok_and(|repair| repair != 0) {
        return Fate::Stopped;
    }
    match StreamPosition::of(socket) {
        Ok(_) => Fate::Running,
        Err(_) => Fate::Over,
    }
}
