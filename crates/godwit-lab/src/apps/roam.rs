//! A server whose connections move while they run: it keeps in each how much it
//! has said and heard, exports that whenever it changes, and goes on from there.
//!
//! It says [`DOWN`] and hears [`UP`], at the same time and until its client ends its
//! side. Then it says how many bytes it has heard and said, 8 bytes each, and ends.
//!
//! Its log has a line for each connection that comes from another server: the
//! client, and how many bytes the other one had said ([`came_at`]). One that commits
//! ([`Manner::commits`]) says in it, too, how much of what it has said is safe
//! ([`safe_at`]), or that it is unprotected.

use std::env;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use godwit_app::{Listener, Options, commit_state, export_state, join_session};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::content::Content;
use super::{command, server, wait_until_listening};
use crate::lab::Node;
use crate::process::Process;

/// Its command.
pub(crate) const VERB: &str = "roam";

/// What it says.
pub const DOWN: Content = Content {
    seed: 0x00d0,
    length: u64::MAX,
};

/// What it hears.
pub const UP: Content = Content {
    seed: 0x00b0,
    length: u64::MAX,
};

/// Bytes of its last words.
pub const LAST_WORDS: usize = 16;

/// What is before the addresses if it is not to be the default.
const MANNER: &str = "--manner";

/// Environment variable of such a server: what its connections have instead of the
/// kernel's default congestion control.
const CONGESTION: &str = "GODWIT_LAB_CONGESTION";

/// Bytes of what it needs to know of a connection.
const PLACE: usize = 16;

/// What else is in a snapshot.
const BALLAST: Content = Content {
    seed: 0x00ba,
    length: u64::MAX,
};

/// How it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Bytes of a snapshot, besides the 16 that it needs itself.
    pub state: usize,
    /// Bytes that it says at a time, at most [`CHUNK`].
    pub chunk: usize,
    /// Between two times.
    pub pace: Duration,
    /// Connections from one address are a session.
    pub sessions: bool,
    /// Congestion control instead of the kernel's default.
    pub congestion: Option<&'static str>,
    /// It never goes back from what it exports, and waits until its standby has that.
    pub commits: bool,
}

impl Default for Manner {
    /// Both sides stay busy on a small machine.
    fn default() -> Self {
        Self {
            state: 0,
            chunk: CHUNK,
            pace: Duration::from_millis(1),
            sessions: false,
            congestion: None,
            commits: false,
        }
    }
}

/// Bytes that it hears at a time, and says at most.
pub const CHUNK: usize = 8 << 10;

/// Starts it on `node`, at `port` of all addresses; `agent` is the socket for server
/// processes of that node's agent, which need not be there yet.
///
/// # Errors
/// Fails if it does not listen within five seconds.
pub fn start(node: &Node, port: u16, agent: &Path) -> Result<Process> {
    start_with(node, port, agent, Manner::default())
}

/// As [`start`], in another manner.
///
/// # Errors
/// As [`start`].
pub fn start_with(node: &Node, port: u16, agent: &Path, manner: Manner) -> Result<Process> {
    let Manner { state, chunk, .. } = manner;
    let pace = manner.pace.as_micros();
    let (sessions, commits) = (u8::from(manner.sessions), u8::from(manner.commits));
    let numbers = format!("{state},{chunk},{pace},{sessions},{commits}");
    let args = [VERB, MANNER, &numbers];
    start_program_with(node, port, agent, (&args, manner.congestion))
}

/// Starts a server that uses the library.
pub(super) fn start_program(
    node: &Node,
    port: u16,
    agent: &Path,
    args: &[&str],
) -> Result<Process> {
    start_program_with(node, port, agent, (args, None))
}

fn start_program_with(
    node: &Node,
    port: u16,
    agent: &Path,
    (args, congestion): (&[&str], Option<&str>),
) -> Result<Process> {
    let everywhere: [SocketAddr; 2] = [
        (Ipv4Addr::UNSPECIFIED, port).into(),
        (Ipv6Addr::UNSPECIFIED, port).into(),
    ];
    let [v4, v6] = everywhere.map(|address| address.to_string());
    let mut command = command::program(&[args, &[&v4, &v6]].concat())?;
    command.env("GODWIT_APP_SOCKET", agent);
    command.envs(congestion.map(|name| (CONGESTION, name)));
    let mut process = node.spawn(args[0], command)?;
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    wait_until_listening(node, &mut process, local, Duration::from_secs(5))?;
    Ok(process)
}

