//! The library's own thread: it looks for the agent and does what the agent asks
//! for, while the server does its work.
//!
//! It has the name `godwit`, blocks all signals, and ends with the process. What
//! the agent may ask of it is little, so it takes one message at a time; if the
//! agent goes away, it looks for another every [`SEARCH`].

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use godwit_sock::{receive_with, send_with, take_short_turns};
use godwit_wire::app::{AppMessage, MAX_MESSAGE, SHOWS};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::fork;
use crate::link;
use crate::park::Leftover;
use crate::process::{Process, lock};
use crate::region::Region;
use crate::release;
use crate::served::{Served, Stage};

/// How often an agent is looked for.
const SEARCH: Duration = Duration::from_secs(1);

/// How often to look whether calls in a stand-in are over.
const RELEASE: Duration = Duration::from_millis(1);

/// How often to look what an agent that died has left of parked connections.
const ORPHANS: Duration = Duration::from_millis(100);

/// How long room is waited for where an agent has much to see.
const ROOM: Duration = Duration::from_millis(1);

/// Messages that are heard before they are answered.
const BURST: u32 = 8;

/// How often closed connections are looked for.
const SWEEP: Duration = Duration::from_secs(5);

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is the library's.
pub(crate) fn is_own() -> bool {
    IS_OWN.get()
}

/// Starts it. Without it the process works as without an agent.
pub(crate) fn start(process: &'static Process, region: &'static Region, wake: &'static EventFd) {
    // The thread begins as its maker is: no signal of the server's may end up there.
    let Ok(former) = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK) else {
        return;
    };
    let worker = Worker {
        process,
        region,
        wake,
        link: None,
        search: Instant::now(),
        sweep: Instant::now() + SWEEP,
        takes: Vec::new(),
        leftovers: Vec::new(),
    };
    let name = "godwit".to_owned();
    let started = thread::Builder::new()
        .name(name)
        .spawn(move || worker.run());
    drop(started);
    let _ = former.thread_set_mask();
}

/// A request that waits for the server's next export.
#[derive(Debug)]
struct Take {
    request: u32,
    served: Arc<Mutex<Served>>,
    until: Instant,
}

/// The thread.
#[derive(Debug)]
struct Worker {
    process: &'static Process,
    region: &'static Region,
    wake: &'static EventFd,
    link: Option<Link>,
    search: Instant,
    sweep: Instant,
    takes: Vec<Take>,
    leftovers: Vec<Leftover>,
}

/// The agent.
#[derive(Debug)]
struct Link {
    socket: OwnedFd,
    /// Names of listeners that it has heard of.
    listeners: Vec<u32>,
    welcome: bool,
}

impl Worker {
    fn run(mut self) {
        IS_OWN.set(true);
        // While a connection moves its client waits for this thread. Without, the
        // server's others come first.
        let _ = take_short_turns();
        loop {
            let now = Instant::now();
            let next = self.look_around(now);
            self.wait(next.saturating_duration_since(now));
            for _ in 0..BURST {
                if !matches!(self.hear(), Ok(true)) {
                    break;
                }
            }
            // Together: the agent is woken up once.
            self.say();
        }
    }

    /// Until there is something to do.
    fn wait(&self, limit: Duration) {
        let limit = limit.max(Duration::from_millis(1));
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let mut sources = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if let Some(link) = &self.link {
            sources.push(PollFd::new(link.socket.as_fd(), PollFlags::POLLIN));
        }
        // Whatever it is, it is looked for.
        let _ = poll(&mut sources, limit);
        let _ = self.wake.read();
    }

    /// Does what is due; when something is due again.
    fn look_around(&mut self, now: Instant) -> Instant {
        let mut next = now + SEARCH;
        if self.link.is_none() && now >= self.search {
            self.connect();
            self.search = now + SEARCH;
        }
        self.register();
        self.give_up_waiting(now);
        self.say();
        if self.show() {
            next = now + ROOM;
        }
        for listener in self.process.listeners() {
            next = next.min(listener.look_after(now).unwrap_or(next));
        }
        next = self
            .takes
            .iter()
            .map(|take| take.until)
            .fold(next, Instant::min);
        self.leftovers.retain(|leftover| !leftover.is_over());
        for leftover in &self.leftovers {
            // Again: it may not have been in the call yet.
            let _ = release::interrupt(leftover.number);
            next = now + RELEASE;
        }
        if self.link.is_none() && self.settle_orphans() {
            next = next.min(now + ORPHANS);
        }
        if now >= self.sweep {
            self.process.sweep();
            self.sweep = now + SWEEP;
        }
        next
    }

    fn connect(&mut self) {
        let Some(socket) = link::connect() else {
            return;
        };
        let hello = AppMessage::Hello {
            min: godwit_wire::app::MIN_VERSION,
            max: godwit_wire::app::MAX_VERSION,
            slots: self.region.slots(),
            region: self.region.length(),
        };
        let mut bytes = Vec::with_capacity(MAX_MESSAGE);
        hello.emit(&mut bytes);
        if send_with(socket.as_fd(), &bytes, &[self.region.file()]).is_err() {
            return;
        }
        fork::own_link(Some(socket.as_fd()));
        // What was said to the one before is not for this one.
        drop(self.process.posted());
        self.link = Some(Link {
            socket,
            listeners: Vec::new(),
            welcome: false,
        });
    }

    fn disconnect(&mut self) {
        self.process.set_connected(false);
        self.process.set_shows(false);
        fork::own_link(None);
        self.link = None;
        self.process.give_up_commits();
        for take in self.takes.drain(..) {
            lock(&take.served).wanted = None;
        }
    }

