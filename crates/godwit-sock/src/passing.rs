//! Descriptors that go from process to process beside a message (unix(7),
//! `SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// The most descriptors that go with one message.
pub const MAX_PASSED: usize = 2;

/// The most that the kernel lets through (`SCM_MAX_FD`): there is room for all of
/// them, so that those which are too many are closed, not lost.
const MAX_SENT: usize = 253;

/// Sends one message with descriptors, all of it or nothing, and does not wait.
///
/// # Errors
/// If the other side has gone (`BrokenPipe`, `ConnectionReset`), or does not read
/// (`WouldBlock`).
pub fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let raw: Vec<_> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    loop {
        let sent = sendmsg::<()>(
            socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            control,
            flags,
            None,
        );
        match sent {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The next message, at most `buffer` of it, with its descriptors; they are closed
/// when a program is executed. No bytes: the other side has gone. It does not wait.
///
/// # Errors
/// If there is no message (`WouldBlock`), or it is longer than `buffer` or comes
/// with more descriptors than [`MAX_PASSED`] (`InvalidData`).
pub fn receive_with(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = nix::cmsg_space!([libc::c_int; MAX_SENT]);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(buffer)];
    let received = loop {
        let (fd, control) = (socket.as_raw_fd(), Some(&mut control[..]));
        match recvmsg::<()>(fd, &mut parts, control, flags) {
            Ok(received) => break received,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel has made these for this process just now.
            let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
            descriptors.extend(raw.into_iter().map(own));
        }
    }
    let cut = received.flags.contains(MsgFlags::MSG_TRUNC);
    if cut || descriptors.len() > MAX_PASSED {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
            .expect("descriptors are left")
    }

    #[test]
    fn a_descriptor_arrives_with_its_message() {
        let (one, other) = pair();
        let (mut reader, writer) = io::pipe().expect("descriptors are left");
        send_with(one.as_fd(), b"pipe", &[writer.as_fd()]).expect("there is room");
        drop(writer);
        let mut buffer = [0; 16];
        let (length, mut passed) = receive_with(other.as_fd(), &mut buffer).expect("it came");
        assert_eq!((&buffer[..length], passed.len()), (&b"pipe"[..], 1));
        let passed = passed.pop().expect("there is one");
        io::PipeWriter::from(passed)
            .write_all(b"!")
            .expect("it is open");
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("it is open");
        assert_eq!(text, "!");
    }

    #[test]
    fn what_is_too_much_is_refused_and_closed() {
        let (one, other) = pair();
        let (_reader, writer) = io::pipe().expect("descriptors are left");
        send_with(one.as_fd(), &[7; 17], &[]).expect("there is room");
        send_with(one.as_fd(), b"3", &[writer.as_fd(); 3]).expect("there is room");
        drop(one);
        let receive = || receive_with(other.as_fd(), &mut [0; 16]).map(|(length, _)| length);
        for _ in 0..2 {
            let error = receive().expect_err("too long, too many");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(receive().expect("the end is no error"), 0);
    }
}
