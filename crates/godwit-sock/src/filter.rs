//! Which unicast frames a card takes in besides its own (`bridge fdb add MAC
//! dev IF self`). A card without such a filter takes in all.

use std::io;

use godwit_wire::MacAddr;
use nix::sys::socket::SockProtocol;

use crate::netlink::{NLM_F_ACK, NLM_F_CREATE, Netlink, push_attribute};

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const NTF_SELF: u8 = 0x02;
const AF_BRIDGE: u8 = 7;

/// Has interface `ifindex` take in frames for `mac` too; again is no error.
///
/// # Errors
/// Fails without CAP_NET_ADMIN, or if the interface is gone or can't.
pub fn take_in(ifindex: u32, mac: MacAddr) -> io::Result<()> {
    let socket = Netlink::open(SockProtocol::NetlinkRoute)?;
    let flags = NLM_F_ACK | NLM_F_CREATE;
    match socket.request(RTM_NEWNEIGH, flags, &message(ifindex, mac)) {
        Err(err) if err.raw_os_error() != Some(libc::EEXIST) => Err(err),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Undoes [`take_in`]; what was not taken in is no error.
///
/// # Errors
/// Fails without CAP_NET_ADMIN, or if the interface is gone.
pub fn leave_out(ifindex: u32, mac: MacAddr) -> io::Result<()> {
    let socket = Netlink::open(SockProtocol::NetlinkRoute)?;
    match socket.request(RTM_DELNEIGH, NLM_F_ACK, &message(ifindex, mac)) {
        Err(err) if err.raw_os_error() != Some(libc::ENOENT) => Err(err),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// `struct ndmsg` and the address.
fn message(ifindex: u32, mac: MacAddr) -> Vec<u8> {
    let mut body = vec![AF_BRIDGE, 0, 0, 0];
    body.extend(ifindex.to_ne_bytes());
    body.extend(NUD_PERMANENT.to_ne_bytes());
    body.extend([NTF_SELF, 0]);
    push_attribute(&mut body, NDA_LLADDR, &mac.0);
    body
}
