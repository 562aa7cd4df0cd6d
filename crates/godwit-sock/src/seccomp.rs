//! Filters of system calls, seccomp(2).

use std::io;

/// Puts a filter before all system calls of this thread and of those that it
/// starts from here on, for good. Calls that the filter does not allow are in the
/// kernel's audit log as well (dmesg, where no daemon takes it).
///
/// # Errors
/// Fails without `no_new_privs` or CAP_SYS_ADMIN, for a program that is none, and
/// on kernels without seccomp filters.
pub fn filter_system_calls(program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog {
        len,
        // The kernel does not write to it.
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies `len` instructions, which outlive the call.
    let err = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_LOG,
            &raw const program,
        )
    };
    if err == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
