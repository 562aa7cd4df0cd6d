//! A client's traffic that goes on until the test has seen enough of it.
//!
//! Each kind checks every byte: an upload's verdict comes from the server, a
//! download and an echo are compared here.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_lab::Lab;
use godwit_lab::apps::content::{Checker, Content};
use godwit_lab::meter::Meter;

use crate::DEADLINE;
use crate::stage::{service_v4, service_v6, until};

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Sends without an end, at about 20 MB/s.
    Upload,
    /// Receives 48 MB, at about 10 MB/s until the test has seen enough.
    Download,
    /// As `Download`, but 32 MB at about 2 MB/s.
    LongDownload,
    /// Sends 150 bytes and waits for them, 200 times a second.
    Echo,
}

/// Traffic under way on one connection.
#[derive(Debug)]
pub struct Traffic {
    /// Its progress as the client sees it.
    pub meter: Arc<Meter>,
    load: Load,
    local: SocketAddr,
    enough: Arc<AtomicBool>,
    worker: JoinHandle<Result<()>>,
}

/// Silence after which a client gives up; far above every stall that is legal.
const PATIENCE: Duration = Duration::from_secs(15);
const UPLOADED: Content = Content {
    seed: 0x0b5e_55ed,
    length: u64::MAX,
};
const DOWNLOADED: Content = Content {
    seed: 0x0dd_ba11,
    length: 48 << 20,
};
/// Between two reads of 10 KB.
const PAUSE: Duration = Duration::from_millis(1);
const LONG_PAUSE: Duration = Duration::from_millis(5);
const LONG: Content = Content {
    seed: 0x1009,
    length: 32 << 20,
};
const ECHOED: Content = Content {
    seed: 0xec40,
    length: u64::MAX,
};

/// Every kind of traffic, over both families.
///
/// # Panics
/// As [`Traffic::start`].
pub fn mixed(lab: &Lab) -> Vec<Traffic> {
    let kinds = [
        (service_v4(), Load::Download),
        (service_v6(), Load::Download),
        (service_v4(), Load::Upload),
        (service_v6(), Load::Upload),
        (service_v4(), Load::Echo),
        (service_v6(), Load::Echo),
    ];
    kinds
        .map(|(service, load)| Traffic::start(lab, service, load))
        .into()
}

impl Traffic {
    /// Connects from the client's machine to `service` and starts `load`.
    ///
    /// # Panics
    /// If no connection comes about, or not one byte passes.
    pub fn start(lab: &Lab, service: SocketAddr, load: Load) -> Self {
        let client = lab.client().clone();
        let meter = Arc::new(Meter::default());
        let enough = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let (progress, stop) = (Arc::clone(&meter), Arc::clone(&enough));
        let work = move || -> Result<()> {
            let stream = TcpStream::connect_timeout(&service, PATIENCE).context("connecting")?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            tell.send(stream.local_addr()?)?;
            match load {
                Load::Upload => upload(stream, &progress, &stop),
                Load::Download => download(stream, (DOWNLOADED, PAUSE), &progress, &stop),
                Load::LongDownload => download(stream, (LONG, LONG_PAUSE), &progress, &stop),
                Load::Echo => echo(stream, &progress, &stop),
            }
        };
        let worker = thread::spawn(move || client.enter(work)?);
        let Ok(local) = told.recv_timeout(DEADLINE) else {
            panic!("no connection: {:?}", worker.join());
        };
        let traffic = Self {
            meter,
            load,
            local,
            enough,
            worker,
        };
        traffic.goes_on();
        traffic
    }

    /// The client's end of the connection.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether it has come to its end by itself.
    pub fn is_over(&self) -> bool {
        self.worker.is_finished()
    }

    /// Waits until another 3000 bytes, or 20 exchanges, have passed.
    ///
    /// # Panics
    /// If the traffic ends or stands still.
    pub fn goes_on(&self) {
        let before = self.meter.bytes();
        until("the traffic goes on", || {
            // Its end is told by `finish`, with the reason.
            let passed = self.meter.bytes() - before;
            (passed >= 3000 || self.worker.is_finished()).then_some(())
        });
    }