    /// Tells the agent of listeners that it does not know.
    fn register(&mut self) {
        let Some(link) = self.link.as_mut().filter(|link| link.welcome) else {
            return;
        };
        let listeners = self.process.listeners();
        let gone = |name: &u32| listeners.iter().all(|listener| listener.name != *name);
        let ended: Vec<_> = link.listeners.extract_if(.., |name| gone(name)).collect();
        for number in ended {
            self.process.post(AppMessage::Unlisten { number }, None);
        }
        for listener in listeners {
            if link.listeners.contains(&listener.name) {
                continue;
            }
            let socket = crate::descriptor::borrow(listener.number());
            if let Ok(socket) = socket.and_then(|socket| socket.try_clone_to_owned()) {
                let number = listener.name;
                link.listeners.push(number);
                self.process
                    .post(AppMessage::Listen { number }, Some(socket));
            }
        }
    }

    fn say(&mut self) {
        for (message, descriptor) in self.process.posted() {
            let Some(link) = &self.link else {
                return;
            };
            let mut bytes = Vec::with_capacity(MAX_MESSAGE);
            message.emit(&mut bytes);
            let descriptor = descriptor.as_ref().map(|fd| fd.as_fd());
            let beside = descriptor.as_slice();
            if send_with(link.socket.as_fd(), &bytes, beside).is_err() {
                // It reads nothing, or it has gone: it will know nothing of us.
                self.disconnect();
            }
        }
    }

    /// Shows the agent what it would not believe else, as far as there is room; whether
    /// there is more.
    fn show(&mut self) -> bool {
        let Some(link) = &self.link else {
            return false;
        };
        while let Some(entry) = self.process.next_unshown() {
            let Some((cookie, socket)) = lock(&entry).foreign() else {
                continue;
            };
            let mut bytes = Vec::with_capacity(MAX_MESSAGE);
            AppMessage::Show { cookie }.emit(&mut bytes);
            match send_with(link.socket.as_fd(), &bytes, &[socket.as_fd()]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.process.show_later(entry);
                    return true;
                }
                Err(_) => {
                    self.disconnect();
                    return false;
                }
            }
        }
        false
    }

    /// Takes one message; whether there may be more.
    fn hear(&mut self) -> io::Result<bool> {
        let Some(link) = &self.link else {
            return Ok(false);
        };
        let mut buffer = [0; MAX_MESSAGE];
        let heard = match receive_with(link.socket.as_fd(), &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            heard => heard,
        };
        let message = heard.ok().and_then(|(length, descriptors)| {
            let bytes = buffer.get(..length)?;
            Some((AppMessage::parse(bytes).ok()?, descriptors))
        });
        let Some((message, descriptors)) = message else {
            self.disconnect();
            return Ok(false);
        };
        self.obey(message, descriptors);
        Ok(true)
    }

    fn obey(&mut self, message: AppMessage, descriptors: Vec<OwnedFd>) {
        match message {
            AppMessage::Welcome { version } => self.begin(version),
            AppMessage::Take {
                subject,
                patience_ms,
            } => self.take(subject, Duration::from_millis(patience_ms.into())),
            AppMessage::PutBack { subject } => {
                let refusal = self.put_back(subject);
                let request = subject.request;
                self.process
                    .post(AppMessage::Done { request, refusal }, None);
            }
            AppMessage::Emigrated { subject } => {
                let refusal = self.emigrated(subject);
                let request = subject.request;
                self.process
                    .post(AppMessage::Done { request, refusal }, None);
            }
            AppMessage::Give {
                request,
                number,
                snapshot,
            } => {
                let refusal = self.given(number, snapshot, descriptors).err();
                self.process
                    .post(AppMessage::Done { request, refusal }, None);
            }
            AppMessage::Committed { request, refusal } => {
                self.process.committed(request, refusal);
            }
            // Nothing follows: what the agent does not want, it does not get.
            AppMessage::Listening { .. } => {}
            AppMessage::Refused { .. }
            | AppMessage::Hello { .. }
            | AppMessage::Listen { .. }
            | AppMessage::Unlisten { .. }
            | AppMessage::Taken { .. }
            | AppMessage::Commit { .. }
            | AppMessage::Show { .. }
            | AppMessage::Mend
            | AppMessage::Done { .. } => self.disconnect(),
        }
    }

    /// From here on exports are kept.
    fn begin(&mut self, version: u8) {
        self.process.set_shows(version >= SHOWS);
        if let Some(link) = &mut self.link {
            link.welcome = true;
        }
        self.process.set_connected(true);
        for entry in self.process.all() {
            self.process.describe(&entry);
        }
        self.process.have_mended();
        self.register();
    }

    /// Those who have waited long enough for an export.
    fn give_up_waiting(&mut self, now: Instant) {
        for take in self.takes.extract_if(.., |take| now >= take.until) {
            let mut served = lock(&take.served);
            if served.wanted != Some(take.request) {
                continue;
            }
            served.wanted = None;
            self.process.take_or_refuse(&mut served, take.request);
        }
    }

    /// Without an agent nobody puts connections back. One that was not stopped yet,
    /// or goes on already, is put back by ourselves; one that was ended is another
    /// server's. One that stands still waits for the next agent. Whether there are
    /// such.
    fn settle_orphans(&mut self) -> bool {
        let mut waiting = false;
        for entry in self.process.all() {
            let mut served = lock(&entry);
            let Stage::Parked(parked) = &served.stage else {
                continue;
            };
            match link::fate(parked.socket()) {
                link::Fate::Stopped => waiting = true,
                link::Fate::Running => self.leftovers.extend(self.process.put_back(&mut served)),
                link::Fate::Over => self.process.end(&mut served),
            }
        }
        waiting
    }
}

mod requests;
