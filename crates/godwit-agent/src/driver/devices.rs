//! The driver's part when this node is elsewhere on the link: its frames go there, and
//! clients are told.

use std::net::IpAddr;

use godwit_wire::{MacAddr, Role};

use super::Driver;

impl Driver {
    /// The service interface is another one now, or has another MAC address. The data
    /// path knows already.
    pub(super) fn follow_place(&mut self, ifindex: u32, mac: MacAddr) {
        // First of all: what peers send here goes there.
        self.ground
            .resolver
            .places
            .tell_all(mac, &self.ground.peers);
        self.ground.peers.flush();
        self.ground.voice.follow(ifindex, mac);
        self.ground.apps.follow(ifindex);
        self.follow_origins();
        let (mac, interface) = (
            mac.to_string(),
            self.ground.config.node.interface.to_string(),
        );
        let fields = [("interface", interface.as_str()), ("mac", mac.as_str())];
        self.ground
            .events
            .publish_own("interface_changed", true, fields);
        self.ground.resolver.hurry();
    }

    /// Says where the services are that this node owns.
    pub(super) fn announce_owned(&self) {
        let owned = self.ground.shares.iter();
        let owned = owned.filter(|(_, share)| share.entry.role == Role::Owner);
        for (id, _) in owned {
            self.announce(id);
        }
    }

    /// Answers who claims an address of a service: it is here, if it is.
    pub(super) fn defend(&self, address: IpAddr, mac: MacAddr) {
        let (at, by) = (address.to_string(), mac.to_string());
        let fields = [("address", at.as_str()), ("mac", by.as_str())];
        self.ground
            .events
            .publish_own("address_conflict", true, fields);
        let of_it = self.ground.shares.iter().filter(|(_, share)| {
            share.entry.role == Role::Owner && share.addresses.contains(&address)
        });
        for (id, _) in of_it {
            self.announce(id);
        }
    }
}
