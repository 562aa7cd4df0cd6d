//! The way to an address that is not on the link, as the kernel finds it (rtnetlink(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::sys::socket::SockProtocol;

use crate::netlink::{NLM_F_ACK, Netlink, attribute, push_attribute};

const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
/// Size of `struct rtmsg`; attributes follow.
const RTMSG: usize = 12;

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
    let (family, octets) = match to {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let family = u8::try_from(family).expect("address families are small");
    let bits = u8::try_from(octets.len() * 8).expect("128 at most");
    let mut body = vec![family, bits];
    body.resize(RTMSG, 0);
    push_attribute(&mut body, RTA_DST, &octets);
    push_attribute(&mut body, RTA_OIF, &ifindex.to_ne_bytes());
    body
}

fn hop(answer: &[u8], ifindex: u32, to: IpAddr) -> Option<IpAddr> {
    let attributes = answer.get(RTMSG..)?;
    let out = attribute(attributes, RTA_OIF)?.try_into().ok()?;
    if u32::from_ne_bytes(out) != ifindex {
        return None;
    }
    let Some(gateway) = attribute(attributes, RTA_GATEWAY) else {
        return Some(to);
    };
    if let Ok(v4) = <[u8; 4]>::try_from(gateway) {
        return Some(Ipv4Addr::from(v4).into());
    }
    let v6 = <[u8; 16]>::try_from(gateway).ok()?;
    Some(Ipv6Addr::from(v6).into())
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
    fn a_router_is_the_next_hop() {
        let to = IpAddr::from([192, 0, 2, 1]);
        let mut answer = question(7, to);
        assert_eq!(hop(&answer, 7, to), Some(to));
        assert_eq!(hop(&answer, 8, to), None, "another interface");
        push_attribute(&mut answer, RTA_GATEWAY, &[10, 0, 0, 1]);
        assert_eq!(hop(&answer, 7, to), Some([10, 0, 0, 1].into()));
    }
}
