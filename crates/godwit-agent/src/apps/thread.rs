//! The thread that lets processes in and hears what they say.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use godwit_sock::{Listener, receive_with, send_with};
use godwit_wire::app::{AppMessage, AppRefusal, MAX_MESSAGE, MAX_VERSION, MIN_VERSION};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use super::client::Client;
use super::listener::AppSocket;
use super::region::Region;
use super::take::Bell;
use super::{Office, lock};
use crate::realtime::{Urgency, prefer};

/// Processes that an agent works for at a time.
const MAX_CLIENTS: usize = 256;

/// Messages of one process that are heard before the others' are.
const BURST: usize = 32;

/// Ends the thread when it is dropped, and waits for that.
#[derive(Debug)]
pub(super) struct Stopper {
    // Closed first: the thread sees it.
    line: Option<UnixStream>,
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
pub(super) fn start(office: Arc<Office>, socket: AppSocket) -> io::Result<Stopper> {
    let (line, end) = UnixStream::pair()?;
    let reception = Reception {
        office,
        socket,
        end,
        strangers: BTreeMap::new(),
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
    end: UnixStream,
    /// Processes that have not said who they are.
    strangers: BTreeMap<u64, OwnedFd>,
    next_id: u64,
}

/// Why a process is not heard any more.
enum Gone {
    /// It closed.
    Closed,
    /// It was told why.
    Refused(AppRefusal),
    /// What it said is no message.
    Nonsense,
}

impl Reception {
    fn run(mut self) {
        while let Some(ready) = self.wait() {
            for id in ready {
                if let Err(gone) = self.hear_burst(id) {
                    self.dismiss(id, &gone);
                }
            }
        }
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
        let strangers = strangers.map(|(id, it)| (*id, it.as_fd(), PollFlags::POLLIN));
        let sources: Vec<_> = known.chain(strangers).collect();
        let own = [
            self.end.as_fd(),
            self.socket.as_fd(),
            self.office.nudge.as_fd(),
        ];
        let mut polled: Vec<_> = own
            .into_iter()
            .map(|fd| (fd, PollFlags::POLLIN))
            .chain(sources.iter().map(|(_, socket, events)| (*socket, *events)))
            .map(|(fd, events)| PollFd::new(fd, events))
            .collect();
        if poll(&mut polled, PollTimeout::NONE).is_err() {
            return Some(Vec::new());
        }
        let mut ready = polled.iter().map(|fd| fd.any().unwrap_or(false));
        let (ends, knocks, nudged) = (ready.next()?, ready.next()?, ready.next()?);
        let speaking = ready.zip(&sources).filter(|(ready, _)| *ready);
        let speaking: Vec<_> = speaking.map(|(_, (id, ..))| *id).collect();
        if ends {
            return None;
        }
        if nudged {
            // Whom it is about is looked for anew in any case.
            let _ = self.office.nudge.read();
        }
        if knocks {
            self.let_in(clients.len());
        }
        Some(speaking)
    }

    fn let_in(&mut self, clients: usize) {
        let Ok(socket) = self.socket.accept() else {
            return;
        };
        if clients + self.strangers.len() >= MAX_CLIENTS {
            refuse(&socket, AppRefusal::Full);
            return;
        }
        self.strangers.insert(self.next_id, socket);
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
        bells.iter().for_each(Bell::ring);
        heard.map(drop)
    }

    /// Takes one message; whether there may be more.
    fn hear(&mut self, id: u64, bells: &mut Vec<Bell>) -> Result<bool, Gone> {
        let client = lock(&self.office.desk).clients.get(&id).cloned();
        let socket = match (&client, self.strangers.get(&id)) {
            (Some(client), _) => client.socket.as_fd(),
            (None, Some(socket)) => socket.as_fd(),
            (None, None) => return Ok(false),
        };
        if let Some(client) = &client {
            client.say_unsaid().map_err(|_| Gone::Closed)?;
        }
        let mut buffer = [0; MAX_MESSAGE];
        let (length, descriptors) = match receive_with(socket, &mut buffer) {
            Ok((0, _)) => return Err(Gone::Closed),
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(Gone::Nonsense),
            Err(_) => return Err(Gone::Closed),
        };
        let bytes = buffer.get(..length).unwrap_or_default();
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
        descriptors: Vec<OwnedFd>,
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
        let Some(socket) = self.strangers.remove(&id) else {
            return Ok(());
        };
        let credentials = getsockopt(&socket, sockopt::PeerCredentials);
        let pid = credentials.map_or(0, |credentials| credentials.pid());
        let client = Arc::new(Client::new(id, pid, socket, region));
        let version = max.min(MAX_VERSION);
        tracing::info!(pid, "a server process uses libgodwit");
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
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Bell>, Gone> {
        match message {
            AppMessage::Listen { number } => {
                let refusal = self.admit(client, number, descriptors).err();
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
                let socket = descriptors.into_iter().next();
                self.office.commit(client, subject, place, socket);
            }
            AppMessage::Mend => Office::mend(client, descriptors.into_iter().next()),
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
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), AppRefusal> {
        let shown = descriptors
            .into_iter()
            .next()
            .ok_or(AppRefusal::NoListener)?;
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
        let socket = client.as_ref().map(|client| &client.socket);
        let pid = client.as_ref().map(|client| client.pid);
        match gone {
            Gone::Closed => tracing::info!(pid, "a server process has left"),
            Gone::Nonsense => tracing::warn!(pid, "a server process says what is no message"),
            Gone::Refused(reason) => {
                tracing::warn!(pid, %reason, "a server process is refused");
                if let Some(socket) = socket.or(stranger.as_ref()) {
                    refuse(socket, *reason);
                }
            }
        }
        self.office.forget(id);
    }
}

/// Says why; who does not read it finds the connection closed.
fn refuse(socket: &OwnedFd, reason: AppRefusal) {
    let mut bytes = Vec::with_capacity(MAX_MESSAGE);
    AppMessage::Refused { reason }.emit(&mut bytes);
    let _ = send_with(socket.as_fd(), &bytes, &[]);
}
