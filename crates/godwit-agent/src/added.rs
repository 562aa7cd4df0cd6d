//! Addresses that Godwit has added to this machine, and that are no service's any more.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use godwit_bpf::Foreign;
use godwit_sock::added_addresses;
use nix::net::if_::if_indextoname;

/// An address, and the interface that has it.
pub(crate) type At = (u32, IpAddr);

/// What Godwit has added here and is not one of `services`; nothing where another agent or a
/// director may have it. Those pin first, so the addresses are read first.
pub(crate) fn left_over(services: &BTreeSet<IpAddr>, own: &str) -> io::Result<BTreeSet<At>> {
    let added = added_addresses()?.into_iter();
    let left: BTreeSet<_> = added.filter(|(_, it)| !services.contains(it)).collect();
    if left.is_empty() || !Foreign::nobody_beside(own)? {
        return Ok(BTreeSet::new());
    }
    Ok(left)
}

/// As `10.0.0.1 on lo`.
pub(crate) fn names<'a>(left: impl IntoIterator<Item = &'a At>) -> Vec<String> {
    let named = left.into_iter().map(|(ifindex, address)| {
        let interface = if_indextoname(*ifindex).ok();
        let interface = interface.and_then(|name| name.into_string().ok());
        format!("{address} on {}", interface.unwrap_or_default())
    });
    named.collect()
}
