//! A netlink request and its answer (RFC 3549 section 2.3), synchronous.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_EXCL: u16 = 0x200;

/// A netlink socket of one protocol.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    /// Number of the last request.
    sequence: Cell<u32>,
    /// What the kernel has answered last.
    answer: RefCell<Vec<u8>>,
}

/// The longest datagram of a dump is half of this.
const ANSWER: usize = 64 * 1024;

impl Netlink {
    pub(crate) fn open(protocol: SockProtocol) -> io::Result<Self> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        // The kernel answers at once; this only bounds a surprise.
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::milliseconds(1000))?;
        Ok(Self {
            fd,
            sequence: Cell::new(0),
            answer: RefCell::new(vec![0; ANSWER]),
        })
    }

    /// Sends one request and returns the bodies of the answers (a dump has
    /// many, an acknowledgement none).
    pub(crate) fn request(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut bodies = Vec::new();
        self.visit(kind, flags, body, |answer| bodies.push(answer.to_vec()))?;
        Ok(bodies)
    }

    /// As [`request`](Self::request), for a dump that is too long to be kept.
    pub(crate) fn visit(
        &self,
        kind: u16,
        flags: u16,
        body: &[u8],
        visit: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let len = u32::try_from(HEADER + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(len.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        message.extend(sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        sendto(
            self.fd.as_raw_fd(),
            &message,
            &NetlinkAddr::new(0, 0),
            MsgFlags::empty(),
        )?;
        self.answers(sequence, visit)
    }

    fn answers(&self, sequence: u32, mut visit: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = self.answer.borrow_mut();
        loop {
            let len = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            if let Some(end) = read_datagram(&buffer[..len], Some(sequence), &mut visit) {
                return end;
            }
        }
    }
}

/// Visits the answers in one datagram to the request of that number, or to any; how the
/// whole answer ended, if it did. The answer to an earlier request may have come too late
/// for that.
pub(crate) fn read_datagram(
    mut rest: &[u8],
    sequence: Option<u32>,
    visit: &mut impl FnMut(&[u8]),
) -> Option<io::Result<()>> {
    while let Some((header, body, next)) = split_message(rest) {
        rest = next;
        if sequence.is_some_and(|sequence| header.sequence != sequence) {
            continue;
        }
        match header.kind {
            NLMSG_DONE => return Some(Ok(())),
            NLMSG_ERROR => return Some(error_of(body)),
            _ => visit(body),
        }
    }
    None
}

/// Kind and body of each message in a datagram that nobody has asked for.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let (header, body, next) = split_message(rest)?;
        rest = next;
        Some((header.kind, body))
    })
}

/// Of `struct nlmsghdr`, what is looked at.
struct Header {
    kind: u16,
    sequence: u32,
}

fn split_message(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let len = u32_at(bytes, 0)? as usize;
    let header = Header {
        kind: u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]),
        sequence: u32_at(bytes, 8)?,
    };
    let body = bytes.get(HEADER..len)?;
    Some((header, body, bytes.get(align(len)..).unwrap_or_default()))
}

/// Number 0 is the acknowledgement that was asked for.
fn error_of(body: &[u8]) -> io::Result<()> {
    match u32_at(body, 0).map(u32::cast_signed) {
        Some(0) => Ok(()),
        Some(negative) => Err(io::Error::from_raw_os_error(negative.saturating_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Appends an attribute, padded to four bytes.
pub(crate) fn push_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).expect("attributes here are a few bytes");
    message.extend(len.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(align(message.len()), 0);
}

/// The value of the first attribute of this kind.
pub(crate) fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes([
            *attributes.first()?,
            *attributes.get(1)?,
        ]));
        let kind = u16::from_ne_bytes([*attributes.get(2)?, *attributes.get(3)?]);
        let value = attributes.get(4..len)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(align(len)..)?;
    }
}

/// All attributes: kind, with its flags, and value.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = rest.first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        let value = rest.get(4..len)?;
        rest = rest.get(align(len)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

const fn align(len: usize) -> usize {
    (len + 3) & !3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(HEADER + body.len()).expect("short");
        let mut message = len.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(0u16.to_ne_bytes());
        message.extend(sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        message
    }

    /// From the first answer that had come too late each was taken for the next one's.
    #[test]
    fn an_answer_that_comes_late_is_not_the_next_ones() {
        let datagram = [
            message(20, 1, b"late"),
            message(NLMSG_DONE, 1, &[]),
            message(20, 2, b"this"),
            message(NLMSG_DONE, 2, &[]),
        ]
        .concat();
        let mut seen = Vec::new();
        let end = read_datagram(&datagram, Some(2), &mut |body: &[u8]| {
            seen.push(body.to_vec())
        });
        assert!(end.is_some_and(|end| end.is_ok()));
        assert_eq!(seen, [b"this"]);
        let end = read_datagram(&datagram, Some(3), &mut |_: &[u8]| panic!("none of these"));
        assert!(end.is_none(), "its own is to come");
    }
}
