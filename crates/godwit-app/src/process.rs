//! What the library knows in one process, and what the server's calls do with it.
//!
//! The server's threads and the library's own share it. Locks are taken in this
//! order: one connection, then the table, then the arena or the outbox; nothing
//! waits while it holds one, but for the kernel.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use godwit_sock::StreamPosition;
use godwit_wire::app::{
    AppMessage, Carried, MAX_SESSION, MAX_SNAPSHOT, SnapshotKind, SnapshotPlace,
};
use godwit_wire::{Endpoint, FlowKey, HandoffRefusal};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

use crate::arena::Arena;
use crate::commit::Ticket;
use crate::descriptor::{borrow, cookie, expect_connection};
use crate::error::Error;
use crate::kept::{has_block, lost};
use crate::listener::Listener;
use crate::park::Leftover;
use crate::region::Region;
use crate::served::{Served, Stage};
use crate::thread;
use crate::told::{Believed, Checked, Count, Progress};

/// Connections that an agent may know of at a time. Half a KiB each, once used.
const SLOTS: u32 = 16_384;

/// Most bytes of snapshots at a time, in blocks of powers of two.
const SNAPSHOTS: u64 = 1 << 30;

/// What the library knows in this process.
#[derive(Debug)]
pub(crate) struct Process {
    region: Option<Region>,
    arena: Mutex<Arena>,
    table: Mutex<Table>,
    outbox: Mutex<Vec<Outgoing>>,
    wake: Option<EventFd>,
    connected: AtomicBool,
    /// Whether the agent wants to see connections of other accounts, and which it has not.
    shows: AtomicBool,
    unshown: Mutex<VecDeque<Entry>>,
    commits: Mutex<Commits>,
}

/// Servers that wait until a snapshot is safe, by the number of the request.
#[derive(Debug, Default)]
struct Commits {
    waiting: HashMap<u32, Arc<Ticket>>,
    latest: u32,
}

/// A message for the agent, with a descriptor perhaps.
pub(crate) type Outgoing = (AppMessage, Option<OwnedFd>);

pub(crate) type Entry = Arc<Mutex<Served>>;

#[derive(Debug, Default)]
struct Table {
    by_number: HashMap<RawFd, Entry>,
    by_slot: Vec<Option<Entry>>,
    free: Vec<u32>,
    listeners: HashMap<RawFd, Arc<Listener>>,
    next_listener: u32,
}

/// How a connection comes in.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A client has opened it.
    Fresh,
    /// Another server had it. Without a snapshot it has no state.
    Migrated(Option<Carried>),
    /// Inherited from a process that had accepted it.
    Inherited,
}

impl Process {
    pub(crate) fn new() -> Self {
        // Without shared memory there is no agent for this process.
        let region = Region::new(SLOTS, SNAPSHOTS).ok();
        let (start, end) = region
            .as_ref()
            .map_or((0, 0), |region| (region.snapshots_at(), region.length()));
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Self {
            region,
            arena: Mutex::new(Arena::new(start, end)),
            table: Mutex::default(),
            outbox: Mutex::default(),
            wake: EventFd::from_flags(flags).ok(),
            connected: AtomicBool::new(false),
            shows: AtomicBool::new(false),
            unshown: Mutex::default(),
            commits: Mutex::default(),
        }
    }

    /// Starts the library's thread.
    pub(crate) fn start(&'static self) {
        if let (Some(region), Some(wake)) = (&self.region, &self.wake) {
            thread::start(self, region, wake);
        }
    }

