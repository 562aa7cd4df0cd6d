//! A server whose output is a function of one connection's bytes, as a shadow
//! needs it. The first line that a client sends says what it wants:
//!
//! | line | then |
//! |---|---|
//! | `echo` | every byte comes back |
//! | `ask REQUEST REPLY` | for each `REQUEST` bytes, `REPLY` bytes of [`REPLIES`] come back |
//! | `get SEED LENGTH` | that [`Content`] comes, then the end |
//! | `put SEED LENGTH` | that content is read and compared; one line says `ok` or `wrong AT` |
//! | `zeros LENGTH` | so many zero bytes come, then the end |
//! | `sink LENGTH` | so many bytes are read and forgotten; one line says `ok` |
//!
//! The last two cost the server nothing but the copying: they measure the path.
//!
//! A line that is none of these ends the connection.

use std::env;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use godwit_app::{Listener, Options};
use godwit_sock::set_option;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use super::content::{Checker, Content};
use super::{command, wait_until_listening};
use crate::lab::Node;
use crate::process::Process;

/// The replies to `ask`, one after the other.
pub const REPLIES: Content = Content {
    seed: 0x00a5_0000,
    length: u64::MAX,
};

/// Where the library finds its agent; without it this server does not use the library.
const AGENT: &str = "GODWIT_APP_SOCKET";

/// Longest first line; a longer one is not ours.
pub(super) const LINE_LIMIT: u64 = 64;

/// Connections that may wait to be accepted; as high as a default Linux allows.
const BACKLOG: u32 = 4096;

/// Longest request of `ask`, so that a client can't name its own buffer size.
const REQUEST_LIMIT: u64 = 1 << 20;

const CHUNK: usize = 64 * 1024;

/// Bytes of one read or write of `zeros` and `sink`.
const BULK_CHUNK: usize = 256 * 1024;

/// What a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Echo,
    Ask { request: usize, reply: usize },
    Get(Content),
    Put(Content),
    Zeros(u64),
    Sink(u64),
}

/// Starts the server on `node` as a process, at `port` of every address.
///
/// # Errors
/// Fails if it does not listen within five seconds.
pub fn start(node: &Node, port: u16) -> Result<Process> {
    start_with(node, port, &[])
}

/// How what a server accepts shall send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning<'a> {
    /// Instead of the kernel's default congestion control, as in
    /// `net.ipv4.tcp_available_congestion_control`.
    pub congestion: Option<&'a str>,
    /// No faster than so many bytes per second (`SO_MAX_PACING_RATE`).
    pub pace: Option<u32>,
}

/// As [`start`], with another congestion control.
///
/// # Errors
/// Fails as [`start_tuned`] does.
pub fn start_with_congestion(node: &Node, port: u16, congestion: &str) -> Result<Process> {
    let tuning = Tuning {
        congestion: Some(congestion),
        pace: None,
    };
    start_tuned(node, port, tuning)
}

/// As [`start`], with other sockets.
///
/// # Errors
/// Fails as [`start`] does, and if the kernel has no such congestion control.
pub fn start_tuned(node: &Node, port: u16, tuning: Tuning<'_>) -> Result<Process> {
    let pace = tuning.pace.map(|pace| pace.to_string());
    let mut options = Vec::new();
    if let Some(name) = tuning.congestion {
        options.extend([command::CONGESTION, name]);
    }
    if let Some(pace) = &pace {
        options.extend([command::PACE, pace.as_str()]);
    }
    start_with(node, port, &options)
}

/// As [`start`]: it registers with the agent whose socket for server processes is `agent`,
/// and never exports anything. After a SIGUSR1 it is as one that has not registered.
///
/// # Errors
/// Fails as [`start`] does.
pub fn start_registered(node: &Node, port: u16, agent: &Path) -> Result<Process> {
    start_prepared(node, port, &[], |command| {
        command.env(AGENT, agent);
    })
}

fn start_with(node: &Node, port: u16, options: &[&str]) -> Result<Process> {
    start_prepared(node, port, options, |_| {})
}

