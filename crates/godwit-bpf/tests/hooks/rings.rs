//! Processes with files that the walk at their end must find, and with more of them than
//! it looks at. Real ones, in the lab's namespace.

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::process::Command;
use std::time::Duration;

use godwit_bpf::ProcessExit;
use godwit_lab::Lab;
use nix::sys::signal::{Signal, raise};

use crate::bench::{Bench, SHARE, on_bench_of};
use crate::process::records;

/// What the process of [`holder`] has besides its listener.
const HOLDS: &str = "GODWIT_BPF_TEST_HOLDS";

const HOLD: Duration = Duration::from_secs(10);

/// include/uapi/linux/io_uring.h
const IORING_REGISTER_FILES: libc::c_long = 2;
const IORING_OFF_SQES: libc::off_t = 0x1000_0000;

/// Listens, and crashes.
#[test]
#[ignore = "a process that the tests here start"]
fn holder() {
    let Ok(holds) = env::var(HOLDS) else { return };
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).expect("port 80 is free");
    let _files: Vec<OwnedFd> = match holds.as_str() {
        "ring" => {
            let ring = ring();
            let listener = OwnedFd::from(listen());
            register(ring.as_raw_fd(), listener.as_raw_fd());
            drop(listener);
            vec![ring]
        }
        "crowd" => crowd(OwnedFd::from(listen())),
        other => panic!("{other}"),
    };
    raise(Signal::SIGKILL).expect("it ends here");
}

/// An io_uring that is mapped, as programs use it.
fn ring() -> OwnedFd {
    let mut params = [0u32; 30];
    // SAFETY: `struct io_uring_params` has 120 bytes, all 0.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, params.as_mut_ptr()) };
    let fd = RawFd::try_from(fd).expect("small");
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping, which is not used.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 64, prot, flags, fd, IORING_OFF_SQES) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: a descriptor that nobody else has.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn register(ring: RawFd, file: RawFd) {
    let (what, files) = (IORING_REGISTER_FILES, [file]);
    // SAFETY: an array of one descriptor.
    let done = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, what, files.as_ptr(), 1) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// As many descriptors as there may be: first sockets, then the listener.
fn crowd(listener: OwnedFd) -> Vec<OwnedFd> {
    let mut files = vec![listener];
    while let Ok(socket) = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Stream,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    ) {
        files.push(socket);
    }
    files
}

fn run(bench: &Bench, lab: &Lab, holds: &str) -> Vec<ProcessExit> {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.args(["--ignored", "--exact", "rings::holder"]);
    command.env(HOLDS, holds);
    let mut process = lab.a().spawn("holder", command).expect("it starts");
    process.wait(Duration::from_secs(60)).expect("it ends");
    let log = process.log();
    assert!(!log.contains("panicked"), "{log}");
    records(bench)
}

#[test]
fn a_listener_that_only_a_ring_has_is_lost_with_it() {
    on_bench_of(|bench, lab, _| {
        bench.datapath.shares.hold(SHARE, HOLD).expect("it is set");
        let records = run(bench, lab, "ring");
        let lost = records.iter().any(|exit| exit.last_listener && exit.dying);
        assert!(lost, "{records:?}");
    });
}

/// What was found before the budget was spent counts, and the rest is said to be missing.
#[test]
fn a_walk_that_is_too_long_is_cut_and_says_so() {
    on_bench_of(|bench, lab, _| {
        bench.datapath.shares.hold(SHARE, HOLD).expect("it is set");
        let records = run(bench, lab, "crowd");
        let cut = records.iter().all(|exit| exit.cut && exit.last_listener);
        assert!(cut && !records.is_empty(), "{records:?}");
        let counts = bench.counts();
        let cut = counts.iter().find(|(reason, _)| reason == "exit_walk_cut");
        assert!(cut.is_some_and(|(_, count)| *count > 0), "{counts:?}");
    });
}
