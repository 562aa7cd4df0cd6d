//! The one way to open what an administrator has named: configuration, certificates, keys,
//! programs.
//!
//! A name may lead to a pipe that nobody writes into, to a device or to a log of gigabytes.
//! Nothing here waits for such or takes it into memory: a regular file of at most
//! [`MOST`] bytes is read, anything else is refused with a sentence. A regular file of a
//! network file system may still hang, so threads that keep a lease call none of this.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The most that a file may hold, in bytes.
pub(crate) const MOST: u64 = 1 << 20;

/// The bytes of a regular file.
///
/// # Errors
/// If it can't be opened or read, is no regular file, or holds more than [`MOST`].
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    rest(open(path)?)
}

/// What an open file holds.
///
/// # Errors
/// If it can't be read, or holds more than [`MOST`].
pub(crate) fn rest(file: File) -> io::Result<Vec<u8>> {
    // In one piece: a buffer that grows leaves copies of a key behind.
    let length = file.metadata()?.len().min(MOST);
    let mut bytes = Vec::with_capacity(usize::try_from(length + 1).unwrap_or(0));
    // It may grow while it is read, and files of /proc have no length.
    file.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(too_long());
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// As [`read`], and if it is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read(path)?);
    text.map_err(|_| refused("it is no text in UTF-8"))
}

/// Opens a regular file.
///
/// # Errors
/// If it can't be opened, is anything else, or holds more than [`MOST`].
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Opening alone does something to some devices.
    must_be_regular(fs::metadata(path)?.file_type())?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    // It may be another one by now.
    let found = file.metadata()?;
    must_be_regular(found.file_type())?;
    if found.len() > MOST {
        return Err(too_long());
    }
    Ok(file)
}

fn must_be_regular(kind: FileType) -> io::Result<()> {
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(refused(&format!(
        "it is {what}, and must be a regular file"
    )))
}

fn too_long() -> io::Error {
    refused("it holds more than 1 MiB")
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn why(path: &Path) -> String {
        let error = read(path).expect_err("it is refused");
        error.to_string()
    }

    /// None of them is waited for.
    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        mkfifo(&at("pipe"), Mode::S_IRWXU).expect("made");
        let _socket = UnixListener::bind(at("socket")).expect("bound");
        std::os::unix::fs::symlink("/dev/zero", at("link")).expect("made");
        let must = "and must be a regular file";
        assert_eq!(why(dir.path()), format!("it is a directory, {must}"));
        assert_eq!(why(&at("pipe")), format!("it is a named pipe, {must}"));
        assert_eq!(why(&at("socket")), format!("it is a socket, {must}"));
        assert_eq!(why(&at("link")), format!("it is a device, {must}"));
        assert_eq!(
            why(Path::new("/dev/null")),
            format!("it is a device, {must}")
        );
        fs::write(at("file"), "text").expect("written");
        assert_eq!(read_text(&at("file")).expect("it is regular"), "text");
        fs::write(at("file"), [0xff]).expect("written");
        let error = read_text(&at("file")).expect_err("no text");
        assert_eq!(error.to_string(), "it is no text in UTF-8");
        read(Path::new("/proc/self/status")).expect("without a length");
    }

    #[test]
    fn a_file_has_a_mebibyte_at_most() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        let set = |length| {
            let file = File::create(&path).expect("made");
            file.set_len(length).expect("a hole");
        };
        set(MOST);
        assert_eq!(read(&path).expect("just so").len() as u64, MOST);
        for length in [MOST + 1, 1 << 40] {
            set(length);
            assert_eq!(why(&path), "it holds more than 1 MiB");
        }
    }
}
