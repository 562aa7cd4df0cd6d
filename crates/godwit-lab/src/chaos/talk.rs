//! Client programs: each byte that comes is compared with what must come.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::phase::Phase;
use super::seat::{Fate, Number, Seat};
use crate::apps::content::Content;
use crate::apps::server::REPLIES;

/// What a client program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Asks for long answers, one after the other, on one connection.
    Ask,
    /// Sends until it is dismissed; the server says what it got.
    Upload,
    /// Sends a little and waits for it, again and again.
    Echo,
    /// One short connection after the other.
    Dial,
    /// As [`Dial`](Self::Dial), but says at once that it has nothing to add.
    HalfClose,
    /// Reads nothing until it is dismissed.
    Shut,
    /// Downloads from nginx on one connection.
    Web,
    /// Talks to redis.
    Cache,
}

/// What nginx serves as `/file`.
pub(super) const FILE: Content = Content {
    seed: 0x_f11e,
    length: 500_000,
};

const UPLOADED: Content = Content {
    seed: 0x_0b5e,
    length: u64::MAX,
};

/// Bytes of a request and of its answer.
const ASK: (usize, u64) = (120, 300_000);

/// Bytes of a small message.
const SMALL: usize = 150;

/// A program that is in a hurry would keep a CPU for itself.
const PAUSE: Duration = Duration::from_millis(3);

/// A buffer that has not grown for this long is full.
const STILL: Duration = Duration::from_millis(30);

const CHUNK: usize = 32 * 1024;

/// How long a client stays, and how busy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Between one request and the next.
    pub(super) pause: Duration,
    /// Age at which a connection comes to an orderly end, and another begins.
    pub(super) life: Duration,
}

impl Pace {
    /// A client of one round: what downloads does nothing else.
    pub(super) const fn busy(work: Work) -> Self {
        Self {
            pause: match work {
                Work::Ask | Work::Web => Duration::ZERO,
                Work::Upload
                | Work::Echo
                | Work::Dial
                | Work::HalfClose
                | Work::Shut
                | Work::Cache => PAUSE,
            },
            life: Duration::MAX,
        }
    }
}

/// One connection in the hands of a program.
pub(super) struct Talk<'a> {
    pub(super) seat: &'a Seat,
    stream: TcpStream,
    pace: Pace,
    since: Instant,
}

pub(super) type Told = Result<(), Fate>;

/// Runs `work` against `service` until the seat is dismissed.
pub(super) fn perform(work: Work, service: SocketAddr, seed: u64, pace: Pace, seat: &Seat) {
    let mut round = 0;
    while !seat.is_dismissed() {
        let (number, fate) = one(work, service, seed.wrapping_add(round), pace, seat);
        let exact = fate == Fate::Exact;
        seat.close(number, fate);
        // One loss is told once; the next connection may do better.
        thread::sleep(if exact { PAUSE } else { STILL });
        round += 1;
    }
}

fn one(work: Work, service: SocketAddr, seed: u64, pace: Pace, seat: &Seat) -> (Number, Fate) {
    let (number, stream) = match seat.open(work.name(), service) {
        Ok(opened) => opened,
        Err(failed) => return failed,
    };
    let mut talk = Talk::new(seat, stream, pace);
    let told = match work {
        Work::Ask => talk.ask(),
        Work::Upload => talk.upload(),
        Work::Echo => talk.echo(),
        Work::Dial => talk.get(short(seed), false),
        Work::HalfClose => talk.get(short(seed), true),
        Work::Shut => talk.shut(Content {
            seed,
            length: 1_500_000,
        }),
        Work::Web => talk.web(),
        Work::Cache => talk.cache(),
    };
    (number, told.err().unwrap_or(Fate::Exact))
}

/// From less than a segment to a dozen.
const fn short(seed: u64) -> Content {
    Content {
        seed,
        length: 200 + seed.wrapping_mul(0x9e37_79b9) % 20_000,
    }
}

impl Work {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Upload => "upload",
            Self::Echo => "echo",
            Self::Dial => "dial",
            Self::HalfClose => "half-close",
            Self::Shut => "shut",
            Self::Web => "nginx",
            Self::Cache => "redis",
        }
    }
}

impl<'a> Talk<'a> {
    /// On a connection that has just been opened.
    pub(super) fn new(seat: &'a Seat, stream: TcpStream, pace: Pace) -> Self {
        Self {
            seat,
            stream,
            pace,
            since: Instant::now(),
        }
    }

    fn ask(&mut self) -> Told {
        let (request, reply) = ASK;
        self.send(format!("ask {request} {reply}\n").as_bytes())?;
        let question = vec![b'?'; request];
        let mut at = 0;
        while !self.is_over() {
            self.send(&question)?;
            self.expect(REPLIES, at, reply)?;
            at += reply;
            self.rest();
        }
        self.end()
    }

    fn upload(&mut self) -> Told {
        let Content { seed, length } = UPLOADED;
        self.send(format!("put {seed} {length}\n").as_bytes())?;
        let mut part = vec![0; 20_000];
        let mut sent = 0;
        while !self.is_over() {
            UPLOADED.fill(sent, &mut part);
            self.send(&part)?;
            self.seat.count(part.len());
            sent += part.len() as u64;
            thread::sleep(self.pace.pause);
        }
        self.finish()?;
        self.expect_text(&format!("wrong {sent}\n"))?;
        self.expect_end()
    }

