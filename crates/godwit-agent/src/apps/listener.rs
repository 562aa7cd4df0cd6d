//! The socket that processes connect to.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::unistd::Group;

/// Why there is no socket for server processes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppSocketError {
    /// `app_group` is no group of this machine.
    #[error("there is no group \"{0}\" (app_group)")]
    NoGroup(String),
    /// It can't be made.
    #[error("{}", path.display())]
    File {
        /// The socket, or its folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A listening socket of type SOCK_SEQPACKET; its file goes with its folder.
#[derive(Debug)]
pub struct AppSocket {
    // Of another type than its name says, which std does not ask for.
    listener: UnixListener,
    path: PathBuf,
}

impl AppSocket {
    /// Binds the socket. Root may connect, and so may the group, which is let into
    /// the folder for that. Needs CAP_CHOWN for a group.
    ///
    /// # Errors
    /// See [`AppSocketError`].
    pub fn bind(path: &Path, group: Option<&str>) -> Result<Self, AppSocketError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| AppSocketError::File { path, source }
        };
        let bound = || -> io::Result<OwnedFd> {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
            bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
            fs::set_permissions(path, Permissions::from_mode(0o660))?;
            listen(&socket, Backlog::MAXCONN)?;
            Ok(socket)
        };
        let socket = bound().map_err(at(path))?;
        if let Some(name) = group {
            let found = Group::from_name(name).ok().flatten();
            let group = found.ok_or_else(|| AppSocketError::NoGroup(name.to_owned()))?;
            let folder = path.parent().unwrap_or(path);
            for path in [path, folder] {
                chown(path, None, Some(group.gid.as_raw())).map_err(at(path))?;
            }
            // Whatever the file mode mask was when it was made.
            let open = Permissions::from_mode(0o750);
            fs::set_permissions(folder, open).map_err(at(folder))?;
        }
        Ok(Self {
            listener: socket.into(),
            path: path.to_owned(),
        })
    }

    /// The same socket once more, for another life in this process.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let (listener, path) = (self.listener.try_clone()?, self.path.clone());
        Ok(Self { listener, path })
    }

    /// Its file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next process, if one waits.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        let (stream, _) = self.listener.accept()?;
        Ok(stream.into())
    }
}

impl AsFd for AppSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
