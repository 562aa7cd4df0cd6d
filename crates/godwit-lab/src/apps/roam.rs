//! A server whose connections move while they run: it keeps in each how much it
//! has said and heard, exports that whenever it changes, and goes on from there.
//!
//! It says [`DOWN`] and hears [`UP`], at the same time and until its client ends its
//! side. Then it says how many bytes it has heard and said, 8 bytes each, and ends.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use godwit_app::{Listener, Options, export_state};
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

/// Bytes that it says or hears at a time.
const CHUNK: usize = 8 << 10;

/// Between two times, so that both sides stay busy on a small machine.
const PACE: Duration = Duration::from_millis(1);

/// Starts it on `node`, at `port` of all addresses; `agent` is the socket for server
/// processes of that node's agent, which need not be there yet.
///
/// # Errors
/// Fails if it does not listen within five seconds.
pub fn start(node: &Node, port: u16, agent: &Path) -> Result<Process> {
    let everywhere: [SocketAddr; 2] = [
        (Ipv4Addr::UNSPECIFIED, port).into(),
        (Ipv6Addr::UNSPECIFIED, port).into(),
    ];
    let [v4, v6] = everywhere.map(|address| address.to_string());
    let mut command = command::program(&[VERB, &v4, &v6])?;
    command.env("GODWIT_APP_SOCKET", agent);
    let mut process = node.spawn("roam", command)?;
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    wait_until_listening(node, &mut process, local, Duration::from_secs(5))?;
    Ok(process)
}

/// Serves at all of `addresses` until the process ends.
pub(crate) fn run(addresses: &[SocketAddr]) -> Result<()> {
    let mut threads = Vec::new();
    for address in addresses {
        let listener = listen(*address).with_context(|| format!("listening at {address}"))?;
        threads.push(thread::spawn(move || accept(&listener)));
    }
    for thread in threads {
        thread.join().ok().context("a listener ended")??;
    }
    Ok(())
}

fn listen(address: SocketAddr) -> Result<Listener> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = runtime.block_on(async { server::listen(address, None)?.into_std() })?;
    listener.set_nonblocking(false)?;
    Ok(Listener::new(listener, Options::default())?)
}

fn accept(listener: &Listener) -> Result<()> {
    loop {
        let accepted = listener.accept()?;
        thread::spawn(move || {
            let client = accepted.stream.peer_addr();
            if let Err(error) = Talk::new(accepted.stream, accepted.migrated).and_then(Talk::go_on)
            {
                // The log of the process: a connection that broke, or a wrong byte.
                let _ = writeln!(std::io::stderr(), "{client:?}: {error:#}");
            }
        });
    }
}

/// One connection.
struct Talk {
    stream: TcpStream,
    said: u64,
    heard: u64,
}

/// Where it stands after a turn.
enum Turn {
    Busy,
    Idle,
    ClientEnded,
}

impl Talk {
    fn new(stream: TcpStream, migrated: Option<Vec<u8>>) -> Result<Self> {
        stream.set_nonblocking(true)?;
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes);
        let (said, heard) = match migrated.as_deref() {
            None => (0, 0),
            Some(state) => {
                ensure!(state.len() == 16, "a state of {} bytes", state.len());
                (number(&state[..8])?, number(&state[8..])?)
            }
        };
        Ok(Self {
            stream,
            said,
            heard,
        })
    }

    fn go_on(mut self) -> Result<()> {
        loop {
            if self.export().is_err() {
                // Another server has it.
                return Ok(());
            }
            match self.turn()? {
                Turn::Busy => thread::sleep(PACE),
                Turn::Idle => self.wait()?,
                Turn::ClientEnded if self.export().is_err() => return Ok(()),
                Turn::ClientEnded => return self.say_last_words(),
            }
        }
    }

    fn export(&self) -> Result<(), godwit_app::Error> {
        let state = [self.said.to_be_bytes(), self.heard.to_be_bytes()].concat();
        export_state(&self.stream, &state)
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
        DOWN.fill(self.said, &mut buffer);
        match self.stream.write(&buffer) {
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
        poll(
            &mut [PollFd::new(self.stream.as_fd(), events)],
            PollTimeout::from(100u8),
        )?;
        Ok(())
    }

    fn say_last_words(mut self) -> Result<()> {
        self.stream.set_nonblocking(false)?;
        let words = [self.heard.to_be_bytes(), self.said.to_be_bytes()].concat();
        self.stream.write_all(&words).context("last words")
    }
}
