//! Clients of a [`FileSet`]: each asks for a file, reads and compares it
//! to the last byte, and asks for the next one at once.
//!
//! One thread and one epoll for all of them, for it shares its processors with the
//! servers; nothing is allocated for a request.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use serde::{Deserialize, Serialize};

use super::reply::{self, HEAD, Head, Server};
use super::tally::{Counts, Tally};
use super::{FileSet, KINDS, Name, VERB};
use crate::apps::command;
use crate::lab::Node;

/// Events taken at a time, and how long none is waited for.
const EVENTS: usize = 256;
const TICK: Duration = Duration::from_millis(20);

/// Bytes that are read at a time.
const CHUNK: usize = 128 << 10;

/// What its process may take besides all else.
const SLACK: Duration = Duration::from_secs(10);

/// What clients do, and for how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The service.
    pub target: SocketAddr,
    /// Files of each kind are this times its weight, as in [`FileSet`].
    pub factor: u32,
    /// Of a thousand requests, how many are for each of [`KINDS`].
    pub mix: [u32; KINDS.len()],
    /// Connections at a time.
    pub connections: u32,
    /// Requests on each, after which it is the server that ends it; 0: all of them.
    pub per_connection: u32,
    /// How long nothing counts, at the beginning.
    pub warm: Duration,
    /// How long it counts, at most.
    pub span: Duration,
    /// It ends after so many requests; 0: after that time only.
    pub requests: u64,
    /// How long nothing may come on a connection.
    pub patience: Duration,
    /// Chooses the files.
    pub seed: u64,
}

impl Load {
    /// WebStone's mix, one request per connection.
    pub fn new(target: SocketAddr, files: FileSet, connections: u32) -> Self {
        Self {
            target,
            factor: files.factor,
            mix: KINDS.map(|kind| kind.weight),
            connections,
            per_connection: 1,
            warm: Duration::ZERO,
            span: Duration::from_secs(10),
            requests: 0,
            patience: Duration::from_secs(30),
            seed: 1,
        }
    }

    /// Runs it as a process on `node`, to its end.
    ///
    /// # Errors
    /// Fails if that can't be started or does not end; not because of what it sees.
    pub fn run(&self, node: &Node) -> Result<Tally> {
        let options = serde_json::to_string(self).context("writing JSON")?;
        let command = command::program(&[VERB, &options])?;
        let deadline = self.warm + self.span + self.patience + SLACK;
        let output = node.run(command, deadline)?;
        ensure!(output.status.success(), "{}", output.stderr.trim());
        serde_json::from_str(&output.stdout).context("reading a load's report")
    }
}

/// The command: prints its report.
pub(crate) fn run(options: &str) -> Result<()> {
    let load: Load = serde_json::from_str(options).context("reading a load's options")?;
    let tally = Clients::new(&load)?.run()?;
    let line = serde_json::to_string(&tally).context("writing JSON")?;
    writeln!(std::io::stdout(), "{line}").context("writing a report")
}

/// All of them.
struct Clients<'a> {
    load: &'a Load,
    epoll: Epoll,
    dice: Dice,
    counts: Counts,
    begin: Instant,
    end: Instant,
    asked: u64,
    buffer: Vec<u8>,
    expected: Vec<u8>,
    request: String,
}

/// A place for connections, one after the other.
struct Client {
    stream: Option<TcpStream>,
    name: Name,
    /// Requests that this connection is still for, this one included; 0 without end.
    left: u32,
    began: Instant,
    heard: Instant,
    phase: Phase,
    head: [u8; HEAD],
    /// Who has answered last on this connection.
    server: Server,
    /// How often somebody has.
    replies: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    /// So many bytes of the header have come.
    Head(usize),
    /// So many of the file.
    Body(u64, Server),
    /// All has come, and the server closes.
    End,
}

/// Why a connection is over before its time.
enum Fault {
    Wrong,
    Reset,
    Closed,
    Ended,
    Refused,
}

impl<'a> Clients<'a> {
    fn new(load: &'a Load) -> Result<Self> {
        ensure!(load.mix.iter().sum::<u32>() == 1000, "a mix is of 1000");
        let now = Instant::now();
        Ok(Self {
            load,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll")?,
            dice: Dice(load.seed),
            counts: Counts::default(),
            begin: now + load.warm,
            end: now + load.warm + load.span,
            asked: 0,
            buffer: vec![0; CHUNK],
            expected: vec![0; CHUNK],
            request: String::with_capacity(HEAD),
        })
    }

