//! The two ends of a connected socket.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use godwit_wire::{Endpoint, FlowKey};
use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

/// The four-tuple of a connection that a listener of this machine has accepted.
///
/// # Errors
/// If it is none of the Internet, or over.
pub fn connection_of(socket: BorrowedFd<'_>) -> io::Result<FlowKey> {
    let service: SockaddrStorage = getsockname(socket.as_raw_fd())?;
    let client: SockaddrStorage = getpeername(socket.as_raw_fd())?;
    match (endpoint(&service), endpoint(&client)) {
        (Some(service), Some(client)) => Ok(FlowKey { client, service }),
        (_, None) | (None, _) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// `None` if it is none of the Internet.
pub(crate) fn endpoint(address: &SockaddrStorage) -> Option<Endpoint> {
    let v4 = address
        .as_sockaddr_in()
        .map(|v4| Endpoint::new(v4.ip().to_ipv6_mapped(), v4.port()));
    let v6 = address
        .as_sockaddr_in6()
        .map(|v6| Endpoint::new(v6.ip(), v6.port()));
    v4.or(v6)
}