    fn echo(&mut self) -> Told {
        self.send(b"echo\n")?;
        let mut sent = [0; SMALL];
        let mut at = 0;
        while !self.is_over() {
            UPLOADED.fill(at, &mut sent);
            self.send(&sent)?;
            self.expect(UPLOADED, at, SMALL as u64)?;
            at += SMALL as u64;
            self.rest();
        }
        self.end()
    }

    fn get(&mut self, content: Content, half_close: bool) -> Told {
        let Content { seed, length } = content;
        self.send(format!("get {seed} {length}\n").as_bytes())?;
        if half_close {
            self.finish()?;
        }
        self.expect(content, 0, length)?;
        self.expect_end()
    }

    fn shut(&mut self, content: Content) -> Told {
        let Content { seed, length } = content;
        self.send(format!("get {seed} {length}\n").as_bytes())?;
        let mut queue = vec![0; 1 << 20];
        let mut before = 0;
        while !self.seat.is_dismissed() {
            thread::sleep(STILL);
            let now = self.stream.peek(&mut queue);
            let now = now.map_err(|e| Fate::of(&e, "looking"))?;
            let full = now > 0 && now == before;
            self.seat.set(if full {
                Phase::ZeroWindow
            } else {
                Phase::Response
            });
            before = now;
        }
        self.expect(content, 0, length)?;
        self.expect_end()
    }

    fn web(&mut self) -> Told {
        while !self.is_over() {
            self.send(b"GET /file HTTP/1.1\r\nHost: lab\r\n\r\n")?;
            self.expect_head(FILE)?;
            self.expect(FILE, 0, FILE.length)?;
            self.rest();
        }
        self.end()
    }

    /// The head of a reply whose body is `content`.
    pub(super) fn expect_head(&mut self, content: Content) -> Result<String, Fate> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head);
        let length = format!("Content-Length: {}\r\n", content.length);
        if !head.starts_with("HTTP/1.1 200 ") || !head.contains(&length) {
            return Err(Fate::Wrong(format!("the answer begins with {head:?}")));
        }
        Ok(head.into_owned())
    }

    fn cache(&mut self) -> Told {
        let mut at = 0;
        while !self.is_over() {
            let word = format!("{at:0SMALL$}");
            self.send(format!("*2\r\n$4\r\nECHO\r\n${SMALL}\r\n{word}\r\n").as_bytes())?;
            self.expect_text(&format!("${SMALL}\r\n{word}\r\n"))?;
            at += 1;
            self.rest();
        }
        self.end()
    }

    /// Whether there is to be no other request.
    pub(super) fn is_over(&self) -> bool {
        self.seat.is_dismissed() || self.since.elapsed() > self.pace.life
    }

    /// Between two requests.
    pub(super) fn rest(&self) {
        self.seat.set(Phase::Idle);
        thread::sleep(self.pace.pause);
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Told {
        self.seat.set(Phase::Request);
        let sent = self.stream.write_all(bytes);
        sent.map_err(|e| Fate::of(&e, "sending"))
    }

    /// Says that nothing more will come.
    fn finish(&mut self) -> Told {
        self.seat.set(Phase::Fin);
        let shut = self.stream.shutdown(Shutdown::Write);
        shut.map_err(|e| Fate::of(&e, "ending"))
    }

    pub(super) fn end(&mut self) -> Told {
        self.finish()?;
        self.expect_end()
    }

    pub(super) fn expect(&mut self, content: Content, from: u64, length: u64) -> Told {
        let (mut received, mut wanted) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut done = 0;
        while done < length {
            let room = usize::try_from(length - done).map_or(CHUNK, |left| left.min(CHUNK));
            let got = self.stream.read(&mut received[..room]);
            let got = got.map_err(|e| Fate::of(&e, &format!("reading at {}", from + done)))?;
            if got == 0 {
                return Err(Fate::Cut(format!("the end came at {}", from + done)));
            }
            if self.seat.phase() != Phase::Fin {
                self.seat.set(Phase::Response);
            }
            let wanted = &mut wanted[..got];
            content.fill(from + done, wanted);
            if received[..got] != *wanted {
                let same = received.iter().zip(&*wanted).take_while(|(a, b)| a == b);
                let at = from + done + same.count() as u64;
                return Err(Fate::Wrong(format!("byte {at} is wrong")));
            }
            self.seat.count(got);
            done += got as u64;
        }
        Ok(())
    }

    fn expect_text(&mut self, text: &str) -> Told {
        let mut received = vec![0; text.len()];
        self.read_exact(&mut received)?;
        if received == text.as_bytes() {
            return Ok(());
        }
        let received = String::from_utf8_lossy(&received);
        Err(Fate::Wrong(format!("{received:?} instead of {text:?}")))
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Told {
        match self.stream.read_exact(buffer) {
            Ok(()) => {
                self.seat.count(buffer.len());
                Ok(())
            }
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(Fate::Cut("the end came too early".to_owned()))
            }
            Err(e) => Err(Fate::of(&e, "reading")),
        }
    }

    /// The stream must end here.
    pub(super) fn expect_end(&mut self) -> Told {
        self.seat.set(Phase::Fin);
        let mut more = [0; 64];
        match self.stream.read(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Fate::Wrong("bytes after the end".to_owned())),
            Err(e) => Err(Fate::of(&e, "waiting for the end")),
        }
    }
}
