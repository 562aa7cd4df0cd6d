//! One connection of the server's.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};

use godwit_sock::StreamPosition;
use godwit_wire::app::SnapshotPlace;
use godwit_wire::app::region::{Connection, SlotState};
use godwit_wire::{FlowKey, HandoffRefusal};
use nix::sys::stat::fstat;
use nix::unistd::geteuid;

use crate::descriptor::{borrow, cookie};
use crate::kept::Kept;
use crate::park::Parked;
use crate::told::Count;

/// A connection as the library knows it.
#[derive(Debug)]
pub(crate) struct Served {
    /// The server's number for it.
    pub(crate) number: RawFd,
    /// Which socket that was.
    pub(crate) cookie: u64,
    /// The server keeps nothing about it: it may be moved as it stands.
    pub(crate) stateless: bool,
    /// Where in the region it is, and its four-tuple.
    pub(crate) entry: Option<(u32, FlowKey)>,
    pub(crate) kept: Kept,
    /// The server has exported what is not kept: an agent came later.
    pub(crate) missed: bool,
    pub(crate) count: Count,
    /// What it came with from another server.
    pub(crate) imported: Option<Vec<u8>>,
    pub(crate) session: Vec<u8>,
    pub(crate) stage: Stage,
    /// A request that waits for the next export.
    pub(crate) wanted: Option<u32>,
    /// A commit that a thread of the server waits for.
    pub(crate) committing: Option<u32>,
}

/// Who has the socket.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The server.
    Serving,
    /// The agent, as an answer to this request.
    Parked(Parked),
    /// Another server has the connection.
    Emigrated,
}

impl Served {
    /// Whether the server's number still means this socket.
    pub(crate) fn is_current(&self) -> bool {
        let socket = borrow(self.number).and_then(cookie);
        socket.is_ok_and(|found| found == self.cookie)
    }

    /// Where the server stands in both streams; `None` if its number means another
    /// socket.
    pub(crate) fn current_position(&self) -> io::Result<Option<StreamPosition>> {
        StreamPosition::of_same(borrow(self.number)?, self.cookie)
    }

    /// Where the server stands in both streams.
    pub(crate) fn position(&self) -> io::Result<StreamPosition> {
        match &self.stage {
            Stage::Serving | Stage::Emigrated => StreamPosition::of(borrow(self.number)?),
            Stage::Parked(parked) => StreamPosition::of(parked.socket()),
        }
    }

    /// The snapshot that another server could go on from now, if there is one.
    pub(crate) fn at_its_snapshot(&self) -> io::Result<Option<SnapshotPlace>> {
        let now = self.position()?;
        let stands = |place: &SnapshotPlace| {
            !self.missed && (place.read, place.written) == (now.read, now.written)
        };
        Ok(self.kept.newest().filter(stands))
    }

    /// Takes the connection out of the server's hands.
    pub(crate) fn park(&mut self) -> Result<Answer, HandoffRefusal> {
        let parked = Parked::park(self.number).map_err(|_| HandoffRefusal::NoCapacity)?;
        self.kept.pin();
        self.stage = Stage::Parked(parked);
        self.hand_out()
    }

    /// What the agent gets of a parked connection.
    pub(crate) fn hand_out(&self) -> Result<Answer, HandoffRefusal> {
        let Stage::Parked(parked) = &self.stage else {
            return Err(HandoffRefusal::Ended);
        };
        let socket = copy(parked.socket()).map_err(|_| HandoffRefusal::NoCapacity)?;
        let snapshot = self.kept.newest().filter(|_| !self.stateless);
        Ok((snapshot, socket))
    }

    /// Whether its socket belongs to another account than this process's: an agent will
    /// not believe that it is here.
    pub(crate) fn is_foreign(&self) -> bool {
        let owner = self.socket().and_then(|socket| Ok(fstat(socket)?.st_uid));
        owner.is_ok_and(|owner| owner != geteuid().as_raw())
    }

    /// The cookie of such a socket, and a copy of it.
    pub(crate) fn foreign(&self) -> Option<(u64, OwnedFd)> {
        let socket = self.socket().and_then(copy).ok()?;
        Some((self.cookie, socket))
    }

    fn socket(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Serving if self.is_current() => borrow(self.number),
            Stage::Parked(parked) => Ok(parked.socket()),
            Stage::Serving | Stage::Emigrated => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// What the agent reads about it.
    pub(crate) fn described(&self, key: FlowKey) -> Connection {
        Connection {
            state: match self.stage {
                Stage::Serving => SlotState::Live,
                Stage::Parked(_) => SlotState::Parked,
                Stage::Emigrated => SlotState::Empty,
            },
            stateless: self.stateless,
            key,
            cookie: self.cookie,
            session: self.session.clone(),
            kept: self.kept.places().to_vec(),
        }
    }
}

/// A snapshot, if the connection has state, and the socket.
pub(crate) type Answer = (Option<SnapshotPlace>, OwnedFd);

fn copy(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}
