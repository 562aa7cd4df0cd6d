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
//! connections only (`claims`): the socket that it hands out must be the connection that
//! it is asked for, and a listener counts when the process shows it. What its account may
//! use up of the agent is bounded (`account`), and what comes from it is closed where
//! nobody waits for that (`closing`).

mod account;
mod claims;
mod client;
mod closing;
mod commit;
mod counts;
mod ledger;
mod listener;
mod message;
mod offer;
mod party;
mod region;
mod take;
mod thread;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_core::snapshot::parcel::Exported;
use godwit_sock::{SocketViewer, StreamPosition, netns_cookie};
use godwit_wire::app::region::{Connection, SlotState};
use godwit_wire::app::{AppMessage, Carried, SnapshotPlace, Subject};
use godwit_wire::{Endpoint, FlowKey, HandoffRefusal, SeqNumber};
use nix::sys::memfd::{MFdFlags, memfd_create};

pub use account::Weight;
pub use commit::{Asker, Commit, Committed};
pub use listener::{AppSocket, AppSocketError};
pub use offer::Offer;
pub use take::Take;

use crate::input::Inbox;
use crate::locks::lock;
use crate::wake::{self, Wake};

use claims::QUESTIONS;
use client::Client;
use closing::Foreign;
use counts::Counts;
use ledger::{Ledger, Standing};
use message::PatienceOfAll;
use party::Parties;
use region::Patience;
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
    /// Where processes find the agent.
    socket: PathBuf,
    services: Vec<SocketAddr>,
    desk: Mutex<Desk>,
    next_request: AtomicU32,
    /// Wakes the thread: a process has to hear something, and had no room for it.
    nudge: Wake,
    /// To the driver.
    inbox: Inbox,
    /// Whose connections are. Locked before the desk.
    ledger: Mutex<Ledger>,
    viewer: Mutex<SocketViewer>,
    /// The agent's network namespace.
    netns: u64,
    /// The link of clients with link-local addresses.
    ifindex: AtomicU32,
    counts: Counts,
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
    bell: Option<Wake>,
}

