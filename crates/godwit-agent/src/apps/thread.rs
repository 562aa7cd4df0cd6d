//! The thread that lets processes in and hears what they say.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use godwit_sock::{Listener, MAX_PASSED, receive, send_with};
use godwit_wire::app::{AppMessage, AppRefusal, MAX_MESSAGE, MAX_VERSION, MIN_VERSION};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use super::Office;
use super::account::{Account, Accounts};
use super::client::Client;
use super::closing::Foreign;
use super::counts::Fault;
use super::listener::AppSocket;
use super::region::Region;
use crate::locks::lock;
use crate::realtime::{Urgency, prefer};
use crate::wake::{Orders, Wake, Work};

/// How long a process may take to say who it is.
const HELLO: Duration = Duration::from_secs(2);

/// How long nobody is let in when too much does not close.
const RESPITE: Duration = Duration::from_millis(100);

/// Messages of one process that are heard before the others' are.
const BURST: usize = 32;

/// Ends the thread when it is dropped, and waits for that.
#[derive(Debug)]
pub(super) struct Stopper {
    // Closed first: the thread sees it.
    line: Option<Orders<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.line = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been said already.
            let _ = thread.join();
        }
    }
}

/// Starts it.
pub(super) fn start(
    office: Arc<Office>,
    socket: AppSocket,
    (line, work): (Orders<Infallible>, Work<Infallible>),
) -> io::Result<Stopper> {
    let reception = Reception {
        office,
        socket,
        work,
        strangers: BTreeMap::new(),
        accounts: Accounts::new(),
        next_id: 1,
    };
    let thread = thread::Builder::new()
        .name("gw-apps".into())
        .spawn(move || {
            prefer("gw-apps", Urgency::Words);
            reception.run();
        })?;
    Ok(Stopper {
        line: Some(line),
        thread: Some(thread),
    })
}

struct Reception {
    office: Arc<Office>,
    socket: AppSocket,
    /// None but its end.
    work: Work<Infallible>,
    /// Processes that have not said who they are, in the order in which they came.
    strangers: BTreeMap<u64, Stranger>,
    accounts: Accounts,
    next_id: u64,
}

/// A process that has not said who it is.
struct Stranger {
    socket: Foreign,
    account: Arc<Account>,
    pid: i32,
    until: Instant,
}

/// Why a process is not heard any more.
enum Gone {
    /// It closed.
    Closed,
    /// It was told why.
    Refused(AppRefusal),
    /// What it said is no message.
    Nonsense,
    /// It sends descriptors that nobody wants, or more than are closed.
    Descriptors,
    /// It says nothing.
    Silent,
}

impl Gone {
    const fn fault(&self) -> Option<Fault> {
        match self {
            Self::Closed => None,
            Self::Refused(AppRefusal::Full) => Some(Fault::Full),
            Self::Refused(_) | Self::Nonsense => Some(Fault::Nonsense),
            Self::Descriptors => Some(Fault::Descriptors),
            Self::Silent => Some(Fault::Silent),
        }
    }

    const fn as_str(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Refused(reason) => reason.as_str(),
            Self::Nonsense => "nonsense",
            Self::Descriptors => "descriptors",
            Self::Silent => "silent",
        }
    }
}

impl Reception {
    fn run(mut self) {
        while let Some(ready) = self.wait() {
            for id in ready {
                if let Err(gone) = self.hear_burst(id) {
                    self.dismiss(id, &gone);
                }
            }
            self.dismiss_silent(Instant::now());
        }
    }

    /// Whoever connects has something to say.
    fn dismiss_silent(&mut self, now: Instant) {
        while let Some((id, stranger)) = self.strangers.first_key_value()
            && stranger.until <= now
        {
            self.dismiss(*id, &Gone::Silent);
        }
    }

    /// Until the next one that is silent has been waited for.
    fn limit(&self, overfull: bool) -> PollTimeout {
        let next = self.strangers.values().next();
        let left = next.map(|it| it.until.saturating_duration_since(Instant::now()));
        let respite = overfull.then_some(RESPITE);
        let limit = [left, respite].into_iter().flatten().min();
        limit.map_or(PollTimeout::NONE, |limit| {
            // Not before: rounded up.
            let limit = limit + Duration::from_millis(1);
            PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
        })
    }

