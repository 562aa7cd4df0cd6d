//! What a link has to say, and the way out.
//!
//! Whoever has something to say sends it by its own hand, as far as the socket has room:
//! another thread on the way would have to be woken up first, and connections stand still
//! meanwhile. Nobody waits here but the link's writer: where somebody else is at it, or the
//! peer is slow, that one goes on.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, TryLockError};

use godwit_wire::{Decoder, Message};
use nix::sys::socket::{Shutdown, shutdown};
use rustls::Connection;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::absence::of_tls;
use super::link::LinkError;
use crate::locks::lock;

/// Messages that may wait for a peer; a second of digests is 100.
pub(super) const QUEUE: usize = 1024;

/// Bytes read, or gathered to be written, at a time.
const CHUNK: usize = 64 << 10;

/// A link's stream, and what is to go out on it.
#[derive(Debug)]
pub(super) struct Outbox {
    stream: TcpStream,
    /// Locked for as long as a chunk takes to be encrypted and handed to the kernel.
    line: Mutex<Line>,
    /// Locked by whoever says something, so never for longer than a look.
    queue: Mutex<Queue>,
    /// The writer's: there is something that nobody else could send.
    turn: Notify,
}

#[derive(Debug)]
struct Line {
    tls: Connection,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    is_closed: bool,
    /// Why whoever sent last could not: the writer's to tell.
    failure: Option<LinkError>,
}

/// How far sending has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// All that was queued.
    All,
    /// The same, and nothing more will be.
    Last,
    /// Until the socket was full.
    Some,
}

/// Why a message is not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotQueued {
    Full,
    Closed,
}

impl Outbox {
    pub(super) fn new(stream: TcpStream, mut tls: Connection) -> Self {
        // What is not sent yet is bounded by `CHUNK`: no more is encrypted before that.
        tls.set_buffer_limit(None);
        Self {
            stream,
            line: Mutex::new(Line {
                tls,
                bytes: Vec::with_capacity(CHUNK),
            }),
            queue: Mutex::default(),
            turn: Notify::new(),
        }
    }

    /// It goes out with the next [`flush`](Self::flush).
    pub(super) fn push(&self, message: Message) -> Result<(), NotQueued> {
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            return Err(NotQueued::Closed);
        }
        if queue.messages.len() >= QUEUE {
            return Err(NotQueued::Full);
        }
        queue.messages.push_back(message);
        Ok(())
    }

    /// How many messages may be queued.
    pub(super) fn room(&self) -> usize {
        QUEUE - lock(&self.queue).messages.len()
    }

    /// Nothing more is queued; the link ends when the rest has been said.
    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.turn.notify_one();
    }

    /// Sends what is queued, or has the writer do so; waits for nothing.
    pub(super) fn flush(&self) {
        if lock(&self.queue).messages.is_empty() {
            return;
        }
        let sent = match self.line.try_lock() {
            Ok(mut line) => self.pump(&mut line),
            Err(TryLockError::Poisoned(line)) => self.pump(&mut line.into_inner()),
            // Whoever is at it may have looked into the queue already.
            Err(TryLockError::WouldBlock) => Ok(Sent::Some),
        };
        match sent {
            Ok(Sent::All) => {}
            Ok(Sent::Last | Sent::Some) => self.turn.notify_one(),
            Err(error) => {
                lock(&self.queue).failure = Some(error);
                self.turn.notify_one();
            }
        }
    }

    /// The writer: until the link is closed and everything has been said.
    pub(super) async fn write(&self) -> Result<(), LinkError> {
        loop {
            // No lock is held while it waits.
            let sent = self.pump(&mut lock(&self.line))?;
            match sent {
                Sent::All => self.turn.notified().await,
                Sent::Some => self.stream.writable().await?,
                Sent::Last => return Ok(()),
            }
        }
    }

    /// Says that nothing more comes.
    pub(super) async fn end(&self) -> Result<(), LinkError> {
        lock(&self.line).tls.send_close_notify();
        self.write().await?;
        shutdown(self.stream.as_raw_fd(), Shutdown::Write).map_err(io::Error::from)?;
        Ok(())
    }

    /// Waits for bytes, and takes what is there.
    pub(super) async fn receive(
        &self,
        decoder: &mut Decoder,
        chunk: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        chunk.resize(CHUNK, 0);
        while !self.take(decoder, chunk)? {
            self.stream.readable().await?;
        }
        Ok(())
    }

    /// What the peer has said at last, where the connection has ended under our hands.
    pub(super) fn parting(&self, error: io::Error) -> LinkError {
        match self.take(&mut Decoder::new(), &mut vec![0; CHUNK]) {
            Err(LinkError::Io(last)) if of_tls(&last).is_some() => LinkError::Io(last),
            _ => LinkError::Io(error),
        }
    }

    /// Whether something was there.
    fn take(&self, decoder: &mut Decoder, chunk: &mut [u8]) -> Result<bool, LinkError> {
        let mut line = lock(&self.line);
        let mut came = 0;
        while came < CHUNK {
            // Some may have come with the handshake.
            match line.tls.reader().read(chunk) {
                Ok(0) if came == 0 => return Err(LinkError::Closed),
                Ok(0) => break,
                Ok(length) => {
                    decoder.push(chunk.get(..length).unwrap_or_default());
                    came += length;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            match line.tls.read_tls(&mut Raw(&self.stream)) {
                Ok(_) => {
                    line.tls.process_new_packets().map_err(io::Error::other)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        if line.tls.wants_write() {
            self.turn.notify_one();
        }
        Ok(came > 0)
    }

    /// What has gathered goes out as one record.
    fn pump(&self, line: &mut Line) -> Result<Sent, LinkError> {
        loop {
            while line.tls.wants_write() {
                match line.tls.write_tls(&mut Raw(&self.stream)) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Sent::Some),
                    Err(error) => return Err(error.into()),
                }
            }
            line.bytes.clear();
            let mut queue = lock(&self.queue);
            if let Some(failure) = queue.failure.take() {
                return Err(failure);
            }
            while line.bytes.len() < CHUNK
                && let Some(message) = queue.messages.pop_front()
            {
                message.emit(&mut line.bytes)?;
            }
            if line.bytes.is_empty() {
                return Ok(if queue.is_closed {
                    Sent::Last
                } else {
                    Sent::All
                });
            }
            drop(queue);
            line.tls.writer().write_all(&line.bytes)?;
        }
    }
}

#[cfg(test)]
impl Outbox {
    /// Somebody else is at it meanwhile.
    pub(super) fn while_busy(&self, then: impl FnOnce()) {
        let _line = lock(&self.line);
        then();
    }
}

/// The socket, which has room, or something to read, or neither.
struct Raw<'a>(&'a TcpStream);

impl Read for Raw<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(bytes)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