fn start_prepared(
    node: &Node,
    port: u16,
    options: &[&str],
    prepare: impl FnOnce(&mut Command),
) -> Result<Process> {
    let everywhere: [SocketAddr; 2] = [
        (Ipv4Addr::UNSPECIFIED, port).into(),
        (Ipv6Addr::UNSPECIFIED, port).into(),
    ];
    let [v4, v6] = everywhere.map(|address| address.to_string());
    let args = [&["serve"], options, &[v4.as_str(), v6.as_str()]].concat();
    let mut command = command::program(&args)?;
    prepare(&mut command);
    let mut process = node.spawn("server", command)?;
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    wait_until_listening(node, &mut process, local, Duration::from_secs(5))?;
    Ok(process)
}

/// Serves at all of `addresses` until the process ends.
///
/// # Errors
/// Fails if an address can't be listened at.
pub fn serve(addresses: &[SocketAddr], tuning: Tuning<'_>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(async {
        let (mut listeners, mut registered) = (Vec::new(), Vec::new());
        for address in addresses {
            let listener = listen(*address, tuning);
            let listener = listener.with_context(|| format!("listening at {address}"))?;
            if env::var_os(AGENT).is_some() {
                let shown = listener.as_fd().try_clone_to_owned()?;
                registered.push(Listener::new(shown.into(), Options::default())?);
            }
            listeners.push(tokio::spawn(accept(listener)));
        }
        forget_when_told(registered)?;
        for listener in listeners {
            listener.await.context("a listener ended")?;
        }
        Ok(())
    })
}

/// SIGUSR1 has the library know these no more; who listens listens on.
fn forget_when_told(registered: Vec<Listener>) -> Result<()> {
    if registered.is_empty() {
        return Ok(());
    }
    let mut told = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        told.recv().await;
        drop(registered);
    });
    Ok(())
}

