//! The link-layer address of a peer on the data network, as the kernel
//! resolves it (ARP, RFC 826; neighbour discovery, RFC 4861).

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use godwit_wire::MacAddr;
use nix::sys::socket::SockProtocol;
use thiserror::Error;

use crate::netlink::{NLM_F_DUMP, Netlink, attribute, u32_at};

const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDMSG: usize = 12;
/// NUD_INCOMPLETE | NUD_FAILED
const UNUSABLE: u16 = 0x01 | 0x20;

/// Why a peer's link-layer address is not known.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NeighbourError {
    /// No answer, or the address is not on this link.
    #[error("{addr} does not answer on the service interface: it must be on the same link")]
    Silent {
        /// Whom we asked for.
        addr: IpAddr,
    },
    /// The kernel's table can't be read.
    #[error("can't read the neighbour table")]
    Table(#[source] io::Error),
}

/// Asks for `addr` on interface `ifindex` and waits for the answer.
///
/// # Errors
/// [`NeighbourError::Silent`] after `patience`.
pub fn resolve_neighbour(
    ifindex: u32,
    addr: IpAddr,
    patience: Duration,
) -> Result<MacAddr, NeighbourError> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(mac) = known(ifindex, addr).map_err(NeighbourError::Table)? {
            return Ok(mac);
        }
        if Instant::now() >= deadline {
            return Err(NeighbourError::Silent { addr });
        }
        nudge(addr);
        thread::sleep(Duration::from_millis(10));
    }
}

/// One datagram to the discard port (RFC 863) makes the kernel resolve.
fn nudge(addr: IpAddr) {
    let any: SocketAddr = if addr.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let _ = UdpSocket::bind(any).and_then(|socket| socket.send_to(&[], (addr, 9)));
}

fn known(ifindex: u32, addr: IpAddr) -> io::Result<Option<MacAddr>> {
    // struct ndmsg, all zero: every table
    let entries = Netlink::open(SockProtocol::NetlinkRoute)?.request(
        RTM_GETNEIGH,
        NLM_F_DUMP,
        &[0; NDMSG],
    )?;
    let octets = match addr {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    Ok(entries.iter().find_map(|entry| {
        let state = u16::from_ne_bytes([*entry.get(8)?, *entry.get(9)?]);
        let attributes = entry.get(NDMSG..)?;
        let here = u32_at(entry, 4)? == ifindex && attribute(attributes, NDA_DST)? == octets;
        let mac = attribute(attributes, NDA_LLADDR)?.try_into().ok()?;
        (here && state & UNUSABLE == 0).then_some(MacAddr(mac))
    }))
}
