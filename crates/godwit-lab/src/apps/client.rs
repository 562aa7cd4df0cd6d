//! Talks to the [`server`](super::server) and checks every byte that comes.
//!
//! It blocks; run it on the client machine with
//! [`Node::enter`](crate::Node::enter).

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::content::{Checker, Content, Verdict};
use super::server::{REPLIES, Wish};
use crate::meter::Meter;

/// What an `echo` session sends.
const QUESTIONS: Content = Content {
    seed: 0x00a5_0001,
    length: u64::MAX,
};

const CHUNK: usize = 64 * 1024;

/// As `read`, once more after a call that was interrupted: where there is a time limit
/// the kernel does not begin it again itself.
///
/// # Errors
/// As `read`.
pub(crate) fn read_some(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// One connection to the server.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
}

/// Exchanges of an `echo` or `ask` session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// How many.
    pub count: u32,
    /// Bytes of each request.
    pub request: usize,
    /// Bytes of each reply; `None` wants the request back.
    pub reply: Option<usize>,
    /// Pause between an answer and the next request.
    pub pause: Duration,
}

impl Client {
    /// Connects; every later read and write fails after `patience` of silence.
    ///
    /// # Errors
    /// Fails if no connection comes about within `patience`.
    pub fn connect(server: SocketAddr, patience: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&server, patience)
            .with_context(|| format!("connecting to {server}"))?;
        stream.set_nodelay(true).context("setting TCP_NODELAY")?;
        stream
            .set_read_timeout(Some(patience))
            .and_then(|()| stream.set_write_timeout(Some(patience)))
            .context("setting time limits")?;
        Ok(Self { stream })
    }

    /// The connection itself, for what the methods here don't offer.
    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Exchanges requests and replies; returns how long each took.
    ///
    /// # Errors
    /// Fails if the connection breaks or a byte is wrong.
    pub fn exchange(&mut self, rounds: Rounds, meter: &Meter) -> Result<Vec<Duration>> {
        let reply = rounds.reply.unwrap_or(rounds.request);
        let wish = rounds.reply.map_or(Wish::Echo, |reply| Wish::Ask {
            request: rounds.request,
            reply,
        });
        self.stream
            .write_all(wish.to_string().as_bytes())
            .context("sending the first line")?;
        let expected = rounds.reply.map_or(QUESTIONS, |_| REPLIES);
        let (mut sent, mut received) = (vec![0; rounds.request], vec![0; reply]);
        let mut wanted = vec![0; reply];
        let mut times = Vec::new();
        for round in 0..u64::from(rounds.count) {
            QUESTIONS.fill(round * rounds.request as u64, &mut sent);
            expected.fill(round * reply as u64, &mut wanted);
            let start = Instant::now();
            self.stream
                .write_all(&sent)
                .with_context(|| format!("sending request {round}"))?;
            self.stream
                .read_exact(&mut received)
                .with_context(|| format!("waiting for reply {round}"))?;
            times.push(start.elapsed());
            meter.record(reply);
            ensure!(received == wanted, "reply {round} is wrong");
            if !rounds.pause.is_zero() {
                std::thread::sleep(rounds.pause);
            }
        }
        Ok(times)
    }

    /// Downloads `content`.
    ///
    /// # Errors
    /// Fails if the connection breaks; wrong bytes are in the verdict.
    pub fn get(&mut self, content: Content, meter: &Meter) -> Result<Verdict> {
        let wish = Wish::Get(content).to_string();
        self.stream
            .write_all(wish.as_bytes())
            .context("sending the first line")?;
        let mut checker = Checker::new(content);
        let mut buffer = vec![0; 4 * CHUNK];
        loop {
            let length = read_some(&mut self.stream, &mut buffer).context("downloading")?;
            if length == 0 {
                return Ok(checker.finish());
            }
            meter.record(length);
            checker.feed(&buffer[..length]);
        }
    }

    /// Uploads `content` and waits until the server has compared it.
    ///
    /// # Errors
    /// Fails if the connection breaks or the server got anything else.
    pub fn put(&mut self, content: Content, meter: &Meter) -> Result<()> {
        let wish = Wish::Put(content).to_string();
        self.stream
            .write_all(wish.as_bytes())
            .context("sending the first line")?;
        let mut buffer = vec![0; CHUNK];
        let mut offset = 0;
        while offset < content.length {
            let part = content.part(offset, &mut buffer);
            self.stream.write_all(part).context("uploading")?;
            offset += part.len() as u64;
            meter.record(part.len());
        }
        self.stream
            .shutdown(Shutdown::Write)
            .context("ending the upload")?;
        let mut answer = String::new();
        self.stream
            .read_to_string(&mut answer)
            .context("waiting for the server's verdict")?;
        match answer.as_str() {
            "ok\n" => Ok(()),
            other => bail!("the server says: {:?}", other.trim()),
        }
    }

    /// Downloads so many zero bytes and looks at none of them.
    ///
    /// # Errors
    /// Fails if the connection breaks or ends early.
    pub fn drain(&mut self, length: u64) -> Result<()> {
        let wish = Wish::Zeros(length).to_string();
        self.stream
            .write_all(wish.as_bytes())
            .context("sending the first line")?;
        let mut buffer = vec![0; 4 * CHUNK];
        let mut left = length;
        while left > 0 {
            let part = self.stream.read(&mut buffer).context("downloading")?;
            ensure!(part > 0, "{left} bytes did not come");
            left = left.saturating_sub(part as u64);
        }
        Ok(())
    }

    /// Uploads so many zero bytes and waits until the server has read them.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn pour(&mut self, length: u64) -> Result<()> {
        let wish = Wish::Sink(length).to_string();
        self.stream
            .write_all(wish.as_bytes())
            .context("sending the first line")?;
        let buffer = vec![0; 4 * CHUNK];
        let mut left = length;
        while left > 0 {
            let part = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            self.stream
                .write_all(&buffer[..part])
                .context("uploading")?;
            left -= part as u64;
        }
        let mut answer = String::new();
        self.stream
            .read_to_string(&mut answer)
            .context("waiting for the server's answer")?;
        ensure!(answer == "ok\n", "the server says: {:?}", answer.trim());
        Ok(())
    }
}
