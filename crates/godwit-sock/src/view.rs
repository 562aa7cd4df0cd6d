//! What the kernel tells of one TCP socket of any process (sock_diag(7)).

use std::io;

use godwit_wire::{FlowKey, TcpState};
use nix::sys::socket::SockProtocol;

use crate::destroy::{INET_DIAG_NOCOOKIE, SOCK_DIAG_BY_FAMILY, TCP_LISTEN, request};
use crate::netlink::{NLM_F_ACK, Netlink, attribute, u32_at};

/// include/uapi/linux/inet_diag.h
pub(crate) const INET_DIAG_INFO: u16 = 2;
/// Size of `struct inet_diag_msg`; attributes follow.
const MESSAGE: usize = 72;
/// Of `tcpi_options` and `tcpi_bytes_received` (Linux 4.1) in `struct tcp_info`.
const OPTIONS: usize = 5;
const BYTES_RECEIVED: usize = 128;
/// `TCPI_OPT_USEC_TS` (Linux 6.7)
const MICROSECONDS: u8 = 64;

/// One socket at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketView {
    /// Its number in /proc/PID/fd; 0: no process has accepted it yet, or all that had it
    /// have closed it.
    pub inode: u32,
    /// The account that it belongs to: of whoever made or accepted it.
    pub uid: u32,
    /// What tells it from all others ([`socket_cookie`](crate::socket_cookie)).
    pub cookie: u64,
    /// Bytes that have arrived in order since it was made, a FIN counted as one.
    pub received: u64,
    /// `None`: not connected yet, or over.
    pub state: Option<TcpState>,
    /// Whether its time stamps count microseconds.
    pub counts_microseconds: bool,
}

impl SocketView {
    /// Whether it is in the accept queue of a listener. One that its server has closed is
    /// in no process either, but its own FIN is under way or has been.
    pub const fn waits_to_be_accepted(&self) -> bool {
        let is_open = matches!(
            self.state,
            Some(TcpState::Established | TcpState::CloseWait)
        );
        self.inode == 0 && is_open
    }
}

/// The socket of `flow` at its service side; `None` if it has none of its own. A
/// link-local client is one on the link of `ifindex`.
///
/// # Errors
/// If the kernel lacks INET_DIAG.
pub fn view_tcp_socket(ifindex: u32, flow: FlowKey) -> io::Result<Option<SocketView>> {
    SocketViewer::open()?.view(ifindex, flow)
}

/// For many such looks, one after the other.
#[derive(Debug)]
pub struct SocketViewer(Netlink);

impl SocketViewer {
    /// Looks in the network namespace of the calling thread, whoever uses it.
    ///
    /// # Errors
    /// If the kernel has no more sockets.
    pub fn open() -> io::Result<Self> {
        Netlink::open(SockProtocol::NetlinkSockDiag).map(Self)
    }

    /// As [`view_tcp_socket`].
    ///
    /// # Errors
    /// As there.
    pub fn view(&self, ifindex: u32, flow: FlowKey) -> io::Result<Option<SocketView>> {
        let request = request(ifindex, flow, INET_DIAG_NOCOOKIE, 1 << (INET_DIAG_INFO - 1));
        match self.0.request(SOCK_DIAG_BY_FAMILY, NLM_F_ACK, &request) {
            Ok(found) => Ok(found.iter().find_map(|message| view(message))),
            Err(err) if err.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(err) => Err(err),
        }
    }
}

/// `struct inet_diag_msg`: state at 1, cookie at 44, account at 64, inode at 68. `None` for a
/// listener.
pub(crate) fn view(message: &[u8]) -> Option<SocketView> {
    if *message.get(1)? == TCP_LISTEN {
        return None;
    }
    // Two words, the lower first.
    let (low, high) = (u32_at(message, 44)?, u32_at(message, 48)?);
    let info = attribute(message.get(MESSAGE..)?, INET_DIAG_INFO)?;
    let received = info.get(BYTES_RECEIVED..)?.get(..8)?.try_into().ok()?;
    Some(SocketView {
        inode: u32_at(message, 68)?,
        uid: u32_at(message, 64)?,
        cookie: u64::from(high) << 32 | u64::from(low),
        received: u64::from_ne_bytes(received),
        state: TcpState::from_number(*message.get(1)?),
        counts_microseconds: info.get(OPTIONS)? & MICROSECONDS != 0,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::socket_cookie;

    /// Before it is accepted it has no number, then that of its descriptor; what has
    /// arrived counts whether it was read or not.
    #[test]
    fn a_socket_is_seen_before_and_after_it_is_accepted() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(local) else {
                continue; // a host without this family
            };
            let service = listener.local_addr().expect("it is bound");
            let mut client = TcpStream::connect(service).expect("it listens");
            let flow = FlowKey {
                client: client.local_addr().expect("connected").into(),
                service: service.into(),
            };
            let look = || view_tcp_socket(0, flow).expect("sock_diag").expect("there");
            client.write_all(b"four").expect("connected");
            while look().received < 4 {}
            assert_eq!(look().inode, 0);
            assert!(look().waits_to_be_accepted() && !look().counts_microseconds);
            let (server, _) = listener.accept().expect("it came");
            let seen = look();
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&server));
            let number = std::fs::metadata(path).expect("it is open").ino();
            assert_eq!(u64::from(seen.inode), number);
            assert_eq!(seen.cookie, socket_cookie(server.as_fd()).expect("it has"));
            assert_eq!(seen.uid, nix::unistd::geteuid().as_raw());
            assert_eq!(seen.received, 4);
            assert_eq!(seen.state, Some(TcpState::Established));
            drop(client);
            while look().received < 5 {}
            let listener = FlowKey {
                client: "192.0.2.1:9".parse().expect("a literal"),
                ..flow
            };
            assert_eq!(view_tcp_socket(0, listener).expect("sock_diag"), None);
        }
    }

    /// It is in no process either, and nobody will accept it.
    #[test]
    fn one_that_its_server_has_closed_does_not_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let service = listener.local_addr().expect("it is bound");
        let client = TcpStream::connect(service).expect("it listens");
        let flow = FlowKey {
            client: client.local_addr().expect("connected").into(),
            service: service.into(),
        };
        let look = || view_tcp_socket(0, flow).expect("sock_diag").expect("there");
        while !look().waits_to_be_accepted() {}
        drop(listener.accept().expect("it came"));
        let seen = look();
        assert!(seen.inode == 0 && !seen.waits_to_be_accepted(), "{seen:?}");
    }

    #[test]
    fn a_message_that_is_cut_off_is_no_socket() {
        for length in 0..80 {
            assert_eq!(view(&vec![1; length]), None, "{length}");
        }
    }
}
