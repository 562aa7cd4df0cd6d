//! The system calls that an agent may make once it runs (ADR 15).
//!
//! Everything that is not listed here is refused with EPERM, and the kernel's log
//! says what it was. Nothing is listed for the start: programs are loaded,
//! interfaces are taken and capabilities are given up before the filter is there.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use godwit_sock::filter_system_calls;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use crate::config::PeerRole;
use crate::privileges::PrivilegeError;

/// Calls with their names, as `godwit.service` has them.
macro_rules! calls {
    ($($call:ident,)*) => { &[$((stringify!($call), libc::$call)),*] };
}

/// A name, with `SYS_` before it, and a number.
type Call = (&'static str, libc::c_long);

/// What threads, memory, clocks, sockets and files of the agent need.
const ALWAYS: &[Call] = calls![
    // Threads and signals.
    SYS_exit,
    SYS_exit_group,
    SYS_futex,
    SYS_getpid,
    SYS_gettid,
    SYS_membarrier,
    SYS_restart_syscall,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_sched_getaffinity,
    SYS_sched_getattr,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_setattr,
    SYS_sched_setscheduler,
    SYS_sched_yield,
    SYS_set_robust_list,
    SYS_sigaltstack,
    // Memory; more of it: `restricted`.
    SYS_brk,
    SYS_madvise,
    SYS_mremap,
    SYS_munmap,
    // Clocks, where the vDSO does not know them.
    SYS_clock_getres,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_gettimeofday,
    SYS_nanosleep,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    // Waiting.
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_ppoll,
    // Any descriptor.
    SYS_close,
    SYS_fallocate,
    SYS_fcntl,
    SYS_fstat,
    SYS_fstatfs,
    SYS_ftruncate,
    SYS_getrandom,
    SYS_lseek,
    SYS_memfd_create,
    SYS_pread64,
    SYS_pwrite64,
    SYS_read,
    SYS_readv,
    SYS_write,
    SYS_writev,
    // Sockets, once there; `restricted` says of which families.
    SYS_accept4,
    SYS_bind,
    SYS_connect,
    SYS_getpeername,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_listen,
    SYS_recvfrom,
    SYS_recvmmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_sendmsg,
    SYS_sendto,
    SYS_setsockopt,
    SYS_shutdown,
    // Files: /proc and /sys, the control socket and its folder, pins.
    SYS_faccessat,
    SYS_inotify_add_watch,
    SYS_inotify_init1,
    SYS_inotify_rm_watch,
    SYS_fchmodat,
    SYS_flock,
    SYS_getdents64,
    SYS_mkdirat,
    SYS_newfstatat,
    SYS_openat,
    SYS_readlinkat,
    SYS_statfs,
    SYS_statx,
    SYS_unlinkat,
];

/// What an agent needs that looks for sockets in other processes (`unread = "move"`).
const PROCESSES: &[Call] = calls![
    SYS_pidfd_getfd,
    SYS_pidfd_open,
    // To accept at a listener of theirs, and not to wait there.
    SYS_timer_create,
    SYS_timer_delete,
    SYS_timer_settime,
];

/// The older forms that glibc prefers where they exist.
#[cfg(target_arch = "x86_64")]
const OLDER: &[Call] = calls![
    SYS_access,
    SYS_chmod,
    SYS_epoll_wait,
    SYS_mkdir,
    SYS_poll,
    SYS_readlink,
    SYS_rmdir,
    SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[Call] = &[];

/// Families of sockets.
const FAMILIES: &[libc::c_int] = &[libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];

/// What a server's agent uses besides: neighbours, addresses, sockets of others;
/// frames.
const SERVER_FAMILIES: &[libc::c_int] = &[libc::AF_NETLINK, libc::AF_PACKET];

/// Names and numbers of interfaces; sockets that do not block; what is queued.
const REQUESTS: &[u32] = &[
    0x5411, // TIOCOUTQ
    0x541B, // FIONREAD
    0x5421, // FIONBIO
    0x8910, // SIOCGIFNAME
    0x8933, // SIOCGIFINDEX
    0x894B, // SIOCOUTQNSD
];

/// What a server's agent asks besides: frames to the group of a multicast tap, where an
/// interface was made anew or the file is another one.
const SERVER_REQUESTS: &[u32] = &[
    0x8931, // SIOCADDMULTI
];

/// What a server's agent asks of BPF (`enum bpf_cmd`): maps, links and running
/// its own programs. It can neither load a program nor make a map any more.
const BPF: &[u32] = &[
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    6,  // BPF_OBJ_PIN
    7,  // BPF_OBJ_GET
    10, // BPF_PROG_TEST_RUN
    15, // BPF_OBJ_GET_INFO_BY_FD
    16, // BPF_PROG_QUERY
    24, // BPF_MAP_LOOKUP_BATCH
    28, // BPF_LINK_CREATE
    29, // BPF_LINK_UPDATE
    33, // BPF_ITER_CREATE
    34, // BPF_LINK_DETACH
];

/// What a director's uses besides: neighbours and addresses.
const DIRECTOR_FAMILIES: &[libc::c_int] = &[libc::AF_NETLINK];

/// What a director asks of BPF: its maps, and its links when the interface changes and
/// when it ends for good.
const DIRECTOR_BPF: &[u32] = &[
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    6,  // BPF_OBJ_PIN
    7,  // BPF_OBJ_GET
    15, // BPF_OBJ_GET_INFO_BY_FD
    24, // BPF_MAP_LOOKUP_BATCH
    26, // BPF_MAP_UPDATE_BATCH
    28, // BPF_LINK_CREATE
    29, // BPF_LINK_UPDATE
    34, // BPF_LINK_DETACH
];

/// Refuses from here on what is not listed, to this thread and to all that it
/// starts; `processes`: it may take sockets of others. Needs `no_new_privs`.
///
/// # Errors
/// If the kernel has no such filters.
pub(crate) fn restrict(role: PeerRole, processes: bool) -> Result<(), PrivilegeError> {
    let quiet = no_clone3().map_err(PrivilegeError::FilterMade)?;
    seccompiler::apply_filter(&quiet).map_err(PrivilegeError::NoClone3)?;
    let listed = listed(role, processes).map_err(PrivilegeError::FilterMade)?;
    let program: Vec<_> = listed
        .into_iter()
        .map(|seccompiler::sock_filter { code, jt, jf, k }| libc::sock_filter { code, jt, jf, k })
        .collect();
    filter_system_calls(&program).map_err(PrivilegeError::Filter)
}

/// Its flags are behind a pointer, where no filter sees them: as if the kernel did
/// not know it, so that libc takes clone(2). No line in the log for each thread.
fn no_clone3() -> Result<BpfProgram, BackendError> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    compile(rules, SeccompAction::Allow, unknown)
}

fn listed(role: PeerRole, processes: bool) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<_, _> = ALWAYS
        .iter()
        .chain(OLDER)
        .chain(PROCESSES.iter().filter(|_| processes))
        .map(|(_, call)| (*call, Vec::new()))
        .collect();
    // The other filter answers.
    rules.insert(libc::SYS_clone3, Vec::new());
    rules.extend(restricted(role)?);
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    compile(rules, refused, SeccompAction::Allow)
}

