//! A client whose connection goes from server to server, and when it heard what.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use godwit_wire::{Endpoint, FlowKey};
use nix::sys::socket::{setsockopt, sockopt};

use super::pair::CONGESTION_CONTROL;
use super::stream::PATIENCE;
use crate::apps::client::read_some;
use crate::apps::roam::{CHUNK, DOWN, LAST_WORDS, UP};
use crate::lab::Lab;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Download,
    Both,
}

/// One connection, busy on threads of its own.
#[derive(Debug)]
pub(super) struct Ferry {
    /// As agents know it.
    pub(super) flow: FlowKey,
    pub(super) client: SocketAddr,
    stream: TcpStream,
    heard: Arc<Mutex<Vec<Heard>>>,
    ending: Arc<AtomicBool>,
    listens: JoinHandle<Result<Words>>,
    talks: Option<JoinHandle<Result<u64>>>,
}

/// So many bytes had come by then.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Instant,
    bytes: u64,
}

/// What a server says at the end: what it has heard and said; and what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words {
    heard: u64,
    said: u64,
    came: u64,
}

impl Ferry {
    /// Connects; both sides say `chunk` bytes every `pace`.
    pub(super) fn start(
        lab: &Lab,
        service: SocketAddr,
        way: Way,
        (chunk, pace): (usize, Duration),
    ) -> Result<Self> {
        let stream = lab
            .client()
            .enter(|| TcpStream::connect_timeout(&service, PATIENCE))?
            .context("connecting")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let name = OsString::from(CONGESTION_CONTROL);
        setsockopt(&stream, sockopt::TcpCongestion, &name)
            .context("choosing the congestion control")?;
        let client = stream.local_addr()?;
        let flow = FlowKey {
            client: Endpoint::from(client),
            service: Endpoint::from(service),
        };
        let (heard, ending) = (Arc::default(), Arc::default());
        let (listening, notes) = (stream.try_clone()?, Arc::clone(&heard));
        let listens = thread::spawn(move || listen(listening, &notes));
        let talks = (way == Way::Both)
            .then(|| {
                let (talking, ends) = (stream.try_clone()?, Arc::clone(&ending));
                let talk = move || talk(talking, &ends, (chunk, pace));
                anyhow::Ok(thread::spawn(talk))
            })
            .transpose()?;
        Ok(Self {
            flow,
            client,
            stream,
            heard,
            ending,
            listens,
            talks,
        })
    }

    /// Forgets what was heard until now.
    pub(super) fn forget(&self) {
        lock(&self.heard).clear();
    }

    /// The longest time between two moments in which nothing came.
    pub(super) fn longest_gap(&self, from: Instant, until: Instant) -> Duration {
        let heard = lock(&self.heard);
        let inside = heard.iter().map(|heard| heard.at);
        let inside = inside.filter(|at| *at > from && *at < until);
        let (mut last, mut longest) = (from, Duration::ZERO);
        for at in inside.chain([until]) {
            longest = longest.max(at - last);
            last = at;
        }
        longest
    }

    /// How many bytes have come.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.heard).last().map_or(0, |heard| heard.bytes)
    }

    /// When more than so many bytes had come, if that is not forgotten.
    pub(super) fn heard_more_than(&self, bytes: u64) -> Option<Instant> {
        let heard = lock(&self.heard);
        let first = heard.iter().find(|heard| heard.bytes > bytes);
        first.map(|heard| heard.at)
    }

    /// When something came first after a moment, if that is not forgotten.
    pub(super) fn first_after(&self, moment: Instant) -> Option<Instant> {
        let heard = lock(&self.heard);
        let mut times = heard.iter().map(|heard| heard.at);
        times.find(|at| *at > moment)
    }

    /// Whether it is not over.
    pub(super) fn goes_on(&self) -> bool {
        !self.listens.is_finished()
    }

    /// Ends it in order; each byte must have been right, both ways.
    pub(super) fn end(self) -> Result<()> {
        self.ending.store(true, Ordering::Relaxed);
        let said = self.talks.map_or(Ok(0), |talks| {
            let said = talks.join();
            said.map_err(|_| anyhow!("a client thread panicked"))?
        })?;
        self.stream.shutdown(Shutdown::Write).context("ending")?;
        let words = self.listens.join();
        let words = words.map_err(|_| anyhow!("a client thread panicked"))??;
        let Words {
            heard, said: down, ..
        } = words;
        ensure!(
            (heard, down) == (said, words.came),
            "{words:?} instead of {said} bytes heard"
        );
        Ok(())
    }
}

fn listen(mut stream: TcpStream, notes: &Mutex<Vec<Heard>>) -> Result<Words> {
    // What may be the last words is looked at when more has come.
    let (mut tail, mut came) = (Vec::new(), 0);
    let (mut buffer, mut expected) = (vec![0; 8 * CHUNK], vec![0; 9 * CHUNK]);
    loop {
        let length = read_some(&mut stream, &mut buffer).context("reading")?;
        if length == 0 {
            break;
        }
        let at = Instant::now();
        tail.extend_from_slice(&buffer[..length]);
        let bytes = came + tail.len() as u64;
        lock(notes).push(Heard { at, bytes });
        let sure = tail.len().saturating_sub(LAST_WORDS);
        DOWN.fill(came, &mut expected[..sure]);
        ensure!(tail[..sure] == expected[..sure], "wrong behind {came}");
        came += sure as u64;
        tail.drain(..sure);
    }
    let (heard, said) = tail.split_at(tail.len() / 2);
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes);
    Ok(Words {
        heard: number(heard).context("no last words")?,
        said: number(said).context("no last words")?,
        came,
    })
}

fn talk(
    mut stream: TcpStream,
    ending: &AtomicBool,
    (chunk, pace): (usize, Duration),
) -> Result<u64> {
    let (mut said, mut buffer) = (0, vec![0; chunk]);
    while !ending.load(Ordering::Relaxed) {
        UP.fill(said, &mut buffer);
        stream.write_all(&buffer).context("writing")?;
        said += chunk as u64;
        thread::sleep(pace);
    }
    Ok(said)
}

fn lock(heard: &Mutex<Vec<Heard>>) -> MutexGuard<'_, Vec<Heard>> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}
