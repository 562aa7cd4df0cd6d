//! One look at the link, and what is done about it.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use godwit_bpf::Identity;
use godwit_core::MonoTime;
use godwit_sock::{Device, Devices, add_address, addresses as all_addresses, is_local, join_group};
use godwit_wire::MacAddr;

use super::facts::Astray;
use super::link::Link;
use super::{Follower, facts};
use crate::doctor::{self, LiveHost};
use crate::driver::addresses::{announcements, home};
use crate::facts::Look;
use crate::input::{DriverGone, Input};

/// So often within that time Godwit's programs go to the head of their chains.
const ATTEMPTS: usize = 5;
const TRUCE: Duration = Duration::from_secs(60);

/// So long after the last segment by another interface it is said.
const STRAYED: Duration = Duration::from_secs(10);

type Failure = Box<dyn Error + Send + Sync>;

/// So long after its address is there a route may still be on its way. An IPv6 address of
/// somebody else's has it when duplicates have been looked for.
const fn settling_time(address: IpAddr) -> Duration {
    match address {
        IpAddr::V4(_) => Duration::from_millis(100),
        IpAddr::V6(_) => Duration::from_millis(2500),
    }
}

impl Follower {
    /// Looks at what there is, and brings this node's programs and addresses in place.
    pub(super) fn look(&mut self, now: MonoTime) -> Result<(), DriverGone> {
        if !self.sight.sees(&self.inbox)? {
            return Ok(());
        }
        let devices = match Devices::read() {
            Ok(devices) => devices,
            Err(error) => return look_failed(&error),
        };
        let Some((device, mac)) = devices
            .named(&self.interface)
            .and_then(|device| Some((device, device.mac.filter(|mac| !mac.is_zero())?)))
        else {
            return self.note_lost("it is not there");
        };
        // First of all: a new interface is open until it has its guard.
        self.guard(&devices, device.index);
        let addresses = match all_addresses() {
            Ok(addresses) => addresses,
            Err(error) => return look_failed(&error),
        };
        if let Err(error) = self.bring_in_place(device, now) {
            return self.note_lost(&error.to_string());
        }
        self.identify(device.index, mac, &addresses);
        self.found.unplaced = self.put_back(device.index, &addresses);
        self.note_placed(&addresses, now);
        self.found.strange = self.strange(now);
        self.note_found(device, &devices, &addresses);
        self.found.strays = self.strays(&devices, now);
        self.note_families(device.index, &addresses);
        self.found.long_queue = doctor::long_queue(&LiveHost, &self.interface, &self.scope);
        let moved = (device.index, mac) != (self.place.ifindex(), self.place.mac());
        if moved || self.is_lost {
            self.is_lost = false;
            self.place.set(device.index, mac);
            self.announced = Some((now, 0));
            self.inbox.send(Input::Place {
                ifindex: device.index,
                mac,
            })?;
        }
        let link = Link::of(device);
        if self.link.replace(link) != Some(link) {
            self.inbox.send(Input::LinkChanged)?;
        }
        self.say(facts::look(&self.interface, Ok(&self.found)))?;
        // Last of all, for the kernel may wait for frames under way.
        if let Err(error) = self.hooks.watch(&devices.others(device.index)) {
            let error: &dyn Error = &error;
            tracing::warn!(error, "clients of an interface are not noticed");
        }
        Ok(())
    }

    fn note_lost(&mut self, why: &str) -> Result<(), DriverGone> {
        self.is_lost = true;
        if self.link.take().is_some() {
            self.inbox.send(Input::LinkChanged)?;
        }
        self.say(facts::look(&self.interface, Err(why)))
    }

    fn note_found(&mut self, device: &Device, devices: &Devices, addresses: &[(u32, IpAddr)]) {
        let found = &mut self.found;
        if found.first_mtu == 0 {
            found.first_mtu = device.mtu;
        }
        found.device = device.clone();
        let master = device.master.and_then(|master| devices.get(master));
        found.master = master.map(|master| (master.name.clone(), master.kind.clone()));
        let has = |address: &&IpAddr| addresses.iter().any(|(_, own)| own == *address);
        found.own_missing = self
            .addresses
            .own
            .iter()
            .filter(|it| !has(it))
            .copied()
            .collect();
    }

    /// Of which families the interface has lost its own addresses.
    fn note_families(&mut self, ifindex: u32, addresses: &[(u32, IpAddr)]) {
        let own = own_addresses(ifindex, addresses, &self.addresses.services);
        let now = families(own);
        let needed = families(self.addresses.services.iter().copied());
        let had = *self.addresses.families.get_or_insert(now);
        let bare = [("IPv4", 0), ("IPv6", 1)].into_iter();
        let bare = bare.filter(|(_, it)| needed[*it] && had[*it] && !now[*it]);
        self.found.bare = bare.map(|(name, _)| name).collect();
        // What comes later is relied on, too.
        self.addresses.families = Some([had[0] || now[0], had[1] || now[1]]);
    }

