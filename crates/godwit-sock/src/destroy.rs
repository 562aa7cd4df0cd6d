//! TCP sockets of other processes (sock_diag(7)): whether there is one, and
//! ending it.
//!
//! The kernel sends a RST when it ends a socket: only for sockets whose
//! segments are suppressed.

use std::cell::Cell;
use std::io;

use godwit_wire::{Endpoint, FlowKey};
use nix::sys::socket::SockProtocol;

use crate::netlink::{NLM_F_ACK, Netlink, u32_at};

pub(crate) const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// include/net/tcp_states.h
pub(crate) const TCP_LISTEN: u8 = 10;
pub(crate) const INET_DIAG_NOCOOKIE: [u8; 8] = [0xff; 8];

/// Finds and ends sockets one after the other; for many of them, one of these.
#[derive(Debug)]
pub struct Destroyer {
    netlink: Netlink,
    ifindex: Cell<u32>,
}

impl Destroyer {
    /// A link-local client will be one on the link of `ifindex`.
    ///
    /// # Errors
    /// If the kernel has no more sockets.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let netlink = Netlink::open(SockProtocol::NetlinkSockDiag)?;
        let ifindex = Cell::new(ifindex);
        Ok(Self { netlink, ifindex })
    }

    /// A link-local client is one on the link of another interface from here on.
    pub fn follow(&self, ifindex: u32) {
        self.ifindex.set(ifindex);
    }

    /// Whether `flow` has a socket of its own at its service side; a listener that
    /// would take its segments is none.
    ///
    /// # Errors
    /// Fails if the kernel lacks INET_DIAG.
    pub fn has(&self, flow: FlowKey) -> io::Result<bool> {
        look_up(&self.netlink, self.ifindex.get(), flow).map(|found| found.is_some())
    }

    /// Aborts the socket of `flow` at its service side. Returns whether there was
    /// one.
    ///
    /// Where there is none any more, the kernel's look-up goes on to the listener
    /// that would take the flow's segments, and would abort that: so the socket is
    /// looked for first, and then named by its cookie.
    ///
    /// # Errors
    /// Fails without CAP_NET_ADMIN, or if the kernel lacks INET_DIAG_DESTROY.
    pub fn destroy(&self, flow: FlowKey) -> io::Result<bool> {
        let Some(cookie) = look_up(&self.netlink, self.ifindex.get(), flow)? else {
            return Ok(false);
        };
        let request = request(self.ifindex.get(), flow, cookie, 0);
        match self.netlink.request(SOCK_DESTROY, NLM_F_ACK, &request) {
            Ok(_) => Ok(true),
            // Gone between the two requests.
            Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {
                Ok(false)
            }
            Err(err) => Err(err),
        }
    }
}

/// Ends one socket, see [`Destroyer::destroy`].
///
/// # Errors
/// As there.
pub fn destroy_tcp(ifindex: u32, flow: FlowKey) -> io::Result<bool> {
    Destroyer::open(ifindex)?.destroy(flow)
}

/// Looks for one socket, see [`Destroyer::has`].
///
/// # Errors
/// As there.
pub fn has_tcp_socket(ifindex: u32, flow: FlowKey) -> io::Result<bool> {
    Destroyer::open(ifindex)?.has(flow)
}

/// What waits in a socket, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Of the client, and its server has not read it; a FIN counts as one.
    pub unread: u32,
    /// Of the server, and the client has not acknowledged it; a FIN counts as one.
    pub unacked: u32,
}

/// What waits in the flow's socket. `None` if it has none of its own, see
/// [`Destroyer::has`].
///
/// # Errors
/// As there.
pub fn waiting_bytes(ifindex: u32, flow: FlowKey) -> io::Result<Option<Waiting>> {
    let netlink = Netlink::open(SockProtocol::NetlinkSockDiag)?;
    read_of(&netlink, ifindex, flow, waiting_of)
}

/// The cookie of the flow's own socket.
fn look_up(netlink: &Netlink, ifindex: u32, flow: FlowKey) -> io::Result<Option<[u8; 8]>> {
    read_of(netlink, ifindex, flow, cookie_of)
}

/// What `read` takes out of what the kernel says of the flow's socket.
fn read_of<T>(
    netlink: &Netlink,
    ifindex: u32,
    flow: FlowKey,
    read: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    let request = request(ifindex, flow, INET_DIAG_NOCOOKIE, 0);
    match netlink.request(SOCK_DIAG_BY_FAMILY, NLM_F_ACK, &request) {
        Ok(found) => Ok(found.iter().find_map(|message| read(message))),
        Err(err) if err.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(err) => Err(err),
    }
}

/// From `struct inet_diag_msg`: family, state, timer, retrans, and a `struct
/// inet_diag_sockid` that ends in the cookie. `None` for a listener.
pub(crate) fn cookie_of(message: &[u8]) -> Option<[u8; 8]> {
    let state = *message.get(1)?;
    let cookie = message.get(44..52)?.try_into().ok()?;
    (state != TCP_LISTEN).then_some(cookie)
}

/// `idiag_rqueue` and `idiag_wqueue`, behind `idiag_expires`. Of a listener they are something
/// else.
fn waiting_of(message: &[u8]) -> Option<Waiting> {
    cookie_of(message)?;
    Some(Waiting {
        unread: u32_at(message, 56)?,
        unacked: u32_at(message, 60)?,
    })
}

/// `struct inet_diag_req_v2`; `more` is a bit per attribute that is asked for.
pub(crate) fn request(ifindex: u32, flow: FlowKey, cookie: [u8; 8], more: u8) -> Vec<u8> {
    let family = if flow.service.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let family = u8::try_from(family).expect("address families are small");
    let tcp = u8::try_from(libc::IPPROTO_TCP).expect("protocol numbers are small");
    let mut body = vec![family, tcp, more, 0];
    body.extend(u32::MAX.to_ne_bytes()); // every state
    body.extend(flow.service.port.to_be_bytes());
    body.extend(flow.client.port.to_be_bytes());
    body.extend(address(flow.service));
    body.extend(address(flow.client));
    // Any interface, but the kernel ties sockets of link-local clients to one.
    let tied = flow.client.addr.is_unicast_link_local();
    body.extend(if tied { ifindex } else { 0 }.to_ne_bytes());
    body.extend(cookie);
    body
}

/// IPv4 stands in the first four of the 16 bytes.
fn address(endpoint: Endpoint) -> [u8; 16] {
    let mapped = endpoint.addr.octets();
    let mut octets = [0; 16];
    if endpoint.is_ipv4() {
        octets[..4].copy_from_slice(&mapped[12..]);
    } else {
        octets = mapped;
    }
    octets
}
