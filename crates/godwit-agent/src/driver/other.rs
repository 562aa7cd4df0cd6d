//! Who the other side is of what an earlier agent has left in the data path. That knows it by
//! its address on the link alone; who it is, the kernel's table of neighbours says.
//!
//! Only where nobody else knows: neither an earlier life in this process, nor what this node
//! has voted for. Without a fence nobody votes.

use godwit_sock::neighbour;
use godwit_wire::{MacAddr, NodeName};

use crate::config::{Config, PeerRole};

/// The server that is there, as far as the kernel knows.
pub(super) fn server_at(config: &Config, ifindex: u32, mac: MacAddr) -> Option<NodeName> {
    let servers = config.others().filter(|peer| peer.role == PeerRole::Server);
    let found = servers.map(|peer| (peer.name, neighbour(ifindex, peer.data).ok().flatten()));
    the_one_at(mac, found)
}

/// Of two that are said to be there, one is a lie, or both are behind a router.
fn the_one_at(
    mac: MacAddr,
    found: impl Iterator<Item = (NodeName, Option<MacAddr>)>,
) -> Option<NodeName> {
    let mut there = found.filter(|(_, at)| *at == Some(mac) && mac != MacAddr::ZERO);
    let (name, _) = there.next()?;
    there.next().is_none().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    const ONE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const TWO: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    #[test]
    fn the_server_at_that_address_is_the_other_side() {
        let (b, c) = (node("b"), node("c"));
        let of = |mac, found: [(NodeName, Option<MacAddr>); 2]| the_one_at(mac, found.into_iter());
        assert_eq!(of(ONE, [(b, Some(ONE)), (c, Some(TWO))]), Some(b));
        assert_eq!(of(TWO, [(b, Some(ONE)), (c, Some(TWO))]), Some(c));
        assert_eq!(of(TWO, [(b, Some(ONE)), (c, None)]), None);
        assert_eq!(of(ONE, [(b, Some(ONE)), (c, Some(ONE))]), None);
        let zero = Some(MacAddr::ZERO);
        assert_eq!(of(MacAddr::ZERO, [(b, zero), (c, None)]), None);
    }
}