    /// By which interfaces segments of services leave around the gate.
    fn strays(&self, devices: &Devices, now: MonoTime) -> Vec<Astray> {
        let strays = self.hooks.strays().unwrap_or_else(|error| {
            tracing::warn!(%error, "can't see what leaves by other interfaces");
            Vec::new()
        });
        let is_late = |ns| ns != 0 && now.since(MonoTime::from_nanos(ns)) < STRAYED;
        let named = strays.into_iter().filter_map(|stray| {
            let is_dropped = is_late(stray.dropped_ns);
            let name = devices.get(stray.ifindex)?.name.clone();
            (is_dropped || is_late(stray.passed_ns)).then_some(Astray { name, is_dropped })
        });
        let mut named: Vec<_> = named.collect();
        named.sort_by(|one, other| one.name.cmp(&other.name));
        named
    }

    /// The driver hears what is new.
    fn say(&mut self, look: Look) -> Result<(), DriverGone> {
        if !self.sight.opens() && self.said.as_ref() == Some(&look) {
            return Ok(());
        }
        self.said = Some(look.clone());
        self.inbox.send(Input::Facts(look.into()))
    }

    /// The programs on the interface of that name, before all others.
    fn bring_in_place(&mut self, device: &Device, now: MonoTime) -> Result<(), Failure> {
        if !self.hooks.is_attached(device.index) {
            tracing::warn!(
                interface = self.interface,
                "made anew: programs attached again"
            );
            self.hooks.attach(device.index)?;
            for group in &self.groups {
                join_group(&self.interface, *group)?;
            }
        }
        self.found.fronting = self.hooks.fronting(device.index)?;
        if !self.found.fronting.is_empty() && self.may_pass(now) {
            tracing::warn!(before = ?self.found.fronting, "passed: Godwit's programs stand first");
            if let Err(error) = self.hooks.come_first(device.index) {
                let error: &dyn Error = &error;
                tracing::warn!(error, "Godwit's programs don't stand first");
            }
            self.found.fronting = self.hooks.fronting(device.index)?;
        }
        if device.index != self.place.ifindex() {
            self.frames.follow(device.index)?;
        }
        Ok(())
    }

    /// Somebody who wants to be first as well is not fought for ever.
    fn may_pass(&mut self, now: MonoTime) -> bool {
        while (self.passed.front()).is_some_and(|then| now.since(*then) > TRUCE) {
            self.passed.pop_front();
        }
        let may = self.passed.len() < ATTEMPTS;
        if may {
            self.passed.push_back(now);
        }
        may
    }

    fn guard(&mut self, devices: &Devices, service: u32) {
        if let Err(error) = self.hooks.guard(&devices.others(service)) {
            let error: &dyn Error = &error;
            tracing::warn!(error, "an interface is without its guard");
        }
    }

    /// The data path speaks in this node's own name: with addresses that it has now.
    fn identify(&mut self, ifindex: u32, mac: MacAddr, addresses: &[(u32, IpAddr)]) {
        let identity = identity(
            mac,
            own_addresses(ifindex, addresses, &self.addresses.services),
        );
        if identity == self.identity {
            return;
        }
        match self.hooks.identify(&identity) {
            Ok(()) => self.identity = identity,
            Err(error) => {
                let error: &dyn Error = &error;
                tracing::warn!(error, "the data path does not know this node's addresses");
            }
        }
    }

    fn note_placed(&mut self, addresses: &[(u32, IpAddr)], now: MonoTime) {
        let here = |service: &IpAddr| addresses.iter().any(|(_, own)| own == service);
        self.found.placed.retain(|service, _| here(service));
        for service in self.addresses.services.iter().filter(|it| here(it)) {
            self.found.placed.entry(*service).or_insert(now);
        }
    }

    /// Those that the kernel does not take for its own, although they are here.
    fn strange(&self, now: MonoTime) -> Vec<IpAddr> {
        let placed = self.found.placed.iter();
        let settled = placed.filter(|(at, since)| now.since(**since) >= settling_time(**at));
        settled
            .map(|(address, _)| *address)
            .filter(|address| is_local(*address).is_ok_and(|local| !local))
            .collect()
    }

    /// Those that can't be put back.
    fn put_back(&self, ifindex: u32, addresses: &[(u32, IpAddr)]) -> Vec<IpAddr> {
        let mut unplaced = Vec::new();
        for address in missing(ifindex, addresses, &self.addresses.services) {
            match add_address(home(ifindex, address), address) {
                Ok(_) => tracing::warn!(%address, "service address was gone, put back"),
                Err(error) => {
                    tracing::warn!(%error, %address, "service address is gone");
                    unplaced.push(address);
                }
            }
        }
        unplaced
    }

