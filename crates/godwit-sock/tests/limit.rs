//! A process that may have no more descriptors. Alone in its program: the limit is for
//! all threads.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use godwit_sock::{receive, receive_with, send_with};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

fn open_descriptors() -> usize {
    let listed = std::fs::read_dir("/proc/self/fd").expect("there is a /proc");
    listed.count()
}

/// The kernel installs as many as it may and says that it has cut the message; those that
/// were not owned stayed open, which kept the limit reached.
#[test]
fn of_descriptors_that_are_cut_off_none_is_lost() {
    let flags = SockFlag::SOCK_CLOEXEC;
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
    let (one, other) = pair.expect("descriptors are left");
    let (_reader, writer) = io::pipe().expect("descriptors are left");
    let sent = [writer.as_fd(); 8];
    let before = open_descriptors();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("it has one");
    let spare: Vec<OwnedFd> = (0..3)
        .map(|_| writer.as_fd().try_clone_to_owned().expect("there is room"))
        .collect();
    let highest = std::os::fd::AsRawFd::as_raw_fd(spare.last().expect("three"));
    let limit = u64::try_from(highest + 1).expect("numbers of descriptors");
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).expect("less is allowed");
    drop(spare);
    send_with(one.as_fd(), b"8", &sent).expect("there is room");
    send_with(one.as_fd(), b"8", &sent).expect("there is room");
    let received = receive(other.as_fd(), &mut [0; 16]).expect("it came");
    assert!(received.is_cut, "{received:?}");
    assert_eq!(received.descriptors.len(), 3);
    drop(received);
    let error = receive_with(other.as_fd(), &mut [0; 16]).expect_err("it is cut");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("it was so much");
    assert_eq!(open_descriptors(), before);
}
