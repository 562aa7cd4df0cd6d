//! TCP listeners of all processes (sock_diag(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::sys::socket::{SockProtocol, SockaddrStorage, getsockname};

use crate::namespace::{netns_cookie, netns_cookie_of};
use crate::netlink::{NLM_F_DUMP, Netlink, attribute, u32_at};
use crate::option::option;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// include/net/tcp_states.h: 1 << TCP_LISTEN
const LISTENING: u32 = 1 << 10;
/// Size of `struct inet_diag_msg`; attributes follow.
const MESSAGE: usize = 72;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_SKMEMINFO: u16 = 7;
const INET_DIAG_SKV6ONLY: u16 = 11;
const INET_DIAG_ULP_INFO: u16 = 19;
const INET_ULP_INFO_NAME: u16 = 1;
/// Of `SK_MEMINFO_RCVBUF` in that attribute.
const MEMINFO_RCVBUF: usize = 4;

/// Where something listened when it was looked.
#[derive(Debug, Clone, Default)]
pub struct Listeners(Vec<Listener>);

/// The connections that wait at one listener, and what the next gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptQueue {
    /// Its number in /proc/PID/fd.
    pub inode: u32,
    /// What tells it from all other sockets ([`socket_cookie`](crate::socket_cookie)).
    pub cookie: u64,
    /// Connections that wait to be accepted.
    pub waiting: u32,
    /// How many may wait before the next is turned away.
    pub most: u32,
    /// Receive buffer of a socket that it accepts, in bytes (socket(7), `SO_RCVBUF`).
    pub rcvbuf: u32,
    /// Whether it speaks MPTCP (`IPPROTO_MPTCP`): the kernel takes no twin there, see
    /// `bpf_sk_assign_tcp_reqsk` in net/core/filter.c. As [`Listeners::queues_of`] finds it.
    pub is_mptcp: bool,
}

impl AcceptQueue {
    /// Whether one more finds room (`sk_acceptq_is_full`).
    pub const fn has_room(&self) -> bool {
        self.waiting <= self.most
    }
}

/// Where one listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    at: SocketAddr,
    v6_only: bool,
}

