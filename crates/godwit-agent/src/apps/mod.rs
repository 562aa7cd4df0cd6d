//! Server processes that use `libgodwit`: what they have, and how to get it.
//!
//! A process connects to `app.sock` beside the control socket, shows the memory
//! region with its connections, and shows its listeners. From then on the agent can
//! take a connection out of its hands with the last snapshot of its state, put it
//! back, or give the process a connection that another server had.
//!
//! | who | what |
//! |---|---|
//! | thread `gw-apps` | accepts processes, hears what they say |
//! | callers ([`Apps::take`] and the others) | ask a process and wait for its answer, with a deadline, or look for it later: never the driver |
//!
//! Who may connect: whoever may open the socket, which is root, and the group
//! that `app_group` names. What a process says is believed of its own
//! connections only: the socket that it hands out must be the connection that it
//! is asked for, and a listener counts when the process shows it.

mod client;
mod commit;
mod listener;
mod message;
mod offer;
mod party;
mod region;
mod take;
mod thread;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_sock::{StreamPosition, socket_cookie};
use godwit_wire::app::region::{Connection, SlotState};
use godwit_wire::app::{AppMessage, Carried, SnapshotPlace, Subject};
use godwit_wire::{Endpoint, FlowKey, HandoffRefusal, SeqNumber};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

pub use commit::{Asker, Commit, Committed};
pub use listener::{AppSocket, AppSocketError};
pub use offer::Offer;
pub use take::{Bell, Take};

use crate::input::Inbox;

use client::Client;
use party::Parties;
use thread::Stopper;

/// How long a process may take for an answer that it has to give at once.
const ANSWER: Duration = Duration::from_secs(2);

/// The processes of this node that use the library.
#[derive(Debug, Clone)]
pub struct Apps {
    office: Arc<Office>,
    // Held: the thread ends with the last of these.
    _stopper: Arc<Stopper>,
}

/// A connection that its server does not use any more, until it is put back.
#[derive(Debug)]
pub struct Taken {
    /// The connection.
    pub socket: OwnedFd,
    /// What its server exported last; `None` if it keeps no state: then the
    /// connection is moved as it stands.
    pub snapshot: Option<AppSnapshot>,
    /// When the agent got it from the server.
    pub since: MonoTime,
}

/// A snapshot of a server's state, and where in both streams it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppSnapshot {
    /// The snapshot.
    pub carried: Carried,
    read: u64,
    written: u64,
}

/// A snapshot, and where in the region of its server it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Where it was, and where in both streams it belongs.
    pub place: SnapshotPlace,
    /// The snapshot.
    pub carried: Carried,
}

impl AppSnapshot {
    /// The next byte to read and the next byte to write of whoever goes on from the
    /// snapshot.
    ///
    /// `copied_seq` and `write_seq` are those of the stopped `socket`, without FINs.
    ///
    /// # Errors
    /// `SnapshotBehind` if the socket has not come as far as the snapshot, or
    /// further than sequence numbers count.
    pub fn at(
        &self,
        socket: BorrowedFd<'_>,
        copied_seq: SeqNumber,
        write_seq: SeqNumber,
    ) -> Result<(SeqNumber, SeqNumber), HandoffRefusal> {
        let now = StreamPosition::of(socket).map_err(|_| HandoffRefusal::Ended)?;
        let since = |now: u64, then: u64| {
            let bytes = now.checked_sub(then)?;
            i32::try_from(bytes).ok().map(i32::cast_unsigned)
        };
        let read = since(now.read, self.read).ok_or(HandoffRefusal::SnapshotBehind)?;
        let written = since(now.written, self.written).ok_or(HandoffRefusal::SnapshotBehind)?;
        Ok((copied_seq - read, write_seq - written))
    }
}

/// What callers and the thread share.
#[derive(Debug)]
struct Office {
    services: Vec<SocketAddr>,
    desk: Mutex<Desk>,
    next_request: AtomicU32,
    /// Wakes the thread: a process has to hear something, and had no room for it.
    nudge: EventFd,
    /// To the driver.
    inbox: Inbox,
}

