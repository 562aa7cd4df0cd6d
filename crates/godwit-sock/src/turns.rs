//! Short turns on a processor, for threads that others wait for.

use std::io;

/// As short as the kernel allows (`__setparam_fair`), in nanoseconds.
const SHORTEST_NS: u64 = 100_000;

/// `struct sched_attr` of include/uapi/linux/sched/types.h, its first version.
#[derive(Debug, Default)]
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Has the calling thread run soon when it has something to do, before ordinary
/// threads that have longer turns than 0.1 ms, and for no longer than that. It gets
/// no larger share of the processor. No privilege is needed; kernels before 6.12
/// ignore it.
///
/// # Errors
/// If the kernel refuses.
pub fn take_short_turns() -> io::Result<()> {
    let mut attr = SchedAttr::default();
    let size = u32::try_from(size_of::<SchedAttr>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `size` bytes, which `attr` has; 0 is the
    // calling thread.
    let err = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    outcome(err)?;
    attr.runtime = SHORTEST_NS;
    // SAFETY: the kernel only reads `attr`, which outlives the call.
    outcome(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) })
}

fn outcome(err: libc::c_long) -> io::Result<()> {
    match err {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_thread_may_have_short_turns() {
        let thread = std::thread::spawn(|| {
            take_short_turns()?;
            take_short_turns()
        });
        thread.join().expect("no panic").expect("it is permitted");
    }
}
