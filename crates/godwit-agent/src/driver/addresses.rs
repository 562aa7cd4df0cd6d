//! Service addresses on this node, and telling the link where they are.
//!
//! IPv4 goes to loopback. IPv6 goes to the service interface: the kernel
//! answers a neighbour solicitation only for addresses of the interface that
//! it came in on (`ndisc_recv_ns`). Neither is probed for duplicates nor ever
//! chosen as a source; who may name them on the link is the data path's
//! business.

use std::io;
use std::net::IpAddr;

use godwit_sock::{add_address, remove_address};
use godwit_wire::{ArpOperation, ArpPacket, MacAddr, NeighbourAdvertisement, ShareId};

use super::Driver;

/// Loopback is the first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// The addresses that this agent has added, to be removed at detach.
#[derive(Debug)]
pub(super) struct Addresses {
    ifindex: u32,
    added: Vec<IpAddr>,
}

impl Addresses {
    pub(super) const fn new(ifindex: u32) -> Self {
        Self { ifindex, added: Vec::new() }
    }

    /// Makes sure that every address is there. Only with programs attached.
    pub(super) fn add(&mut self, addresses: &[IpAddr]) -> Result<(), (IpAddr, io::Error)> {
        for address in addresses {
            if add_address(self.home(*address), *address).map_err(|error| (*address, error))? {
                self.added.push(*address);
            }
        }
        Ok(())
    }

    /// Removes what was added here; the first failure is reported.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for address in std::mem::take(&mut self.added) {
            result = result.and(remove_address(self.home(address), address));
        }
        result
    }

    const fn home(&self, address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(_) => LOOPBACK,
            IpAddr::V6(_) => self.ifindex,
        }
    }
}

impl Driver {
    /// Gratuitous ARP in both forms (RFC 5227 section 3), unsolicited neighbour
    /// advertisements (RFC 4861 section 7.2.6).
    pub(super) fn announce(&self, share: ShareId) {
        let Some(share) = self.shares.get(share) else { return };
        for frame in share.addresses.iter().flat_map(|address| announcements(*address, self.shares_mac())) {
            if let Err(error) = self.frames.send(&frame) {
                tracing::warn!(service = share.name, error = %error, "address not announced");
            }
        }
    }
}

fn announcements(address: IpAddr, mac: MacAddr) -> Vec<Vec<u8>> {
    match address {
        IpAddr::V4(v4) => [ArpOperation::Request, ArpOperation::Reply]
            .map(|operation| ArpPacket::gratuitous(operation, v4, mac).broadcast_frame())
            .to_vec(),
        IpAddr::V6(target) => vec![NeighbourAdvertisement { target, mac }.multicast_frame()],
    }
}