#[derive(Debug, Default)]
struct Desk {
    clients: BTreeMap<u64, Arc<Client>>,
    /// Who waits for which answer.
    asked: BTreeMap<u32, Asked>,
    /// Who has to hear what becomes of a connection.
    taken: BTreeMap<FlowKey, Held>,
    parties: Parties,
    /// Who was given a connection last.
    served: u64,
}

/// A connection in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    client: u64,
    slot: u32,
    cookie: u64,
}

/// A request without an answer.
#[derive(Debug)]
struct Asked {
    client: u64,
    /// `None` when nobody waits any more.
    reply: Option<mpsc::Sender<Answer>>,
    /// What is put back if it was handed out too late.
    held: Option<Held>,
    /// It was handed out already, and goes back if this question is refused.
    is_out: bool,
    bell: Option<Bell>,
}

/// What a process has answered.
#[derive(Debug)]
struct Answer {
    outcome: Result<Option<SnapshotPlace>, HandoffRefusal>,
    socket: Option<OwnedFd>,
    at: MonoTime,
}

impl Apps {
    /// Lets processes in, for services at these addresses. What they want to be safe
    /// goes to `inbox`.
    ///
    /// # Errors
    /// If there is no thread or descriptor for it.
    pub fn start(
        socket: AppSocket,
        services: Vec<SocketAddr>,
        inbox: Inbox,
    ) -> std::io::Result<Self> {
        let office = Arc::new(Office {
            services,
            desk: Mutex::default(),
            next_request: AtomicU32::new(1),
            nudge: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            inbox,
        });
        let stopper = thread::start(office.clone(), socket)?;
        Ok(Self {
            office,
            _stopper: Arc::new(stopper),
        })
    }

    /// Has the server go on with a connection that was taken. The socket must be
    /// running again. Nobody waits until it knows: other connections do.
    pub fn put_back(&self, flow: FlowKey) {
        self.settle(flow, |held, request| AppMessage::PutBack {
            subject: held.subject(request),
        });
    }

    /// Has the server know that another one has the connection. Its socket must
    /// have been disconnected. Nobody waits until it knows.
    pub fn emigrated(&self, flow: FlowKey) {
        self.settle(flow, |held, request| AppMessage::Emigrated {
            subject: held.subject(request),
        });
    }

    fn settle(&self, flow: FlowKey, message: impl FnOnce(Held, u32) -> AppMessage) {
        let held = lock(&self.office.desk).taken.remove(&flow);
        let held = held.or_else(|| self.office.parked(flow));
        let Some((held, client)) = held.and_then(|held| Some((held, self.office.client(held)?)))
        else {
            // The process has ended, and with it all that it had.
            return;
        };
        let request = self.office.next_request.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.office.tell(&client, &message(held, request)) {
            tracing::info!(flow = %flow, %error, "its server has gone");
        }
    }

    /// Snapshots that servers have exported: of each connection that which `choose`
    /// picks of those that are kept, oldest first.
    pub fn exported(
        &self,
        mut choose: impl FnMut(FlowKey, &[SnapshotPlace]) -> Option<SnapshotPlace>,
    ) -> Vec<(FlowKey, Exported)> {
        let mut exported = Vec::new();
        for client in self.office.clients() {
            client.region.each(|slot, connection| {
                let choose = |kept: &[SnapshotPlace]| choose(connection.key, kept);
                let found = pick(&client, slot, &connection, choose);
                exported.extend(found.map(|found| (connection.key, found)));
            });
        }
        exported
    }

    /// The same of one connection.
    pub fn exported_of(
        &self,
        flow: FlowKey,
        choose: impl Fn(&[SnapshotPlace]) -> Option<SnapshotPlace>,
    ) -> Option<Exported> {
        self.find(flow, |client, slot, found| {
            pick(client, slot, found, &choose)
        })
    }

