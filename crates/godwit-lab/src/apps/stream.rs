//! A streaming server whose streams go on anywhere: what `apps/stream.c` does, with
//! bytes that the lab's [`client`](super::client) can check.
//!
//! A client asks for `get SEED LENGTH`, as of the [`server`](super::server), and gets that
//! [`Content`] in chunks of 1 KB. After each chunk the server exports what was asked
//! for and how much of it was sent. Another server goes on from there.
//!
//! It may be made to slow down, as the server of M-TCP's second experiment does: some
//! way behind its first chunk on a connection the pauses between two grow.
//!
//! Its log has a line for each stream that comes from another server, as
//! [`super::roam::came_at`] reads it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use godwit_app::{Error, Listener, Progress, close, export_state, export_state_at};

use super::content::Content;
use super::roam::{listen, start_program};
use super::server::{LINE_LIMIT, Wish};
use super::{command, roam};
use crate::lab::Node;
use crate::process::Process;

/// Its command.
pub(crate) const VERB: &str = "stream";

/// What is sent between two exports.
const CHUNK: usize = 1024;

/// Bytes that it needs of a snapshot: seed, length, and how much was sent.
const STATE: usize = 24;

/// What is before the addresses if it is not to be the default.
const MANNER: &str = "--manner";

/// How it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Bytes of a snapshot, besides the 24 that it needs itself.
    pub ballast: usize,
    /// Whether it exports at all.
    pub exports: bool,
    /// Between two chunks.
    pub pause: Duration,
    /// The pauses grow once so many bytes have been sent by this server.
    pub slows_after: u64,
    /// By so much with each chunk.
    pub slower: Duration,
}

impl Default for Manner {
    /// As fast as the client.
    fn default() -> Self {
        Self {
            ballast: 0,
            exports: true,
            pause: Duration::ZERO,
            slows_after: u64::MAX,
            slower: Duration::ZERO,
        }
    }
}

/// Starts it as [`roam::start`] does.
///
/// # Errors
/// Fails if it does not listen within five seconds.
pub fn start(node: &Node, port: u16, agent: &Path) -> Result<Process> {
    start_program(node, port, agent, &[VERB])
}

/// As [`start`], in another manner.
///
/// # Errors
/// As [`start`].
pub fn start_with(node: &Node, port: u16, agent: &Path, manner: Manner) -> Result<Process> {
    let numbers = [
        manner.ballast as u64,
        manner.exports.into(),
        micros(manner.pause),
        manner.slows_after,
        micros(manner.slower),
    ];
    let numbers = numbers.map(|number| number.to_string()).join(",");
    start_program(node, port, agent, &[VERB, MANNER, &numbers])
}

fn micros(span: Duration) -> u64 {
    span.as_micros().try_into().unwrap_or(u64::MAX)
}

fn parse(numbers: &str) -> Result<Manner> {
    let numbers = numbers.split(',').map(str::parse);
    let numbers = numbers.collect::<Result<Vec<u64>, _>>()?;
    let [ballast, exports @ 0..=1, pause, slows_after, slower] = numbers[..] else {
        bail!("a manner is BALLAST,EXPORTS,MICROSECONDS,AFTER,MICROSECONDS");
    };
    Ok(Manner {
        ballast: usize::try_from(ballast)?,
        exports: exports == 1,
        pause: Duration::from_micros(pause),
        slows_after,
        slower: Duration::from_micros(slower),
    })
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

fn accept(listener: &Listener, manner: Manner) -> Result<()> {
    loop {
        let accepted = listener.accept()?;
        thread::spawn(move || {
            let client = accepted.stream.peer_addr();
            if let Err(error) = serve(accepted.stream, accepted.migrated, manner) {
                // The log of the process: a client that is gone, or asks for nothing.
                let _ = writeln!(std::io::stderr(), "{client:?}: {error:#}");
            }
        });
    }
}

/// One stream, from its beginning or from where another server was.
struct Stream {
    content: Content,
    sent: u64,
}

/// What this server has read, and where it began.
struct Share {
    read: u64,
    begun: u64,
}

impl Share {
    const fn progress(&self, stream: &Stream) -> Progress {
        Progress {
            read: self.read,
            written: stream.sent - self.begun,
        }
    }
}

fn serve(mut socket: TcpStream, migrated: Option<Vec<u8>>, manner: Manner) -> Result<()> {
    // One that has exported nothing yet begins anew, with what its client has said.
    let came = migrated.filter(|state| !state.is_empty());
    let (mut stream, read) = match came {
        Some(state) => {
            let stream = Stream::parse(&state)?;
            roam::note_arrival(socket.peer_addr()?, stream.sent)?;
            (stream, 0)
        }
        None => {
            let (content, read) = read_wish(&mut socket)?;
            (Stream { content, sent: 0 }, read)
        }
    };
    let mut state = vec![0; STATE + manner.ballast];
    let mut chunk = [0; CHUNK];
    let (begun, mut pause) = (stream.sent, manner.pause);
    let share = Share { read, begun };
    loop {
        stream.write_to(&mut state);
        let export = || export_state_at(&socket, &state, share.progress(&stream));
        match manner.exports.then(export) {
            // Another server goes on, this one is done.
            Some(Err(Error::Emigrated)) => break,
            Some(other) => other.context("exporting")?,
            None => {}
        }
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        let part = stream.content.part(stream.sent, &mut chunk);
        if part.is_empty() {
            break;
        }
        match socket.write_all(part) {
            // It has left in the middle of the pause.
            Err(_) if matches!(export_state(&socket, &state), Err(Error::Emigrated)) => break,
            other => other.context("writing")?,
        }
        stream.sent += part.len() as u64;
        if stream.sent - begun > manner.slows_after {
            pause += manner.slower;
        }
    }
    close(socket).context("closing")
}

/// And how many bytes that was. Byte by byte: what is not read yet belongs to nobody's
/// state.
fn read_wish(socket: &mut TcpStream) -> Result<(Content, u64)> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).context("reading a wish")?;
        line.extend_from_slice(&byte);
        ensure!(line.len() as u64 <= LINE_LIMIT, "that is no wish");
    }
    match Wish::parse(&String::from_utf8_lossy(&line)) {
        Some(Wish::Get(content)) => Ok((content, line.len() as u64)),
        other => anyhow::bail!("there is nothing but get: {other:?}"),
    }
}

impl Stream {
    /// As the beginning of a snapshot.
    fn write_to(&self, state: &mut [u8]) {
        let numbers = [self.content.seed, self.content.length, self.sent];
        for (place, number) in state.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
    }

    fn parse(state: &[u8]) -> Result<Self> {
        ensure!(state.len() >= STATE, "{} bytes of state", state.len());
        let number = |index: usize| {
            let bytes = state[index * 8..].first_chunk();
            bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
        };
        let [seed, length, sent] = [0, 1, 2].map(number);
        ensure!(sent <= length, "more was sent than asked for");
        let content = Content { seed, length };
        Ok(Self { content, sent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_server_reads_the_state_as_it_was_written() {
        let content = Content { seed: 1, length: 3 };
        let state = |sent| {
            let mut state = [0; STATE + 7];
            Stream { content, sent }.write_to(&mut state);
            state
        };
        let read = Stream::parse(&state(2)).expect("it is whole");
        assert_eq!((read.content, read.sent), (content, 2));
        assert!(Stream::parse(&state(4)).is_err());
        assert!(Stream::parse(&state(2)[..STATE - 1]).is_err());
    }
}