/// What a process has answered.
#[derive(Debug)]
struct Answer {
    outcome: Result<Option<SnapshotPlace>, HandoffRefusal>,
    socket: Option<Foreign>,
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
        let (line, work) = wake::queue()?;
        let office = Arc::new(Office {
            socket: socket.path().to_owned(),
            services,
            desk: Mutex::default(),
            next_request: AtomicU32::new(1),
            nudge: work.wake(),
            inbox,
            ledger: Mutex::default(),
            viewer: Mutex::new(SocketViewer::open()?),
            netns: netns_cookie()?,
            ifindex: AtomicU32::new(0),
            counts: Counts::default(),
        });
        let stopper = thread::start(office.clone(), socket, (line, work))?;
        Ok(Self {
            office,
            _stopper: Arc::new(stopper),
        })
    }

    /// The socket that processes connect to.
    pub fn socket(&self) -> &Path {
        &self.office.socket
    }

    /// Clients with link-local addresses are on the link of that interface from here on.
    pub fn follow(&self, ifindex: u32) {
        self.office.ifindex.store(ifindex, Ordering::Relaxed);
    }

    /// The connection is over: the next one with its addresses may be another process's.
    pub fn note_end(&self, flow: FlowKey) {
        lock(&self.office.ledger).forget(flow);
    }

    /// What processes were refused so far, by reason.
    pub fn refused(&self) -> BTreeMap<String, u64> {
        self.office.counts.get()
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
    /// picks of those that are kept, oldest first. One that is written just now, or that
    /// is not known to be its process's yet, is left out: look again soon.
    pub fn exported(
        &self,
        mut choose: impl FnMut(FlowKey, &[SnapshotPlace]) -> Option<SnapshotPlace>,
    ) -> Vec<(FlowKey, Exported)> {
        let mut exported = Vec::new();
        let (mut questions, mut doubtful) = (QUESTIONS, BTreeSet::new());
        for client in self.office.clients() {
            let patience = &mut Patience::none();
            client.region.each(patience, |slot, found| {
                let choose = |kept: &[SnapshotPlace]| choose(found.key, kept);
                let mut standing = || {
                    let office = &self.office;
                    let standing = office.standing(&client, slot, &found, &mut questions);
                    if standing == Standing::Contested {
                        doubtful.insert(found.key);
                    }
                    standing == Standing::Right
                };
                let picked = pick(&client, slot, &found, &mut standing, choose);
                exported.extend(picked.map(|picked| (found.key, picked)));
            });
        }
        // Who claims it, too, may come behind.
        exported.retain(|(key, _)| !doubtful.contains(key));
        exported
    }

    /// The same of one connection.
    pub fn exported_of(
        &self,
        flow: FlowKey,
        choose: impl Fn(&[SnapshotPlace]) -> Option<SnapshotPlace>,
    ) -> Option<Exported> {
        self.find(flow, |client, slot, found| {
            pick(client, slot, found, || true, &choose)
        })
    }

    /// Where the snapshots stand of all connections that servers have in their hands,
    /// in one look; as far as it is known who has them.
    pub fn places(&self) -> Places {
        let mut places = Places::new();
        let (mut questions, mut patience) = (QUESTIONS, PatienceOfAll::default());
        let mut doubtful = BTreeSet::new();
        for client in self.office.clients() {
            let patience = patience.of(&client);
            client.region.each(patience, |slot, found| {
                if found.state != SlotState::Live {
                    return;
                }
                match self.office.standing(&client, slot, &found, &mut questions) {
                    Standing::Right => drop(places.insert(found.key, found.kept)),
                    Standing::Contested => drop(doubtful.insert(found.key)),
                    Standing::Unknown => {}
                }
            });
        }
        places.retain(|key, _| !doubtful.contains(key));
        places
    }

    /// Of the connections that are wanted, those for which `is_committed` says so. Where
    /// two processes have one, either may have committed it.
    pub fn committed(
        &self,
        is_wanted: impl Fn(FlowKey) -> bool,
        is_committed: impl Fn(&[SnapshotPlace]) -> bool,
    ) -> BTreeSet<FlowKey> {
        let mut committed = BTreeSet::new();
        let mut patience = PatienceOfAll::default();
        for client in self.office.clients() {
            let patience = patience.of(&client);
            client.region.each(patience, |slot, found| {
                let is_meant = is_wanted(found.key) && is_committed(&found.kept);
                let standing = || self.office.standing(&client, slot, &found, &mut 1);
                if is_meant && standing() != Standing::Unknown {
                    committed.insert(found.key);
                }
            });
        }
        committed
    }

    /// What the process has for `look` that has the connection.
    fn find<T>(
        &self,
        flow: FlowKey,
        look: impl Fn(&Client, u32, &Connection) -> Option<T>,
    ) -> Option<T> {
        let look =
            |(client, slot, found): (Arc<Client>, u32, Connection)| look(&client, slot, &found);
        let likely = self.office.likely_holder(flow).and_then(look);
        likely.or_else(|| self.office.owners(flow).into_iter().find_map(look))
    }

    /// Whether a process here serves a connection, or did before it was taken.
    pub fn serves(&self, flow: FlowKey) -> bool {
        let holders = self.office.holders(flow);
        self.office.is_known(&holders)
    }

    /// What processes say of a connection: [`SlotState::Parked`] if one of them can't
    /// reach it; `None` if none has it, or none that has was heard of yet. That it is
    /// parked whoever says it has to prove, when it is asked for it.
    pub fn stage(&self, flow: FlowKey) -> Option<SlotState> {
        let holders = self.office.holders(flow);
        let mut said = holders.iter().map(|(_, _, found)| found.state);
        if said.any(|state| state == SlotState::Parked) {
            return Some(SlotState::Parked);
        }
        self.office.is_known(&holders).then_some(SlotState::Live)
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
    believed: impl FnOnce() -> bool,
    choose: impl FnOnce(&[SnapshotPlace]) -> Option<SnapshotPlace>,
) -> Option<Exported> {
    let place = choose(&connection.kept).filter(|_| connection.state == SlotState::Live)?;
    if !believed() {
        return None;
    }
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

/// A file in memory, for what does not fit into a message.
fn file_of(bytes: &[u8]) -> Result<File, HandoffRefusal> {
    let made = memfd_create(c"godwit-snapshot", MFdFlags::MFD_CLOEXEC);
    let mut file = File::from(made.map_err(|_| HandoffRefusal::NoCapacity)?);
    let written = file.write_all(bytes);
    written.map_err(|_| HandoffRefusal::NoCapacity)?;
    Ok(file)
}
