//! Sockets of a process that knows nothing of it (pidfd_getfd(2), Linux 5.6).
//!
//! What is taken is the same socket, not another: it is not closed while the
//! process has it open, and its settings are shared. A process that runs on may be
//! using it: stop it first, or be sure that it expects no answer.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// A process, whatever becomes of its number.
#[derive(Debug)]
pub struct ForeignProcess {
    pidfd: OwnedFd,
    pid: u32,
}

impl ForeignProcess {
    /// The process that has this number now.
    ///
    /// # Errors
    /// If there is none, or the kernel is older than 5.3.
    pub fn open(pid: u32) -> io::Result<Self> {
        let number = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the call takes two numbers and returns a descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
        let pidfd = descriptor(fd)?;
        Ok(Self { pidfd, pid })
    }

    /// The numbers of the process's descriptors that are sockets.
    ///
    /// # Errors
    /// If it has ended, or belongs to somebody else.
    pub fn sockets(&self) -> io::Result<Vec<RawFd>> {
        let mut sockets = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", self.pid))? {
            let entry = entry?;
            // Closed in between, perhaps.
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.parse::<RawFd>().ok());
            if target.to_string_lossy().starts_with("socket:") {
                sockets.extend(number);
            }
        }
        Ok(sockets)
    }

    /// Its descriptor `number`, for this process too.
    ///
    /// # Errors
    /// If it has none of that number or has ended, or without the right to trace
    /// it (CAP_SYS_PTRACE).
    pub fn take(&self, number: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: the call takes three numbers and returns a descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.pidfd.as_raw_fd(), number, 0) };
        descriptor(fd)
    }
}

/// Which process has which socket open, as it was when it was looked.
#[derive(Debug, Clone, Default)]
pub struct Holders(BTreeMap<u32, (u32, RawFd)>);

impl Holders {
    /// Looks at all processes; those that can't be looked into are left out, as are
    /// those that end meanwhile. Of several that have the same socket open it keeps one.
    ///
    /// # Errors
    /// If there is no /proc.
    pub fn read() -> io::Result<Self> {
        let mut holders = BTreeMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
                continue;
            };
            for file in files.flatten() {
                let number = file.file_name().to_str().and_then(|it| it.parse().ok());
                let inode = fs::read_link(file.path()).ok();
                let inode = inode.and_then(|target| inode_of(target.to_str()?));
                if let (Some(number), Some(inode)) = (number, inode) {
                    holders.insert(inode, (pid, number));
                }
            }
        }
        Ok(Self(holders))
    }

    /// The process that had it open, and under which number.
    pub fn get(&self, inode: u32) -> Option<(u32, RawFd)> {
        self.0.get(&inode).copied()
    }
}

/// Whether a process still has a socket under a number of its own.
pub fn holds_socket(pid: u32, number: RawFd, inode: u32) -> bool {
    let target = fs::read_link(format!("/proc/{pid}/fd/{number}"));
    target.is_ok_and(|target| target.to_str().and_then(inode_of) == Some(inode))
}

/// As the kernel shows it: `socket:[1234]`.
fn inode_of(target: &str) -> Option<u32> {
    let number = target.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok()
}

fn descriptor(returned: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(returned).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process;

    use super::*;

    #[test]
    fn a_socket_is_found_where_it_is_open() {
        use std::os::unix::fs::MetadataExt as _;

        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let number = listener.as_raw_fd();
        let path = format!("/proc/self/fd/{number}");
        let inode = fs::metadata(path).expect("it is open").ino();
        let inode = u32::try_from(inode).expect("they are counted from one");
        let holders = Holders::read().expect("there is a /proc");
        assert_eq!(holders.get(inode), Some((process::id(), number)));
        let own = ForeignProcess::open(process::id()).expect("it runs");
        assert!(own.sockets().expect("it is ours").contains(&number));
        assert!(holds_socket(process::id(), number, inode));
        drop(listener);
        assert!(!holds_socket(process::id(), number, inode));
    }

    #[test]
    fn what_is_not_there_is_not_taken() {
        ForeignProcess::open(u32::MAX).expect_err("no such number");
        let own = ForeignProcess::open(process::id()).expect("it runs");
        own.take(1 << 20).expect_err("no such descriptor");
    }
}
