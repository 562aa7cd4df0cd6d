//! Which of many flows have a TCP socket (sock_diag(7)), in one dump.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use godwit_wire::{Endpoint, FlowKey};
use nix::sys::socket::SockProtocol;

use crate::destroy::{cookie_of, has_tcp_socket};
use crate::netlink::{NLM_F_DUMP, Netlink};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// include/net/tcp_states.h: all but TCP_LISTEN
const CONNECTED: u32 = !(1 << 10);
/// TCP_ESTABLISHED and TCP_CLOSE_WAIT
const SERVING: u32 = 1 << 1 | 1 << 8;
/// These, TCP_FIN_WAIT1, TCP_LAST_ACK and TCP_CLOSING: what was written may not have arrived.
const SPEAKING: u32 = SERVING | 1 << 4 | 1 << 9 | 1 << 11;

/// The `flows` that have no socket at their service side, whatever its state.
/// As for [`has_tcp_socket`], which is asked about what the dump does not show.
///
/// # Errors
/// Fails if the kernel lacks INET_DIAG.
pub fn without_tcp_socket(
    ifindex: u32,
    mut flows: BTreeSet<FlowKey>,
) -> io::Result<BTreeSet<FlowKey>> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        Netlink::open(SockProtocol::NetlinkSockDiag)?.visit(
            SOCK_DIAG_BY_FAMILY,
            NLM_F_DUMP,
            &request(family),
            |message| {
                if let Some(flow) = flow(message) {
                    flows.remove(&flow);
                }
            },
        )?;
    }
    // A dump in several datagrams may miss a socket where others come and go.
    let mut missing = BTreeSet::new();
    for flow in flows {
        if !has_tcp_socket(ifindex, flow)? {
            missing.insert(flow);
        }
    }
    Ok(missing)
}

/// A socket that serves a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Served {
    /// The cookie, which tells it from all others since the boot (`SO_COOKIE`).
    pub cookie: u64,
    /// Its client, and where that has come.
    pub flow: FlowKey,
}

/// All sockets at these addresses, of the caller's network namespace, whose client has not
/// been told of an end: ESTABLISHED and CLOSE-WAIT.
///
/// # Errors
/// Fails if the kernel lacks INET_DIAG.
pub fn served_at(services: &BTreeSet<Endpoint>) -> io::Result<BTreeSet<Served>> {
    let ports: BTreeSet<_> = services.iter().map(|service| service.port).collect();
    let mut served = BTreeSet::new();
    for (family, port) in [libc::AF_INET, libc::AF_INET6]
        .into_iter()
        .flat_map(|family| ports.iter().map(move |port| (family, *port)))
    {
        let mut request = request(family);
        request[4..8].copy_from_slice(&SERVING.to_ne_bytes());
        // struct inet_diag_sockid begins with the socket's own port
        request[8..10].copy_from_slice(&port.to_be_bytes());
        Netlink::open(SockProtocol::NetlinkSockDiag)?.visit(
            SOCK_DIAG_BY_FAMILY,
            NLM_F_DUMP,
            &request,
            |message| {
                let found = flow(message).filter(|flow| services.contains(&flow.service));
                if let (Some(flow), Some(cookie)) = (found, cookie_of(message)) {
                    let cookie = u64::from_ne_bytes(cookie);
                    served.insert(Served { cookie, flow });
                }
            },
        )?;
    }
    Ok(served)
}

/// How many connections of the caller's network namespace still have something to say from each
/// of these addresses; one without any is left out.
///
/// # Errors
/// Fails if the kernel lacks INET_DIAG.
pub fn connections_at(addresses: &BTreeSet<IpAddr>) -> io::Result<BTreeMap<IpAddr, usize>> {
    let mut found = BTreeMap::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = request(family);
        request[4..8].copy_from_slice(&SPEAKING.to_ne_bytes());
        Netlink::open(SockProtocol::NetlinkSockDiag)?.visit(
            SOCK_DIAG_BY_FAMILY,
            NLM_F_DUMP,
            &request,
            |message| {
                let at = flow(message).map(|flow| flow.service.ip());
                if let Some(at) = at.filter(|at| addresses.contains(at)) {
                    *found.entry(at).or_default() += 1;
                }
            },
        )?;
    }
    Ok(found)
}

