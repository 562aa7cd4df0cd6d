//! Descriptors that go from process to process beside a message (unix(7),
//! `SCM_RIGHTS`).

use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// The most descriptors that go with one message.
pub const MAX_PASSED: usize = 2;

/// The most that the kernel lets through (`SCM_MAX_FD`): there is room for all of
/// them, so that those which are too many are closed, not lost.
const MAX_SENT: usize = 253;

/// Room for their control message in words, as its header is aligned to them.
const CONTROL: usize = 1 + (size_of::<libc::cmsghdr>() + MAX_SENT * size_of::<RawFd>()) / WORD;
const WORD: usize = size_of::<u64>();

/// A message as it has come, from whomever.
#[derive(Debug)]
pub struct Received {
    /// How many bytes of the buffer it takes. None: the other side has gone.
    pub length: usize,
    /// What came with it, to be closed when a program is executed. To close one may take
    /// as long as whoever sent it likes: its file may be on a file system of theirs, or a
    /// socket that lingers.
    pub descriptors: Vec<OwnedFd>,
    /// It was longer than the buffer, or this process may not have as many descriptors as
    /// came with it: then the others are here.
    pub is_cut: bool,
}

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
/// when a program is executed. No bytes: the other side has gone. It does not wait, but
/// to close what is too much.
///
/// # Errors
/// If there is no message (`WouldBlock`), or it is longer than `buffer` or comes
/// with more descriptors than [`MAX_PASSED`] (`InvalidData`).
pub fn receive_with(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let received = receive(socket, buffer)?;
    if received.is_cut || received.descriptors.len() > MAX_PASSED {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received.length, received.descriptors))
}

/// As [`receive_with`], and leaves to the caller what becomes of a message that is not as
/// it should be. It never waits.
///
/// # Errors
/// If there is no message (`WouldBlock`), or there never will be.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = [0_u64; CONTROL];
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: numbers and pointers, all of which may be zero.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let length = receive_header(socket, &mut header)?;
    Ok(Received {
        length,
        // SAFETY: the kernel has just filled it in, and `control` lives.
        descriptors: unsafe { descriptors_of(&header) },
        is_cut: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
    })
}

fn receive_header(socket: BorrowedFd<'_>, header: &mut libc::msghdr) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    loop {
        // SAFETY: all that the header points to lives in the caller, with the lengths given.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), header, flags) };
        match Errno::result(received) {
            Ok(length) => return usize::try_from(length).map_err(io::Error::other),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The descriptors that came with a message, of one that was cut those that have come.
///
/// # Safety
/// The header is as recvmsg(2) has left it, and its control messages live. It is asked
/// once: what is returned owns the descriptors.
unsafe fn descriptors_of(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: as the caller says.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: the kernel's messages are aligned, and none is longer than it says.
    while let Some(message) = unsafe { next.as_ref() } {
        if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: it takes a number.
            let empty = unsafe { libc::CMSG_LEN(0) };
            let bytes = message.cmsg_len.saturating_sub(empty as usize);
            // SAFETY: its data begins there.
            let data = unsafe { libc::CMSG_DATA(message) };
            for at in 0..bytes / size_of::<RawFd>() {
                // SAFETY: within the length that the kernel gave the message, and made
                // by it for this process just now.
                let fd = unsafe { data.cast::<RawFd>().wrapping_add(at).read_unaligned() };
                // SAFETY: as above; nothing else knows its number.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: as for the first.
        next = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    descriptors
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