impl Listeners {
    /// Looks at all listeners of the caller's network namespace.
    ///
    /// # Errors
    /// Fails if the kernel lacks INET_DIAG.
    pub fn read() -> io::Result<Self> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let answers = Netlink::open(SockProtocol::NetlinkSockDiag)?.request(
                SOCK_DIAG_BY_FAMILY,
                NLM_F_DUMP,
                &request(family),
            )?;
            found.extend(answers.iter().filter_map(|message| listener(message)));
        }
        Ok(Self(found))
    }

    /// The queues in which a connection to `address` may end; where several listen
    /// (`SO_REUSEPORT`) the kernel chooses.
    ///
    /// # Errors
    /// Fails if the kernel lacks INET_DIAG.
    pub fn queues(address: SocketAddr) -> io::Result<Vec<AcceptQueue>> {
        let found = Self::queues_of(&[address])?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The same of several addresses at once, in their order.
    ///
    /// # Errors
    /// As [`Listeners::queues`].
    pub fn queues_of(addresses: &[SocketAddr]) -> io::Result<Vec<Vec<AcceptQueue>>> {
        let mut found = vec![Vec::new(); addresses.len()];
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut request = request(family);
            // idiag_ext: a bit per attribute
            request[2] = 1 << (INET_DIAG_SKMEMINFO - 1) | 1 << (INET_DIAG_INFO - 1);
            let netlink = Netlink::open(SockProtocol::NetlinkSockDiag)?;
            for message in netlink.request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &request)? {
                let Some((listener, queue)) = listener(&message).zip(queue(&message)) else {
                    continue;
                };
                for (queues, address) in found.iter_mut().zip(addresses) {
                    if listener.serves(*address) {
                        queues.push(queue);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Whether a connection to `address` finds a listener.
    pub fn serve(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|listener| listener.serves(address))
    }
}

impl Listener {
    /// Where a socket of any process listens for TCP connections.
    ///
    /// # Errors
    /// If it does not (`InvalidInput`), or not in the network namespace of the
    /// calling thread.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let foreign = || io::Error::from(io::ErrorKind::InvalidInput);
        let is = |name| option(socket, libc::SOL_SOCKET, name);
        let tcp = is(libc::SO_PROTOCOL)? == libc::IPPROTO_TCP && is(libc::SO_ACCEPTCONN)? != 0;
        if !tcp || netns_cookie_of(socket)? != netns_cookie()? {
            return Err(foreign());
        }
        let local = getsockname::<SockaddrStorage>(socket.as_raw_fd())?;
        let v4 = local
            .as_sockaddr_in()
            .map(|v4| SocketAddr::V4((*v4).into()));
        let v6 = local
            .as_sockaddr_in6()
            .map(|v6| SocketAddr::V6((*v6).into()));
        let v6_only = v6.is_some() && option(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)? != 0;
        Ok(Self {
            at: v4.or(v6).ok_or_else(foreign)?,
            v6_only,
        })
    }

    /// Whether a connection to `address` comes to it.
    pub fn serves(self, address: SocketAddr) -> bool {
        if self.at.port() != address.port() {
            return false;
        }
        match (self.at.ip(), address.ip()) {
            (IpAddr::V4(at), IpAddr::V4(ip)) => at.is_unspecified() || at == ip,
            (IpAddr::V6(at), IpAddr::V6(ip)) => at.is_unspecified() || at == ip,
            (IpAddr::V6(at), IpAddr::V4(ip)) => {
                at == ip.to_ipv6_mapped() || (at.is_unspecified() && !self.v6_only)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) => false,
        }
    }
}

/// `struct inet_diag_req_v2` for a dump.
fn request(family: libc::c_int) -> Vec<u8> {
    let family = u8::try_from(family).expect("address families are small");
    let tcp = u8::try_from(libc::IPPROTO_TCP).expect("protocol numbers are small");
    let mut body = vec![family, tcp, 0, 0];
    body.extend(LISTENING.to_ne_bytes());
    // struct inet_diag_sockid: any
    body.extend([0; 48]);
    body
}

/// `struct inet_diag_msg`: family, state, timer, retrans, then the socket's
/// source port (2), destination port (2), source address (16), ...
pub(crate) fn listener(message: &[u8]) -> Option<Listener> {
    let port = u16::from_be_bytes(message.get(4..6)?.try_into().ok()?);
    let octets: [u8; 16] = message.get(8..24)?.try_into().ok()?;
    let ip = if libc::c_int::from(*message.first()?) == libc::AF_INET {
        let [a, b, c, d, ..] = octets;
        IpAddr::from(Ipv4Addr::new(a, b, c, d))
    } else {
        IpAddr::from(Ipv6Addr::from(octets))
    };
    let v6_only = attribute(message.get(MESSAGE..)?, INET_DIAG_SKV6ONLY);
    Some(Listener {
        at: SocketAddr::new(ip, port),
        v6_only: v6_only.is_some_and(|value| value.first() == Some(&1)),
    })
}

/// As [`listener`]; of a listener the lengths of the queues count connections.
pub(crate) fn queue(message: &[u8]) -> Option<AcceptQueue> {
    let memory = attribute(message.get(MESSAGE..)?, INET_DIAG_SKMEMINFO)?;
    // Two words, the lower first.
    let (low, high) = (u32_at(message, 44)?, u32_at(message, 48)?);
    Some(AcceptQueue {
        waiting: u32_at(message, 56)?,
        most: u32_at(message, 60)?,
        inode: u32_at(message, 68)?,
        cookie: u64::from(high) << 32 | u64::from(low),
        rcvbuf: u32_at(memory, MEMINFO_RCVBUF)?,
        is_mptcp: is_mptcp(message).unwrap_or(false),
    })
}

/// Its socket of TCP is the first subflow of one of MPTCP, which the name of the upper layer
/// says (net/ipv4/tcp_diag.c). The kernel tells that with `INET_DIAG_INFO` only.
fn is_mptcp(message: &[u8]) -> Option<bool> {
    let upper = attribute(message.get(MESSAGE..)?, INET_DIAG_ULP_INFO)?;
    Some(attribute(upper, INET_ULP_INFO_NAME)?.starts_with(b"mptcp"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd as _;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("a literal")
    }

    #[test]
    fn a_listener_serves_its_address_or_all_of_its_families() {
        let listener = |text, v6_only| Listener {
            at: at(text),
            v6_only,
        };
        let cases = [
            (listener("0.0.0.0:80", false), [true, false, false]),
            (listener("10.0.0.1:80", false), [true, false, false]),
            (listener("10.0.0.2:80", false), [false, false, false]),
            (listener("[::]:80", true), [false, true, false]),
            (listener("[::]:80", false), [true, true, false]),
            (listener("[2001:db8::1]:80", false), [false, true, false]),
            (
                listener("[::ffff:10.0.0.1]:80", false),
                [true, false, false],
            ),
        ];
        for (listener, expected) in cases {
            let services = ["10.0.0.1:80", "[2001:db8::1]:80", "10.0.0.1:81"];
            let serves = services.map(|service| listener.serves(at(service)));
            assert_eq!(serves, expected, "{listener:?}");
        }
    }

    #[test]
    fn a_listener_is_known_by_its_descriptor() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let found = Listener::of(listener.as_fd()).expect("it listens");
        assert!(found.serves(address) && !found.serves(at("127.0.0.2:1")));
        let client = std::net::TcpStream::connect(address).expect("it listens");
        Listener::of(client.as_fd()).expect_err("no listener");
        let (pipe, _other) = io::pipe().expect("descriptors are left");
        Listener::of(pipe.as_fd()).expect_err("no socket");
        let unix = std::os::unix::net::UnixStream::pair()
            .expect("descriptors are left")
            .0;
        Listener::of(unix.as_fd()).expect_err("not TCP");
    }

    #[test]
    fn who_waits_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let queue = || match Listeners::queues(address).expect("sock_diag")[..] {
            [queue] => queue,
            ref others => panic!("{others:?}"),
        };
        assert_eq!(queue().waiting, 0);
        let cookie = crate::socket_cookie(listener.as_fd());
        assert_eq!(queue().cookie, cookie.expect("it has one"));
        assert!(queue().most >= 128 && queue().rcvbuf > 4096 && queue().has_room());
        let _client = std::net::TcpStream::connect(address).expect("it listens");
        assert_eq!(queue().waiting, 1);
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).expect("small"))
            .expect("it listens");
        assert!(!queue().has_room());
        drop(listener);
        assert_eq!(Listeners::queues(address).expect("sock_diag"), []);
    }

    /// Go listens so by itself.
    #[test]
    fn a_listener_that_speaks_mptcp_is_known() {
        use std::os::fd::{FromRawFd as _, OwnedFd};

        use nix::sys::socket::{Backlog, SockaddrIn, bind, listen};

        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        for (protocol, speaks) in [(libc::IPPROTO_TCP, false), (libc::IPPROTO_MPTCP, true)] {
            // SAFETY: the call takes numbers only.
            let listener = unsafe { libc::socket(libc::AF_INET, kind, protocol) };
            if listener < 0 {
                eprintln!("skipped: no protocol {protocol} here");
                continue;
            }
            // SAFETY: it has just been made, and nobody else has it.
            let listener = unsafe { OwnedFd::from_raw_fd(listener) };
            let any = SockaddrIn::new(127, 0, 0, 1, 0);
            bind(listener.as_raw_fd(), &any).expect("a free port");
            listen(&listener, Backlog::new(1).expect("small")).expect("it listens");
            let local = getsockname::<SockaddrIn>(listener.as_raw_fd()).expect("it is bound");
            let queues = Listeners::queues(SocketAddr::V4(local.into())).expect("sock_diag");
            assert!(
                matches!(queues[..], [queue] if queue.is_mptcp == speaks),
                "{queues:?}"
            );
        }
    }

    /// What the kernel says of a listener of our own, while it is there.
    #[test]
    fn listeners_are_found_and_lost() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(local) else {
                continue; // a host without this family
            };
            let address = listener.local_addr().expect("it is bound");
            assert!(Listeners::read().expect("sock_diag").serve(address));
            drop(listener);
            assert!(!Listeners::read().expect("sock_diag").serve(address));
        }
    }
}