    fn run(mut self) -> Result<Tally> {
        let mut clients = Vec::new();
        for index in 0..self.load.connections {
            let mut client = Client::new();
            self.open(&mut client, index)?;
            clients.push(client);
        }
        let mut events = [EpollEvent::empty(); EVENTS];
        let tick = EpollTimeout::try_from(TICK).context("a time limit")?;
        let mut looked = Instant::now();
        loop {
            let count = match self.epoll.wait(&mut events, tick) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error).context("waiting"),
            };
            let now = Instant::now();
            for event in &events[..count] {
                let index = u32::try_from(event.data()).context("an event's number")?;
                let client = clients.get_mut(index as usize);
                let client = client.context("an event of nobody")?;
                let ends = event.events().contains(EpollFlags::EPOLLRDHUP);
                self.turn(client, index, (now, ends))?;
            }
            if now - looked > TICK {
                looked = now;
                let is_over = self.is_over(now);
                if is_over && clients.iter().all(|client| client.stream.is_none()) {
                    break;
                }
                for (client, index) in clients.iter_mut().zip(0..) {
                    self.look(client, index, now)?;
                }
            }
        }
        let counted = self.end.min(looked).saturating_duration_since(self.begin);
        Ok(self.counts.report(counted))
    }

    /// No request begins any more.
    fn is_over(&self, now: Instant) -> bool {
        let enough = self.load.requests;
        now >= self.end || (enough > 0 && self.asked >= enough)
    }

    /// A new connection, or none if it is over.
    fn open(&mut self, client: &mut Client, index: u32) -> Result<()> {
        client.stream = None;
        let now = Instant::now();
        if self.is_over(now) {
            return Ok(());
        }
        self.asked += 1;
        client.name = self.choose();
        client.left = self.load.per_connection;
        (client.began, client.heard) = (now, now);
        client.phase = Phase::Connecting;
        client.server = Server::default();
        client.replies = 0;
        let stream = begin_to_connect(self.load.target)?;
        let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP;
        let interest = interest | EpollFlags::EPOLLET;
        let event = EpollEvent::new(interest, u64::from(index));
        self.epoll.add(&stream, event).context("waiting for one")?;
        client.stream = Some(stream);
        self.counts.tally.connections += 1;
        Ok(())
    }

    fn choose(&mut self) -> Name {
        let mut lot = self.dice.below(1000);
        let mut kind = 0;
        while lot >= self.load.mix[kind] {
            lot -= self.load.mix[kind];
            kind += 1;
        }
        let files = FileSet {
            factor: self.load.factor,
        };
        let number = self.dice.below(files.count(kind));
        Name { kind, number }
    }

    /// Something has happened on this connection, its server's end perhaps.
    fn turn(&mut self, client: &mut Client, index: u32, what: (Instant, bool)) -> Result<()> {
        // An event may be of a connection that is over by now.
        let Some(stream) = client.stream.take() else {
            return Ok(());
        };
        match self.go_on(client, &stream, what) {
            Ok(true) => {
                client.stream = Some(stream);
                return Ok(());
            }
            Ok(false) => {}
            Err(fault) => {
                let tally = &mut self.counts.tally;
                *match fault {
                    Fault::Wrong => &mut tally.wrong,
                    Fault::Reset => &mut tally.resets,
                    Fault::Closed => &mut tally.closed,
                    Fault::Ended => &mut tally.ended,
                    Fault::Refused => &mut tally.refused,
                } += 1;
            }
        }
        drop(stream);
        self.open(client, index)
    }

    /// What can be done now is; whether the connection goes on.
    fn go_on(
        &mut self,
        client: &mut Client,
        mut stream: &TcpStream,
        (now, ends): (Instant, bool),
    ) -> Result<bool, Fault> {
        if client.phase == Phase::Connecting {
            match stream.take_error() {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return Err(Fault::Refused),
            }
            self.ask(client, stream)?;
        }
        loop {
            let length = match stream.read(&mut self.buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(_) => return Err(Fault::Reset),
            };
            client.heard = now;
            if length == 0 {
                let is_whole = client.phase == Phase::End;
                if client.phase == Phase::Head(0) && client.replies > 0 {
                    return Err(Fault::Ended);
                }
                return if is_whole {
                    Ok(false)
                } else {
                    Err(Fault::Closed)
                };
            }
            if self.take(client, length)? {
                if client.left == 1 {
                    client.phase = Phase::End;
                } else if self.is_over(now) {
                    return Ok(false);
                } else {
                    client.left = client.left.saturating_sub(1);
                    self.asked += 1;
                    client.name = self.choose();
                    // What else was ready with it has taken its time.
                    client.began = Instant::now();
                    self.ask(client, stream)?;
                }
            }
            // An end behind it would not be told of again.
            if length < self.buffer.len() && client.phase != Phase::End && !ends {
                return Ok(true);
            }
        }
    }

    /// Says what is wanted.
    fn ask(&mut self, client: &mut Client, mut stream: &TcpStream) -> Result<(), Fault> {
        self.request.clear();
        self.request.push_str("GET ");
        client.name.put_path(&mut self.request);
        self.request
            .push_str(" HTTP/1.1\r\nHost: www.example.org\r\n");
        if client.left == 1 {
            self.request.push_str("Connection: close\r\n");
        }
        self.request.push_str("\r\n");
        client.phase = Phase::Head(0);
        match stream.write(self.request.as_bytes()) {
            Ok(length) if length == self.request.len() => Ok(()),
            Ok(_) => Err(Fault::Wrong),
            Err(_) => Err(Fault::Reset),
        }
    }

    /// The next bytes of a reply have come; whether that was its end.
    fn take(&mut self, client: &mut Client, length: usize) -> Result<bool, Fault> {
        let mut start = 0;
        if let Phase::Head(known) = client.phase {
            let more = length.min(HEAD - known);
            client.head[known..known + more].copy_from_slice(&self.buffer[..more]);
            let head = reply::parse(&client.head[..known + more]);
            let Some(head) = head.map_err(|()| Fault::Wrong)? else {
                client.phase = Phase::Head(known + more);
                return Ok(false);
            };
            let Head { body, server, .. } = head;
            if body != KINDS[client.name.kind].bytes {
                return Err(Fault::Wrong);
            }
            client.phase = Phase::Body(0, server);
            start = head.length - known;
        }
        // Bytes behind the end of a reply are nobody's.
        let Phase::Body(at, server) = client.phase else {
            return Err(Fault::Wrong);
        };
        let received = &self.buffer[start..length];
        let content = client.name.content();
        let expected = content.part(at, &mut self.expected[..received.len()]);
        if received != expected {
            return Err(Fault::Wrong);
        }
        let at = at + received.len() as u64;
        client.phase = Phase::Body(at, server);
        let is_whole = at == content.length;
        if is_whole {
            self.count(client, server);
        }
        Ok(is_whole)
    }

    fn count(&mut self, client: &mut Client, server: Server) {
        let now = Instant::now();
        let (kind, before) = (client.name.kind, client.server);
        client.server = server;
        client.replies += 1;
        self.counts.reply(server, before);
        if (self.begin..self.end).contains(&now) {
            self.counts.answered(kind);
        }
        if client.began >= self.begin {
            let time = now - client.began;
            self.counts.took(kind, time, server, before);
        }
    }

    /// Nothing may have happened for too long.
    fn look(&mut self, client: &mut Client, index: u32, now: Instant) -> Result<()> {
        let is_late = now.saturating_duration_since(client.heard) > self.load.patience;
        if client.stream.is_some() && is_late {
            self.counts.tally.stuck += 1;
            self.open(client, index)?;
        }
        Ok(())
    }
}

impl Client {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            stream: None,
            name: Name { kind: 0, number: 0 },
            left: 0,
            began: now,
            heard: now,
            phase: Phase::Connecting,
            head: [0; HEAD],
            server: Server::default(),
            replies: 0,
        }
    }
}

/// SplitMix64: the same files for the same seed.
struct Dice(u64);

impl Dice {
    /// The next one of 0 to `limit` - 1.
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let wide = u64::from(limit) * ((z ^ (z >> 31)) >> 32);
        u32::try_from(wide >> 32).unwrap_or(0)
    }
}

/// A connection that is there later on.
fn begin_to_connect(target: SocketAddr) -> Result<TcpStream> {
    let family = if target.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket: OwnedFd =
        socket(family, SockType::Stream, flags, None).context("making a socket")?;
    setsockopt(&socket, sockopt::TcpNoDelay, &true).context("setting TCP_NODELAY")?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(target)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => bail!("connecting to {target}: {error}"),
    }
}