/// How many bytes the other server had said when a client's connection came here
/// last, as the log says.
pub fn came_at(log: &str, client: SocketAddr) -> Option<u64> {
    last(log, &format!("came: {client} at "))
}

/// How much of what was said to a client was safe last, as the log says.
pub fn safe_at(log: &str, client: SocketAddr) -> Option<u64> {
    last(log, &format!("safe: {client} at "))
}

/// Whether a commit of a client's connection came to nothing after the last that did
/// not, as the log says.
pub fn is_unsafe(log: &str, client: SocketAddr) -> bool {
    let safe = format!("safe: {client} at ");
    let mut lines = log.lines().rev();
    let last = lines.find(|line| line.starts_with(&safe) || *line == unprotected(client));
    last.is_some_and(|line| !line.starts_with(&safe))
}

fn unprotected(client: SocketAddr) -> String {
    format!("unprotected: {client}")
}

fn last(log: &str, begin: &str) -> Option<u64> {
    let mut lines = log.lines().rev();
    lines.find_map(|line| line.strip_prefix(begin)?.parse().ok())
}

/// Writes the line that [`came_at`] reads, as a server.
pub(super) fn note_arrival(client: SocketAddr, said: u64) -> Result<()> {
    writeln!(std::io::stderr(), "came: {client} at {said}").context("writing the log")
}

/// Serves at all of the addresses until the process ends.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (manner, addresses) = match args {
        [option, numbers, rest @ ..] if option == MANNER => (parse(numbers)?, rest),
        addresses => (Manner::default(), addresses),
    };
    let mut threads = Vec::new();
    for address in addresses {
        let listener = command::address(address).and_then(listen);
        let listener = listener.with_context(|| format!("listening at {address}"))?;
        threads.push(thread::spawn(move || accept(&listener, manner)));
    }
    for thread in threads {
        thread.join().ok().context("a listener ended")??;
    }
    Ok(())
}

fn parse(numbers: &str) -> Result<Manner> {
    let numbers = numbers.split(',').map(str::parse);
    let numbers = numbers.collect::<Result<Vec<usize>, _>>()?;
    let [
        state,
        chunk @ 1..=CHUNK,
        pace,
        sessions @ 0..=1,
        commits @ 0..=1,
    ] = numbers[..]
    else {
        bail!("a manner is STATE,CHUNK,MICROSECONDS,SESSIONS,COMMITS");
    };
    Ok(Manner {
        state,
        chunk,
        pace: Duration::from_micros(pace as u64),
        sessions: sessions == 1,
        congestion: None,
        commits: commits == 1,
    })
}

/// A listener that the library knows.
pub(super) fn listen(address: SocketAddr) -> Result<Listener> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let congestion = env::var(CONGESTION).ok();
    let tuning = server::Tuning {
        congestion: congestion.as_deref(),
        pace: None,
    };
    let listen = async { server::listen(address, tuning)?.into_std() };
    let listener = runtime.block_on(listen)?;
    listener.set_nonblocking(false)?;
    Ok(Listener::new(listener, Options::default())?)
}

fn accept(listener: &Listener, manner: Manner) -> Result<()> {
    loop {
        let accepted = listener.accept()?;
        thread::spawn(move || {
            let client = accepted.stream.peer_addr();
            let talk = Talk::new(accepted.stream, accepted.migrated, manner);
            if let Err(error) = talk.and_then(Talk::go_on) {
                // The log of the process: a connection that broke, or a wrong byte.
                let _ = writeln!(std::io::stderr(), "{client:?}: {error:#}");
            }
        });
    }
}

/// Bytes said and heard, as the beginning of a snapshot has them.
pub(super) fn place(state: &[u8]) -> Result<(u64, u64)> {
    let numbers = state.get(..PLACE).context("a state that is too short")?;
    let (said, heard) = numbers.split_at(PLACE / 2);
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes);
    Ok((number(said)?, number(heard)?))
}

