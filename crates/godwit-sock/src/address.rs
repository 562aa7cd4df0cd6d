//! Service addresses of a node (rtnetlink(7), RTM_NEWADDR).

use std::io;
use std::net::IpAddr;

use nix::sys::socket::SockProtocol;

use crate::netlink::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Netlink, attribute, push_attribute, u32_at,
};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_PROTO: u16 = 11;
const IFA_F_NODAD: u8 = 0x02;
const RTM_GETADDR: u16 = 22;
const IFADDRMSG: usize = 8;

/// Who added an address (`IFA_PROTO`, Linux 5.18; `ip address` shows it): what
/// we added is found again by any later agent, whatever became of the first.
const PROTO_GODWIT: u8 = 0x67;

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
    push_attribute(&mut body, IFA_PROTO, &[PROTO_GODWIT]);
    match Netlink::open(SockProtocol::NetlinkRoute)?.request(
        RTM_NEWADDR,
        NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
        &body,
    ) {
        Ok(_) => Ok(true),
        Err(err) if err.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        Err(err) => Err(err),
    }
}

/// The addresses that [`add_address`] has added, with their interfaces.
///
/// # Errors
/// Fails if the kernel's list can't be read.
pub fn added_addresses() -> io::Result<Vec<(u32, IpAddr)>> {
    let entries = Netlink::open(SockProtocol::NetlinkRoute)?.request(
        RTM_GETADDR,
        NLM_F_DUMP,
        &[0; IFADDRMSG],
    )?;
    Ok(entries.iter().filter_map(|entry| ours(entry)).collect())
}

/// Every address of this network namespace, with its interface.
///
/// # Errors
/// Fails if the kernel's list can't be read.
pub fn addresses() -> io::Result<Vec<(u32, IpAddr)>> {
    let entries = Netlink::open(SockProtocol::NetlinkRoute)?.request(
        RTM_GETADDR,
        NLM_F_DUMP,
        &[0; IFADDRMSG],
    )?;
    Ok(entries.iter().filter_map(|entry| address(entry)).collect())
}

pub(crate) fn ours(entry: &[u8]) -> Option<(u32, IpAddr)> {
    if attribute(entry.get(IFADDRMSG..)?, IFA_PROTO)? != [PROTO_GODWIT] {
        return None;
    }
    address(entry)
}

/// The end of a point-to-point link that is here (`IFA_LOCAL`), not the other one.
fn address(entry: &[u8]) -> Option<(u32, IpAddr)> {
    let attributes = entry.get(IFADDRMSG..)?;
    let local = attribute(attributes, IFA_LOCAL);
    let octets = local.or_else(|| attribute(attributes, IFA_ADDRESS))?;
    let v4 = || <[u8; 4]>::try_from(octets).ok().map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(octets).ok().map(IpAddr::from);
    Some((u32_at(entry, 4)?, v4().or_else(v6)?))
}

/// Removes a host address; one that is not there is no error.
///
/// # Errors
/// Fails without CAP_NET_ADMIN, or if the interface is gone.
pub fn remove_address(ifindex: u32, addr: IpAddr) -> io::Result<()> {
    match Netlink::open(SockProtocol::NetlinkRoute)?.request(
        RTM_DELADDR,
        NLM_F_ACK,
        &message(ifindex, addr),
    ) {
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
