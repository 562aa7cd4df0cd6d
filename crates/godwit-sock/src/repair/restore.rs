//! From a snapshot to a socket.

use std::io;
use std::net::{SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use godwit_wire::snapshot::{Settings, TcpSnapshot};
use godwit_wire::{Endpoint, FlowKey, Segment, SeqNumber, TcpFlags, TcpOptions};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, SockaddrStorage, bind, connect, shutdown, socket,
};

use super::queue::{Queue, write_all};
use super::sys::{self, SockOptError, TCP_REPAIR};
use super::{options, window};

/// Why a snapshot did not become a socket. Nothing was sent, nothing is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// This kernel has a socket with the same four-tuple.
    #[error("the connection exists here already")]
    Exists,
    /// The service address is not one of this machine's.
    #[error("the service address is not here")]
    NoAddress,
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] SockOptError),
}

/// How a restored socket begins to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// With a window probe: the client answers with what it has, which frees
    /// the bytes that the former owner had under way, or that it has acknowledged while
    /// nobody heard it. In other states than ESTABLISHED the kernel sends none.
    Probe,
    /// When there is something to say.
    Silently,
}

impl Release {
    /// `TCP_REPAIR_OFF`, `TCP_REPAIR_OFF_NO_WP`.
    pub(super) const fn value(self) -> u32 {
        match self {
            Self::Probe => 0,
            Self::Silently => u32::MAX,
        }
    }
}

/// A connection in this kernel that does not speak yet, except that its
/// retransmission timer runs: the gate has to hold what it says.
///
/// Dropped, it ends without a word.
#[derive(Debug)]
#[must_use = "dropping it ends the connection in silence"]
pub struct RestoredSocket {
    socket: OwnedFd,
    unsent: Vec<u8>,
    settings: Settings,
    has_own_fin: bool,
    peer_fin: Option<Vec<u8>>,
}

impl RestoredSocket {
    /// Makes a socket of a snapshot. Needs CAP_NET_ADMIN; the service address
    /// has to be up. A link-local client is one on the link of `ifindex`.
    ///
    /// # Errors
    /// If the kernel refuses any part of it.
    pub fn restore(snapshot: &TcpSnapshot, ifindex: u32) -> Result<Self, RestoreError> {
        let family = if snapshot.settings.ipv6 {
            AddressFamily::Inet6
        } else {
            AddressFamily::Inet
        };
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
            .map_err(|errno| sys::refused("socket", errno))?;
        let fd = socket.as_fd();
        TCP_REPAIR.set(fd, 1)?;
        prepare(fd, snapshot)?;
        join(fd, snapshot, ifindex)?;
        let v6_flow = !snapshot.key.service.is_ipv4();
        options::restore(fd, snapshot.options)?;
        options::count_mss(fd, v6_flow)?;
        if snapshot.options.time_stamps {
            sys::TCP_TIMESTAMP.set(fd, snapshot.ts_val)?;
        }
        let unsent = fill(fd, snapshot)?;
        window::restore(fd, &snapshot.window, snapshot.rcv_nxt)?;
        // At most half of the client's largest window (`tcp_bound_to_half_wnd`).
        options::count_mss(fd, v6_flow)?;
        options::restore_settings(fd, &snapshot.settings, v6_flow)?;
        Ok(Self {
            socket,
            unsent,
            settings: snapshot.settings,
            has_own_fin: snapshot.state.has_own_fin(),
            peer_fin: peer_fin(snapshot),
        })
    }

    /// Lets it speak: the one step that can't be taken back.
    ///
    /// If the client had sent its FIN, `inject` gets it as an IP packet and has to
    /// put it into this machine's stack ([`HoldTun::put_back`] does): the kernel
    /// has no other way to know of it.
    ///
    /// [`HoldTun::put_back`]: crate::HoldTun::put_back
    ///
    /// # Errors
    /// If the kernel or `inject` refuses; the socket is closed then.
    pub fn release(
        self,
        how: Release,
        inject: impl FnOnce(&[u8]) -> io::Result<()>,
    ) -> Result<OwnedFd, SockOptError> {
        let fd = self.socket.as_fd();
        TCP_REPAIR.set(fd, how.value())?;
        write_all(fd, &self.unsent).map_err(|errno| sys::refused("send", errno))?;
        options::restore_limits(fd, &self.settings)?;
        // Leaving repair mode took it away, and a listener that is started
        // again needs it.
        sys::SO_REUSEADDR.set(fd, 1)?;
        // The order in which they came is not known; this one ends without
        // TIME-WAIT, as a server that did not close first does.
        if let Some(fin) = &self.peer_fin {
            inject(fin).map_err(|error| sys::refused("the client's FIN", error))?;
        }
        if self.has_own_fin {
            shutdown(fd.as_raw_fd(), Shutdown::Write)
                .map_err(|errno| sys::refused("shutdown", errno))?;
        }
        Ok(self.socket)
    }