    /// Gratuitous ARP and unsolicited advertisements for this node's own addresses: its
    /// peers rely on them.
    pub(super) fn announce_self(&self) {
        let Ok(addresses) = all_addresses() else {
            return;
        };
        let own = own_addresses(self.place.ifindex(), &addresses, &self.addresses.services);
        for frame in own.flat_map(|address| announcements(address, self.place.mac())) {
            if let Err(error) = self.frames.send(&frame) {
                tracing::debug!(%error, "own address not announced");
            }
        }
    }
}

/// What can't be looked at now is looked at again within a second.
fn look_failed(error: &io::Error) -> Result<(), DriverGone> {
    tracing::warn!(%error, "can't list interfaces and addresses");
    Ok(())
}

/// Addresses of an interface that are no service's.
fn own_addresses<'a>(
    ifindex: u32,
    addresses: &'a [(u32, IpAddr)],
    services: &'a [IpAddr],
) -> impl Iterator<Item = IpAddr> + Clone + 'a {
    let here = addresses.iter().filter(move |(at, _)| *at == ifindex);
    here.map(|(_, address)| *address)
        .filter(|address| !services.contains(address))
}

/// Whether there are addresses of IPv4, and of IPv6; routes of link-local ones lead nowhere.
fn families(addresses: impl Iterator<Item = IpAddr>) -> [bool; 2] {
    addresses.fold([false; 2], |[v4, v6], address| match address {
        IpAddr::V4(_) => [true, v6],
        IpAddr::V6(at) => [v4, v6 || !at.is_unicast_link_local()],
    })
}

/// A global IPv6 address if there is one.
fn identity(mac: MacAddr, own: impl Iterator<Item = IpAddr> + Clone) -> Identity {
    let v6 = own.clone().filter_map(|address| match address {
        IpAddr::V6(v6) => Some(v6),
        IpAddr::V4(_) => None,
    });
    let global = v6.clone().find(|v6| !v6.is_unicast_link_local());
    Identity {
        mac,
        v4: own.clone().find_map(|address| match address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        }),
        v6: global.or_else(|| v6.clone().next()),
    }
}

/// Service addresses that are not where they belong.
fn missing(ifindex: u32, addresses: &[(u32, IpAddr)], services: &[IpAddr]) -> Vec<IpAddr> {
    let is_there = |address: &IpAddr| addresses.contains(&(home(ifindex, *address), *address));
    let missing = services.iter().filter(|address| !is_there(address));
    missing.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETH0: u32 = 2;
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn at(text: &str) -> IpAddr {
        text.parse().expect("a literal")
    }

    #[test]
    fn a_node_speaks_in_its_own_name() {
        let services = [at("10.0.0.100"), at("fd00::100")];
        let mut addresses = vec![
            (1, at("10.0.0.100")),
            (3, at("10.0.0.9")),
            (ETH0, at("fd00::100")),
            (ETH0, at("fe80::1")),
        ];
        let named = |addresses: &[(u32, IpAddr)]| {
            let named = identity(MAC, own_addresses(ETH0, addresses, &services));
            (named.v4.map(IpAddr::V4), named.v6.map(IpAddr::V6))
        };
        assert_eq!(named(&addresses), (None, Some(at("fe80::1"))));
        addresses.extend([(ETH0, at("10.0.0.1")), (ETH0, at("fd00::1"))]);
        assert_eq!(
            named(&addresses),
            (Some(at("10.0.0.1")), Some(at("fd00::1")))
        );
    }

    #[test]
    fn a_link_local_address_leads_nowhere() {
        let told = |all: &[&str]| families(all.iter().map(|text| at(text)));
        assert_eq!(told(&[]), [false, false]);
        assert_eq!(told(&["fe80::1"]), [false, false]);
        assert_eq!(told(&["fe80::1", "fd00::1"]), [false, true]);
        assert_eq!(told(&["10.0.0.1", "fe80::1"]), [true, false]);
    }

    #[test]
    fn a_service_address_belongs_to_loopback_or_to_the_interface() {
        let services = [at("10.0.0.100"), at("fd00::100")];
        let there = [(1, services[0]), (ETH0, services[1])];
        assert_eq!(missing(ETH0, &there, &services), [] as [IpAddr; 0]);
        assert_eq!(missing(3, &there, &services), [services[1]], "made anew");
        assert_eq!(missing(ETH0, &there[1..], &services), [services[0]]);
        assert_eq!(missing(ETH0, &[], &services), services);
    }
}
