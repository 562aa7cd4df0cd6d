//! The link-layer address of a peer on the data network, as the kernel
//! resolves it (ARP, RFC 826; neighbour discovery, RFC 4861).

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use godwit_wire::MacAddr;
use nix::net::if_::if_indextoname;
use nix::sys::socket::{SockProtocol, setsockopt, sockopt};

use crate::netlink::{NLM_F_ACK, Netlink, attribute, push_attribute, u32_at};

const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDMSG: usize = 12;
/// NUD_INCOMPLETE | NUD_FAILED | NUD_NOARP: no address, or not the peer's.
const UNUSABLE: u16 = 0x01 | 0x20 | 0x40;
/// The discard port, RFC 863.
const DISCARD: u16 = 9;

/// What the kernel knows of `addr` on interface `ifindex`; never waits.
///
/// # Errors
/// Fails if the kernel's table can't be read.
pub fn neighbour(ifindex: u32, addr: IpAddr) -> io::Result<Option<MacAddr>> {
    let answers = Netlink::open(SockProtocol::NetlinkRoute)?.request(
        RTM_GETNEIGH,
        NLM_F_ACK,
        &question(ifindex, addr),
    );
    match answers {
        Ok(answers) => Ok(answers.iter().find_map(|answer| usable(answer))),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the kernel asks for `addr` on interface `ifindex`, or has asked in vain; never
/// waits. Of one that nobody has asked for: `false`.
///
/// # Errors
/// Fails if the kernel's table can't be read.
pub fn is_unanswered(ifindex: u32, addr: IpAddr) -> io::Result<bool> {
    let answers = Netlink::open(SockProtocol::NetlinkRoute)?.request(
        RTM_GETNEIGH,
        NLM_F_ACK,
        &question(ifindex, addr),
    );
    match answers {
        Ok(answers) => Ok(answers.iter().any(|answer| says_unanswered(answer))),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// NUD_INCOMPLETE | NUD_FAILED
fn says_unanswered(answer: &[u8]) -> bool {
    let state = answer.get(8..10).and_then(|state| state.try_into().ok());
    state.is_some_and(|state| u16::from_ne_bytes(state) & (0x01 | 0x20) != 0)
}

/// Makes the kernel resolve `addr` on interface `ifindex`, by one datagram
/// to the discard port.
///
/// # Errors
/// Fails if there is no such interface, or no way to the address.
pub fn ask_neighbour(ifindex: u32, addr: IpAddr) -> io::Result<()> {
    let any: SocketAddr = if addr.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    let name = if_indextoname(ifindex)?;
    let name = OsString::from(name.to_string_lossy().into_owned());
    setsockopt(&socket, sockopt::BindToDevice, &name)?;
    socket.send_to(&[], on_link(ifindex, addr)).map(drop)
}

/// Link-local addresses mean nothing without their link.
fn on_link(ifindex: u32, addr: IpAddr) -> SocketAddr {
    match addr {
        IpAddr::V4(v4) => (v4, DISCARD).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, DISCARD, 0, ifindex).into(),
    }
}

/// `struct ndmsg` and the address.
fn question(ifindex: u32, addr: IpAddr) -> Vec<u8> {
    let (family, octets) = match addr {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let family = u8::try_from(family).expect("address families are small");
    let mut body = vec![family, 0, 0, 0];
    body.extend(ifindex.to_ne_bytes());
    body.resize(NDMSG, 0);
    push_attribute(&mut body, NDA_DST, &octets);
    body
}

/// Of a change of the kernel's table (RTM_NEWNEIGH): on which interface, whose address is
/// where now.
pub(crate) fn change(body: &[u8]) -> Option<(u32, IpAddr, MacAddr)> {
    let octets = attribute(body.get(NDMSG..)?, NDA_DST)?;
    let v4 = || <[u8; 4]>::try_from(octets).ok().map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(octets).ok().map(IpAddr::from);
    Some((u32_at(body, 4)?, v4().or_else(v6)?, usable(body)?))
}

pub(crate) fn usable(answer: &[u8]) -> Option<MacAddr> {
    let state = u16::from_ne_bytes([*answer.get(8)?, *answer.get(9)?]);
    let mac = attribute(answer.get(NDMSG..)?, NDA_LLADDR)?
        .try_into()
        .ok()?;
    (state & UNUSABLE == 0).then_some(MacAddr(mac))
}
