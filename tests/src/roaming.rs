//! A client of the server whose connections move: it says and hears a stream at the
//! same time, and looks at each byte.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use godwit_lab::Lab;
use godwit_lab::apps::roam::{DOWN, LAST_WORDS, UP};
use godwit_wire::{Endpoint, FlowKey};

use crate::DEADLINE;
use crate::stage::until;

const CHUNK: usize = 8 << 10;
/// What a light one says at a time: its server reads it as it comes.
const LIGHT_CHUNK: usize = 512;
const PACE: Duration = Duration::from_millis(1);

/// A connection in use.
#[derive(Debug)]
pub struct Roamer {
    /// As `godwit flows` has it.
    pub flow: String,
    /// Where it is.
    pub client: SocketAddr,
    /// It says no more than this.
    most: u64,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    said: AtomicU64,
    heard: AtomicU64,
    still: AtomicBool,
    ending: AtomicBool,
}

impl Roamer {
    /// Connects, and begins.
    ///
    /// # Panics
    /// If nobody is there.
    pub fn start(lab: &Lab, service: SocketAddr) -> Self {
        Self::talking(lab, service, CHUNK, u64::MAX)
    }

    /// The same; it says that many bytes and listens.
    ///
    /// # Panics
    /// If nobody is there.
    pub fn saying(lab: &Lab, service: SocketAddr, most: u64) -> Self {
        Self::talking(lab, service, CHUNK, most)
    }

    /// The same; it says little at a time, for as long as it is there.
    ///
    /// # Panics
    /// If nobody is there.
    pub fn light(lab: &Lab, service: SocketAddr) -> Self {
        Self::talking(lab, service, LIGHT_CHUNK, u64::MAX)
    }

    fn talking(lab: &Lab, service: SocketAddr, chunk: usize, most: u64) -> Self {
        let connect = || TcpStream::connect_timeout(&service, DEADLINE);
        let stream = until("the service is there", || {
            let stream = lab.client().enter(connect).expect("the machine is there");
            stream.ok()
        });
        let client = stream.local_addr().expect("it is connected");
        let key = FlowKey {
            client: Endpoint::from(client),
            service: Endpoint::from(service),
        };
        let flow = key.to_string();
        let shared = Arc::<Shared>::default();
        let thread = thread::spawn({
            let shared = shared.clone();
            move || talk(stream, (chunk, most), &shared)
        });
        let roamer = Self {
            flow,
            client,
            most,
            shared,
            thread,
        };
        roamer.goes_on();
        roamer
    }

    /// Waits until more has been said and heard.
    ///
    /// # Panics
    /// If a byte is wrong, or nothing comes.
    pub fn goes_on(&self) {
        assert!(self.goes_on_or_breaks(), "the connection broke");
    }

    /// The same; false if the connection broke.
    ///
    /// # Panics
    /// If nothing comes.
    pub fn goes_on_or_breaks(&self) -> bool {
        let now = || {
            let Shared { said, heard, .. } = &*self.shared;
            (said.load(Ordering::Relaxed), heard.load(Ordering::Relaxed))
        };
        let (said, heard) = now();
        until("both streams go on", || {
            let (more_said, more_heard) = now();
            let enough = CHUNK as u64 * 4;
            let says = more_said > said + enough || more_said == self.most;
            if says && more_heard > heard + enough {
                return Some(true);
            }
            self.thread.is_finished().then_some(false)
        })
    }

    /// It says nothing more, and does not listen.
    pub fn pause(&self) {
        self.shared.still.store(true, Ordering::Relaxed);
    }

    /// It goes on where it stood.
    pub fn resume(&self) {
        self.shared.still.store(false, Ordering::Relaxed);
    }

    /// Bytes that were said so far.
    pub fn said(&self) -> u64 {
        self.shared.said.load(Ordering::Relaxed)
    }

    /// Bytes that were heard so far.
    pub fn heard(&self) -> u64 {
        self.shared.heard.load(Ordering::Relaxed)
    }

    /// Ends it in order: how many bytes were said and heard, each of them right.
    ///
    /// # Panics
    /// If a byte is wrong or missing.
    pub fn end(self) -> (u64, u64) {
        self.shared.ending.store(true, Ordering::Relaxed);
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
        let Shared { said, heard, .. } = &*self.shared;
        (said.load(Ordering::Relaxed), heard.load(Ordering::Relaxed))
    }
}

fn talk(mut stream: TcpStream, (chunk, most): (usize, u64), shared: &Shared) {
    stream.set_nonblocking(true).expect("it is open");
    // What may be the last words is looked at when more has come.
    let mut tail = Vec::new();
    let (mut said, mut heard, mut ended) = (0, 0, false);
    let mut last = Instant::now();
    let mut buffer = vec![0; 4 * CHUNK];
    loop {
        if shared.still.load(Ordering::Relaxed) {
            last = Instant::now();
            thread::sleep(PACE);
            continue;
        }
        if !ended && shared.ending.load(Ordering::Relaxed) {
            stream.shutdown(Shutdown::Write).expect("it is open");
            ended = true;
        }
        let rest = usize::try_from(most - said).map_or(chunk, |rest| rest.min(chunk));
        if !ended && rest > 0 {
            UP.fill(said, &mut buffer[..rest]);
            match stream.write(&buffer[..rest]) {
                Ok(length) => said += length as u64,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{said} said"),
            }
            shared.said.store(said, Ordering::Relaxed);
        }
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                tail.extend_from_slice(&buffer[..length]);
                let sure = tail.len().saturating_sub(LAST_WORDS);
                check(heard, &tail[..sure]);
                heard += sure as u64;
                tail.drain(..sure);
                shared.heard.store(heard, Ordering::Relaxed);
                last = Instant::now();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{heard} heard"),
        }
        assert!(last.elapsed() < DEADLINE, "nothing comes behind {heard}");
        thread::sleep(PACE);
    }
    assert!(ended, "it was ended after {heard} bytes");
    let word = |at: usize| {
        let bytes = tail[at..at + 8].try_into().expect("8 bytes");
        u64::from_be_bytes(bytes)
    };
    assert_eq!((word(0), word(8)), (said, heard), "what the server counts");
}

fn check(from: u64, bytes: &[u8]) {
    let mut expected = vec![0; bytes.len()];
    DOWN.fill(from, &mut expected);
    let wrong = expected.iter().zip(bytes).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "behind byte {from}");
}