type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

fn compile(
    rules: Rules,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let architecture = TargetArch::try_from(ARCH)?;
    SeccompFilter::new(rules, others, these, architecture)?.try_into()
}

/// Calls of which only some are needed.
fn restricted(role: PeerRole) -> Result<Rules, BackendError> {
    let (families, bpf) = match role {
        PeerRole::Server => ([FAMILIES, SERVER_FAMILIES].concat(), BPF),
        PeerRole::Director => ([FAMILIES, DIRECTOR_FAMILIES].concat(), DIRECTOR_BPF),
        PeerRole::Witness => (FAMILIES.to_vec(), &[][..]),
    };
    let requests = match role {
        PeerRole::Server => [REQUESTS, SERVER_REQUESTS].concat(),
        PeerRole::Director | PeerRole::Witness => REQUESTS.to_vec(),
    };
    let families: Vec<_> = families
        .into_iter()
        .map(libc::c_int::cast_unsigned)
        .collect();
    let own = std::process::id();
    let mut rules = Rules::from([
        // Threads, not processes.
        (libc::SYS_clone, vec![has_bits(0, libc::CLONE_THREAD)?]),
        // Its own threads only: that is what abort(3) does.
        (libc::SYS_tgkill, one_of(0, &[own])?),
        (
            libc::SYS_prctl,
            one_of(0, &[libc::PR_SET_NAME.cast_unsigned()])?,
        ),
        // A thread's own: one that the driver made is less urgent than the driver.
        (libc::SYS_setpriority, one_of(1, &[0])?),
        // No memory of which code can be made.
        (libc::SYS_mmap, vec![lacks_bits(2, libc::PROT_EXEC)?]),
        (libc::SYS_mprotect, vec![lacks_bits(2, libc::PROT_EXEC)?]),
        (libc::SYS_socket, one_of(0, &families)?),
        (
            libc::SYS_socketpair,
            one_of(0, &[libc::AF_UNIX.cast_unsigned()])?,
        ),
        (libc::SYS_ioctl, one_of(1, &requests)?),
        // Its own limits, to be read: how many twins it may keep.
        (libc::SYS_prlimit64, vec![reads_own_limits()?]),
    ]);
    if !bpf.is_empty() {
        rules.insert(libc::SYS_bpf, one_of(0, bpf)?);
    }
    Ok(rules)
}

/// A rule per value that an argument of 32 bits may have.
fn one_of(argument: u8, values: &[u32]) -> Result<Vec<SeccompRule>, BackendError> {
    let rules = values
        .iter()
        .map(|value| rule(argument, SeccompCmpOp::Eq, (*value).into()));
    rules.collect()
}

/// Of this process, and no new one is given.
fn reads_own_limits() -> Result<SeccompRule, BackendError> {
    let zero = |argument, length| SeccompCondition::new(argument, length, SeccompCmpOp::Eq, 0);
    SeccompRule::new(vec![
        zero(0, SeccompCmpArgLen::Dword)?,
        zero(2, SeccompCmpArgLen::Qword)?,
    ])
}

fn has_bits(argument: u8, bits: libc::c_int) -> Result<SeccompRule, BackendError> {
    let bits = u64::from(bits.cast_unsigned());
    rule(argument, SeccompCmpOp::MaskedEq(bits), bits)
}

fn lacks_bits(argument: u8, bits: libc::c_int) -> Result<SeccompRule, BackendError> {
    let bits = u64::from(bits.cast_unsigned());
    rule(argument, SeccompCmpOp::MaskedEq(bits), 0)
}

/// The upper half of an argument is left alone: the kernel does not look at it,
/// and a negative number of 32 bits may have any there.
fn rule(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Dword,
        is,
        value,
    )?])
}

#[cfg(test)]
mod tests;