    /// Who has something to say; `None` at the end.
    fn wait(&mut self) -> Option<Vec<u64>> {
        let clients = self.office.clients();
        let events = |client: &Client| {
            let room = PollFlags::POLLOUT;
            let room = if client.has_unsaid() {
                room
            } else {
                PollFlags::empty()
            };
            PollFlags::POLLIN | room
        };
        let known = clients
            .iter()
            .map(|it| (it.id, it.socket.as_fd(), events(it)));
        let strangers = self.strangers.iter();
        let strangers = strangers.map(|(id, it)| (*id, it.socket.as_fd(), PollFlags::POLLIN));
        let sources: Vec<_> = known.chain(strangers).collect();
        let own = [self.socket.as_fd(), self.office.nudge.as_fd()];
        let mut polled: Vec<_> = own
            .into_iter()
            .map(|fd| (fd, PollFlags::POLLIN))
            .chain(sources.iter().map(|(_, socket, events)| (*socket, *events)))
            .map(|(fd, events)| PollFd::new(fd, events))
            .collect();
        let overfull = self.accounts.are_overfull();
        if overfull {
            // A place in `own`.
            polled[0].set_events(PollFlags::empty());
        }
        if poll(&mut polled, self.limit(overfull)).is_err() {
            return Some(Vec::new());
        }
        let mut ready = polled.iter().map(|fd| fd.any().unwrap_or(false));
        let (knocks, nudged) = (ready.next()?, ready.next()?);
        let speaking = ready.zip(&sources).filter(|(ready, _)| *ready);
        let speaking: Vec<_> = speaking.map(|(_, (id, ..))| *id).collect();
        if nudged {
            // Whom it is about is looked for anew in any case.
            self.work.was_rung();
            if matches!(self.work.next(), Err(TryRecvError::Disconnected)) {
                return None;
            }
        }
        if knocks && !overfull {
            self.let_in();
        }
        Some(speaking)
    }

    fn let_in(&mut self) {
        let Ok(socket) = self.socket.accept() else {
            return;
        };
        let credentials = getsockopt(&socket, sockopt::PeerCredentials);
        // Nobody's: the kernel always knows.
        let (uid, pid) = credentials.map_or((u32::MAX, 0), |it| (it.uid(), it.pid()));
        let account = self.accounts.get(uid);
        let socket = Foreign::new(socket, &account.closer);
        if !self.accounts.let_in(uid) {
            let gone = Gone::Refused(AppRefusal::Full);
            self.note_gone(pid, &account, &gone);
            return refuse(socket.as_fd(), AppRefusal::Full);
        }
        let stranger = Stranger {
            socket,
            account,
            pid,
            until: Instant::now() + HELLO,
        };
        self.strangers.insert(self.next_id, stranger);
        self.next_id += 1;
    }

    /// Whoever waits for several answers is woken up once.
    fn hear_burst(&mut self, id: u64) -> Result<(), Gone> {
        let (mut bells, mut heard) = (Vec::new(), Ok(true));
        for _ in 0..BURST {
            heard = self.hear(id, &mut bells);
            if !matches!(heard, Ok(true)) {
                break;
            }
        }
        bells.dedup();
        bells.iter().for_each(Wake::ring);
        heard.map(drop)
    }

    /// Takes one message; whether there may be more.
    fn hear(&mut self, id: u64, bells: &mut Vec<Wake>) -> Result<bool, Gone> {
        let client = lock(&self.office.desk).clients.get(&id).cloned();
        let (socket, account) = match (&client, self.strangers.get(&id)) {
            (Some(client), _) => (client.socket.as_fd(), &client.account),
            (None, Some(stranger)) => (stranger.socket.as_fd(), &stranger.account),
            (None, None) => return Ok(false),
        };
        if let Some(client) = &client {
            client.say_unsaid().map_err(|_| Gone::Closed)?;
        }
        let mut buffer = [0; MAX_MESSAGE];
        let received = match receive(socket, &mut buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(_) => return Err(Gone::Closed),
        };
        let own = |fd| Foreign::new(fd, &account.closer);
        let descriptors: Vec<_> = received.descriptors.into_iter().map(own).collect();
        if received.length == 0 {
            return Err(Gone::Closed);
        }
        let too_many = !descriptors.is_empty() && account.closer.is_full();
        if too_many || descriptors.len() > MAX_PASSED {
            return Err(Gone::Descriptors);
        }
        if received.is_cut {
            return Err(Gone::Nonsense);
        }
        let bytes = buffer.get(..received.length).unwrap_or_default();
        let message = AppMessage::parse(bytes).map_err(|_| Gone::Nonsense)?;
        match client {
            Some(client) => bells.extend(self.attend(&client, message, descriptors)?),
            None => self.introduce(id, message, descriptors)?,
        }
        Ok(true)
    }

