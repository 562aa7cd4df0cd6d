//! Where kept twins are born: listeners of the agent's own, on the loopback.

use std::io;
use std::net::{
    Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream,
};
use std::os::fd::AsRawFd as _;

use godwit_bpf::Keepers;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};

use crate::config::Config;

/// What a client may say between two snapshots before it has to wait, in bytes. The
/// kernel counts twice as much, for what surrounds it.
const LOG_SPACE: usize = 1 << 20;

/// Twins that may be born before the thread looks.
const BACKLOG: i32 = 4096;

/// Descriptors for everything else that an agent does.
const OTHERS: usize = 512;

/// One listener for each family that is needed.
#[derive(Debug)]
pub(in crate::driver) struct Perches {
    listeners: Vec<TcpListener>,
    ports: Keepers,
    room: usize,
}

impl Perches {
    /// `None` if no service of this node has twins that are kept.
    ///
    /// # Errors
    /// If the loopback has no such family, or the agent no right to more memory.
    pub(in crate::driver) fn open(config: &Config) -> io::Result<Option<Self>> {
        let kept = config.own_shares().filter(|(_, service)| service.is_kept());
        let addresses: Vec<_> = kept.flat_map(|(_, it)| it.addresses.clone()).collect();
        if addresses.is_empty() {
            return Ok(None);
        }
        let (mut listeners, mut ports) = (Vec::new(), Keepers::default());
        if addresses.iter().any(SocketAddr::is_ipv4) {
            let perch = perch(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into())?;
            ports.v4 = perch.local_addr()?.port();
            listeners.push(perch);
        }
        if addresses.iter().any(SocketAddr::is_ipv6) {
            let perch = perch(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0).into())?;
            ports.v6 = perch.local_addr()?.port();
            listeners.push(perch);
        }
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Some(Self {
            listeners,
            ports,
            room: limit.saturating_sub(OTHERS),
        }))
    }

    pub(super) const fn ports(&self) -> Keepers {
        self.ports
    }

    /// Twins that there are descriptors for.
    pub(super) const fn room(&self) -> usize {
        self.room
    }

    pub(super) fn listeners(&self) -> &[TcpListener] {
        &self.listeners
    }

    /// Those that were born since the last call.
    pub(super) fn born(&self) -> Vec<TcpStream> {
        let mut born = Vec::new();
        for listener in &self.listeners {
            loop {
                match listener.accept() {
                    Ok((twin, _)) => born.push(twin),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        if error.kind() != io::ErrorKind::WouldBlock {
                            tracing::warn!(%error, "a twin can't be kept");
                        }
                        break;
                    }
                }
            }
        }
        born
    }
}

fn perch(at: SocketAddr) -> io::Result<TcpListener> {
    let (family, address) = match at {
        SocketAddr::V4(v4) => (AddressFamily::Inet, SockaddrStorage::from(v4)),
        SocketAddr::V6(v6) => (AddressFamily::Inet6, SockaddrStorage::from(v6)),
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(family, SockType::Stream, flags, None)?;
    // A twin is bound to its service's port, where a server may begin to listen.
    setsockopt(&listener, sockopt::ReuseAddr, &true)?;
    setsockopt(&listener, sockopt::RcvBufForce, &LOG_SPACE)?;
    bind(listener.as_raw_fd(), &address)?;
    listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener.into())
}
