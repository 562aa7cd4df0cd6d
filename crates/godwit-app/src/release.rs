//! Calls that wait in a file that is not the server's any more.
//!
//! A system call keeps the file that its number meant when it began. A thread that
//! waits in a stand-in would wait for ever once the connection is back. A signal
//! with an empty handler makes the kernel begin a read or write again
//! (`SA_RESTART`, signal(7)), which looks its number up anew; poll(2) and select(2)
//! say EINTR. Only threads that wait in such a call on that number get one, and
//! only when a connection is put back: no signal is ever sent to a server whose
//! connections do not move.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::sync::OnceLock;

use nix::errno::Errno;

/// Calls whose first argument is the descriptor that they wait for.
const ON_ONE: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
];

/// Calls that wait for many: which, only they know.
const ON_MANY: &[libc::c_long] = &[
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
];

/// splice(2) and tee(2) take two, either of which it may be.
const ON_EITHER: &[libc::c_long] = &[libc::SYS_splice, libc::SYS_sendfile];

/// Interrupts every thread of this process that may be waiting for `number`.
///
/// # Errors
/// If there is no /proc, or all real-time signals are in use.
pub(crate) fn interrupt(number: RawFd) -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may have ended.
        let call = fs::read_to_string(entry.path().join("syscall")).unwrap_or_default();
        if waits(&call, number) {
            signal(thread)?;
        }
    }
    Ok(())
}

/// Whether a line of /proc/pid/task/tid/syscall (proc(5)) is such a call: its
/// number and its arguments in hexadecimal.
fn waits(line: &str, number: RawFd) -> bool {
    let mut words = line.split(' ');
    let Some(call) = words.next().and_then(|word| word.parse().ok()) else {
        // "running"
        return false;
    };
    let mut argument = || {
        let word = words.next()?.strip_prefix("0x")?;
        // Descriptors are of 32 bits, the upper half is anything.
        let value = u64::from_str_radix(word, 16).ok()? & u64::from(u32::MAX);
        RawFd::try_from(value).ok()
    };
    if ON_MANY.contains(&call) {
        return true;
    }
    let first = argument();
    let either = ON_EITHER.contains(&call).then(|| (argument(), argument()));
    let second = either.and_then(|(second, third)| match call {
        libc::SYS_splice => third,
        _ => second,
    });
    (ON_ONE.contains(&call) || either.is_some()) && (first == Some(number))
        || second == Some(number)
}

fn signal(thread: libc::pid_t) -> io::Result<()> {
    static CHOSEN: OnceLock<Option<libc::c_int>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(install);
    let chosen = chosen.ok_or(io::ErrorKind::ResourceBusy)?;
    let process = nix::unistd::getpid().as_raw();
    // SAFETY: takes three numbers.
    let err = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, chosen) };
    match Errno::result(err) {
        // It has ended.
        Ok(_) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

extern "C" fn nothing(_: libc::c_int) {}

/// Gives the last real-time signal that nobody uses an empty handler.
fn install() -> Option<libc::c_int> {
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|signal| {
        // SAFETY: zeros are a `struct sigaction` with the default disposition.
        let mut former: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel only writes `former`, which outlives the call.
        let err = unsafe { libc::sigaction(*signal, std::ptr::null(), &raw mut former) };
        if err != 0 || former.sa_sigaction != libc::SIG_DFL {
            return false;
        }
        former.sa_sigaction = nothing as *const () as libc::sighandler_t;
        former.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler does nothing, so it may run anywhere at any time.
        let err = unsafe { libc::sigaction(*signal, &raw const former, std::ptr::null_mut()) };
        err == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_on_the_number_are_found() {
        let line = |call: libc::c_long, arguments: &str| format!("{call} {arguments}");
        let read = line(libc::SYS_read, "0x7 0x1000 0x400 0x0 0x0 0x0 0x7ffc 0x7f00");
        assert!(waits(&read, 7) && !waits(&read, 8));
        let send = line(libc::SYS_sendto, "0xffffffff00000007 0x1000 0x400");
        assert!(waits(&send, 7));
        let poll = line(libc::SYS_ppoll, "0x7ffc 0x1 0x0");
        assert!(waits(&poll, 7));
        let splice = line(libc::SYS_splice, "0x3 0x0 0x7 0x0 0x1000 0x0");
        assert!(waits(&splice, 7) && waits(&splice, 3) && !waits(&splice, 0));
        let from = line(libc::SYS_sendfile, "0x3 0x7 0x0 0x1000");
        assert!(waits(&from, 3) && waits(&from, 7));
        let other = line(libc::SYS_futex, "0x7 0x0 0x0");
        assert!(!waits(&other, 7));
        assert!(!waits("running", 7) && !waits("", 7) && !waits("-1 0x7 0x7", 7));
    }
}