    /// Ends the traffic in an orderly way: every byte was right, and no
    /// silence after `since` was as long as `stall`.
    ///
    /// # Panics
    /// If a byte was wrong, the connection broke or a silence was too long.
    pub fn finish(self, since: Instant, stall: Duration) -> Duration {
        self.enough.store(true, Ordering::Relaxed);
        until("the traffic ends", || {
            self.worker.is_finished().then_some(())
        });
        let outcome = self.worker.join().expect("the client does not panic");
        outcome.expect("every byte is right");
        let Some(gap) = self.meter.longest_gap_since(since) else {
            return Duration::ZERO;
        };
        let when = gap.from.saturating_duration_since(since);
        assert!(
            gap.length < stall,
            "{:?} of {}: nothing for {:?}, {when:?} from the start",
            self.load,
            self.local,
            gap.length
        );
        gap.length
    }

    /// Ends traffic that was reset or cut on purpose; says how it ended.
    ///
    /// # Panics
    /// If it goes on for longer than a client's patience.
    pub fn outcome(self) -> Result<()> {
        self.enough.store(true, Ordering::Relaxed);
        until("the traffic ends", || {
            self.worker.is_finished().then_some(())
        });
        self.worker.join().expect("the client does not panic")
    }
}

/// The server compares what it got; a stream that ends early is "wrong" at its
/// end if all before was right.
fn upload(mut stream: TcpStream, meter: &Meter, enough: &AtomicBool) -> Result<()> {
    let Content { seed, length } = UPLOADED;
    stream.write_all(format!("put {seed} {length}\n").as_bytes())?;
    let mut buffer = vec![0; 20_000];
    let mut sent = 0;
    while !enough.load(Ordering::Relaxed) {
        UPLOADED.fill(sent, &mut buffer);
        stream.write_all(&buffer).context("uploading")?;
        sent += buffer.len() as u64;
        meter.record(buffer.len());
        thread::sleep(Duration::from_millis(1));
    }
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .context("waiting for the server's verdict")?;
    ensure!(
        answer == format!("wrong {sent}\n"),
        "sent {sent}, the server says {answer:?}"
    );
    Ok(())
}

fn download(
    mut stream: TcpStream,
    (content, pause): (Content, Duration),
    meter: &Meter,
    enough: &AtomicBool,
) -> Result<()> {
    let Content { seed, length } = content;
    stream.write_all(format!("get {seed} {length}\n").as_bytes())?;
    let mut checker = Checker::new(content);
    let mut buffer = vec![0; 10_000];
    loop {
        let length = stream.read(&mut buffer).context("downloading")?;
        if length == 0 {
            break;
        }
        meter.record(length);
        checker.feed(&buffer[..length]);
        if !enough.load(Ordering::Relaxed) {
            thread::sleep(pause);
        }
    }
    let verdict = checker.finish();
    ensure!(verdict.exact, "the download differs: {verdict:?}");
    Ok(())
}

fn echo(mut stream: TcpStream, meter: &Meter, enough: &AtomicBool) -> Result<()> {
    stream.write_all(b"echo\n")?;
    let (mut sent, mut received) = ([0; 150], [0; 150]);
    let mut at = 0;
    while !enough.load(Ordering::Relaxed) {
        ECHOED.fill(at, &mut sent);
        stream.write_all(&sent).context("asking")?;
        stream
            .read_exact(&mut received)
            .context("waiting for an answer")?;
        ensure!(sent == received, "the answer at byte {at} is wrong");
        meter.record(received.len());
        at += sent.len() as u64;
        thread::sleep(Duration::from_millis(5));
    }
    stream.shutdown(Shutdown::Write)?;
    let rest = stream.read(&mut received).context("waiting for the end")?;
    ensure!(rest == 0, "bytes after the end");
    Ok(())
}
