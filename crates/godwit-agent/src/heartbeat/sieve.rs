//! What the kernel drops before it reaches the receiving thread.
//!
//! A source address can be forged by whoever can send datagrams here at all. Each that gets
//! through takes a place in the socket's buffer, and there a flood leaves none to fresh
//! heartbeats: a healthy peer would be taken for dead. So the kernel is told what a
//! datagram that counts begins with: it comes from a peer's control address, and names the
//! life of that peer that has said hello. The fraction of a second in which an agent was started
//! is known to those who see the control network, and to nobody beside it.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, PoisonError};

use godwit_core::PeerId;
use godwit_sock::{Wanted, dropped_datagrams, take_all_datagrams, take_datagrams};
use godwit_wire::NodeName;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};

use super::receive::MAX_LEN;

/// Bytes of SO_RCVBUF: the datagrams of a second from some ten peers, with what the kernel
/// adds to each. More would only make fresh ones wait behind old ones.
const RECEIVE_BUFFER: usize = 1 << 20;

/// The shortest that a datagram of either kind can be is longer.
const LENGTHS: RangeInclusive<usize> = 32..=MAX_LEN;

/// What both kinds of datagrams begin with.
const MAGIC: &[u8] = b"GW";

/// Where their version is, and behind that the name.
const VERSION_AT: u32 = 4;
const VERSION: u8 = 1;

/// Datagrams that may be left of a life before: what a buffer holds.
const UNREAD: usize = 1 << 14;

/// A socket for what peers send to the control address. Bound once in a process, while there is
/// the right to a buffer beyond `net.core.rmem_max`.
///
/// # Errors
/// If the address is taken, or not there.
pub fn bind(control: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(control)?;
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        let _ = setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER);
    }
    Ok(socket)
}

/// What has come between two lives was meant for the one before.
pub(super) fn forget_unread(socket: &UdpSocket) {
    let is_there = |_: &usize| recv(socket.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT).is_ok();
    (0..UNREAD).take_while(is_there).for_each(drop);
}

/// The receiver's socket, and what it takes in.
#[derive(Debug)]
pub(super) struct Sieve {
    socket: Arc<UdpSocket>,
    peers: Mutex<Vec<Known>>,
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: NodeName,
    pub(super) address: IpAddr,
    /// Start of its agent, as its last hello says.
    pub(super) incarnation: Option<u64>,
}

impl Sieve {
    /// Has the kernel take in what these peers may say by now, and nothing else.
    pub(super) fn new(socket: Arc<UdpSocket>, peers: Vec<Known>) -> Self {
        let this = Self {
            socket,
            peers: Mutex::default(),
        };
        this.take(&peers);
        *this.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
        this
    }

    /// A peer has said which life of its agent this is.
    pub(super) fn learn(&self, peer: PeerId, incarnation: u64) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = peers.get_mut(usize::from(peer.0)) {
            known.incarnation = Some(incarnation);
        }
        self.take(&peers);
    }

    /// Datagrams that the kernel has dropped.
    pub(super) fn dropped(&self) -> u64 {
        dropped_datagrams(&self.socket).map_or(0, u64::from)
    }

    fn take(&self, peers: &[Known]) {
        let wanted: Vec<_> = peers.iter().filter_map(Known::wanted).collect();
        if let Err(error) = take_datagrams(&self.socket, LENGTHS, &wanted) {
            tracing::warn!(%error, "floods of datagrams are not kept out");
            // An earlier filter does not know this life of the peer.
            let _ = take_all_datagrams(&self.socket);
        }
    }
}

impl Known {
    fn wanted(&self) -> Option<Wanted> {
        let name = self.name.as_str().as_bytes();
        let length = u8::try_from(name.len()).ok()?;
        let incarnation_at = VERSION_AT + 2 + u32::from(length);
        Some(Wanted {
            source: self.address.to_canonical(),
            parts: vec![
                (0, MAGIC.to_vec()),
                (VERSION_AT, vec![VERSION, length]),
                (incarnation_at, self.incarnation?.to_be_bytes().to_vec()),
            ],
        })
    }
}