    /// Ends it without a word: the former owner goes on.
    pub fn abandon(self) {
        drop(self.socket);
    }
}

impl AsFd for RestoredSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What has to be known before there is a connection.
fn prepare(fd: BorrowedFd<'_>, snapshot: &TcpSnapshot) -> Result<(), SockOptError> {
    Queue::Send.begin(fd, snapshot.snd_una())?;
    Queue::Recv.begin(fd, snapshot.copied_seq())?;
    options::make_room(fd, snapshot)?;
    sys::TCP_CONGESTION.set_bytes(fd, &snapshot.congestion.name)
}

/// bind(2) and connect(2), which in repair mode tell nobody.
fn join(fd: BorrowedFd<'_>, snapshot: &TcpSnapshot, ifindex: u32) -> Result<(), RestoreError> {
    let FlowKey { service, client } = snapshot.key;
    let link = if client.addr.is_unicast_link_local() {
        ifindex
    } else {
        0
    };
    let ends = [service, client].map(|end| address(end, snapshot.settings.ipv6, link));
    let [service, client] = ends;
    bind(fd.as_raw_fd(), &service).map_err(|errno| {
        if errno == Errno::EADDRNOTAVAIL {
            return RestoreError::NoAddress;
        }
        sys::refused("bind", errno).into()
    })?;
    connect(fd.as_raw_fd(), &client).map_err(|errno| {
        if [Errno::EADDRNOTAVAIL, Errno::EADDRINUSE].contains(&errno) {
            return RestoreError::Exists;
        }
        sys::refused("connect", errno).into()
    })
}

/// Puts into the queues what was in them, as far as it has been sent: bytes
/// written in repair mode count as sent. The others are returned.
fn fill(fd: BorrowedFd<'_>, snapshot: &TcpSnapshot) -> Result<Vec<u8>, SockOptError> {
    let TcpSnapshot { queues, .. } = snapshot;
    let unsent = usize::try_from(queues.unsent).unwrap_or(usize::MAX);
    let sent = queues.send.len().saturating_sub(unsent);
    let (sent, unsent) = queues.send.split_at(sent);
    Queue::Recv.fill(fd, &queues.recv)?;
    Queue::Send.fill(fd, sent)?;
    Queue::leave(fd)?;
    Ok(unsent.to_vec())
}

/// A FIN in the client's name. Without a time stamp, which might be too old
/// (RFC 7323 section 5.3) by the time it is taken in.
fn peer_fin(snapshot: &TcpSnapshot) -> Option<Vec<u8>> {
    if !snapshot.state.has_peer_fin() {
        return None;
    }
    let shift = snapshot.options.wscale.map_or(0, |(snd, _)| snd);
    let segment = Segment {
        source: snapshot.key.client,
        destination: snapshot.key.service,
        seq: snapshot.rcv_nxt,
        ack: SeqNumber(snapshot.snd_una().0),
        flags: TcpFlags::FIN.with(TcpFlags::ACK),
        wnd: u16::try_from(snapshot.window.snd_wnd >> shift).unwrap_or(u16::MAX),
        options: TcpOptions::default(),
        payload: &[],
    };
    segment.to_packet().ok()
}

/// IPv4 as a socket of its own kind wants it.
fn address(endpoint: Endpoint, ipv6: bool, link: u32) -> SockaddrStorage {
    let v4 = endpoint.addr.to_ipv4_mapped().filter(|_| !ipv6);
    match v4 {
        Some(v4) => SocketAddrV4::new(v4, endpoint.port).into(),
        None => SocketAddrV6::new(endpoint.addr, endpoint.port, 0, link).into(),
    }
}
