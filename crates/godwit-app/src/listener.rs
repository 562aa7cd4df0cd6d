//! Accepting: clients that connect, and connections that other servers had.
//!
//! A server waits for its listener, in accept(2) or with any of the calls that
//! wait for many descriptors. Nothing but a client can make a listener readable,
//! so the library is one: it connects to the listener over the loopback, and
//! [`accept`] knows that connection by its port and drops it. Whoever else accepts
//! it (a process that shares the listener) sees a client that says nothing and is
//! gone.
//!
//! [`accept`]: Listener::accept

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use godwit_wire::app::Carried;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, accept4, connect, getpeername, getsockname,
    send, setsockopt, socket, sockopt,
};

use crate::descriptor::{borrow, cookie, option};
use crate::process::{endpoint, lock};

/// Connections of other servers that wait to be accepted.
const MAX_WAITING: usize = 1024;

/// A knock that nobody has answered until then is taken back, and made again.
const KNOCK: Duration = Duration::from_millis(500);

/// One that is so young stands for what comes after it, too: whoever answers it takes
/// all that waits, or knocks for the others.
const FRESH: Duration = Duration::from_millis(2);

/// A listener of the server's.
#[derive(Debug)]
pub(crate) struct Listener {
    number: RawFd,
    pub(crate) cookie: u64,
    /// The agent's name for it.
    pub(crate) name: u32,
    /// Its connections have no state.
    pub(crate) stateless: bool,
    waiting: Mutex<VecDeque<Given>>,
    knocks: Mutex<Vec<Knock>>,
}

/// A connection of another server.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) socket: OwnedFd,
    pub(crate) carried: Option<Carried>,
}

/// A connection of our own to the listener.
#[derive(Debug)]
struct Knock {
    // Held so long that the server can wake up.
    _socket: OwnedFd,
    from: SocketAddr,
    since: Instant,
}

/// What a server gets.
#[derive(Debug)]
pub(crate) enum Guest {
    /// A client's connection.
    Client(OwnedFd),
    /// One that another server had.
    Migrated(Given),
}

impl Listener {
    /// A listener by the server's number for it.
    pub(crate) fn new(number: RawFd, cookie: u64, name: u32, stateless: bool) -> io::Result<Self> {
        let listens = option(borrow(number)?, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)?;
        if listens == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            number,
            cookie,
            name,
            stateless,
            waiting: Mutex::default(),
            knocks: Mutex::default(),
        })
    }

    /// The server's number, if it still means this listener.
    pub(crate) fn is_current(&self) -> bool {
        let found = borrow(self.number).and_then(cookie);
        found.is_ok_and(|found| found == self.cookie)
    }

    /// The server's number.
    pub(crate) const fn number(&self) -> RawFd {
        self.number
    }

    /// The next connection. Waits for one if the listener does.
    ///
    /// # Errors
    /// What accept4(2) says.
    pub(crate) fn accept(&self, flags: SockFlag) -> io::Result<Guest> {
        loop {
            if let Some(given) = self.next_given() {
                return Ok(Guest::Migrated(given));
            }
            let accepted = accept4(self.number, flags)?;
            // SAFETY: a fresh descriptor that is nobody else's.
            let accepted = unsafe { OwnedFd::from_raw_fd(accepted) };
            if !self.is_knock(&accepted) {
                return Ok(Guest::Client(accepted));
            }
        }
    }

    /// Others may wait in this call, and a server may call it once for each that comes:
    /// nobody has knocked for those that are left.
    fn next_given(&self) -> Option<Given> {
        let mut waiting = lock(&self.waiting);
        let given = waiting.pop_front()?;
        let is_last = waiting.is_empty();
        drop(waiting);
        if !is_last && lock(&self.knocks).is_empty() {
            self.knock();
        }
        Some(given)
    }

    /// Has the server accept a connection of another one.
    ///
    /// # Errors
    /// With the connection, if too many wait already.
    pub(crate) fn give(&self, given: Given) -> Result<(), Given> {
        let mut waiting = lock(&self.waiting);
        if waiting.len() == MAX_WAITING {
            return Err(given);
        }
        waiting.push_back(given);
        drop(waiting);
        let fresh = |knock: &Knock| knock.since.elapsed() < FRESH;
        if !lock(&self.knocks).iter().any(fresh) {
            self.knock();
        }
        Ok(())
    }

    /// Knocks again where nobody has come to the door; when it wants to be called
    /// again.
    pub(crate) fn look_after(&self, now: Instant) -> Option<Instant> {
        let mut knocks = lock(&self.knocks);
        knocks.retain(|knock| now < knock.since + KNOCK);
        let next = knocks.iter().map(|knock| knock.since + KNOCK).min();
        drop(knocks);
        if next.is_none() && !lock(&self.waiting).is_empty() {
            self.knock();
            return Some(now + KNOCK);
        }
        next
    }

    /// A failure shows in that the server does not wake up before its next client;
    /// then it is tried again.
    fn knock(&self) {
        // The server may accept it before this returns, and has to know it then.
        let mut knocks = lock(&self.knocks);
        knocks.extend(Knock::at(self.number));
    }

    fn is_knock(&self, accepted: &OwnedFd) -> bool {
        let mut knocks = lock(&self.knocks);
        if knocks.is_empty() {
            return false;
        }
        let peer = getpeername::<SockaddrStorage>(accepted.as_raw_fd());
        let Some(from) = peer.ok().and_then(endpoint).map(SocketAddr::from) else {
            return false;
        };
        let before = knocks.len();
        knocks.retain(|knock| knock.from != from);
        knocks.len() < before
    }
}

impl Knock {
    fn at(listener: RawFd) -> io::Result<Self> {
        let at = getsockname::<SockaddrStorage>(listener)?;
        let v6 = at.as_sockaddr_in6().is_some();
        let at = endpoint(at).ok_or(io::ErrorKind::InvalidInput)?;
        let address = SocketAddr::new(reachable(at.addr, v6), at.port);
        let family = if v6 {
            AddressFamily::Inet6
        } else {
            AddressFamily::Inet
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(family, SockType::Stream, flags, None)?;
        // It leaves by a RST: no state stays behind for a port that is used again.
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&socket, sockopt::Linger, &linger)?;
        let target = match address {
            SocketAddr::V4(v4) => SockaddrStorage::from(SocketAddrV4::new(*v4.ip(), v4.port())),
            SocketAddr::V6(v6) => {
                SockaddrStorage::from(SocketAddrV6::new(*v6.ip(), v6.port(), 0, 0))
            }
        };
        match connect(socket.as_raw_fd(), &target) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        // A listener with TCP_DEFER_ACCEPT shows a client when it has spoken.
        let defers = option(borrow(listener)?, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
        if defers.is_ok_and(|seconds| seconds != 0) {
            let flags = nix::sys::socket::MsgFlags::MSG_NOSIGNAL;
            // Not connected yet: the next knock will be.
            let _ = send(socket.as_raw_fd(), b"\0", flags);
        }
        let own = getsockname::<SockaddrStorage>(socket.as_raw_fd())?;
        let from = endpoint(own).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            _socket: socket,
            from: from.into(),
            since: Instant::now(),
        })
    }
}

/// Where a listener of this host is reached by itself.
fn reachable(at: Ipv6Addr, v6_socket: bool) -> IpAddr {
    match at.to_ipv4_mapped() {
        Some(Ipv4Addr::UNSPECIFIED) if !v6_socket => Ipv4Addr::LOCALHOST.into(),
        Some(v4) if !v6_socket => v4.into(),
        _ if at.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => at.into(),
    }
}
