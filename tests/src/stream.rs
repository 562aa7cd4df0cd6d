//! Connections of unmodified clients: plain sockets of the client machine.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use godwit_lab::Node;
use godwit_lab::apps::content::Content;
use godwit_lab::meter::Meter;
use nix::libc::linger;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect as connect_socket,
    setsockopt, socket, sockopt,
};

use crate::wait::{DEADLINE, STALL_LIMIT};

/// Bytes read at once.
const CHUNK: usize = 64 * 1024;

/// A download that is read step by step; every byte is compared.
#[derive(Debug)]
pub struct Download {
    /// The connection.
    pub stream: TcpStream,
    /// Progress as the client sees it.
    pub meter: Meter,
    content: Content,
    offset: u64,
}

/// Connects from `node`; reads and writes fail after [`DEADLINE`] of silence.
///
/// # Errors
/// Fails if no connection comes about.
pub fn connect(node: &Node, server: SocketAddr) -> Result<TcpStream> {
    let stream = node.enter(|| TcpStream::connect_timeout(&server, DEADLINE))?;
    prepared(stream.with_context(|| format!("connecting to {server}"))?)
}

/// As [`connect`] from a chosen local port, also one that was in use until now.
///
/// # Errors
/// As [`connect`], or if the port is in use.
pub fn connect_from(node: &Node, port: u16, server: SocketAddr) -> Result<TcpStream> {
    let fd = node.enter(|| socket_from(port, server))?;
    prepared(TcpStream::from(fd.with_context(|| {
        format!("connecting from port {port} to {server}")
    })?))
}

fn socket_from(port: u16, server: SocketAddr) -> nix::Result<OwnedFd> {
    let (family, any) = match server {
        SocketAddr::V4(_) => (AddressFamily::Inet, Ipv4Addr::UNSPECIFIED.into()),
        SocketAddr::V6(_) => (AddressFamily::Inet6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    let local = SocketAddr::new(any, port);
    bind(fd.as_raw_fd(), &SockaddrStorage::from(local))?;
    connect_socket(fd.as_raw_fd(), &SockaddrStorage::from(server))?;
    Ok(fd)
}

fn prepared(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true).context("setting TCP_NODELAY")?;
    stream
        .set_read_timeout(Some(DEADLINE))
        .and_then(|()| stream.set_write_timeout(Some(DEADLINE)))
        .context("setting time limits")?;
    Ok(stream)
}

/// Ends a connection with a RST, as a client does that crashes.
///
/// # Errors
/// Fails if the socket refuses to linger.
pub fn reset(stream: TcpStream) -> Result<()> {
    let linger = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &linger).context("setting SO_LINGER")?;
    drop(stream);
    Ok(())
}

/// Sends all of `bytes`.
///
/// # Errors
/// Fails if the connection breaks.
pub fn send(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) -> Result<()> {
    stream.write_all(bytes.as_ref()).context("sending")
}

/// Reads exactly `expected` and compares it.
///
/// # Errors
/// Fails if the connection breaks or a byte is wrong.
pub fn expect(stream: &mut TcpStream, expected: impl AsRef<[u8]>) -> Result<()> {
    let expected = expected.as_ref();
    let mut received = vec![0; expected.len()];
    stream
        .read_exact(&mut received)
        .with_context(|| format!("waiting for {} bytes", expected.len()))?;
    let wrong = received.iter().zip(expected).position(|(a, b)| a != b);
    ensure!(wrong.is_none(), "byte {wrong:?} is wrong");
    Ok(())
}

/// Reads to the end of the stream, which must come at once.
///
/// # Errors
/// Fails if the connection breaks or a byte comes.
pub fn expect_end(stream: &mut TcpStream) -> Result<()> {
    let mut rest = Vec::new();
    stream
        .read_to_end(&mut rest)
        .context("waiting for the end")?;
    ensure!(rest.is_empty(), "{} bytes after the end", rest.len());
    Ok(())
}

impl Download {
    /// Asks the lab's server for `content` over `stream`.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn ask(mut stream: TcpStream, content: Content) -> Result<Self> {
        send(&mut stream, wish("get", content))?;
        Ok(Self::expecting(stream, content))
    }

    /// Expects `content` over `stream` without asking for it.
    pub fn expecting(stream: TcpStream, content: Content) -> Self {
        Self {
            stream,
            meter: Meter::default(),
            content,
            offset: 0,
        }
    }

    /// Reads on until `bytes` have come in all.
    ///
    /// # Errors
    /// Fails if the connection breaks or ends, or a byte is wrong.
    pub fn read_until(&mut self, bytes: u64) -> Result<()> {
        while self.offset < bytes.min(self.content.length) {
            ensure!(self.step()? > 0, "the end came at {}", self.offset);
        }
        Ok(())
    }

    /// Reads all that remains and the end of the stream.
    ///
    /// # Errors
    /// Fails if the connection breaks, or a byte is wrong, missing or too much.
    pub fn read_to_end(&mut self) -> Result<()> {
        while self.step()? > 0 {}
        let (offset, length) = (self.offset, self.content.length);
        ensure!(offset == length, "{offset} bytes of {length}");
        Ok(())
    }

    /// Fails if the client waited for a second-class timer since `since`.
    ///
    /// # Errors
    /// As it says.
    pub fn expect_no_stall(&self, since: Instant) -> Result<()> {
        expect_no_stall(&self.meter, since)
    }

    fn step(&mut self) -> Result<usize> {
        let mut received = vec![0; CHUNK];
        let at = self.offset;
        let length = self
            .stream
            .read(&mut received)
            .with_context(|| format!("downloading at {at} of {}", self.content.length))?;
        if length == 0 {
            return Ok(0);
        }
        self.meter.record(length);
        let mut scratch = vec![0; length];
        let expected = self.content.part(at, &mut scratch);
        let same = expected.iter().zip(&received).take_while(|(a, b)| a == b);
        let same = same.count();
        ensure!(same == length, "byte {} is wrong", at + same as u64);
        self.offset += length as u64;
        Ok(length)
    }
}

/// Fails if `meter` saw a silence above [`STALL_LIMIT`] since `since`.
///
/// # Errors
/// As it says.
pub fn expect_no_stall(meter: &Meter, since: Instant) -> Result<()> {
    let gap = meter.longest_gap_since(since);
    let length = gap.map_or_else(Default::default, |gap| gap.length);
    ensure!(length < STALL_LIMIT, "the client waited {length:?}");
    Ok(())
}

/// The first line that asks the lab's server to `get` or `put` a content.
pub fn wish(verb: &str, content: Content) -> String {
    format!("{verb} {} {}\n", content.seed, content.length)
}
