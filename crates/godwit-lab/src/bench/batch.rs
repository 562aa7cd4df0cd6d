//! A thousand connections that move to the other server in one order, and back.
//!
//! Each asks 150 bytes, which are answered, every [`PAUSE`], in its own time. One
//! thread of the client looks after all of them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::budget::Budget;
use super::migrate::{cluster, other};
use super::pair::PORT;
use super::report::{Measured, Report};
use super::stats::Samples;
use super::stream::PATIENCE;
use crate::apps::chats::{self, REQUEST};
use crate::apps::roam::{DOWN, UP};
use crate::cluster::{Cluster, FlowMoves};
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions};

const MANY: usize = 1000;

/// Between two questions of one connection.
const PAUSE: Duration = Duration::from_millis(250);

/// Looked at before and after the order.
const SPAN: Duration = Duration::from_millis(800);

/// One batch; measured, rounded up.
const RUN: Duration = Duration::from_millis(3000);

/// What the batches gave.
#[derive(Debug, Default)]
struct Seen {
    total: Samples,
    freeze: Samples,
    stayed: usize,
    wait: Samples,
    calm: Samples,
}

/// `migrate.batch.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions::default())?;
    let cluster = cluster(&lab)?;
    let serve = |host| chats::start(lab.node(host), PORT, &cluster.app_socket(host)?);
    let _servers = [serve(Host::A)?, serve(Host::B)?];
    let crowd = Crowd::start(&lab)?;
    thread::sleep(SPAN);
    let mut seen = Seen::default();
    let mut at = Host::A;
    for run in budget.runs(20, 2, RUN) {
        move_all(&cluster, &crowd, at, (&mut seen, report))
            .with_context(|| format!("batch {run}"))?;
        at = other(at);
    }
    let broken = crowd.end(report)?;
    put(report, &seen, broken)
}

fn put(report: &Report, seen: &Seen, broken: usize) -> Result<()> {
    let count = |value: usize| Measured {
        value: u32::try_from(value).ok().map(f64::from),
        control: None,
        runs: seen.total.runs(),
    };
    report.put("migrate.batch.connections", count(MANY))?;
    report.put_p50("migrate.batch.total.p50", &seen.total)?;
    report.put_percentiles("migrate.batch.freeze", &seen.freeze)?;
    let against = |how: fn(&Samples) -> Option<f64>| Measured {
        value: how(&seen.wait),
        control: how(&seen.calm),
        runs: seen.wait.runs(),
    };
    report.put("migrate.batch.wait.p50", against(Samples::p50))?;
    report.put("migrate.batch.wait.p99", against(Samples::p99))?;
    report.put("migrate.batch.stayed", count(seen.stayed))?;
    report.put("migrate.batch.broken", count(broken))
}

/// All that `from` has goes to the other server. What stays is asked for again, so
/// that the next batch is whole.
fn move_all(
    cluster: &Cluster<'_>,
    crowd: &Crowd,
    from: Host,
    (seen, report): (&mut Seen, &Report),
) -> Result<()> {
    thread::sleep(SPAN);
    crowd.take_waits();
    thread::sleep(SPAN);
    for wait in crowd.take_waits() {
        seen.calm.push_ms(wait);
    }
    let (since, mut ended) = all(cluster, from)?;
    seen.total.push_ms(since.elapsed());
    thread::sleep(SPAN.saturating_sub(since.elapsed()));
    for wait in crowd.take_waits() {
        seen.wait.push_ms(wait);
    }
    for moved in &ended.moved {
        seen.freeze.push(moved.silent_ms);
    }
    seen.stayed += ended.stayed.len();
    if !ended.stayed.is_empty() {
        report.progress(&reasons(&ended));
    }
    let end = Instant::now() + PATIENCE;
    while !ended.stayed.is_empty() && Instant::now() < end {
        thread::sleep(Duration::from_millis(100));
        (_, ended) = all(cluster, from)?;
    }
    Ok(())
}

fn all(cluster: &Cluster<'_>, from: Host) -> Result<(Instant, FlowMoves)> {
    let which = "\"service\":\"web\",\"percent\":100";
    cluster.order_flows(which, from, other(from))
}

/// How many stayed, and why.
fn reasons(ended: &FlowMoves) -> String {
    let mut reasons = BTreeMap::<&str, usize>::new();
    for stayed in &ended.stayed {
        *reasons.entry(&stayed.reason).or_default() += 1;
    }
    format!("{} moved, stayed: {reasons:?}", ended.moved.len())
}

/// The clients.
#[derive(Debug)]
struct Crowd {
    /// The longest wait for an answer of each since it was asked last.
    waits: Arc<Mutex<Vec<Duration>>>,
    ending: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<String>>>,
}

/// One of them.
#[derive(Debug)]
struct Chat {
    stream: TcpStream,
    said: u64,
    heard: u64,
    /// The next question, if none is open.
    due: Instant,
    asked: Option<Instant>,
    broken: Option<String>,
}