    /// The first message of a process.
    fn introduce(
        &mut self,
        id: u64,
        message: AppMessage,
        descriptors: Vec<Foreign>,
    ) -> Result<(), Gone> {
        let refused = |reason| Err(Gone::Refused(reason));
        let AppMessage::Hello {
            min,
            max,
            slots,
            region,
        } = message
        else {
            return refused(AppRefusal::OutOfTurn);
        };
        if min > MAX_VERSION || max < MIN_VERSION {
            return refused(AppRefusal::Version);
        }
        let file = descriptors.into_iter().next();
        let Some(region) = file.and_then(|file| Region::new(file, slots, region)) else {
            return refused(AppRefusal::Region);
        };
        let Some(stranger) = self.strangers.remove(&id) else {
            return Ok(());
        };
        let (pid, uid) = (stranger.pid, stranger.account.uid);
        self.accounts.introduce(uid);
        let own = (stranger.socket, stranger.account);
        let client = Arc::new(Client::new(id, pid, own, region));
        let version = max.min(MAX_VERSION);
        tracing::info!(pid, uid, "a server process uses libgodwit");
        lock(&self.office.desk).clients.insert(id, client.clone());
        let welcome = AppMessage::Welcome { version };
        self.office
            .tell(&client, &welcome)
            .map_err(|_| Gone::Closed)
    }

    /// What is to be rung then.
    fn attend(
        &self,
        client: &Client,
        message: AppMessage,
        descriptors: Vec<Foreign>,
    ) -> Result<Option<Wake>, Gone> {
        let first = descriptors.first();
        match message {
            AppMessage::Listen { number } => {
                let refusal = self.admit(client, number, first).err();
                let answer = AppMessage::Listening { number, refusal };
                self.office
                    .tell(client, &answer)
                    .map_err(|_| Gone::Closed)?;
            }
            AppMessage::Unlisten { number } => client.remove(number),
            AppMessage::Taken { request, outcome } => {
                let socket = descriptors.into_iter().next();
                return Ok(self.office.answered(client, request, outcome, socket));
            }
            AppMessage::Done { request, refusal } => {
                let outcome = refusal.map_or(Ok(None), Err);
                return Ok(self.office.answered(client, request, outcome, None));
            }
            AppMessage::Commit { subject, place } => {
                self.office.commit(client, subject, place, first);
            }
            AppMessage::Mend => self.office.mend(client, first),
            AppMessage::Show { cookie } => {
                self.office.show(client, cookie, first.map(Foreign::as_fd));
            }
            AppMessage::Hello { .. }
            | AppMessage::Welcome { .. }
            | AppMessage::Committed { .. }
            | AppMessage::Refused { .. }
            | AppMessage::Listening { .. }
            | AppMessage::Take { .. }
            | AppMessage::PutBack { .. }
            | AppMessage::Emigrated { .. }
            | AppMessage::Give { .. } => return Err(Gone::Refused(AppRefusal::OutOfTurn)),
        }
        Ok(None)
    }

    /// Looks at a listener that a process shows.
    fn admit(
        &self,
        client: &Client,
        number: u32,
        shown: Option<&Foreign>,
    ) -> Result<(), AppRefusal> {
        let shown = shown.ok_or(AppRefusal::NoListener)?;
        let listener = Listener::of(shown.as_fd()).map_err(|_| AppRefusal::NoListener)?;
        let mut services = self.office.services.iter();
        if !services.any(|service| listener.serves(*service)) {
            return Err(AppRefusal::NoService);
        }
        if !client.add(number, listener) {
            return Err(AppRefusal::Full);
        }
        Ok(())
    }

    fn dismiss(&mut self, id: u64, gone: &Gone) {
        let client = lock(&self.office.desk).clients.get(&id).cloned();
        let stranger = self.strangers.remove(&id);
        let known = client.as_ref();
        let known = known.map(|it| (it.pid, &it.account, it.socket.as_fd()));
        let unknown = stranger.as_ref();
        let unknown = unknown.map(|it| (it.pid, &it.account, it.socket.as_fd()));
        if let Some((pid, account, socket)) = known.or(unknown) {
            self.accounts.leave(account.uid, stranger.is_some());
            self.note_gone(pid, account, gone);
            if let Gone::Refused(reason) = gone {
                refuse(socket, *reason);
            }
        }
        self.office.forget(id);
    }

    fn note_gone(&self, pid: i32, account: &Account, gone: &Gone) {
        let uid = account.uid;
        let Some(fault) = gone.fault() else {
            tracing::info!(pid, uid, "a server process has left");
            return;
        };
        self.office.counts.count(fault);
        let reason = gone.as_str();
        tracing::warn!(pid, uid, reason, "a server process is refused");
    }
}

/// Says why; who does not read it finds the connection closed.
fn refuse(socket: BorrowedFd<'_>, reason: AppRefusal) {
    let mut bytes = Vec::with_capacity(MAX_MESSAGE);
    AppMessage::Refused { reason }.emit(&mut bytes);
    let _ = send_with(socket, &bytes, &[]);
}