/// One connection.
struct Talk {
    stream: TcpStream,
    manner: Manner,
    /// The snapshot; its first 16 bytes are written anew each time.
    state: Vec<u8>,
    said: u64,
    heard: u64,
    /// What of both is safe.
    safe: Option<(u64, u64)>,
}

/// Where it stands after a turn.
enum Turn {
    Busy,
    Idle,
    ClientEnded,
}

impl Talk {
    fn new(stream: TcpStream, migrated: Option<Vec<u8>>, manner: Manner) -> Result<Self> {
        stream.set_nonblocking(true)?;
        if manner.sessions {
            join_session(&stream, stream.peer_addr()?.ip().to_string().as_bytes())?;
        }
        let mut state = vec![0; PLACE + manner.state];
        BALLAST.fill(0, &mut state[PLACE..]);
        let (mut said, mut heard) = (0, 0);
        if let Some(came) = migrated {
            // Without a state it had come no further than its beginning.
            if !came.is_empty() {
                (said, heard) = place(&came)?;
                ensure!(came[PLACE..] == state[PLACE..], "another state");
            }
            let client = stream.peer_addr()?;
            note_arrival(client, said)?;
        }
        Ok(Self {
            stream,
            manner,
            state,
            said,
            heard,
            safe: None,
        })
    }

    fn go_on(mut self) -> Result<()> {
        loop {
            if self.export().is_err() {
                // Another server has it.
                return Ok(());
            }
            match self.turn()? {
                Turn::Busy => thread::sleep(self.manner.pace),
                Turn::Idle => self.wait()?,
                Turn::ClientEnded if self.export().is_err() => return Ok(()),
                Turn::ClientEnded => return self.say_last_words(),
            }
        }
    }

    fn export(&mut self) -> Result<(), godwit_app::Error> {
        let place = [self.said.to_be_bytes(), self.heard.to_be_bytes()].concat();
        self.state[..PLACE].copy_from_slice(&place);
        match self.manner.commits {
            false => export_state(&self.stream, &self.state),
            true => self.commit(),
        }
    }

    /// Waits until it is safe, and goes on all the same if it is not.
    fn commit(&mut self) -> Result<(), godwit_app::Error> {
        let now = Some((self.said, self.heard));
        if self.safe == now {
            return Ok(());
        }
        let client = self.stream.peer_addr().map_err(godwit_app::Error::from)?;
        // The log of the process.
        let mut log = std::io::stderr();
        let _ = match commit_state(&self.stream, &self.state) {
            Ok(()) => {
                self.safe = now;
                writeln!(log, "safe: {client} at {}", self.said)
            }
            Err(godwit_app::Error::Unprotected) => writeln!(log, "{}", unprotected(client)),
            Err(error) => return Err(error),
        };
        Ok(())
    }

    fn turn(&mut self) -> Result<Turn> {
        let mut buffer = [0; CHUNK];
        let mut busy = false;
        match self.stream.read(&mut buffer) {
            Ok(0) => return Ok(Turn::ClientEnded),
            Ok(length) => {
                let mut expected = vec![0; length];
                UP.fill(self.heard, &mut expected);
                ensure!(buffer[..length] == expected, "wrong behind {}", self.heard);
                self.heard += length as u64;
                busy = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("reading"),
        }
        let chunk = &mut buffer[..self.manner.chunk];
        DOWN.fill(self.said, chunk);
        match self.stream.write(chunk) {
            Ok(length) => {
                self.said += length as u64;
                busy = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("writing"),
        }
        Ok(if busy { Turn::Busy } else { Turn::Idle })
    }

    fn wait(&self) -> Result<()> {
        let events = PollFlags::POLLIN | PollFlags::POLLOUT;
        let polled = poll(
            &mut [PollFd::new(self.stream.as_fd(), events)],
            PollTimeout::from(100u8),
        );
        // A connection that did not go after all interrupts who waits for it.
        match polled {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn say_last_words(mut self) -> Result<()> {
        self.stream.set_nonblocking(false)?;
        let words = [self.heard.to_be_bytes(), self.said.to_be_bytes()].concat();
        self.stream.write_all(&words).context("last words")
    }
}
