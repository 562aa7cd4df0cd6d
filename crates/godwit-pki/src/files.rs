//! Files that hold keys, or say whom to trust.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::process;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;

use crate::error::PkiError;

/// Names that are tried for a new file before that is given up.
const ATTEMPTS: u32 = 1000;

/// Held while the files of an authority are read and changed.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Waits for whoever has it.
    pub(crate) fn take(folder: &Path) -> Result<Self, PkiError> {
        let path = folder.join("lock");
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(&path);
        let file = opened.map_err(in_file(&path))?;
        give(&file, owner(folder)).map_err(in_file(&path))?;
        Self::of(file).map_err(in_file(&path))
    }

    /// Waits for whoever has a folder, and leaves nothing in it.
    pub(crate) fn take_folder(folder: &Path) -> Result<Self, PkiError> {
        let taken = File::open(folder).and_then(Self::of);
        taken.map_err(in_file(folder))
    }

    fn of(mut file: File) -> io::Result<Self> {
        loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(file) => return Ok(Self { _file: file }),
                Err((again, Errno::EINTR)) => file = again,
                Err((_, error)) => return Err(error.into()),
            }
        }
    }
}

/// User and group that something belongs to.
pub(crate) type Owner = (u32, u32);

/// Whose it is, if this process could give files away.
pub(crate) fn owner(path: &Path) -> Option<Owner> {
    let found = geteuid().is_root().then(|| fs::metadata(path).ok());
    found.flatten().map(|it| (it.uid(), it.gid()))
}

/// Makes a file somebody's.
pub(crate) fn give(file: &File, owner: Option<Owner>) -> io::Result<()> {
    let Some((user, group)) = owner else {
        return Ok(());
    };
    let now = file.metadata()?;
    if (now.uid(), now.gid()) == (user, group) {
        return Ok(());
    }
    fchown(file, Some(user), Some(group))
}

/// Makes a folder; `mode` is for those that are not there yet.
pub(crate) fn create_folder(folder: &Path, mode: u32) -> Result<(), PkiError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(mode).create(folder);
    made.map_err(in_file(folder))
}

/// The mode of a key that somebody else than its owner can read or change; `None`: nobody can.
pub(crate) fn exposed(path: &Path) -> Result<Option<u32>, PkiError> {
    let mode = fs::metadata(path).map_err(in_file(path))?.mode() & 0o777;
    Ok((mode & 0o077 != 0).then_some(mode))
}

/// Refuses a folder where others can put files. Where only owners rename and remove (the sticky
/// bit), they can't replace any.
pub(crate) fn must_be_closed(folder: &Path) -> Result<(), PkiError> {
    let mode = fs::metadata(folder).map_err(in_file(folder))?.mode() & 0o7777;
    if mode & 0o022 == 0 || mode & 0o1000 != 0 {
        return Ok(());
    }
    Err(PkiError::FolderOpen {
        path: folder.to_owned(),
        mode,
    })
}

pub(crate) fn read(path: &Path) -> Result<String, PkiError> {
    fs::read_to_string(path).map_err(in_file(path))
}

/// `None` if there is no such file.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(in_file(path)(error)),
    }
}

/// Puts a new file there, whole or not at all. What was prepared under its name by somebody
/// else (a link, a file that others may read) is replaced, never written to.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    write_as(path, text, mode, None)
}

/// The same for a file of an authority: whoever owns its folder has to read it, too.
pub(crate) fn write_beside(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    write_as(path, text, mode, path.parent().and_then(owner))
}

/// The same for a file that is to be somebody's.
pub(crate) fn write_as(
    path: &Path,
    text: &str,
    mode: u32,
    owner: Option<Owner>,
) -> Result<(), PkiError> {
    let (temporary, mut file) = create(path, mode).map_err(in_file(path))?;
    let written = give(&file, owner)
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        // Half a key is of no use to anybody.
        let _ = fs::remove_file(&temporary);
        in_file(path)(error)
    })
}

/// A file beside another one, that nobody has had before.
fn create(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for attempt in 0..ATTEMPTS {
        let temporary = path.with_file_name(format!(".{name}.{}-{attempt}", process::id()));
        // create_new: O_CREAT with O_EXCL.
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(&temporary);
        match created {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

pub(crate) fn in_file(path: &Path) -> impl Fn(io::Error) -> PkiError {
    move |source| PkiError::File {
        path: path.to_owned(),
        source,
    }
}