/// `struct inet_diag_req_v2` for a dump.
fn request(family: libc::c_int) -> Vec<u8> {
    let family = u8::try_from(family).expect("address families are small");
    let tcp = u8::try_from(libc::IPPROTO_TCP).expect("protocol numbers are small");
    let mut body = vec![family, tcp, 0, 0];
    body.extend(CONNECTED.to_ne_bytes());
    // struct inet_diag_sockid: any
    body.extend([0; 48]);
    body
}

/// `struct inet_diag_msg`: family, state, timer, retrans, then the ports and
/// addresses of the socket, its own first.
pub(crate) fn flow(message: &[u8]) -> Option<FlowKey> {
    let v4 = libc::c_int::from(*message.first()?) == libc::AF_INET;
    let end = |port: usize, addr: usize| {
        let port = u16::from_be_bytes(message.get(port..port + 2)?.try_into().ok()?);
        let octets: [u8; 16] = message.get(addr..addr + 16)?.try_into().ok()?;
        let [a, b, c, d, ..] = octets;
        let addr = if v4 {
            Ipv4Addr::new(a, b, c, d).to_ipv6_mapped()
        } else {
            Ipv6Addr::from(octets)
        };
        Some(Endpoint::new(addr, port))
    };
    Some(FlowKey {
        service: end(4, 8)?,
        client: end(6, 24)?,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    /// Every socket of a crowd is seen, over a listener of either family; what
    /// has closed, and what never was, is not.
    #[test]
    fn a_crowd_of_sockets_is_told_from_strangers() {
        for local in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let address: SocketAddr = local.parse().expect("a literal");
            let Ok(listener) = TcpListener::bind(address) else {
                continue; // a host without this family
            };
            let service = listener.local_addr().expect("it is bound");
            let connect = |_| {
                let client = TcpStream::connect(service).expect("it listens");
                let (server, _) = listener.accept().expect("it came");
                (client, server)
            };
            let pairs: Vec<_> = (0..500).map(connect).collect();
            let key = |pair: &(TcpStream, TcpStream)| FlowKey {
                client: pair.0.local_addr().expect("connected").into(),
                service: service.into(),
            };
            let flows: BTreeSet<_> = pairs.iter().map(key).collect();
            let strangers = flows.iter().map(|flow| FlowKey {
                client: flow.client,
                service: Endpoint::new(flow.service.addr, 9),
            });
            let strangers: BTreeSet<_> = strangers.take(3).collect();
            let asked = flows.union(&strangers).copied().collect();
            let found = without_tcp_socket(0, asked).expect("sock_diag");
            assert_eq!(found, strangers, "{local}");
            let at = [
                Endpoint::from(service),
                Endpoint::new(Ipv6Addr::LOCALHOST, 9),
            ];
            let served = served_at(&at.into()).expect("sock_diag");
            let served: BTreeSet<_> = served.into_iter().map(|it| it.flow).collect();
            assert_eq!(served, flows, "{local}");
        }
    }

    #[test]
    fn a_message_that_is_cut_off_is_no_flow() {
        let mut message = vec![0; 72];
        message[0] = u8::try_from(libc::AF_INET).expect("small");
        message[4..8].copy_from_slice(&[0, 80, 0x12, 0x34]);
        message[8..12].copy_from_slice(&[10, 9, 0, 100]);
        message[24..28].copy_from_slice(&[10, 9, 0, 10]);
        let flow_of = flow(&message).expect("it is whole");
        assert_eq!(flow_of.to_string(), "10.9.0.10:4660 -> 10.9.0.100:80");
        for length in 0..40 {
            assert_eq!(flow(&message[..length]), None, "{length}");
        }
    }

    #[test]
    fn connections_of_an_address_are_counted_until_they_end() {
        for local in ["127.0.0.44:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(local) else {
                continue; // a host without this family
            };
            let service = listener.local_addr().expect("it is bound");
            let count = || {
                let found = connections_at(&[service.ip()].into()).expect("it can be asked");
                found.get(&service.ip()).copied().unwrap_or_default()
            };
            let before = count();
            let client = TcpStream::connect(service).expect("it listens");
            let (server, _) = listener.accept().expect("it has come");
            assert!(count() > before, "{local}");
            drop((client, server));
            if service.is_ipv4() {
                assert_eq!(count(), before, "nobody else uses it");
            }
            assert_eq!(connections_at(&BTreeSet::new()).expect("asked").len(), 0);
        }
    }
}