impl Crowd {
    fn start(lab: &Lab) -> Result<Self> {
        let chats = lab.client().enter(|| {
            let begun = Instant::now();
            let chats = (0..MANY).map(|number| Chat::start(begun, number));
            chats.collect::<Result<Vec<_>>>()
        })??;
        let waits = Arc::new(Mutex::new(vec![Duration::ZERO; chats.len()]));
        let ending = Arc::<AtomicBool>::default();
        let (notes, ends) = (Arc::clone(&waits), Arc::clone(&ending));
        let thread = thread::Builder::new()
            .name("crowd".to_owned())
            .spawn(move || talk(chats, &notes, &ends))
            .context("starting a thread")?;
        Ok(Self {
            waits,
            ending,
            thread,
        })
    }

    fn take_waits(&self) -> Vec<Duration> {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = vec![Duration::ZERO; waits.len()];
        std::mem::replace(&mut *waits, fresh)
    }

    /// How many broke, or had a wrong byte.
    fn end(self, report: &Report) -> Result<usize> {
        self.ending.store(true, Ordering::Relaxed);
        let broken = self.thread.join();
        let broken = broken.map_err(|_| anyhow!("the crowd panicked"))??;
        if let Some(first) = broken.first() {
            report.progress(&format!("{} broke, one: {first}", broken.len()));
        }
        Ok(broken.len())
    }
}

/// Asks and hears until the end; what broke, and why.
fn talk(
    mut chats: Vec<Chat>,
    waits: &Mutex<Vec<Duration>>,
    ending: &AtomicBool,
) -> Result<Vec<String>> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll")?;
    for (chat, number) in chats.iter().zip(0..) {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, number);
        epoll.add(&chat.stream, event).context("epoll")?;
    }
    let mut events = [EpollEvent::empty(); 256];
    let mut last = None;
    loop {
        let now = Instant::now();
        // Those that wait for an answer get it first.
        if ending.load(Ordering::Relaxed) {
            let end = *last.get_or_insert(now + PATIENCE);
            let open = chats
                .iter()
                .any(|chat| chat.asked.is_some() && chat.broken.is_none());
            if !open || now > end {
                break;
            }
        } else {
            let due = chats.iter_mut().filter(|chat| chat.due <= now);
            due.for_each(|chat| chat.ask(now));
        }
        let count = epoll
            .wait(&mut events, EpollTimeout::from(1u8))
            .unwrap_or(0);
        let now = Instant::now();
        let mut waits = waits.lock().unwrap_or_else(PoisonError::into_inner);
        for event in &events[..count] {
            let number = usize::try_from(event.data())?;
            let heard = chats.get_mut(number).and_then(|chat| chat.hear(now));
            if let (Some(heard), Some(longest)) = (heard, waits.get_mut(number)) {
                *longest = heard.max(*longest);
            }
        }
    }
    Ok(chats.into_iter().filter_map(Chat::end).collect())
}

impl Chat {
    fn start(begun: Instant, number: usize) -> Result<Self> {
        let service = SocketAddr::from((SERVICE_V4, PORT));
        let stream = TcpStream::connect_timeout(&service, PATIENCE).context("connecting")?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let own = u32::try_from(number % 250).context("small")?;
        Ok(Self {
            stream,
            said: 0,
            heard: 0,
            due: begun + PAUSE * 4 + Duration::from_millis(1) * own,
            asked: None,
            broken: None,
        })
    }

    fn ask(&mut self, now: Instant) {
        if self.asked.is_some() || self.broken.is_some() {
            return;
        }
        let mut question = [0; REQUEST];
        UP.fill(self.said, &mut question);
        match self.stream.write(&question) {
            Ok(REQUEST) => {
                self.said += REQUEST as u64;
                self.asked = Some(now);
            }
            other => self.broken = Some(format!("asking: {other:?}")),
        }
    }

    /// How long it has waited, if that was the whole answer.
    fn hear(&mut self, now: Instant) -> Option<Duration> {
        let mut buffer = [0; REQUEST];
        let broken = match self.stream.read(&mut buffer) {
            Ok(0) => "the service ended it".to_owned(),
            Ok(length) => {
                let mut expected = [0; REQUEST];
                DOWN.fill(self.heard, &mut expected[..length]);
                self.heard += length as u64;
                if buffer[..length] == expected[..length] {
                    let asked = self.asked.filter(|_| self.heard == self.said)?;
                    self.asked = None;
                    self.due = asked.max(self.due) + PAUSE;
                    return Some(now - asked);
                }
                format!("wrong before {}", self.heard)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => error.to_string(),
        };
        // It would be told again and again.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.broken.get_or_insert(broken);
        None
    }

    /// Why it broke.
    fn end(self) -> Option<String> {
        let open = self.asked.map(|_| "no answer".to_owned());
        self.broken.or(open)
    }
}
