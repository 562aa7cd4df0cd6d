//! What is said over a connection, how much of it, and for how long.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What both sides begin with.
const MAGIC: &[u8; 8] = b"gwrenew1";

/// The most that a request may have, in octets.
pub(super) const REQUEST_MOST: usize = 64 << 10;

/// The most that a certificate or a list may have: agents read no more of a file.
pub(super) const PART_MOST: usize = 1 << 20;

/// How long all of a connection may take.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Why a connection gets no certificate and no list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Refused {
    /// The same source has as many connections as it may have.
    Crowded,
    /// There are as many connections as there may be.
    Full,
    /// TLS was not agreed on: no valid certificate of this authority, or no TLS at all.
    Handshake,
    /// It took longer than it may.
    Slow,
    /// The connection ended before the request did.
    Cut,
    /// The request is longer than it may be.
    TooLong,
    /// It is no request.
    Malformed,
    /// The request is for another name than that of the certificate.
    OtherName,
    /// The request has the key of the certificate: it must be a new one.
    SameKey,
    /// The key is not of the kind that nodes have (ECDSA on P-256).
    KeyKind,
    /// The authority's record does not have the certificate.
    Unknown,
    /// The certificate is revoked.
    Revoked,
    /// The node was given as many certificates in a day as it may be given.
    TooOften,
    /// The authority can't sign, or its files can't be read or written.
    Authority,
}

impl Refused {
    /// Every reason, in the order of their codes.
    pub const ALL: [Self; 14] = [
        Self::Crowded,
        Self::Full,
        Self::Handshake,
        Self::Slow,
        Self::Cut,
        Self::TooLong,
        Self::Malformed,
        Self::OtherName,
        Self::SameKey,
        Self::KeyKind,
        Self::Unknown,
        Self::Revoked,
        Self::TooOften,
        Self::Authority,
    ];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Crowded => "crowded",
            Self::Full => "full",
            Self::Handshake => "handshake",
            Self::Slow => "slow",
            Self::Cut => "cut",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::OtherName => "other_name",
            Self::SameKey => "same_key",
            Self::KeyKind => "key_kind",
            Self::Unknown => "unknown",
            Self::Revoked => "revoked",
            Self::TooOften => "too_often",
            Self::Authority => "authority",
        }
    }

    /// Where it is in [`ALL`](Self::ALL).
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// What went wrong with a connection.
    pub(super) fn of(error: &io::Error) -> Self {
        let kind = error.kind();
        if kind == io::ErrorKind::TimedOut {
            Self::Slow
        } else if kind == io::ErrorKind::InvalidData {
            // TLS says so.
            Self::Malformed
        } else {
            Self::Cut
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a node is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Granted {
    /// Empty if it has asked for none.
    pub(super) certificate: String,
    pub(super) list: String,
}

/// A connection that ends at a certain time, whatever the other side does.
#[derive(Debug)]
pub(super) struct Timed<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl<'a> Timed<'a> {
    pub(super) const fn new(stream: &'a TcpStream, end: Instant) -> Self {
        Self { stream, end }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buffer).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Linux says that it would have to wait.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        return io::ErrorKind::TimedOut.into();
    }
    error
}

/// Reads a request, which may be empty.
pub(super) fn read_request(from: &mut impl Read) -> Result<Vec<u8>, Refused> {
    let cut = |error: io::Error| Refused::of(&error);
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic).map_err(cut)?;
    if magic != *MAGIC {
        return Err(Refused::Malformed);
    }
    let length = read_length(from).map_err(cut)?;
    if length > REQUEST_MOST {
        return Err(Refused::TooLong);
    }
    read_exactly(from, length).map_err(cut)
}

pub(super) fn write_request(to: &mut impl Write, request: &[u8]) -> io::Result<()> {
    let mut octets = MAGIC.to_vec();
    push(&mut octets, request)?;
    to.write_all(&octets)?;
    to.flush()
}

pub(super) fn write_answer(
    to: &mut impl Write,
    answer: &Result<Granted, Refused>,
) -> io::Result<()> {
    let mut octets = MAGIC.to_vec();
    match answer {
        Ok(granted) => {
            octets.push(0);
            push(&mut octets, granted.certificate.as_bytes())?;
            push(&mut octets, granted.list.as_bytes())?;
        }
        Err(refused) => octets.extend(u8::try_from(refused.index() + 1)),
    }
    to.write_all(&octets)?;
    to.flush()
}

/// Reads an answer; what is none is an error.
pub(super) fn read_answer(from: &mut impl Read) -> io::Result<Result<Granted, Refused>> {
    let mut head = [0; MAGIC.len() + 1];
    from.read_exact(&mut head)?;
    let Some((&code, magic)) = head.split_last() else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if magic != MAGIC {
        return Err(invalid("it is no answer"));
    }
    if let Some(at) = usize::from(code).checked_sub(1) {
        let refused = Refused::ALL.get(at).copied();
        return refused
            .map(Err)
            .ok_or_else(|| invalid("it refuses for a reason that this version does not know"));
    }
    let mut part = || {
        let length = read_length(from)?;
        if length > PART_MOST {
            return Err(invalid("it is longer than 1 MiB"));
        }
        String::from_utf8(read_exactly(from, length)?).map_err(|_| invalid("it is no text"))
    };
    Ok(Ok(Granted {
        certificate: part()?,
        list: part()?,
    }))
}

fn read_length(from: &mut impl Read) -> io::Result<usize> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    usize::try_from(u32::from_be_bytes(length)).map_err(|_| invalid("it is too long"))
}

fn read_exactly(from: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut octets = vec![0; length];
    from.read_exact(&mut octets)?;
    Ok(octets)
}

fn push(octets: &mut Vec<u8>, part: &[u8]) -> io::Result<()> {
    let length = u32::try_from(part.len()).map_err(|_| invalid("it is too long"))?;
    octets.extend_from_slice(&length.to_be_bytes());
    octets.extend_from_slice(part);
    Ok(())
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