pub(super) fn listen(address: SocketAddr, tuning: Tuning<'_>) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() {
        // IPv4 has a listener of its own, as in most servers.
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    // What it accepts inherits both.
    if let Some(name) = tuning.congestion {
        setsockopt(&socket, sockopt::TcpCongestion, &OsString::from(name))?;
    }
    if let Some(pace) = tuning.pace {
        set_pace(socket.as_fd(), pace)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Has a socket send no faster than `pace` bytes per second.
pub(crate) fn set_pace(socket: BorrowedFd<'_>, pace: u32) -> io::Result<()> {
    set_option(
        socket,
        libc::SOL_SOCKET,
        libc::SO_MAX_PACING_RATE,
        pace.cast_signed(),
    )
}

async fn accept(listener: TcpListener) {
    loop {
        // Out of descriptors or a client that has gone: the next one may do.
        if let Ok((stream, _)) = listener.accept().await {
            // A connection that breaks is the client's business.
            tokio::spawn(async move { answer(stream).await.unwrap_or_default() });
        } else {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn answer(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    (&mut stream).take(LINE_LIMIT).read_line(&mut line).await?;
    match Wish::parse(&line) {
        Some(Wish::Echo) => echo(stream).await,
        Some(Wish::Ask { request, reply }) => ask(stream, request, reply).await,
        Some(Wish::Get(content)) => get(stream, content).await,
        Some(Wish::Put(content)) => put(stream, content).await,
        Some(Wish::Zeros(length)) => zeros(stream.into_inner(), length).await,
        Some(Wish::Sink(length)) => sink(stream, length).await,
        None => Ok(()),
    }
}

async fn echo(mut stream: BufReader<TcpStream>) -> io::Result<()> {
    let mut buffer = vec![0; 4096];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer[..length]).await?;
    }
}

async fn ask(mut stream: BufReader<TcpStream>, request: usize, reply: usize) -> io::Result<()> {
    let mut question = vec![0; request];
    let mut answer = vec![0; reply];
    let mut offset = 0;
    loop {
        match stream.read_exact(&mut question).await {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return stream.shutdown().await,
            Err(e) => return Err(e),
        }
        REPLIES.fill(offset, &mut answer);
        offset += reply as u64;
        stream.write_all(&answer).await?;
    }
}

async fn get(mut stream: BufReader<TcpStream>, content: Content) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < content.length {
        let part = content.part(offset, &mut buffer);
        stream.write_all(part).await?;
        offset += part.len() as u64;
    }
    stream.shutdown().await
}

async fn put(mut stream: BufReader<TcpStream>, content: Content) -> io::Result<()> {
    let mut checker = Checker::new(content);
    let mut buffer = vec![0; CHUNK];
    let mut left = content.length;
    while left > 0 {
        let most = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        let length = stream.read(&mut buffer[..most]).await?;
        if length == 0 {
            break;
        }
        checker.feed(&buffer[..length]);
        left -= length as u64;
    }
    let verdict = checker.finish();
    let line = match verdict.first_wrong {
        None if verdict.exact => "ok\n".to_owned(),
        None => format!("wrong {}\n", verdict.bytes),
        Some(at) => format!("wrong {at}\n"),
    };
    stream.write_all(line.as_bytes()).await?;
    stream.shutdown().await
}

async fn zeros(mut stream: TcpStream, length: u64) -> io::Result<()> {
    let buffer = vec![0; BULK_CHUNK];
    let mut left = length;
    while left > 0 {
        let part = usize::try_from(left).map_or(BULK_CHUNK, |left| left.min(BULK_CHUNK));
        stream.write_all(&buffer[..part]).await?;
        left -= part as u64;
    }
    stream.shutdown().await
}

async fn sink(stream: BufReader<TcpStream>, length: u64) -> io::Result<()> {
    let mut left = length.saturating_sub(stream.buffer().len() as u64);
    let mut stream = stream.into_inner();
    let mut buffer = vec![0; BULK_CHUNK];
    while left > 0 {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        left = left.saturating_sub(length as u64);
    }
    stream.write_all(b"ok\n").await?;
    stream.shutdown().await
}

impl Wish {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_suffix('\n')?.split(' ');
        let verb = words.next()?;
        let numbers = words
            .map(str::parse)
            .collect::<Result<Vec<u64>, _>>()
            .ok()?;
        match (verb, numbers.as_slice()) {
            ("echo", []) => Some(Self::Echo),
            ("ask", &[request @ 1..=REQUEST_LIMIT, reply @ 0..=REQUEST_LIMIT]) => Some(Self::Ask {
                request: usize::try_from(request).ok()?,
                reply: usize::try_from(reply).ok()?,
            }),
            ("get", &[seed, length]) => Some(Self::Get(Content { seed, length })),
            ("put", &[seed, length]) => Some(Self::Put(Content { seed, length })),
            ("zeros", &[length]) => Some(Self::Zeros(length)),
            ("sink", &[length]) => Some(Self::Sink(length)),
            _ => None,
        }
    }
}

impl std::fmt::Display for Wish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Echo => writeln!(f, "echo"),
            Self::Ask { request, reply } => writeln!(f, "ask {request} {reply}"),
            Self::Get(content) => writeln!(f, "get {} {}", content.seed, content.length),
            Self::Put(content) => writeln!(f, "put {} {}", content.seed, content.length),
            Self::Zeros(length) => writeln!(f, "zeros {length}"),
            Self::Sink(length) => writeln!(f, "sink {length}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_reads_as_it_is_written() {
        let content = Content { seed: 1, length: 2 };
        let ask = Wish::Ask {
            request: 150,
            reply: 10_000,
        };
        let bulk = [Wish::Zeros(3), Wish::Sink(4)];
        let all = [Wish::Echo, ask, Wish::Get(content), Wish::Put(content)];
        for wish in all.into_iter().chain(bulk) {
            assert_eq!(Wish::parse(&wish.to_string()), Some(wish));
        }
    }

    #[test]
    fn anything_else_is_no_wish() {
        let bad = [
            "",
            "echo",
            "echo 1\n",
            "ask 0 1\n",
            "ask 9999999999 1\n",
            "get 1\n",
            "get -1 1\n",
            "GET / HTTP/1.1\r\n",
        ];
        for line in bad {
            assert_eq!(Wish::parse(line), None, "{line:?}");
        }
    }
}