    /// Whether an agent works for this process.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Release);
    }

    pub(crate) fn set_shows(&self, shows: bool) {
        self.shows.store(shows, Ordering::Release);
        lock(&self.unshown).clear();
    }

    /// A connection that the agent has to see, oldest first.
    pub(crate) fn next_unshown(&self) -> Option<Entry> {
        lock(&self.unshown).pop_front()
    }

    pub(crate) fn show_later(&self, entry: Entry) {
        lock(&self.unshown).push_front(entry);
    }

    /// Has a message sent by the library's thread.
    pub(crate) fn post(&self, message: AppMessage, descriptor: Option<OwnedFd>) {
        lock(&self.outbox).push((message, descriptor));
        self.nudge();
    }

    /// What is to be sent.
    pub(crate) fn posted(&self) -> Vec<Outgoing> {
        std::mem::take(&mut *lock(&self.outbox))
    }

    /// Has the library's thread look around; it needs nobody for that itself, as it
    /// says what it has posted before it waits again.
    pub(crate) fn nudge(&self) {
        if thread::is_own() {
            return;
        }
        if let Some(wake) = &self.wake {
            // Full: it will look anyway.
            let _ = wake.write(1);
        }
    }

    /// The server's listener with this number, known from now on.
    pub(crate) fn listener(
        &self,
        number: RawFd,
        stateless: Option<bool>,
    ) -> io::Result<Arc<Listener>> {
        let cookie = cookie(borrow(number)?)?;
        let mut table = lock(&self.table);
        let known = table.listeners.get(&number).filter(|known| {
            known.cookie == cookie && stateless.is_none_or(|wanted| wanted == known.stateless)
        });
        if let Some(known) = known {
            return Ok(known.clone());
        }
        table.next_listener += 1;
        let name = table.next_listener;
        let fresh = Listener::new(number, cookie, name, stateless.unwrap_or(false))?;
        let fresh = Arc::new(fresh);
        table.listeners.insert(number, fresh.clone());
        drop(table);
        self.nudge();
        Ok(fresh)
    }

    /// The listeners that are open.
    pub(crate) fn listeners(&self) -> Vec<Arc<Listener>> {
        let mut table = lock(&self.table);
        table.listeners.retain(|_, listener| listener.is_current());
        table.listeners.values().cloned().collect()
    }

    /// Takes note of a connection that the server has from now on.
    pub(crate) fn enter(
        &self,
        number: RawFd,
        stateless: bool,
        arrival: Arrival,
    ) -> Result<Entry, Error> {
        let mut served = Served {
            number,
            cookie: cookie(borrow(number)?)?,
            stateless,
            entry: None,
            kept: Default::default(),
            missed: true,
            count: Count::default(),
            imported: None,
            session: Vec::new(),
            stage: Stage::Serving,
            wanted: None,
            committing: None,
        };
        match arrival {
            Arrival::Fresh => {
                served.missed = false;
                served.count = Count::from(0, 0);
                let place = self.store(SnapshotKind::Regenerable, &[], (0, 0))?;
                served.kept.push(place, 0, Instant::now());
            }
            Arrival::Migrated(carried) => {
                let now = StreamPosition::of(borrow(number)?)?;
                let (kind, bytes) = match carried {
                    Some(Carried { kind, bytes }) => (kind, bytes),
                    None => (SnapshotKind::Regenerable, Vec::new()),
                };
                let position = (now.read, now.written);
                served.count = Count::from(now.read, now.written);
                match self.store(kind, &bytes, position) {
                    Ok(place) => {
                        served.missed = false;
                        served.kept.push(place, now.acknowledged, Instant::now());
                    }
                    Err(_) if kind == SnapshotKind::Commit => {
                        served.kept.commit(lost(position));
                    }
                    Err(_) => {}
                }
                served.imported = Some(bytes).filter(|bytes| !bytes.is_empty());
            }
            Arrival::Inherited => {}
        }
        let entry = Arc::new(Mutex::new(served));
        let former = lock(&self.table).by_number.insert(number, entry.clone());
        if let Some(former) = former {
            self.let_go(&former);
        }
        if self.is_connected() {
            self.describe(&entry);
        }
        Ok(entry)
    }

    /// A connection of the server's; of a number that means another socket now,
    /// nothing.
    pub(crate) fn find(&self, number: RawFd) -> Option<Entry> {
        lock(&self.table).by_number.get(&number).cloned()
    }

    /// A connection by its place in the region.
    pub(crate) fn at_slot(&self, slot: u32) -> Option<Entry> {
        let table = lock(&self.table);
        let slot = usize::try_from(slot).ok()?;
        table.by_slot.get(slot)?.clone()
    }

    /// Everything that the server has.
    pub(crate) fn all(&self) -> Vec<Entry> {
        lock(&self.table).by_number.values().cloned().collect()
    }

    /// Keeps a snapshot of the server's state of a connection. It may say where it
    /// stands.
    pub(crate) fn export(
        &self,
        number: RawFd,
        bytes: &[u8],
        said: Option<Progress>,
    ) -> Result<(), Error> {
        if bytes.len() > MAX_SNAPSHOT as usize {
            return Err(Error::TooLarge);
        }
        let connected = self.is_connected();
        let Some(entry) = self.find(number) else {
            expect_connection(number)?;
            if !connected {
                return Ok(());
            }
            let entry = self.enter(number, false, Arrival::Inherited)?;
            return self.keep(&entry, bytes, said);
        };
        if connected {
            return self.keep(&entry, bytes, said);
        }
        let mut served = lock(&entry);
        served.missed = true;
        match served.stage {
            Stage::Parked(_) => Ok(()),
            // An earlier connection had the number.
            Stage::Serving | Stage::Emigrated if !served.is_current() => expect_connection(number),
            Stage::Serving => Ok(()),
            Stage::Emigrated => Err(Error::Emigrated),
        }
    }

    fn keep(&self, entry: &Entry, bytes: &[u8], said: Option<Progress>) -> Result<(), Error> {
        let (mut served, now) = (lock(entry), Instant::now());
        if matches!(served.stage, Stage::Serving)
            // Who takes it relies on that.
            && served.wanted.is_none()
            && let Some(believed) = said.and_then(|said| served.count.believed(said, now))
        {
            return self.keep_at(&mut served, bytes, believed, now);
        }
        let position = match &served.stage {
            Stage::Parked(parked) => StreamPosition::of(parked.socket())?,
            Stage::Emigrated if served.is_current() => return Err(Error::Emigrated),
            Stage::Serving | Stage::Emigrated => match served.current_position()? {
                Some(now) => now,
                None => {
                    // The number means another socket: this one was closed.
                    let number = served.number;
                    drop(served);
                    let fresh = self.enter(number, false, Arrival::Inherited)?;
                    return self.keep(&fresh, bytes, said);
                }
            },
        };
        let checked = served.count.check(said, position, now);
        if let Checked::WrongSince(place) | Checked::UnknownSince(place) = checked {
            let Progress { read, written } = place;
            let doubtful = served.kept.retract((read, written));
            self.publish(&served);
            // Not before, see [`Self::keep_at`].
            self.forget(&doubtful);
        }
        let again = false;
        let kept = self.keep_at(&mut served, bytes, Believed { position, again }, now);
        match checked {
            Checked::Right | Checked::UnknownSince(_) => kept,
            Checked::WrongSince(_) => kept.and(Err(Error::Misplaced)),
        }
    }

    fn keep_at(
        &self,
        served: &mut Served,
        bytes: &[u8],
        Believed { position, again }: Believed,
        now: Instant,
    ) -> Result<(), Error> {
        let (kind, at) = (SnapshotKind::Regenerable, (position.read, position.written));
        let place = match self.store(kind, bytes, at) {
            Ok(place) => place,
            Err(error) => {
                served.missed = true;
                return Err(error);
            }
        };
        served.missed = false;
        served.imported = None;
        let dropped = if again {
            served.kept.supersede(place, position.acknowledged, now)
        } else {
            served.kept.push(place, position.acknowledged, now)
        };
        let free = served.committing.is_none();
        if let Some(request) = served.wanted.take_if(|_| free) {
            // The server stands exactly at its snapshot.
            self.answer(served, request);
        }
        self.publish(served);
        // Not before: an agent that copies one would not see that it is written over.
        self.forget(&dropped);
        Ok(())
    }

    /// Parks a connection and has the agent told.
    pub(crate) fn answer(&self, served: &mut Served, request: u32) {
        let (outcome, socket) = match served.park() {
            Ok((snapshot, socket)) => (Ok(snapshot), Some(socket)),
            Err(refusal) => (Err(refusal), None),
        };
        self.publish(served);
        self.post(AppMessage::Taken { request, outcome }, socket);
    }

    /// Parks a connection if another server could go on with it, or has the agent
    /// told that none could.
    pub(crate) fn take_or_refuse(&self, served: &mut Served, request: u32) {
        // Nobody else may have it before it is known who has the commit.
        let ready = served.stateless || matches!(served.at_its_snapshot(), Ok(Some(_)));
        if ready && served.committing.is_none() {
            return self.answer(served, request);
        }
        let outcome = Err(HandoffRefusal::SnapshotBehind);
        self.post(AppMessage::Taken { request, outcome }, None);
    }

    /// Has the server go on with a parked connection; what may still wait in its
    /// stand-in.
    pub(crate) fn put_back(&self, served: &mut Served) -> Option<Leftover> {
        let stage = std::mem::replace(&mut served.stage, Stage::Serving);
        let Stage::Parked(parked) = stage else {
            served.stage = stage;
            return None;
        };
        let unpinned = served.kept.unpin();
        self.forget(unpinned.as_slice());
        let leftover = parked.put_back();
        self.publish(served);
        leftover.ok().flatten()
    }

    /// A parked connection is another server's: the server is told when it asks.
    pub(crate) fn end(&self, served: &mut Served) {
        let stage = std::mem::replace(&mut served.stage, Stage::Emigrated);
        match stage {
            // It fails: its number is a broken connection either way.
            Stage::Parked(parked) => drop(parked.end()),
            Stage::Serving | Stage::Emigrated => {}
        }
        self.publish(served);
    }

    /// What a connection came with: its size, copied if it fits.
    pub(crate) fn import(
        &self,
        number: RawFd,
        buffer: &mut [MaybeUninit<u8>],
    ) -> Result<usize, Error> {
        let Some(entry) = self.find(number) else {
            return expect_connection(number).map(|()| 0);
        };
        let served = lock(&entry);
        match served.stage {
            Stage::Parked(_) => {}
            // An earlier connection had the number.
            Stage::Serving | Stage::Emigrated if !served.is_current() => {
                return expect_connection(number).map(|()| 0);
            }
            Stage::Emigrated => return Err(Error::Emigrated),
            Stage::Serving => {}
        }
        let imported = served.imported.as_deref().unwrap_or_default();
        if let Some(target) = buffer.get_mut(..imported.len()) {
            target.write_copy_of_slice(imported);
        }
        Ok(imported.len())
    }

    /// Has a connection stay with all others of the same session.
    pub(crate) fn join(&self, number: RawFd, session: &[u8]) -> Result<(), Error> {
        if session.len() > MAX_SESSION {
            return Err(Error::TooLarge);
        }
        let entry = self.find(number).ok_or(Error::Unknown)?;
        let mut served = lock(&entry);
        match served.stage {
            Stage::Parked(_) => {}
            Stage::Serving | Stage::Emigrated if !served.is_current() => {
                return Err(Error::Unknown);
            }
            Stage::Emigrated => return Err(Error::Emigrated),
            Stage::Serving => {}
        }
        served.session = session.to_vec();
        self.publish(&served);
        Ok(())
    }

    /// Closes a connection of the server's: whatever stage it is in.
    pub(crate) fn close(&self, number: RawFd) -> Result<(), Error> {
        let entry = lock(&self.table).by_number.remove(&number);
        let Some(entry) = entry else {
            return Ok(nix::unistd::close(number)?);
        };
        let mut served = lock(&entry);
        let stage = std::mem::replace(&mut served.stage, Stage::Emigrated);
        let closed = nix::unistd::close(number);
        drop(stage);
        drop(served);
        self.let_go(&entry);
        Ok(closed?)
    }

    /// Frees what a connection has here, unless the agent has it.
    pub(crate) fn let_go(&self, entry: &Entry) {
        let mut served = lock(entry);
        if matches!(served.stage, Stage::Parked(_)) {
            return;
        }
        let places = served.kept.take();
        if let (Some((slot, _)), Some(region)) = (served.entry.take(), &self.region) {
            region.write_slot(slot, None);
            let mut table = lock(&self.table);
            if let Some(place) = usize::try_from(slot)
                .ok()
                .and_then(|slot| table.by_slot.get_mut(slot))
            {
                *place = None;
                table.free.push(slot);
            }
        }
        self.forget(&places);
    }

    /// Has the agent see a connection.
    pub(crate) fn describe(&self, entry: &Entry) {
        let mut served = lock(entry);
        let Some(region) = &self.region else {
            return;
        };
        if served.entry.is_none() && served.is_current() {
            let key = four_tuple(served.number);
            let slot = key.and_then(|_| self.free_slot(region, entry));
            served.entry = slot.zip(key);
        }
        self.publish(&served);
        if self.shows.load(Ordering::Acquire) && served.is_foreign() {
            drop(served);
            lock(&self.unshown).push_back(entry.clone());
            self.nudge();
        }
    }

    /// Lets go of connections that the server has closed.
    pub(crate) fn sweep(&self) {
        for entry in self.all() {
            let served = lock(&entry);
            let gone = !matches!(served.stage, Stage::Parked(_)) && !served.is_current();
            let number = served.number;
            drop(served);
            if !gone {
                continue;
            }
            let mut table = lock(&self.table);
            let known = table.by_number.get(&number);
            if known.is_some_and(|known| Arc::ptr_eq(known, &entry)) {
                table.by_number.remove(&number);
            }
            drop(table);
            self.let_go(&entry);
        }
    }

    fn free_slot(&self, region: &Region, entry: &Entry) -> Option<u32> {
        let mut table = lock(&self.table);
        if let Some(slot) = table.free.pop() {
            *table.by_slot.get_mut(usize::try_from(slot).ok()?)? = Some(entry.clone());
            return Some(slot);
        }
        let slot = u32::try_from(table.by_slot.len()).ok()?;
        if slot == region.slots() {
            return None;
        }
        table.by_slot.push(Some(entry.clone()));
        region.set_used(slot + 1);
        Some(slot)
    }

    /// Writes a connection into its slot as it is now.
    pub(crate) fn publish(&self, served: &Served) {
        if let (Some((slot, key)), Some(region)) = (served.entry, &self.region) {
            region.write_slot(slot, Some(&served.described(key)));
        }
    }

    /// A name for a commit, and who is told what becomes of it. 0 is none.
    pub(crate) fn new_ticket(&self) -> (u32, Arc<Ticket>) {
        let mut commits = lock(&self.commits);
        commits.latest = commits.latest.wrapping_add(1).max(1);
        let (request, ticket) = (commits.latest, Arc::<Ticket>::default());
        commits.waiting.insert(request, ticket.clone());
        (request, ticket)
    }

    pub(crate) fn ticket(&self, request: u32) -> Option<Arc<Ticket>> {
        lock(&self.commits).waiting.get(&request).cloned()
    }

    pub(crate) fn drop_ticket(&self, request: u32) {
        lock(&self.commits).waiting.remove(&request);
    }

    pub(crate) fn tickets(&self) -> Vec<Arc<Ticket>> {
        lock(&self.commits).waiting.values().cloned().collect()
    }

    pub(crate) fn store(
        &self,
        kind: SnapshotKind,
        bytes: &[u8],
        (read, written): (u64, u64),
    ) -> Result<SnapshotPlace, Error> {
        let length = u32::try_from(bytes.len()).map_err(|_| Error::TooLarge)?;
        let mut offset = 0;
        if let Some(region) = self.region.as_ref().filter(|_| length > 0) {
            offset = lock(&self.arena).take(length).ok_or(Error::NoSpace)?;
            region.write(offset, bytes);
        }
        Ok(SnapshotPlace {
            offset,
            length,
            kind,
            read,
            written,
        })
    }

    /// Gives blocks of snapshots back.
    pub(crate) fn forget(&self, places: &[SnapshotPlace]) {
        if places.is_empty() {
            return;
        }
        let mut arena = lock(&self.arena);
        for place in places.iter().filter(|place| has_block(place)) {
            arena.give_back(place.offset, place.length);
        }
    }
}

/// A lock that another thread has left by a panic is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The client's end and the service's.
fn four_tuple(number: RawFd) -> Option<FlowKey> {
    Some(FlowKey {
        client: endpoint(getpeername(number).ok()?)?,
        service: endpoint(getsockname(number).ok()?)?,
    })
}

pub(crate) fn endpoint(address: SockaddrStorage) -> Option<Endpoint> {
    let v4 = address
        .as_sockaddr_in()
        .map(|v4| std::net::SocketAddrV4::from(*v4).into());
    let v6 = || {
        address
            .as_sockaddr_in6()
            .map(|v6| std::net::SocketAddrV6::from(*v6).into())
    };
    let address: std::net::SocketAddr = v4.or_else(v6)?;
    Some(address.into())
}
