//! One side of a conversation in which both talk all the time.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use godwit_lab::apps::content::Content;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// What the client says.
pub(crate) const UP: Content = Content {
    seed: 1,
    length: u64::MAX,
};
/// What the server says.
pub(crate) const DOWN: Content = Content {
    seed: 2,
    length: u64::MAX,
};

/// Most bytes between two looks at the clock, each way.
const TURN: usize = 128 << 10;
/// A stream in which nothing moves for so long is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// One side: it writes one stream and checks the other.
pub(crate) struct Talk {
    socket: Option<TcpStream>,
    says: Content,
    hears: Content,
    sent: u64,
    received: u64,
    is_writing: bool,
    has_ended: bool,
}

impl Talk {
    pub(crate) fn new(socket: TcpStream, says: Content, hears: Content) -> Self {
        socket.set_nonblocking(true).expect("it is open");
        Self {
            socket: Some(socket),
            says,
            hears,
            sent: 0,
            received: 0,
            is_writing: true,
            has_ended: false,
        }
    }

    /// Goes on with another socket; nothing is said meanwhile.
    pub(crate) fn replace(&mut self, with: impl FnOnce(TcpStream) -> TcpStream) {
        self.socket = self.socket.take().map(with);
    }

    pub(crate) fn exchange_for(&mut self, time: Duration, also: impl Fn()) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            also();
            self.turn();
        }
    }

    pub(crate) fn stop_writing(&mut self) {
        self.is_writing = false;
        self.socket().shutdown(Shutdown::Write).expect("it is open");
    }

    /// Until the other side has ended its stream, and ends this one; bytes
    /// received and sent.
    pub(crate) fn until_end(mut self) -> (u64, u64) {
        let mut last = (Instant::now(), 0, 0);
        while !self.has_ended {
            self.turn();
            if (last.1, last.2) != (self.received, self.sent) {
                last = (Instant::now(), self.received, self.sent);
            }
            let (received, sent) = (self.received, self.sent);
            assert!(last.0.elapsed() < PATIENCE, "stands at {received}, {sent}");
        }
        if self.is_writing {
            self.stop_writing();
        }
        (self.received, self.sent)
    }

    fn turn(&mut self) {
        if !self.read() & !self.write() {
            let wanted = if self.is_writing {
                PollFlags::POLLIN | PollFlags::POLLOUT
            } else {
                PollFlags::POLLIN
            };
            let socket = self.socket();
            let mut both = [PollFd::new(socket.as_fd(), wanted)];
            poll(&mut both, PollTimeout::from(1u8)).expect("it is open");
        }
    }

    /// Whether there was anything.
    fn read(&mut self) -> bool {
        let mut bytes = vec![0; TURN];
        let got = match self.socket().read(&mut bytes) {
            Ok(0) => {
                self.has_ended = true;
                0
            }
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("after {} bytes: {error}", self.received),
        };
        let mut expected = vec![0; got];
        self.hears.fill(self.received, &mut expected);
        let wrong = expected.iter().zip(&bytes).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "behind byte {}", self.received);
        self.received += got as u64;
        got > 0
    }

    /// Whether there was room.
    fn write(&mut self) -> bool {
        if !self.is_writing {
            return false;
        }
        let mut bytes = vec![0; TURN];
        self.says.fill(self.sent, &mut bytes);
        match self.socket().write(&bytes) {
            Ok(written) => {
                self.sent += written as u64;
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("after {} bytes: {error}", self.sent),
        }
    }

    fn socket(&self) -> &TcpStream {
        self.socket
            .as_ref()
            .expect("it is away while it moves only")
    }
}
