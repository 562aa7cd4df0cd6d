//! The way to an address that is not on the link, as the kernel finds it (rtnetlink(7)).

use std::io;
use std::net::{IpAddr, UdpSocket};

use nix::sys::socket::SockProtocol;

use crate::netlink::{NLM_F_ACK, Netlink, attribute, push_attribute};

const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTN_LOCAL: u8 = 2;
/// Size of `struct rtmsg`; attributes follow.
const RTMSG: usize = 12;

/// What the kernel does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It leaves by that interface, to that router if there is one before the receiver.
    Leads {
        /// Index of the interface; that of loopback if it is for this machine.
        ifindex: u32,
        /// The router.
        router: Option<IpAddr>,
    },
    /// No route is for it.
    Nowhere,
    /// A route or rule drops it: `blackhole`, `unreachable`, `prohibit`.
    Refused(&'static str),
}

/// What becomes of a packet of this machine's address `from` to `to`.
///
/// # Errors
/// If the kernel does not say; so if `from` is none of this machine's.
pub fn way(from: IpAddr, to: IpAddr) -> io::Result<Way> {
    let mut body = asked(to);
    push_attribute(&mut body, RTA_SRC, &octets(from));
    let netlink = Netlink::open(SockProtocol::NetlinkRoute)?;
    let error = match netlink.request(RTM_GETROUTE, NLM_F_ACK, &body) {
        Ok(answers) => {
            let way = answers.iter().find_map(|answer| leads(answer));
            return way.ok_or_else(|| io::ErrorKind::InvalidData.into());
        }
        Err(error) => error,
    };
    // fib_props in net/ipv4/fib_semantics.c; ip6_rt_type_to_error().
    match error.raw_os_error() {
        Some(libc::ENETUNREACH) if is_own(from) => Ok(Way::Nowhere),
        Some(libc::EHOSTUNREACH) => Ok(Way::Refused("unreachable")),
        Some(libc::EACCES) => Ok(Way::Refused("prohibit")),
        Some(libc::EINVAL) if is_own(from) => Ok(Way::Refused("blackhole")),
        _ => Err(error),
    }
}

/// Whether this machine takes what is sent to `address` for its own.
///
/// # Errors
/// If the kernel does not say.
pub fn is_local(address: IpAddr) -> io::Result<bool> {
    let netlink = Netlink::open(SockProtocol::NetlinkRoute)?;
    match netlink.request(RTM_GETROUTE, NLM_F_ACK, &asked(address)) {
        // rtm_type
        Ok(answers) => Ok(answers
            .iter()
            .any(|answer| answer.get(7) == Some(&RTN_LOCAL))),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Without such an address these errors say that, and nothing of the way.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Who on the link of interface `ifindex` a packet to `to` is given to: itself, or a router.
/// `None`: there is no way by that interface.
///
/// # Errors
/// If the kernel does not say.
pub fn next_hop(ifindex: u32, to: IpAddr) -> io::Result<Option<IpAddr>> {
    let netlink = Netlink::open(SockProtocol::NetlinkRoute)?;
    match netlink.request(RTM_GETROUTE, NLM_F_ACK, &question(ifindex, to)) {
        Ok(answers) => Ok(answers.iter().find_map(|answer| hop(answer, ifindex, to))),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENODEV)
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// `struct rtmsg` and attributes.
fn question(ifindex: u32, to: IpAddr) -> Vec<u8> {
    let mut body = asked(to);
    push_attribute(&mut body, RTA_OIF, &ifindex.to_ne_bytes());
    body
}

/// As [`question`], by any interface.
fn asked(to: IpAddr) -> Vec<u8> {
    let family = if to.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let octets = octets(to);
    let family = u8::try_from(family).expect("address families are small");
    let bits = u8::try_from(octets.len() * 8).expect("128 at most");
    let mut body = vec![family, bits];
    body.resize(RTMSG, 0);
    push_attribute(&mut body, RTA_DST, &octets);
    body
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn hop(answer: &[u8], ifindex: u32, to: IpAddr) -> Option<IpAddr> {
    match leads(answer)? {
        Way::Leads {
            ifindex: out,
            router,
        } if out == ifindex => Some(router.unwrap_or(to)),
        Way::Leads { .. } | Way::Nowhere | Way::Refused(_) => None,
    }
}

fn leads(answer: &[u8]) -> Option<Way> {
    let attributes = answer.get(RTMSG..)?;
    let out = attribute(attributes, RTA_OIF)?.try_into().ok()?;
    let v4 = |octets| Some(<[u8; 4]>::try_from(octets).ok()?.into());
    let v6 = |octets| Some(<[u8; 16]>::try_from(octets).ok()?.into());
    let gateway = attribute(attributes, RTA_GATEWAY);
    Some(Way::Leads {
        ifindex: u32::from_ne_bytes(out),
        router: gateway.and_then(|octets| v4(octets).or_else(|| v6(octets))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loopback is its own next hop, and is not the way to anywhere else.
    #[test]
    fn who_is_on_the_link_is_its_own_next_hop() {
        let at = |text: &str| text.parse::<IpAddr>().expect("a literal");
        let lo = nix::net::if_::if_nametoindex("lo").expect("there is one");
        for host in ["127.0.0.1", "::1"] {
            let found = next_hop(lo, at(host)).expect("the kernel says");
            assert_eq!(found, Some(at(host)));
        }
        let beyond = next_hop(u32::MAX, at("192.0.2.1"));
        assert!(!matches!(beyond, Ok(Some(_))), "{beyond:?}");
    }

    #[test]
    fn this_machine_finds_the_way_to_itself() {
        for host in ["127.0.0.1", "::1"] {
            let host = host.parse().expect("a literal");
            let lo = nix::net::if_::if_nametoindex("lo").expect("there is one");
            let leads = Way::Leads {
                ifindex: lo,
                router: None,
            };
            assert_eq!(way(host, host).expect("the kernel says"), leads);
            assert!(is_local(host).expect("the kernel says"));
        }
        let other = is_local([192, 0, 2, 1].into());
        assert!(!other.expect("the kernel says"));
        let strange = way([192, 0, 2, 1].into(), [127, 0, 0, 1].into());
        assert!(strange.is_err(), "it has no such address: {strange:?}");
    }

    #[test]
    fn a_router_is_the_next_hop() {
        let to = IpAddr::from([192, 0, 2, 1]);
        let mut answer = question(7, to);
        assert_eq!(hop(&answer, 7, to), Some(to));
        assert_eq!(hop(&answer, 8, to), None, "another interface");
        push_attribute(&mut answer, RTA_GATEWAY, &[10, 0, 0, 1]);
        assert_eq!(hop(&answer, 7, to), Some([10, 0, 0, 1].into()));
    }
}
