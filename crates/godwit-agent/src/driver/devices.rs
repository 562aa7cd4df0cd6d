//! The driver's part when this node is elsewhere on the link: its frames go there, and
//! clients are told.

use std::net::IpAddr;

use godwit_wire::{MacAddr, Role};

use super::addresses::announce;
use super::ground::Ground;

/// The service interface is another one now, or has another MAC address. The data
/// path knows already.
pub(super) fn follow_place(ground: &mut Ground, ifindex: u32, mac: MacAddr) {
    // First of all: what peers send here goes there.
    ground.resolver.places.tell_all(mac, &ground.peers);
    ground.peers.flush();
    ground.voice.follow(ifindex, mac);
    ground.apps.follow(ifindex);
    let (mac, interface) = (mac.to_string(), ground.config.node.interface.to_string());
    let fields = [("interface", interface.as_str()), ("mac", mac.as_str())];
    ground.events.publish_own("interface_changed", true, fields);
    ground.resolver.hurry();
}

/// Says where the services are that this node owns.
pub(super) fn announce_owned(ground: &Ground) {
    let owned = ground.shares.iter();
    let owned = owned.filter(|(_, share)| share.entry.role == Role::Owner);
    for (id, _) in owned {
        announce(ground, id);
    }
}

/// Answers who claims an address of a service: it is here, if it is.
pub(super) fn defend(ground: &Ground, address: IpAddr, mac: MacAddr) {
    let (at, by) = (address.to_string(), mac.to_string());
    let fields = [("address", at.as_str()), ("mac", by.as_str())];
    ground.events.publish_own("address_conflict", true, fields);
    let of_it = ground
        .shares
        .iter()
        .filter(|(_, share)| share.entry.role == Role::Owner && share.addresses.contains(&address));
    for (id, _) in of_it {
        announce(ground, id);
    }
}
