//! Service addresses of a node (rtnetlink(7), RTM_NEWADDR).

use std::io;
use std::net::IpAddr;

use nix::sys::socket::SockProtocol;

use crate::netlink::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Netlink, push_attribute};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_F_NODAD: u8 = 0x02;

/// Adds a host address without duplicate address detection and never chosen as
/// a source (preferred life time 0). Returns whether it was added; `false`:
/// it was there.
///
/// # Errors
/// Fails without CAP_NET_ADMIN, or if the interface is gone.
pub fn add_address(ifindex: u32, addr: IpAddr) -> io::Result<bool> {
    let mut body = message(ifindex, addr);
    // struct ifa_cacheinfo: preferred 0 s, valid for ever.
    let life = [0u32.to_ne_bytes(), u32::MAX.to_ne_bytes(), [0; 4], [0; 4]].concat();
    push_attribute(&mut body, IFA_CACHEINFO, &life);
    match Netlink::open(SockProtocol::NetlinkRoute)?.request(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &body) {
        Ok(_) => Ok(true),
        Err(err) if err.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        Err(err) => Err(err),
    }
}

/// Removes a host address; one that is not there is no error.
///
/// # Errors
/// Fails without CAP_NET_ADMIN, or if the interface is gone.
pub fn remove_address(ifindex: u32, addr: IpAddr) -> io::Result<()> {
    match Netlink::open(SockProtocol::NetlinkRoute)?.request(RTM_DELADDR, NLM_F_ACK, &message(ifindex, addr)) {
        Err(err) if err.raw_os_error() != Some(libc::EADDRNOTAVAIL) => Err(err),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// `struct ifaddrmsg` and the address.
fn message(ifindex: u32, addr: IpAddr) -> Vec<u8> {
    let (family, prefix, octets) = match addr {
        IpAddr::V4(v4) => (libc::AF_INET, 32, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, 128, v6.octets().to_vec()),
    };
    let family = u8::try_from(family).expect("address families are small");
    let mut body = vec![family, prefix, IFA_F_NODAD, 0];
    body.extend(ifindex.to_ne_bytes());
    push_attribute(&mut body, IFA_LOCAL, &octets);
    push_attribute(&mut body, IFA_ADDRESS, &octets);
    body
}
