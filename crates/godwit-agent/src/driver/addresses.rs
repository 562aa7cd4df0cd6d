//! Service addresses on this node, and telling the link where they are.
//!
//! IPv4 goes to loopback. IPv6 goes to the service interface: the kernel
//! answers a neighbour solicitation only for addresses of the interface that
//! it came in on (`ndisc_recv_ns`). Neither is probed for duplicates nor ever
//! chosen as a source; who may name them on the link is the data path's
//! business.

use std::io;
use std::net::IpAddr;

use godwit_sock::{add_address, added_addresses, remove_address};
use godwit_wire::{ArpOperation, ArpPacket, MacAddr, NeighbourAdvertisement, ShareId};

use super::ground::Ground;

/// Loopback is the first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// Makes sure that every address is there. Only with programs attached.
pub(crate) fn add(ifindex: u32, addresses: &[IpAddr]) -> Result<(), (IpAddr, io::Error)> {
    for address in addresses {
        add_address(home(ifindex, *address), *address).map_err(|error| (*address, error))?;
    }
    Ok(())
}

/// Removes those of `addresses` that an agent has added; the first failure is
/// reported.
pub(crate) fn remove(addresses: &[IpAddr]) -> io::Result<()> {
    let mut result = Ok(());
    for (ifindex, address) in added_addresses()? {
        if addresses.contains(&address) {
            let removed = remove_address(ifindex, address);
            result = result.and(removed);
        }
    }
    result
}

pub(super) const fn home(ifindex: u32, address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => LOOPBACK,
        IpAddr::V6(_) => ifindex,
    }
}

/// Gratuitous ARP in both forms (RFC 5227 section 3), unsolicited neighbour
/// advertisements (RFC 4861 section 7.2.6).
pub(super) fn announce(ground: &Ground, share: ShareId) {
    let Some(share) = ground.shares.get(share) else {
        return;
    };
    let mac = share.entry.group.unwrap_or(ground.voice.mac);
    for frame in share
        .addresses
        .iter()
        .flat_map(|address| announcements(*address, mac))
    {
        let frame = from_mac(frame, ground.voice.mac);
        if let Err(error) = ground.voice.frames.send(&frame) {
            tracing::warn!(service = share.name, error = %error, "address not announced");
        }
    }
}

/// Puts our own MAC where a frame says who has sent it: never a group's.
fn from_mac(mut frame: Vec<u8>, mac: MacAddr) -> Vec<u8> {
    if let Some(source) = frame.get_mut(6..12) {
        source.copy_from_slice(&mac.0);
    }
    frame
}

/// Gratuitous ARP in both forms, or an unsolicited neighbour advertisement.
pub(crate) fn announcements(address: IpAddr, mac: MacAddr) -> Vec<Vec<u8>> {
    match address {
        IpAddr::V4(v4) => [ArpOperation::Request, ArpOperation::Reply]
            .map(|operation| ArpPacket::gratuitous(operation, v4, mac).broadcast_frame())
            .to_vec(),
        IpAddr::V6(target) => vec![NeighbourAdvertisement { target, mac }.multicast_frame()],
    }
}