    /// Where the snapshots stand of all connections that servers have in their hands,
    /// in one look.
    pub fn places(&self) -> Places {
        let mut places = Places::new();
        for client in self.office.clients() {
            client.region.each(|_, connection| {
                if connection.state == SlotState::Live {
                    places.entry(connection.key).or_insert(connection.kept);
                }
            });
        }
        places
    }

    /// What the first process has for `look` that says that it has the connection.
    fn find<T>(
        &self,
        flow: FlowKey,
        look: impl Fn(&Client, u32, &Connection) -> Option<T>,
    ) -> Option<T> {
        let look =
            |(client, slot, found): (Arc<Client>, u32, Connection)| look(&client, slot, &found);
        let likely = self.office.likely_holder(flow).and_then(look);
        likely.or_else(|| self.office.holders(flow).into_iter().find_map(look))
    }

    /// What processes say of a connection: [`SlotState::Parked`] if one of them can't
    /// reach it; `None` if none has it, or none that has was heard of yet.
    pub fn stage(&self, flow: FlowKey) -> Option<SlotState> {
        let holders = self.office.holders(flow).into_iter();
        let states: Vec<_> = holders.map(|(_, _, found)| found.state).collect();
        let parked = states.iter().find(|state| **state == SlotState::Parked);
        parked.or_else(|| states.first()).copied()
    }

    /// Whether a process accepts connections to that address from other servers.
    pub fn accepts(&self, endpoint: Endpoint) -> bool {
        let clients = self.office.clients();
        clients
            .iter()
            .any(|client| client.listener(endpoint).is_some())
    }
}

/// Of each connection its snapshots, oldest first.
pub type Places = BTreeMap<FlowKey, Vec<SnapshotPlace>>;

/// A copy of the snapshot that `choose` picks of a connection that its server has in
/// its hands.
fn pick(
    client: &Client,
    slot: u32,
    connection: &Connection,
    choose: impl FnOnce(&[SnapshotPlace]) -> Option<SnapshotPlace>,
) -> Option<Exported> {
    let place = choose(&connection.kept).filter(|_| connection.state == SlotState::Live)?;
    let bytes = client.region.copy(slot, connection.cookie, &place)?;
    let kind = place.kind;
    Some(Exported {
        place,
        carried: Carried { kind, bytes },
    })
}

impl Held {
    const fn subject(self, request: u32) -> Subject {
        Subject {
            request,
            slot: self.slot,
            cookie: self.cookie,
        }
    }
}

/// Whether a socket is the connection that was asked for.
fn is_flow(socket: BorrowedFd<'_>, cookie: u64, flow: FlowKey) -> bool {
    let tcp = StreamPosition::of(socket).is_ok();
    let same = socket_cookie(socket).is_ok_and(|found| found == cookie);
    tcp && same && flow_of(socket) == Some(flow)
}

/// Both ends of a connected socket.
fn flow_of(socket: BorrowedFd<'_>) -> Option<FlowKey> {
    let fd = socket.as_raw_fd();
    Some(FlowKey {
        client: endpoint(getpeername::<SockaddrStorage>(fd).ok()?)?,
        service: endpoint(getsockname::<SockaddrStorage>(fd).ok()?)?,
    })
}

fn endpoint(address: SockaddrStorage) -> Option<Endpoint> {
    let v4 = address
        .as_sockaddr_in()
        .map(|v4| SocketAddr::V4((*v4).into()));
    let v6 = address
        .as_sockaddr_in6()
        .map(|v6| SocketAddr::V6((*v6).into()));
    v4.or(v6).map(Endpoint::from)
}

/// A file in memory, for what does not fit into a message.
fn file_of(bytes: &[u8]) -> Result<File, HandoffRefusal> {
    let made = memfd_create(c"godwit-snapshot", MFdFlags::MFD_CLOEXEC);
    let mut file = File::from(made.map_err(|_| HandoffRefusal::NoCapacity)?);
    let written = file.write_all(bytes);
    written.map_err(|_| HandoffRefusal::NoCapacity)?;
    Ok(file)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
